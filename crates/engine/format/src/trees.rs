//! Trees of one image that share nodes and blocks: forks and snapshots.
//!
//! # Table
//! An image starts with one tree, whose root the superblock names. The first fork adds a *table*:
//! another B+tree with the same node format, whose items are [`TreeEntry`] values with the keys
//! [`key`]. Each checkpoint that writes changes of a tree also updates the tree's entry. The table
//! belongs to the checkpoint, and no log record changes it.
//!
//! # Trees and points
//! A *point* is the state of a tree at the time at which the tree was forked. A point never
//! changes. The forked tree and its fork are *heads*, and both have the new point as their point
//! until they are forked themselves. The point that the forked tree had before becomes the point of
//! the new point. Entry 0 belongs to the first tree; only its point and marks have a meaning.
//!
//! # What is shared
//! Each node has the generation, and each extent the birth, in which it was made. Nodes and extents
//! older than a tree's marks belong to the tree's point or to an older one: the tree must neither
//! free nor overwrite them. All others belong to the tree alone.
//!
//! # Inode numbers
//! Keys in the nodes of a tree contain inode numbers within the tree, because forks share the
//! nodes. So do the values of entries and the parents of directories. Everywhere else, including
//! log records, an inode number also contains the number of the tree ([`Ino::in_tree`]).

use crate::Key;
use crate::item::{BIRTH_MAX, NAME_MAX};
use crate::node::LEVEL_MAX;
use kedge_base::{BlockNo, CorruptKind, Error, Generation, Ino, Result};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum number of trees and points in an image. Their numbers are below this.
pub const TREES_MAX: u32 = 1 << 17;
/// The kind in the table's keys of trees.
const TABLE_KIND: u8 = 1;

/// Returns the key of the table entry of a tree.
pub const fn key(number: u32) -> Key {
    Key { ino: number as u64, kind: TABLE_KIND, offset: 0 }
}

/// Returns the tree to which a table key refers; `None` if the key is not the key of a tree.
pub fn number_of(key: &Key) -> Option<u32> {
    let number = u32::try_from(key.ino).ok().filter(|number| *number < TREES_MAX);
    number.filter(|_| key.kind == TABLE_KIND && key.offset == 0)
}

/// What an entry of the table describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TreeKind {
    /// A tree in use.
    Head = 1,
    /// The state of a tree when the tree was forked.
    Point = 2,
    /// A deleted tree or point: what it alone owns is being freed.
    Dying = 3,
}

impl TreeKind {
    fn from_u8(n: u8) -> Option<TreeKind> {
        [TreeKind::Head, TreeKind::Point, TreeKind::Dying].into_iter().find(|kind| *kind as u8 == n)
    }
}

/// An entry of the table of trees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeEntry {
    pub kind: TreeKind,
    /// The tree must not be changed.
    pub read_only: bool,
    /// Address, generation and level of the root node.
    pub root: BlockNo,
    pub root_generation: Generation,
    pub root_level: u8,
    /// Number of the tree's nodes, including shared nodes.
    pub nodes: u64,
    /// The next inode number within the tree. No number from here on has ever been used.
    pub next_ino: u64,
    pub inodes: u64,
    /// Number of orphan items of the tree.
    pub orphans: u64,
    /// The point whose nodes and blocks the tree shares; 0 if there is none.
    pub point: u32,
    /// The marks: extents of lower birth and nodes of a lower generation belong to the point.
    pub births_below: u32,
    pub nodes_below: Generation,
    /// The directory that contains the tree's name; 0 for a point, a dying tree and the first tree.
    pub dir: Ino,
    /// Time at which the entry was made, in seconds since the epoch.
    pub created: i64,
    /// The extents of a dying tree under keys below this one have already been freed.
    pub freed_below: Key,
    /// The tree's name in `dir`.
    pub name: Vec<u8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: u8,
    flags: u8,
    root_level: u8,
    name_len: u8,
    births_below: U32,
    root: U64,
    root_generation: U64,
    nodes: U64,
    next_ino: U64,
    inodes: U64,
    orphans: U64,
    nodes_below: U64,
    dir: U64,
    created: I64,
    point: U32,
    freed_below: [u8; Key::SIZE],
    spare: [u8; 3],
}

crate::layout::layout!(LAYOUT: Raw, 104, {
    kind: 0, 1, "1: tree; 2: point; 3: being freed";
    flags: 1, 1, "bit 0: read-only; the others are zero";
    root_level: 2, 1;
    name_len: 3, 1;
    births_below: 4, 4, "extents of lower birth belong to the point";
    root: 8, 8, "address of the root node";
    root_generation: 16, 8;
    nodes: 24, 8, "count, shared ones included";
    next_ino: 32, 8, "no number within the tree from here on was ever used";
    inodes: 40, 8, "count";
    orphans: 48, 8, "count of orphan items";
    nodes_below: 56, 8, "nodes of a lower generation belong to the point";
    dir: 64, 8, "the directory that names the tree, or 0";
    created: 72, 8, "seconds";
    point: 80, 4, "number of the point, or 0";
    freed_below: 84, 17, "of a tree that is being freed: extents under lower keys are freed";
    spare: 101, 3, "zero; the name follows";
});

const READ_ONLY: u8 = 1;

impl TreeEntry {
    /// Length in bytes of the longest encoded entry.
    pub const SIZE_MAX: usize = size_of::<Raw>() + NAME_MAX;

    pub fn encode(&self) -> Vec<u8> {
        let raw = Raw {
            kind: self.kind as u8,
            flags: if self.read_only { READ_ONLY } else { 0 },
            root_level: self.root_level,
            name_len: u8::try_from(self.name.len()).expect("names are bounded by NAME_MAX"),
            births_below: self.births_below.into(),
            root: self.root.0.into(),
            root_generation: self.root_generation.0.into(),
            nodes: self.nodes.into(),
            next_ino: self.next_ino.into(),
            inodes: self.inodes.into(),
            orphans: self.orphans.into(),
            nodes_below: self.nodes_below.0.into(),
            dir: self.dir.0.into(),
            created: self.created.into(),
            point: self.point.into(),
            freed_below: self.freed_below.encode(),
            spare: [0; 3],
        };
        [raw.as_bytes(), &self.name].concat()
    }

    pub fn decode(bytes: &[u8]) -> Result<TreeEntry> {
        TreeEntry::read(bytes).ok_or_else(|| {
            let what = format!("entry of {} bytes in the table of trees", bytes.len());
            Error::corrupt(CorruptKind::Item, BlockNo(0), what)
        })
    }

    fn read(bytes: &[u8]) -> Option<TreeEntry> {
        let (raw, name) = Raw::read_from_prefix(bytes).ok()?;
        let entry = TreeEntry {
            kind: TreeKind::from_u8(raw.kind)?,
            read_only: raw.flags & READ_ONLY != 0,
            root: BlockNo(raw.root.get()),
            root_generation: Generation(raw.root_generation.get()),
            root_level: raw.root_level,
            nodes: raw.nodes.get(),
            next_ino: raw.next_ino.get(),
            inodes: raw.inodes.get(),
            orphans: raw.orphans.get(),
            point: raw.point.get(),
            births_below: raw.births_below.get(),
            nodes_below: Generation(raw.nodes_below.get()),
            dir: Ino(raw.dir.get()),
            created: raw.created.get(),
            freed_below: Key::decode(&raw.freed_below),
            name: name.to_vec(),
        };
        let named = entry.dir.0 != 0;
        let valid = raw.flags & !READ_ONLY == 0
            && raw.spare == [0; 3]
            && name.len() == raw.name_len as usize
            && name.len() <= NAME_MAX
            && !name.iter().any(|b| matches!(b, 0 | b'/'))
            && named != name.is_empty()
            && !matches!(name, b"." | b"..")
            && (!named || entry.kind == TreeKind::Head)
            && entry.root_level <= LEVEL_MAX
            && entry.point < TREES_MAX
            && entry.births_below <= BIRTH_MAX
            && entry.next_ino <= 1 << Ino::LOCAL_BITS
            && [entry.nodes, entry.inodes, entry.orphans, entry.root_generation.0, entry.nodes_below.0]
                .into_iter()
                .all(|n| n <= crate::superblock::COUNTER_MAX);
        valid.then_some(entry)
    }
}

#[cfg(test)]
#[path = "trees_tests.rs"]
mod tests;
