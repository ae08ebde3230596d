//! Node slots: reservations, allocation and release, and how the pool is refilled and shrunk.

use crate::bitmap::BITS;
use crate::group::SLOT_RUN;
use crate::pool::Refusal;
use crate::{Alloc, NodeClass, NodeReservation, Waited};
use kedge_base::atomic::Ordering::{Relaxed, SeqCst};
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{BlockNo, CorruptKind, Error, Generation, Result};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::node::NODE_BLOCKS;
use std::time::Duration;

impl Alloc {
    /// Promises `slots` node slots to an operation.
    ///
    /// Returns `None` if the slots are missing now but may be returned: some are deferred to the
    /// next checkpoint or held by running operations, or records that freed blocks are not yet
    /// durable. The caller makes a checkpoint and tries again. A [`NodeClass::Normal`] caller
    /// should give up with NoSpace after a few checkpoints without success, because other
    /// operations may take the returned slots. Fails with NoSpace if no checkpoint would help.
    pub fn reserve_nodes(&self, slots: u32, class: NodeClass) -> Result<Option<NodeReservation>> {
        let slots = slots as u64;
        if self.pool.is_low() {
            self.refill(BlockNo(0), || self.pool.missing(slots, class));
        }
        if let Some(reservation) = self.pool.reserve(slots, class) {
            return Ok(Some(reservation));
        }
        // The request needs more than the pool's floor, or other threads took the slots.
        self.refill(BlockNo(0), || self.pool.missing(slots, class));
        if let Some(reservation) = self.pool.reserve(slots, class) {
            return Ok(Some(reservation));
        }
        match self.pool.refusal(slots, class) {
            Refusal::Later => Ok(None),
            Refusal::Hopeless if self.pending.blocks() > 0 => Ok(None),
            Refusal::Hopeless => Err(Error::NoSpace),
        }
    }

    /// Waits until an operation returns its promise, or until slots in transit between the pool and
    /// free space have arrived, but at most for `limit`.
    pub fn wait_for_nodes(&self, limit: Duration) -> Waited {
        self.pool.wait_returned(limit)
    }

    /// Makes a slot of the pool a node. Prefers the first slot at or after `near`; `near` 0 means
    /// after the last allocated slot. The caller should hold a [`NodeReservation`]; without one the
    /// call may fail with NoSpace.
    pub fn alloc_node(&self, near: BlockNo) -> Result<BlockNo> {
        let slot = match self.pool.take(near) {
            Some(slot) => slot,
            None => {
                self.refill(near, || self.pool.missing(1, NodeClass::Reclaim));
                self.pool.take(near).ok_or(Error::NoSpace)?
            }
        };
        self.with_group(slot / GROUP_BLOCKS, |group| group.own_slot((slot % GROUP_BLOCKS) as u32));
        self.owned_free.fetch_sub(NODE_BLOCKS, SeqCst);
        trace::note(|| Event::NodeTaken(BlockNo(slot)));
        Ok(BlockNo(slot))
    }

    /// Frees a node that was born in generation `born`. `current` is the current generation.
    ///
    /// The address comes from the image, so an impossible address is corruption, not a broken
    /// invariant.
    pub fn free_node(&self, addr: BlockNo, born: Generation, current: Generation) -> Result<()> {
        let inside = addr >= self.geometry.data_start
            && addr.0.checked_add(NODE_BLOCKS).is_some_and(|end| end <= self.total());
        let in_maps =
            addr.0 < self.maps.end.load(SeqCst) && self.maps.start.load(SeqCst) < addr.0 + NODE_BLOCKS;
        let over_copy = inside && self.has_copy(addr.0, addr.0 + NODE_BLOCKS);
        if !inside || in_maps || over_copy || !addr.0.is_multiple_of(NODE_BLOCKS) {
            return Err(Error::corrupt(CorruptKind::Node, addr, "no place for a tree node"));
        }
        self.with_group(addr.0 / GROUP_BLOCKS, |group| group.disown_slot((addr.0 % GROUP_BLOCKS) as u32))?;
        self.owned_free.fetch_add(NODE_BLOCKS, SeqCst);
        trace::note(|| Event::NodeFreed { addr, born, current });
        // Broken on purpose: a node that the last checkpoint uses is reusable at once.
        if born == current || broken::is(Variant::ReuseReplacedNode) {
            self.pool.add_spent(addr.0, current);
        } else {
            self.pool.defer(addr.0, current);
        }
        Ok(())
    }

    /// Called when checkpoint `generation` is durable: slots that were freed up to that generation
    /// return to the pool.
    pub fn checkpoint_durable(&self, generation: Generation) {
        let surplus = self.pool.checkpoint_durable(generation);
        self.release_slots(&surplus);
        self.top_up();
    }

    /// Moves slots with at least `blocks` blocks from the pool to data. Returns false, and moves
    /// none, if the pool cannot spare them.
    pub(crate) fn shrink_pool(&self, blocks: u64) -> bool {
        let slots = self.pool.shrink(blocks.max(1));
        self.release_slots(&slots);
        !slots.is_empty()
    }

    pub(crate) fn release_slots(&self, slots: &[u64]) {
        self.freed(self.unclaim(slots));
        self.pool.arrived(slots.len() as u64);
    }

    /// Frees the blocks of slots that have left the pool. Returns how many became free; the caller
    /// adds them to the available space.
    pub(crate) fn unclaim(&self, slots: &[u64]) -> u64 {
        let release = |slot: &u64| {
            let bit = (slot % GROUP_BLOCKS) as u32;
            self.with_group(slot / GROUP_BLOCKS, |group| group.release_slot(bit)) as u64
        };
        slots.iter().map(release).sum()
    }

    /// Refills the pool up to its floor before data takes the space.
    pub(crate) fn top_up(&self) {
        if self.pool.is_short() {
            self.refill(BlockNo(0), || self.pool.lack());
        }
    }

    /// Claims as many slots as `lack` returns, as far as unpromised free space has that many.
    pub(crate) fn refill(&self, near: BlockNo, lack: impl Fn() -> u64) {
        if self.refill_stuck.load(SeqCst) || self.space.available() < NODE_BLOCKS {
            return;
        }
        let _one = self.refill.lock();
        let lack = lack();
        if lack == 0 {
            return;
        }
        // The flag is set before the search, and each free clears it, so that a block freed during
        // the search is not missed.
        self.refill_stuck.store(true, SeqCst);
        self.pool.depart(lack);
        let granted = self.space.take_slots(lack);
        let mut slots = Vec::with_capacity(granted as usize);
        self.claim_slots(near, granted as usize, &mut slots);
        let unused = granted - slots.len() as u64;
        if unused == 0 {
            self.refill_stuck.store(false, SeqCst);
        }
        self.space.give(unused * NODE_BLOCKS);
        self.pool.add(&slots);
        self.pool.arrived(lack);
        tracing::trace!(lack, granted, claimed = slots.len(), "node pool refill");
    }

    /// Claims `want` slots. Takes long runs from all groups first, so that checkpoints write nodes
    /// in few large writes and data is not fragmented; after that, takes any four aligned blocks.
    fn claim_slots(&self, near: BlockNo, want: usize, out: &mut Vec<u64>) {
        let near = if near.0 == 0 { BlockNo(self.node_goal.load(Relaxed)) } else { near };
        let (home, count) = (self.locate(near).0, self.cells.len());
        for runs in [true, false] {
            for g in (0..count).map(|i| (home + i) % count) {
                // A group may contain several runs; each iteration takes one, so the loop ends when
                // the group has no more.
                loop {
                    let before = out.len();
                    let left = (want - before).min(BITS as usize) as u32;
                    if left == 0 {
                        self.node_goal.store(out.last().map_or(near.0, |&s| s), Relaxed);
                        return;
                    }
                    let cell = self.cells.get(g);
                    let least =
                        if runs { SLOT_RUN.min(left) * NODE_BLOCKS as u32 } else { NODE_BLOCKS as u32 };
                    if cell.run_max() < least {
                        break;
                    }
                    self.with_group(g, |group| group.claim_slots(left, runs, out));
                    if out.len() == before {
                        break;
                    }
                }
            }
        }
    }

    /// Fills the pool at mount time, so that a lack of space is detected early.
    pub(crate) fn fill_pool(&self) {
        self.refill(BlockNo(0), || self.pool.missing(0, NodeClass::Normal));
    }
}
