//! The synchronisation primitives that the latch algorithms use. The model checker compiles the
//! same algorithms against its own primitives (`tests/loom.rs`).

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// One step of a spin loop. A thread that has spun for long yields its processor, because the
/// thread for which it waits may need it.
#[inline]
pub(crate) fn relax(looks: &mut u32) {
    *looks += 1;
    if looks.is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Threads that sleep until a condition holds.
#[cfg(feature = "historic")]
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    mutex: parking_lot::Mutex<()>,
    condvar: parking_lot::Condvar,
}

#[cfg(feature = "historic")]
impl WaitQueue {
    /// Sleeps until `done`, which is checked again after each [`WaitQueue::wake_all`]. Returns how
    /// often the thread was woken.
    pub(crate) fn sleep(&self, done: impl Fn() -> bool) -> u64 {
        let mut woken = 0;
        let mut guard = self.mutex.lock();
        while !done() {
            self.condvar.wait(&mut guard);
            woken += 1;
        }
        woken
    }

    pub(crate) fn wake_all(&self) {
        drop(self.mutex.lock());
        self.condvar.notify_all();
    }
}

/// A value under a short mutex. A thread that holds it uses nothing else of this module.
#[derive(Debug, Default)]
pub(crate) struct Locked<T>(parking_lot::Mutex<T>);

impl<T> Locked<T> {
    pub(crate) fn new(value: T) -> Locked<T> {
        Locked(parking_lot::Mutex::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.lock())
    }
}
