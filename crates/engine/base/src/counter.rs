//! Counters and power-of-two histograms, cheap enough to be always on.

use crate::machine;
use serde::Serialize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A monotonic event count.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub fn inc(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Raises the value to `n` if it is lower: a high-water mark.
    pub fn raise(&self, n: u64) {
        self.0.fetch_max(n, Relaxed);
    }
}

/// Power-of-two histogram: bucket 0 counts the value 0, bucket `i` the values in `[2^(i-1), 2^i)`.
/// The caller chooses the unit of the values (nanoseconds for latencies).
///
/// Threads record in *stripes*, which are summed when the histogram is read. With a single counter
/// each operation would move its cache line from processor to processor. A stripe is allocated at
/// its first use.
#[derive(Debug, Default)]
pub struct Histogram {
    stripes: [OnceLock<Box<Stripe>>; STRIPES],
}

/// One stripe, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe {
    buckets: [AtomicU64; 65],
    sum: AtomicU64,
    max: AtomicU64,
}

/// Number of stripes among which counters, locks and queues distribute threads.
pub const STRIPES: usize = 8;

/// Returns the stripe of the calling thread, a number below [`STRIPES`]. It never changes for a
/// thread.
pub fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Relaxed) % STRIPES;
    }
    machine::thread_number().map_or_else(|| MINE.with(|mine| *mine), |thread| thread % STRIPES)
}

impl Histogram {
    pub fn record(&self, value: u64) {
        let stripe = self.stripes[stripe()].get_or_init(|| {
            Box::new(Stripe {
                buckets: [const { AtomicU64::new(0) }; 65],
                sum: AtomicU64::new(0),
                max: AtomicU64::new(0),
            })
        });
        stripe.buckets[64 - value.leading_zeros() as usize].fetch_add(1, Relaxed);
        stripe.sum.fetch_add(value, Relaxed);
        if stripe.max.load(Relaxed) < value {
            stripe.max.fetch_max(value, Relaxed);
        }
    }

    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut buckets = vec![0; 65];
        let (mut sum, mut max) = (0u64, 0);
        for stripe in self.stripes.iter().filter_map(OnceLock::get) {
            buckets.iter_mut().zip(&stripe.buckets).for_each(|(all, own)| *all += own.load(Relaxed));
            sum = sum.wrapping_add(stripe.sum.load(Relaxed));
            max = max.max(stripe.max.load(Relaxed));
        }
        buckets.truncate(buckets.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1));
        HistogramSnapshot { count: buckets.iter().sum(), sum, max, buckets }
    }
}

/// The counts of a [`Histogram`] at one point in time.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HistogramSnapshot {
    pub count: u64,
    pub sum: u64,
    pub max: u64,
    /// Counts by bucket, as [`Histogram`] defines them, without trailing empty buckets.
    pub buckets: Vec<u64>,
}

impl HistogramSnapshot {
    pub fn average(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// Returns the upper bound of the bucket that contains the `q` quantile (`q` from 0 to 1).
    pub fn quantile(&self, q: f64) -> u64 {
        let want = (self.count as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= want {
                return if i == 0 { 0 } else { (((1u128 << i) - 1) as u64).min(self.max) };
            }
        }
        self.max
    }
}

#[cfg(test)]
#[path = "counter_tests.rs"]
mod tests;
