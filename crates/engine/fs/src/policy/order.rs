//! The order in which dirty inodes are written back.

use kedge_base::Ino;
use std::fmt::Debug;
use std::time::Duration;

/// A dirty inode, as passed to a [`WritebackOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyInode {
    /// The inode's number.
    pub ino: Ino,
    /// When the inode became dirty, on the file system's clock.
    pub since: Duration,
    /// The block after the last one allocated to the inode; `None` if there is none or it is not
    /// known.
    pub location: Option<u64>,
}

/// The order in which dirty inodes are written back. Each file system has its own, since the best
/// order depends on how a file system allocates blocks. An order is a preference: a pass takes some
/// inodes at a time, in this order, and an fsync takes precedence.
///
/// Implementations must be quick and must not call the file system. Any order is safe. If an order
/// always puts the same inode last, that inode may stay dirty while others become dirty. That costs
/// memory, not durability: `sync` and the commit timer write all inodes.
pub trait WritebackOrder: Send + Sync + Debug {
    /// The name of the order: the word of the option.
    fn name(&self) -> &'static str;

    /// Sorts the inodes; the first is written first.
    fn sort(&self, inodes: &mut [DirtyInode]);
}

/// The default: the inode that has been dirty longest is written first, so that none stays dirty
/// for long.
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

/// By location on the device, so that files that grow are written in one sweep. Files without
/// blocks come last, in the order of their numbers, in which they get blocks.
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
