use super::{LIMITS_MAX, LimitEntry, key, number_of};
use crate::trees::TREES_MAX;
use crate::{Key, trees};
use kedge_base::Ino;
use proptest::prelude::*;

const ENTRY: LimitEntry =
    LimitEntry { dir: Ino(12), parent: 3, blocks_max: Some(1000), inodes_max: None, blocks: 17, inodes: 4 };

#[test]
fn a_limit_survives_encoding() {
    for entry in [ENTRY, LimitEntry { blocks_max: None, inodes_max: Some(1), parent: 0, ..ENTRY }] {
        assert_eq!(LimitEntry::decode(&entry.encode()).unwrap(), entry);
        assert!(LimitEntry::decode(&entry.encode()[1..]).is_err());
    }
}

#[test]
fn impossible_limits_are_refused() {
    for (what, bad) in [
        ("no directory", LimitEntry { dir: Ino(0), ..ENTRY }),
        ("a directory of another tree", LimitEntry { dir: Ino(12).in_tree(1), ..ENTRY }),
        ("a high parent", LimitEntry { parent: LIMITS_MAX, ..ENTRY }),
        ("a high maximum", LimitEntry { blocks_max: Some(u64::MAX), ..ENTRY }),
    ] {
        assert!(LimitEntry::decode(&bad.encode()).is_err(), "{what}");
    }
    let mut high_count = ENTRY.encode();
    high_count[39] = 0x80;
    assert!(LimitEntry::decode(&high_count).is_err());
    let mut spare = ENTRY.encode();
    spare[12] = 1;
    assert!(LimitEntry::decode(&spare).is_err());
}

#[test]
fn keys_name_limits_of_trees() {
    assert_eq!(number_of(&key(5, 17)), Some((5, 17)));
    assert_eq!(trees::number_of(&key(5, 17)), None);
    for bad in [key(5, 0), key(5, LIMITS_MAX), key(TREES_MAX, 1), Key { kind: 1, ..key(5, 17) }] {
        assert_eq!(number_of(&bad), None, "{bad}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_limit_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(entry) = LimitEntry::decode(&bytes) {
            prop_assert_eq!(&entry.encode()[..], &bytes[..]);
        }
    }
}
