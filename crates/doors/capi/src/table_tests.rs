use super::*;

#[test]
fn a_handle_is_valid_until_it_is_removed() {
    let table = Table::new(Kind::File);
    let first = table.insert(Arc::new("first")).unwrap();
    let second = table.insert(Arc::new("second")).unwrap();
    assert_eq!((*table.get(first).unwrap(), *table.get(second).unwrap()), ("first", "second"));
    assert_eq!(*table.remove(first).unwrap(), "first");
    assert!(table.get(first).is_none() && table.remove(first).is_none());
    let third = table.insert(Arc::new("third")).unwrap();
    assert_eq!(third & 0xffff_ffff, first & 0xffff_ffff, "the place is used again");
    assert_ne!(third, first);
    assert!(table.get(first).is_none() && table.remove(first).is_none(), "of an earlier generation");
    assert_eq!(*table.get(third).unwrap(), "third");
}

#[test]
fn numbers_that_are_no_handles_are_refused() {
    let (files, dirs) = (Table::new(Kind::File), Table::new(Kind::Dir));
    let file = files.insert(Arc::new(())).unwrap();
    let dir = dirs.insert(Arc::new(())).unwrap();
    assert!(file != 0 && file % 16 == 0);
    assert_ne!(file, dir);
    for wrong in [0, 1, dir, file + 1, file + 8, file | 0xf0, file + (1 << 8), file + (1 << 32), usize::MAX] {
        assert!(files.get(wrong).is_none() && files.remove(wrong).is_none(), "{wrong:#x}");
    }
    assert!(files.get(file).is_some());
}

#[test]
fn a_place_of_the_last_generation_is_not_used_again() {
    let table = Table::new(Kind::File);
    let first = table.insert(Arc::new(())).unwrap();
    table.remove(first).unwrap();
    table.places.write().all[0].generation = u32::MAX;
    let last = table.insert(Arc::new(())).unwrap();
    assert_eq!(last >> GENERATION_SHIFT, u32::MAX as usize);
    table.remove(last).unwrap();
    assert!(table.get(last).is_none() && table.remove(last).is_none());
    let next = table.insert(Arc::new(())).unwrap();
    assert_eq!(next >> PLACE_SHIFT & PLACE_MASK, 1, "another place");
    assert!(table.get(last).is_none());
}

#[test]
fn handles_are_ended_by_what_they_name() {
    let table = Table::new(Kind::Dir);
    let handles = [1, 2, 3, 4].map(|n| table.insert(Arc::new(n)).unwrap());
    let ended = table.remove_all(|n| n % 2 == 0);
    assert_eq!(ended.iter().map(|n| **n).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(handles.map(|handle| table.get(handle).is_some()), [true, false, true, false]);
}

#[test]
fn the_number_of_handles_is_bounded() {
    let table = Table::new(Kind::File);
    let unit = Arc::new(());
    let handles: Vec<usize> = (0..OPEN_MAX).map(|_| table.insert(unit.clone()).unwrap()).collect();
    assert!(table.insert(unit.clone()).is_none());
    table.remove(handles[7]).unwrap();
    assert!(table.insert(unit).is_some());
}
