//! Making an image smaller, in use or not.
//!
//! # Steps
//! | | what | after a crash here |
//! |---|---|---|
//! | 1 | nothing from the new end on is allocated any more ([`Alloc::fence`]) | the old size: the limit is in memory only |
//! | 2 | the caller moves what files have beyond the new end, by records | the old size; each record took effect or did not |
//! | 3 | nodes beyond the new end are copied, and a checkpoint writes the copies | as in 2: the last checkpoint keeps what it names |
//! | 4 | a checkpoint of the next generation in the new layout ([`Alloc::shrink`]) | before its slot is durable, the old size; afterwards, the new one |
//! | 5 | one more checkpoint, so that the other slot names the new size too | the new size: a mount takes the newer slot |
//!
//! In an image that was forked, steps 2 and 3 move what the trees in use own. What a point owns
//! cannot move; the caller checks before step 2 that no point owns blocks there
//! ([`Store::points_beyond`]). The nodes of the table of trees move in the cut of the second
//! checkpoint of step 3.
//!
//! Step 4 does nothing if a block beyond the end is in use: an operation took the block before step
//! 1 and committed its record later. The caller then repeats steps 2 and 3.
//!
//! [`Alloc::fence`]: kedge_alloc::Alloc::fence
//! [`Alloc::shrink`]: kedge_alloc::Alloc::shrink

use super::cause::{By, CheckpointCause, Freed, Kind};
use crate::forest::{Change, Member};
use crate::need::{Class, Need};
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, Extent, Result};
use kedge_format::Key;
use kedge_format::shrink::Maps;
use kedge_format::superblock::Geometry;
use kedge_log::ForceCause;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A shrink in progress. Dropping it allows allocations beyond the new end again.
#[must_use = "dropping it ends the shrink"]
pub struct Shrinking<'a> {
    store: &'a Store,
    new: Geometry,
    /// New blocks for allocation maps that move to the data area. `None` once the new layout owns
    /// them.
    maps: Option<Extent>,
}

impl Store {
    /// The smallest size, in bytes, to which the image can shrink with its present contents.
    pub fn smallest_bytes(&self) -> u64 {
        self.alloc.smallest() * BLOCK
    }

    /// Starts a shrink to `bytes`, rounded down to whole blocks, which must be less than the
    /// present size. Changes nothing on the device.
    pub fn begin_shrink(&self, bytes: u64) -> Result<Shrinking<'_>> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.check_alive()?;
        let (old, total) = (self.alloc.geometry(), bytes / BLOCK);
        assert!(total < old.total_blocks, "the image becomes smaller");
        let smallest = self.alloc.smallest();
        if total < smallest {
            let what = "are too few for what the image contains; the smallest size is";
            return Err(Error::invalid(format!("{bytes} bytes {what} {}", smallest * BLOCK)));
        }
        let plan = old.shrunk(total, None);
        self.alloc.fence(plan.vacated_from()).map_err(|_| {
            Error::Busy("the space below the new end, which running operations were promised,".into())
        })?;
        // From here on an error drops `shrinking`, which lifts the fence.
        let mut shrinking = Shrinking { store: self, new: plan, maps: None };
        if let Maps::Move(blocks) = old.maps_after_shrink(total) {
            let maps = self.alloc.claim_maps(blocks).map_err(|_| {
                let what = format!("{blocks} adjacent free blocks for the allocation maps");
                Error::invalid(format!("{bytes} bytes: below that there are no {what}"))
            })?;
            shrinking.new = old.shrunk(total, Some(maps.start));
            shrinking.maps = Some(maps);
        }
        Ok(shrinking)
    }
}

impl Shrinking<'_> {
    /// The new end. No block from it on may stay in use.
    pub fn end(&self) -> BlockNo {
        self.new.vacated_from()
    }

    /// Copies the nodes of all trees that lie beyond the end, and makes two checkpoints. The first
    /// writes nodes taken before the fence: only nodes of an older generation are copied. The
    /// second writes the copies. Nothing shared is copied, because all nodes above an unshared node
    /// are unshared too.
    pub fn move_nodes(&self) -> Result<()> {
        let store = self.store;
        store.checkpoint(CheckpointCause::Request)?;
        for number in store.forest.changed_heads() {
            let member = store.forest.member(number)?;
            let mut at = Key::MIN;
            while let Some(key) = member.tree.node_beyond(at, self.end())? {
                store.alloc.evict_slots();
                store.renew_path(&member, key)?;
                at = key;
            }
        }
        if broken::is(Variant::CutBeforeSlot) {
            // Broken on purpose: the device is cut off while the last checkpoint and durable
            // records still name blocks there.
            store.device.cut(self.new.total_blocks * BLOCK)?;
        }
        match store.is_forked() {
            true => store.change_trees(&[Change::Vacate { end: self.end() }], &Freed::default(), 0)?,
            false => store.checkpoint(CheckpointCause::Request)?,
        }
        store.force(store.head_lsn(), ForceCause::Checkpoint)?;
        store.alloc.durable(store.durable_lsn());
        store.alloc.evict_slots();
        Ok(())
    }

    /// Makes the image smaller if nothing is left beyond the end. Returns whether the image became
    /// smaller.
    ///
    /// After an error the image has its old size, unless its host became full in the last step: the
    /// next checkpoint then completes the shrink, and the device keeps its size.
    /// If a flush fails, the store shuts down.
    pub fn finish(&mut self) -> Result<bool> {
        let store = self.store;
        let old = store.alloc.geometry();
        let mut single = store.checkpoint.alone(CheckpointCause::Request);
        store.check_alive()?;
        if store.checkpoint.is_frozen() || store.closed.load(Ordering::Acquire) {
            return Err(Error::Busy("the file system is frozen or being unmounted".into()));
        }
        if !store.alloc.is_vacant() {
            return Ok(false);
        }
        let mut run = |kind| store.run_checkpoint(&mut single, CheckpointCause::Request, By::Operation, kind);
        let done = run(Kind::Shrink(&self.new));
        if store.total_blocks() != self.new.total_blocks {
            return done.map(|()| false);
        }
        // The new layout owns these blocks now, so the drop must not free them.
        self.maps = None;
        done?;
        run(Kind::Plain)?;
        drop(single);
        store.device.cut(self.new.total_blocks * BLOCK).inspect_err(|e| store.end_if_not_flushed(e))?;
        // If the device keeps its size, the copies of the superblock beyond the new end are erased:
        // a later repair must not take them for copies of this image.
        let has = store.device.geometry().size;
        let stale = old.copies().filter(|copy| copy.0 >= self.new.total_blocks);
        for copy in stale.filter(|copy| (copy.0 + 1) * BLOCK <= has) {
            store.device.write_zeroes(copy.byte_offset(), BLOCK)?;
        }
        Ok(true)
    }
}

impl Drop for Shrinking<'_> {
    fn drop(&mut self) {
        if let Some(maps) = self.maps.take()
            && self.store.check_alive().is_ok()
        {
            self.store.alloc.release_data(maps);
        }
        self.store.alloc.unfence();
    }
}

impl Store {
    /// Copies the nodes of older generations on the path to a leaf. No record is needed: the items
    /// stay the same, and replay works without the copies.
    fn renew_path(&self, member: &Member, key: Key) -> Result<()> {
        let handle = self.begin(Need::record(Class::Normal).puts(1, 0))?;
        // The leaf is pinned as `Handle::commit` pins the leaves of a record.
        let _pins = member.tree.pin(&[key])?;
        let inside = self.guard.enter();
        let renewed = member.tree.renew(key);
        drop(inside);
        drop(handle);
        renewed
    }
}
