//! The node cache: a table of dirty nodes by address, and a ring of clean nodes for CLOCK eviction.
//!
//! # Invariants
//! 1. The dirty table holds exactly the live nodes born in the current generation.
//!    [`crate::Tree::freeze`] takes the whole table.
//! 2. Every clean node of the tree is in the ring once. The ring's references are weak, so a node
//!    that leaves the tree in any other way than by eviction is freed at once. Its ring entry is
//!    removed when the CLOCK hand reaches it, or when the ring has many more entries than there are
//!    frames.
//!
//! The locks of the tables have rank `Leaf`. No frame is dropped while one is held.

use crate::frame::{Frame, Shared};
use crate::totals::Totals;
use crate::tree_lock::TreeLock;
use kedge_base::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BlockNo, InoHasher};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Weak};

const DIRTY_SHARDS: usize = 8;

/// Dirty nodes by the block number of their address.
type DirtyTable = HashMap<u64, Arc<Frame>, BuildHasherDefault<InoHasher>>;
pub(crate) type DirtyTables = [DirtyTable; DIRTY_SHARDS];

pub(crate) struct Cache {
    pub limit: AtomicUsize,
    /// Number of the tree's nodes that are not in memory. While it is zero, no node needs to be
    /// pinned.
    pub absent: AtomicU64,
    pub shared: Arc<Shared>,
    dirty: [Mutex<DirtyTable>; DIRTY_SHARDS],
    ring: Mutex<VecDeque<Weak<Frame>>>,
}

impl Cache {
    pub(crate) fn new(lock: TreeLock, limit: usize, absent: u64, totals: Arc<Totals>) -> Cache {
        Cache {
            limit: AtomicUsize::new(limit),
            absent: AtomicU64::new(absent),
            shared: Arc::new(Shared::new(lock, totals)),
            dirty: std::array::from_fn(|_| Mutex::new(Rank::Leaf, DirtyTable::default())),
            ring: Mutex::new(Rank::Leaf, VecDeque::new()),
        }
    }

    fn shard(&self, addr: BlockNo) -> &Mutex<DirtyTable> {
        &self.dirty[(addr.0 / kedge_format::node::NODE_BLOCKS) as usize % DIRTY_SHARDS]
    }

    pub(crate) fn add_dirty(&self, frame: &Arc<Frame>) {
        let before = self.shard(frame.addr).lock().insert(frame.addr.0, frame.clone());
        assert!(before.is_none(), "block {} was allocated twice", frame.addr);
    }

    pub(crate) fn remove_dirty(&self, addr: BlockNo) -> Option<Arc<Frame>> {
        self.shard(addr).lock().remove(&addr.0)
    }

    pub(crate) fn take_dirty(&self) -> DirtyTables {
        std::array::from_fn(|i| std::mem::take(&mut *self.dirty[i].lock()))
    }

    /// Appends clean nodes to the ring, so that the CLOCK hand reaches them last.
    pub(crate) fn add_clean<'a>(&self, frames: impl Iterator<Item = &'a Arc<Frame>>) {
        let mut ring = self.ring.lock();
        ring.extend(frames.map(Arc::downgrade));
        let frames = self.shared.frames.load(Relaxed);
        if ring.len() > 64 + frames + frames / 8 {
            ring.retain(|f| f.strong_count() > 0);
        }
    }

    /// Takes the next candidate for eviction out of the ring. The caller puts it back unless the
    /// frame has left memory.
    pub(crate) fn take_candidate(&self) -> Option<Weak<Frame>> {
        self.ring.lock().pop_front()
    }

    pub(crate) fn put_back(&self, candidate: Weak<Frame>) {
        self.ring.lock().push_back(candidate);
    }

    pub(crate) fn over_limit(&self) -> bool {
        self.shared.cached.load(Relaxed) > self.limit.load(Relaxed)
    }

    pub(crate) fn ring_len(&self) -> usize {
        self.ring.lock().len()
    }
}
