//! The number of taken bytes of the ring, as one atomic number. A reservation that fits needs no
//! lock. Neither does returning a reservation if no thread waits for space.
//!
//! The rejected alternatives: with a short mutex for each reservation and each append, creations
//! stopped scaling at four simulated processors, because most waits were for this mutex. XFS has
//! the same counter in its grant head, and in addition caches reservations for each processor. Such
//! a cache holds back space that a small log does not have, and it must be emptied before a thread
//! may wait.
//!
//! # Rules
//! 1. `taken >= used + reserved + promised` (the terms of [`crate::queue`]). Bytes are added to
//!    `taken` before they are used, and subtracted after they are free. So the number is never too
//!    low, and the ring never overflows.
//! 2. `promised` changes only under the log's mutex, and `used` decreases only under it. So a
//!    thread that holds the mutex and reads `used` before `taken` can compute `reserved` as the
//!    difference. The difference may also contain bytes that other threads appended between the two
//!    reads.
//! 3. While a flag is set, reservations take the mutex and check the whole state. The flags change
//!    only under the mutex. A thread that read the flags just before a change behaves as if it had
//!    run before the change: it takes no more bytes than fit ([`Room::try_take`]). The flag for
//!    holes is set at opening or never, so no reservation passes the first hole.
//! 4. *No waiting reservation is forgotten.* A waiter sets the flag [`WAITED`] and then checks
//!    `taken` again. A thread that returns bytes subtracts them and then checks the flag. All four
//!    accesses are sequentially consistent. So either the waiter sees the bytes, or the other
//!    thread sees the flag; that thread then takes the mutex and grants the reservation.

use kedge_base::Counter;
use kedge_base::atomic::AtomicU64;
use kedge_base::atomic::Ordering::{Relaxed, SeqCst};

/// Flag: reservations are waiting.
pub(crate) const WAITED: u64 = 1;
/// Flag: too many sealed bytes have not reached the device.
pub(crate) const STAGED: u64 = 2;
/// Flag: the log was shut down.
pub(crate) const DEAD: u64 = 4;
/// Flag: the ring has holes.
pub(crate) const HOLES: u64 = 8;

/// The taken bytes of the ring; see the head of the module.
pub(crate) struct Room {
    /// Bytes of the ring that may be used.
    bytes: u64,
    taken: Line,
    promised: AtomicU64,
    /// Maximum of the reserved bytes, sampled when a record was appended or a waiter was granted.
    reserved_max: Counter,
    /// The reasons why a reservation must take the mutex.
    flags: Line,
}

/// The result of returning bytes.
#[must_use]
pub(crate) struct Returned {
    /// The taken bytes before the return.
    pub before: u64,
    /// Whether a reservation waits. The caller must then grant the waiters that fit.
    pub waited: bool,
}

/// A number on a cache line of its own. Every operation changes it, so fields that are mostly read
/// must not share its line.
#[repr(align(128))]
pub(crate) struct Line(pub AtomicU64);

impl Room {
    /// `bytes` of the ring may be used. `used` is the number of bytes between tail and head at
    /// opening.
    pub(crate) fn new(bytes: u64, used: u64) -> Room {
        Room {
            bytes,
            taken: Line(AtomicU64::new(used)),
            promised: AtomicU64::new(0),
            reserved_max: Counter::new(),
            flags: Line(AtomicU64::new(0)),
        }
    }

    /// Returns the number of bytes of the ring that may be used.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how many bytes of the ring reservations of `class` may fill.
    pub(crate) fn limit(&self, class: ReserveClass) -> u64 {
        limit(self.bytes, class)
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.0.load(SeqCst)
    }

    /// Returns the bytes promised to records that have no reservation yet.
    pub(crate) fn promised(&self) -> u64 {
        self.promised.load(Relaxed)
    }

    /// Adds `delta` to the promised bytes, and so to the taken bytes. The caller holds the mutex.
    pub(crate) fn promise(&self, delta: i64) -> Option<Returned> {
        let promised = self.promised().checked_add_signed(delta).expect("a promise is kept at most once");
        if delta < 0 {
            self.promised.store(promised, Relaxed);
            return Some(self.give_back(delta.unsigned_abs()));
        }
        self.take(delta as u64);
        self.promised.store(promised, Relaxed);
        None
    }

    /// Updates the maximum of the reserved bytes, computed from `taken` and `used` bytes read
    /// together. The result is an estimate if other threads append or promise concurrently.
    pub(crate) fn note_reserved(&self, taken: u64, used: u64) {
        let reserved = taken.saturating_sub(used + self.promised());
        if reserved > self.reserved_max.get() {
            self.reserved_max.raise(reserved);
        }
    }

    pub(crate) fn reserved_max(&self) -> u64 {
        self.reserved_max.get()
    }

    /// Takes `charge` bytes if they fit. Returns whether they did.
    pub(crate) fn try_take(&self, charge: u64, class: ReserveClass) -> bool {
        let limit = self.limit(class);
        let fits = |taken: u64| taken.checked_add(charge).filter(|sum| *sum <= limit);
        self.taken.0.fetch_update(SeqCst, SeqCst, fits).is_ok()
    }

    /// Does what [`Room::try_take`] does, but takes nothing if any flag is set.
    pub(crate) fn try_take_unlocked(&self, charge: u64, class: ReserveClass) -> bool {
        self.flags.0.load(SeqCst) == 0 && self.try_take(charge, class)
    }

    /// Takes bytes without a check that they fit. The caller guarantees it: it already holds a
    /// reservation for them.
    pub(crate) fn take(&self, bytes: u64) {
        self.taken.0.fetch_add(bytes, SeqCst);
    }

    /// Returns taken bytes.
    pub(crate) fn give_back(&self, bytes: u64) -> Returned {
        let before = self.taken.0.fetch_sub(bytes, SeqCst);
        assert!(before >= bytes, "returned bytes were taken: {bytes} of {before}");
        Returned { before, waited: self.flags.0.load(SeqCst) & WAITED != 0 }
    }

    /// Sets the flags to `flags`. The caller holds the mutex. An unchanged value is not stored,
    /// because every operation reads the cache line.
    pub(crate) fn set_flags(&self, flags: u64) {
        if self.flags.0.load(Relaxed) != flags {
            self.flags.0.store(flags, SeqCst);
        }
    }
}

/// Smallest emergency reserve, in bytes.
const EMERGENCY_MIN: u64 = 128 << 10;

/// The class of a reservation. It determines how many bytes of the ring must stay unused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReserveClass {
    /// Ordinary operations. They must leave the emergency reserve.
    Normal,
    /// Operations that free space or complete earlier work: unlink, truncate, writeback. They must
    /// leave [`CHECKPOINT_BYTES`] unused.
    Reclaim,
    /// The records of a checkpoint that let the tail move. Such a reservation never waits
    /// ([`crate::Log::try_reserve`]): only the checkpoint itself could free the space, so waiting
    /// would deadlock.
    Checkpoint,
}

/// Bytes of the ring that only a checkpoint may use. One of the checkpoint's records fits into
/// them. The next records use promised bytes that this record releases.
pub const CHECKPOINT_BYTES: u64 = 72 << 10;

/// Returns the emergency reserve: the bytes of the ring that normal reservations must leave unused.
pub(crate) fn emergency(ring: u64) -> u64 {
    // A ring has at least 1 MiB; only the tiny rings of tests reach the bound of one half.
    (ring / 8).max(EMERGENCY_MIN).min(ring / 2)
}

/// Returns how many bytes of a ring reservations of `class` may fill.
pub(crate) fn limit(ring: u64, class: ReserveClass) -> u64 {
    match class {
        ReserveClass::Normal => ring - emergency(ring),
        ReserveClass::Reclaim => ring - CHECKPOINT_BYTES.min(emergency(ring) / 2),
        ReserveClass::Checkpoint => ring,
    }
}
