//! A lock that is held either *spinning* or *blocking*, as btrfs latched its tree blocks up to Linux 5.0.
//!
//! # The scheme
//! A lock is taken spinning: whoever wants it meanwhile burns its processor. A holder that may sleep first
//! converts it: it counts itself as a blocking holder and lets the spinning lock go. Whoever takes the
//! spinning lock then and finds blocking holders in its way lets it go again and sleeps until they are gone.
//! The holder converts back to spinning when it no longer sleeps: it takes the spinning lock, counts itself
//! out, and wakes *all* who sleep. These find the lock held, spinning or even blocking again, and spin or
//! sleep on: the ping-pong that the other latches exist to avoid. Nothing is slowed down here on purpose; the
//! conversions and the wake-ups for nothing are the scheme.
//!
//! # Memory order
//! A holder's changes reach the next holder through the spinning word, or, if it unlocks while blocking,
//! through the blocking count: both are released by one and acquired by the other. Going to sleep and waking
//! are a store and a load on either side (count of sleepers, count of holders), with a fence between them.

use super::sync::{AtomicU32, Ordering::*, WaitQueue, fence, relax};

const WRITER: u32 = 1 << 31;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Read,
    Write,
}

/// Who wait for a count to become zero.
#[derive(Debug, Default)]
struct Queue {
    sleepers: AtomicU32,
    queue: WaitQueue,
}

impl Queue {
    /// How often the sleeper was woken.
    fn wait_for_none(&self, holders: &AtomicU32) -> u64 {
        if holders.load(Acquire) == 0 {
            return 0;
        }
        self.sleepers.fetch_add(1, Relaxed);
        fence(SeqCst);
        let woken = self.queue.sleep(|| holders.load(Acquire) == 0);
        self.sleepers.fetch_sub(1, Relaxed);
        woken
    }

    /// One holder less. The last one wakes everybody.
    fn leave(&self, holders: &AtomicU32) {
        if holders.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        fence(SeqCst);
        if self.sleepers.load(Relaxed) > 0 {
            self.queue.wake_all();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PingLock {
    /// Spinning holders: [`WRITER`], or readers counted.
    spinning: AtomicU32,
    blocking_readers: AtomicU32,
    /// At most one.
    blocking_writers: AtomicU32,
    for_readers: Queue,
    for_writers: Queue,
}

impl PingLock {
    fn spin(&self, mode: Mode) {
        let mut looks = 0;
        while !self.try_spin(mode) {
            relax(&mut looks);
        }
    }

    fn try_spin(&self, mode: Mode) -> bool {
        let held = self.spinning.load(Relaxed);
        let next = match mode {
            Mode::Read if held & WRITER == 0 => held + 1,
            Mode::Write if held == 0 => WRITER,
            _ => return false,
        };
        self.spinning.compare_exchange(held, next, Acquire, Relaxed).is_ok()
    }

    fn stop_spinning(&self, mode: Mode) {
        match mode {
            Mode::Read => self.spinning.fetch_sub(1, Release),
            Mode::Write => self.spinning.swap(0, Release),
        };
    }

    /// Whether a blocking holder excludes this mode.
    fn is_blocked(&self, mode: Mode) -> bool {
        self.blocking_writers.load(Acquire) > 0
            || (mode == Mode::Write && self.blocking_readers.load(Acquire) > 0)
    }

    /// Takes the lock, spinning. How often it was woken on the way.
    pub fn lock(&self, mode: Mode) -> u64 {
        let mut woken = 0;
        loop {
            if mode == Mode::Write {
                woken += self.for_readers.wait_for_none(&self.blocking_readers);
            }
            woken += self.for_writers.wait_for_none(&self.blocking_writers);
            self.spin(mode);
            if !self.is_blocked(mode) {
                return woken;
            }
            self.stop_spinning(mode);
        }
    }

    /// Takes the lock, spinning, unless that would mean to wait.
    pub fn try_lock(&self, mode: Mode) -> bool {
        if self.is_blocked(mode) || !self.try_spin(mode) {
            return false;
        }
        let free = !self.is_blocked(mode);
        if !free {
            self.stop_spinning(mode);
        }
        free
    }

    /// By a spinning holder.
    fn set_blocking(&self, mode: Mode) {
        match mode {
            Mode::Read => self.blocking_readers.fetch_add(1, AcqRel),
            Mode::Write => self.blocking_writers.fetch_add(1, AcqRel),
        };
        self.stop_spinning(mode);
    }

    /// By a blocking holder, which spins until nobody else looks at the lock.
    fn clear_blocking(&self, mode: Mode) {
        self.spin(mode);
        self.unlock_blocking(mode);
    }

    fn unlock_blocking(&self, mode: Mode) {
        match mode {
            Mode::Read => self.for_readers.leave(&self.blocking_readers),
            Mode::Write => self.for_writers.leave(&self.blocking_writers),
        }
    }
}

/// Something with a lock.
pub(crate) trait HasPing {
    fn ping(&self) -> &PingLock;
}

impl HasPing for &PingLock {
    fn ping(&self) -> &PingLock {
        self
    }
}

/// The holder of a lock, until it is dropped.
pub(crate) struct Grip<P: HasPing> {
    owner: P,
    mode: Mode,
    blocking: bool,
}

impl<P: HasPing> Grip<P> {
    /// The grip, and how often the thread was woken for it.
    pub fn take(owner: P, mode: Mode) -> (Grip<P>, u64) {
        let woken = owner.ping().lock(mode);
        (Grip { owner, mode, blocking: false }, woken)
    }

    /// Gives the owner back if it would have to wait.
    pub fn try_take(owner: P, mode: Mode) -> Result<Grip<P>, P> {
        if owner.ping().try_lock(mode) { Ok(Grip { owner, mode, blocking: false }) } else { Err(owner) }
    }

    pub fn owner(&self) -> &P {
        &self.owner
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Before anything that may sleep. False: it was so already.
    pub fn set_blocking(&mut self) -> bool {
        let convert = !self.blocking;
        if convert {
            self.owner.ping().set_blocking(self.mode);
            self.blocking = true;
        }
        convert
    }

    pub fn clear_blocking(&mut self) -> bool {
        let convert = self.blocking;
        if convert {
            self.owner.ping().clear_blocking(self.mode);
            self.blocking = false;
        }
        convert
    }
}

impl<P: HasPing> Drop for Grip<P> {
    fn drop(&mut self) {
        if self.blocking {
            self.owner.ping().unlock_blocking(self.mode);
        } else {
            self.owner.ping().stop_spinning(self.mode);
        }
    }
}
