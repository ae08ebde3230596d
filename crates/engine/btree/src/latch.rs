//! The latch of a node.
//!
//! The tree takes latches through [`Latch::read`] and [`Latch::write`], with a closure that runs
//! under the latch. The kind of latch is chosen when the tree is opened. With [`TreeLock::Rwlock`]
//! and [`TreeLock::Optimistic`] the latch is the reader-writer lock around the value, and waiters
//! sleep. An optimistic descent takes the same latch for a leaf, but reads inner nodes without a
//! latch: see [`crate::routes`] and [`crate::peek`]. With the kinds of the feature `historic` the
//! latch is a lock beside the value (`pingpong`).
//!
//! The kind is a value, not a type parameter, so that two mounts of one program can differ. The
//! branches on the kind are well predicted: with the branches compiled away, benchmarks of look-ups
//! and changes ran at 0.93 to 1.10 times the rate, in the median at 1.00 (5 alternating rounds,
//! processor time).
//!
//! # The unsafe code
//! [`Latch::read_visibly`] passes the value to a reader that does not hold the lock around the
//! value. Writers check a table for such readers: see [`crate::visible`].

#[cfg(feature = "historic")]
use crate::pingpong::guard::PingGuard;
use crate::stats::{Events, Kind, Meter, stripe};
use crate::tree_lock::TreeLock;
use crate::visible::Bias;
use kedge_base::machine::{self, Place};
use parking_lot::RwLock;

/// Guards the state of one node in memory. Not reentrant. Every acquisition is counted, and
/// acquisitions that wait are timed.
#[repr(C)]
pub(crate) struct Latch<T> {
    /// Whether the latch belongs to an inner node, for the statistics.
    inner: bool,
    /// State of the reader bias: [`Latch::read_visibly`].
    bias: Bias,
    /// The lock that guards `data` in a tree whose descents hold paths. Such a tree does not use
    /// the lock around `data`.
    #[cfg(feature = "historic")]
    pub(crate) ping: Option<Box<PingGuard>>,
    pub(crate) data: RwLock<T>,
}

/// Counts the latch events of one operation on the tree. When dropped, it adds them to the tree's
/// counters.
pub(crate) struct LatchWatch<'a> {
    meter: &'a Meter,
    pub(crate) events: Events,
}

impl<'a> LatchWatch<'a> {
    pub(crate) fn new(meter: &'a Meter) -> LatchWatch<'a> {
        LatchWatch { meter, events: Events::default() }
    }

    #[inline]
    pub(crate) fn took(&self, kind: Kind) {
        self.events.took(kind);
    }

    /// Runs `wait` and measures its duration. `wait` returns the guard and the number of wake-ups.
    #[cold]
    pub(crate) fn timed<G>(&self, kind: Kind, wait: impl FnOnce() -> (G, u64)) -> G {
        let start = self.meter.clock.monotonic();
        let (got, wakeups) = wait();
        let waited = self.meter.clock.monotonic().saturating_sub(start);
        self.meter.stats.waited(kind, waited.as_nanos() as u64, wakeups);
        got
    }
}

/// Reports to the simulated scheduler that a latch is free. Declared before the latch's guard, and
/// therefore dropped after it.
struct Released(Place);

impl Drop for Released {
    #[inline(always)]
    fn drop(&mut self) {
        machine::released(self.0);
    }
}

/// Reports to the simulated scheduler that a latch is about to be released. Declared after the
/// latch's guard, and therefore dropped before it.
struct Releasing(Place);

impl Drop for Releasing {
    #[inline(always)]
    fn drop(&mut self) {
        machine::releasing(self.0);
    }
}

impl Drop for LatchWatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.meter.stats.add(&self.events);
    }
}

impl<T> Latch<T> {
    #[cfg_attr(not(feature = "historic"), expect(unused_variables))]
    pub(crate) fn new(lock: TreeLock, inner: bool, value: T) -> Latch<T> {
        Latch {
            inner,
            bias: Bias::default(),
            #[cfg(feature = "historic")]
            ping: PingGuard::of(lock),
            data: RwLock::new(value),
        }
    }

    /// Returns the value without locking, while no other thread can see the latch.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    #[inline]
    pub(crate) fn reads(&self) -> Kind {
        if self.inner { Kind::ReadInner } else { Kind::ReadLeaf }
    }

    #[inline]
    pub(crate) fn writes(&self) -> Kind {
        if self.inner { Kind::WriteInner } else { Kind::WriteLeaf }
    }

    /// Runs `f` under the latch, shared with other readers.
    #[inline]
    pub(crate) fn read<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&T) -> R) -> R {
        #[cfg(feature = "historic")]
        if let Some(ping) = self.ping.as_deref() {
            return self.read_spinning(watch, ping, f);
        }
        let kind = self.reads();
        watch.took(kind);
        let released = Released(Place::of(&self.data));
        machine::locking(released.0);
        let guard = self.data.try_read().unwrap_or_else(|| {
            watch.timed(kind, || {
                let simulated = machine::take_later(released.0, true, || self.data.try_read());
                // The lock does not report wake-ups, so each wait counts as one wake-up.
                (simulated.unwrap_or_else(|| self.data.read()), 1)
            })
        });
        let _releasing = Releasing(released.0);
        f(&guard)
    }

    /// Does what [`Latch::read`] does, for a latch that is often read and seldom written
    /// (reader-biased, as in BRAVO). Not for a tree whose descents hold paths.
    #[inline]
    pub(crate) fn read_visibly<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&T) -> R) -> R {
        let readers = &watch.meter.readers;
        if let Some(_visible) = self.bias.enter(readers, stripe()) {
            // SAFETY: all writers of this latch use a watch of the same tree. They revoke the bias
            // before they make a reference from their guard, and revoking waits until `_visible` is
            // dropped.
            return f(unsafe { &*self.data.data_ptr() });
        }
        self.read(watch, |value| {
            self.bias.note_read();
            f(value)
        })
    }

    /// Runs `f` with exclusive access to the value.
    #[inline]
    pub(crate) fn write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(feature = "historic")]
        if let Some(ping) = self.ping.as_deref() {
            return self.write_spinning(watch, ping, f);
        }
        let kind = self.writes();
        watch.took(kind);
        let released = Released(Place::of(&self.data));
        machine::locking(released.0);
        let mut guard = self.data.try_write().unwrap_or_else(|| {
            watch.timed(kind, || {
                let simulated = machine::take_later(released.0, false, || self.data.try_write());
                (simulated.unwrap_or_else(|| self.data.write()), 1)
            })
        });
        let _releasing = Releasing(released.0);
        self.bias.revoke(&watch.meter.readers);
        f(&mut guard)
    }

    /// Does what [`Latch::write`] does; returns `None` if it would have to wait.
    pub(crate) fn try_write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let kind = self.writes();
        #[cfg(feature = "historic")]
        if let Some(ping) = self.ping.as_deref() {
            return self.try_write_spinning(watch, ping, f);
        }
        let released = Released(Place::of(&self.data));
        machine::locking(released.0);
        let mut guard = self.data.try_write()?;
        let _releasing = Releasing(released.0);
        watch.took(kind);
        self.bias.revoke(&watch.meter.readers);
        Some(f(&mut guard))
    }
}

#[cfg(test)]
#[path = "latch_tests.rs"]
mod tests;
