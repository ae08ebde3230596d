//! The latch of a node, and all unsafe code of the crate.
//!
//! The tree takes latches through [`Latch::read`] and [`Latch::write`], with a closure for what is done under
//! them. What the latch is like was decided when the tree was opened: with [`TreeLock::Rwlock`] and
//! [`TreeLock::Optimistic`] the reader-writer lock that holds the value, whose waiters sleep; with
//! [`TreeLock::Pingpong`] a [`PingLock`] beside it. What makes a descent optimistic is not the latch but that
//! it reads inner nodes without one: see [`crate::routes`] and [`child_of`].
//!
//! # The unsafe code
//! 1. [`Latch::peek`] and [`Latch::peek_mut`] give out the value of a latch whose [`PingLock`] the caller
//!    holds. The lock around the value is not taken in this mode by anybody. Rejected: to take it as well,
//!    always free, which would be safe but put its cost on one of the things to compare.
//! 2. [`Latch::read_visibly`] gives out the value to a reader that the writers look for in another place than
//!    the lock around it: see [`crate::visible`].
//! 3. [`child_of`] turns a word of a node's route table into a reference to the child's frame, which an
//!    active reader of the tree's epochs keeps alive.

use crate::epoch::Active;
use crate::frame::{Frame, Node};
use crate::pingpong::{Grip, HasPing, Mode, PingLock};
use crate::routes::{Look, Words};
use crate::stats::{Events, Kind, Meter, stripe};
use crate::tree_lock::TreeLock;
use crate::visible::Bias;
use parking_lot::RwLock;
use std::sync::Arc;

/// Guards the state of one node in memory. Not reentrant. Every acquisition is counted, and those that wait
/// are timed.
#[repr(C)]
pub(crate) struct Latch<T> {
    /// Of an inner node, for the statistics.
    inner: bool,
    /// Its users are readers that look at [`Meter::readers`] first: [`Latch::read_visibly`].
    bias: Bias,
    /// Guards `data` in place of its own lock.
    ping: Option<Box<PingLock>>,
    data: RwLock<T>,
}

/// Counts what one operation on the tree does with latches; the tree's counters see the sums when it is
/// dropped.
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

    /// `wait` returns what it waited for and how often it was woken.
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
    pub fn new(lock: TreeLock, inner: bool, value: T) -> Latch<T> {
        let ping = (lock == TreeLock::Pingpong).then(Box::default);
        Latch { inner, bias: Bias::default(), ping, data: RwLock::new(value) }
    }

    /// Access before anyone else knows the latch.
    pub fn get_mut(&mut self) -> &mut T {
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

    /// Runs `f` beside other readers.
    #[inline]
    pub fn read<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&T) -> R) -> R {
        let kind = self.kind(Mode::Read);
        if let Some(ping) = self.ping.as_deref() {
            let _grip = grip(watch, kind, ping, Mode::Read);
            // SAFETY: the grip is of this latch's lock.
            return f(unsafe { self.peek() });
        }
        watch.took(kind);
        let guard = match self.data.try_read() {
            Some(guard) => guard,
            // One wake-up is what the lock lets us know.
            None => watch.timed(kind, || (self.data.read(), 1)),
        };
        f(&guard)
    }

    /// As [`Latch::read`], for a latch that is often read and seldom written; not for one with a
    /// [`PingLock`].
    #[inline]
    pub fn read_visibly<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&T) -> R) -> R {
        let readers = &watch.meter.readers;
        if let Some(_visible) = self.bias.enter(readers, stripe()) {
            // SAFETY: writers of this latch, which all come with a watch of the same tree, revoke its bias before
            // they make a reference out of their guard, and revoking waits for `_visible` to be dropped.
            return f(unsafe { &*self.data.data_ptr() });
        }
        self.read(watch, |value| {
            self.bias.note_read();
            f(value)
        })
    }

    /// Runs `f` alone. It may take its time: a spinning latch becomes a blocking one for it.
    #[inline]
    pub fn write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> R {
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

    /// Runs `f` alone, or not at all if that would mean to wait.
    pub fn try_write<R>(&self, watch: &LatchWatch<'_>, f: impl FnOnce(&mut T) -> R) -> Option<R> {
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
        // SAFETY: the grip is of this latch's lock and for writing.
        let result = f(unsafe { self.peek_mut() });
        respin(watch, self.kind(Mode::Write), grip.clear_blocking());
        result
    }

    /// # Safety
    /// The caller holds `ping`, and does not hold it for writing with a [`Latch::peek_mut`] still in use.
    unsafe fn peek(&self) -> &T {
        // SAFETY: nobody takes the lock of `data` while there is a `ping`, and holders of that for reading
        // exclude those for writing.
        unsafe { &*self.data.data_ptr() }
    }

    /// # Safety
    /// The caller holds `ping` for writing, and uses no other reference that it got so.
    #[allow(clippy::mut_from_ref)]
    unsafe fn peek_mut(&self) -> &mut T {
        // SAFETY: as above; a holder for writing is alone.
        unsafe { &mut *self.data.data_ptr() }
    }
}

fn convert(watch: &LatchWatch<'_>, done: bool) {
    if done {
        watch.events.converted();
    }
}

/// To become spinning again is to take the lock again.
fn respin(watch: &LatchWatch<'_>, kind: Kind, done: bool) {
    if done {
        watch.events.converted();
        watch.took(kind);
    }
}

fn grip<'a>(watch: &LatchWatch<'_>, kind: Kind, owner: &'a PingLock, mode: Mode) -> Grip<&'a PingLock> {
    watch.took(kind);
    match Grip::try_take(owner, mode) {
        Ok(grip) => grip,
        Err(owner) => watch.timed(kind, || Grip::take(owner, mode)),
    }
}

impl HasPing for Arc<Frame> {
    fn ping(&self) -> &PingLock {
        self.latch.ping.as_deref().expect("only trees with this kind of latch hold paths")
    }
}

/// A latched node on a path.
pub(crate) struct Held(Grip<Arc<Frame>>);

impl Held {
    /// Gives the frame back if it would have to wait.
    pub fn try_take(watch: &LatchWatch<'_>, frame: Arc<Frame>, mode: Mode) -> Result<Held, Arc<Frame>> {
        let kind = frame.latch.kind(mode);
        let grip = Grip::try_take(frame, mode)?;
        watch.took(kind);
        Ok(Held(grip))
    }

    /// For who tried before.
    pub fn wait(watch: &LatchWatch<'_>, frame: Arc<Frame>, mode: Mode) -> Held {
        let kind = frame.latch.kind(mode);
        watch.took(kind);
        Held(watch.timed(kind, || Grip::take(frame, mode)))
    }

    pub fn frame(&self) -> &Arc<Frame> {
        self.0.owner()
    }

    pub fn node(&self) -> &Node {
        // SAFETY: the grip is of this frame's lock, and a reference from `node_mut` would borrow `self`.
        unsafe { self.frame().latch.peek() }
    }

    pub fn node_mut(&mut self) -> &mut Node {
        assert!(self.0.mode() == Mode::Write, "changes need a write latch");
        // SAFETY: the grip is of this frame's lock and for writing; it lends out one reference at a time.
        unsafe { self.frame().latch.peek_mut() }
    }

    pub fn set_blocking(&mut self, watch: &LatchWatch<'_>) {
        convert(watch, self.0.set_blocking());
    }

    pub fn clear_blocking(&mut self, watch: &LatchWatch<'_>) {
        let kind = self.frame().latch.kind(self.0.mode());
        respin(watch, kind, self.0.clear_blocking());
    }
}

/// Where an inner node sends a key, as read without its latch.
pub(crate) enum Step<'a> {
    Child(&'a Frame),
    Missing,
    Stale,
    Torn,
}

/// Asks the route table of `parent`, a frame that was found by this active reader (or one that outlives it).
#[inline]
pub(crate) fn child_of<'a>(parent: &'a Frame, key: &Words, _active: &'a Active<'_>) -> Step<'a> {
    let routes = parent.routes.as_ref().expect("inner nodes of an optimistic tree have route tables");
    match routes.look(key) {
        // SAFETY: route tables hold pointers out of `Arc<Frame>`s, of which `Node::published` keeps one as
        // long as the pointer is in the table, and which then goes to the tree's epochs. The reader was active
        // before it read the pointer, and stays so for `'a`; see the rule in `epoch`. A pointer that was in the
        // table is one to an initialised frame: it was stored after, and the look synchronised with the store.
        Look::Child(child) => Step::Child(unsafe { &*(child as usize as *const Frame) }),
        Look::Missing => Step::Missing,
        Look::Stale => Step::Stale,
        Look::Torn => Step::Torn,
    }
}

#[cfg(test)]
#[path = "latch_tests.rs"]
mod tests;
