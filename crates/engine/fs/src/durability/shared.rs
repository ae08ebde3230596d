//! Tracking of inodes as Linux did it before each file system had a lock of its own for its lists.
//! It is kept for comparison (`dirty_tracking=shared`), and is as safe. With the other tracking it
//! costs nothing.
//!
//! Each file system has a list of its cached inodes (Linux's `s_inodes`), and one lock guards the
//! lists of all file systems of the process (`inode_sb_list_lock`). An inode that enters or leaves
//! a cache takes that lock. A sync walks the whole list of its file system under the lock, to wait
//! for the pages that are under writeback. Most inodes have none, but each must be examined
//! (`wait_sb_inodes`). sync(2) does so for each file system that it visits. Here the lock is held
//! throughout; Linux released it at each inode with pages, while it waited for them. *Dirty* inodes
//! were listed for each device; here they are listed for each image.

use crate::cache::inode::Inode;
use crate::cache::table::CacheWatch;
use kedge_base::Ino;
use kedge_base::atomic::{AtomicU64, Ordering};
use kedge_base::lock::{Mutex, Rank};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The cached inodes of each file system that shares the lock.
type Lists = BTreeMap<u64, BTreeMap<Ino, Weak<Inode>>>;

/// The lock has a higher order than the shards of the inode table, under which it may be taken.
static LISTS: Mutex<Lists> = Mutex::with_order(Rank::Leaf, 1, BTreeMap::new());
static NEXT_OWNER: AtomicU64 = AtomicU64::new(0);

/// A file system's entry in the shared lists.
pub(crate) struct SharedLists {
    owner: u64,
}

impl SharedLists {
    pub(crate) fn new() -> SharedLists {
        let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
        LISTS.lock().insert(owner, BTreeMap::new());
        SharedLists { owner }
    }

    fn with_list<R>(&self, f: impl FnOnce(&mut BTreeMap<Ino, Weak<Inode>>) -> R) -> R {
        f(LISTS.lock().get_mut(&self.owner).expect("it stays as long as its owner"))
    }
}

impl CacheWatch for SharedLists {
    fn entered(&self, inode: &Arc<Inode>) {
        self.with_list(|list| list.insert(inode.ino, Arc::downgrade(inode)));
    }

    fn left(&self, ino: Ino) {
        self.with_list(|list| list.remove(&ino));
    }

    /// Visits every cached inode of the file system, under the lock that all file systems share.
    fn before_sync(&self) -> usize {
        // The count is in the inode's own memory, so reading it costs as much as reading its page
        // count did in Linux.
        self.with_list(|list| list.values().filter(|inode| inode.strong_count() > 0).count())
    }
}

impl Drop for SharedLists {
    fn drop(&mut self) {
        let gone = LISTS.lock().remove(&self.owner);
        drop(gone);
    }
}
