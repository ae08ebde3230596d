//! Where a file system keeps its dirty inodes, and which of them the background writes next.
//!
//! That is a policy, [`DirtySet`], chosen when the file system is opened: [`OwnSet`], or one that
//! the program brings ([`crate::MountOptions::dirty_set`]).

use crate::cache::inode::Inode;
use crate::durability::order::{DirtyInode, WritebackOrder};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BlockNo, Ino};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A dirty inode, as a [`DirtySet`] keeps it. It holds the inode's memory, which goes with the last
/// clone: better not under a lock of the set.
#[derive(Clone)]
pub struct DirtyHandle {
    ino: Ino,
    since: Duration,
    /// `None`: of no file system.
    inode: Option<Arc<Inode>>,
}

impl DirtyHandle {
    pub(crate) fn new(inode: Arc<Inode>, since: Duration) -> DirtyHandle {
        DirtyHandle { ino: inode.ino, since, inode: Some(inode) }
    }

    /// One of no file system, for the tests of a set. A file system that gets it from a set passes
    /// it over.
    pub fn detached(ino: Ino, since: Duration) -> DirtyHandle {
        DirtyHandle { ino, since, inode: None }
    }

    /// The inode's number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// On the file system's clock, when it became dirty.
    pub fn since(&self) -> Duration {
        self.since
    }

    /// With the place on the device that it has at this moment.
    pub fn look(&self) -> DirtyInode {
        let meta = self.inode.as_ref().and_then(|inode| inode.meta.try_lock_unranked());
        let location = meta.and_then(|meta| meta.goal).map(|BlockNo(block)| block);
        DirtyInode { ino: self.ino, since: self.since, location }
    }

    pub(crate) fn into_inode(self) -> Option<Arc<Inode>> {
        self.inode
    }
}

impl fmt::Debug for DirtyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.look().fmt(f)
    }
}

/// The dirty inodes of one open file system, and what a pass of background writeback takes of them.
/// A program may bring its own: [`crate::MountOptions::dirty_set`].
///
/// How the pages of the chosen inodes get to the device, and when an inode is clean, stay the file
/// system's affair. It adds an inode that becomes dirty and removes one that is clean or deleted;
/// one that is being written stays.
///
/// # Rules
/// - A set must not forget: `sync` and the last close write what [`DirtySet::all`] gives, and
///   nothing else. What a set loses is lost.
/// - Calls come from many threads, some with locks of the inode held. They must be quick, must not
///   wait for one another's IO and must not call the file system.
/// - [`DirtySet::batch`] answers at least one inode, if there is one that is not busy. Else writers
///   would fill the memory with what nobody writes.
pub trait DirtySet: Send + Sync {
    /// As `dirty_tracking` in what the file system says of its options.
    fn name(&self) -> &'static str;

    /// An inode has become dirty. The set has none with this number.
    fn add(&self, inode: DirtyHandle);

    /// It is clean, or deleted. The set may not have it.
    fn remove(&self, ino: Ino);

    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All, each once, for a sync, which writes them in this order. `order` is what the options ask
    /// for; a set may have its own.
    fn all(&self, order: &dyn WritebackOrder) -> Vec<DirtyHandle>;

    /// What the background writes next, each once: up to `max`, none that is `busy`. To take what a
    /// pass is writing would be to wait for that pass. They stay in the set until they are removed.
    fn batch(&self, max: usize, busy: &dyn Fn(Ino) -> bool, order: &dyn WritebackOrder) -> Vec<DirtyHandle>;
}

/// The default: a list in the asked-for order. A program's own set may be built around it.
///
/// Batches come from a *queue*: all that were dirty when it was last filled. Sorting anew for each
/// batch would cost more than the pass, with hundreds of thousands of dirty inodes, and threads
/// that help to write take different ones. (Linux moves its dirty inodes to `b_io` for the same
/// reasons.)
pub struct OwnSet {
    inodes: Mutex<BTreeMap<Ino, DirtyHandle>>,
    queue: Mutex<Queue>,
}

/// Inodes to be written next; some may be clean by now.
#[derive(Default)]
struct Queue {
    /// Name of the order that they are in.
    order: &'static str,
    inos: VecDeque<Ino>,
}

impl Default for OwnSet {
    fn default() -> OwnSet {
        OwnSet {
            inodes: Mutex::new(Rank::Leaf, BTreeMap::new()),
            queue: Mutex::new(Rank::Leaf, Queue::default()),
        }
    }
}

impl OwnSet {
    fn fill(&self, busy: &dyn Fn(Ino) -> bool, order: &dyn WritebackOrder) {
        let inodes = self.all(order);
        let inos = inodes.iter().map(DirtyHandle::ino).filter(|ino| !busy(*ino)).collect();
        let mut queue = self.queue.lock();
        // Unless another thread was faster.
        if queue.inos.is_empty() {
            *queue = Queue { order: order.name(), inos };
        }
    }
}

impl DirtySet for OwnSet {
    fn name(&self) -> &'static str {
        "per_sb"
    }

    fn add(&self, inode: DirtyHandle) {
        self.inodes.lock().insert(inode.ino, inode);
    }

    fn remove(&self, ino: Ino) {
        // The inode may go with its last reference: not under the lock.
        let gone = self.inodes.lock().remove(&ino);
        drop(gone);
    }

    fn len(&self) -> usize {
        self.inodes.lock().len()
    }

    fn all(&self, order: &dyn WritebackOrder) -> Vec<DirtyHandle> {
        let mut inodes = self.inodes.lock().clone();
        let mut dirty: Vec<DirtyInode> = inodes.values().map(DirtyHandle::look).collect();
        order.sort(&mut dirty);
        dirty.iter().filter_map(|seen| inodes.remove(&seen.ino)).collect()
    }

    fn batch(&self, max: usize, busy: &dyn Fn(Ino) -> bool, order: &dyn WritebackOrder) -> Vec<DirtyHandle> {
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
            let free: Vec<Ino> = inos.iter().copied().filter(|ino| !busy(*ino)).collect();
            let batch: Vec<_> = {
                let inodes = self.inodes.lock();
                free.iter().filter_map(|ino| inodes.get(ino).cloned()).collect()
            };
            if !batch.is_empty() || (inos.is_empty() && filled) {
                return batch;
            }
            if inos.is_empty() {
                self.fill(busy, order);
                filled = true;
            }
        }
    }
}

#[cfg(test)]
#[path = "tracking_tests.rs"]
mod tests;
