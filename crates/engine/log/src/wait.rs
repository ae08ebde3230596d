//! Waiters: sleeping threads, each woken by the thread that has its result, and callbacks.
//!
//! Each waiting thread has its own parker. A completed write wakes exactly the threads whose force
//! it completes, and one more to lead the next write. The rejected alternative is one condition
//! variable for all: each completion would wake every waiter, and most of them would go back to
//! sleep.

use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{Lsn, Result};
use std::sync::Arc;
use std::time::Duration;

pub(crate) enum Signal {
    /// There may be a batch to write and a free slot: the waiter must check again.
    Look,
    /// The wait is over, with this result.
    Done(Result<()>),
}

pub(crate) struct Parker {
    signal: Mutex<Option<Signal>>,
    woken: Condvar,
}

impl Parker {
    pub(crate) fn new() -> Arc<Parker> {
        Arc::new(Parker { signal: Mutex::new(Rank::Leaf, None), woken: Condvar::new() })
    }

    /// Wakes the waiter. A signal stays until the waiter takes it; a result is never overwritten.
    pub(crate) fn signal(&self, signal: Signal) {
        let mut slot = self.signal.lock();
        if !matches!(*slot, Some(Signal::Done(_))) {
            *slot = Some(signal);
        }
        drop(slot);
        self.woken.notify_one();
    }

    pub(crate) fn wait(&self) -> Signal {
        let mut slot = self.signal.lock();
        loop {
            if let Some(signal) = slot.take() {
                return signal;
            }
            self.woken.wait(&mut slot);
        }
    }

    /// Returns `None` if no signal arrived within `timeout`.
    pub(crate) fn wait_for(&self, timeout: Duration) -> Option<Signal> {
        let mut slot = self.signal.lock();
        if slot.is_none() {
            self.woken.wait_for(&mut slot, timeout);
        }
        slot.take()
    }
}

/// The function that receives the result of an asynchronous force.
pub(crate) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// A force that waits until the durable LSN reaches `target`.
pub(crate) struct ForceWaiter {
    pub target: Lsn,
    pub kind: WaiterKind,
}

/// How the result of a force is delivered.
pub(crate) enum WaiterKind {
    Thread(Arc<Parker>),
    Callback(Callback),
}

/// Wake-ups that are collected under the state lock and sent after it is released, so that a woken
/// thread does not find the lock taken.
#[derive(Default)]
pub(crate) struct Wake {
    pub signals: Vec<(Arc<Parker>, Signal)>,
    /// Whether a writer thread must lead a write.
    pub writer: bool,
    /// Whether a writer thread must deliver results.
    pub answers: bool,
    /// Whether every writer thread must check for work.
    pub writers_all: bool,
}

impl Wake {
    pub(crate) fn fire(self, writers: &Condvar) {
        if self.writers_all {
            writers.notify_all();
        } else if self.writer || self.answers {
            writers.notify_one();
        }
        for (parker, signal) in self.signals {
            parker.signal(signal);
        }
    }
}
