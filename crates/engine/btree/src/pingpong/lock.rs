//! A lock that is held either *spinning* or *blocking*, as btrfs latched its tree blocks up to
//! Linux 5.0.
//!
//! # The scheme
//! A lock is taken spinning: a thread that wants it meanwhile busy-waits. A holder that may sleep
//! converts it first: it increments the count of blocking holders and releases the spinning lock. A
//! thread that then takes the spinning lock and finds conflicting blocking holders releases it
//! again and sleeps until they are gone. The holder converts back to spinning when it will no
//! longer sleep: it takes the spinning lock, decrements the count, and wakes *all* sleepers. They
//! find the lock held, spinning or even blocking again, and continue spinning or sleeping. This
//! ping-pong is what the other kinds of latches avoid. The implementation adds no delay of its own:
//! the conversions and useless wake-ups are inherent in the scheme. It differs from the kernel in
//! one point: there a spinning holder keeps its processor. Here the holder may lose it, so spinning
//! threads yield theirs.
//!
//! # Memory order
//! A holder's changes reach the next holder through the spinning word, or through the blocking
//! count if it unlocks while blocking. Each is stored with release and loaded with acquire. A
//! sleeper stores the count of sleepers and then loads the count of holders; a waker does the
//! reverse. Each has a fence in between.

use crate::sync::{AtomicU32, Ordering::*, WaitQueue, fence, relax};

const WRITER: u32 = 1 << 31;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Read,
    Write,
}

/// Threads that wait for a count to become zero.
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
    /// Spinning holders: [`WRITER`], or the number of readers.
    spinning: AtomicU32,
    blocking_readers: AtomicU32,
    /// At most 1.
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
    pub(crate) fn is_blocked(&self, mode: Mode) -> bool {
        self.blocking_writers.load(Acquire) > 0
            || (mode == Mode::Write && self.blocking_readers.load(Acquire) > 0)
    }

    /// Takes the lock, spinning. Returns how often the thread was woken meanwhile.
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

    /// Takes the lock, spinning, unless it would have to wait.
    pub(crate) fn try_lock(&self, mode: Mode) -> bool {
        !self.is_blocked(mode) && self.try_spin(mode) && self.keep_unless_blocked(mode)
    }

    /// Takes the lock, spinning as long as its holders spin, unless a blocking holder excludes this
    /// mode: the behaviour of btrfs's `btrfs_try_tree_write_lock` and
    /// `btrfs_tree_read_lock_atomic`.
    pub(crate) fn lock_unless_blocked(&self, mode: Mode) -> bool {
        if self.is_blocked(mode) {
            return false;
        }
        self.spin(mode);
        self.keep_unless_blocked(mode)
    }

    /// Called with the spinning lock, which it releases if a blocking holder excludes this mode.
    fn keep_unless_blocked(&self, mode: Mode) -> bool {
        let free = !self.is_blocked(mode);
        if !free {
            self.stop_spinning(mode);
        }
        free
    }

    /// Converts to blocking. Called by a spinning holder.
    fn set_blocking(&self, mode: Mode) {
        match mode {
            Mode::Read => self.blocking_readers.fetch_add(1, AcqRel),
            Mode::Write => self.blocking_writers.fetch_add(1, AcqRel),
        };
        self.stop_spinning(mode);
    }

    /// Converts back to spinning. Called by a blocking holder, which spins until it has the
    /// spinning lock.
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

/// An object with a lock.
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
    /// Takes the lock. Returns the grip, and how often the thread was woken meanwhile.
    pub(crate) fn take(owner: P, mode: Mode) -> (Grip<P>, u64) {
        let woken = owner.ping().lock(mode);
        (Grip { owner, mode, blocking: false }, woken)
    }

    /// Takes the lock, or returns the owner if it would have to wait.
    pub(crate) fn try_take(owner: P, mode: Mode) -> Result<Grip<P>, P> {
        if owner.ping().try_lock(mode) { Ok(Grip { owner, mode, blocking: false }) } else { Err(owner) }
    }

    /// [`PingLock::lock_unless_blocked`], or returns the owner.
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

    /// Converts to blocking, before anything that may sleep. Returns false if it was blocking
    /// already.
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
