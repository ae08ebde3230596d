//! Reservations: log bytes set aside before an operation takes any lock.
//!
//! # Memory
//! Appends cannot wait, so the memory of batches is bounded by reservations: they wait while too
//! many sealed bytes have not reached the device.

use crate::queue::RECORD_OVERHEAD;
use crate::room::ReserveClass;
use crate::shared::{Log, Shared};
use crate::state::{Lacks, State, after_shutdown};
use crate::wait::{Parker, Signal, Wake};
use kedge_base::lock::{MutexGuard, Rank, assert_may_wait};
use kedge_base::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which a waiting reservation requests space again. Without the repetition, a request
/// made just before the end of a checkpoint would have no effect.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Log bytes set aside for an operation. Dropping the value returns the unused bytes.
#[must_use]
pub struct Reservation {
    pub(crate) shared: Arc<Shared>,
    left: u64,
}

impl Reservation {
    /// Takes the charge for a record of `record` bytes out of the reservation and returns it.
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

    /// Takes and returns all bytes that are left.
    pub(crate) fn spend_rest(&mut self) -> u64 {
        std::mem::take(&mut self.left)
    }

    /// Returns the length of the longest record that still fits.
    pub fn bytes_left(&self) -> u64 {
        self.left.saturating_sub(RECORD_OVERHEAD)
    }

    /// Adds `bytes` to the reservation if they are available at once. Returns whether they were.
    /// Never waits.
    pub fn grow(&mut self, bytes: u64, class: ReserveClass) -> bool {
        let mut state = self.shared.state.lock();
        // Writing zeros ahead of the log is IO, so bytes without backing count as unavailable.
        let backed = state.is_backed(self.shared.ring.bytes(), bytes, class);
        let granted = backed && state.reserve_now(bytes, class).is_none();
        drop(state);
        self.left += if granted { bytes } else { 0 };
        granted
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.left > 0 && self.shared.room.give_back(self.left).waited {
            let mut wake = Wake::default();
            self.shared.state.lock().grant(&mut wake);
            wake.fire(&self.shared.writers);
        }
    }
}

impl Shared {
    /// Waits until the ring is backed for a reservation of `charge` bytes. Returns the locked
    /// state, or an error if the log is shut down or the host is full. A failed flush shuts the log
    /// down.
    fn lock_backed(&self, charge: u64, class: ReserveClass) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        loop {
            state.check_alive()?;
            if state.is_backed(self.ring.bytes(), charge, class) {
                return Ok(state);
            }
            let Some(hole) = state.backing.begin() else {
                self.backed.wait(&mut state);
                continue;
            };
            drop(state);
            let next = hole.back(&*self.device, self.ring);
            state = self.state.lock();
            let ended = state.backing.end(next);
            state.note_flags();
            self.backed.notify_all();
            let Err(error) = ended else { continue };
            if error.is_failed_flush() {
                tracing::error!(%error, "flush ahead of the log failed, the log shuts down");
                let mut wake = Wake::default();
                self.latch(&mut state, &error, &after_shutdown(&error), &mut wake);
                drop(state);
                wake.fire(&self.writers);
            }
            return Err(error);
        }
    }
}

impl Log {
    /// Sets aside log bytes for one record of at most `bytes` bytes. For `n` records with a total
    /// of `bytes` bytes, pass `bytes + (n - 1) * RECORD_OVERHEAD`. The call may wait for space, so
    /// the caller must not hold a lock that a checkpoint takes.
    pub fn reserve(&self, bytes: u64, class: ReserveClass) -> Result<Reservation> {
        let charge = self.charge(bytes, class)?;
        assert_may_wait(Rank::LogReservation);
        if self.shared.room.try_take_unlocked(charge, class) {
            return Ok(self.reservation(charge));
        }
        let mut wake = Wake::default();
        let mut state = self.shared.lock_backed(charge, class)?;
        let Some(lacks) = state.reserve_now(charge, class) else {
            drop(state);
            return Ok(self.reservation(charge));
        };
        let parker = state.enqueue_reservation(charge, class, &mut wake);
        drop(state);
        wake.fire(&self.shared.writers);
        let started = self.shared.clock.monotonic();
        let granted = self.await_grant(&parker, &lacks);
        let waited = self.shared.clock.since(started).as_nanos() as u64;
        match lacks {
            Lacks::Space => self.shared.stats.space_stalls.record(waited),
            Lacks::Memory => self.shared.stats.staged_stalls.record(waited),
        }
        granted.map(|()| self.reservation(charge))
    }

    fn reservation(&self, charge: u64) -> Reservation {
        Reservation { shared: self.shared.clone(), left: charge }
    }

    /// Returns whether any reservation is waiting.
    pub fn has_waiters(&self) -> bool {
        self.shared.state.lock().reserve.is_waited_for()
    }

    /// Does what [`Log::reserve`] does, for callers that must not wait. Returns `None` if the
    /// reservation would have to wait.
    pub fn try_reserve(&self, bytes: u64, class: ReserveClass) -> Result<Option<Reservation>> {
        let charge = self.charge(bytes, class)?;
        let room = &self.shared.room;
        let granted = room.try_take_unlocked(charge, class)
            || self.shared.lock_backed(charge, class)?.reserve_now(charge, class).is_none();
        Ok(granted.then(|| self.reservation(charge)))
    }

    fn charge(&self, bytes: u64, class: ReserveClass) -> Result<u64> {
        let max = self.shared.room.limit(class).saturating_sub(RECORD_OVERHEAD);
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
