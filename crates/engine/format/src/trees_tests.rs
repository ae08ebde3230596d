use super::{TREES_MAX, TreeEntry, TreeKind, key, number_of};
use crate::Key;
use kedge_base::{BlockNo, Generation, Ino};
use proptest::prelude::*;

fn entry() -> TreeEntry {
    TreeEntry {
        kind: TreeKind::Head,
        read_only: true,
        root: BlockNo(4000),
        root_generation: Generation(7),
        root_level: 2,
        nodes: 31,
        next_ino: 900,
        inodes: 800,
        orphans: 1,
        point: 3,
        births_below: 2,
        nodes_below: Generation(5),
        dir: Ino(12),
        created: 1_700_000_000,
        freed_below: Key::MIN,
        name: b"before the upgrade".to_vec(),
    }
}

#[test]
fn an_entry_survives_encoding() {
    let point = TreeEntry { kind: TreeKind::Point, dir: Ino(0), name: Vec::new(), ..entry() };
    let key = Key { ino: 5, kind: 5, offset: 9 };
    let dying = TreeEntry { kind: TreeKind::Dying, freed_below: key, ..point.clone() };
    for entry in [entry(), point, dying] {
        let bytes = entry.encode();
        assert!(bytes.len() <= TreeEntry::SIZE_MAX);
        assert_eq!(TreeEntry::decode(&bytes).unwrap(), entry);
        assert!(TreeEntry::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}

#[test]
fn impossible_entries_are_refused() {
    let point = TreeEntry { kind: TreeKind::Point, ..entry() };
    for (what, bad) in [
        ("a named point", point),
        ("a head of which only the directory is known", TreeEntry { name: Vec::new(), ..entry() }),
        ("a name without a directory", TreeEntry { dir: Ino(0), ..entry() }),
        ("a slash", TreeEntry { name: b"a/b".to_vec(), ..entry() }),
        ("a high tree", TreeEntry { root_level: 255, ..entry() }),
        ("a high point", TreeEntry { point: TREES_MAX, ..entry() }),
        ("a high inode number", TreeEntry { next_ino: u64::MAX, ..entry() }),
        ("a high count", TreeEntry { inodes: u64::MAX, ..entry() }),
    ] {
        assert!(TreeEntry::decode(&bad.encode()).is_err(), "{what}");
    }
}

#[test]
fn keys_name_trees() {
    assert_eq!(number_of(&key(17)), Some(17));
    for bad in [key(TREES_MAX), Key { kind: 2, ..key(1) }, Key { offset: 1, ..key(1) }] {
        assert_eq!(number_of(&bad), None);
    }
    assert_eq!(Ino(9).in_tree(TREES_MAX - 1).tree(), TREES_MAX - 1);
    assert_eq!(Ino(9).in_tree(3).local(), Ino(9));
    assert!(Ino(u64::MAX).in_tree(TREES_MAX - 1).0 <= crate::INO_MAX);
}

proptest! {
    #[test]
    fn any_bytes_decode_or_not(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(entry) = TreeEntry::decode(&bytes) {
            prop_assert_eq!(entry.encode(), bytes);
        }
    }
}
