//! Limits of directory trees: how many blocks and inodes a directory and everything below it may
//! use.
//!
//! # Numbers
//! Each inode has the number of the limit that it counts for, 0 for none; a new inode has that of
//! its directory. A limit inside another names that one as its *parent*. What an inode uses counts
//! for its limit, and for each limit on the way of parents from there.
//!
//! # Table
//! The limits are entries of the table of trees ([`crate::trees`]), under the keys [`key`]. Numbers
//! belong to a tree: a fork has limits of its own with the same numbers. Each checkpoint writes the
//! entries whose counts have changed, and no log record changes them. Replay counts what its
//! records change.

use crate::superblock::COUNTER_MAX;
use crate::trees::TREES_MAX;
use crate::{BLOCKS_MAX, Key};
use kedge_base::{BlockNo, CorruptKind, Error, Ino, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The kind of the keys of limits in the table of trees.
pub(crate) const LIMIT_KIND: u8 = 2;
/// Numbers of limits are below this.
pub const LIMITS_MAX: u32 = 1 << 24;
/// Most limits on the way of parents from a limit, itself included.
pub const DEPTH_MAX: usize = 32;

/// The key of the entry of a limit of a tree.
pub const fn key(tree: u32, number: u32) -> Key {
    Key { ino: tree as u64, kind: LIMIT_KIND, offset: number as u64 }
}

/// The tree and the number of the limit that a key of the table names.
pub fn number_of(key: &Key) -> Option<(u32, u32)> {
    let tree = u32::try_from(key.ino).ok().filter(|tree| *tree < TREES_MAX)?;
    let number = u32::try_from(key.offset).ok().filter(|number| (1..LIMITS_MAX).contains(number))?;
    (key.kind == LIMIT_KIND).then_some((tree, number))
}

/// An entry of the table of trees that describes a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitEntry {
    /// The directory, by its number within the tree.
    pub dir: Ino,
    /// The limit that contains this one; 0 for none.
    pub parent: u32,
    /// Most blocks of file data; `None` for any number.
    pub blocks_max: Option<u64>,
    /// Most inodes, the directory included; `None` for any number.
    pub inodes_max: Option<u64>,
    /// What is in use.
    pub blocks: u64,
    pub inodes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    dir: U64,
    parent: U32,
    spare: U32,
    blocks_max: U64,
    inodes_max: U64,
    blocks: U64,
    inodes: U64,
}

crate::layout::layout!(LAYOUT: Raw, LimitEntry::SIZE, {
    dir: 0, 8, "number of the directory within the tree";
    parent: 8, 4, "number of the limit that contains this one, or 0";
    spare: 12, 4, "zero";
    blocks_max: 16, 8, "most blocks of file data, or 0 for any number";
    inodes_max: 24, 8, "most inodes, the directory included, or 0 for any number";
    blocks: 32, 8, "in use";
    inodes: 40, 8, "in use";
});

impl LimitEntry {
    /// Bytes of an encoded entry.
    pub const SIZE: usize = 48;

    pub fn encode(&self) -> [u8; LimitEntry::SIZE] {
        let raw = Raw {
            dir: self.dir.0.into(),
            parent: self.parent.into(),
            spare: 0.into(),
            blocks_max: self.blocks_max.unwrap_or(0).into(),
            inodes_max: self.inodes_max.unwrap_or(0).into(),
            // The counts of a corrupt image may pass their bounds. An entry must be readable all
            // the same.
            blocks: self.blocks.min(COUNTER_MAX).into(),
            inodes: self.inodes.min(COUNTER_MAX).into(),
        };
        raw.as_bytes().try_into().expect("sizes are asserted equal")
    }

    pub fn decode(bytes: &[u8]) -> Result<LimitEntry> {
        LimitEntry::read(bytes).ok_or_else(|| {
            let what = format!("limit of {} bytes in the table of trees", bytes.len());
            Error::corrupt(CorruptKind::Item, BlockNo(0), what)
        })
    }

    fn read(bytes: &[u8]) -> Option<LimitEntry> {
        let raw = Raw::read_from_bytes(bytes).ok()?;
        let max = |n: U64| Some(n.get()).filter(|n| *n > 0);
        let entry = LimitEntry {
            dir: Ino(raw.dir.get()),
            parent: raw.parent.get(),
            blocks_max: max(raw.blocks_max),
            inodes_max: max(raw.inodes_max),
            blocks: raw.blocks.get(),
            inodes: raw.inodes.get(),
        };
        let valid = raw.spare.get() == 0
            && (1..1 << Ino::LOCAL_BITS).contains(&entry.dir.0)
            && entry.parent < LIMITS_MAX
            && [entry.blocks_max, entry.inodes_max].into_iter().flatten().all(|n| n <= BLOCKS_MAX)
            && [entry.blocks, entry.inodes].into_iter().all(|n| n <= COUNTER_MAX);
        valid.then_some(entry)
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
