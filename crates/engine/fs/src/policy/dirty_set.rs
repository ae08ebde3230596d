//! Where a file system keeps its dirty inodes, and which of them background writeback takes next.
//!
//! That is a policy, a [`DirtySet`], which is chosen when the file system is opened: [`OwnSet`], or
//! one that the program provides ([`crate::MountOptions::dirty_set`]).

use crate::policy::order::{DirtyInode, WritebackOrder};
use kedge_base::Ino;
use kedge_base::lock::{Mutex, Rank};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An inode in memory, as a policy sees it.
pub(crate) trait Placed: Any + Send + Sync {
    /// See [`DirtyInode::location`].
    fn location(&self) -> Option<u64>;
}

/// A dirty inode, as a [`DirtySet`] keeps it. It references the inode in memory, which is freed
/// with the last reference; a set should not drop that under a lock of its own.
#[derive(Clone)]
pub struct DirtyHandle {
    ino: Ino,
    since: Duration,
    /// `None` for a handle without a file system.
    inode: Option<Arc<dyn Placed>>,
}

impl DirtyHandle {
    pub(crate) fn new(ino: Ino, since: Duration, inode: Arc<dyn Placed>) -> DirtyHandle {
        DirtyHandle { ino, since, inode: Some(inode) }
    }

    /// Makes a handle without a file system, for tests of a set. If a set returns it to a file
    /// system, the file system ignores it.
    pub fn detached(ino: Ino, since: Duration) -> DirtyHandle {
        DirtyHandle { ino, since, inode: None }
    }

    /// The inode's number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// When the inode became dirty, on the file system's clock.
    pub fn since(&self) -> Duration {
        self.since
    }

    /// The inode with its present location on the device.
    pub fn look(&self) -> DirtyInode {
        let location = self.inode.as_ref().and_then(|inode| inode.location());
        DirtyInode { ino: self.ino, since: self.since, location }
    }

    /// The inode in memory, which is a `T`. `None` for a handle without a file system.
    pub(crate) fn into_inode<T: Placed>(self) -> Option<Arc<T>> {
        let inode: Arc<dyn Any + Send + Sync> = self.inode?;
        inode.downcast().ok()
    }
}

impl fmt::Debug for DirtyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.look().fmt(f)
    }
}

/// The set of dirty inodes of one open file system, which also chooses what a pass of background
/// writeback takes. A program may provide its own: [`crate::MountOptions::dirty_set`].
///
/// The file system decides how the pages of the chosen inodes reach the device, and when an inode
/// is clean. It adds an inode that becomes dirty, and removes one that is clean or deleted. An
/// inode that is being written stays in the set.
///
/// # Rules
/// - A set must keep every inode: `sync` and the last close write what [`DirtySet::all`] returns,
///   and nothing else. If a set loses an inode, its data is lost.
/// - Many threads call a set, some with locks of an inode held. Calls must be quick, must not wait
///   for IO, and must not call the file system.
/// - [`DirtySet::batch`] must return at least one inode, if there is one that is not busy.
///   Otherwise writers would fill the memory with data that no thread writes.
pub trait DirtySet: Send + Sync {
    /// The name that the file system's options show as `dirty_tracking`.
    fn name(&self) -> &'static str;

    /// Adds an inode that has become dirty. The set contains no inode with this number.
    fn add(&self, inode: DirtyHandle);

    /// Removes an inode that is clean or deleted. The set may not contain it.
    fn remove(&self, ino: Ino);

    /// The number of inodes in the set.
    fn len(&self) -> usize;

    /// Whether the set is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all inodes, each once. A sync writes them in this order. `order` is the order that
    /// the options choose; a set may have another.
    fn all(&self, order: &dyn WritebackOrder) -> Vec<DirtyHandle>;

    /// Returns up to `max` inodes that background writeback takes next, each once. None of them is
    /// `busy`: taking an inode that a pass is writing would mean waiting for that pass. The inodes
    /// stay in the set until they are removed.
    fn batch(&self, max: usize, busy: &dyn Fn(Ino) -> bool, order: &dyn WritebackOrder) -> Vec<DirtyHandle>;
}

/// The default: a list in the order that the options choose. A program's own set may be built
/// around it.
///
/// Batches are taken from a *queue*, which is filled with all dirty inodes when it is empty. With
/// hundreds of thousands of dirty inodes, sorting for each batch would cost more than the pass. And
/// threads that help to write take different inodes. (Linux moves its dirty inodes to `b_io` for
/// the same reasons.)
pub struct OwnSet {
    inodes: Mutex<BTreeMap<Ino, DirtyHandle>>,
    queue: Mutex<Queue>,
}

/// The inodes to be written next. Some may have become clean since the queue was filled.
#[derive(Default)]
struct Queue {
    /// Name of the order in which the queue was sorted.
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
        // Another thread may have filled the queue meanwhile.
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
        // The inode may be freed with this reference, which must not happen under the lock.
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
#[path = "dirty_set_tests.rs"]
mod tests;
