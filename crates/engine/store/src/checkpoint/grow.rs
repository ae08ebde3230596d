//! Growing an image, in use or not.
//!
//! # Steps
//! | | what | after a crash here |
//! |---|---|---|
//! | 1 | the device gets the space, durably: a file is extended | the file is longer than the image, which is permitted |
//! | 2 | the blocks of moved maps and of new copies of the superblock are zeroed, so that a full host refuses here | as in 1: no slot names these blocks |
//! | 3 | a checkpoint, so that step 4 has little to write | as in 1 |
//! | 4 | a checkpoint of the next generation in the new layout ([`Alloc::grow`]) | before its slot is durable, the old size; afterwards, the new one |
//! | 5 | the new blocks are free | the new size |
//! | 6 | one more checkpoint, so that the other slot names the new size too | the new size: a mount takes the newer slot |
//!
//! A full host may have deferred the checkpoint of an earlier resize. The slots then name the
//! layout before that resize, and its maps may lie where the maps of this growth go. So that
//! checkpoint is written before step 1, or the growth fails with nothing changed.
//!
//! Step 4 needs no free block of the image: the maps move to new blocks, and the tree does not
//! change. So a full image can grow.
//!
//! [`Alloc::grow`]: kedge_alloc::Alloc::grow

use super::cause::{By, CheckpointCause, Kind};
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::{BLOCK_SIZE, BlockNo, Error, Result};

const BLOCK: u64 = BLOCK_SIZE as u64;

impl Store {
    /// Grows the image to `bytes`, or to a little less: see
    /// [`kedge_format::superblock::Geometry::grown`]. Returns its size in bytes. Operations
    /// continue meanwhile. After an error the image has its old size, unless the host of the image
    /// became full in the last step: the next checkpoint then completes the growth, also that of a
    /// repeated call. A resize that an earlier call left to the next checkpoint is completed first.
    /// If a flush fails, the store shuts down.
    pub fn grow(&self, bytes: u64) -> Result<u64> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let mut single = self.checkpoint.alone(CheckpointCause::Request);
        self.check_alive()?;
        if self.checkpoint.is_frozen() || self.closed.load(Ordering::Acquire) {
            return Err(Error::Busy("the file system is frozen or being unmounted".into()));
        }
        // A cut that a full host deferred, possibly of a resize, becomes durable first. Until then
        // the slots may name maps in blocks that step 2 overwrites, and the size in memory is not
        // that of the image.
        if single.is_some() {
            self.run_checkpoint(&mut single, CheckpointCause::Request, By::Operation, Kind::Plain)?;
        }
        let old = self.alloc.geometry();
        let new = old.grown(bytes)?;
        if new.total_blocks == old.total_blocks {
            return Ok(old.total_blocks * BLOCK);
        }
        self.device.grow(new.total_blocks * BLOCK).inspect_err(|e| self.end_if_not_flushed(e))?;
        let maps = new.moved_maps();
        if maps != old.moved_maps() && maps.start < maps.end {
            let blocks = maps.end - maps.start;
            self.device.write_zeroes(BlockNo(maps.start).byte_offset(), blocks * BLOCK)?;
        }
        // Only new places. The copies in the present places stay until the first checkpoint
        // replaces them.
        for place in new.copies().filter(|place| place.0 >= old.total_blocks) {
            self.device.write_zeroes(place.byte_offset(), BLOCK)?;
        }
        let mut run = |kind| self.run_checkpoint(&mut single, CheckpointCause::Request, By::Operation, kind);
        run(Kind::Plain)?;
        self.alloc.prepare_growth(&new);
        run(Kind::Grow(&new))?;
        run(Kind::Plain)?;
        Ok(new.total_blocks * BLOCK)
    }
}
