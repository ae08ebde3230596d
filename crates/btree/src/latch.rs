//! The latch of a node, behind a seam.
//!
//! Access is by closure and not by guard, so that a latch may hand out a view first and find out later whether it was
//! consistent: a versioned latch runs the read closure again. Read closures therefore only compute a result.

use crate::stats::{LatchStats, Meter};
use parking_lot::RwLock;

/// Guards the state of one node in memory. Not reentrant.
///
/// Implementations count every acquisition and time those that wait.
pub trait NodeLatch<T>: Send + Sync {
    fn new(value: T) -> Self
    where
        Self: Sized;

    /// Runs `f` on a consistent value, beside other readers. `f` may run more than once; the last result counts.
    fn read<R>(&self, watch: &LatchWatch<'_>, f: impl FnMut(&T) -> R) -> R;

    /// Runs `f` once, alone.
    fn write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> R;

    /// Runs `f` once, alone, or not at all if that would mean to wait.
    fn try_write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> Option<R>;
}

/// Where acquisitions and waits are counted.
pub struct LatchWatch<'a>(pub(crate) &'a Meter);

impl LatchWatch<'_> {
    fn timed<G>(&self, kind: &LatchStats, wait: impl FnOnce() -> G) -> G {
        let start = self.0.clock.monotonic();
        let guard = wait();
        let waited = self.0.clock.monotonic().saturating_sub(start);
        kind.wait_ns.record(waited.as_nanos() as u64);
        guard
    }
}

/// Readers share, writers exclude, waiters sleep.
#[derive(Debug)]
pub struct RwLatch<T>(RwLock<T>);

impl<T: Send + Sync> NodeLatch<T> for RwLatch<T> {
    fn new(value: T) -> Self {
        RwLatch(RwLock::new(value))
    }

    #[inline]
    fn read<R>(&self, watch: &LatchWatch<'_>, mut f: impl FnMut(&T) -> R) -> R {
        let kind = &watch.0.stats.read_latch;
        kind.acquisitions.inc();
        let guard = match self.0.try_read() {
            Some(guard) => guard,
            None => watch.timed(kind, || self.0.read()),
        };
        f(&guard)
    }

    #[inline]
    fn write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> R {
        let kind = &watch.0.stats.write_latch;
        kind.acquisitions.inc();
        let mut guard = match self.0.try_write() {
            Some(guard) => guard,
            None => watch.timed(kind, || self.0.write()),
        };
        f(&mut guard)
    }

    fn try_write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut guard = self.0.try_write()?;
        watch.0.stats.write_latch.acquisitions.inc();
        Some(f(&mut guard))
    }
}
