//! Append: a record gets its position. Commit must not wait for space or the device, so nothing
//! here waits for them.
//!
//! An append is a copy of the record and a few additions under one short mutex. The alternative is
//! a staging buffer for each thread. It would avoid the mutex and need a merge in LSN order at
//! every force.

use crate::config::RECORD_MAX;
use crate::reserve::Reservation;
use crate::ring::RecordLsn;
use crate::shared::Log;
use crate::wait::Wake;
use kedge_base::Lsn;
use kedge_base::atomic::Ordering::Release;
use kedge_base::trace::{self, Event};
use kedge_format::logwrite::FRAME_SIZE;
use std::sync::Arc;

impl Log {
    /// Appends one record within a reservation. Never waits, does no IO.
    ///
    /// # Panics
    /// If the record exceeds what is left of the reservation, is empty or longer than
    /// [`RECORD_MAX`], or if the reservation belongs to another log. Each of these is a bug of the
    /// caller.
    pub fn append(&self, reservation: &mut Reservation, record: &[u8]) -> RecordLsn {
        let charge = reservation.spend(record.len());
        self.append_for(reservation, charge, record)
    }

    /// [`Log::append`] of the reservation's last record. Also returns the rest of the reservation
    /// under the same lock, which saves the lock at the drop.
    pub fn append_last(&self, reservation: &mut Reservation, record: &[u8]) -> RecordLsn {
        let charge = reservation.spend(record.len()) + reservation.spend_rest();
        self.append_for(reservation, charge, record)
    }

    /// `charge`: the bytes that the reservation pays for the record.
    fn append_for(&self, reservation: &Reservation, charge: u64, record: &[u8]) -> RecordLsn {
        let shared = &*self.shared;
        assert!(!record.is_empty() && record.len() <= RECORD_MAX, "a record has 1 to RECORD_MAX bytes");
        assert!(Arc::ptr_eq(&self.shared, &reservation.shared), "a reservation belongs to one log");
        let mut wake = Wake::default();
        let mut guard = shared.state.lock();
        let state = &mut *guard;
        let used_before = state.used();
        if !state.open.fits(record.len(), state.batch_bytes_max) {
            state.seal_open(&mut wake);
        }
        let start = state.open.push(record, state.batch_bytes_max);
        let write_start = state.open.base;
        trace::note(|| Event::Append { start, end: Lsn(start.0 + (FRAME_SIZE + record.len()) as u64) });
        shared.head.0.store(state.open.head().0, Release);
        state.assert_within_ring();
        let grown = state.used() - used_before;
        let rest = charge.checked_sub(grown).expect("a record's charge pays for its bytes and padding");
        let returned = shared.room.give_back(rest);
        state.reserve.note_reserved(returned.before, used_before);
        if returned.waited {
            state.grant(&mut wake);
        }
        drop(guard);
        wake.fire(&shared.writers);
        shared.stats.records.inc();
        shared.stats.bytes_appended.add(record.len() as u64);
        RecordLsn { start, end: Lsn(start.0 + (FRAME_SIZE + record.len()) as u64), write_start }
    }

    /// Closes the open batch if it holds records. Returns the position at which the next record's
    /// log write will start. If no append runs meanwhile, the position is an exact cut: records
    /// appended before the call lie below it, later ones do not.
    pub fn seal(&self) -> Lsn {
        let mut wake = Wake::default();
        let mut state = self.shared.state.lock();
        state.seal_open(&mut wake);
        let cut = state.open.base;
        self.shared.head.0.store(cut.0, Release);
        drop(state);
        wake.fire(&self.shared.writers);
        cut
    }
}
