//! Which inodes of a file system are dirty, which are under writeback, and which are written next.
//!
//! Each open file system owns two lists. An inode is on the *dirty list* from its first dirty page
//! or waiting time stamp until neither is left. It is on the *under-writeback list* while a pass
//! writes pages of it. `sync` walks these two and nothing else: neither the cached clean inodes of
//! its own file system nor anything of another one in this process.
//!
//! Writeback that makes room takes inodes from a *queue*: all that were dirty when it was last
//! filled, in the file system's order. Sorting anew for each pass would cost more than the pass,
//! with hundreds of thousands of dirty inodes, and threads that help to write take different ones.
//! (Linux moves its dirty inodes to `b_io` for the same reasons.)
//!
//! Where the dirty inodes are kept is a policy, [`DirtySet`], chosen when the file system is
//! opened: [`OwnSet`], or what Linux did before ([`crate::durability::shared`]).

use crate::cache::inode::Inode;
use crate::durability::order::{DirtyInode, WritebackOrder};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BlockNo, Counter, Ino};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The dirty inodes of one file system, each with the time when it became dirty.
pub(crate) trait DirtySet: Send + Sync {
    fn add(&self, inode: Arc<Inode>, since: Duration);
    fn remove(&self, ino: Ino);
    fn len(&self) -> usize;
    fn get(&self, ino: Ino) -> Option<Arc<Inode>>;
    fn snapshot(&self) -> Vec<(Arc<Inode>, Duration)>;

    /// Called when a sync looks for inodes under writeback. Returns at how many others it looked.
    fn before_walk(&self) -> usize {
        0
    }
}

/// The default: a set of the file system's own.
pub(crate) struct OwnSet(Mutex<BTreeMap<Ino, (Arc<Inode>, Duration)>>);

impl OwnSet {
    pub(crate) fn new() -> OwnSet {
        OwnSet(Mutex::new(Rank::Leaf, BTreeMap::new()))
    }
}

impl DirtySet for OwnSet {
    fn add(&self, inode: Arc<Inode>, since: Duration) {
        self.0.lock().insert(inode.ino, (inode, since));
    }

    fn remove(&self, ino: Ino) {
        // The inode may go with its last reference: not under the lock.
        let gone = self.0.lock().remove(&ino);
        drop(gone);
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.0.lock().get(&ino).map(|(inode, _)| inode.clone())
    }

    fn snapshot(&self) -> Vec<(Arc<Inode>, Duration)> {
        self.0.lock().values().cloned().collect()
    }
}

/// Inodes to be written next; some may be clean by now.
#[derive(Default)]
struct Queue {
    /// Name of the order that they are in.
    order: &'static str,
    inos: VecDeque<Ino>,
}

/// See the module.
pub(crate) struct DirtyList {
    set: Arc<dyn DirtySet>,
    queue: Mutex<Queue>,
    under_writeback: Mutex<BTreeMap<Ino, (Arc<Inode>, u32)>>,
    /// Inodes that syncs looked at for writeback to wait for.
    pub walked: Counter,
}

impl DirtyList {
    pub(crate) fn new(set: Arc<dyn DirtySet>) -> DirtyList {
        DirtyList {
            set,
            queue: Mutex::new(Rank::Leaf, Queue::default()),
            under_writeback: Mutex::new(Rank::Leaf, BTreeMap::new()),
            walked: Counter::new(),
        }
    }

    pub(crate) fn add(&self, inode: Arc<Inode>, since: Duration) {
        self.set.add(inode, since);
    }

    pub(crate) fn remove(&self, ino: Ino) {
        self.set.remove(ino);
    }

    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }

    /// All, in `order`.
    pub(crate) fn all(&self, order: &dyn WritebackOrder) -> Vec<Arc<Inode>> {
        let mut inodes: BTreeMap<Ino, Arc<Inode>> = BTreeMap::new();
        let mut dirty = Vec::new();
        for (inode, since) in self.set.snapshot() {
            let location = inode.meta.try_lock_unranked().and_then(|meta| meta.goal).map(|BlockNo(b)| b);
            dirty.push(DirtyInode { ino: inode.ino, since, location });
            inodes.insert(inode.ino, inode);
        }
        order.sort(&mut dirty);
        dirty.iter().filter_map(|d| inodes.remove(&d.ino)).collect()
    }

    /// Up to `max` from the queue, which is filled in `order` when it is empty: those under
    /// writeback are left out, because taking them would be waiting for them.
    pub(crate) fn take(&self, max: usize, order: &dyn WritebackOrder) -> Vec<Arc<Inode>> {
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
            let inodes: Vec<_> = inos.iter().filter_map(|ino| self.set.get(*ino)).collect();
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
    pub(crate) fn count_under_writeback(&self) -> usize {
        self.under_writeback.lock().len()
    }

    /// One of those under writeback.
    pub(crate) fn any_under_writeback(&self) -> Option<Arc<Inode>> {
        self.under_writeback.lock().values().next().map(|(inode, _)| inode.clone())
    }

    /// A pass writes pages of the inode.
    pub(crate) fn join_writeback(&self, inode: &Arc<Inode>) {
        self.under_writeback.lock().entry(inode.ino).or_insert_with(|| (inode.clone(), 0)).1 += 1;
    }

    pub(crate) fn leave_writeback(&self, ino: Ino) {
        let mut list = self.under_writeback.lock();
        let entry = list.get_mut(&ino).expect("joined before");
        entry.1 -= 1;
        let gone = if entry.1 == 0 { list.remove(&ino) } else { None };
        drop(list);
        drop(gone);
    }

    /// For a sync.
    pub(crate) fn under_writeback(&self) -> Vec<Arc<Inode>> {
        let others = self.set.before_walk();
        let list: Vec<_> = self.under_writeback.lock().values().map(|(inode, _)| inode.clone()).collect();
        self.walked.add((others + list.len()) as u64);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::order::{ByLocation, OldestFirst};

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
        let list = DirtyList::new(Arc::new(OwnSet::new()));
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
