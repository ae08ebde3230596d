//! A latch whose value a [`PingLock`] guards, and a node that a path holds through its latch.
//!
//! # The unsafe code
//! [`Latch::peek`] and [`Latch::peek_mut`] return the value of a latch whose [`PingLock`] the
//! caller holds. In a tree with these latches no thread takes the lock around the value. The safe
//! alternative is to take that lock as well, always uncontended. It would add a cost to only one of
//! the kinds that are compared.

use super::guard::PingGuard;
use super::lock::{Grip, HasPing, Mode, PingLock};
use crate::frame::{Frame, Node};
use crate::latch::{Latch, LatchWatch};
use crate::stats::Kind;
use std::sync::Arc;

impl<T> Latch<T> {
    fn kind(&self, mode: Mode) -> Kind {
        match mode {
            Mode::Read => self.reads(),
            Mode::Write => self.writes(),
        }
    }

    pub(crate) fn read_spinning<R>(
        &self,
        watch: &LatchWatch<'_>,
        ping: &PingGuard,
        f: impl FnOnce(&T) -> R,
    ) -> R {
        let _grip = grip(watch, self.reads(), &ping.lock, Mode::Read);
        // SAFETY: `_grip` holds this latch's lock for reading, so no thread has a mutable
        // reference.
        f(unsafe { self.peek() })
    }

    /// Does what [`Latch::read`] does, without statistics. Used for the pointer to the root,
    /// because btrfs reads that pointer without a latch.
    pub(crate) fn read_uncounted<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        let ping = self.ping.as_deref().expect("only trees with this kind of latch hold paths");
        let _grip = Grip::take(&ping.lock, Mode::Read);
        // SAFETY: `_grip` holds this latch's lock for reading, so no thread has a mutable
        // reference.
        f(unsafe { self.peek() })
    }

    /// Runs `f` with exclusive access. The lock is converted to blocking, because `f` may take
    /// long.
    pub(crate) fn write_spinning<R>(
        &self,
        watch: &LatchWatch<'_>,
        ping: &PingGuard,
        f: impl FnOnce(&mut T) -> R,
    ) -> R {
        let grip = grip(watch, self.writes(), &ping.lock, Mode::Write);
        self.write_blocking(watch, ping.respins, grip, f)
    }

    pub(crate) fn try_write_spinning<R>(
        &self,
        watch: &LatchWatch<'_>,
        ping: &PingGuard,
        f: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let grip = Grip::try_take(&ping.lock, Mode::Write).ok()?;
        watch.took(self.writes());
        Some(self.write_blocking(watch, ping.respins, grip, f))
    }

    fn write_blocking<R>(
        &self,
        watch: &LatchWatch<'_>,
        respins: bool,
        mut grip: Grip<&PingLock>,
        f: impl FnOnce(&mut T) -> R,
    ) -> R {
        convert(watch, grip.set_blocking());
        // SAFETY: `grip` holds this latch's lock for writing, so no other reference exists.
        let result = f(unsafe { self.peek_mut() });
        if respins {
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
        // SAFETY: no thread takes the lock of `data` if there is a `ping`. The caller holds `ping`
        // for writing, which excludes all other holders, and uses no other reference.
        unsafe { &mut *self.data.data_ptr() }
    }
}

fn convert(watch: &LatchWatch<'_>, done: bool) {
    if done {
        watch.events.converted();
    }
}

/// Takes the lock, waiting as long as necessary, and counts the call.
fn grip<P: HasPing>(watch: &LatchWatch<'_>, kind: Kind, owner: P, mode: Mode) -> Grip<P> {
    watch.took(kind);
    watch.events.called(kind);
    match Grip::try_take(owner, mode) {
        Ok(grip) => grip,
        Err(owner) => watch.timed(kind, || Grip::take(owner, mode)),
    }
}

/// An object with a latch. A path holds its nodes through such objects.
///
/// # Safety
/// The object always has the same latch, which lives as long as the object.
pub(super) unsafe trait Latched {
    type Value;

    fn latch(&self) -> &Latch<Self::Value>;
}

// SAFETY: the latch is a field of the frame. The `Arc` keeps the frame alive and never moves it.
unsafe impl Latched for Arc<Frame> {
    type Value = Node;

    fn latch(&self) -> &Latch<Node> {
        &self.latch
    }
}

impl<O: Latched> HasPing for O {
    fn ping(&self) -> &PingLock {
        &self.latch().ping.as_deref().expect("only trees with this kind of latch hold paths").lock
    }
}

/// A latched node on a path.
pub(super) struct Held<O: Latched>(Grip<O>);

impl<O: Latched> Held<O> {
    /// Takes the latch, spinning as long as holders spin. Returns the owner if a holder blocks.
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
        // SAFETY: the grip holds this latch's lock. A mutable reference from `node_mut` would
        // borrow `self` exclusively, so none exists during the shared borrow.
        unsafe { self.0.owner().latch().peek() }
    }

    pub(crate) fn node_mut(&mut self) -> &mut O::Value {
        assert!(self.0.mode() == Mode::Write, "changes need a write latch");
        // SAFETY: the grip holds this latch's lock for writing, and the exclusive borrow of `self`
        // allows one reference at a time.
        unsafe { self.0.owner().latch().peek_mut() }
    }

    pub(crate) fn set_blocking(&mut self, watch: &LatchWatch<'_>) {
        convert(watch, self.0.set_blocking());
    }

    pub(crate) fn clear_blocking(&mut self, watch: &LatchWatch<'_>) {
        convert(watch, self.0.clear_blocking());
    }
}
