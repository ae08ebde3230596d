use super::*;

const SEED: [u8; 16] = [7; 16];

fn hash(name: &[u8]) -> u64 {
    name_slot(&SEED, name) / SLOT_ORDINALS
}

fn points<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Points {
    names.into_iter().map(|name| (hash(name), Some(name.to_vec()))).collect()
}

/// Chooses as [`Scramble::learn`] does, and checks the properties of every choice.
fn chosen(points: &Points, kind: ItemKind) -> Chosen {
    let draw = |n: u64| choose(points, &SEED, &Draw::new(kind as u8, mix(n), n >= DRAWS_MAX / 2));
    let new = (0..DRAWS_MAX).find_map(draw).unwrap();
    assert_eq!(new.len(), points.len());
    let hashes: Vec<u64> = new.values().map(|(hash, _)| *hash).collect();
    assert!(hashes.windows(2).all(|two| two[0] < two[1]), "in the same order, and different");
    for (old, (new, word)) in &new {
        let name = &points[old];
        assert_eq!(name.as_ref().map(Vec::len), word.as_ref().map(Vec::len));
        if let Some(word) = word {
            assert_eq!(hash(word), *new, "{}", word.escape_ascii());
            assert!(!word.iter().any(|b| matches!(b, 0 | b'/')), "{}", word.escape_ascii());
        }
    }
    new
}

#[test]
fn names_of_many_lengths_keep_their_order() {
    for count in [1, 2, 10, 1000, 20_000] {
        let names: Vec<Vec<u8>> = (0..count)
            .map(|i: u64| format!("{i}{}", "n".repeat((mix(i) % 40) as usize)).into_bytes())
            .collect();
        let points = points(names.iter().map(Vec::as_slice));
        let new = chosen(&points, ItemKind::Dentry);
        let same = new.iter().filter(|(old, (_, word))| word.is_some() && *word == points[old]).count();
        assert!(same * 100 <= count as usize, "{same} of {count} names are unchanged");
    }
}

#[test]
fn short_names_are_replaced_as_far_as_there_are_others() {
    let one: Vec<Vec<u8>> = (b'a'..=b'z').chain(b'0'..=b'9').map(|b| vec![b]).collect();
    chosen(&points(one.iter().map(Vec::as_slice)), ItemKind::Dentry);
    let two: Vec<Vec<u8>> = (0..=255u8).map(|b| format!("{b:02x}").into_bytes()).collect();
    chosen(&points(two.iter().map(Vec::as_slice)), ItemKind::Dentry);
}

#[test]
fn keys_without_a_name_stay_between_their_neighbours() {
    let names: Vec<Vec<u8>> = (0..50).map(|i| format!("name {i}").into_bytes()).collect();
    let mut points = points(names.iter().map(Vec::as_slice));
    let between: Vec<u64> = points.keys().map(|hash| hash + 1).collect();
    points.extend(between.into_iter().map(|hash| (hash, None)));
    points.insert(0, None);
    assert_eq!(chosen(&points, ItemKind::Dentry)[&0].0, 0);
}

#[test]
fn attributes_keep_their_namespace_and_known_ones_their_name() {
    let names: [&[u8]; 5] = [
        b"user.project",
        b"user.x",
        b"security.capability",
        b"system.posix_acl_access",
        b"trusted.overlay.opaque",
    ];
    let points = points(names);
    let new = chosen(&points, ItemKind::Xattr);
    for name in names {
        let (at, word) = &new[&hash(name)];
        let word = word.as_ref().unwrap();
        match name.starts_with(USER) {
            true => assert!(word.starts_with(USER) && word != name, "{}", word.escape_ascii()),
            false => assert!(word == name && *at == hash(name), "{}", word.escape_ascii()),
        }
    }
}

#[test]
fn checksums_of_data_are_not_copied() {
    let scramble = Scramble { secret: LogSecret::default(), hash_seed: SEED, new: BTreeMap::new() };
    let mut item = SumsItem::default();
    item.set(1, 0x1234_5678);
    item.set(6, 0xffff_ffff);
    let value = item.encode();
    let new = scramble.value(Key { ino: 5, kind: ItemKind::Sums as u8, offset: 0 }, &value);
    assert_eq!(new.len(), value.len(), "an item keeps its length");
    let new = SumsItem::decode(&new).unwrap();
    let is_set: Vec<u64> = (0..16).filter(|block| new.get(*block) != 0).collect();
    assert_eq!(is_set, [1, 6], "the same blocks have checksums");
    assert!(is_set.iter().all(|block| new.get(*block) == 1), "{new:?}");
}
