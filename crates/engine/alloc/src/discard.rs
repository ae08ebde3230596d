//! Discards of free blocks.
//!
//! A discard may leave any contents in a block. So it is safe exactly where a write of other bytes
//! would be: on a block that is not busy (the crate's documentation lists why a free block may
//! still be busy) and that is not allocated meanwhile. Therefore a run is made busy for the time of
//! its discard. Its blocks are taken from the available space, and never more than half of that:
//! the rest is for operations that need a block now. An operation that finds no space waits for the
//! claimed runs ([`Alloc::wait_for_claims`]), since the image is not full but only looks full for a
//! moment.
//!
//! # Fresh frees
//! With [`Alloc::watch_frees`] each group marks blocks that become free. A pass over these marks
//! discards only what was freed since the last pass. The marks are hints in memory: a crash loses
//! them, and a whole pass finds all free blocks.

use crate::Alloc;
use crate::bitmap::BITS;
use kedge_base::{BlockNo, Extent};
use kedge_format::alloc::GROUP_BLOCKS;
use std::ops::Range;

/// Which free blocks a discard is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    All,
    /// Blocks that became free since they were last claimed for a discard.
    Fresh,
}

impl Alloc {
    /// Starts or stops the marking of blocks that become free, in all groups.
    pub fn watch_frees(&self, on: bool) {
        for cell in self.cells.iter() {
            cell.lock().watch_frees(on);
        }
    }

    /// Makes the first free run of at least `min` blocks in `[from, end)`, or a part of it, busy
    /// for a discard. The caller returns the run through [`Alloc::end_claim`].
    pub fn claim_free(&self, range: Range<BlockNo>, min: u64, which: Which) -> Option<Extent> {
        let mut at = range.start.0.max(self.geometry.data_start.0);
        let end = range.end.0.min(self.total());
        while at < end {
            let g = at / GROUP_BLOCKS;
            let first = g * GROUP_BLOCKS;
            let (from, to) = ((at - first) as u32, (end - first).min(GROUP_BLOCKS) as u32);
            let min = min.clamp(1, BITS as u64) as u32;
            let claimed = self.with_group(g, |group| {
                let (start, len) = group.free_run(from, to, min, which == Which::Fresh)?;
                let share = (self.space.available() / 2).min(len as u64);
                let taken = self.space.take_up_to(share) as u32;
                if taken < min {
                    self.space.give(taken as u64);
                    return None;
                }
                group.claim_for_discard(start, taken);
                Some(Extent::new(BlockNo(first + start as u64), taken as u64))
            });
            if let Some(extent) = claimed {
                *self.claims.lock() += extent.blocks;
                return Some(extent);
            }
            at = first + GROUP_BLOCKS;
        }
        None
    }

    /// Returns a run of [`Alloc::claim_free`]. `discarded`: the run no longer counts as fresh.
    pub fn end_claim(&self, extent: Extent, discarded: bool) {
        let mut freed = 0;
        for (g, bit, len) in self.pieces(extent).expect("it was claimed") {
            freed += self.with_group(g, |group| {
                let freed = group.release(bit, len);
                if discarded {
                    group.forget_fresh(bit, len);
                }
                freed as u64
            });
        }
        self.freed(freed);
        *self.claims.lock() -= extent.blocks;
        self.unclaimed.notify_all();
    }

    /// Waits until a run that is being discarded is returned. Returns false if there is none.
    pub fn wait_for_claims(&self) -> bool {
        let mut claims = self.claims.lock();
        let some = *claims > 0;
        if some {
            self.unclaimed.wait(&mut claims);
        }
        some
    }

    /// Blocks that are being discarded.
    pub(crate) fn claimed(&self) -> u64 {
        *self.claims.lock()
    }

    /// Blocks whose frees wait for the log, for an engine that is broken on purpose.
    pub fn pending_frees(&self) -> Vec<Extent> {
        self.pending.extents()
    }
}
