use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const UUID: uuid::Uuid = uuid::Uuid::from_u128(0x1234_5678);
const ADDR: BlockNo = BlockNo(4096);
const GENERATION: Generation = Generation(9);
const SECRET: LogSecret = LogSecret(*b"sixteen of bytes");

fn key(n: u64) -> Key {
    Key { ino: n >> 12, kind: (n >> 9) as u8 & 7, offset: n & 511 }
}

fn sealed(level: u8, fill: impl FnOnce(&mut NodeMut<'_>)) -> Vec<u8> {
    let mut bytes = vec![0xAA; NODE_SIZE];
    let mut node = NodeMut::init(&mut bytes, &UUID, ADDR, GENERATION, level);
    fill(&mut node);
    node.seal(&SECRET);
    bytes
}

fn check(bytes: &[u8], level: u8) -> Result<NodeView<'_>> {
    NodeView::check(bytes, &UUID, ADDR, GENERATION, level)
}

/// Seals the bytes after `tamper` has changed them, so that checks beyond the CRC run.
fn reject(mut bytes: Vec<u8>, level: u8, tamper: impl FnOnce(&mut [u8]), want: &str) {
    tamper(&mut bytes);
    NodeMut::trusted(&mut bytes).seal(&SECRET);
    match check(&bytes, level) {
        Err(Error::Corrupt { kind: CorruptKind::Node, block: ADDR, what }) if what.contains(want) => {}
        other => panic!("expected {want:?}, got {:?}", other.map(|v| v.items())),
    }
}

#[test]
fn a_tag_answers_for_each_bit_of_the_node_and_of_the_secret() {
    let whole = sample_leaf();
    assert!(check(&whole, 0).unwrap().is_genuine(&SECRET));
    let crc_right = |bytes: &mut [u8]| {
        let crc = crc_without(bytes, CRC_AT);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    };
    let (mut flipped, mut valid) = (0, 0);
    // Covers each bit of the header and of the first slots, then one bit in each word.
    let places = (0..HEADER + 2 * SLOT).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    for (at, bit) in places.chain((HEADER..NODE_SIZE).step_by(8).map(|at| (at, at / 8 % 8))) {
        if (CRC_AT..CRC_AT + 4).contains(&at) {
            continue;
        }
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        crc_right(&mut bytes);
        assert!(!NodeView::trusted(&bytes).is_genuine(&SECRET), "byte {at}, bit {bit}");
        flipped += 1;
        valid += check(&bytes, 0).is_ok() as u32;
    }
    assert!(flipped > 2000 && valid > 300, "{flipped} flipped, {valid} of them valid but for the tag");
    for bit in 0..128 {
        let mut other = SECRET;
        other.0[bit / 8] ^= 1 << (bit % 8);
        assert!(!NodeView::trusted(&whole).is_genuine(&other), "bit {bit} of the secret");
    }
}

fn sample_leaf() -> Vec<u8> {
    sealed(0, |n| {
        for i in 0..40 {
            n.append(&key(i * 3), &[i as u8; 100]);
        }
    })
}

fn sample_inner() -> Vec<u8> {
    sealed(2, |n| {
        for i in 0..40 {
            n.append(&key(i * 3), &Child { addr: BlockNo(i * 4), generation: Generation(i % 10) }.encode());
        }
    })
}

#[test]
fn packed_keys_order_like_keys() {
    let keys = [
        Key::MIN,
        Key { ino: 0, kind: 0, offset: 255 },
        Key { ino: 0, kind: 0, offset: 256 },
        Key { ino: 0, kind: 1, offset: 0 },
        Key { ino: 0, kind: 255, offset: u64::MAX },
        Key { ino: 1, kind: 0, offset: 0 },
        Key { ino: 0x0102_0304_0506_0708, kind: 9, offset: 0x1112_1314_1516_1718 },
        Key::MAX,
    ];
    assert!(keys.is_sorted());
    for a in keys {
        assert_eq!(Packed::of_key(&a).key(), a);
        let mut slot = [0; SLOT];
        slot[..Key::SIZE].copy_from_slice(&a.encode());
        assert_eq!(Packed::of_slot(&slot).key(), a);
        for b in keys {
            assert_eq!(Packed::of_key(&a).cmp(&Packed::of_key(&b)), a.cmp(&b));
        }
    }
}

#[test]
fn a_sealed_node_checks_and_reads_back() {
    let bytes = sample_leaf();
    let view = check(&bytes, 0).unwrap();
    assert_eq!((view.items(), view.addr(), view.generation(), view.level()), (40, ADDR, GENERATION, 0));
    assert_eq!(view.used(), 40 * item_cost(100));
    assert_eq!(view.search(&key(9)), Ok(3));
    assert_eq!(view.search(&key(10)), Err(4));
    assert_eq!(view.search(&Key::MAX), Err(40));
    assert_eq!(view.value(3), [3; 100]);
    let bytes = sample_inner();
    let view = check(&bytes, 2).unwrap();
    assert_eq!(view.child(11), Child { addr: BlockNo(44), generation: Generation(1) });
    assert_eq!(view.child_index(&key(10)), 3);
    assert_eq!(view.child_index(&key(9)), 3);
    assert_eq!(view.child_index(&Key::MIN), 0);
}

proptest! {
    #[test]
    fn a_guessed_search_finds_what_a_plain_one_finds(
        keys in proptest::collection::btree_set(any::<(u8, u8, u16)>(), 0..300),
        looks in proptest::collection::vec(any::<(u8, u8, u16)>(), 50),
        bounds in any::<[(u8, u8, u16); 2]>(),
        skew in 0..64u32,
    ) {
        let key = |(ino, kind, offset): (u8, u8, u16)| {
            Key { ino: (ino as u64) << (skew / 2), kind: kind / 64, offset: (offset as u64) << skew.min(48) }
        };
        let keys: std::collections::BTreeSet<Key> = keys.into_iter().map(key).collect();
        let bytes = sealed(0, |n| keys.iter().for_each(|k| n.append(k, &[])));
        let view = check(&bytes, 0).unwrap();
        let ends = (keys.first().copied().unwrap_or(Key::MIN), keys.last().copied().unwrap_or(Key::MAX));
        for want in looks.into_iter().map(key).chain(keys.iter().copied()) {
            for (low, high) in [ends, (Key::MIN, Key::MAX), (key(bounds[0]), key(bounds[1]))] {
                prop_assert_eq!(view.search_between(&want, &low, Some(&high)), view.search(&want));
            }
            prop_assert_eq!(view.search_between(&want, &Key::MIN, None), view.search(&want));
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut bytes = sample_leaf();
    for bit in (0..NODE_SIZE * 8).step_by(7).chain(0..HEADER * 8) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(check(&bytes, 0).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    check(&bytes, 0).unwrap();
}

#[test]
fn a_node_of_another_place_or_time_is_refused() {
    let bytes = sample_leaf();
    let other = uuid::Uuid::from_u128(1);
    assert!(NodeView::check(&bytes, &other, ADDR, GENERATION, 0).is_err());
    assert!(NodeView::check(&bytes, &UUID, BlockNo(1), GENERATION, 0).is_err());
    assert!(NodeView::check(&bytes, &UUID, ADDR, Generation(8), 0).is_err());
    assert!(NodeView::check(&bytes, &UUID, ADDR, GENERATION, 1).is_err());
    assert!(NodeView::check(&bytes[1..], &UUID, ADDR, GENERATION, 0).is_err());
    assert!(NodeView::check(&[], &UUID, ADDR, GENERATION, 0).is_err());
}

#[test]
fn well_sealed_nonsense_is_refused() {
    let set16 = |b: &mut [u8], at: usize, v: u16| b[at..at + 2].copy_from_slice(&v.to_le_bytes());
    let span_at = |i: usize| HEADER + i * SLOT + Key::SIZE;
    reject(sample_leaf(), 0, |b| b[0] = 0, "magic");
    reject(sample_leaf(), 0, |b| set16(b, ITEMS_AT, 778), "do not fit");
    reject(sample_leaf(), 0, |b| set16(b, HEAP_AT, 16385), "do not fit");
    reject(sample_leaf(), 0, |b| set16(b, HEAP_AT, 10), "do not fit");
    reject(sample_leaf(), 0, |b| set16(b, span_at(3), 70), "outside the heap");
    reject(sample_leaf(), 0, |b| set16(b, span_at(3), 16380), "outside the heap");
    reject(sample_leaf(), 0, |b| set16(b, span_at(3) + 2, 99), "garbage");
    reject(sample_leaf(), 0, |b| set16(b, span_at(3) + 2, 101), "overlap");
    reject(sample_leaf(), 0, |b| set16(b, GARBAGE_AT, 1), "garbage");
    reject(sample_leaf(), 0, |b| b[HEADER] = 1, "ascend");
    reject(sample_inner(), 2, |b| set16(b, span_at(3) + 2, 15), "length");
    reject(sample_inner(), 2, |b| set16(b, ITEMS_AT, 0), "without children");
    let young = Child { addr: BlockNo(0), generation: Generation(10) };
    reject(
        sample_inner(),
        2,
        |b| NodeMut::trusted(b).value_mut(5).copy_from_slice(&young.encode()),
        "younger",
    );
    let equal = key(6);
    reject(sample_leaf(), 0, |b| NodeMut::trusted(b).set_key(1, &equal), "ascend");
    let mut long = vec![0; NODE_SIZE];
    let mut node = NodeMut::init(&mut long, &UUID, ADDR, GENERATION, 0);
    node.append(&key(1), &vec![0; VALUE_MAX + 1]);
    reject(long, 0, |_| {}, "length");
}

#[test]
fn ranges_move_between_nodes() {
    let bytes = sample_leaf();
    let view = NodeView::trusted(&bytes);
    let right = sealed(0, |n| n.append_range(view, 25..40));
    let mut left = bytes.clone();
    let mut node = NodeMut::trusted(&mut left);
    node.truncate(25);
    assert_eq!(node.view().used(), 25 * item_cost(100));
    node.seal(&SECRET);
    let (left, right) = (check(&left, 0).unwrap(), check(&right, 0).unwrap());
    assert!(view.iter().eq(left.iter().chain(right.iter())));
}

#[derive(Debug, Clone)]
enum Act {
    Put(u64, usize),
    Remove(u64),
    Truncate(u64),
    Compact,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..300u64, prop_oneof![Just(0), 0..200usize, 0..VALUE_MAX]).prop_map(|(k, l)| Act::Put(k, l)),
        4 => (0..300u64).prop_map(Act::Remove),
        1 => (0..300u64).prop_map(Act::Truncate),
        1 => Just(Act::Compact),
    ]
}

proptest! {
    #[test]
    fn a_node_behaves_like_a_sorted_map(acts in proptest::collection::vec(act(), 1..300)) {
        let mut bytes = vec![0; NODE_SIZE];
        let mut node = NodeMut::init(&mut bytes, &UUID, ADDR, GENERATION, 0);
        let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        for (n, act) in acts.into_iter().enumerate() {
            match act {
                Act::Put(k, len) => {
                    let value = vec![n as u8; len];
                    let done = match node.view().search(&key(k)) {
                        Ok(i) => node.replace_value(i, &value),
                        Err(i) => node.insert_at(i, &key(k), &value),
                    };
                    let old = model.get(&key(k)).map_or(0, |v| item_cost(v.len()));
                    let used: usize = model.values().map(|v| item_cost(v.len())).sum();
                    prop_assert_eq!(done, used - old + item_cost(len) <= NODE_PAYLOAD);
                    if done {
                        model.insert(key(k), value);
                    }
                }
                Act::Remove(k) => {
                    let found = node.view().search(&key(k));
                    prop_assert_eq!(found.is_ok(), model.remove(&key(k)).is_some());
                    if let Ok(i) = found {
                        node.remove_at(i);
                    }
                }
                Act::Truncate(k) => {
                    let at = node.view().search(&key(k)).unwrap_or_else(|i| i);
                    node.truncate(at);
                    model.retain(|have, _| *have < key(k));
                }
                Act::Compact => node.compact(),
            }
            prop_assert_eq!(node.view().check_structure(), Ok(()));
            prop_assert!(node.view().iter().eq(model.iter().map(|(k, v)| (*k, v.as_slice()))));
            let used: usize = model.values().map(|v| item_cost(v.len())).sum();
            prop_assert_eq!(node.view().used(), used);
        }
    }

    #[test]
    fn no_bytes_make_the_check_panic(seed in any::<u64>(), head in proptest::collection::vec(any::<u8>(), 0..400)) {
        // The node has random bytes after a plausible header and a correct CRC.
        let mut bytes = sample_leaf();
        let mut state = seed | 1;
        for (i, byte) in head.iter().enumerate() {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let at = if i % 2 == 0 { HEAP_AT + (state >> 33) as usize % 400 } else { (state >> 33) as usize % NODE_SIZE };
            if !(ADDR_AT..HEAP_AT).contains(&at) && at >= 8 {
                bytes[at] = *byte;
            }
        }
        for level in 0..3 {
            bytes[LEVEL_AT] = level;
            NodeMut::trusted(&mut bytes).seal(&SECRET);
            if let Ok(view) = check(&bytes, level) {
                prop_assert!(view.iter().count() == view.items());
                let _ = view.search(&key(seed));
            }
        }
    }
}
