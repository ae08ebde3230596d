//! The counters of a tree.

use kedge_format::trees::TreeEntry;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters that a checkpoint records. Applied records change them; [`crate::Store::take_inos`]
/// takes numbers from `next_ino` ahead of it.
#[derive(Debug)]
pub(crate) struct Counters {
    pub next_ino: AtomicU64,
    pub inodes: AtomicU64,
    /// Orphan items; not known of the first tree.
    pub orphans: AtomicU64,
}

impl Counters {
    pub(crate) fn of(next_ino: u64, inodes: u64, orphans: u64) -> Counters {
        Counters {
            next_ino: AtomicU64::new(next_ino),
            inodes: AtomicU64::new(inodes),
            orphans: AtomicU64::new(orphans),
        }
    }

    pub(crate) fn store_in(&self, entry: &mut TreeEntry) {
        entry.next_ino = self.next_ino.load(Ordering::Relaxed);
        entry.inodes = self.inodes.load(Ordering::Relaxed);
        entry.orphans = self.orphans.load(Ordering::Relaxed);
    }
}
