//! The dirty lists of old Linux: one list under one lock for all file systems of the process,
//! filtered by owner, and a sync that walks every cached inode. It is kept to compare with
//! (`dirty_tracking=shared`), and is as safe. A file system with lists of its own pays nothing for
//! it.

use crate::cache::inode::Inode;
use crate::cache::table::CacheWatch;
use crate::durability::dirty::DirtySet;
use kedge_base::Ino;
use kedge_base::lock::{Mutex, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The lists of all file systems that share them. The inodes in `cached` are there for `sync` to
/// walk.
struct Lists {
    dirty: BTreeMap<(u64, Ino), (Arc<Inode>, Duration)>,
    cached: BTreeSet<(u64, Ino)>,
}

/// Taken under a shard of the inode table too: hence the order.
static LISTS: Mutex<Lists> =
    Mutex::with_order(Rank::Leaf, 1, Lists { dirty: BTreeMap::new(), cached: BTreeSet::new() });
static NEXT_OWNER: AtomicU64 = AtomicU64::new(0);

/// One file system's share of the lists.
pub(crate) struct SharedSet {
    owner: u64,
}

impl SharedSet {
    pub(crate) fn new() -> SharedSet {
        SharedSet { owner: NEXT_OWNER.fetch_add(1, Ordering::Relaxed) }
    }
}

impl DirtySet for SharedSet {
    fn add(&self, inode: Arc<Inode>, since: Duration) {
        LISTS.lock().dirty.insert((self.owner, inode.ino), (inode, since));
    }

    fn remove(&self, ino: Ino) {
        // The inode may go with its last reference: not under the lock.
        let gone = LISTS.lock().dirty.remove(&(self.owner, ino));
        drop(gone);
    }

    fn len(&self) -> usize {
        LISTS.lock().dirty.keys().filter(|(owner, _)| *owner == self.owner).count()
    }

    fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        LISTS.lock().dirty.get(&(self.owner, ino)).map(|(inode, _)| inode.clone())
    }

    fn snapshot(&self) -> Vec<(Arc<Inode>, Duration)> {
        let lists = LISTS.lock();
        let mine = lists.dirty.iter().filter(|((owner, _), _)| *owner == self.owner);
        mine.map(|(_, dirty)| dirty.clone()).collect()
    }

    /// Looks at every cached inode of the process, under the lock that everybody needs.
    fn before_walk(&self) {
        let mine = LISTS.lock().cached.iter().filter(|(owner, _)| *owner == self.owner).count();
        tracing::trace!(mine, "walked the cached inodes");
    }
}

impl CacheWatch for SharedSet {
    fn entered(&self, ino: Ino) {
        LISTS.lock().cached.insert((self.owner, ino));
    }

    fn left(&self, ino: Ino) {
        LISTS.lock().cached.remove(&(self.owner, ino));
    }
}

impl Drop for SharedSet {
    fn drop(&mut self) {
        let mut lists = LISTS.lock();
        lists.cached.retain(|(owner, _)| *owner != self.owner);
        let of_owner = (self.owner, Ino(0))..(self.owner + 1, Ino(0));
        let keys: Vec<_> = lists.dirty.range(of_owner).map(|(key, _)| *key).collect();
        let gone: Vec<_> = keys.iter().filter_map(|key| lists.dirty.remove(key)).collect();
        drop(lists);
        drop(gone);
    }
}
