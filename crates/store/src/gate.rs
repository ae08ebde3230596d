//! The epoch guard: shared by operations that commit, exclusive for a checkpoint's cut.
//!
//! A big-reader lock: one lock for each stripe of threads. A commit takes the lock of its thread's stripe, a cut takes all.
//! Every operation would write a single reader-writer lock, and its cache line would move from processor to processor; cuts
//! are rare. Readers and writer exclude each other because a reader holds one of the locks that the writer needs. Two
//! writers cannot deadlock because both take the locks in order.

use kedge_base::lock::{Rank, ReadGuard, RwLock, WriteGuard};
use kedge_base::{STRIPES, stripe};

/// On cache lines of its own.
#[repr(align(128))]
struct Lane(RwLock<()>);

/// See the module.
pub(crate) struct Gate([Lane; STRIPES]);

impl Gate {
    pub fn new() -> Gate {
        Gate(std::array::from_fn(|i| Lane(RwLock::with_order(Rank::EpochGuard, i as u64, ()))))
    }

    /// Keeps cuts out. Not taken twice by one thread: a cut that came between would wait for the first, and the second for it.
    pub fn enter(&self) -> ReadGuard<'_, ()> {
        self.0[stripe()].0.read()
    }

    /// Returns when everyone is out who was inside at the call. Who comes later is not waited for, so this ends however busy
    /// the gate is: a lane that somebody wants to close lets nobody in before.
    pub fn wait_for_those_inside(&self) {
        for lane in &self.0 {
            drop(lane.0.write());
        }
    }

    /// Keeps everyone out.
    pub fn close(&self) -> [WriteGuard<'_, ()>; STRIPES] {
        std::array::from_fn(|i| self.0[i].0.write())
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
