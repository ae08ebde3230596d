//! Whether the receiver passes its turn on before it waits.
//!
//! Passing it on wakes a worker. That is in vain if no request comes before the wait is over: with
//! one client, and with many that write one file, since the kernel holds the file's lock across
//! FSYNC. The woken worker then only delays the device write that the client waits for.
//!
//! So when many waits in a row were short and no request came meanwhile, the receiver keeps its
//! turn. It passes it on again after the first wait that was not short, or for whose end a request
//! had to wait: the receiver finds that request right after its answer, and it is not of the thread
//! that got the answer. So about one wait of [`IN_A_ROW`] delays a request, and the watcher of
//! [`crate::crew`] bounds the delay.

use std::cell::RefCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Waits in vain for which a turn was passed on, after which it is kept.
const IN_A_ROW: u32 = 16;
/// Other requests may be kept waiting for so long: some writes of a fast device.
const SHORT: Duration = Duration::from_micros(500);

/// An answer and the next look take less. What is found later may be of somebody who waited for
/// the thread that got the answer, as for a lock.
const AT_ONCE: Duration = Duration::from_micros(15);

/// A time, and the requests received until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) received: u64,
}

/// A wait of the receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) began: Moment,
    /// Just before the answer.
    pub(crate) ended: Option<Moment>,
    /// The turn was kept.
    pub(crate) kept: bool,
}

thread_local! {
    static BEFORE_ANSWERS: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Sets what the calling thread does just before each answer that it gives.
pub(crate) fn before_answers(call: impl Fn() + 'static) {
    BEFORE_ANSWERS.set(Some(Box::new(call)));
}

/// The calling thread is about to answer a request.
pub(crate) fn answering() {
    BEFORE_ANSWERS.with_borrow(|call| {
        if let Some(call) = call {
            call();
        }
    });
}

/// What the last waits were like.
#[derive(Default)]
pub(crate) struct Habit {
    in_vain: AtomicU32,
}

impl Habit {
    pub(crate) fn keeps(&self) -> bool {
        self.in_vain.load(Relaxed) >= IN_A_ROW
    }

    /// `wait` is over. `looked`: now, when its request is answered and, if the turn was kept, the
    /// receiver has looked for the next request. `another`: it found one of another thread.
    pub(crate) fn learn(&self, wait: Wait, looked: Moment, another: bool) {
        let ended = wait.ended.unwrap_or(looked);
        let short = ended.at.saturating_sub(wait.began.at) < SHORT;
        let at_once = looked.at.saturating_sub(ended.at) < AT_ONCE;
        let waited_for = if wait.kept { another && at_once } else { ended.received > wait.began.received };
        if !short || waited_for {
            self.in_vain.store(0, Relaxed);
        } else if !wait.kept {
            self.in_vain.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "habit_tests.rs"]
mod tests;
