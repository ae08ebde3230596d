//! The latch of a node. The unsafe code of the crate is here and in [`crate::peek`].
//!
//! The tree takes latches through [`Latch::read`] and [`Latch::write`], with a closure that runs
//! under them. The kind of latch is chosen when the tree is opened. With [`TreeLock::Rwlock`] and
//! [`TreeLock::Optimistic`] it is the reader-writer lock around the value, whose waiters sleep.
//! With [`TreeLock::Pingpong`] and [`TreeLock::Blocking`] it is a [`PingLock`] beside the value. An
//! optimistic descent uses the same latch for leaves, but reads inner nodes without one: see
//! [`crate::routes`] and [`crate::peek`].
//!
//! The kind is a value, not a type parameter, so that two mounts of one program can differ. The
//! branches on it are well predicted: with them compiled away, loads of look-ups and changes ran at
//! 0.93 to 1.10 times the rate, the median load at 1.00 (5 alternating rounds, processor time).
//!
//! # The unsafe code
//! 1. [`Latch::peek`] and [`Latch::peek_mut`] return the value of a latch whose [`PingLock`] the
//!    caller holds. In this mode no thread takes the lock around the value. Taking it as well,
//!    always uncontended, would be the safe alternative, but would add its cost to one of the kinds
//!    that are compared.
//! 2. [`Latch::read_visibly`] returns the value to a reader that does not hold the lock around it.
//!    Writers check a table for such readers: see [`crate::visible`].

use crate::pingpong::lock::{Grip, HasPing, Mode, PingLock};
use crate::stats::{Events, Kind, Meter, stripe};
use crate::tree_lock::TreeLock;
use crate::visible::Bias;
use parking_lot::RwLock;

/// Guards the state of one node in memory. Not reentrant. Every acquisition is counted, and those
/// that wait are timed.
#[repr(C)]
pub(crate) struct Latch<T> {
    /// Whether this is the latch of an inner node, for the statistics.
    inner: bool,
    /// Whether a blocking holder converts back to spinning: [`TreeLock::Pingpong`].
    respins: bool,
    /// For readers that bypass the latch: [`Latch::read_visibly`].
    bias: Bias,
    /// Guards `data`, instead of the lock around it, in a tree whose descents hold paths.
    ping: Option<Box<PingLock>>,
    data: RwLock<T>,
}

/// Counts the latch events of one operation on the tree, and adds them to the tree's counters when
/// it is dropped.
pub(crate) struct LatchWatch<'a> {
    meter: &'a Meter,
    events: Events,
}

impl<'a> LatchWatch<'a> {
    pub(crate) fn new(meter: &'a Meter) -> LatchWatch<'a> {
        LatchWatch { meter, events: Events::default() }
    }

    #[inline]
    fn took(&self, kind: Kind) {
        self.events.took(kind);
    }

    /// Times `wait`, which returns the guard and how often the thread was woken.
    #[cold]
    fn timed<G>(&self, kind: Kind, wait: impl FnOnce() -> (G, u64)) -> G {
        let start = self.meter.clock.monotonic();
        let (got, wakeups) = wait();
        let waited = self.meter.clock.monotonic().saturating_sub(start);
        self.meter.stats.waited(kind, waited.as_nanos() as u64, wakeups);
        got
    }
}

impl Drop for LatchWatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.meter.stats.add(&self.events);
    }
}

impl<T> Latch<T> {
    pub(crate) fn new(lock: TreeLock, inner: bool, value: T) -> Latch<T> {
        let ping = lock.holds_paths().then(Box::default);
        let respins = lock == TreeLock::Pingpong;
        Latch { inner, respins, bias: Bias::default(), ping, data: RwLock::new(value) }
    }

    /// Access before the latch is shared.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    #[inline]
    fn kind(&self, mode: Mode) -> Kind {
        match (mode, self.inner) {
            (Mode::Read, false) => Kind::ReadLeaf,
            (Mode::Read, true) => Kind::ReadInner,
            (Mode::Write, false) => Kind::WriteLeaf,
            (Mode::Write, true) => Kind::WriteInner,
        }
    }

    /// Runs `f` under the latch, shared with other readers.
    #[inline]
    pub(crate) fn read<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&T) -> R) -> R {
        let kind = self.kind(Mode::Read);
        if let Some(ping) = self.ping.as_deref() {
            let _grip = grip(watch, kind, ping, Mode::Read);
            // SAFETY: `_grip` holds this latch's lock.
            return f(unsafe { self.peek() });
        }
        watch.took(kind);
        let guard = match self.data.try_read() {
            Some(guard) => guard,
            // The lock does not report wake-ups, so each wait counts as one.
            None => watch.timed(kind, || (self.data.read(), 1)),
        };
        f(&guard)
    }

    /// [`Latch::read`] without statistics, for the pointer to the root in a tree that holds paths:
    /// btrfs reads that pointer without a latch.
    pub(crate) fn read_uncounted<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        let ping = self.ping.as_deref().expect("only trees with this kind of latch hold paths");
        let _grip = Grip::take(ping, Mode::Read);
        // SAFETY: `_grip` holds this latch's lock.
        f(unsafe { self.peek() })
    }

    /// [`Latch::read`] for a latch that is often read and seldom written (reader-biased, as BRAVO).
    /// Not for a latch with a [`PingLock`].
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

    /// Runs `f` with exclusive access. `f` may take long, so a spinning latch is converted to a
    /// blocking one for it.
    #[inline]
    pub(crate) fn write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> R {
        let kind = self.kind(Mode::Write);
        if let Some(ping) = self.ping.as_deref() {
            let grip = grip(watch, kind, ping, Mode::Write);
            return self.write_blocking(watch, grip, f);
        }
        watch.took(kind);
        let mut guard = match self.data.try_write() {
            Some(guard) => guard,
            None => watch.timed(kind, || (self.data.write(), 1)),
        };
        self.bias.revoke(&watch.meter.readers);
        f(&mut guard)
    }

    /// [`Latch::write`], or `None` if it would have to wait.
    pub(crate) fn try_write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let kind = self.kind(Mode::Write);
        if let Some(ping) = self.ping.as_deref() {
            let grip = Grip::try_take(ping, Mode::Write).ok()?;
            watch.took(kind);
            return Some(self.write_blocking(watch, grip, f));
        }
        let mut guard = self.data.try_write()?;
        watch.took(kind);
        self.bias.revoke(&watch.meter.readers);
        Some(f(&mut guard))
    }

    fn write_blocking<R>(
        &self,
        watch: &LatchWatch<'_>,
        mut grip: Grip<&PingLock>,
        f: impl FnOnce(&mut T) -> R,
    ) -> R {
        convert(watch, grip.set_blocking());
        // SAFETY: `grip` holds this latch's lock for writing.
        let result = f(unsafe { self.peek_mut() });
        if self.respins {
            convert(watch, grip.clear_blocking());
        }
        result
    }

    /// # Safety
    /// The caller holds `ping`, and no reference from [`Latch::peek_mut`] is in use.
    unsafe fn peek(&self) -> &T {
        // SAFETY: no thread takes the lock of `data` if there is a `ping`, and readers and writers
        // of `ping` exclude each other.
        unsafe { &*self.data.data_ptr() }
    }

    /// # Safety
    /// The caller holds `ping` for writing, and no other reference from `peek` or `peek_mut` is in
    /// use.
    #[allow(clippy::mut_from_ref)]
    unsafe fn peek_mut(&self) -> &mut T {
        // SAFETY: as above; there is one holder for writing, and no other holder beside it.
        unsafe { &mut *self.data.data_ptr() }
    }
}

fn convert(watch: &LatchWatch<'_>, done: bool) {
    if done {
        watch.events.converted();
    }
}

/// Takes the lock, waiting as long as necessary.
fn grip<P: HasPing>(watch: &LatchWatch<'_>, kind: Kind, owner: P, mode: Mode) -> Grip<P> {
    watch.took(kind);
    watch.events.called(kind);
    match Grip::try_take(owner, mode) {
        Ok(grip) => grip,
        Err(owner) => watch.timed(kind, || Grip::take(owner, mode)),
    }
}

/// An object with a latch, through which a path holds its nodes.
///
/// # Safety
/// The object always has the same latch, which lives as long as the object.
pub(crate) unsafe trait Latched {
    type Value;

    fn latch(&self) -> &Latch<Self::Value>;
}

impl<O: Latched> HasPing for O {
    fn ping(&self) -> &PingLock {
        self.latch().ping.as_deref().expect("only trees with this kind of latch hold paths")
    }
}

/// A latched node on a path.
pub(crate) struct Held<O: Latched>(Grip<O>);

impl<O: Latched> Held<O> {
    /// Spins while holders spin. Returns the owner if a holder blocks.
    pub(crate) fn try_take(watch: &LatchWatch<'_>, owner: O, mode: Mode) -> Result<Held<O>, O> {
        let kind = owner.latch().kind(mode);
        let grip = match Grip::try_take(owner, mode) {
            Ok(grip) => grip,
            Err(owner) if owner.ping().is_blocked(mode) => return Err(owner),
            Err(owner) => watch.timed(kind, || (Grip::spin_take(owner, mode), 0))?,
        };
        watch.took(kind);
        Ok(Held(grip))
    }

    /// Takes the latch, waiting as long as necessary.
    pub(crate) fn take(watch: &LatchWatch<'_>, owner: O, mode: Mode) -> Held<O> {
        let kind = owner.latch().kind(mode);
        Held(grip(watch, kind, owner, mode))
    }

    pub(crate) fn owner(&self) -> &O {
        self.0.owner()
    }

    pub(crate) fn node(&self) -> &O::Value {
        // SAFETY: the grip holds this latch's lock, and a reference from `node_mut` would borrow
        // `self`.
        unsafe { self.0.owner().latch().peek() }
    }

    pub(crate) fn node_mut(&mut self) -> &mut O::Value {
        assert!(self.0.mode() == Mode::Write, "changes need a write latch");
        // SAFETY: the grip holds this latch's lock for writing, and the borrow of `self` allows one
        // reference at a time.
        unsafe { self.0.owner().latch().peek_mut() }
    }

    pub(crate) fn set_blocking(&mut self, watch: &LatchWatch<'_>) {
        convert(watch, self.0.set_blocking());
    }

    pub(crate) fn clear_blocking(&mut self, watch: &LatchWatch<'_>) {
        convert(watch, self.0.clear_blocking());
    }
}

#[cfg(test)]
#[path = "latch_tests.rs"]
mod tests;
