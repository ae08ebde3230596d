//! What explaining costs: its checks are counted, shown, and ended when its time is over.
//!
//! A failing state is shrunk and its fixes are tried with the same checker as in the search, often
//! with more runs of it than the search had. So all of these runs go through [`Watched`]. When the
//! time is over it gives no more verdicts: what is under way then ends within one check, and what
//! it would have said is not said.

use crate::run::{Case, Checker, Hear, Phase, Progress, Verdict};
use kedge_base::{Clock, SystemClock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What explaining cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explaining {
    /// Runs of the checker.
    pub checks: u64,
    pub took: Duration,
    /// The limit that was reached before all was explained.
    pub cut_at: Option<Duration>,
}

/// The checker while failures are explained.
pub(crate) struct Watched<'a> {
    checker: &'a dyn Checker,
    clock: SystemClock,
    checks: AtomicU64,
    time: Option<Duration>,
    /// Something was not judged because the time was over.
    is_cut: AtomicBool,
    stop: &'a AtomicBool,
    hear: Option<Hear<'a>>,
    /// Failing states of the search, for those who hear of it.
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

    /// Whether there is no time for more. To ask is to want more: the answer goes into the report.
    pub fn is_over(&self) -> bool {
        let is_over = self.time.is_some_and(|time| self.clock.monotonic() >= time);
        if is_over {
            self.is_cut.store(true, Ordering::Relaxed);
        }
        is_over
    }

    /// Whether a verdict was refused for want of time.
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
}
