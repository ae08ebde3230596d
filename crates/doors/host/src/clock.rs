//! The clock of a new image, whose date `SOURCE_DATE_EPOCH` can fix, and the clock of an image
//! whose clients compare time stamps.

use crate::usage::Usage;
use anyhow::Result;
use kedge_base::{Clock, SystemClock, Timespec};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The time in `SOURCE_DATE_EPOCH`.
pub fn source_date() -> Result<Option<Timespec>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let text = text.to_string_lossy();
    match text.parse::<i64>() {
        Ok(sec) if sec >= 0 => Ok(Some(Timespec { sec, nsec: 0 })),
        _ => Err(Usage(format!("SOURCE_DATE_EPOCH={text}: not a number of seconds")).into()),
    }
}

/// A clock with a fixed date, so that an image can be reproduced. Intervals are still measured.
struct FixedClock {
    now: Timespec,
    real: SystemClock,
}

impl Clock for FixedClock {
    fn now(&self) -> Timespec {
        self.now
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }
}

/// The clock of a new image.
pub fn of(date: Option<Timespec>) -> Arc<dyn Clock> {
    match date {
        None => Arc::new(SystemClock::default()),
        Some(now) => Arc::new(FixedClock { now, real: SystemClock::default() }),
    }
}

/// A clock of which no two readings are equal. NFS clients conclude from equal time stamps that a
/// file has not changed, and the system's clock stands still for some milliseconds at a time.
///
/// A reading is that of the system's clock, or the last reading and a nanosecond if that is later.
/// So time stamps run ahead of the system's clock by a nanosecond for each change within its tick.
/// If the system's clock is set back, readings follow it.
pub(crate) struct DistinctClock {
    system: SystemClock,
    /// The last reading, in nanoseconds since 1970.
    last: AtomicI64,
}

impl DistinctClock {
    /// A clock that is set back by more than this is followed: more than a clock can be ahead.
    const BACK: i64 = 1_000_000_000;

    pub(crate) fn new() -> DistinctClock {
        DistinctClock { system: SystemClock::default(), last: AtomicI64::new(i64::MIN) }
    }

    /// The reading after `last` when the system's clock shows `now`.
    fn after(last: i64, now: i64) -> i64 {
        if last >= now && last.saturating_sub(now) < Self::BACK { last + 1 } else { now }
    }
}

impl Clock for DistinctClock {
    fn now(&self) -> Timespec {
        const SECOND: i64 = 1_000_000_000;
        let system = self.system.now();
        // Exact until the year 2262.
        let now = system.sec.saturating_mul(SECOND).saturating_add(system.nsec.into());
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            let next = DistinctClock::after(last, now);
            match self.last.compare_exchange_weak(last, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    let nsec = next.rem_euclid(SECOND) as u32;
                    return Timespec { sec: next.div_euclid(SECOND), nsec };
                }
                Err(newer) => last = newer,
            }
        }
    }

    fn monotonic(&self) -> Duration {
        self.system.monotonic()
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
