//! Requests to the background thread for a checkpoint.

use super::cause::CheckpointCause;
use kedge_base::lock::{Condvar, Mutex, Rank};
use std::time::Duration;

/// The pending request. There is at most one: a checkpoint serves all requests that precede it.
pub(crate) struct Requests {
    pending: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Default)]
struct Pending {
    wanted: Option<CheckpointCause>,
    stop: bool,
}

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests { pending: Mutex::new(Rank::Leaf, Pending::default()), changed: Condvar::new() }
    }

    /// The cause of the pending request, which the thread has not served yet.
    #[cfg(test)]
    pub(crate) fn wanted(&self) -> Option<CheckpointCause> {
        self.pending.lock().wanted
    }

    /// Records a request and wakes the thread, unless a request is pending already.
    pub(crate) fn add(&self, cause: CheckpointCause) {
        let mut pending = self.pending.lock();
        if pending.wanted.is_none() {
            pending.wanted = Some(cause);
            self.changed.notify_one();
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        let mut pending = self.pending.lock();
        pending.stop = true;
        self.changed.notify_all();
    }

    /// Sleeps until a checkpoint is requested. Returns `None` when the store is dropped.
    pub(crate) fn next(&self) -> Option<CheckpointCause> {
        let mut pending = self.pending.lock();
        loop {
            match pending.wanted {
                _ if pending.stop => return None,
                Some(cause) => return Some(cause),
                None => self.changed.wait(&mut pending),
            }
        }
    }

    /// Pauses for `time`, or until the store is dropped. A request stays pending meanwhile, so that
    /// a further request does not wake the thread.
    pub(crate) fn pause(&self, time: Duration) {
        let mut pending = self.pending.lock();
        if !time.is_zero() && !pending.stop {
            pending.wanted = Some(CheckpointCause::LogSpace);
            self.changed.wait_for(&mut pending, time);
        }
    }

    /// Ends the pending request. `next`: cause of a checkpoint that must follow, if there is one.
    pub(crate) fn served(&self, next: Option<CheckpointCause>) {
        self.pending.lock().wanted = next;
    }
}
