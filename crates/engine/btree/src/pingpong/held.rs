//! A latch whose value a [`PingLock`] guards, and a node that a path holds by it.
//!
//! # The unsafe code
//! [`Latch::peek`] and [`Latch::peek_mut`] return the value of a latch whose [`PingLock`] the
//! caller holds. In this mode no thread takes the lock around the value. Taking it as well, always
//! uncontended, would be the safe alternative, but would add its cost to one of the kinds that are
//! compared.

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
        // SAFETY: `_grip` holds this latch's lock.
        f(unsafe { self.peek() })
    }

    /// [`Latch::read`] without statistics, for the pointer to the root in a tree that holds paths:
    /// btrfs reads that pointer without a latch.
    pub(crate) fn read_uncounted<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        let ping = self.ping.as_deref().expect("only trees with this kind of latch hold paths");
        let _grip = Grip::take(&ping.lock, Mode::Read);
        // SAFETY: `_grip` holds this latch's lock.
        f(unsafe { self.peek() })
    }

    /// `f` may take long, so the latch is converted to a blocking one for it.
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
        // SAFETY: `grip` holds this latch's lock for writing.
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
pub(super) unsafe trait Latched {
    type Value;

    fn latch(&self) -> &Latch<Self::Value>;
}

// SAFETY: the latch is a field of the frame, and the frame does not move.
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
