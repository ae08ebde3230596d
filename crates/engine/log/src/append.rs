//! Append: a record gets its LSN. Commit must not wait for log space or for the device, so no
//! function of this file waits for them.
//!
//! One atomic step assigns the record its range of the log ([`crate::tip`]); then the record is
//! copied into the lane of its thread ([`crate::stage`]). The rejected alternative is a copy under
//! the log's mutex: creations stopped scaling at four simulated processors, because a lock on which
//! threads sleep costs a wake-up for each record. The mutex is taken only for a record that does
//! not fit into the open batch or finds the batch being closed.

use crate::config::RECORD_MAX;
use crate::reserve::Reservation;
use crate::ring::RecordLsn;
use crate::shared::{Log, Shared};
use crate::tip::Placed;
use crate::wait::Wake;
use kedge_base::Lsn;
use kedge_base::atomic::Ordering::Acquire;
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use std::sync::Arc;

impl Log {
    /// Appends one record within a reservation, as a record that may refer to data in place. Never
    /// waits and does no IO.
    ///
    /// # Panics
    /// If the record exceeds what is left of the reservation, is empty or longer than
    /// [`RECORD_MAX`], or if the reservation belongs to another log. Each of these is a bug of the
    /// caller.
    pub fn append(&self, reservation: &mut Reservation, record: &[u8]) -> RecordLsn {
        self.append_as(reservation, record, false, true)
    }

    /// Does what [`Log::append`] does. With `last` the record is the last one of the reservation,
    /// whose unused rest is returned in the same atomic step, so that dropping the reservation
    /// needs none. With `refers` the record may refer to data in place, so it must not become
    /// durable before that data.
    pub fn append_as(
        &self,
        reservation: &mut Reservation,
        record: &[u8],
        last: bool,
        refers: bool,
    ) -> RecordLsn {
        let charge = reservation.spend(record.len());
        let charge = if last { charge + reservation.spend_rest() } else { charge };
        self.append_for(reservation, charge, record, refers)
    }

    /// `charge` is the number of bytes that the append takes from the reservation. It returns those
    /// that the record does not need.
    fn append_for(&self, reservation: &Reservation, charge: u64, record: &[u8], refers: bool) -> RecordLsn {
        let shared = &*self.shared;
        assert!(!record.is_empty() && record.len() <= RECORD_MAX, "a record has 1 to RECORD_MAX bytes");
        assert!(Arc::ptr_eq(&self.shared, &reservation.shared), "a reservation belongs to one log");
        let mut wake = Wake::default();
        // Broken on purpose: a log write can take the batch before the lane has the record.
        let early = broken::is(Variant::UnfilledBatch).then(|| shared.place(record.len(), &mut wake));
        let mut lane = shared.stage.lane();
        let placed = early.unwrap_or_else(|| shared.place(record.len(), &mut wake));
        lane.add(&placed, record, refers);
        // While the lane is locked, no write of the batch can complete. So the tail cannot pass it.
        let used = shared.used_up_to(&placed);
        drop(lane);
        let rest =
            charge.checked_sub(placed.grown).expect("a record's charge pays for its bytes and padding");
        let returned = shared.room.give_back(rest);
        shared.room.note_reserved(returned.before, used - placed.grown);
        if returned.waited {
            shared.state.lock().grant(&mut wake);
        }
        wake.fire(&shared.writers);
        shared.stats.records.inc();
        shared.stats.bytes_appended.add(record.len() as u64);
        RecordLsn { start: placed.start, end: placed.end, write_start: placed.base }
    }

    /// Closes the open batch if it holds records. Returns the LSN at which the log write with the
    /// next record will start. If no append runs concurrently, the LSN is an exact cut: records
    /// appended before the call lie below it, later records do not.
    pub fn seal(&self) -> Lsn {
        let mut wake = Wake::default();
        let mut state = self.shared.state.lock();
        state.seal_open(&mut wake);
        let cut = state.tip.base();
        drop(state);
        wake.fire(&self.shared.writers);
        cut
    }
}

impl Shared {
    /// Assigns a record its range of the log. The caller holds the lock of its thread's lane.
    fn place(&self, record: usize, wake: &mut Wake) -> Placed {
        // With tracing, the mutex keeps the traced events in the order of the log.
        if !trace::COLLECTS
            && let Some(placed) = self.tip.place(record)
        {
            return placed;
        }
        let mut state = self.state.lock();
        loop {
            if let Some(placed) = self.tip.place(record) {
                trace::note(|| Event::Append { start: placed.start, end: placed.end });
                return placed;
            }
            // No other thread is closing a batch, since the mutex is held. So the record does not
            // fit into the open batch. It fits into an empty batch, unless other threads fill that
            // first.
            state.seal_open(wake);
        }
    }

    /// Returns the bytes of the ring in use up to the end of a record. Panics if they exceed the
    /// ring: the log would overwrite records that are still needed.
    fn used_up_to(&self, placed: &Placed) -> u64 {
        let used = placed.padded_end().0 - self.tail.load(Acquire);
        assert!(used <= self.ring.bytes(), "log of {used} bytes in a ring of {}", self.ring.bytes());
        used
    }
}
