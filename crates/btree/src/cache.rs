//! The node cache: dirty nodes by address, clean nodes in a ring for CLOCK eviction.
//!
//! # Invariants
//! 1. The dirty table holds exactly the live nodes born in the current generation. [`Tree::freeze`]
//!    takes the whole table.
//! 2. Every clean node of the tree is in the ring once. The ring's references are weak, so a node
//!    that leaves the tree otherwise is freed at once. Its ring entry goes when the hand passes, or
//!    when the ring has many more entries than there are frames.
//!
//! The tables have locks of rank `Leaf`. No frame is dropped under them.

use crate::frame::{Frame, Shared};
use crate::tree::{Route, Tree};
use crate::tree_lock::TreeLock;
use kedge_base::BlockNo;
use kedge_base::lock::{Mutex, Rank};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

const DIRTY_SHARDS: usize = 8;

/// By address.
type DirtyTable = HashMap<u64, Arc<Frame>>;
pub(crate) type DirtyTables = [DirtyTable; DIRTY_SHARDS];

pub(crate) struct Cache {
    pub limit: AtomicUsize,
    /// Nodes of the tree that are not in memory. If zero, nothing has to be pinned.
    pub absent: AtomicU64,
    pub shared: Arc<Shared>,
    dirty: [Mutex<DirtyTable>; DIRTY_SHARDS],
    ring: Mutex<VecDeque<Weak<Frame>>>,
}

impl Cache {
    pub fn new(lock: TreeLock, limit: usize, absent: u64) -> Cache {
        Cache {
            limit: AtomicUsize::new(limit),
            absent: AtomicU64::new(absent),
            shared: Arc::new(Shared::new(lock)),
            dirty: std::array::from_fn(|_| Mutex::new(Rank::Leaf, HashMap::new())),
            ring: Mutex::new(Rank::Leaf, VecDeque::new()),
        }
    }

    fn shard(&self, addr: BlockNo) -> &Mutex<DirtyTable> {
        &self.dirty[(addr.0 / kedge_format::node::NODE_BLOCKS) as usize % DIRTY_SHARDS]
    }

    pub fn add_dirty(&self, frame: &Arc<Frame>) {
        let before = self.shard(frame.addr).lock().insert(frame.addr.0, frame.clone());
        assert!(before.is_none(), "block {} was allocated twice", frame.addr);
    }

    pub fn remove_dirty(&self, addr: BlockNo) -> Option<Arc<Frame>> {
        self.shard(addr).lock().remove(&addr.0)
    }

    pub fn take_dirty(&self) -> DirtyTables {
        std::array::from_fn(|i| std::mem::take(&mut *self.dirty[i].lock()))
    }

    /// Adds clean nodes to the ring, where the hand reaches them last.
    pub fn add_clean<'a>(&self, frames: impl Iterator<Item = &'a Arc<Frame>>) {
        let mut ring = self.ring.lock();
        ring.extend(frames.map(Arc::downgrade));
        let frames = self.shared.frames.load(Relaxed);
        if ring.len() > 64 + frames + frames / 8 {
            ring.retain(|f| f.strong_count() > 0);
        }
    }

    fn over_limit(&self) -> bool {
        self.shared.cached.load(Relaxed) > self.limit.load(Relaxed)
    }

    pub fn ring_len(&self) -> usize {
        self.ring.lock().len()
    }
}

#[derive(PartialEq, Eq)]
enum Fate {
    /// It left memory, now or earlier: its entry is removed from the ring.
    Gone,
    Kept,
}

impl Tree {
    /// Evicts until the cache is within its limit or `budget` candidates were examined. A thread
    /// that adds a node examines more than one, so the cache shrinks faster than it grows. The
    /// budget bounds the walk over a ring of pinned nodes.
    ///
    /// Takes latches, so it must not be called under one.
    pub(crate) fn trim(&self, budget: usize) {
        if !self.cache.over_limit() {
            return;
        }
        // Retired references count in `strong_count`, and their frames may still be in the tree, in
        // another place.
        self.cache.shared.epochs.collect();
        for _ in 0..budget {
            if !self.cache.over_limit() {
                return;
            }
            let Some(entry) = self.cache.ring.lock().pop_front() else {
                return;
            };
            let Some(frame) = entry.upgrade() else {
                continue;
            };
            if frame.take_hot() || self.evict(&frame) == Fate::Kept {
                self.cache.ring.lock().push_back(entry);
            }
        }
    }

    fn evict(&self, frame: &Arc<Frame>) -> Fate {
        let watch = self.watch();
        let look = frame.read(&watch, |n| {
            let evictable = !n.pins.pinned() && n.children.iter().all(Option::is_none);
            (n.range, evictable)
        });
        let low = match look {
            (range, _) if range.is_none() => return Fate::Gone,
            (_, false) => return Fate::Kept,
            (range, true) => range.low,
        };
        let mut parent = self.anchor.clone();
        loop {
            match self.route(&watch, &parent, &low) {
                Route::Child(child) if Arc::ptr_eq(&child, frame) => break,
                Route::Child(child) if child.level > frame.level => parent = child,
                // It moved meanwhile; the next round of the hand will see.
                _ => return Fate::Kept,
            }
        }
        parent.write(&watch, |p| {
            let Some(i) = p.entry_of(frame, &low) else {
                return Fate::Kept;
            };
            // The references of the parent and ours. If there is any other, a descent is on its way
            // to this node.
            if Arc::strong_count(frame) != frame.references() + 1 {
                return Fate::Kept;
            }
            let killed = frame.try_write(&watch, |n| {
                let evictable = !n.pins.pinned() && n.children.iter().all(Option::is_none);
                if evictable {
                    n.kill();
                }
                evictable
            });
            if killed != Some(true) {
                return Fate::Kept;
            }
            p.children[i] = None;
            frame.uncount();
            self.cache.absent.fetch_add(1, Relaxed);
            self.meter.stats.evictions.inc();
            Fate::Gone
        })
    }
}
