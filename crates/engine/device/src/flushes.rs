//! Shares the flushes of a device between the threads that need one, and makes the first failure
//! final.
//!
//! A kernel that cannot write a page of its cache drops the page and reports the error to one
//! flush. Later flushes succeed, although the bytes are lost. A disk or a server may do the same.
//! So after a failed flush each later flush and durable write fails with the same error number,
//! until the device is opened again.
//!
//! Two concurrent flushes may wait for the same page, and only one of them gets the error. The
//! other one may return before the error can be recorded. So one flush runs at a time, and its
//! result is recorded before the next one begins. Callers that arrive meanwhile share the next one.
//!
//! Lock: one leaf, not held during a flush. Plain writes do not use this module, and a durable
//! write reads one number before and after it.

use kedge_base::{Error, Result, without_panic};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicI32, Ordering};

#[derive(Default)]
pub(crate) struct Flushes {
    /// The error number of the first flush that failed; 0 if none has failed.
    failed: AtomicI32,
    state: Mutex<State>,
    /// Notified when a flush has ended.
    ended: Condvar,
}

/// Flushes are numbered from 1.
#[derive(Default)]
struct State {
    /// The number of the last flush that has begun.
    begun: u64,
    /// Whether that flush has not ended yet.
    running: bool,
    /// The number of the last flush that succeeded.
    succeeded: u64,
}

impl Flushes {
    /// Fails if a flush has failed. A durable write calls this before it begins and after it has
    /// succeeded.
    pub fn check(&self) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(Error::Io { op: "flush", offset: 0, len: 0, errno }),
        }
    }

    /// Records the failure of a flush, if it is the first. Only an error number is recorded: a
    /// device that returns any other error fails each later request by itself.
    pub fn fail(&self, error: &Error) {
        let Error::Io { errno, .. } = error else { return };
        let _locked = self.state.lock();
        if self.failed.load(Ordering::Relaxed) == 0 {
            self.failed.store(*errno, Ordering::Release);
        }
    }

    /// Returns when a flush that began during this call has ended. `flush` is called if no other
    /// thread makes that flush.
    pub fn run(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        // The running flush may have begun before the caller's last write completed.
        let wanted = state.begun + 1;
        loop {
            self.check()?;
            if state.succeeded >= wanted {
                return Ok(());
            }
            if !state.running {
                break;
            }
            self.ended.wait(&mut state);
        }
        state.begun += 1;
        state.running = true;
        let number = state.begun;
        drop(state);
        // Even if the flush panics, the threads that wait for it go on.
        let result = without_panic("a flush", flush);
        if let Err(e) = &result {
            self.fail(e);
        }
        let result = result.and_then(|()| self.check());
        let mut state = self.state.lock();
        state.running = false;
        if result.is_ok() {
            state.succeeded = number;
        }
        drop(state);
        self.ended.notify_all();
        result
    }
}

#[cfg(test)]
#[path = "flushes_tests.rs"]
mod tests;
