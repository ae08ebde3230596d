use super::*;

const NAME: &[u8] = b"user.name";

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8).collect()
}

/// Assembles the value from its items as a mount and fsck do.
fn read(items: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut items = items.iter().map(|item| XattrItem::decode(item).unwrap()).zip(700..);
    match items.next()?.0 {
        XattrItem::Small(xattr) => items.next().is_none().then(|| xattr.value.to_vec()),
        XattrItem::Large { len, .. } => {
            let (mut rest, mut out) = (XattrRest::new(700, len), Vec::new());
            for (item, slot) in items {
                rest.take(slot, item).then_some(())?;
                let XattrItem::Part { bytes, .. } = item else { return None };
                out.extend_from_slice(bytes);
            }
            rest.next_slot().is_none().then_some(out)
        }
        XattrItem::Part { .. } => None,
    }
}

#[test]
fn values_of_all_sizes_come_back() {
    for (len, slots) in [(0, 1), (1, 1), (4096, 1), (4097, 3), (8192, 3), (8193, 4), (65535, 17), (65536, 17)]
    {
        let value = value(len);
        let items = Xattr { name: NAME, value: &value }.items();
        assert_eq!((items.len() as u64, xattr_slots(len)), (slots, slots), "{len}");
        assert!(items.iter().all(|item| item.len() <= VALUE_MAX), "{len}");
        assert_eq!(XattrItem::decode(&items[0]).unwrap().name(), Some(NAME));
        assert_eq!(read(&items), Some(value), "{len}");
    }
}

#[test]
fn a_value_is_read_only_whole_and_in_order() {
    let items = Xattr { name: NAME, value: &value(20_000) }.items();
    for n in 1..items.len() {
        assert_eq!(read(&items[..n]), None, "without those from {n} on");
        let mut without = items.clone();
        without.remove(n);
        assert_eq!(read(&without), None, "without {n}");
        let mut twice = items.clone();
        twice.insert(n, items[n].clone());
        assert_eq!(read(&twice), None, "{n} twice");
        let mut shorter = items.clone();
        shorter[n].pop();
        assert_eq!(read(&shorter), None, "{n} shorter");
    }
    assert_eq!(read(&items[1..]), None, "without the attribute");
    let mut swapped = items;
    swapped.swap(1, 2);
    assert_eq!(read(&swapped), None);
}

#[test]
fn malformed_items_are_refused() {
    let large = |name: &[u8], len: u32| [&[0, name.len() as u8][..], name, &len.to_le_bytes()].concat();
    assert!(XattrItem::decode(&large(NAME, 4097)).is_ok());
    let bad = [
        vec![],
        vec![0],
        vec![0, 0],
        vec![0, 0, 0],
        vec![5, b'n'],
        vec![0, 5, b'n'],
        large(NAME, 4096),
        large(NAME, 65537),
        large(NAME, u32::MAX),
        [large(NAME, 5000), vec![0]].concat(),
        [vec![0, 0, 3], vec![0; XATTR_PART_MAX + 1]].concat(),
        [vec![1, b'n'], vec![0; XATTR_PART_MAX + 1]].concat(),
    ];
    for item in bad {
        assert!(XattrItem::decode(&item).is_err(), "{item:?}");
    }
}

#[test]
fn a_blank_item_has_the_form_of_the_other() {
    let large = Xattr { name: NAME, value: &value(9000) }.items();
    for item in large.into_iter().chain([b"\x01nv".to_vec()]) {
        let decoded = XattrItem::decode(&item).unwrap();
        let name = decoded.name().map(|name| vec![b'x'; name.len()]).unwrap_or_default();
        let blank = decoded.blank(&name);
        assert_eq!(blank.len(), item.len());
        match XattrItem::decode(&blank).unwrap() {
            XattrItem::Small(xattr) => assert_eq!((xattr.name, xattr.value), (&name[..], &[0][..])),
            XattrItem::Large { name: blanked, len } => assert_eq!((blanked, len), (&name[..], 9000)),
            XattrItem::Part { bytes, .. } => assert!(bytes.iter().all(|b| *b == 0)),
        }
    }
}
