//! The latch of a node, behind a seam.
//!
//! Access is by closure and not by guard, so that a latch may hand out a view first and find out later
//! whether it was consistent: a versioned latch runs the read closure again. Read closures therefore only
//! compute a result.

use crate::stats::{LatchStats, Meter};
use parking_lot::RwLock;
use std::cell::Cell;

/// Guards the state of one node in memory. Not reentrant.
///
/// Implementations count every acquisition and time those that wait.
pub trait NodeLatch<T>: Send + Sync {
    fn new(value: T) -> Self
    where
        Self: Sized;

    /// Access before anyone else knows the latch.
    fn get_mut(&mut self) -> &mut T;

    /// Runs `f` on a consistent value, beside other readers. `f` may run more than once; the last result
    /// counts.
    fn read<R>(&self, watch: &LatchWatch<'_>, f: impl FnMut(&T) -> R) -> R;

    /// Runs `f` once, alone.
    fn write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> R;

    /// Runs `f` once, alone, or not at all if that would mean to wait.
    fn try_write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> Option<R>;
}

/// Counts what one operation on the tree does with latches; the tree's counters see the sums when it is
/// dropped.
pub struct LatchWatch<'a> {
    meter: &'a Meter,
    reads: Cell<u64>,
    writes: Cell<u64>,
}

impl<'a> LatchWatch<'a> {
    pub(crate) fn new(meter: &'a Meter) -> LatchWatch<'a> {
        LatchWatch { meter, reads: Cell::new(0), writes: Cell::new(0) }
    }

    fn timed<G>(&self, kind: &LatchStats, wait: impl FnOnce() -> G) -> G {
        let start = self.meter.clock.monotonic();
        let guard = wait();
        let waited = self.meter.clock.monotonic().saturating_sub(start);
        kind.wait_ns.record(waited.as_nanos() as u64);
        guard
    }
}

impl Drop for LatchWatch<'_> {
    fn drop(&mut self) {
        for (kind, count) in
            [(&self.meter.stats.read_latch, &self.reads), (&self.meter.stats.write_latch, &self.writes)]
        {
            if count.get() > 0 {
                kind.acquisitions.add(count.get());
            }
        }
    }
}

/// Readers share, writers exclude, waiters sleep.
#[derive(Debug)]
pub struct RwLatch<T>(RwLock<T>);

impl<T: Send + Sync> NodeLatch<T> for RwLatch<T> {
    fn new(value: T) -> Self {
        RwLatch(RwLock::new(value))
    }

    fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    #[inline]
    fn read<R>(&self, watch: &LatchWatch<'_>, mut f: impl FnMut(&T) -> R) -> R {
        watch.reads.set(watch.reads.get() + 1);
        let guard = match self.0.try_read() {
            Some(guard) => guard,
            None => watch.timed(&watch.meter.stats.read_latch, || self.0.read()),
        };
        f(&guard)
    }

    #[inline]
    fn write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> R {
        watch.writes.set(watch.writes.get() + 1);
        let mut guard = match self.0.try_write() {
            Some(guard) => guard,
            None => watch.timed(&watch.meter.stats.write_latch, || self.0.write()),
        };
        f(&mut guard)
    }

    fn try_write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut guard = self.0.try_write()?;
        watch.writes.set(watch.writes.get() + 1);
        Some(f(&mut guard))
    }
}

#[cfg(test)]
#[path = "latch_tests.rs"]
mod tests;
