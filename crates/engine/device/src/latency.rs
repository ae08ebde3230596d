//! How long the small requests of a device take, and how fast one answer follows another: running
//! estimates of the medians, for each kind of request.
//!
//! The sizes of the engine's batches follow them, and people read them. Nothing of it is on the
//! device, and no order of writes depends on it.
//!
//! Each request moves the estimate towards its own time, by a sixteenth of the estimate at most. So
//! one slow request changes next to nothing, a step of a factor of ten is followed within some
//! forty requests, and the estimate rests where as many requests are faster as are slower. That is
//! a median without a window of samples: one word, no lock. Two requests that end together may
//! count as one. A mean was the alternative; a single request of a second would rule it for
//! hundreds of others.
//!
//! # Batches
//! Of a batch, the request that is answered first tells the latency: the others have waited for one
//! another. The time from there to the last answer, divided by the requests between, is the
//! *interval*. It tells a disk, which serves one request after another, from a server far away,
//! which serves many at a time: both may take 8 ms for a request alone. What fits into one round
//! trip is therefore latency over interval ([`Latency::at_once`]).
//!
//! Only requests of at most [`SMALL`] bytes count: for larger ones the bandwidth decides. Requests
//! that fail do not count.

use crate::Op;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of the largest request that counts: a few tree nodes.
pub const SMALL: u64 = 64 << 10;
/// An estimate moves by one part in so many.
const STEP: u64 = 16;

/// Requests whose latency is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LatencyKind {
    Read,
    Write,
    /// A write with FUA.
    DurableWrite,
    Flush,
}

impl LatencyKind {
    pub const ALL: [LatencyKind; 4] =
        [LatencyKind::Read, LatencyKind::Write, LatencyKind::DurableWrite, LatencyKind::Flush];

    pub const fn name(self) -> &'static str {
        match self {
            LatencyKind::Read => "read",
            LatencyKind::Write => "write",
            LatencyKind::DurableWrite => "durable_write",
            LatencyKind::Flush => "flush",
        }
    }

    /// The kind of a request. `None`: it does not count.
    pub(crate) fn of(op: &Op) -> Option<LatencyKind> {
        if op.len() > SMALL {
            return None;
        }
        match op {
            Op::Read(_) => Some(LatencyKind::Read),
            Op::Write { fua, .. } => Some(LatencyKind::of_write(*fua)),
            Op::Flush => Some(LatencyKind::Flush),
            Op::Discard { .. } | Op::WriteZeroes { .. } => None,
        }
    }

    pub(crate) const fn of_write(fua: bool) -> LatencyKind {
        if fua { LatencyKind::DurableWrite } else { LatencyKind::Write }
    }
}

/// By [`LatencyKind`].
#[derive(Debug, Default)]
pub struct Latency {
    first: [Estimate; LatencyKind::ALL.len()],
    interval: [Estimate; LatencyKind::ALL.len()],
}

/// A median in nanoseconds; 0: there was no sample yet.
#[derive(Debug, Default)]
struct Estimate(AtomicU64);

impl Estimate {
    fn record(&self, sample: Duration) {
        // Below 1 there would be no estimate; a century fits.
        let sample = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX).max(1);
        let old = self.0.load(Relaxed);
        let step = (old / STEP).max(1);
        let new = match old {
            0 => sample,
            old if sample > old => sample.min(old.saturating_add(step)),
            old => sample.max(old.saturating_sub(step)),
        };
        if new != old {
            self.0.store(new, Relaxed);
        }
    }

    fn get(&self) -> Option<Duration> {
        let nanos = self.0.load(Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }
}

impl Latency {
    /// Takes note of a request that succeeded, alone or the first of its batch.
    pub fn record(&self, kind: LatencyKind, took: Duration) {
        self.first[kind as usize].record(took);
    }

    /// Takes note of the time between two answers of a batch.
    pub fn record_interval(&self, kind: LatencyKind, interval: Duration) {
        self.interval[kind as usize].record(interval);
    }

    /// How long a request takes. `None`: there was no such request yet, or nobody measures this
    /// device.
    pub fn typical(&self, kind: LatencyKind) -> Option<Duration> {
        self.first[kind as usize].get()
    }

    /// How many requests the device answers while one takes its round trip. `None`: it is not
    /// known.
    pub fn at_once(&self, kind: LatencyKind) -> Option<usize> {
        let (round_trip, interval) = (self.typical(kind)?, self.interval[kind as usize].get()?);
        Some(usize::try_from(round_trip.as_nanos() / interval.as_nanos().max(1)).unwrap_or(usize::MAX))
    }

    /// How many times a round trip holds `unit`, at least 1 and at most `most`: by how much a size
    /// that was chosen for a latency of up to `unit` grows. The round trip is the estimate of the
    /// first of `kinds` that has one; without any, the answer is 1.
    pub fn times(&self, kinds: &[LatencyKind], unit: Duration, most: usize) -> usize {
        let typical = kinds.iter().find_map(|kind| self.typical(*kind)).unwrap_or_default();
        let times = typical.as_nanos() / unit.as_nanos().max(1);
        usize::try_from(times).unwrap_or(most).clamp(1, most.max(1))
    }
}

#[cfg(test)]
#[path = "latency_tests.rs"]
mod tests;
