//! The order in which dirty inodes are written back.

use kedge_base::Ino;
use std::fmt::Debug;
use std::time::Duration;

/// A dirty inode, as passed to a [`WritebackOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyInode {
    /// Its number.
    pub ino: Ino,
    /// On the file system's clock, when it became dirty.
    pub since: Duration,
    /// The block after the last one allocated to it; `None` if it has none or that is not known.
    pub location: Option<u64>,
}

/// The order in which dirty inodes are written back. Each file system has its own, since the best
/// order depends on how it places files. An order is a preference: a pass takes the inodes in this
/// order, some at a time, and an fsync takes precedence.
///
/// Implementations must be quick and must not call the file system. Any order is safe. An order
/// that always puts the same inode last can starve it while other inodes are dirtied, which costs
/// memory, not durability: `sync` and the commit timer write all.
pub trait WritebackOrder: Send + Sync + Debug {
    /// The name as an option's word.
    fn name(&self) -> &'static str;

    /// Sorts the inodes; the first is written first.
    fn sort(&self, inodes: &mut [DirtyInode]);
}

/// The default: the inode that has been dirty longest is first, so that none stays dirty for long.
#[derive(Clone, Copy, Debug, Default)]
pub struct OldestFirst;

impl WritebackOrder for OldestFirst {
    fn name(&self) -> &'static str {
        "oldest"
    }

    fn sort(&self, inodes: &mut [DirtyInode]) {
        inodes.sort_by_key(|i| (i.since, i.ino));
    }
}

/// By place on the device: files that grow are written in one sweep. Files without blocks are last,
/// in the order of their numbers, in which they will be placed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByLocation;

impl WritebackOrder for ByLocation {
    fn name(&self) -> &'static str {
        "location"
    }

    fn sort(&self, inodes: &mut [DirtyInode]) {
        inodes.sort_by_key(|i| (i.location.unwrap_or(u64::MAX), i.ino));
    }
}
