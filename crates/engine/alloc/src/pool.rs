//! The pool of node slots. The slots are claimed as physical blocks, so that neither a full nor a
//! fragmented image leaves the tree without slots.
//!
//! # Rules
//! 1. A slot of the pool is busy, not owned, and marked in the `nodes` bitmap of its group. The
//!    space available to data does not include it.
//! 2. [`NodeClass::Normal`] must leave `protected` slots in the pool. Some of these are for
//!    [`NodeClass::Promised`], so that accepted data finds the nodes for its extents. The last
//!    `reclaim` slots are only for [`NodeClass::Reclaim`]: unlink, truncate, replay. The reason is
//!    that writeback splits leaves, and a checkpoint does not return the slots of a split. If
//!    writeback could take the last slots, no operation could free space any longer.
//! 3. The slots above `protected`, the working part, serve all operations. When data is short of
//!    space, the pool shrinks to `floor` = protected + half the working part, not to the protected
//!    slots alone. So renames, chmods and the small creates that prepare a clean-up still work.
//! 4. Freed slots return to the pool, not to data: the tree keeps its slots, however fragmented the
//!    image has become. Slots are *deferred* while the last durable checkpoint may read them. Slots
//!    of nodes that were born and freed since the last cut are *spent*: the tree may reuse them at
//!    once, but data may not before the next checkpoint (reason 6 of the crate's documentation).
//! 5. Data takes no blocks while slots plus deferred slots are below `floor` and free space has
//!    slots ([`NodePool::is_short`]). So when deletions free space, a short pool is refilled first.
//!
//! # Locks
//! One mutex (rank Leaf) guards slots and deferred slots together. A thread takes it after a
//! group's lock or alone, never before a group's lock. Promises need no mutex: each operation makes
//! and returns one, and under a mutex promises were the second lock at which creations stopped
//! scaling. They are counted in one atomic number, slots minus promises (`unpromised`):
//! - A promise is made only if the number stays at or above the class's floor. Slots leave the pool
//!   for data by the same test ([`NodePool::claim`]), before they are removed from the set. So no
//!   promised slot is given to data.
//! - Slots are added to the set before the number grows, and a thread with a promise takes the
//!   mutex to take a slot. So it finds a promised slot.
//! - The number of promises is the number of slots in the set minus `unpromised`, read under the
//!   mutex. An operation returns its promise after its last use of the pool. So
//!   [`Refusal::Hopeless`] is correct: a thread that sees no promise also sees all slots that the
//!   holders of promises have moved.
//! - A thread that waits for promises increments `waiting` before it reads the number. A thread
//!   that returns a promise changes the number before it reads `waiting`, and notifies under the
//!   mutex. Both are sequentially consistent, so no wake-up is lost.

use crate::Space;
use kedge_base::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::SeqCst};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{BlockNo, Generation};
use kedge_format::node::NODE_BLOCKS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Class of a reservation of nodes. It determines how many slots the reservation must leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeClass {
    /// Ordinary operations. They must leave the protected slots.
    Normal,
    /// Writeback and the records of an fsync. They must leave the slots for operations that free
    /// space.
    Promised,
    /// Operations that free space: unlink, truncate, replay. They may use the whole pool.
    Reclaim,
}

#[derive(Debug)]
pub(crate) struct NodePool {
    /// Computed from the size of the data area, and computed again after a resize.
    promised_max: AtomicU64,
    reclaim: AtomicU64,
    /// Whether the pool is short (rule 5); a copy for reading without the lock.
    short: AtomicBool,
    /// Free slots minus promises. Negative while operations that took slots still hold their
    /// promise.
    unpromised: Line,
    /// Number of threads that wait for `returned`.
    waiting: AtomicUsize,
    state: Mutex<State>,
    /// Notified when a promise is returned, and when slots in transit have arrived.
    returned: Condvar,
}

/// A number on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicI64);

#[derive(Debug, Default)]
struct State {
    slots: BTreeSet<u64>,
    /// The members of `slots` that were nodes in the given generation, whose checkpoint is not
    /// durable yet.
    spent: BTreeMap<u64, Generation>,
    /// Number of promised slots that are kept beyond an operation: see [`NodeReservation::keep`].
    kept: u64,
    /// Upper bound of the slots in transit between free space and the pool, in either direction:
    /// neither counts them.
    moving: u64,
    deferred: BTreeMap<Generation, Vec<u64>>,
    deferred_count: u64,
    /// End of the last allocated slot. The next slot without a goal is taken from here on, so that
    /// the nodes of one checkpoint can be merged into large writes.
    cursor: u64,
    /// Number of slots allocated since the last checkpoint became durable. The next generation will
    /// need about as many.
    handed_out: u64,
}

impl State {
    /// Returns the number of slots that are not spent, which data may take.
    fn unspent(&self) -> u64 {
        (self.slots.len() - self.spent.len()) as u64
    }

    fn level(&self) -> u64 {
        self.slots.len() as u64 + self.deferred_count
    }
}

/// Stores a flag only if its value changes. Many operations read the flag, and a store would
/// invalidate the cache line on all other processors.
fn note(flag: &AtomicBool, is: bool) {
    if flag.load(SeqCst) != is {
        flag.store(is, SeqCst);
    }
}

/// Why the pool cannot serve a reservation.
pub(crate) enum Refusal {
    /// Running operations or a checkpoint will return slots.
    Later,
    /// Even with all slots that are still to be returned there would not be enough.
    Hopeless,
}

/// The result of a wait for other operations to return their promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// An operation returned its promise, or slots in transit arrived.
    Returned,
    /// No promise was returned and no slots arrived within the limit.
    TimedOut,
    /// No promise was held, so there was no wait.
    NothingHeld,
}

/// Counts of the pool, read together under the mutex.
pub(crate) struct PoolCounts {
    pub slots: u64,
    pub promised: u64,
    pub deferred: u64,
    /// Number of slots that data may take when it is short of space.
    pub surplus: u64,
    /// Number of slots that the pool takes from free space before data may take blocks.
    pub lack: u64,
}

/// Returns the numbers of slots for [`NodeClass::Promised`] and for [`NodeClass::Reclaim`], for a
/// data area of `blocks` blocks.
fn shares(blocks: u64) -> (u64, u64) {
    // Promised: a 64th of all nodes that could exist, which is one slot for 256 data blocks. So
    // even if every delayed block of a full image becomes an extent of its own, these slots suffice
    // for the leaves with the extents. They may not suffice for the splits if the extents belong in
    // many full leaves: then writeback fails with ENOSPC, the data stays dirty, and the next
    // deletion makes room. The upper bound covers 1 GiB of such blocks, more than writeback allows
    // to accumulate. Reclaim: enough for two or more of the smallest steps of a deletion at once.
    let promised = (blocks / NODE_BLOCKS / 64).clamp(32, 1024);
    (promised, promised.min(64))
}

impl NodePool {
    /// Makes an empty pool for a data area of `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> NodePool {
        let (promised, reclaim) = shares(blocks);
        NodePool {
            promised_max: AtomicU64::new(promised),
            reclaim: AtomicU64::new(reclaim),
            short: AtomicBool::new(true),
            unpromised: Line::default(),
            waiting: AtomicUsize::new(0),
            state: Mutex::new(Rank::Leaf, State::default()),
            returned: Condvar::new(),
        }
    }

    /// Adapts the reserves to a new size of the data area.
    pub(crate) fn resize(&self, blocks: u64) {
        let (promised, reclaim) = shares(blocks);
        self.promised_max.store(promised, SeqCst);
        self.reclaim.store(reclaim, SeqCst);
        self.with(|_| ());
    }

    fn reclaim(&self) -> u64 {
        self.reclaim.load(SeqCst)
    }

    fn working(&self) -> u64 {
        self.promised_max.load(SeqCst)
    }

    /// Returns the number of slots that [`NodeClass::Normal`] must leave.
    pub(crate) fn protected(&self) -> u64 {
        self.promised_max.load(SeqCst) + self.reclaim()
    }

    /// Returns the number of slots that the pool keeps even when data is short of space.
    pub(crate) fn floor(&self) -> u64 {
        self.protected() + self.working() / 2
    }

    /// Returns the number of free slots to which a refill fills the pool.
    pub(crate) fn target(&self) -> u64 {
        self.protected() + self.working()
    }

    /// Returns whether the pool must be refilled before data takes space (rule 5).
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(SeqCst)
    }

    /// Returns whether there are fewer unpromised free slots than `floor`, not counting deferred
    /// slots.
    pub(crate) fn is_low(&self) -> bool {
        self.unpromised() < self.floor()
    }

    /// Returns the number of free slots that are not promised.
    fn unpromised(&self) -> u64 {
        self.unpromised.0.load(SeqCst).max(0) as u64
    }

    /// Returns the number of promised slots. `state` shows that the caller holds the mutex.
    fn promised(&self, state: &State) -> u64 {
        let promised = state.slots.len() as i64 - self.unpromised.0.load(SeqCst);
        promised.try_into().expect("no promise is returned twice")
    }

    /// Returns the number of slots that data may take if `keep` unpromised slots must stay.
    fn surplus(&self, state: &State, keep: u64) -> u64 {
        self.unpromised().saturating_sub(keep).min(state.unspent())
    }

    /// Subtracts up to `max` unpromised slots from the number and leaves `keep`. Returns how many.
    fn claim(&self, max: u64, keep: u64) -> u64 {
        let part = |unpromised: i64| (unpromised.max(0) as u64).saturating_sub(keep).min(max);
        let less = |unpromised: i64| Some(unpromised - part(unpromised) as i64);
        let before = self.unpromised.0.fetch_update(SeqCst, SeqCst, less).expect("it always has a result");
        part(before)
    }

    /// Adds `slots` to the unpromised slots; they are in the set already, or their promise has
    /// ended.
    fn offer(&self, slots: u64) {
        self.unpromised.0.fetch_add(slots as i64, SeqCst);
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let out = f(&mut state);
        note(&self.short, state.level() < self.floor());
        out
    }

    fn class_floor(&self, class: NodeClass) -> u64 {
        match class {
            NodeClass::Normal => self.protected(),
            NodeClass::Promised => self.reclaim(),
            NodeClass::Reclaim => 0,
        }
    }

    pub(crate) fn reserve(self: &Arc<Self>, n: u64, class: NodeClass) -> Option<NodeReservation> {
        let need = n + self.class_floor(class);
        let less = |unpromised: i64| (unpromised.max(0) as u64 >= need).then(|| unpromised - n as i64);
        let granted = self.unpromised.0.fetch_update(SeqCst, SeqCst, less).is_ok();
        granted.then(|| NodeReservation { pool: self.clone(), slots: n, kept: false })
    }

    /// Returns the reason why [`NodePool::reserve`] and a refill could not serve a request.
    ///
    /// While there is any promise, slots may be on the way between pool, tree and the deferred
    /// list, so their sum proves nothing, and the result is `Later`. Promises end soon, because
    /// their holders never wait for space.
    pub(crate) fn refusal(&self, n: u64, class: NodeClass) -> Refusal {
        let need = n + self.class_floor(class);
        let state = self.state.lock();
        if self.promised(&state) > state.kept || state.level() >= need + state.kept {
            Refusal::Later
        } else {
            Refusal::Hopeless
        }
    }

    /// Waits until a promise is returned or slots in transit have arrived, but at most for `limit`.
    pub(crate) fn wait_returned(&self, limit: Duration) -> Waited {
        let mut state = self.state.lock();
        self.waiting.fetch_add(1, SeqCst);
        let waited = match self.promised(&state) - state.kept + state.moving > 0 {
            false => Waited::NothingHeld,
            true if self.returned.wait_for(&mut state, limit) => Waited::TimedOut,
            true => Waited::Returned,
        };
        self.waiting.fetch_sub(1, SeqCst);
        waited
    }

    /// Returns a promise of `slots` slots, of which `kept` were kept beyond an operation.
    fn take_back(&self, slots: u64, kept: u64) {
        if kept > 0 {
            self.state.lock().kept -= kept;
        }
        self.offer(slots);
        if self.waiting.load(SeqCst) > 0 {
            // A waiter increments `waiting` and goes to sleep under the mutex. Taking the mutex
            // here prevents a notification between these two steps.
            let _state = self.state.lock();
            self.returned.notify_all();
        }
    }

    /// Counts `slots` as in transit, before at most this number leaves free space for the pool or
    /// the pool for free space.
    pub(crate) fn depart(&self, slots: u64) {
        self.state.lock().moving += slots;
    }

    /// Ends the transit of `slots` slots: they have arrived in the pool or in free space.
    pub(crate) fn arrived(&self, slots: u64) {
        if slots > 0 {
            self.state.lock().moving -= slots;
            self.returned.notify_all();
        }
    }

    /// Returns how many slots are missing for a request, or for reaching the target if that needs
    /// more.
    pub(crate) fn missing(&self, n: u64, class: NodeClass) -> u64 {
        let want = (n + self.class_floor(class)).max(self.target());
        want.saturating_sub(self.unpromised())
    }

    /// Returns how many slots are missing to `floor` (rule 5).
    pub(crate) fn lack(&self) -> u64 {
        self.floor().saturating_sub(self.state.lock().level())
    }

    /// Takes the first slot at or after `near`, or after the last allocated slot if `near` is 0.
    /// Continues at the lowest slot after the highest.
    pub(crate) fn take(&self, near: BlockNo) -> Option<u64> {
        self.with(|s| {
            let from = if near.0 == 0 { s.cursor } else { near.0 };
            let slot = s.slots.range(from..).next().or_else(|| s.slots.first()).copied()?;
            s.slots.remove(&slot);
            self.unpromised.0.fetch_sub(1, SeqCst);
            s.spent.remove(&slot);
            s.cursor = slot + NODE_BLOCKS;
            s.handed_out += 1;
            Some(slot)
        })
    }

    pub(crate) fn add(&self, slots: &[u64]) {
        self.with(|s| {
            for &slot in slots {
                assert!(s.slots.insert(slot), "a slot enters the pool once");
            }
            self.offer(slots.len() as u64);
        });
    }

    /// Adds the slot of a node to the pool that was born and freed in `generation` and is in no
    /// checkpoint.
    pub(crate) fn add_spent(&self, slot: u64, generation: Generation) {
        self.with(|s| {
            assert!(s.slots.insert(slot), "a slot enters the pool once");
            s.spent.insert(slot, generation);
            self.offer(1);
        });
    }

    /// Keeps a freed slot until checkpoint `generation` is durable.
    pub(crate) fn defer(&self, slot: u64, generation: Generation) {
        self.with(|s| {
            s.deferred.entry(generation).or_default().push(slot);
            s.deferred_count += 1;
        });
    }

    /// Moves slots that were deferred up to `generation` into the pool. Removes and returns the
    /// slots that the pool will not need.
    ///
    /// Above the target the pool keeps slots for two generations: a tree that copies N nodes in
    /// each generation has N deferred slots while it takes N others. Slots that a shrunken tree no
    /// longer needs go to data, highest addresses first, which keeps the tree at low addresses.
    pub(crate) fn checkpoint_durable(&self, generation: Generation) -> Vec<u64> {
        self.with(|s| {
            while let Some(entry) = s.deferred.first_entry().filter(|e| *e.key() <= generation) {
                let slots = entry.remove();
                let count = slots.len() as u64;
                s.deferred_count -= count;
                for slot in slots {
                    assert!(s.slots.insert(slot), "a slot enters the pool once");
                }
                self.offer(count);
            }
            s.spent.retain(|_, used| *used > generation);
            let keep = self.target() + 2 * std::mem::take(&mut s.handed_out);
            let count = self.claim(s.unspent(), keep);
            pop_unspent(s, count)
        })
    }

    /// Removes slots with at least `blocks` blocks for data from the pool, or none if it cannot
    /// spare that many.
    pub(crate) fn shrink(&self, blocks: u64) -> Vec<u64> {
        let want = blocks.div_ceil(NODE_BLOCKS);
        self.with(|s| {
            if self.surplus(s, self.floor()) < want {
                return Vec::new();
            }
            let count = self.claim(want, self.floor());
            if count < want {
                // An operation was promised some of the slots since the check above.
                self.offer(count);
                return Vec::new();
            }
            pop_unspent(s, count)
        })
    }

    /// Removes slots that extend beyond block `end`, as far as they are not promised.
    pub(crate) fn evict(&self, end: u64) -> Vec<u64> {
        self.with(|s| {
            let beyond = s.slots.range(end.saturating_sub(NODE_BLOCKS - 1)..).count() as u64;
            let count = self.claim(beyond, 0);
            let slots: Vec<u64> = s.slots.iter().rev().take(count as usize).copied().collect();
            for slot in &slots {
                s.slots.remove(slot);
                s.spent.remove(slot);
            }
            s.moving += count;
            slots
        })
    }

    /// Returns the target of a pool for a data area of `blocks` blocks.
    pub(crate) fn target_of(blocks: u64) -> u64 {
        let (promised, reclaim) = shares(blocks);
        2 * promised + reclaim
    }

    /// Removes and returns all slots, none of which may be promised.
    pub(crate) fn drain(&self) -> Vec<u64> {
        self.with(|s| {
            assert_eq!(self.promised(s), 0, "slots are promised");
            self.unpromised.0.fetch_sub(s.slots.len() as i64, SeqCst);
            s.spent.clear();
            std::mem::take(&mut s.slots).into_iter().collect()
        })
    }

    /// Returns how many slots data could take once no slot is spent or deferred.
    pub(crate) fn surplus_after_checkpoint(&self) -> u64 {
        let s = self.state.lock();
        s.level().saturating_sub(self.promised(&s) + self.floor())
    }

    /// Returns how many slots data could take once, in addition, the running operations have ended.
    /// These may keep a few slots for new nodes.
    pub(crate) fn surplus_soon(&self) -> u64 {
        let s = self.state.lock();
        (s.level() + s.moving).saturating_sub(s.kept + self.floor())
    }

    pub(crate) fn counts(&self) -> PoolCounts {
        let s = self.state.lock();
        PoolCounts {
            slots: s.slots.len() as u64,
            promised: self.promised(&s),
            deferred: s.deferred_count,
            surplus: self.surplus(&s, self.floor()),
            lack: self.floor().saturating_sub(s.level()),
        }
    }
}

/// Removes `count` slots that are not spent, highest addresses first. The caller has subtracted
/// them from the unpromised slots ([`NodePool::claim`]).
fn pop_unspent(s: &mut State, count: u64) -> Vec<u64> {
    let unspent = s.slots.iter().rev().filter(|slot| !s.spent.contains_key(slot));
    let out: Vec<u64> = unspent.take(count as usize).copied().collect();
    assert_eq!(out.len() as u64, count, "as many are not spent");
    out.iter().for_each(|slot| assert!(s.slots.remove(slot), "just listed"));
    s.moving += out.len() as u64;
    out
}

/// A promise of node slots for one operation. Slots that the operation takes are not subtracted
/// from its promise, so the pool appears emptier than it is until the reservation is dropped, right
/// after the operation's commit. This errs on the safe side, and the tree need not know about
/// reservations. Must not be dropped under a lock of rank Leaf.
#[derive(Debug)]
#[must_use = "dropping a reservation gives it back"]
pub struct NodeReservation {
    pool: Arc<NodePool>,
    slots: u64,
    kept: bool,
}

impl NodeReservation {
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Adds the promise of another reservation of the same allocator.
    pub fn merge(&mut self, mut other: NodeReservation) {
        assert!(Arc::ptr_eq(&self.pool, &other.pool), "reservations of one allocator");
        assert_eq!(self.kept, other.kept, "both end with an operation, or neither does");
        self.slots += std::mem::take(&mut other.slots);
    }

    /// Keeps the promise beyond an operation: threads that need slots do not wait for its return.
    pub fn keep(mut self) -> NodeReservation {
        if !std::mem::replace(&mut self.kept, true) {
            self.pool.with(|s| s.kept += self.slots);
        }
        self
    }
}

impl Drop for NodeReservation {
    fn drop(&mut self) {
        self.pool.take_back(self.slots, if self.kept { self.slots } else { 0 });
    }
}

impl Space {
    /// Takes the blocks of up to `slots` whole slots. Returns the number of slots.
    pub(crate) fn take_slots(&self, slots: u64) -> u64 {
        let got = self.take_up_to(slots.saturating_mul(NODE_BLOCKS));
        let odd = got % NODE_BLOCKS;
        if odd > 0 {
            self.give(odd);
        }
        got / NODE_BLOCKS
    }
}
