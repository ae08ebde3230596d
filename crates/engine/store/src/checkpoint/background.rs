//! The background checkpoint thread, and its policy when checkpoints free no log space.
//!
//! # Checkpoints that free nothing
//! Log-resident data that cannot be written in place holds the tail. A checkpoint is then made
//! without that data, and the log after it stays as full as before. Operations that wait for log
//! space keep requesting checkpoints. Without a limit the thread would run thousands of useless
//! checkpoints each second. So after a checkpoint that did not move the tail the thread pauses,
//! twice as long each time, up to a bound.
//!
//! Space may still become free: the device may recover, or the file may be deleted. While no
//! operation waits, the thread can wait for that. But no operation may wait forever. After
//! [`Retry::tries`] such checkpoints in a row, with an operation waiting during each, the store
//! shuts down. The error names the file and the reason. The next mount starts from what is durable.
//!
//! Two alternatives were rejected. Continuing without the data would lose what an fsync has
//! promised. Failing only the waiting operations would fail every later one as well, each after a
//! wait of its own.
//!
//! None of this applies if no log-resident data holds the tail. The space is then taken by
//! reservations, which running operations return.

use super::cause::{By, CheckpointCause};
use super::control::Retry;
use super::requests::Requests;
use crate::store::Store;
use kedge_base::{BLOCK_SIZE, Error, Lsn, without_panic};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The results of the thread's most recent checkpoints.
#[derive(Default)]
struct Progress {
    tail: Lsn,
    /// Number of the most recent checkpoints, in a row, that did not move the tail.
    fruitless: u32,
    /// Number of the most recent of these, in a row, at which log-resident data held the tail and
    /// an operation waited for space.
    stuck: u32,
}

#[derive(PartialEq, Eq, Debug)]
enum Next {
    Pause(Duration),
    GiveUp,
}

impl Progress {
    /// Records the result of a checkpoint: the `tail` after it, whether log-resident data is `held`
    /// there, and whether an operation is `waiting` for log space. Returns what the thread does
    /// next.
    fn after(&mut self, tail: Lsn, held: bool, waiting: bool, retry: &Retry) -> Next {
        if tail != self.tail {
            *self = Progress { tail, ..Progress::default() };
            return Next::Pause(Duration::ZERO);
        }
        let doubled = retry.first.saturating_mul(1 << self.fruitless.min(16));
        self.fruitless = self.fruitless.saturating_add(1);
        self.stuck = if held && waiting { self.stuck + 1 } else { 0 };
        if self.stuck >= retry.tries { Next::GiveUp } else { Next::Pause(doubled.min(retry.longest)) }
    }
}

impl Store {
    /// Body of the background thread. It holds a strong reference to the store only while it works,
    /// so the thread ends when the store is dropped.
    pub(crate) fn background(store: Weak<Store>, requests: Arc<Requests>) {
        let mut progress = Progress::default();
        while let Some(cause) = requests.next() {
            let Some(store) = store.upgrade() else { return };
            // A panic in a checkpoint is already returned as an error. A panic elsewhere must not
            // end the thread silently.
            let pause_for =
                without_panic("the checkpoint thread", || Ok(store.background_turn(cause, &mut progress)));
            let pause_for = pause_for.unwrap_or_else(|e| {
                store.shutdown(&e);
                Duration::ZERO
            });
            // The checkpoint serves the requests that arrived before its cut. If operations still
            // wait for log space, another one follows.
            let again = store.check_alive().is_ok() && store.log.has_waiters();
            drop(store);
            requests.pause(pause_for);
            requests.served(again.then_some(CheckpointCause::LogSpace));
        }
    }

    /// Runs one requested checkpoint. Returns how long the thread pauses afterwards.
    fn background_turn(&self, cause: CheckpointCause, progress: &mut Progress) -> Duration {
        if cause == CheckpointCause::Background && !self.is_still_due() {
            return Duration::ZERO;
        }
        if let Err(e) = self.checkpoint_by(cause, By::Background) {
            // Either the store is shut down, and waiting operations have got the error. Or a thread
            // that requested the checkpoint caused it to be deferred; the next checkpoint writes
            // its cut.
            tracing::error!("background checkpoint: {e}");
            return Duration::ZERO;
        }
        let tail = self.log.tail_lsn();
        let held = self.residents.oldest().is_some_and(|oldest| oldest <= tail);
        let retry = *self.checkpoint.retry.lock();
        match progress.after(tail, held, self.log.has_waiters(), &retry) {
            Next::Pause(time) => time,
            Next::GiveUp => {
                self.shutdown(&self.stuck_error());
                Duration::ZERO
            }
        }
    }

    /// Whether the reason for a background checkpoint still holds. Since the request an operation
    /// may have run a checkpoint, or a remount may have switched to `noasync_checkpoint`. A waiting
    /// operation is a reason too: its own request was dropped if one with the cause `Background`
    /// was already pending.
    fn is_still_due(&self) -> bool {
        self.log_below_threshold() || self.log.has_waiters()
    }

    /// The error of a shutdown because of a full log. Names the inode whose data holds the tail,
    /// and the reason.
    fn stuck_error(&self) -> Error {
        let inode = match self.residents.oldest_inode() {
            Some(ino) => format!("inode {ino}"),
            None => "an inode".into(),
        };
        let why = match &*self.checkpoint.unwritable.lock() {
            Some(e @ Error::Io { offset, .. }) => format!("block {}: {e}", offset / BLOCK_SIZE as u64),
            Some(e) => e.to_string(),
            None => "no reason was given".into(),
        };
        let what = format!("the log is full, and data in it of {inode} cannot be written in place ({why})");
        Error::Shutdown(what.into())
    }
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
