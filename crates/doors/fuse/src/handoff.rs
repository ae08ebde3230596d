//! Decides whether the receiver returns its turn before it waits.
//!
//! Returning the turn wakes a worker. That is useless if no request arrives before the wait is
//! over. So it is with one client, and with many clients that write one file, because the kernel
//! holds the file's lock across FSYNC. The woken worker then only delays the device write for which
//! the client waits.
//!
//! So after many consecutive short waits during which no request arrived, the receiver keeps its
//! turn. It returns the turn again after the first wait that was not short or that delayed a
//! request. A wait has delayed a request if the receiver finds a request immediately after its
//! reply, and that request is from another thread than the one that gets the reply. So about one
//! wait in [`IN_A_ROW`] delays a request, and the watcher of [`crate::pool`] bounds the delay.

use std::cell::RefCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Consecutive useless hand-offs after which the receiver keeps its turn.
const IN_A_ROW: u32 = 16;
/// A wait below this is short, so that it may delay other requests: the time of some writes of a
/// fast device.
const SHORT: Duration = Duration::from_micros(500);

/// Slightly more than the time to send a reply and read the next request. A request that is found
/// later may be a consequence of the reply: its thread may have waited for the thread that got the
/// reply, for example for a lock.
const AT_ONCE: Duration = Duration::from_micros(15);

/// A time, and the number of requests received before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) received: u64,
}

/// A wait of the receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) began: Moment,
    /// The moment just before the reply; `None` if there was no reply.
    pub(crate) ended: Option<Moment>,
    /// Whether the receiver kept its turn.
    pub(crate) kept: bool,
}

thread_local! {
    static BEFORE_ANSWERS: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Sets a function that the calling thread calls just before each reply that it sends.
pub(crate) fn before_answers(call: impl Fn() + 'static) {
    BEFORE_ANSWERS.set(Some(Box::new(call)));
}

/// Must be called before the calling thread sends a reply.
pub(crate) fn answering() {
    BEFORE_ANSWERS.with_borrow(|call| {
        if let Some(call) = call {
            call();
        }
    });
}

/// The number of consecutive useless hand-offs.
#[derive(Default)]
pub(crate) struct HandOff {
    useless: AtomicU32,
}

impl HandOff {
    pub(crate) fn keeps(&self) -> bool {
        self.useless.load(Relaxed) >= IN_A_ROW
    }

    /// Records a wait that is over. `looked` is the present moment: the reply is sent and, if the
    /// turn was kept, the receiver has read the next request. `another` means that the next request
    /// is from another thread than the one that got the reply.
    pub(crate) fn learn(&self, wait: Wait, looked: Moment, another: bool) {
        let ended = wait.ended.unwrap_or(looked);
        let short = ended.at.saturating_sub(wait.began.at) < SHORT;
        let at_once = looked.at.saturating_sub(ended.at) < AT_ONCE;
        let waited_for = if wait.kept { another && at_once } else { ended.received > wait.began.received };
        if !short || waited_for {
            self.useless.store(0, Relaxed);
        } else if !wait.kept {
            self.useless.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "handoff_tests.rs"]
mod tests;
