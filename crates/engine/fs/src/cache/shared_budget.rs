//! Limits for dirty pages that several file systems of a process share.

use kedge_base::BLOCK_SIZE;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Limits for the dirty pages of several file systems of one process together.
///
/// One whose device hangs may hold all that is allowed for ever. So the limits stop only those that
/// have more than half of an equal share: the others always go on, and together they exceed the
/// limit by half at most.
#[derive(Debug)]
pub struct SharedBudget {
    dirty: AtomicI64,
    members: AtomicI64,
    background: i64,
    hard: i64,
}

impl SharedBudget {
    /// Limits in bytes: above `background` the flushers write, above `hard` writers do. At least 1
    /// MiB, and `hard` at least twice `background`.
    pub fn new(background: u64, hard: u64) -> Arc<SharedBudget> {
        let background = (background / BLOCK).max(256) as i64;
        let hard = ((hard / BLOCK) as i64).max(2 * background);
        Arc::new(SharedBudget { dirty: AtomicI64::new(0), members: AtomicI64::new(0), background, hard })
    }

    fn dirty_pages(&self) -> i64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Bytes that are dirty in all file systems together.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_pages().max(0) as u64 * BLOCK
    }

    /// A file system joins: the limits are for one more.
    pub(crate) fn join(&self) {
        self.members.fetch_add(1, Ordering::Relaxed);
    }

    /// A file system leaves, and gives back what it held.
    pub(crate) fn leave(&self, dirty: i64) {
        self.dirty.fetch_sub(dirty, Ordering::Relaxed);
        self.members.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn account(&self, dirty: i64) {
        self.dirty.fetch_add(dirty, Ordering::Relaxed);
    }

    /// How much of the way between two limits is used, from half of it on: above 0 writers slow
    /// down.
    pub(crate) fn pressure(&self) -> f64 {
        pressure(self.dirty_pages(), self.background, self.hard)
    }

    /// Above the limit where the flushers write.
    pub(crate) fn over_background(&self, own: i64) -> bool {
        self.over(self.background, own)
    }

    /// Above the limit where writers do.
    pub(crate) fn over_hard(&self, own: i64) -> bool {
        self.over(self.hard, own)
    }

    /// Whether a member with `own` dirty pages is stopped by a limit.
    fn over(&self, limit: i64, own: i64) -> bool {
        let members = self.members.load(Ordering::Relaxed).max(1);
        self.dirty_pages() > limit && own > limit / (2 * members)
    }
}

/// How far `dirty` is from half way between the limits on, as a part of the rest.
pub(crate) fn pressure(dirty: i64, background: i64, hard: i64) -> f64 {
    let start = i64::midpoint(background, hard);
    (dirty - start) as f64 / (hard - start).max(1) as f64
}
