//! Limits for dirty pages that several file systems of a process share.

use kedge_base::BLOCK_SIZE;
use kedge_base::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Limits for the dirty pages of several file systems of one process together.
///
/// A file system whose device hangs may hold the whole limit forever. So the limits stop only a
/// member that has more than half of an equal share. The other members continue, and together they
/// exceed the limit by at most half.
#[derive(Debug)]
pub struct SharedBudget {
    dirty: AtomicI64,
    members: AtomicI64,
    background: i64,
    hard: i64,
}

impl SharedBudget {
    /// Makes limits in bytes. Above `background` the flushers write, above `hard` writers do.
    /// `background` is raised to at least 1 MiB, and `hard` to at least twice `background`.
    pub fn new(background: u64, hard: u64) -> Arc<SharedBudget> {
        let background = (background / BLOCK).max(256) as i64;
        let hard = ((hard / BLOCK) as i64).max(2 * background);
        Arc::new(SharedBudget { dirty: AtomicI64::new(0), members: AtomicI64::new(0), background, hard })
    }

    fn dirty_pages(&self) -> i64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Bytes that are dirty in all members together.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_pages().max(0) as u64 * BLOCK
    }

    /// Counts a file system as a member.
    pub(crate) fn join(&self) {
        self.members.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a member, and subtracts its dirty pages.
    pub(crate) fn leave(&self, dirty: i64) {
        self.dirty.fetch_sub(dirty, Ordering::Relaxed);
        self.members.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn account(&self, dirty: i64) {
        self.dirty.fetch_add(dirty, Ordering::Relaxed);
    }

    /// The position of the dirty pages between the middle of the two limits (0) and the hard limit
    /// (1). Above 0 writers are delayed.
    pub(crate) fn pressure(&self) -> f64 {
        pressure(self.dirty_pages(), self.background, self.hard)
    }

    /// Whether the background limit stops a member with `own` dirty pages, so that the flushers
    /// must write.
    pub(crate) fn over_background(&self, own: i64) -> bool {
        self.over(self.background, own)
    }

    /// Whether the hard limit stops a member with `own` dirty pages, so that its writers must write
    /// back.
    pub(crate) fn over_hard(&self, own: i64) -> bool {
        self.over(self.hard, own)
    }

    /// Whether a limit stops a member with `own` dirty pages.
    fn over(&self, limit: i64, own: i64) -> bool {
        let members = self.members.load(Ordering::Relaxed).max(1);
        self.dirty_pages() > limit && own > limit / (2 * members)
    }
}

/// The position of `dirty` between the middle of the two limits (0) and the hard limit (1).
pub(crate) fn pressure(dirty: i64, background: i64, hard: i64) -> f64 {
    let start = i64::midpoint(background, hard);
    (dirty - start) as f64 / (hard - start).max(1) as f64
}
