//! In which order dirty inodes are written back.

use kedge_base::Ino;
use std::fmt::Debug;
use std::time::Duration;

/// One dirty inode, as a [`WritebackOrder`] sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyInode {
    /// Its number.
    pub ino: Ino,
    /// On the file system's clock, when it became dirty.
    pub since: Duration,
    /// Block behind the last one allocated to it; `None` if it has none or that is not known.
    pub location: Option<u64>,
}

/// In which order dirty inodes are written back. The file system's own affair: what is best depends
/// on how it lays files out. An order is a wish: a pass takes the inodes in this order, some at a
/// time, and an fsync goes before all.
///
/// Implementations must be quick and must not call the file system. Any order is safe; one that
/// always puts the same inode last can starve it while more and more is dirtied, which costs
/// memory, not durability: `sync` and the commit timer write all.
pub trait WritebackOrder: Send + Sync + Debug {
    /// The name as an option's word.
    fn name(&self) -> &'static str;

    /// Sorts the inodes, first first.
    fn sort(&self, inodes: &mut [DirtyInode]);
}

/// The default: whoever has been dirty longest goes first, so that nothing stays dirty for long.
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

/// By place on the device: files that grow are written in one sweep. Files without blocks come
/// last, by number, as they will be placed.
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
