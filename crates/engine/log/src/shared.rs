//! The parts of the log that its operations share: the locked state, the components that the log
//! calls, and shutdown.

use crate::ring::Ring;
use crate::room::Room;
use crate::stage::Stage;
use crate::state::{State, after_shutdown};
use crate::stats::{LogStats, Recent};
use crate::tip::Tip;
use crate::wait::Wake;
use kedge_base::atomic::Ordering::{Acquire, Release};
use kedge_base::atomic::{AtomicBool, AtomicU64};
use kedge_base::lock::{Condvar, Mutex};
use kedge_base::{Clock, Epoch, Error, Result};
use kedge_device::Device;
use kedge_format::logwrite::LogKey;
use std::sync::{Arc, OnceLock, Weak};

/// Orders data writes before the records that refer to them.
///
/// A log write with a record that may refer to data in place begins after [`Barrier::barrier`]. One
/// without such a record begins after [`Barrier::settle`], and shares one flush with the data that
/// waits for one.
pub trait Barrier: Send + Sync {
    /// Makes every data write that completed before the call durable: flushes the device if a data
    /// write has completed since the last flush. Several threads may call it concurrently. A caller
    /// may share another thread's flush only if that flush began after the call.
    ///
    /// The barrier also waits for threads that have appended a record and not yet applied it. A
    /// thread that cannot apply its record shuts the log down before the barrier returns.
    fn barrier(&self) -> Result<()>;

    /// Waits for callers as [`Barrier::barrier`] does, and flushes nothing. Returns whether data
    /// that has been written waits for a flush. If so, the log write that follows is made without
    /// FUA, and [`Barrier::flush_after`] is called after it.
    fn settle(&self) -> Result<bool>;

    /// Makes every data write and every log write that completed before the call durable, by a
    /// flush that begins after the call.
    fn flush_after(&self) -> Result<()>;
}

/// The component that can free log space.
pub trait SpacePressure: Send + Sync {
    /// Called when a reservation is about to wait for log space: starts a checkpoint or speeds up
    /// the running one. Must not block. The log repeats the call during the wait.
    fn need_space(&self);
}

/// The state that the log and its writer threads share.
pub(crate) struct Shared {
    pub device: Arc<dyn Device>,
    pub clock: Arc<dyn Clock>,
    pub barrier: Arc<dyn Barrier>,
    pub key: LogKey,
    pub epoch: Epoch,
    pub ring: Ring,
    /// The `room` and `tip` of `state`, for access without the lock.
    pub room: Arc<Room>,
    pub tip: Arc<Tip>,
    pub stage: Stage,
    pub state: Mutex<State>,
    /// Condition variable on which writer threads sleep.
    pub writers: Condvar,
    /// Condition variable on which reservations sleep while another thread writes zeros ahead of
    /// the log.
    pub backed: Condvar,
    pub pressure: Mutex<Option<Weak<dyn SpacePressure>>>,
    // Copies of fields of `state`, for readers without the lock.
    pub durable: AtomicU64,
    pub tail: AtomicU64,
    pub dead: AtomicBool,
    /// Time of the shutdown, in seconds since 1970.
    pub dead_since: OnceLock<i64>,
    pub stats: LogStats,
    pub recent: Recent,
}

/// The log of a mounted image, opened for writing.
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

impl Shared {
    /// Does what [`State::check_alive`] does; takes the lock only after a shutdown.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.dead.load(Acquire) { self.state.lock().check_alive() } else { Ok(()) }
    }

    /// Latches shutdown in the locked state. Waiting forces fail with `to_waiters`.
    pub(crate) fn latch(&self, state: &mut State, reason: &Error, to_waiters: &Error, wake: &mut Wake) {
        // A second shutdown changes neither the time nor the reason of the first.
        self.dead_since.get_or_init(|| self.clock.now().sec);
        state.latch(reason, to_waiters, wake);
        self.dead.store(true, Release);
    }

    pub(crate) fn shut_down(&self, reason: &Error) {
        let mut wake = Wake::default();
        let mut state = self.state.lock();
        self.latch(&mut state, reason, &after_shutdown(reason), &mut wake);
        drop(state);
        wake.fire(&self.writers);
    }
}
