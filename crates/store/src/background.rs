//! The thread that makes checkpoints in the background, and what it does when they free nothing.
//!
//! # Checkpoints that free nothing
//! Data in the log that cannot be written to its place holds the tail. A checkpoint is then made without it and the log behind
//! that data stays as full as it was. Whoever waits for log space asks again and again, and so would the thread: thousands of
//! checkpoints in a second, for nothing. So after one that did not move the tail it rests, twice as long each time, up to a bound.
//!
//! The space may still come: the device may answer again, or somebody deletes the file. While nobody waits that is good enough.
//! Somebody who waits must not do so for ever. After [`Retry::tries`] such checkpoints in a row, with somebody waiting all the
//! time, the store shuts down with an error that names the file and what was said of its data. A mount anew starts from what is
//! durable. To go on without the data instead would be to lose what an fsync has promised; to refuse only those who wait would
//! refuse every later operation as well, each after a wait of its own.
//!
//! A tail that nothing holds is another matter: then the space is taken by reservations, and who has them gives it back.

use crate::checkpoint::CheckpointCause;
use crate::{Store, Wake};
use kedge_base::{BLOCK_SIZE, Error, Lsn, without_panic};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How checkpoints that free nothing are repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    /// Rest after the first.
    pub first: Duration,
    /// Longest rest.
    pub longest: Duration,
    /// How many are made while somebody waits.
    pub tries: u32,
}

impl Default for Retry {
    /// Some eight seconds in all.
    fn default() -> Retry {
        Retry { first: Duration::from_millis(1), longest: Duration::from_millis(250), tries: 40 }
    }
}

/// What the thread knows of its last checkpoints.
#[derive(Default)]
struct Progress {
    tail: Lsn,
    /// Checkpoints in a row that did not move the tail.
    fruitless: u32,
    /// Of these, the last ones during which somebody waited for what lies behind it.
    stuck: u32,
}

#[derive(PartialEq, Eq, Debug)]
enum Next {
    Rest(Duration),
    GiveUp,
}

impl Progress {
    /// `tail`: behind a checkpoint. `held`: data in the log holds it there. `waiting`: somebody waits for log space.
    fn after(&mut self, tail: Lsn, held: bool, waiting: bool, retry: &Retry) -> Next {
        if tail != self.tail {
            *self = Progress { tail, ..Progress::default() };
            return Next::Rest(Duration::ZERO);
        }
        let doubled = retry.first.saturating_mul(1 << self.fruitless.min(16));
        self.fruitless = self.fruitless.saturating_add(1);
        self.stuck = if held && waiting { self.stuck + 1 } else { 0 };
        if self.stuck >= retry.tries { Next::GiveUp } else { Next::Rest(doubled.min(retry.longest)) }
    }
}

impl Store {
    /// Body of the background thread. Holds the store only while it works, so that dropping the store ends it.
    pub(crate) fn background(store: Weak<Store>, wake: Arc<Wake>) {
        let mut progress = Progress::default();
        while let Some(cause) = next_wish(&wake) {
            let Some(store) = store.upgrade() else { return };
            // A checkpoint that panics is an error already. Whatever else does must not end the thread unseen.
            let rest =
                without_panic("the checkpoint thread", || Ok(store.background_turn(cause, &mut progress)));
            let rest = rest.unwrap_or_else(|e| {
                store.shutdown(&e);
                Duration::ZERO
            });
            // Wishes that came while it ran are met by it, unless the log is still short: then go on.
            let again = store.check_alive().is_ok() && store.log.has_waiters();
            drop(store);
            pause(&wake, rest);
            wake.flag.lock().wanted = again.then_some(CheckpointCause::LogSpace);
        }
    }

    /// Returns how long to rest.
    fn background_turn(&self, cause: CheckpointCause, progress: &mut Progress) -> Duration {
        if let Err(e) = self.checkpoint(cause) {
            // It has shut the store down, or that was done before: whoever waits has been told.
            tracing::error!("background checkpoint: {e}");
            return Duration::ZERO;
        }
        let tail = self.log.tail_lsn();
        let held = self.residents.oldest().is_some_and(|oldest| oldest <= tail);
        let retry = *self.checkpoint.retry.lock();
        match progress.after(tail, held, self.log.has_waiters(), &retry) {
            Next::Rest(rest) => rest,
            Next::GiveUp => {
                self.shutdown(&self.stuck_error());
                Duration::ZERO
            }
        }
    }

    /// What holds the tail, and why.
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

/// Sleeps until a checkpoint is wanted. `None`: the store ends.
fn next_wish(wake: &Wake) -> Option<CheckpointCause> {
    let mut flag = wake.flag.lock();
    loop {
        match flag.wanted {
            _ if flag.stop => return None,
            Some(cause) => return Some(cause),
            None => wake.cond.wait(&mut flag),
        }
    }
}

/// Rests, or until the store ends. A wish is pending all the time, so that a further one wakes nobody.
fn pause(wake: &Wake, rest: Duration) {
    let mut flag = wake.flag.lock();
    if !rest.is_zero() && !flag.stop {
        flag.wanted = Some(CheckpointCause::LogSpace);
        wake.cond.wait_for(&mut flag, rest);
    }
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
