//! Discards of free blocks.
//!
//! A discard may leave any contents in a block. So it is safe exactly where a write of other bytes
//! would be safe: on a block that is not busy (the crate's documentation lists why a free block may
//! still be busy) and that no thread allocates during the discard. Therefore a run is busy during
//! its discard. Its blocks are taken from the available space, but at most half of that space: the
//! rest is for operations that need a block now. An operation that finds no space waits for the
//! claimed runs ([`Alloc::wait_for_claims`]), because the image only appears full until the
//! discards end.
//!
//! # Fresh frees
//! With [`Alloc::watch_frees`] each group marks blocks that become free. A pass over the marked
//! blocks discards only blocks that were freed since the last pass. The marks exist in memory only:
//! a crash loses them, and a pass over all free blocks still finds everything.

use crate::Alloc;
use crate::bitmap::BITS;
use kedge_base::{BlockNo, Extent};
use kedge_format::alloc::GROUP_BLOCKS;
use std::ops::Range;

/// The set of free blocks that a discard considers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    All,
    /// Blocks that became free since they were last discarded.
    Fresh,
}

impl Alloc {
    /// Starts or stops marking blocks that become free, in all groups.
    pub fn watch_frees(&self, on: bool) {
        for cell in self.cells.iter() {
            cell.lock().watch_frees(on);
        }
    }

    /// Finds the first free run of at least `min` blocks in `range`, and makes it, or a part of it,
    /// busy for a discard. The caller returns the claimed run through [`Alloc::end_claim`].
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

    /// Returns a run of [`Alloc::claim_free`]. If it was `discarded`, its blocks lose their fresh
    /// marks.
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

    /// Waits until a run that is being discarded is returned. Returns false if no run is.
    pub fn wait_for_claims(&self) -> bool {
        let mut claims = self.claims.lock();
        let some = *claims > 0;
        if some {
            self.unclaimed.wait(&mut claims);
        }
        some
    }

    /// Returns the number of blocks that are being discarded.
    pub(crate) fn claimed(&self) -> u64 {
        *self.claims.lock()
    }

    /// Returns the blocks whose frees wait for the log. Only for an engine that is broken on
    /// purpose.
    pub fn pending_frees(&self) -> Vec<Extent> {
        self.pending.extents()
    }
}
