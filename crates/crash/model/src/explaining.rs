//! Limits the cost of explaining: counts the checker's runs, shows progress, and stops when time is
//! over.
//!
//! Shrinking and trying fixes run the same checker as the search, often more times than the search
//! did. So all of these runs go through [`Watched`]. When the time limit is reached, it gives no
//! more verdicts: the step in progress ends within one check, and its result is dropped.

use crate::run::{Case, Checker, Hear, Phase, Progress, Verdict};
use kedge_base::{Clock, SystemClock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The cost of explaining.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explaining {
    /// The number of runs of the checker.
    pub checks: u64,
    pub took: Duration,
    /// The time limit, if it was reached before everything was explained.
    pub cut_at: Option<Duration>,
}

/// The checker that is used while failures are explained.
pub(crate) struct Watched<'a> {
    checker: &'a dyn Checker,
    clock: SystemClock,
    checks: AtomicU64,
    time: Option<Duration>,
    /// Whether a check was refused because the time limit was reached.
    is_cut: AtomicBool,
    stop: &'a AtomicBool,
    hear: Option<Hear<'a>>,
    /// The number of failing states of the search, which is passed on with the progress.
    failing: u64,
}

impl<'a> Watched<'a> {
    pub fn new(
        checker: &'a dyn Checker,
        time: Option<Duration>,
        stop: &'a AtomicBool,
        hear: Option<Hear<'a>>,
        failing: u64,
    ) -> Watched<'a> {
        let (clock, checks, is_cut) = (SystemClock::default(), AtomicU64::new(0), AtomicBool::new(false));
        Watched { checker, clock, checks, time, is_cut, stop, hear, failing }
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the time limit is reached. Only callers that still have work call this, so a
    /// positive result is recorded for the report.
    pub fn is_over(&self) -> bool {
        let is_over = self.time.is_some_and(|time| self.clock.monotonic() >= time);
        if is_over {
            self.is_cut.store(true, Ordering::Relaxed);
        }
        is_over
    }

    /// Whether work was left out because the time limit was reached.
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    pub fn cost(&self) -> Explaining {
        Explaining {
            checks: self.checks.load(Ordering::Relaxed),
            took: self.clock.monotonic(),
            cut_at: self.time.filter(|_| self.is_cut()),
        }
    }
}

impl Checker for Watched<'_> {
    fn check(&self, case: &Case<'_>) -> Verdict {
        if self.is_over() {
            return Verdict::Broken("the time for explaining is over".to_owned());
        }
        let verdict = self.checker.check(case);
        let checked = self.checks.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(hear) = self.hear {
            let (failing, time) = (self.failing, self.clock.monotonic());
            hear(Progress { phase: Phase::Explain, checked, failing, time });
        }
        verdict
    }

    fn stage(&self, time: u64) -> usize {
        self.checker.stage(time)
    }
}
