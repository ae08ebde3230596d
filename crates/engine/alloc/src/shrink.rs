//! Making an image smaller while it is in use.
//!
//! # Steps
//! 1. [`Alloc::fence`]: no block from the new end on is allocated any more. The free blocks there
//!    become busy, and so does each block there that becomes free (reason 10 of the crate's
//!    documentation). The fence exists in memory only: after a crash the image has its old size,
//!    and all of it can be used.
//! 2. The caller moves everything from these blocks: blocks of files by records, nodes by copying
//!    them. [`Alloc::evict_slots`] removes the slots of the node pool.
//! 3. [`Alloc::shrink`], under the exclusive epoch guard that also covers the cut of a checkpoint:
//!    if nothing uses a block beyond the end, and no operation is about to, the layout becomes the
//!    smaller one. Otherwise nothing changes, and the caller tries again.
//! 4. The checkpoint of that cut writes the bitmaps and the index of the remaining groups, then the
//!    slot with the new size. Allocation maps that moved lie in blocks that were unused before
//!    ([`Alloc::claim_maps`]). The blocks of the old maps become free once the slot is durable, as
//!    in a growth.

use crate::bitmap::{BITS, Bitmap};
use crate::pool::NodePool;
use crate::resize::outside;
use crate::{Alloc, NodeClass, format_owned};
use kedge_base::atomic::Ordering::{Relaxed, SeqCst};
use kedge_base::{BlockNo, Error, Extent, Result};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::node::NODE_BLOCKS;
use kedge_format::superblock::Geometry;
use std::sync::Arc;

/// Number of free blocks that a smaller image must have beside the used blocks and the node pool's
/// share, for what running operations were promised.
const SPARE: u64 = 64;

impl Alloc {
    /// Returns the number of blocks that files and nodes use or were promised, or that cannot be
    /// used.
    fn needed(&self) -> u64 {
        let format: u64 = self.geometry().format_runs().map(|(_, len)| len).sum();
        let owned = self.cells.len() * GROUP_BLOCKS - self.owned_free.load(SeqCst);
        owned.saturating_sub(format) + self.space.reserved() + self.bad_blocks()
    }

    /// Returns whether an image with `total` blocks, fewer than now, has room for `needed` blocks.
    fn has_room(&self, geometry: &Geometry, total: u64, needed: u64) -> bool {
        if !geometry.can_have(total) {
            return false;
        }
        let new = geometry.shrunk(total, None);
        let (maps, copies) = (new.moved_maps(), new.copies().count() as u64);
        let taken = maps.end - maps.start + copies;
        let room = (total - new.data_start.0).saturating_sub(taken);
        room >= needed + NodePool::target_of(total - new.data_start.0) * NODE_BLOCKS + SPARE
    }

    /// Returns the smallest number of blocks that the image can have with its present contents.
    pub fn smallest(&self) -> u64 {
        let (geometry, needed) = (self.geometry(), self.needed());
        let (mut low, mut high) = (0, geometry.total_blocks);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match self.has_room(&geometry, middle, needed) {
                true => high = middle,
                false => low = middle,
            }
        }
        high
    }

    /// Keeps new allocations below `end`. Fails with `NoSpace`, and changes nothing, if the
    /// promised blocks do not fit below `end`.
    pub fn fence(&self, end: BlockNo) -> Result<()> {
        assert_eq!(self.fence.swap(end.0, SeqCst), u64::MAX, "one shrink at a time");
        for g in end.0 / GROUP_BLOCKS..self.cells.len() {
            let from = end.0.saturating_sub(g * GROUP_BLOCKS) as u32;
            let take = |blocks: u32| self.space.take_up_to(blocks as u64) as u32;
            if !self.with_group(g, |group| group.raise_fence(from, take)) {
                self.unfence();
                return Err(Error::NoSpace);
            }
        }
        // The pool of a large image could otherwise take all free blocks of the smaller image.
        self.pool.resize(end.0 - self.geometry.data_start.0);
        self.evict_slots();
        Ok(())
    }

    /// Ends the limit of [`Alloc::fence`], if there is one.
    pub fn unfence(&self) {
        let end = self.fence.swap(u64::MAX, SeqCst);
        if end == u64::MAX {
            return;
        }
        self.pool.resize(self.total() - self.geometry.data_start.0);
        let groups = end / GROUP_BLOCKS..self.cells.len();
        let freed = groups.map(|g| self.with_group(g, |group| group.drop_fence()) as u64).sum();
        self.freed(freed);
    }

    /// Removes the slots beyond the fence from the node pool, as far as they are not promised, and
    /// refills the pool with others.
    pub fn evict_slots(&self) {
        self.release_slots(&self.pool.evict(self.fence.load(SeqCst)));
        self.refill(BlockNo(0), || self.pool.missing(0, NodeClass::Normal));
    }

    /// Takes adjacent blocks below the fence for allocation maps. The caller returns them through
    /// [`Alloc::release_data`], or [`Alloc::shrink`] makes them the format's.
    pub fn claim_maps(&self, blocks: u64) -> Result<Extent> {
        let taken = self.space.take_up_to(blocks);
        if taken == blocks && blocks <= GROUP_BLOCKS {
            let last = self.fence.load(SeqCst).min(self.total()) / GROUP_BLOCKS;
            for g in 0..=last.min(self.cells.len() - 1) {
                let run = self.with_group(g, |group| {
                    let (start, len) = group.free_run(0, BITS, blocks as u32, false)?;
                    group.claim_for_discard(start, (blocks as u32).min(len));
                    Some(start)
                });
                if let Some(start) = run {
                    return Ok(Extent::new(BlockNo(g * GROUP_BLOCKS + start as u64), blocks));
                }
            }
        }
        self.space.give(taken);
        Err(Error::NoSpace)
    }

    /// Returns whether no block beyond the fence is in use or about to be used.
    pub fn is_vacant(&self) -> bool {
        let (end, geometry) = (self.fence.load(SeqCst), self.geometry());
        let bad: Vec<u64> = self.bad.lock().range(end..).copied().collect();
        (end / GROUP_BLOCKS..self.cells.len()).all(|g| {
            let first = g * GROUP_BLOCKS;
            let mut others = Bitmap::new();
            for (start, len) in format_owned(&geometry, first).filter(|(_, len)| *len > 0) {
                others.set(start, len);
            }
            self.with_group(g, |group| {
                for block in bad.iter().filter(|block| **block / GROUP_BLOCKS == g) {
                    let bit = (block - first) as u32;
                    if group.owned.count_set(bit, 1) == 0 {
                        others.set(bit, 1);
                    }
                }
                group.is_vacant(end.saturating_sub(first) as u32, &others)
            })
        })
    }

    /// Switches to the smaller layout `new`. If its maps moved to other blocks of the data area,
    /// these blocks come from [`Alloc::claim_maps`]. Returns false, and changes nothing, if a block
    /// beyond the fence is in use. The caller holds the exclusive epoch guard, no checkpoint is in
    /// flight, and the caller makes the next cut before it releases the guard.
    pub fn shrink(&self, new: &Geometry) -> bool {
        assert_eq!(self.fence.load(SeqCst), new.vacated_from().0, "the fence is where the image ends");
        if !self.is_vacant() {
            return false;
        }
        let old = self.geometry();
        let kept: Vec<(u64, u64)> = new.format_runs().collect();
        self.leave_groups(new.groups());
        for g in new.data_start.0 / GROUP_BLOCKS..new.groups() {
            for (start, len) in format_owned(new, g * GROUP_BLOCKS).filter(|(_, len)| *len > 0) {
                let fresh = self.with_group(g, |group| group.own_for_format(start, len));
                self.owned_free.fetch_sub(fresh as u64, SeqCst);
            }
        }
        // Blocks that the format owns now leave the quarantine.
        let mut bad = self.bad.lock();
        bad.split_off(&new.vacated_from().0);
        self.bad_count.store(bad.len() as u64, SeqCst);
        drop(bad);
        let moved = (new.index_start, new.bitmap_start) != (old.index_start, old.bitmap_start);
        let maps = old.moved_maps();
        let left = maps.start.min(new.total_blocks)..maps.end.min(new.total_blocks);
        let freed: Vec<Extent> = outside(left, &kept)
            .into_iter()
            .map(|range| Extent::new(BlockNo(range.start), range.end - range.start))
            .collect();
        self.total.store(new.total_blocks, SeqCst);
        self.replace_layout(new);
        self.maps.start.store(new.moved_maps().start, SeqCst);
        self.maps.end.store(new.moved_maps().end, SeqCst);
        self.cut_index(new);
        self.disown(&freed);
        let first = if moved { 0 } else { new.groups() - 1 };
        for g in first..new.groups() {
            self.with_group(g, |group| group.dirty = true);
        }
        self.with_group(new.groups() - 1, |group| group.drop_fence());
        self.added.lock().extend(freed);
        self.rotor.store(0, Relaxed);
        self.fence.store(u64::MAX, SeqCst);
        self.pool.resize(new.total_blocks - new.data_start.0);
        true
    }

    /// Removes the groups from group number `len` on.
    fn leave_groups(&self, len: u64) {
        let full = {
            let mut bitmap = Bitmap::new();
            bitmap.set(0, BITS);
            Arc::new(bitmap)
        };
        for g in len..self.cells.len() {
            let fresh = self.with_group(g, |group| group.leave_image(&full));
            self.owned_free.fetch_sub(fresh as u64, SeqCst);
        }
        self.dirty.lock().retain(|g| *g < len);
        self.cells.set_len(len);
    }
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
