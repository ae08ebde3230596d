//! Latencies as a client of the file system measures them.

use kedge_base::{Clock, SystemClock};
use std::time::Duration;

/// The latencies of one operation, in nanoseconds. All of them are kept, since high quantiles need
/// single values.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<u32>);

impl Times {
    pub fn push(&mut self, took: Duration) {
        self.0.push(took.as_nanos().min(u32::MAX as u128) as u32);
    }

    /// Runs `work` and records how long it takes.
    pub fn time<R>(&mut self, clock: &SystemClock, work: impl FnOnce() -> R) -> R {
        let started = clock.monotonic();
        let answer = work();
        self.push(clock.since(started));
        answer
    }

    pub fn merge(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    pub fn count(&self) -> f64 {
        self.0.len() as f64
    }

    /// The average in milliseconds; NaN without any latency. The methods below return milliseconds,
    /// too.
    pub fn average(&self) -> f64 {
        self.0.iter().map(|ns| f64::from(*ns)).sum::<f64>() / self.count() / 1e6
    }

    pub fn max(&self) -> f64 {
        self.0.iter().max().map_or(f64::NAN, |ns| f64::from(*ns) / 1e6)
    }

    pub fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() as f64 * q).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(f64::NAN, |ns| f64::from(*ns) / 1e6)
    }
}

#[cfg(test)]
#[path = "times_tests.rs"]
mod tests;
