//! Limits of directory trees: how many blocks and inodes a directory and everything below it may
//! use.
//!
//! # Numbers
//! Each inode has the number of the limit towards which it counts, or 0; a new inode inherits the
//! number of its directory. A limit inside another limit has that limit as its *parent*. What an
//! inode uses counts towards its limit and towards all ancestors of that limit.
//!
//! # Table
//! The limits are entries of the table of trees ([`crate::trees`]), with the keys [`key`]. The
//! numbers are local to a tree: a fork has its own limits with the same numbers. Each checkpoint
//! writes the entries whose counts have changed. No log record changes the entries: replay
//! recomputes the counts from the records that it applies.

use crate::superblock::COUNTER_MAX;
use crate::trees::TREES_MAX;
use crate::{BLOCKS_MAX, Key};
use kedge_base::{BlockNo, CorruptKind, Error, Ino, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The kind in the keys of limits, in the table of trees.
pub(crate) const LIMIT_KIND: u8 = 2;
/// Upper bound (exclusive) of the numbers of limits.
pub const LIMITS_MAX: u32 = 1 << 24;
/// Maximum number of limits from a limit up to its topmost ancestor, both included.
pub const DEPTH_MAX: usize = 32;

/// Returns the key of the table entry of limit `number` in tree `tree`.
pub const fn key(tree: u32, number: u32) -> Key {
    Key { ino: tree as u64, kind: LIMIT_KIND, offset: number as u64 }
}

/// Returns the tree and the number of the limit to which a table key refers; `None` if the key is
/// not the key of a limit.
pub fn number_of(key: &Key) -> Option<(u32, u32)> {
    let tree = u32::try_from(key.ino).ok().filter(|tree| *tree < TREES_MAX)?;
    let number = u32::try_from(key.offset).ok().filter(|number| (1..LIMITS_MAX).contains(number))?;
    (key.kind == LIMIT_KIND).then_some((tree, number))
}

/// An entry of the table of trees that stores a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitEntry {
    /// The limited directory, as an inode number within the tree.
    pub dir: Ino,
    /// The number of the limit that contains this one; 0 if there is none.
    pub parent: u32,
    /// Maximum number of blocks of file data; `None` if unlimited.
    pub blocks_max: Option<u64>,
    /// Maximum number of inodes, the directory included; `None` if unlimited.
    pub inodes_max: Option<u64>,
    /// Blocks and inodes in use.
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
    /// Length of an encoded entry in bytes.
    pub const SIZE: usize = 48;

    pub fn encode(&self) -> [u8; LimitEntry::SIZE] {
        let raw = Raw {
            dir: self.dir.0.into(),
            parent: self.parent.into(),
            spare: 0.into(),
            blocks_max: self.blocks_max.unwrap_or(0).into(),
            inodes_max: self.inodes_max.unwrap_or(0).into(),
            // In a corrupt image the counts may exceed their bounds. The entry must remain
            // decodable.
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
