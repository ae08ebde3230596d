//! The pool of node slots: claimed physically, so that neither a full nor a fragmented image starves the tree.
//!
//! # Rules
//! 1. A slot of the pool is busy, not owned, and marked `nodes` in its group. It left the space that data may have.
//! 2. The lowest `protected` slots are only for [`NodeClass::Reclaim`]: unlink, truncate, replay, writeback
//!    completions. These either give space back or keep a promise already made, so refusing them would wedge a full
//!    image.
//! 3. The working part on top serves everyone. When data is short the pool shrinks to `floor` = protected + half the
//!    working part, not to protected alone: renames, chmods and the small creates that prepare a clean-up still work.
//! 4. Freed slots return to the pool, not to data: the tree keeps what it had, however fragmented the image is by then.
//!    They are *deferred* while the last durable checkpoint may read them.
//!    Slots of nodes that were born and freed since the last cut are *spent*: the tree may have them again, data not
//!    before the next checkpoint (reason 6 of the crate's documentation).
//! 5. Data never takes blocks while slots + deferred ones are below `floor` and slots can be had from free space
//!    ([`NodePool::is_short`]): a bled pool is refilled first when deletes free space.
//!
//! One mutex (rank Leaf) guards slots, promises and deferred slots together, because the verdict "hopeless" needs all
//! three at one moment. It is taken after a group's lock or alone, never before one.

use crate::Space;
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{BlockNo, Generation};
use kedge_format::node::NODE_BLOCKS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Who asks for nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeClass {
    /// Leaves the protected slots alone.
    Normal,
    /// May use the whole pool: unlink, truncate, replay, writeback completions.
    Reclaim,
}

#[derive(Debug)]
pub(crate) struct NodePool {
    pub protected: u64,
    working: u64,
    /// Mirror of the state for those who only want to know that nothing is to do.
    short: AtomicBool,
    low: AtomicBool,
    state: Mutex<State>,
    /// A promise was given back.
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeSet<u64>,
    /// Slots, a part of `slots`, that were nodes in the generation named, which is in no durable checkpoint yet.
    spent: BTreeMap<u64, Generation>,
    promised: u64,
    deferred: BTreeMap<Generation, Vec<u64>>,
    deferred_count: u64,
    /// Behind the last slot handed out: the next one without a wish comes from here, so that one checkpoint's nodes
    /// merge.
    cursor: u64,
    /// Slots handed out since the last checkpoint became durable: what the next one will want again.
    handed_out: u64,
}

impl State {
    fn unpromised(&self) -> u64 {
        (self.slots.len() as u64).saturating_sub(self.promised)
    }

    /// Slots that data may have while `keep` unpromised ones stay.
    fn surplus(&self, keep: u64) -> u64 {
        let unspent = (self.slots.len() - self.spent.len()) as u64;
        self.unpromised().saturating_sub(keep).min(unspent)
    }

    fn level(&self) -> u64 {
        self.slots.len() as u64 + self.deferred_count
    }
}

/// Written only when it changes: each operation reads these, and a write takes the cache line from all other processors.
fn note(flag: &AtomicBool, is: bool) {
    if flag.load(SeqCst) != is {
        flag.store(is, SeqCst);
    }
}

/// Answer to a reservation that the pool cannot serve.
pub(crate) enum Refusal {
    /// Slots come back: from operations under way or with a checkpoint.
    Later,
    /// Nothing outstanding would be enough.
    Hopeless,
}

/// Figures of the pool at one moment.
pub(crate) struct PoolCounts {
    pub slots: u64,
    pub promised: u64,
    pub deferred: u64,
    /// Slots that data may have if it is short.
    pub surplus: u64,
    /// Slots that the pool takes from free space before data may.
    pub lack: u64,
}

impl NodePool {
    /// A pool for a data area of `blocks`.
    pub fn new(blocks: u64) -> NodePool {
        // A 64th of all nodes that could exist: 256 data blocks per protected slot, so even if every delayed block of a
        // full image becomes an extent of its own, the leaves they need come from the protected part. The upper bound
        // covers 1 GiB of such blocks, more than writeback lets pile up. At least 32: three deletes side by side.
        let nodes = blocks / NODE_BLOCKS;
        let protected = (nodes / 64).clamp(32, 1024);
        NodePool {
            protected,
            working: protected,
            short: AtomicBool::new(true),
            low: AtomicBool::new(true),
            state: Mutex::new(Rank::Leaf, State::default()),
            returned: Condvar::new(),
        }
    }

    /// Slots that the pool keeps however short data is.
    pub fn floor(&self) -> u64 {
        self.protected + self.working / 2
    }

    /// Slots that the pool would like to have free.
    pub fn target(&self) -> u64 {
        self.protected + self.working
    }

    /// The pool's claim goes before data's (rule 5).
    pub fn is_short(&self) -> bool {
        self.short.load(SeqCst)
    }

    /// Fewer free slots than `floor`, whatever comes back later.
    pub fn is_low(&self) -> bool {
        self.low.load(SeqCst)
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let out = f(&mut state);
        note(&self.short, state.level() < self.floor());
        note(&self.low, state.unpromised() < self.floor());
        out
    }

    fn class_floor(&self, class: NodeClass) -> u64 {
        if class == NodeClass::Normal { self.protected } else { 0 }
    }

    pub fn reserve(self: &Arc<Self>, n: u64, class: NodeClass) -> Option<NodeReservation> {
        let need = n + self.class_floor(class);
        self.with(|s| {
            if s.unpromised() < need {
                return None;
            }
            s.promised += n;
            Some(NodeReservation { pool: self.clone(), slots: n })
        })
    }

    /// What to answer to a request that [`NodePool::reserve`] and a refill could not serve.
    ///
    /// While any promise is out, slots are on their way between pool, tree and the deferred list, so the sum says
    /// nothing: the answer is `Later`, and the promises end soon, since their holders never wait for space.
    pub fn refusal(&self, n: u64, class: NodeClass) -> Refusal {
        let need = n + self.class_floor(class);
        let state = self.state.lock();
        if state.promised > 0 || state.level() >= need { Refusal::Later } else { Refusal::Hopeless }
    }

    /// Waits until a promise is given back, at most `limit`. Returns at once, and false, if none is out.
    pub fn wait_returned(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        let out = state.promised > 0;
        if out {
            self.returned.wait_for(&mut state, limit);
        }
        out
    }

    /// How many slots are missing for a request, with a working reserve on top.
    pub fn missing(&self, n: u64, class: NodeClass) -> u64 {
        let want = (n + self.class_floor(class)).max(self.target());
        want.saturating_sub(self.state.lock().unpromised())
    }

    /// How many slots are missing to `floor` (rule 5).
    pub fn lack(&self) -> u64 {
        self.floor().saturating_sub(self.state.lock().level())
    }

    /// Takes a slot at or behind `near`, or behind the last one handed out if `near` is 0; wraps around.
    pub fn take(&self, near: BlockNo) -> Option<u64> {
        self.with(|s| {
            let from = if near.0 == 0 { s.cursor } else { near.0 };
            let slot = s.slots.range(from..).next().or_else(|| s.slots.first()).copied()?;
            s.slots.remove(&slot);
            s.spent.remove(&slot);
            s.cursor = slot + NODE_BLOCKS;
            s.handed_out += 1;
            Some(slot)
        })
    }

    pub fn add(&self, slots: &[u64]) {
        self.with(|s| {
            for &slot in slots {
                assert!(s.slots.insert(slot), "a slot enters the pool once");
            }
        });
    }

    /// Takes back the slot of a node that was born in `generation` and is in no checkpoint.
    pub fn add_spent(&self, slot: u64, generation: Generation) {
        self.with(|s| {
            assert!(s.slots.insert(slot), "a slot enters the pool once");
            s.spent.insert(slot, generation);
        });
    }

    /// Keeps a freed slot until checkpoint `generation` is durable.
    pub fn defer(&self, slot: u64, generation: Generation) {
        self.with(|s| {
            s.deferred.entry(generation).or_default().push(slot);
            s.deferred_count += 1;
        });
    }

    /// Takes back what was deferred up to `generation`; returns slots beyond what the pool will want.
    ///
    /// Two checkpoints' worth stays above the target: a tree that copies N nodes per generation holds N deferred ones
    /// while it takes N others. What a shrunken tree leaves behind goes to data, the highest addresses first, which
    /// keeps the tree low in the image.
    pub fn checkpoint_durable(&self, generation: Generation) -> Vec<u64> {
        self.with(|s| {
            while let Some(entry) = s.deferred.first_entry().filter(|e| *e.key() <= generation) {
                let slots = entry.remove();
                s.deferred_count -= slots.len() as u64;
                for slot in slots {
                    assert!(s.slots.insert(slot), "a slot enters the pool once");
                }
            }
            s.spent.retain(|_, used| *used > generation);
            let keep = self.target() + 2 * std::mem::take(&mut s.handed_out);
            pop_surplus(s, keep, u64::MAX)
        })
    }

    /// Takes slots for `blocks` blocks of data out of the pool, or none if it cannot spare as many.
    pub fn shrink(&self, blocks: u64) -> Vec<u64> {
        let want = blocks.div_ceil(NODE_BLOCKS);
        self.with(|s| {
            if s.surplus(self.floor()) < want {
                return Vec::new();
            }
            pop_surplus(s, self.floor(), want)
        })
    }

    /// Takes all slots out, while nobody is promised any.
    pub fn drain(&self) -> Vec<u64> {
        self.with(|s| {
            assert_eq!(s.promised, 0, "slots are promised");
            s.spent.clear();
            std::mem::take(&mut s.slots).into_iter().collect()
        })
    }

    /// Slots that data could have once nothing is spent or deferred any more.
    pub fn surplus_after_checkpoint(&self) -> u64 {
        let s = self.state.lock();
        s.level().saturating_sub(s.promised + self.floor())
    }

    pub fn counts(&self) -> PoolCounts {
        let s = self.state.lock();
        PoolCounts {
            slots: s.slots.len() as u64,
            promised: s.promised,
            deferred: s.deferred_count,
            surplus: s.surplus(self.floor()),
            lack: self.floor().saturating_sub(s.level()),
        }
    }
}

/// Removes up to `max` slots that are not spent, the highest first, leaving `keep` free of promises.
fn pop_surplus(s: &mut State, keep: u64, max: u64) -> Vec<u64> {
    let count = s.surplus(keep).min(max) as usize;
    let out: Vec<u64> =
        s.slots.iter().rev().filter(|slot| !s.spent.contains_key(slot)).take(count).copied().collect();
    out.iter().for_each(|slot| assert!(s.slots.remove(slot), "just listed"));
    out
}

/// A promise of node slots for one operation. Slots taken meanwhile still count against it, so the pool looks emptier
/// than it is until the reservation is dropped, right after the operation's commit; that errs on the safe side and
/// keeps the tree free of any knowledge of reservations. Must not be dropped under a lock of rank Leaf.
#[derive(Debug)]
#[must_use = "dropping a reservation gives it back"]
pub struct NodeReservation {
    pool: Arc<NodePool>,
    slots: u64,
}

impl NodeReservation {
    pub fn slots(&self) -> u64 {
        self.slots
    }
}

impl Drop for NodeReservation {
    fn drop(&mut self) {
        self.pool.with(|s| s.promised -= self.slots);
        self.pool.returned.notify_all();
    }
}

impl Space {
    /// Blocks of the space that whole slots would use, at most `slots` of them.
    pub fn take_slots(&self, slots: u64) -> u64 {
        let got = self.take_up_to(slots.saturating_mul(NODE_BLOCKS));
        let odd = got % NODE_BLOCKS;
        if odd > 0 {
            self.give(odd);
        }
        got / NODE_BLOCKS
    }
}
