//! The synchronisation primitives that the latch algorithms use. The model checker compiles the
//! same algorithms with its own primitives instead (`tests/loom.rs`).

pub(crate) use kedge_base::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use kedge_base::machine;
#[cfg(feature = "historic")]
use kedge_base::machine::Place;

/// One iteration of a spin loop. A thread that has spun for long yields its processor, because the
/// thread for which it waits may need that processor.
#[inline]
pub(crate) fn relax(looks: &mut u32) {
    *looks += 1;
    if machine::spin() {
        return;
    }
    if looks.is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// A queue of threads that sleep until a condition holds.
#[cfg(feature = "historic")]
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    mutex: parking_lot::Mutex<()>,
    condvar: parking_lot::Condvar,
}

#[cfg(feature = "historic")]
impl WaitQueue {
    fn lock(&self) -> parking_lot::MutexGuard<'_, ()> {
        let place = Place::of(&self.mutex);
        machine::take(place, false, || self.mutex.try_lock()).unwrap_or_else(|| self.mutex.lock())
    }

    /// Sleeps until `done` returns true; `done` is called again after each [`WaitQueue::wake_all`].
    /// Returns how often the thread was woken.
    pub(crate) fn sleep(&self, done: impl Fn() -> bool) -> u64 {
        let place = Place::of(&self.mutex);
        let mut woken = 0;
        let mut guard = self.lock();
        while !done() {
            let wait = machine::wait(Place::of(&self.condvar), place, guard, None, || self.mutex.try_lock());
            guard = match wait {
                Ok((guard, _)) => guard,
                Err(mut guard) => {
                    self.condvar.wait(&mut guard);
                    guard
                }
            };
            woken += 1;
        }
        drop(guard);
        machine::released(place);
        woken
    }

    pub(crate) fn wake_all(&self) {
        drop(self.lock());
        machine::released(Place::of(&self.mutex));
        if !machine::notify(Place::of(&self.condvar), true) {
            self.condvar.notify_all();
        }
    }
}

/// A value under a short mutex. While a thread holds the mutex, it calls nothing else of this
/// module.
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
