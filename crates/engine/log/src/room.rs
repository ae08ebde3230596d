//! The bytes of the ring that are taken, as one atomic number: a reservation that fits needs no
//! lock, nor does the return of one for which no thread waits.
//!
//! With one short mutex for each reservation and each append, creations stopped scaling at four
//! simulated processors: most waits were for this mutex. XFS has the same counter in its grant
//! head, and caches reservations for each processor beside it. Such a cache holds back space that a
//! small log does not have, and it would have to be emptied before any thread waits.
//!
//! # Rules
//! 1. `taken = used + reserved + promised` of [`crate::queue`], or more. Bytes are
//!    taken before the ring is filled with them, and returned after they are free. So the number is
//!    never too low, and the ring never overflows.
//! 2. `promised` changes only under the log's mutex, and `used` shrinks only under it. So a thread
//!    that holds the mutex and reads `used` before `taken` gets `reserved` as the rest, and perhaps
//!    what others have appended in between.
//! 3. While a flag is set, reservations take the mutex and look at everything. The flags change
//!    under the mutex only. A thread that read them just before a change acts as if it had come
//!    before the change: it takes no more than fits ([`Room::try_take`]). The flag for holes is
//!    set from the start or never, so no reservation passes the first hole.
//! 4. *No waiting reservation is forgotten.* A waiter sets the flag [`WAITED`] and then looks at
//!    `taken` once more. A thread that returns bytes subtracts them and then looks at the flag. All
//!    four are sequentially consistent. So the waiter sees the bytes, or the other thread the flag;
//!    that thread then takes the mutex and grants.

use kedge_base::Counter;
use kedge_base::atomic::AtomicU64;
use kedge_base::atomic::Ordering::{Relaxed, SeqCst};

/// Reservations are waiting.
pub(crate) const WAITED: u64 = 1;
/// Too many sealed bytes wait for the device.
pub(crate) const STAGED: u64 = 2;
/// The log was shut down.
pub(crate) const DEAD: u64 = 4;
/// The ring has holes.
pub(crate) const HOLES: u64 = 8;

/// See the module.
pub(crate) struct Room {
    /// Bytes of the ring that may be used.
    bytes: u64,
    taken: Line,
    promised: AtomicU64,
    /// The most that was reserved when a record was appended or a waiter was served.
    reserved_max: Counter,
    /// Why a reservation must take the mutex.
    flags: Line,
}

/// The result of a return of bytes.
#[must_use]
pub(crate) struct Returned {
    /// What was taken before it.
    pub before: u64,
    /// A reservation waits. The caller must grant what fits now.
    pub waited: bool,
}

/// A number on a cache line of its own: each operation changes it, and what others only read must
/// not move with it.
#[repr(align(128))]
pub(crate) struct Line(pub AtomicU64);

impl Room {
    /// `bytes` of the ring may be used. `used`: between tail and head at opening.
    pub(crate) fn new(bytes: u64, used: u64) -> Room {
        Room {
            bytes,
            taken: Line(AtomicU64::new(used)),
            promised: AtomicU64::new(0),
            reserved_max: Counter::new(),
            flags: Line(AtomicU64::new(0)),
        }
    }

    /// Bytes of the ring that may be used.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the ring that reservations of `class` may fill.
    pub(crate) fn limit(&self, class: ReserveClass) -> u64 {
        limit(self.bytes, class)
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.0.load(SeqCst)
    }

    /// Bytes that are promised to records for which there is no reservation yet.
    pub(crate) fn promised(&self) -> u64 {
        self.promised.load(Relaxed)
    }

    /// Changes them by `delta`, and what is taken. The mutex is held.
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

    /// Notes what reservations held at a moment at which `taken` bytes were taken. An estimate if
    /// other threads append or promise meanwhile.
    pub(crate) fn note_reserved(&self, taken: u64, used: u64) {
        let reserved = taken.saturating_sub(used + self.promised());
        if reserved > self.reserved_max.get() {
            self.reserved_max.raise(reserved);
        }
    }

    pub(crate) fn reserved_max(&self) -> u64 {
        self.reserved_max.get()
    }

    /// Takes `charge` bytes if they fit. Returns whether it did.
    pub(crate) fn try_take(&self, charge: u64, class: ReserveClass) -> bool {
        let limit = self.limit(class);
        let fits = |taken: u64| taken.checked_add(charge).filter(|sum| *sum <= limit);
        self.taken.0.fetch_update(SeqCst, SeqCst, fits).is_ok()
    }

    /// [`Room::try_take`] if nothing calls for the mutex.
    pub(crate) fn try_take_unlocked(&self, charge: u64, class: ReserveClass) -> bool {
        self.flags.0.load(SeqCst) == 0 && self.try_take(charge, class)
    }

    /// Takes bytes that need not fit: their owner has reserved as many.
    pub(crate) fn take(&self, bytes: u64) {
        self.taken.0.fetch_add(bytes, SeqCst);
    }

    /// Returns bytes that were taken.
    pub(crate) fn give_back(&self, bytes: u64) -> Returned {
        let before = self.taken.0.fetch_sub(bytes, SeqCst);
        assert!(before >= bytes, "returned bytes were taken: {bytes} of {before}");
        Returned { before, waited: self.flags.0.load(SeqCst) & WAITED != 0 }
    }

    /// Sets the flags to `flags`. The mutex is held. Stores only a change: the line is read by each
    /// operation.
    pub(crate) fn set_flags(&self, flags: u64) {
        if self.flags.0.load(Relaxed) != flags {
            self.flags.0.store(flags, SeqCst);
        }
    }
}

/// Smallest emergency reserve.
const EMERGENCY_MIN: u64 = 128 << 10;

/// The part of the ring that a reservation may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReserveClass {
    /// Ordinary operations. They must not use the emergency reserve.
    Normal,
    /// Operations that free space, or complete earlier work: unlink, truncate, writeback. They must
    /// not use [`CHECKPOINT_BYTES`].
    Reclaim,
    /// The records by which a checkpoint makes the tail move. Never waits
    /// ([`crate::Log::try_reserve`]): only the checkpoint itself could free the space, so waiting
    /// would deadlock.
    Checkpoint,
}

/// The part of the ring that only a checkpoint may use. It fits one of the checkpoint's records.
/// The next ones use the promised bytes that this record releases.
pub const CHECKPOINT_BYTES: u64 = 72 << 10;

/// The emergency reserve: bytes of the ring that normal reservations must not use.
pub(crate) fn emergency(ring: u64) -> u64 {
    // A ring has at least 1 MiB; only the tiny rings of tests reach the bound of one half.
    (ring / 8).max(EMERGENCY_MIN).min(ring / 2)
}

/// Bytes of a ring that reservations of `class` may fill.
pub(crate) fn limit(ring: u64, class: ReserveClass) -> u64 {
    match class {
        ReserveClass::Normal => ring - emergency(ring),
        ReserveClass::Reclaim => ring - CHECKPOINT_BYTES.min(emergency(ring) / 2),
        ReserveClass::Checkpoint => ring,
    }
}
