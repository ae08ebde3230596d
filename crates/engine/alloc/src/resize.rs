//! Growing an image while it is in use.
//!
//! # Steps
//! 1. [`Alloc::grow`], under the exclusive epoch guard that also covers the cut of a checkpoint:
//!    the new blocks, and those of allocation maps that moved, are no longer owned, but stay busy.
//!    If the maps moved, every group becomes dirty, so the checkpoint writes all bitmaps to their
//!    new location.
//! 2. The checkpoint of that cut writes the bitmaps and the index in the new layout, then the
//!    superblock slot with the new size. Nothing that the old slot uses is overwritten.
//! 3. [`Alloc::written`]: the slot is durable, and the added blocks become free (reason 9 of the
//!    crate's documentation).
//!
//! If the checkpoint is delayed, the added blocks wait as well, because they belong to its frozen
//! state.

use crate::{Alloc, Durable, Extent};
use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::broken::{self, Variant};
use kedge_base::{BlockNo, Result};
use kedge_format::alloc::GroupEntry;
use kedge_format::superblock::{Geometry, INCOMPAT_CLONES, INCOMPAT_LIMITS, INCOMPAT_TREES};
use std::ops::Range;
use std::sync::Arc;

/// Returns the parts of `range` outside of `runs`, given as (start, length) pairs that do not
/// overlap.
pub(crate) fn outside(range: Range<u64>, runs: &[(u64, u64)]) -> Vec<Range<u64>> {
    let mut inside: Vec<_> = runs.iter().map(|(start, len)| *start..start + len).collect();
    inside.sort_by_key(|run| run.start);
    let mut out = Vec::new();
    let mut at = range.start;
    for run in inside.into_iter().filter(|run| run.start < range.end) {
        out.push(at..run.start.max(at));
        at = at.max(run.end);
    }
    out.push(at..range.end.max(at));
    out.retain(|part| !part.is_empty());
    out
}

impl Alloc {
    /// Makes the groups of a layout accessible. Called before the cut, because an image may gain
    /// many.
    pub fn prepare_growth(&self, new: &Geometry) {
        self.cells.make(new.groups());
        let watches = self.cells.get(0).lock().watches_frees();
        for g in self.cells.len()..new.groups() {
            self.cells.get(g).lock().watch_frees(watches);
        }
    }

    /// Sets the feature of several trees, and with `limits` also the feature of limits, in the
    /// geometry that the next checkpoint writes. The caller holds the exclusive epoch guard.
    pub fn set_has_trees(&self, limits: bool) {
        self.add_features(INCOMPAT_TREES | if limits { INCOMPAT_LIMITS } else { 0 });
    }

    /// Sets the feature of shared blocks in the geometry that the next checkpoint writes. The
    /// caller needs no guard, and may do so at any time during a resize.
    pub fn set_has_clones(&self) {
        self.add_features(INCOMPAT_CLONES);
    }

    fn add_features(&self, features: u64) {
        let mut layout = self.layout.lock();
        let feature_incompat = layout.feature_incompat | features;
        if feature_incompat != layout.feature_incompat {
            *layout = Arc::new(Geometry { feature_incompat, ..(**layout).clone() });
        }
    }

    /// Makes `new` the geometry that the next checkpoint writes. `new` was planned before the cut,
    /// so a feature that was set since is missing there; it is kept. The caller holds the exclusive
    /// epoch guard.
    pub(crate) fn replace_layout(&self, new: &Geometry) {
        const SET_IN_USE: u64 = INCOMPAT_TREES | INCOMPAT_LIMITS | INCOMPAT_CLONES;
        let mut layout = self.layout.lock();
        let feature_incompat = new.feature_incompat | layout.feature_incompat & SET_IN_USE;
        *layout = Arc::new(Geometry { feature_incompat, ..new.clone() });
    }

    /// Frees blocks that no tree uses from the next cut on. They are not allocated again before the
    /// checkpoint of that cut is durable. The caller holds the exclusive epoch guard.
    pub fn free_at_cut(&self, extent: Extent) -> Result<()> {
        for (g, bit, len) in self.named_pieces(extent)? {
            self.with_group(g, |group| group.apply_free(bit, len))?;
            self.owned_free.fetch_add(len as u64, SeqCst);
        }
        // Broken on purpose: the blocks are reusable at once.
        match broken::is(Variant::ReuseFreedTree) {
            true => self.release_data(extent),
            false => self.added.lock().push(extent),
        }
        Ok(())
    }

    /// Switches to the larger layout `new`. The caller holds the exclusive epoch guard, no
    /// checkpoint is in flight, and the caller makes the next cut before it releases the guard.
    pub fn grow(&self, new: &Geometry) {
        let old = self.geometry();
        assert!(new.total_blocks >= old.total_blocks, "the image grows");
        self.cells.set_len(new.groups());
        self.total.store(new.total_blocks, SeqCst);
        self.replace_layout(new);
        self.maps.start.store(new.moved_maps().start, SeqCst);
        self.maps.end.store(new.moved_maps().end, SeqCst);
        self.extend_index(new);

        let moved = (new.index_start, new.bitmap_start) != (old.index_start, old.bitmap_start);
        let freed = if moved { old.moved_maps() } else { 0..0 };
        // The last block of the old layout held a copy of the superblock.
        let last = if old.has_copies() { old.total_blocks - 1 } else { old.total_blocks };
        let kept: Vec<(u64, u64)> = new.format_runs().collect();
        let added: Vec<Extent> = [freed, last..new.total_blocks]
            .into_iter()
            .flat_map(|range| outside(range, &kept))
            .map(|range| Extent::new(BlockNo(range.start), range.end - range.start))
            .collect();
        self.disown(&added);
        // The old last group may gain no free block, but fewer of its bits lie beyond the image's
        // end.
        let first = if moved { 0 } else { old.groups() - 1 };
        for g in first..new.groups() {
            self.with_group(g, |group| group.dirty = true);
        }
        self.added.lock().extend(added);
        self.pool.resize(new.total_blocks - new.data_start.0);
    }

    /// Removes the format's ownership of these blocks. They stay busy.
    pub(crate) fn disown(&self, extents: &[Extent]) {
        for extent in extents {
            for (g, bit, len) in self.pieces(*extent).expect("inside the new layout") {
                let freed = self.with_group(g, |group| group.apply_free(bit, len));
                freed.expect("the format owned it");
            }
            self.owned_free.fetch_add(extent.blocks, SeqCst);
        }
    }

    /// Removes the index entries of groups that the image no longer has.
    pub(crate) fn cut_index(&self, new: &Geometry) {
        let mut durable = self.durable.lock();
        let mut index = durable.index.to_vec();
        index.truncate(new.groups() as usize);
        *durable = Durable { index: Arc::new(index), slot: durable.slot };
    }

    /// Adds index entries for the groups that the image gains. The first checkpoint replaces all
    /// their fields. It reads only the number of the current copy, to write the other one.
    fn extend_index(&self, new: &Geometry) {
        let mut durable = self.durable.lock();
        let mut index = durable.index.to_vec();
        index.resize(new.groups() as usize, GroupEntry { bitmap_crc: 0, free_blocks: 0, copy: 1 });
        *durable = Durable { index: Arc::new(index), slot: durable.slot };
    }

    /// Frees the blocks that a resize added. Called once the superblock with the new size is
    /// durable.
    pub(crate) fn release_added(&self, added: Vec<Extent>) {
        for extent in added {
            self.release_data(extent);
        }
    }
}
