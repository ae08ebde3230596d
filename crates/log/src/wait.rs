//! One sleeping thread, woken by whoever has its answer.
//!
//! A parker each, instead of one condition variable for all: a completed write then wakes exactly those it answers, and one
//! more to lead the next write, where a broadcast would wake everyone to sleep again.

use kedge_base::Result;
use kedge_base::lock::{Condvar, Mutex, Rank};
use std::sync::Arc;
use std::time::Duration;

pub(crate) enum Signal {
    /// There may be something to write and a free slot: look again.
    Look,
    /// The wait is over.
    Done(Result<()>),
}

pub(crate) struct Parker {
    signal: Mutex<Option<Signal>>,
    woken: Condvar,
}

impl Parker {
    pub fn new() -> Arc<Parker> {
        Arc::new(Parker { signal: Mutex::new(Rank::Leaf, None), woken: Condvar::new() })
    }

    /// A signal stays until it is taken; an answer is never overwritten.
    pub fn signal(&self, signal: Signal) {
        let mut slot = self.signal.lock();
        if !matches!(*slot, Some(Signal::Done(_))) {
            *slot = Some(signal);
        }
        drop(slot);
        self.woken.notify_one();
    }

    pub fn wait(&self) -> Signal {
        let mut slot = self.signal.lock();
        loop {
            if let Some(signal) = slot.take() {
                return signal;
            }
            self.woken.wait(&mut slot);
        }
    }

    /// `None` when `timeout` passed without a signal.
    pub fn wait_for(&self, timeout: Duration) -> Option<Signal> {
        let mut slot = self.signal.lock();
        if slot.is_none() {
            self.woken.wait_for(&mut slot, timeout);
        }
        slot.take()
    }
}

/// Wake-ups gathered under the state lock and fired behind it, so that nobody wakes only to find the lock taken.
#[derive(Default)]
pub(crate) struct Wake {
    pub signals: Vec<(Arc<Parker>, Signal)>,
    /// A writer thread has work.
    pub writer: bool,
    /// Every writer thread has to look.
    pub writers_all: bool,
}

impl Wake {
    pub fn fire(self, writers: &Condvar) {
        if self.writers_all {
            writers.notify_all();
        } else if self.writer {
            writers.notify_one();
        }
        for (parker, signal) in self.signals {
            parker.signal(signal);
        }
    }
}

/// Panics in debug builds when the calling thread holds a lock of `rank` or of one below it: it is about to wait, and must
/// not make those wait that need the lock.
pub(crate) fn assert_may_wait(rank: Rank) {
    if cfg!(debug_assertions) {
        drop(Mutex::new(rank, ()).lock());
    }
}
