//! Crashes recoveries again.
//!
//! The check does what the program does when it restarts, so in a crash state it may repair files:
//! roll a transaction back, replay a log, remove what is unfinished. Power can fail during that as
//! well. Here the check's own run in a crash state is recorded, and the crash states of that
//! recording are judged by the same check; their recoveries are recorded in turn, to a given depth.
//!
//! What a recovery has read is durable, so its recording starts from the crash state, and the
//! promises made before the first crash still hold. The recording's complete state comes first: the
//! check runs again on what it left, without a second crash. If that fails, the recovery, or the
//! check, cannot be repeated.
//!
//! Every crash state could have its recovery recorded, but a recording needs a mount. So of each
//! recording the states are taken in the order of the search, whose first states are the most
//! suspicious, until enough of them had a recovery that changed something.

use crate::campaign::{Campaign, Report};
use crate::explore::Plan;
use crate::history::History;
use crate::model::Model;
use crate::page::Digest;
use crate::recipe::{Pick, Recipe};
use crate::recoveries::{FailingRecovery, Recoveries};
use crate::run::{Budget, Case, Checker, Ended, Hear, Phase, Progress, Verdict};
use crate::trace::Trace;
use kedge_base::{Clock, SystemClock};
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// States tried of one recovery.
const STATES_OF_ONE: u64 = 1000;
/// Recordings for each recovery that changes something: in most states there may be nothing to do.
const RECORDINGS_EACH: u64 = 4;
/// Recipes in a row that lead to no new state, after which a recording has no more states to take.
const STALE_MAX: u64 = 500;
/// Failing recoveries that are explained; the others are counted.
const EXPLAINED_MAX: usize = 4;
/// Failing recoveries after which the search ends.
const FAILING_MAX: u64 = 16;

/// Records what the check does in a crash state.
pub trait Recorder: Sync {
    fn record(&self, case: &Case<'_>) -> Result<Trace, String>;
}

impl<F: Fn(&Case<'_>) -> Result<Trace, String> + Sync> Recorder for F {
    fn record(&self, case: &Case<'_>) -> Result<Trace, String> {
        self(case)
    }
}

/// A run over the recoveries of a recording.
pub struct Again<'a> {
    pub trace: &'a Trace,
    pub model: Model,
    pub checker: &'a dyn Checker,
    pub recorder: &'a dyn Recorder,
    /// How often a recovery is crashed in turn.
    pub depth: u32,
    /// At each depth: recoveries that are crashed.
    pub recoveries: u64,
    pub budget: Budget,
    pub hear: Option<Hear<'a>>,
}

/// A recording whose crash states have recoveries: the program's, or that of a recovery.
struct Ground<'a> {
    trace: Cow<'a, Trace>,
    /// The names of the crash states that led here, each with a `/`.
    within: String,
    /// The promises made before.
    told: Vec<String>,
}

/// The checker for the states of a recovery.
struct Within<'a> {
    checker: &'a dyn Checker,
    ground: &'a Ground<'a>,
}

impl Within<'_> {
    fn all_told<'t>(&'t self, told: &[&'t str]) -> Vec<&'t str> {
        self.ground.told.iter().map(String::as_str).chain(told.iter().copied()).collect()
    }
}

impl Checker for Within<'_> {
    fn check(&self, case: &Case<'_>) -> Verdict {
        let told = self.all_told(case.told);
        self.checker.check(&Case { told: &told, within: &self.ground.within, ..*case })
    }
}

impl Again<'_> {
    pub fn run(&self) -> Recoveries {
        let clock = SystemClock::default();
        let mut found = Recoveries { depth: self.depth, ..Recoveries::default() };
        let mut seen = HashSet::new();
        let first = Ground { trace: Cow::Borrowed(self.trace), within: String::new(), told: Vec::new() };
        let mut grounds = vec![first];
        for depth in 1..=self.depth {
            let each = self.recoveries.div_ceil(grounds.len().max(1) as u64);
            let mut next = Vec::new();
            for ground in &grounds {
                let left = self.recoveries.saturating_sub(next.len() as u64).min(each);
                // A recording holds the whole tree, so the last ones are not kept.
                let keep = |recovery| {
                    if depth < self.depth {
                        next.push(recovery);
                    }
                };
                self.crash(ground, left, &mut seen, &mut found, keep, &clock);
            }
            grounds = next;
        }
        found.took = clock.monotonic();
        found
    }

    /// Whether the run must end now.
    fn is_over(&self, found: &mut Recoveries, clock: &SystemClock) -> bool {
        let is_late = self.budget.time.is_some_and(|time| clock.monotonic() >= time);
        let is_stopped = self.budget.stop.load(Ordering::Relaxed);
        let is_over = is_late || is_stopped || found.failing_recoveries >= FAILING_MAX;
        found.is_cut |= is_over;
        is_over || found.broken.is_some()
    }

    /// Records recoveries of a recording's crash states and crashes them.
    fn crash(
        &self,
        ground: &Ground<'_>,
        mut left: u64,
        seen: &mut HashSet<(Digest, usize)>,
        found: &mut Recoveries,
        mut keep: impl FnMut(Ground<'static>),
        clock: &SystemClock,
    ) {
        let history = History::new(&ground.trace, self.model);
        let mut plan = Plan::new(&ground.trace, &history, self.budget.seed, self.budget.order);
        let within = Within { checker: self.checker, ground };
        let mut recordings = left * RECORDINGS_EACH;
        let mut stale = 0;
        while left > 0 && recordings > 0 && stale < STALE_MAX && !self.is_over(found, clock) {
            let recipe = plan.next();
            let state = history.state(&recipe);
            let marks = ground.trace.marks(recipe.at as usize);
            let told = within.all_told(&marks);
            if !seen.insert((state.digest(), told.len())) {
                stale += 1;
                continue;
            }
            (stale, recordings) = (0, recordings - 1);
            let moment = ground.trace.time_before(recipe.at);
            let case =
                Case { recipe: &recipe, state: &state, told: &told, moment, within: &ground.within, job: 0 };
            let recovery = match self.recorder.record(&case) {
                Ok(trace) => trace,
                Err(why) if self.budget.stop.load(Ordering::Relaxed) => {
                    tracing::debug!("a recording was stopped: {why}");
                    continue;
                }
                Err(why) => {
                    found.broken = Some(format!("the recovery from state {}{recipe}: {why}", case.within));
                    return;
                }
            };
            if recovery.end() != Some(0) {
                found.broken = self.refused(&case, &recovery);
                continue;
            }
            found.recorded += 1;
            if recovery.events.iter().skip(recovery.start()).all(|e| e.call.is_note()) {
                found.idle += 1;
                continue;
            }
            left -= 1;
            let ground = Ground {
                trace: Cow::Owned(recovery),
                within: format!("{}{recipe}/", ground.within),
                told: told.iter().map(|text| (*text).to_owned()).collect(),
            };
            if self.judge(&ground, found, clock) {
                keep(ground);
            }
        }
    }

    /// A check that fails while it is recorded has failed in the search as well, which tries the
    /// same states first, unless a limit ended that. Otherwise it needs something that the
    /// recorder's mount does not have.
    fn refused(&self, case: &Case<'_>, recovery: &Trace) -> Option<String> {
        match self.checker.check(case) {
            Verdict::Good => Some(format!(
                "the check accepts state {}{} and fails there while it is recorded (exit code {})",
                case.within,
                case.recipe,
                recovery.end().unwrap_or(-1)
            )),
            Verdict::Bad(_) => None,
            Verdict::Broken(why) => Some(why),
        }
    }

    /// Judges the crash states of a recovery. `true`: none fails, so that their recoveries can be
    /// crashed in turn.
    fn judge(&self, ground: &Ground<'_>, found: &mut Recoveries, clock: &SystemClock) -> bool {
        let within = Within { checker: self.checker, ground };
        let mut budget = self.budget.of_states(STATES_OF_ONE);
        budget.time = self.budget.time.map(|time| time.saturating_sub(clock.monotonic()));
        if found.failures.len() >= EXPLAINED_MAX {
            budget.explain = Some(Duration::ZERO);
        }
        let campaign =
            Campaign { trace: &ground.trace, model: self.model, checker: &within, budget, hear: None };
        let report = campaign.run();
        found.states += report.outcome.states;
        found.failing += report.outcome.failing;
        found.is_cut |= matches!(report.outcome.ended, Ended::Time | Ended::Stopped)
            || (report.outcome.ended == Ended::States && report.outcome.unreached > 0);
        if let Some(why) = &report.outcome.broken {
            found.broken = Some(format!("the recovery from state {}: {why}", ground.within));
        }
        if let Some(hear) = self.hear {
            let (checked, failing, time) = (found.states, found.failing, clock.monotonic());
            hear(Progress { phase: Phase::Again, checked, failing, time });
        }
        if !report.failed() {
            return report.passed();
        }
        found.failing_recoveries += 1;
        for failure in failures(ground, &report) {
            let cause = |f: &FailingRecovery| f.explanation.as_ref().map(|e| e.cause.clone());
            let is_known = found.failures.iter().any(|known| cause(known) == cause(&failure));
            if !is_known && found.failures.len() < EXPLAINED_MAX {
                found.failures.push(failure);
            }
        }
        false
    }
}

/// The failures of a recovery, one for each cause.
fn failures(ground: &Ground<'_>, report: &Report) -> Vec<FailingRecovery> {
    let from = ground.within.trim_end_matches('/');
    let whole = Recipe::new(ground.trace.events.len() as u32, Pick::All);
    if let Some(message) = &report.fails_uncrashed {
        let sentence = format!(
            "The check accepts the crash state {from} and recovers from it. It fails when it runs once more on what it \
             left, without a crash in between: the recovery, or the check itself, cannot be repeated."
        );
        let state = format!("{}{whole}", ground.within);
        return vec![FailingRecovery { state, sentence, message: message.clone(), explanation: None }];
    }
    let name = |state: &dyn std::fmt::Display| format!("{}{state}", ground.within);
    let explained = report.failures.iter().map(|e| FailingRecovery {
        state: name(&e.state),
        sentence: format!("In the recovery from the crash state {from}: {}", e.sentence),
        message: e.message.clone(),
        explanation: Some(e.clone()),
    });
    let explained: Vec<FailingRecovery> = explained.collect();
    match (explained.is_empty(), report.outcome.failures.first()) {
        (true, Some(first)) => vec![FailingRecovery {
            state: name(&first.recipe),
            sentence: format!(
                "A crash during the recovery from the crash state {from} leaves a state that fails."
            ),
            message: first.message.clone(),
            explanation: None,
        }],
        _ => explained,
    }
}

#[cfg(test)]
#[path = "again_tests.rs"]
mod tests;
