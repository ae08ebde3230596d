//! The epoch guard: shared by operations that commit, exclusive for a checkpoint's cut.
//!
//! It is a big-reader lock: one lock for each stripe of threads. A commit takes the lock of its
//! thread's stripe; a cut takes all of them. The alternative is a single reader-writer lock. Every
//! operation would write to it, and its cache line would move from processor to processor, while
//! cuts are rare.
//!
//! Readers and writer exclude each other because a reader holds one of the locks that the writer
//! needs. Two writers cannot deadlock because both take the locks in order.

use kedge_base::lock::{Rank, ReadGuard, RwLock, WriteGuard};
use kedge_base::{STRIPES, stripe};

/// One lock, on cache lines of its own.
#[repr(align(128))]
struct Lane(RwLock<()>);

/// The epoch guard; see the module's head.
pub(crate) struct EpochGuard([Lane; STRIPES]);

impl EpochGuard {
    pub(crate) fn new() -> EpochGuard {
        EpochGuard(std::array::from_fn(|i| Lane(RwLock::with_order(Rank::EpochGuard, i as u64, ()))))
    }

    /// Excludes cuts. A thread must not enter twice: a cut that starts in between would wait for
    /// the first guard, and the second guard for the cut.
    pub(crate) fn enter(&self) -> ReadGuard<'_, ()> {
        self.0[stripe()].0.read()
    }

    /// Waits until all commits that are inside the guard now have left. Does not wait for commits
    /// that enter later: a waiting writer of a lane has priority over new readers, so this returns
    /// however busy the guard is.
    pub(crate) fn wait_for_those_inside(&self) {
        for lane in &self.0 {
            drop(lane.0.write());
        }
    }

    /// Excludes all commits.
    pub(crate) fn close(&self) -> [WriteGuard<'_, ()>; STRIPES] {
        std::array::from_fn(|i| self.0[i].0.write())
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
