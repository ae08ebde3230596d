//! Running medians of the latency of small requests and of the interval between completions, for
//! each kind of request.
//!
//! The engine uses the medians to size its batches, and shows them to users. They are not stored on
//! the device, and no order of writes depends on them.
//!
//! Each sample moves the estimate towards the sample, by at most a sixteenth of the estimate. So
//! one slow request changes almost nothing, the estimate follows a change by a factor of ten within
//! some forty requests, and it rests where equally many requests are faster and slower. This gives
//! a median without a window of samples: one word and no lock. Two requests that end at the same
//! time may count as one. The rejected alternative is a mean: a single request of a second would
//! dominate it for hundreds of requests.
//!
//! # Batches
//! The latency of a batch is the latency of its first completion, because the other requests of the
//! batch have waited for each other. The time from the first completion to the last, divided by the
//! number of requests in between, is the *interval*. The interval distinguishes a disk, which
//! serves one request after another, from a distant server, which serves many at a time: a single
//! request may take 8 ms on both. So latency divided by interval is the number of requests that fit
//! into one round trip ([`Latency::at_once`]).
//!
//! Only requests of at most [`SMALL`] bytes are sampled, because bandwidth dominates the time of
//! larger ones. Failed requests are not sampled.

use crate::Op;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Size in bytes of the largest request that is sampled: a few tree nodes.
pub const SMALL: u64 = 64 << 10;
/// An estimate moves by at most 1 / `STEP` of its value.
const STEP: u64 = 16;

/// The kinds of requests whose latency is measured separately.
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

    /// Returns the kind of a request; `None` if the request is not sampled.
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

/// The medians of latency and interval for each [`LatencyKind`].
#[derive(Debug, Default)]
pub struct Latency {
    first: [Estimate; LatencyKind::ALL.len()],
    interval: [Estimate; LatencyKind::ALL.len()],
}

/// A median in nanoseconds; 0 before the first sample.
#[derive(Debug, Default)]
struct Estimate(AtomicU64);

impl Estimate {
    fn record(&self, sample: Duration) {
        // At least 1, because 0 means that there is no estimate. A `u64` suffices for centuries.
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
    /// Adds the latency of a successful request that was alone or the first of its batch to
    /// complete.
    pub fn record(&self, kind: LatencyKind, took: Duration) {
        self.first[kind as usize].record(took);
    }

    /// Adds the time between two completions of a batch.
    pub fn record_interval(&self, kind: LatencyKind, interval: Duration) {
        self.interval[kind as usize].record(interval);
    }

    /// Returns the median latency of a request. `None` before the first such request, and on a
    /// device that is not measured.
    pub fn typical(&self, kind: LatencyKind) -> Option<Duration> {
        self.first[kind as usize].get()
    }

    /// Returns how many requests the device completes within one round trip. `None` if that is not
    /// known.
    pub fn at_once(&self, kind: LatencyKind) -> Option<usize> {
        let (round_trip, interval) = (self.typical(kind)?, self.interval[kind as usize].get()?);
        Some(usize::try_from(round_trip.as_nanos() / interval.as_nanos().max(1)).unwrap_or(usize::MAX))
    }

    /// Returns how many times `unit` fits into a round trip, clamped to the range from 1 to `most`.
    /// The result is the factor for a size that was chosen for latencies up to `unit`. The round
    /// trip is the estimate of the first of `kinds` that has one; if none has, the result is 1.
    pub fn times(&self, kinds: &[LatencyKind], unit: Duration, most: usize) -> usize {
        let typical = kinds.iter().find_map(|kind| self.typical(*kind)).unwrap_or_default();
        let times = typical.as_nanos() / unit.as_nanos().max(1);
        usize::try_from(times).unwrap_or(most).clamp(1, most.max(1))
    }
}

#[cfg(test)]
#[path = "latency_tests.rs"]
mod tests;
