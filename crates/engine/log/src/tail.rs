//! The tail, which advances after a checkpoint. The free space of the ring is between the head and
//! the position of the tail one lap later.

use crate::room::ReserveClass;
use crate::shared::Log;
use crate::wait::Wake;
use kedge_base::Lsn;
use kedge_base::atomic::Ordering::{Acquire, Release};
use kedge_base::trace::{self, Event};

/// How the bytes of the ring are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogSpace {
    pub ring_bytes: u64,
    /// Bytes between the tail and the padded end of the open batch.
    pub used_bytes: u64,
    /// Bytes held by reservations.
    pub reserved_bytes: u64,
    /// Maximum of `reserved_bytes` since the log was opened. It is sampled when a record is
    /// appended and when a waiting reservation is granted.
    pub reserved_bytes_max: u64,
    /// Bytes promised to records that have no reservation yet.
    pub promised_bytes: u64,
    /// The unused bytes of the ring in percent, rounded down.
    pub free_percent: u8,
}

impl Log {
    /// Returns the end of the last appended record.
    pub fn head_lsn(&self) -> Lsn {
        self.shared.tip.head()
    }

    /// Returns the LSN below which everything is durable.
    pub fn durable_lsn(&self) -> Lsn {
        Lsn(self.shared.durable.load(Acquire))
    }

    /// Returns the LSN below which nothing is needed any more.
    pub fn tail_lsn(&self) -> Lsn {
        Lsn(self.shared.tail.load(Acquire))
    }

    /// Frees the space below `lsn`. Call it once a superblock slot with `lsn` as its tail is
    /// durable: the log may overwrite these bytes from now on, and its writes contain the new tail,
    /// which recovery takes as proof that such a slot existed. An `lsn` below the present tail
    /// changes nothing.
    ///
    /// # Panics
    /// If `lsn` is beyond the durable LSN, or is neither the start of a log write nor the LSN of
    /// the next write. Recovery could not start there.
    pub fn advance_tail(&self, lsn: Lsn) {
        let mut wake = Wake::default();
        let mut state = self.shared.state.lock();
        if lsn <= state.tail {
            return;
        }
        assert!(lsn <= state.durable, "tail {lsn} beyond the durable log {}", state.durable);
        let opened_before = state.write_starts.front().copied().unwrap_or(state.tip.base());
        while state.write_starts.front().is_some_and(|&start| start < lsn) {
            state.write_starts.pop_front();
        }
        let next = state.write_starts.front().copied().unwrap_or(state.tip.base());
        assert!(lsn == next || lsn <= opened_before, "tail {lsn} lies in the middle of a log write");
        let freed = lsn.0 - state.tail.0;
        state.tail = lsn;
        trace::note(|| Event::Tail(lsn));
        self.shared.tail.store(lsn.0, Release);
        if self.shared.room.give_back(freed).waited {
            state.grant(&mut wake);
        }
        state.nudge(&mut wake);
        drop(state);
        wake.fire(&self.shared.writers);
    }

    /// Changes by `delta` the bytes that are promised to records which
    /// [`crate::ReserveClass::Reclaim`] reservations will hold later. Include
    /// [`crate::RECORD_OVERHEAD`] for each record.
    pub fn promise(&self, delta: i64) {
        let mut wake = Wake::default();
        let mut state = self.shared.state.lock();
        if self.shared.room.promise(delta).is_some_and(|returned| returned.waited) {
            state.grant(&mut wake);
        }
        drop(state);
        wake.fire(&self.shared.writers);
    }

    /// Returns the bytes that a normal reservation could take now. Takes no lock, because it is
    /// called after each operation.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes_max().saturating_sub(self.shared.room.taken())
    }

    /// Returns the value of [`Log::free_bytes`] for an empty log.
    pub fn free_bytes_max(&self) -> u64 {
        self.shared.room.limit(ReserveClass::Normal)
    }

    pub fn space(&self) -> LogSpace {
        let state = self.shared.state.lock();
        let (ring, usable) = (self.shared.ring.bytes(), self.shared.room.bytes());
        let (used, promised) = (state.used(), self.shared.room.promised());
        let reserved = state.reserve.reserved(used);
        let reserved_bytes_max = self.shared.room.reserved_max().max(reserved);
        drop(state);
        let free = usable.saturating_sub(used + reserved + promised);
        LogSpace {
            ring_bytes: ring,
            used_bytes: used,
            reserved_bytes: reserved,
            reserved_bytes_max,
            promised_bytes: promised,
            free_percent: (free * 100 / usable) as u8,
        }
    }
}
