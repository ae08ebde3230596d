//! Time as a dependency: core crates take a [`Clock`], tests drive a [`ManualClock`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Wall-clock time: seconds since the epoch (may be negative) and nanoseconds below one second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: u32,
}

pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time, for inode timestamps.
    fn now(&self) -> Timespec;
    /// Monotonic time since an arbitrary start, for intervals and latencies.
    fn monotonic(&self) -> Duration;
}

/// The clocks of the operating system.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods)]
    fn default() -> Self {
        SystemClock { start: std::time::Instant::now() }
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)]
    fn now(&self) -> Timespec {
        let now = std::time::SystemTime::now();
        match now.duration_since(std::time::UNIX_EPOCH) {
            Ok(d) => Timespec { sec: d.as_secs() as i64, nsec: d.subsec_nanos() },
            Err(e) => Timespec { sec: -(e.duration().as_secs() as i64) - 1, nsec: 0 },
        }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that moves by one microsecond at each look and by [`ManualClock::advance`]: time stamps differ, runs repeat.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timespec {
        let n = self.nanos.fetch_add(1000, Ordering::Relaxed);
        Timespec { sec: 1_000_000_000 + (n / 1_000_000_000) as i64, nsec: (n % 1_000_000_000) as u32 }
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.nanos.fetch_add(1000, Ordering::Relaxed))
    }
}
