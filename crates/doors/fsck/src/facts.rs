//! The facts kept about each inode and name until all items have been read, and the key ranges that
//! could not be read.

use kedge_base::{BlockNo, Generation, Ino};
use kedge_format::item::Orphan;
use kedge_format::{FileKind, Key};
use std::collections::BTreeMap;

/// A node as its parent describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeRef {
    pub block: BlockNo,
    pub generation: Generation,
    /// Lowest key (inclusive).
    pub low: Key,
    /// Highest key (exclusive; `None`: to the end).
    pub high: Option<Key>,
}

/// The facts about an inode. Records are in ascending order of inode numbers, because the tree is
/// walked in key order.
pub(crate) struct InodeRec {
    pub ino: u64,
    pub parent: u64,
    pub nlink: u32,
    /// The number of entries of type directory in this directory.
    pub subdirs: u32,
    /// `None` if the core could not be decoded. Then nothing is checked against it.
    pub kind: Option<FileKind>,
    pub has_entries: bool,
    /// Whether some items of the inode could not be read.
    pub gap: bool,
}

/// A directory entry. The name itself stays in its leaf. It is fetched only for findings.
pub(crate) struct NameRef {
    pub target: u64,
    pub dir: u64,
    /// Index of the leaf with the entry. `u32::MAX` also stands for all higher indexes.
    pub leaf: u32,
    pub kind: FileKind,
}

const _: () = assert!(size_of::<InodeRec>() == 32 && size_of::<NameRef>() == 24);

#[derive(Default)]
pub(crate) struct Facts {
    pub inodes: Vec<InodeRec>,
    pub names: Vec<NameRef>,
    /// In ascending order of inode numbers, as the tree holds them.
    pub orphans: Vec<(u64, Orphan)>,
}

impl Facts {
    pub fn inode(&self, ino: u64) -> Option<&InodeRec> {
        self.inodes.binary_search_by_key(&ino, |r| r.ino).ok().map(|i| &self.inodes[i])
    }

    pub fn orphan(&self, ino: u64) -> Option<Orphan> {
        self.orphans.binary_search_by_key(&ino, |o| o.0).ok().map(|i| self.orphans[i].1)
    }
}

/// Key ranges that could not be read: invalid nodes, and items that cannot be decoded. Items that
/// may be in them are not reported as missing, because the fault that hides them is reported
/// already.
///
/// The ranges are disjoint, because each node's range is cut out of its parent's.
#[derive(Default)]
pub(crate) struct Lost(BTreeMap<Key, Option<Key>>);

impl Lost {
    /// Adds the keys from `low` (inclusive) to `high` (exclusive; `None`: to the end).
    pub fn range(&mut self, low: Key, high: Option<Key>) {
        self.0.insert(low, high);
    }

    pub fn item(&mut self, key: Key) {
        self.range(key, successor(key));
    }

    pub fn ranges(&self) -> impl Iterator<Item = (Key, Option<Key>)> {
        self.0.iter().map(|(low, high)| (*low, *high))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `key` lies in a lost range.
    pub fn has(&self, key: Key) -> bool {
        self.touches(key, successor(key))
    }

    pub fn touches_inode(&self, ino: Ino) -> bool {
        let key = |ino| Key { ino, ..Key::MIN };
        self.touches(key(ino.0), ino.0.checked_add(1).map(key))
    }

    fn touches(&self, low: Key, high: Option<Key>) -> bool {
        let mut before = match high {
            Some(high) => self.0.range(..high),
            None => self.0.range(..),
        };
        before.next_back().is_some_and(|(_, end)| end.is_none_or(|end| end > low))
    }
}

/// The smallest key above `key`.
pub(crate) fn successor(key: Key) -> Option<Key> {
    if let Some(offset) = key.offset.checked_add(1) {
        return Some(Key { offset, ..key });
    }
    if let Some(kind) = key.kind.checked_add(1) {
        return Some(Key { kind, offset: 0, ..key });
    }
    Some(Key { ino: key.ino.checked_add(1)?, ..Key::MIN })
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;
