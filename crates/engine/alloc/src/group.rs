//! One allocation group: its bitmaps, and the search for free runs.
//!
//! # Invariants (under the group's lock)
//! 1. `owned` ⊆ `busy`; `nodes` ⊆ `busy` \ `owned`; during replay `held` ⊆ `busy`; `fenced` ⊆
//!    `busy` \ `owned` \ `nodes`, at or after `fence`. No bit at or after `fence` is free.
//! 2. `free` and `owned_free` are the numbers of clear bits in `busy` and `owned`.
//! 3. No free bit is below `low`. If `slots_none` is set, no node slot is free. No free run is
//!    longer than `run_max`. Allocations may leave `run_max` too high, a free raises it, and the
//!    *sweep* lowers it: no free run that ends below `swept` is longer than `swept_max`, so when
//!    `swept` reaches the end of the group, `swept_max` becomes the new bound.
//!
//! # Search
//! A search examines [`RUNS_MAX`] runs after the goal and [`RUNS_MAX`] runs at the group's front,
//! and advances the sweep by as many. So in a checkerboard of holes a search takes microseconds
//! instead of scanning 16 thousand holes, and `run_max` stops later searches for runs that do not
//! exist. A full word costs one comparison, so a nearly full group costs at most 512.
//!
//! The rejected alternative is trees of free extents. They would find the best fit, but need a tree
//! node in memory for each hole, and follow pointers even where blocks are allocated one at a time.
//! A bitmap has to be written in any case.

use crate::bitmap::{BITS, Bitmap};
use crate::held::Held;
use kedge_base::atomic::{AtomicU32, Ordering::Relaxed};
use kedge_base::lock::{Mutex, MutexGuard, Rank};
use kedge_base::{BlockNo, CorruptKind, Error, Result};
use kedge_format::node::NODE_BLOCKS;
use std::sync::Arc;

const SLOT: u32 = NODE_BLOCKS as u32;
/// Number of runs that a search examines at the goal and at the front, and by which it advances the
/// sweep.
const RUNS_MAX: u32 = 128;
/// Number of blocks on each side in which `release` searches for the ends of the run that it
/// creates. If the run is longer, its length is estimated as all free blocks of the group.
const MERGE_MAX: u32 = 2048;
/// A run exactly at the goal is taken if it has at least this length (64 KiB), even if there are
/// longer runs further on, because it continues the preceding data without a seek.
pub(crate) const CONTINUE_MIN: u32 = 16;
/// Node slots are claimed in runs of at least this number of slots (1 MiB) while such runs exist.
pub(crate) const SLOT_RUN: u32 = 64;

#[derive(Clone)]
pub(crate) struct Group {
    first: BlockNo,
    /// The bitmap that the next checkpoint writes. A frozen checkpoint shares it until a bit
    /// changes or the checkpoint ends.
    pub owned: Arc<Bitmap>,
    /// The same bitmap as `owned` until a bit differs, which halves the memory of unused groups.
    busy: Arc<Bitmap>,
    /// Blocks of slots in the pool and of deferred slots: busy, but not owned.
    nodes: Option<Box<Bitmap>>,
    /// Blocks that became free since they were last discarded; only while frees are watched. The
    /// mark of a busy block is meaningless until the block is free again.
    fresh: Option<Box<Bitmap>>,
    /// Blocks that records allocate which replay has yet to apply; only during replay.
    held: Option<Box<Held>>,
    /// From this bit on, unused blocks stay busy, because the image is about to end there; `BITS`
    /// without such a limit.
    fence: u32,
    /// The blocks at or after `fence` that are busy for no other reason.
    fenced: Option<Box<Bitmap>>,
    pub free: u32,
    pub owned_free: u32,
    low: u32,
    cursor: u32,
    run_max: u32,
    swept: u32,
    swept_max: u32,
    slots_none: bool,
    /// Whether `owned` has changed since it was last frozen.
    pub dirty: bool,
}

/// A group with copies of some of its fields, which are read without the lock and may be outdated.
pub(crate) struct GroupCell {
    group: Mutex<Group>,
    free: AtomicU32,
    run_max: AtomicU32,
    cursor: AtomicU32,
}

impl GroupCell {
    /// `order` is the lock's order within the rank AllocGroup.
    pub(crate) fn new(order: u64, group: Group) -> GroupCell {
        let cell = GroupCell {
            free: AtomicU32::new(0),
            run_max: AtomicU32::new(0),
            cursor: AtomicU32::new(0),
            group: Mutex::with_order(Rank::AllocGroup, order, group),
        };
        cell.publish(&cell.lock());
        cell
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Group> {
        self.group.lock()
    }

    /// Updates the copies. Called after a change, before the lock is released.
    pub(crate) fn publish(&self, group: &Group) {
        self.free.store(group.free, Relaxed);
        self.run_max.store(group.run_max, Relaxed);
        self.cursor.store(group.cursor, Relaxed);
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.load(Relaxed)
    }

    pub(crate) fn run_max(&self) -> u32 {
        self.run_max.load(Relaxed)
    }

    pub(crate) fn cursor(&self) -> u32 {
        self.cursor.load(Relaxed)
    }
}

impl Group {
    /// Makes a group in which exactly the `owned` blocks are busy. The search for data starts an
    /// eighth into the free range, and nodes are claimed from the front, so the two meet only when
    /// the group fills up.
    pub(crate) fn new(first: BlockNo, owned: Arc<Bitmap>) -> Group {
        let free = BITS - owned.count_set(0, BITS);
        let low = owned.next_clear(0, BITS);
        Group {
            first,
            busy: owned.clone(),
            owned,
            nodes: None,
            fresh: None,
            held: None,
            fence: BITS,
            fenced: None,
            free,
            owned_free: free,
            low,
            cursor: low + (BITS - low) / 8,
            run_max: free,
            swept: 0,
            swept_max: 0,
            slots_none: false,
            dirty: false,
        }
    }

    fn block(&self, bit: u32) -> BlockNo {
        BlockNo(self.first.0 + bit as u64)
    }

    fn bad<T>(&self, kind: CorruptKind, bit: u32, what: &str) -> Result<T> {
        Err(Error::corrupt(kind, self.block(bit), what))
    }

    /// Returns the bit at which the next search without a goal starts.
    pub(crate) fn cursor(&self) -> u32 {
        self.cursor
    }

    // Free runs

    /// Finds a free run of up to `want` blocks. In order of preference: the run at `from` if it is
    /// long enough to continue; the first run of `want` blocks after `from`, from the group's
    /// start, or found by the sweep; the longest run seen. Returns `None` only if no block is free.
    pub(crate) fn find_run(&mut self, from: u32, want: u32) -> Option<(u32, u32)> {
        if self.free == 0 {
            self.run_max = 0;
            return None;
        }
        let want = want.min(self.run_max);
        assert!(want > 0, "run_max bounds the free runs from above");
        let here = self.busy.next_set(from, (from + want).min(BITS)) - from;
        if here >= want.min(CONTINUE_MIN) {
            return Some((from, here));
        }
        let ahead = self.scan(from, BITS, want);
        if ahead.1 >= want {
            return Some(ahead);
        }
        self.low = self.busy.next_clear(self.low, BITS);
        let front = self.scan(self.low, BITS, want);
        if front.1 >= want {
            return Some(front);
        }
        let best = [ahead, front, self.sweep(want)].into_iter().max_by_key(|run| run.1)?;
        assert!(best.1 > 0, "a free group has a run");
        Some(best)
    }

    /// Returns the first run of `want` blocks in `[from, end)`, or the longest of the examined
    /// runs. Runs are not measured beyond `want`.
    fn scan(&self, from: u32, end: u32, want: u32) -> (u32, u32) {
        let (mut at, mut best) = (from, (from, 0));
        for _ in 0..RUNS_MAX {
            let start = self.busy.next_clear(at, end);
            at = self.busy.next_set(start, start.saturating_add(want).min(end));
            if at - start > best.1 {
                best = (start, at - start);
            }
            if start == end || best.1 >= want {
                break;
            }
        }
        best
    }

    /// Advances the sweep. Returns the first run of `want` blocks that the sweep finds, or the
    /// longest run that it finds.
    ///
    /// If it finds a run of `want` blocks, the sweep stops before that run: the caller will
    /// probably take the run, and the next sweep then sees what is left.
    fn sweep(&mut self, want: u32) -> (u32, u32) {
        let mut best = (self.swept, 0);
        for _ in 0..RUNS_MAX {
            let start = self.busy.next_clear(self.swept, BITS);
            let end = self.busy.next_set(start, BITS);
            if end - start > best.1 {
                best = (start, (end - start).min(want));
            }
            if end - start >= want {
                break;
            }
            self.swept = end;
            self.swept_max = self.swept_max.max(end - start);
            if end == BITS {
                self.run_max = self.swept_max;
                (self.swept, self.swept_max) = (0, 0);
                break;
            }
        }
        best
    }

    /// Makes free blocks busy, and moves the cursor past them.
    pub(crate) fn take(&mut self, start: u32, len: u32) {
        debug_assert_eq!(self.busy.first_set(start, len), None, "hands out free blocks only");
        Arc::make_mut(&mut self.busy).set(start, len);
        self.free -= len;
        self.cursor = if start + len < BITS { start + len } else { 0 };
    }

    /// Frees busy blocks that nothing uses any more. Returns how many became free: blocks at or
    /// after the fence stay busy.
    pub(crate) fn release(&mut self, start: u32, len: u32) -> u32 {
        assert_eq!(
            self.busy.first_clear(start, len),
            None,
            "gives back busy blocks at {}",
            self.block(start)
        );
        assert_eq!(
            self.owned.first_set(start, len),
            None,
            "gives back blocks not owned at {}",
            self.block(start)
        );
        assert_eq!(
            self.nodes_in(start, len),
            None,
            "gives back blocks not the tree's at {}",
            self.block(start)
        );
        let open = self.fence.clamp(start, start + len) - start;
        if open < len {
            self.fenced.get_or_insert_with(|| Box::new(Bitmap::new())).set(start + open, len - open);
        }
        if open > 0 {
            self.set_free(start, open);
        }
        open
    }

    fn set_free(&mut self, start: u32, len: u32) {
        Arc::make_mut(&mut self.busy).clear(start, len);
        self.free += len;
        self.low = self.low.min(start);
        if let Some(fresh) = &mut self.fresh {
            fresh.set(start, len);
        }
        self.slots_none = false;
        let left = self.busy.clear_run_before(start, start.saturating_sub(MERGE_MAX));
        let right = self.busy.next_set(start + len, (start + len + MERGE_MAX).min(BITS));
        let whole = start - left < MERGE_MAX && right - start - len < MERGE_MAX;
        let run = if whole { right - left } else { self.free };
        self.run_max = self.run_max.max(run);
        self.swept_max = self.swept_max.max(run);
    }

    // Discards

    /// Returns whether blocks that become free are marked.
    pub(crate) fn watches_frees(&self) -> bool {
        self.fresh.is_some()
    }

    pub(crate) fn watch_frees(&mut self, on: bool) {
        if !on {
            self.fresh = None;
        } else if self.fresh.is_none() {
            self.fresh = Some(Box::new(Bitmap::new()));
        }
    }

    /// Returns the first free run of at least `min` blocks in `[from, end)`; with `fresh`, of
    /// marked blocks.
    pub(crate) fn free_run(&self, from: u32, end: u32, min: u32, fresh: bool) -> Option<(u32, u32)> {
        let mut at = from;
        while at < end {
            let mut start = self.busy.next_clear(at, end);
            let mut stop = self.busy.next_set(start, end);
            at = stop;
            if fresh {
                let marks = self.fresh.as_ref()?;
                start = marks.next_set(start, stop);
                stop = marks.next_clear(start, stop);
                at = if start < stop { stop } else { at };
            }
            if start < stop && stop - start >= min {
                return Some((start, stop - start));
            }
        }
        None
    }

    /// Makes free blocks busy without moving the cursor.
    pub(crate) fn claim_for_discard(&mut self, start: u32, len: u32) {
        debug_assert_eq!(self.busy.first_set(start, len), None, "discards free blocks only");
        Arc::make_mut(&mut self.busy).set(start, len);
        self.free -= len;
    }

    pub(crate) fn forget_fresh(&mut self, start: u32, len: u32) {
        if let Some(fresh) = &mut self.fresh {
            fresh.clear(start, len);
        }
    }

    // Records

    fn nodes_in(&self, start: u32, len: u32) -> Option<u32> {
        self.nodes.as_ref()?.first_set(start, len)
    }

    /// Marks the blocks owned, for a record that allocates them. Returns how many of them were not
    /// busy, which is 0 except in replay.
    pub(crate) fn apply_alloc(&mut self, start: u32, len: u32, replay: bool) -> Result<u32> {
        if let Some(bit) = self.owned.first_set(start, len) {
            return self.bad(CorruptKind::Bitmap, bit, "a record takes a block that is allocated already");
        }
        if let Some(bit) = self.nodes_in(start, len) {
            return self.bad(CorruptKind::Log, bit, "a record takes a block that is set aside for the tree");
        }
        let fresh = len - self.busy.count_set(start, len);
        if fresh > 0 && !replay {
            let bit = self.busy.next_clear(start, start + len);
            return self.bad(CorruptKind::Log, bit, "a record takes a block that was not handed out");
        }
        Arc::make_mut(&mut self.owned).set(start, len);
        if fresh > 0 {
            Arc::make_mut(&mut self.busy).set(start, len);
            self.free -= fresh;
        }
        if let Some(held) = &mut self.held {
            held.sub(start, len);
        }
        self.owned_free -= len;
        self.dirty = true;
        Ok(fresh)
    }

    /// Marks the blocks not owned, for a record or the tree that frees them. They stay busy.
    pub(crate) fn apply_free(&mut self, start: u32, len: u32) -> Result<()> {
        if let Some(bit) = self.owned.first_clear(start, len) {
            return self.bad(
                CorruptKind::Bitmap,
                bit,
                "a record or the tree frees a block that is not allocated",
            );
        }
        Arc::make_mut(&mut self.owned).clear(start, len);
        self.owned_free += len;
        self.dirty = true;
        Ok(())
    }

    // Replay

    /// Makes the blocks busy until records have allocated them as often as they were held. Returns
    /// how many were free.
    pub(crate) fn hold(&mut self, start: u32, len: u32) -> Result<u32> {
        if let Some(bit) = self.nodes_in(start, len) {
            return self.bad(CorruptKind::Log, bit, "a record takes a block that is set aside for the tree");
        }
        let fresh = len - self.busy.count_set(start, len);
        Arc::make_mut(&mut self.busy).set(start, len);
        self.free -= fresh;
        self.held.get_or_insert_default().add(start, len);
        Ok(fresh)
    }

    /// Frees the blocks of the range that are not held. None of the blocks may be owned. Returns
    /// how many became free.
    pub(crate) fn release_unheld(&mut self, start: u32, len: u32) -> u32 {
        let (end, mut at, mut freed) = (start + len, start, 0);
        while at < end {
            let (held, held_end) = self.held.as_ref().map_or((end, end), |h| h.next(at, end));
            if held > at {
                freed += self.release(at, held - at);
            }
            at = held_end;
        }
        freed
    }

    /// Ends replay: frees all blocks that were held and are not owned now. Returns how many became
    /// free.
    pub(crate) fn drop_held(&mut self) -> u32 {
        if self.held.take().is_none() {
            return 0;
        }
        let before = self.free;
        self.busy = match &self.nodes {
            Some(nodes) => Arc::new(self.owned.or(nodes)),
            None => self.owned.clone(),
        };
        self.free = BITS - self.busy.count_set(0, BITS);
        self.low = 0;
        self.run_max = self.free;
        (self.swept, self.swept_max) = (0, 0);
        self.slots_none = false;
        self.free - before
    }

    // Node slots

    /// Claims up to `max` slots for the pool. With `runs`, only runs of at least [`SLOT_RUN`]
    /// slots, or of `max` slots if that is less.
    pub(crate) fn claim_slots(&mut self, max: u32, runs: bool, out: &mut Vec<u64>) {
        if self.slots_none || self.free < SLOT || max == 0 {
            return;
        }
        if runs { self.claim_run(max, out) } else { self.claim_single(max, out) }
    }

    fn claim_run(&mut self, max: u32, out: &mut Vec<u64>) {
        let min = SLOT_RUN.min(max);
        let most = max.saturating_mul(SLOT).saturating_add(SLOT - 1).min(BITS);
        let mut at = self.low;
        for _ in 0..RUNS_MAX {
            let start = self.busy.next_clear(at, BITS);
            if start == BITS {
                return;
            }
            let end = self.busy.next_set(start, (start + most).min(BITS));
            let first = start.next_multiple_of(SLOT);
            let slots = (end.saturating_sub(first) / SLOT).min(max);
            if slots >= min {
                return self.claim(first, slots, out);
            }
            at = end;
        }
    }

    fn claim_single(&mut self, max: u32, out: &mut Vec<u64>) {
        let (mut at, mut left) = (self.low / SLOT * SLOT, max);
        while left > 0 {
            let Some(start) = self.busy.next_clear_slot(at) else {
                // No slot is free after `at`, and all free slots before it have been claimed.
                self.slots_none = true;
                return;
            };
            self.claim(start, 1, out);
            at = start + SLOT;
            left -= 1;
        }
    }

    fn claim(&mut self, first: u32, slots: u32, out: &mut Vec<u64>) {
        let len = slots * SLOT;
        Arc::make_mut(&mut self.busy).set(first, len);
        self.free -= len;
        self.nodes.get_or_insert_with(|| Box::new(Bitmap::new())).set(first, len);
        out.extend((0..slots).map(|i| self.block(first + i * SLOT).0));
    }

    /// Makes a slot of the pool a node: its blocks are owned.
    pub(crate) fn own_slot(&mut self, start: u32) {
        let nodes = self.nodes.as_mut().expect("a pool slot is marked");
        assert_eq!(nodes.first_clear(start, SLOT), None, "a pool slot is marked");
        nodes.clear(start, SLOT);
        Arc::make_mut(&mut self.owned).set(start, SLOT);
        self.owned_free -= SLOT;
        self.dirty = true;
    }

    /// Makes a node a slot again, which belongs to the pool or is deferred.
    pub(crate) fn disown_slot(&mut self, start: u32) -> Result<()> {
        self.apply_free(start, SLOT)?;
        self.nodes.get_or_insert_with(|| Box::new(Bitmap::new())).set(start, SLOT);
        Ok(())
    }

    /// Frees a slot that has left the pool. Returns how many of its blocks became free.
    pub(crate) fn release_slot(&mut self, start: u32) -> u32 {
        self.nodes.as_mut().expect("a pool slot is marked").clear(start, SLOT);
        self.release(start, SLOT)
    }

    // The limit of a shrink

    /// Sets the fence, and makes the free blocks at or after it busy, as far as `take` grants them.
    /// Returns false if `take` did not grant all.
    pub(crate) fn raise_fence(&mut self, from: u32, mut take: impl FnMut(u32) -> u32) -> bool {
        self.fence = from;
        while let Some((start, len)) = self.free_run(from, BITS, 1, false) {
            let taken = take(len);
            if taken > 0 {
                self.claim_for_discard(start, taken);
                self.fenced.get_or_insert_with(|| Box::new(Bitmap::new())).set(start, taken);
            }
            if taken < len {
                return false;
            }
        }
        true
    }

    /// Removes the fence. Returns how many blocks became free.
    pub(crate) fn drop_fence(&mut self) -> u32 {
        self.fence = BITS;
        let Some(fenced) = self.fenced.take() else { return 0 };
        let (mut at, mut freed) = (0, 0);
        while at < BITS {
            let start = fenced.next_set(at, BITS);
            at = fenced.next_clear(start, BITS);
            if start < at {
                self.set_free(start, at - start);
                freed += at - start;
            }
        }
        freed
    }

    /// Returns whether nothing uses the blocks from `from` on, except for the blocks in `others`.
    pub(crate) fn is_vacant(&self, from: u32, others: &Bitmap) -> bool {
        let fenced = self.fenced.as_ref().map_or_else(|| others.clone(), |fenced| fenced.or(others));
        fenced.first_clear(from, BITS - from).is_none()
    }

    /// Makes busy blocks owned by the format. Returns how many were not owned before.
    pub(crate) fn own_for_format(&mut self, start: u32, len: u32) -> u32 {
        assert_eq!(self.busy.first_clear(start, len), None, "the blocks at {} are taken", self.block(start));
        let fresh = len - self.owned.count_set(start, len);
        if let Some(fenced) = &mut self.fenced {
            fenced.clear(start, len);
        }
        if fresh > 0 {
            Arc::make_mut(&mut self.owned).set(start, len);
            self.owned_free -= fresh;
            self.dirty = true;
        }
        fresh
    }

    /// Makes the format own the whole group, which is now beyond the end of the image. Returns how
    /// many blocks were not owned before.
    pub(crate) fn leave_image(&mut self, full: &Arc<Bitmap>) -> u32 {
        let fresh = self.owned_free;
        let watches = self.watches_frees();
        *self = Group::new(self.first, full.clone());
        self.watch_frees(watches);
        fresh
    }

    /// Checks the invariants by recomputing every value.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let ones = |b: &Bitmap| b.count_set(0, BITS);
        assert_eq!(self.free, BITS - ones(&self.busy));
        assert_eq!(self.owned_free, BITS - ones(&self.owned));
        assert!(self.busy.or(&self.owned) == *self.busy, "owned ⊆ busy");
        if let Some(nodes) = &self.nodes {
            assert!(self.busy.or(nodes) == *self.busy, "nodes ⊆ busy");
            assert_eq!(ones(&self.owned.or(nodes)), ones(&self.owned) + ones(nodes), "nodes are not owned");
        }
        assert_eq!(self.busy.first_clear(self.fence, BITS - self.fence), None, "nothing is free beyond");
        if let Some(fenced) = &self.fenced {
            assert_eq!(fenced.first_set(0, self.fence), None, "nothing is fenced below");
            assert!(self.busy.or(fenced) == *self.busy, "fenced ⊆ busy");
            let used = self.nodes.as_ref().map_or_else(|| (*self.owned).clone(), |n| self.owned.or(n));
            assert_eq!(ones(&used.or(fenced)), ones(&used) + ones(fenced), "nothing uses what is fenced");
        }
        assert!(self.busy.next_clear(0, BITS) >= self.low, "no free bit below low");
        let (mut at, mut longest) = (0, 0);
        while at < BITS {
            let start = self.busy.next_clear(at, BITS);
            at = self.busy.next_set(start, BITS);
            longest = longest.max(at - start);
        }
        assert!(longest <= self.run_max, "run of {longest}, bound {}", self.run_max);
        let at = self.busy.clear_run_before(self.swept, 0);
        let (mut end, mut longest) = (0, 0);
        while end < at {
            let start = self.busy.next_clear(end, at);
            end = self.busy.next_set(start, at);
            longest = longest.max(end - start);
        }
        assert!(longest <= self.swept_max, "swept run of {longest}, bound {}", self.swept_max);
        assert!(!self.slots_none || self.busy.next_clear_slot(0).is_none());
    }

    #[cfg(test)]
    pub(crate) fn busy(&self) -> &Bitmap {
        &self.busy
    }
}
