//! A lock that is held either *spinning* or *blocking*, as btrfs latched its tree blocks up to
//! Linux 5.0.
//!
//! # The scheme
//! A thread takes the lock spinning: other threads that want the lock busy-wait. A holder that may
//! sleep first converts the lock to blocking: it increments the count of blocking holders and
//! releases the spinning lock. A thread that then takes the spinning lock and finds conflicting
//! blocking holders releases it again and sleeps until they are gone. A holder that will no longer
//! sleep converts the lock back to spinning: it takes the spinning lock, decrements the count, and
//! wakes *all* sleepers. These find the lock held, spinning or even blocking again, and continue to
//! spin or sleep. The other kinds of latches avoid this ping-pong. The implementation adds no delay
//! of its own: the conversions and useless wake-ups are inherent in the scheme. It differs from the
//! kernel in one point. In the kernel a spinning holder keeps its processor; here the holder may
//! lose it, so spinning threads yield theirs.
//!
//! # Memory order
//! A holder's changes reach the next holder through the spinning word, or through the blocking
//! count if the holder unlocks while blocking. Both are stored with release and loaded with
//! acquire. A sleeper stores the count of sleepers and then loads the count of holders; a waker
//! stores the count of holders and then loads the count of sleepers. Each has a fence in between.

use crate::sync::{AtomicU32, Ordering::*, WaitQueue, fence, relax};

const WRITER: u32 = 1 << 31;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Read,
    Write,
}

/// A queue of threads that wait for a count to become zero.
#[derive(Debug, Default)]
struct Queue {
    sleepers: AtomicU32,
    queue: WaitQueue,
}

impl Queue {
    /// Sleeps until `holders` is zero. Returns how often the thread was woken.
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

    /// Removes one holder. The last one wakes all sleepers.
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
    /// The spinning holders: [`WRITER`], or the number of readers.
    spinning: AtomicU32,
    blocking_readers: AtomicU32,
    /// Number of blocking writers, at most 1.
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

    /// Returns whether a blocking holder excludes this mode.
    pub(crate) fn is_blocked(&self, mode: Mode) -> bool {
        self.blocking_writers.load(Acquire) > 0
            || (mode == Mode::Write && self.blocking_readers.load(Acquire) > 0)
    }

    /// Takes the lock spinning. Returns how often the thread was woken before it got the lock.
    pub(crate) fn lock(&self, mode: Mode) -> u64 {
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

    /// Takes the lock spinning, if that is possible without waiting. Returns whether it did.
    pub(crate) fn try_lock(&self, mode: Mode) -> bool {
        !self.is_blocked(mode) && self.try_spin(mode) && self.keep_unless_blocked(mode)
    }

    /// Takes the lock spinning. Spins as long as other holders spin, but fails if a blocking holder
    /// excludes this mode, as btrfs's `btrfs_try_tree_write_lock` and `btrfs_tree_read_lock_atomic`
    /// do.
    pub(crate) fn lock_unless_blocked(&self, mode: Mode) -> bool {
        if self.is_blocked(mode) {
            return false;
        }
        self.spin(mode);
        self.keep_unless_blocked(mode)
    }

    /// Called with the spinning lock held. Releases it and returns false if a blocking holder
    /// excludes this mode.
    fn keep_unless_blocked(&self, mode: Mode) -> bool {
        let free = !self.is_blocked(mode);
        if !free {
            self.stop_spinning(mode);
        }
        free
    }

    /// Converts the lock to blocking. Called by a spinning holder.
    fn set_blocking(&self, mode: Mode) {
        match mode {
            Mode::Read => self.blocking_readers.fetch_add(1, AcqRel),
            Mode::Write => self.blocking_writers.fetch_add(1, AcqRel),
        };
        self.stop_spinning(mode);
    }

    /// Converts the lock back to spinning. Called by a blocking holder, which spins until it has
    /// the spinning lock.
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

/// An object with a [`PingLock`].
pub(crate) trait HasPing {
    fn ping(&self) -> &PingLock;
}

impl HasPing for &PingLock {
    fn ping(&self) -> &PingLock {
        self
    }
}

/// A held lock, which is released on drop.
pub(crate) struct Grip<P: HasPing> {
    owner: P,
    mode: Mode,
    blocking: bool,
}

impl<P: HasPing> Grip<P> {
    /// Takes the lock. Returns the grip, and how often the thread was woken before it got the lock.
    pub(crate) fn take(owner: P, mode: Mode) -> (Grip<P>, u64) {
        let woken = owner.ping().lock(mode);
        (Grip { owner, mode, blocking: false }, woken)
    }

    /// Takes the lock, or returns the owner if the thread would have to wait.
    pub(crate) fn try_take(owner: P, mode: Mode) -> Result<Grip<P>, P> {
        if owner.ping().try_lock(mode) { Ok(Grip { owner, mode, blocking: false }) } else { Err(owner) }
    }

    /// Does what [`PingLock::lock_unless_blocked`] does. Returns the owner if the lock was not
    /// taken.
    pub(crate) fn spin_take(owner: P, mode: Mode) -> Result<Grip<P>, P> {
        if owner.ping().lock_unless_blocked(mode) {
            Ok(Grip { owner, mode, blocking: false })
        } else {
            Err(owner)
        }
    }

    pub(crate) fn owner(&self) -> &P {
        &self.owner
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Converts the lock to blocking. Called before anything that may sleep. Returns false if the
    /// lock was already blocking.
    pub(crate) fn set_blocking(&mut self) -> bool {
        let convert = !self.blocking;
        if convert {
            self.owner.ping().set_blocking(self.mode);
            self.blocking = true;
        }
        convert
    }

    pub(crate) fn clear_blocking(&mut self) -> bool {
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
