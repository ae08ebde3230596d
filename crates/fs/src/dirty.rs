//! Which inodes of a file system are dirty, which are under writeback, and in which order the dirty ones are written.
//!
//! Each open file system owns two lists. An inode is on the *dirty list* from its first dirty page or waiting time stamp
//! until neither is left; it is on the *under-writeback list* while a pass writes pages of it. `sync` walks these two and
//! nothing else: neither the cached clean inodes of its own file system nor anything of another one in this process.
//!
//! Writeback that makes room takes inodes from a *queue*: all that were dirty when it was last filled, in the file system's order. To
//! sort anew for each pass would cost more than the pass, with hundreds of thousands of dirty inodes; and threads that help to write
//! take different ones. (Linux moves its dirty inodes to `b_io` for the same reasons.)
//!
//! [`DirtyTracking::Shared`] is what Linux did before: one list under one lock for all file systems of the process, filtered
//! by owner, and a sync that walks every cached inode. It is kept to compare with, and is as safe.

use crate::inode::Inode;
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BlockNo, Ino};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::switches::DirtyTracking;

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

/// In which order dirty inodes are written back. The file system's own affair: what is best depends on how it lays files
/// out. An order is a wish: a pass takes the inodes in this order, some at a time, and an fsync goes before all.
///
/// Implementations must be quick and must not call the file system. Any order is safe; one that always puts the same inode
/// last can starve it while more and more is dirtied, which costs memory, not durability: `sync` and the commit timer
/// write all.
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

/// By place on the device: files that grow are written in one sweep. Files without blocks come last, by number, as they
/// will be placed.
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

type Dirty = BTreeMap<Ino, (Arc<Inode>, Duration)>;

/// The lists of all file systems that share them. The inodes in `cached` are there for `sync` to walk.
struct SharedLists {
    dirty: BTreeMap<(u64, Ino), (Arc<Inode>, Duration)>,
    cached: BTreeSet<(u64, Ino)>,
}

/// Taken under a shard of the inode table too: hence the order.
static SHARED: Mutex<SharedLists> =
    Mutex::with_order(Rank::Leaf, 1, SharedLists { dirty: BTreeMap::new(), cached: BTreeSet::new() });
static NEXT_OWNER: AtomicU64 = AtomicU64::new(0);

/// Inodes to be written next; some may be clean by now.
#[derive(Default)]
struct Queue {
    /// Name of the order that they are in.
    order: &'static str,
    inos: VecDeque<Ino>,
}

/// See the module.
pub(crate) struct DirtyList {
    own: Mutex<Dirty>,
    queue: Mutex<Queue>,
    under_writeback: Mutex<BTreeMap<Ino, (Arc<Inode>, u32)>>,
    /// This file system's mark in the shared lists; `None`: it keeps its own.
    owner: Option<u64>,
}

impl DirtyList {
    pub fn new(tracking: DirtyTracking) -> DirtyList {
        let shared = tracking == DirtyTracking::Shared;
        DirtyList {
            own: Mutex::new(Rank::Leaf, BTreeMap::new()),
            queue: Mutex::new(Rank::Leaf, Queue::default()),
            under_writeback: Mutex::new(Rank::Leaf, BTreeMap::new()),
            owner: shared.then(|| NEXT_OWNER.fetch_add(1, Ordering::Relaxed)),
        }
    }

    pub fn add(&self, inode: Arc<Inode>, since: Duration) {
        match self.owner {
            None => drop(self.own.lock().insert(inode.ino, (inode, since))),
            Some(owner) => drop(SHARED.lock().dirty.insert((owner, inode.ino), (inode, since))),
        }
    }

    pub fn remove(&self, ino: Ino) {
        // The inode may go with its last reference: not under the lock.
        let gone = match self.owner {
            None => self.own.lock().remove(&ino),
            Some(owner) => SHARED.lock().dirty.remove(&(owner, ino)),
        };
        drop(gone);
    }

    pub fn len(&self) -> usize {
        match self.owner {
            None => self.own.lock().len(),
            Some(owner) => SHARED.lock().dirty.keys().filter(|(who, _)| *who == owner).count(),
        }
    }

    fn snapshot(&self) -> Vec<(Arc<Inode>, Duration)> {
        match self.owner {
            None => self.own.lock().values().cloned().collect(),
            Some(owner) => {
                let shared = SHARED.lock();
                shared.dirty.iter().filter(|((who, _), _)| *who == owner).map(|(_, v)| v.clone()).collect()
            }
        }
    }

    fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        match self.owner {
            None => self.own.lock().get(&ino).map(|(inode, _)| inode.clone()),
            Some(owner) => SHARED.lock().dirty.get(&(owner, ino)).map(|(inode, _)| inode.clone()),
        }
    }

    /// All, in `order`.
    pub fn all(&self, order: &dyn WritebackOrder) -> Vec<Arc<Inode>> {
        let mut inodes: BTreeMap<Ino, Arc<Inode>> = BTreeMap::new();
        let mut dirty = Vec::new();
        for (inode, since) in self.snapshot() {
            let location = inode.meta.try_lock_unranked().and_then(|meta| meta.goal).map(|BlockNo(b)| b);
            dirty.push(DirtyInode { ino: inode.ino, since, location });
            inodes.insert(inode.ino, inode);
        }
        order.sort(&mut dirty);
        dirty.iter().filter_map(|d| inodes.remove(&d.ino)).collect()
    }

    /// Up to `max` from the queue, which is filled in `order` when it is empty: those under writeback are left out, for
    /// to take them would be to wait for them.
    pub fn take(&self, max: usize, order: &dyn WritebackOrder) -> Vec<Arc<Inode>> {
        let mut filled = false;
        loop {
            let inos: Vec<Ino> = {
                let mut queue = self.queue.lock();
                if queue.order != order.name() {
                    queue.inos.clear();
                }
                let count = queue.inos.len().min(max);
                queue.inos.drain(..count).collect()
            };
            let inodes: Vec<_> = inos.iter().filter_map(|ino| self.get(*ino)).collect();
            if !inodes.is_empty() || (inos.is_empty() && filled) {
                return inodes;
            }
            if inos.is_empty() {
                self.fill(order);
                filled = true;
            }
        }
    }

    fn fill(&self, order: &dyn WritebackOrder) {
        let mut inodes = self.all(order);
        {
            let busy = self.under_writeback.lock();
            inodes.retain(|inode| !busy.contains_key(&inode.ino));
        }
        let mut queue = self.queue.lock();
        // Unless another thread was faster.
        if queue.inos.is_empty() {
            *queue = Queue { order: order.name(), inos: inodes.iter().map(|inode| inode.ino).collect() };
        }
    }

    /// How many are under writeback.
    pub fn count_under_writeback(&self) -> usize {
        self.under_writeback.lock().len()
    }

    /// One of those under writeback.
    pub fn any_under_writeback(&self) -> Option<Arc<Inode>> {
        self.under_writeback.lock().values().next().map(|(inode, _)| inode.clone())
    }

    /// A pass writes pages of the inode.
    pub fn join_writeback(&self, inode: &Arc<Inode>) {
        self.under_writeback.lock().entry(inode.ino).or_insert_with(|| (inode.clone(), 0)).1 += 1;
    }

    pub fn leave_writeback(&self, ino: Ino) {
        let mut list = self.under_writeback.lock();
        let entry = list.get_mut(&ino).expect("joined before");
        entry.1 -= 1;
        let gone = if entry.1 == 0 { list.remove(&ino) } else { None };
        drop(list);
        drop(gone);
    }

    pub fn under_writeback(&self) -> Vec<Arc<Inode>> {
        if let Some(owner) = self.owner {
            // The old way: look at every cached inode of the process, under the lock that everybody needs.
            let shared = SHARED.lock();
            let mine = shared.cached.iter().filter(|(who, _)| *who == owner).count();
            drop(shared);
            tracing::trace!(mine, "walked the cached inodes");
        }
        self.under_writeback.lock().values().map(|(inode, _)| inode.clone()).collect()
    }

    /// An inode came into the cache, or left it: only the shared scheme cares.
    pub fn cached(&self, ino: Ino, is: bool) {
        let Some(owner) = self.owner else { return };
        let mut shared = SHARED.lock();
        if is {
            shared.cached.insert((owner, ino));
        } else {
            shared.cached.remove(&(owner, ino));
        }
    }
}

impl Drop for DirtyList {
    fn drop(&mut self) {
        let Some(owner) = self.owner else { return };
        let mut shared = SHARED.lock();
        shared.cached.retain(|(who, _)| *who != owner);
        let gone: Vec<_> = {
            let keys: Vec<_> =
                shared.dirty.range((owner, Ino(0))..(owner + 1, Ino(0))).map(|(k, _)| *k).collect();
            keys.iter().filter_map(|k| shared.dirty.remove(k)).collect()
        };
        drop(shared);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inodes() -> Vec<DirtyInode> {
        [(3, 5, Some(10)), (1, 7, None), (2, 6, Some(4))]
            .map(|(ino, since, location)| DirtyInode {
                ino: Ino(ino),
                since: Duration::from_secs(since),
                location,
            })
            .into()
    }

    fn sorted(order: &dyn WritebackOrder) -> Vec<u64> {
        let mut inodes = inodes();
        order.sort(&mut inodes);
        inodes.iter().map(|i| i.ino.0).collect()
    }

    #[test]
    fn the_queue_gives_each_inode_once_and_not_those_that_are_busy() {
        let list = DirtyList::new(DirtyTracking::PerSb);
        let inode = |ino| {
            let kind = kedge_format::FileKind::Regular;
            Arc::new(Inode::new(Ino(ino), kedge_format::InodeCore::default(), kind, Default::default()))
        };
        for ino in 1..=5 {
            list.add(inode(ino), Duration::from_secs(10 - ino));
        }
        let busy = inode(3);
        list.join_writeback(&busy);
        let take = |max, order: &dyn WritebackOrder| -> Vec<u64> {
            list.take(max, order).iter().map(|inode| inode.ino.0).collect()
        };
        assert_eq!(take(2, &OldestFirst), [5, 4]);
        list.remove(Ino(2));
        assert_eq!(take(2, &OldestFirst), [1], "what is clean by now is left out");
        assert_eq!(take(9, &ByLocation), [1, 4, 5], "filled anew when it is empty");
        list.remove(Ino(1));
        list.remove(Ino(4));
        list.remove(Ino(5));
        assert!(take(9, &ByLocation).is_empty());
        assert_eq!(list.any_under_writeback().map(|inode| inode.ino), Some(Ino(3)));
        list.leave_writeback(Ino(3));
        assert_eq!(take(9, &OldestFirst), [3]);
    }

    #[test]
    fn orders_sort_as_they_say() {
        assert_eq!(sorted(&OldestFirst), [3, 2, 1]);
        assert_eq!(sorted(&ByLocation), [2, 3, 1]);
    }
}
