//! Promises of blocks: how many may still be claimed, independent of their place.
//!
//! # Invariants
//! 1. At every moment at least `available` + all promised blocks that are not yet placed are clear
//!    in the busy bitmaps. Hence the order: busy bits are cleared before `available` is raised, and
//!    a promise is taken before they are set.
//! 2. So the holder of a promise always finds its blocks, if necessary one at a time. Fragmentation
//!    cannot break a reservation.
//!
//! Reservations belong to dirty pages and live long. So they share the counters through an `Arc`,
//! and return the rest on drop.

use kedge_base::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Space {
    available: AtomicU64,
    /// Blocks in live [`DataReservation`]s. For [`crate::FreeCounts`] only; decisions use
    /// `available`.
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

    /// Takes all of `blocks` or none.
    pub(crate) fn take(&self, blocks: u64) -> bool {
        self.available.fetch_update(SeqCst, SeqCst, |a| a.checked_sub(blocks)).is_ok()
    }

    /// Takes up to `blocks`; returns how many.
    pub(crate) fn take_up_to(&self, blocks: u64) -> u64 {
        if blocks == 0 {
            return 0;
        }
        match self.available.fetch_update(SeqCst, SeqCst, |a| Some(a - a.min(blocks))) {
            Ok(before) | Err(before) => before.min(blocks),
        }
    }
}

/// A promise of blocks for data not yet placed (delayed allocation). Its drop returns the rest.
#[derive(Debug)]
#[must_use = "dropping a reservation gives it back"]
pub struct DataReservation {
    space: Arc<Space>,
    blocks: u64,
}

impl DataReservation {
    /// Wraps blocks that were taken from `space`.
    pub(crate) fn taken(space: Arc<Space>, blocks: u64) -> DataReservation {
        space.reserved.fetch_add(blocks, SeqCst);
        DataReservation { space, blocks }
    }

    /// Blocks still promised.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Moves `blocks` of the promise, at most all of it, into a reservation of its own.
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

    /// Returns `blocks`, at most all, to the unpromised space.
    pub fn give_back(&mut self, blocks: u64) {
        drop(self.split(blocks));
    }

    /// Uses up `blocks` of the promise for blocks that were placed; nothing is returned.
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
