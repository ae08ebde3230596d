//! Measures whether processors are idle.
//!
//! [`crate::placement`] saves wake-ups of idle processors. If none is idle, there is nothing to
//! save, and a thread with `SCHED_IDLE` gets almost no time.

use crate::companion::process_set;
use std::time::Duration;

/// The time between two readings. The kernel reports in steps of 10 ms.
const INTERVAL: Duration = Duration::from_millis(100);
/// The processors count as busy if the sum of their idle times is less than the elapsed time
/// divided by this number. A single client leaves more idle time, with and without the companion:
/// the client waits, or the second processor does.
const PART: u32 = 8;

/// Samples the idle time of the processors that this process may use.
pub(crate) struct Spare {
    /// Time and idle time of the last reading.
    last: Option<(Duration, Duration)>,
    busy: bool,
}

impl Spare {
    /// Begins the first interval.
    pub(crate) fn new(now: Duration) -> Spare {
        Spare { last: idle_time().map(|idle| (now, idle)), busy: false }
    }

    /// Whether the processors were busy in the last complete interval. False if the kernel reports
    /// no idle times.
    pub(crate) fn are_busy(&mut self, now: Duration) -> bool {
        if self.last.is_some_and(|(at, _)| now.saturating_sub(at) >= INTERVAL) {
            self.judge(now, idle_time());
        }
        self.busy
    }

    fn judge(&mut self, now: Duration, idle: Option<Duration>) {
        self.busy = match (self.last, idle) {
            (Some((at, before)), Some(idle)) => idle.saturating_sub(before) < now.saturating_sub(at) / PART,
            _ => false,
        };
        self.last = idle.map(|idle| (now, idle));
    }
}

/// The sum of the idle times of the processors that this process may use.
fn idle_time() -> Option<Duration> {
    let set = process_set().ok()?;
    let ticks = idle_ticks(&std::fs::read_to_string("/proc/stat").ok()?, |cpu| {
        cpu < rustix::thread::CpuSet::MAX_CPU && set.is_set(cpu)
    })?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_micros(ticks.checked_mul(1_000_000)? / per_second))
}

/// The sum of the fields 4 (idle) and 5 (waiting for a device) of the processors' lines in
/// proc_stat(5). `counts` selects processors. `None` if it selects none of them.
fn idle_ticks(stat: &str, counts: impl Fn(usize) -> bool) -> Option<u64> {
    let of_line = |line: &str| -> Option<u64> {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu = fields.next()?.parse().ok().filter(|cpu| counts(*cpu))?;
        let _: usize = cpu;
        let times: Vec<u64> = fields.skip(3).take(2).map_while(|field| field.parse().ok()).collect();
        times.into_iter().reduce(u64::saturating_add)
    };
    stat.lines().filter(|line| !line.starts_with("cpu ")).filter_map(of_line).reduce(u64::saturating_add)
}

#[cfg(test)]
#[path = "spare_tests.rs"]
mod tests;
