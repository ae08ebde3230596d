//! The counters of a tree.

use kedge_base::Ino;
use kedge_base::atomic::{AtomicU64, Ordering};
use kedge_format::superblock::COUNTER_MAX;
use kedge_format::trees::TreeEntry;

/// The counters of a tree that a checkpoint records. Applied records change them. Only `next_ino`
/// also advances without a record: [`crate::Store::take_inos`] takes numbers in advance.
#[derive(Debug)]
pub(crate) struct Counters {
    pub next_ino: AtomicU64,
    pub inodes: AtomicU64,
    /// Number of orphan items. For the first tree, this number is correct only from the tree's
    /// first fork until the image is closed.
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

    /// Decrements the number of inodes, but not below zero: in a corrupt image it may be too low.
    pub(crate) fn one_inode_less(&self) {
        one_less(&self.inodes);
    }

    /// Decrements the number of orphan items, but not below zero, like
    /// [`Counters::one_inode_less`].
    pub(crate) fn one_orphan_less(&self) {
        one_less(&self.orphans);
    }

    pub(crate) fn store_in(&self, entry: &mut TreeEntry) {
        // The counters of a corrupt image may exceed their bounds; the entry must be decodable even
        // then.
        entry.next_ino = self.next_ino.load(Ordering::Relaxed).min(1 << Ino::LOCAL_BITS);
        entry.inodes = self.inodes.load(Ordering::Relaxed).min(COUNTER_MAX);
        entry.orphans = self.orphans.load(Ordering::Relaxed).min(COUNTER_MAX);
    }
}

fn one_less(counter: &AtomicU64) {
    let less = |n: u64| Some(n.saturating_sub(1));
    let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}
