//! The clock of a new image, whose date `SOURCE_DATE_EPOCH` can fix.

use crate::usage::Usage;
use anyhow::Result;
use kedge_base::{Clock, SystemClock, Timespec};
use std::sync::Arc;
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
