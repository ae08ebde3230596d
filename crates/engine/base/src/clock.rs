//! Clocks as a dependency: core crates take a [`Clock`], and tests advance a [`ManualClock`].

use crate::machine;
use rustix::time::{ClockId, clock_getres, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(target_os = "linux")]
const WALL: ClockId = ClockId::RealtimeCoarse;
#[cfg(not(target_os = "linux"))]
const WALL: ClockId = ClockId::Realtime;

/// The wall-clock time at which simulated time begins.
const SIMULATED_START: i64 = 1_000_000_000;

/// Wall-clock time: seconds since the epoch (may be negative) and nanoseconds below one second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: u32,
}

pub trait Clock: Send + Sync + 'static {
    /// Returns the wall-clock time, for inode time stamps.
    fn now(&self) -> Timespec;
    /// Returns the monotonic time since an arbitrary start, for intervals and latencies.
    fn monotonic(&self) -> Duration;

    /// Time since `moment`, an earlier result of [`Clock::monotonic`]; zero if `moment` is in the
    /// future.
    fn since(&self, moment: Duration) -> Duration {
        self.monotonic().saturating_sub(moment)
    }

    /// Makes the calling thread sleep. A test's clock may advance its time without sleeping.
    fn sleep(&self, time: Duration) {
        pause(time);
    }
}

/// Does what [`Clock::sleep`] does, for callers without a clock: before an image is open, and in
/// tests.
#[allow(clippy::disallowed_methods)]
#[cfg_attr(feature = "simulated", track_caller)]
pub fn pause(time: Duration) {
    crate::wait::about_to_wait();
    if !machine::sleep(time) {
        std::thread::sleep(time);
    }
}

/// Time after which a test reports a wait as a hang. It is this long because a test must not fail
/// only because the machine is slow: on a busy machine a wait for another thread may take minutes.
pub const HANG: Duration = Duration::from_secs(1800);

/// The clocks of the operating system; for a thread of a [`machine`], virtual time.
///
/// Wall-clock time comes from the kernel's coarse clock, which advances once a tick (some
/// milliseconds). The kernel's own file systems take time stamps from it, and on a mount both
/// kernel and server stamp files. A precise clock in the server would run ahead of the kernel's by
/// up to a tick, and a file could look older than a file that was written before it.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl SystemClock {
    /// Returns the interval at which the operating system's coarse wall clock advances.
    pub fn tick() -> Duration {
        let tick = clock_getres(WALL);
        Duration::new(tick.tv_sec as u64, tick.tv_nsec as u32)
    }
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods)]
    fn default() -> Self {
        SystemClock { start: std::time::Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timespec {
        if let Some(now) = machine::wall() {
            return Timespec { sec: SIMULATED_START + now.as_secs() as i64, nsec: now.subsec_nanos() };
        }
        let now = clock_gettime(WALL);
        Timespec { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
    }

    #[allow(clippy::disallowed_methods)]
    fn monotonic(&self) -> Duration {
        machine::now().unwrap_or_else(|| self.start.elapsed())
    }
}

/// A clock that advances by one microsecond at each reading and by [`ManualClock::advance`], so
/// that time stamps differ and runs are reproducible.
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
        Timespec { sec: SIMULATED_START + (n / 1_000_000_000) as i64, nsec: (n % 1_000_000_000) as u32 }
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.nanos.fetch_add(1000, Ordering::Relaxed))
    }
}
