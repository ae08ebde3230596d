//! The counters of a tree.

use kedge_base::Ino;
use kedge_base::atomic::{AtomicU64, Ordering};
use kedge_format::superblock::COUNTER_MAX;
use kedge_format::trees::TreeEntry;

/// The counters that a checkpoint records. Applied records change them; [`crate::Store::take_inos`]
/// takes numbers from `next_ino` ahead of it.
#[derive(Debug)]
pub(crate) struct Counters {
    pub next_ino: AtomicU64,
    pub inodes: AtomicU64,
    /// Orphan items. The count of the first tree is right from its first fork on, until the image
    /// is closed.
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

    /// Counts an orphan item that is gone. The count of a corrupt image may be too low.
    pub(crate) fn one_orphan_less(&self) {
        let less = |n: u64| Some(n.saturating_sub(1));
        let _ = self.orphans.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn store_in(&self, entry: &mut TreeEntry) {
        // The counts of a corrupt image may pass their bounds. An entry must be readable all the
        // same.
        entry.next_ino = self.next_ino.load(Ordering::Relaxed).min(1 << Ino::LOCAL_BITS);
        entry.inodes = self.inodes.load(Ordering::Relaxed).min(COUNTER_MAX);
        entry.orphans = self.orphans.load(Ordering::Relaxed).min(COUNTER_MAX);
    }
}
