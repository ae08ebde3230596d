//! Reservations: log bytes set aside before an operation takes any lock.
//!
//! # Accounting
//! With `used` = padded end of the open batch - tail, a reservation is granted when
//!
//! `used + reserved + promised + charge (+ emergency, for normal ones) <= ring`.
//!
//! The ring never overflows: an append makes `used` grow by no more than it takes from `reserved`,
//! and nothing else makes `used` grow. A record of `n` bytes is charged `n + RECORD_OVERHEAD` = `n
//! + FRAME_SIZE + HEADER_SIZE + BLOCK_SIZE`:
//! - If it joins a batch that holds records, of which `u` bytes are used, the padded size grows by
//!   `pad(u + FRAME_SIZE + n) - pad(u) <= FRAME_SIZE + n + BLOCK_SIZE - 1`;
//! - If it is the first of its batch, the previous batch was forced, sealed or full. Its padding is
//!   in `used` already, and `used` grows by `pad(HEADER_SIZE + FRAME_SIZE + n) <= HEADER_SIZE +
//!   FRAME_SIZE + n + BLOCK_SIZE - 1`.
//!
//! So each record pays for the padding after it, however many forces there are. Its append returns
//! the unused part of its charge.
//!
//! # Fairness
//! First come, first served within a class. A waiter that does not fit blocks later ones; otherwise
//! large reservations would starve. Reclaim goes before normal, because it frees space.
//!
//! # Memory
//! Appends cannot wait, so memory is bounded here: reservations wait while too many sealed bytes
//! wait for the device.

use crate::state::State;
use crate::wait::{Parker, Signal, Wake};
use crate::{Log, Shared};
use kedge_base::lock::{Rank, assert_may_wait};
use kedge_base::{BLOCK_SIZE, Error, Result};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

/// The charge for a record beyond its own bytes.
pub const RECORD_OVERHEAD: u64 = (HEADER_SIZE + FRAME_SIZE + BLOCK_SIZE) as u64;
/// Smallest emergency reserve.
const EMERGENCY_MIN: u64 = 128 << 10;
/// How often a waiting reservation requests space again. A request that arrived just before the end
/// of a checkpoint would otherwise be lost.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The part of the ring that a reservation may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReserveClass {
    /// Ordinary operations. They must not use the emergency reserve.
    Normal,
    /// Operations that free space, or complete earlier work: unlink, truncate, writeback. They must
    /// not use [`CHECKPOINT_BYTES`].
    Reclaim,
    /// The records by which a checkpoint makes the tail move. Never waits ([`Log::try_reserve`]):
    /// only the checkpoint itself could free the space, so waiting would deadlock.
    Checkpoint,
}

/// The part of the ring that only a checkpoint may use. It fits one of the checkpoint's records.
/// The next ones use the promised bytes that this record releases.
pub const CHECKPOINT_BYTES: u64 = 72 << 10;

/// Log bytes set aside. Its drop returns the rest.
#[must_use]
pub struct Reservation {
    pub(crate) shared: Arc<Shared>,
    left: u64,
}

impl Reservation {
    /// Takes the charge of a record of `record` bytes out of the reservation.
    pub(crate) fn spend(&mut self, record: usize) -> u64 {
        let charge = record as u64 + RECORD_OVERHEAD;
        assert!(
            charge <= self.left,
            "record of {record} bytes exceeds its reservation ({} bytes left)",
            self.left
        );
        self.left -= charge;
        charge
    }

    /// Takes everything that is left.
    pub(crate) fn spend_rest(&mut self) -> u64 {
        std::mem::take(&mut self.left)
    }

    /// Longest record that still fits.
    pub fn bytes_left(&self) -> u64 {
        self.left.saturating_sub(RECORD_OVERHEAD)
    }

    /// Adds `bytes` to the reservation, if they are available now. Never waits.
    pub fn grow(&mut self, bytes: u64, class: ReserveClass) -> bool {
        let mut state = self.shared.state.lock();
        // Writing zeros ahead of the log is IO, so bytes that are not backed yet are not available.
        let backed = state.is_backed(self.shared.ring.bytes(), bytes, class);
        let granted = backed && state.reserve_now(bytes, class).is_none();
        self.shared.note_free(&state);
        drop(state);
        self.left += if granted { bytes } else { 0 };
        granted
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.left > 0 {
            let mut wake = Wake::default();
            let mut state = self.shared.state.lock();
            state.reserve.give_back(self.left);
            state.grant(&mut wake);
            self.shared.note_free(&state);
            drop(state);
            wake.fire(&self.shared.writers);
        }
    }
}

/// The emergency reserve: bytes of the ring that normal reservations must not use.
pub(crate) fn emergency(ring: u64) -> u64 {
    // A ring has at least 1 MiB; only the tiny rings of tests reach the bound of one half.
    (ring / 8).max(EMERGENCY_MIN).min(ring / 2)
}

struct Waiter {
    charge: u64,
    parker: Arc<Parker>,
}

/// Granted and waiting reservations.
pub(crate) struct ReserveQueue {
    ring: u64,
    emergency: u64,
    staged_max: u64,
    pub reserved: u64,
    /// The most that was ever reserved at once.
    pub reserved_max: u64,
    pub promised: u64,
    normal: VecDeque<Waiter>,
    reclaim: VecDeque<Waiter>,
}

impl ReserveQueue {
    pub(crate) fn new(ring: u64, staged_max: u64) -> ReserveQueue {
        ReserveQueue {
            ring,
            emergency: emergency(ring),
            staged_max,
            reserved: 0,
            reserved_max: 0,
            promised: 0,
            normal: VecDeque::new(),
            reclaim: VecDeque::new(),
        }
    }

    fn is_waited_for(&self) -> bool {
        !self.normal.is_empty() || !self.reclaim.is_empty()
    }

    fn take(&mut self, charge: u64) {
        self.reserved += charge;
        self.reserved_max = self.reserved_max.max(self.reserved);
    }

    pub(crate) fn give_back(&mut self, charge: u64) {
        self.reserved = self.reserved.checked_sub(charge).expect("returned bytes were reserved");
    }

    /// Bytes of the ring that reservations of `class` may fill.
    fn limit(&self, class: ReserveClass) -> u64 {
        match class {
            ReserveClass::Normal => self.ring - self.emergency,
            ReserveClass::Reclaim => self.ring - CHECKPOINT_BYTES.min(self.emergency / 2),
            ReserveClass::Checkpoint => self.ring,
        }
    }

    fn fits(&self, used: u64, charge: u64, class: ReserveClass) -> bool {
        used + self.reserved + self.promised + charge <= self.limit(class)
    }

    fn must_queue(&self, class: ReserveClass) -> bool {
        match class {
            ReserveClass::Normal => !self.reclaim.is_empty() || !self.normal.is_empty(),
            ReserveClass::Reclaim => !self.reclaim.is_empty(),
            ReserveClass::Checkpoint => false,
        }
    }

    /// Grants waiting reservations from the front while they fit.
    fn grant(&mut self, used: u64, staged: u64, wake: &mut Wake) {
        while staged <= self.staged_max {
            let class = if self.reclaim.is_empty() { ReserveClass::Normal } else { ReserveClass::Reclaim };
            let queue = if class == ReserveClass::Normal { &self.normal } else { &self.reclaim };
            let Some(charge) = queue.front().map(|w| w.charge) else { return };
            if !self.fits(used, charge, class) {
                return;
            }
            let queue = if class == ReserveClass::Normal { &mut self.normal } else { &mut self.reclaim };
            let waiter = queue.pop_front().expect("there is a front");
            self.take(charge);
            wake.signals.push((waiter.parker, Signal::Done(Ok(()))));
        }
    }

    /// Bytes beyond the open batch that are granted, or will be.
    pub(crate) fn committed(&self) -> u64 {
        let waiting: u64 = self.normal.iter().chain(&self.reclaim).map(|waiter| waiter.charge).sum();
        self.reserved + self.promised + waiting
    }

    fn first(&self) -> Option<&Waiter> {
        self.reclaim.front().or(self.normal.front())
    }

    pub(crate) fn refuse_all(&mut self, error: &Error, wake: &mut Wake) {
        for waiter in self.reclaim.drain(..).chain(self.normal.drain(..)) {
            wake.signals.push((waiter.parker, Signal::Done(Err(error.clone()))));
        }
    }
}

/// Why a reservation has to wait.
enum Lacks {
    Space,
    Memory,
}

impl State {
    /// Grants waiting reservations that fit now. Called after every change that may have freed
    /// space.
    pub(crate) fn grant(&mut self, wake: &mut Wake) {
        if self.reserve.is_waited_for() {
            let (used, staged) = (self.used(), self.staged);
            self.reserve.grant(used, staged, wake);
        }
    }

    /// Whether reservations must wait for sealed batches to reach the device.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.staged > self.reserve.staged_max
    }

    /// Wakes the first reservation that still waits, to request space again. It requests in its own
    /// thread, because the caller here may hold a lock that the request needs.
    pub(crate) fn nudge(&self, wake: &mut Wake) {
        if let Some(waiter) = self.reserve.first()
            && !self.is_short_of_memory()
        {
            wake.signals.push((waiter.parker.clone(), Signal::Look));
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let taken = self.used() + self.reserve.reserved + self.reserve.promised;
        self.reserve.limit(ReserveClass::Normal).saturating_sub(taken)
    }

    /// The ring beyond the tail's next lap holds log that is still needed: a panic is better than
    /// overwriting it.
    pub(crate) fn assert_within_ring(&self) {
        let taken = self.used() + self.reserve.reserved;
        assert!(taken <= self.reserve.ring, "log of {taken} bytes in a ring of {}", self.reserve.ring);
    }

    fn reserve_now(&mut self, charge: u64, class: ReserveClass) -> Option<Lacks> {
        if self.is_short_of_memory() && class != ReserveClass::Checkpoint {
            return Some(Lacks::Memory);
        }
        if self.reserve.must_queue(class) || !self.reserve.fits(self.used(), charge, class) {
            return Some(Lacks::Space);
        }
        self.reserve.take(charge);
        None
    }
}

impl Shared {
    /// Updates the copy for [`Log::free_bytes`].
    pub(crate) fn note_free(&self, state: &State) {
        self.free.store(state.free_bytes(), Release);
    }
}

impl Log {
    /// Sets aside log bytes for one record of at most `bytes` bytes. For `n` records of `bytes` in
    /// all, pass `bytes + (n - 1) * RECORD_OVERHEAD`. The call may wait for space, so the caller
    /// must hold no lock that a checkpoint takes.
    pub fn reserve(&self, bytes: u64, class: ReserveClass) -> Result<Reservation> {
        let charge = self.charge(bytes, class)?;
        assert_may_wait(Rank::LogReservation);
        let mut state = self.shared.lock_backed(charge, class)?;
        let Some(lacks) = state.reserve_now(charge, class) else {
            self.shared.note_free(&state);
            drop(state);
            return Ok(Reservation { shared: self.shared.clone(), left: charge });
        };
        let parker = Parker::new();
        let waiter = Waiter { charge, parker: parker.clone() };
        match class {
            ReserveClass::Normal => state.reserve.normal.push_back(waiter),
            ReserveClass::Reclaim => state.reserve.reclaim.push_back(waiter),
            ReserveClass::Checkpoint => panic!("a checkpoint's reservation never waits"),
        }
        drop(state);
        let started = self.shared.clock.monotonic();
        let granted = self.await_grant(&parker, &lacks);
        let waited = self.shared.clock.since(started).as_nanos() as u64;
        match lacks {
            Lacks::Space => self.shared.stats.space_stalls.record(waited),
            Lacks::Memory => self.shared.stats.staged_stalls.record(waited),
        }
        granted.map(|()| Reservation { shared: self.shared.clone(), left: charge })
    }

    /// Whether any reservation is waiting.
    pub fn has_waiters(&self) -> bool {
        self.shared.state.lock().reserve.is_waited_for()
    }

    /// [`Log::reserve`] for callers that must not wait: `None` if it would wait.
    pub fn try_reserve(&self, bytes: u64, class: ReserveClass) -> Result<Option<Reservation>> {
        let charge = self.charge(bytes, class)?;
        let mut state = self.shared.lock_backed(charge, class)?;
        let lacks = state.reserve_now(charge, class);
        self.shared.note_free(&state);
        drop(state);
        Ok(lacks.is_none().then(|| Reservation { shared: self.shared.clone(), left: charge }))
    }

    fn charge(&self, bytes: u64, class: ReserveClass) -> Result<u64> {
        let ring = self.shared.ring.bytes();
        let max = ReserveQueue::new(ring, 0).limit(class).saturating_sub(RECORD_OVERHEAD);
        if bytes > max {
            return Err(Error::TooLarge { need: bytes, max });
        }
        Ok(bytes + RECORD_OVERHEAD)
    }

    fn await_grant(&self, parker: &Parker, lacks: &Lacks) -> Result<()> {
        let mut ask = matches!(lacks, Lacks::Space);
        loop {
            let pressure = self.shared.pressure.lock().as_ref().and_then(std::sync::Weak::upgrade);
            if let (true, Some(pressure)) = (ask, pressure) {
                pressure.need_space();
            }
            match parker.wait_for(ASK_AGAIN) {
                Some(Signal::Done(granted)) => return granted,
                Some(Signal::Look) | None => ask = true,
            }
        }
    }
}
