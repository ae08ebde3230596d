//! Promises of blocks: counts how many blocks may still be taken, independently of their location.
//!
//! # Invariants
//! 1. At any time at least `available` + all promised blocks that are not yet placed are clear in
//!    the busy bitmaps. Therefore busy bits are cleared before `available` is raised, and a promise
//!    is taken before busy bits are set.
//! 2. So the holder of a promise always finds its blocks, if necessary one at a time. Fragmentation
//!    cannot break a reservation.
//!
//! Reservations belong to dirty pages and live long. So each shares the counters through an `Arc`,
//! and returns its unused blocks on drop.

use kedge_base::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Space {
    available: AtomicU64,
    /// Number of blocks in live [`DataReservation`]s. Only for [`crate::FreeCounts`] and the size
    /// limit of a shrink; allocations use `available`.
    reserved: AtomicU64,
}

impl Space {
    pub(crate) fn available(&self) -> u64 {
        self.available.load(SeqCst)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(SeqCst)
    }

    pub(crate) fn give(&self, blocks: u64) {
        self.available.fetch_add(blocks, SeqCst);
    }

    /// Takes all of `blocks` or none. Returns whether it took them.
    pub(crate) fn take(&self, blocks: u64) -> bool {
        self.available.fetch_update(SeqCst, SeqCst, |a| a.checked_sub(blocks)).is_ok()
    }

    /// Takes up to `blocks` blocks. Returns how many.
    pub(crate) fn take_up_to(&self, blocks: u64) -> u64 {
        if blocks == 0 {
            return 0;
        }
        match self.available.fetch_update(SeqCst, SeqCst, |a| Some(a - a.min(blocks))) {
            Ok(before) | Err(before) => before.min(blocks),
        }
    }
}

/// A promise of blocks for data that is not yet placed (delayed allocation). Dropping it returns
/// the unused blocks.
#[derive(Debug)]
#[must_use = "dropping a reservation gives it back"]
pub struct DataReservation {
    space: Arc<Space>,
    blocks: u64,
}

impl DataReservation {
    /// Makes a reservation of blocks that were taken from `space`.
    pub(crate) fn taken(space: Arc<Space>, blocks: u64) -> DataReservation {
        space.reserved.fetch_add(blocks, SeqCst);
        DataReservation { space, blocks }
    }

    /// Returns the number of blocks that are still promised.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Moves `blocks` blocks of the promise into a new reservation, at most all of them.
    pub fn split(&mut self, blocks: u64) -> DataReservation {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        DataReservation { space: self.space.clone(), blocks }
    }

    /// Adds the promise of another reservation of the same allocator.
    pub fn merge(&mut self, mut other: DataReservation) {
        assert!(Arc::ptr_eq(&self.space, &other.space), "reservations of one allocator");
        self.blocks += std::mem::take(&mut other.blocks);
    }

    /// Returns `blocks` blocks, at most all of them, to the unpromised space.
    pub fn give_back(&mut self, blocks: u64) {
        drop(self.split(blocks));
    }

    /// Subtracts `blocks` blocks that were placed from the promise, without returning them.
    pub(crate) fn consume(&mut self, blocks: u64) {
        assert!(blocks <= self.blocks, "consumes what was promised");
        self.blocks -= blocks;
        self.space.reserved.fetch_sub(blocks, SeqCst);
    }
}

impl Drop for DataReservation {
    fn drop(&mut self) {
        self.space.reserved.fetch_sub(self.blocks, SeqCst);
        self.space.give(self.blocks);
    }
}
