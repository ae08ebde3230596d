//! Crashes programs a second time, while they recover from a crash.
//!
//! The check does what the program does when it restarts, so in a crash state it may repair files:
//! roll a transaction back, replay a log, remove unfinished files. Power can fail during that as
//! well. So the run of the check in a crash state is recorded here, and the crash states of that
//! recording are judged by the same check. The recoveries from these states are recorded in turn,
//! to a given depth.
//!
//! What a recovery has read is durable, so its recording starts from the crash state, and the
//! promises made before the first crash still hold. The complete state of the recording comes
//! first: the check runs again on the files that the recovery left, without a second crash. If that
//! fails, the recovery, or the check, cannot be repeated.
//!
//! The recovery from every crash state could be recorded, but a recording needs a mount. So the
//! states of each recording are taken in the order of the search, whose first states are the most
//! suspicious, until enough of them had a recovery that changed something.
//!
//! A cluster recovers as a whole: its check runs on a mount for each node, and the recordings of
//! all nodes are again a cluster that loses power. The trait `Subject` has all that differs between
//! a program and a cluster.

mod recording;

use crate::model::Model;
use crate::page::Digest;
use crate::recipe::Recipe;
use crate::recoveries::{FailingRecovery, Recoveries};
use crate::run::{Budget, Case, Checker, Hear, Outcome, Phase, Progress, Verdict};
use crate::state::State;
use crate::trace::Trace;
use kedge_base::{Clock, SystemClock};
use recording::Recording;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The most recordings for each recovery that is to be crashed: in most states the program may have
/// nothing to recover.
const RECORDINGS_EACH: u64 = 4;
/// After this many recipes in a row without a new state, a recording has no more states to take.
const STALE_MAX: u64 = 500;
/// The number of failing recoveries that are explained; further ones are only counted.
const EXPLAINED_MAX: usize = 4;
/// The number of failing recoveries after which the search ends.
const FAILING_MAX: u64 = 16;

/// Records the calls of the check in a crash state. `T` is one recording, or one for each node.
pub trait Recorder<T>: Sync {
    fn record(&self, case: &Case<'_>) -> Result<T, String>;
}

impl<T, F: Fn(&Case<'_>) -> Result<T, String> + Sync> Recorder<T> for F {
    fn record(&self, case: &Case<'_>) -> Result<T, String> {
        self(case)
    }
}

/// A run that crashes the recoveries from the crash states of a program, or of a cluster.
pub struct Again<'a, T> {
    pub checker: &'a dyn Checker,
    pub recorder: &'a dyn Recorder<T>,
    /// How many times in a row a recovery is crashed: 1 crashes only recoveries of the program
    /// itself.
    pub depth: u32,
    /// The most recoveries that are crashed at each depth.
    pub recoveries: u64,
    pub budget: Budget,
    pub hear: Option<Hear<'a>>,
}

/// A program or a cluster whose crash states have recoveries that can be recorded.
pub(crate) trait Subject {
    /// The name of a crash state.
    type Recipe;
    /// What the recorder returns.
    type Recorded;
    /// The most states that are tried of one recovery.
    const STATES_OF_ONE: u64;

    /// The crash states in the order of the search. The sequence has no end.
    fn crash_states<'s>(&'s self, budget: &Budget) -> Box<dyn FnMut() -> Self::Recipe + 's>;
    fn crashed(&self, recipe: &Self::Recipe) -> Crashed;
    /// The promises before a crash.
    fn marks(&self, recipe: &Self::Recipe) -> Vec<&str>;
    /// Whether the crash comes before the first promise of a program that starts without files.
    fn is_early(&self, recipe: &Self::Recipe) -> bool;
    /// The name of the state without a crash.
    fn whole(&self) -> String;
    /// The recording of a recovery from one of the states.
    fn recovery(&self, recorded: Self::Recorded) -> Self;
    /// The exit code of the recorded command.
    fn end(&self) -> Option<i32>;
    /// Whether the recorded command changed nothing.
    fn is_idle(&self) -> bool;
    /// Searches the crash states, and explains the failures.
    fn search(&self, checker: &dyn Checker, budget: Budget) -> Searched;
}

/// A crash state.
pub(crate) struct Crashed {
    pub state: State,
    pub recipe: Recipe,
    /// The beginning of the state's name before its recipe, without the names of earlier states.
    pub within: String,
    pub moment: u64,
}

/// What a search through the states of a recovery found.
pub(crate) struct Searched {
    pub states: u64,
    pub failing: u64,
    /// A limit ended the search before its end.
    pub is_cut: bool,
    pub broken: Option<String>,
    pub passed: bool,
    /// The checker's message if it fails on the complete state.
    pub fails_uncrashed: Option<String>,
    /// One failure for each cause. The names of states are those within the recording.
    pub causes: Vec<FailingRecovery>,
    /// The name of the first failing state, and the checker's message.
    pub first: Option<(String, String)>,
}

/// A recording whose crash states are recovered from: that of the program, or of a recovery.
struct Ground<S> {
    subject: S,
    /// The names of the crash states that led to this recording, each followed by `/`.
    within: String,
    /// The promises made before this recording.
    told: Vec<String>,
    /// In the recording of a recovery, [`Case::moment`] of the crash in the program's recording.
    moment: Option<u64>,
}

/// The checker, with the names and promises of earlier recordings added to each case.
struct Within<'a, S> {
    checker: &'a dyn Checker,
    ground: &'a Ground<S>,
}

impl<S> Within<'_, S> {
    fn all_told<'t>(&'t self, told: &[&'t str]) -> Vec<&'t str> {
        self.ground.told.iter().map(String::as_str).chain(told.iter().copied()).collect()
    }
}

impl<S: Sync> Checker for Within<'_, S> {
    fn check(&self, case: &Case<'_>) -> Verdict {
        let (told, within) = (self.all_told(case.told), format!("{}{}", self.ground.within, case.within));
        let moment = self.ground.moment.unwrap_or(case.moment);
        self.checker.check(&Case { told: &told, within: &within, moment, ..*case })
    }

    fn stage(&self, time: u64) -> usize {
        self.checker.stage(self.ground.moment.unwrap_or(time))
    }
}

/// The failing crash states that the search found, each as the digest of the visible contents and
/// the number of promises before the crash.
pub(crate) struct Found {
    states: HashSet<(Digest, usize)>,
    /// Whether these are all failing states: a search keeps only the first ones.
    is_whole: bool,
}

impl Found {
    /// The states of a search that found `failing` of them and kept `kept`.
    pub fn by_search<'r, S: Subject>(
        subject: &S,
        kept: impl Iterator<Item = &'r S::Recipe>,
        failing: u64,
    ) -> Found
    where
        S::Recipe: 'r,
    {
        let mut count = 0;
        let key = |recipe: &S::Recipe| (subject.crashed(recipe).state.digest(), subject.marks(recipe).len());
        let states = kept.inspect(|_| count += 1).map(key).collect();
        Found { states, is_whole: count == failing }
    }

    /// Whether the search may have found this state.
    fn may_have(&self, state: &(Digest, usize)) -> bool {
        !self.is_whole || self.states.contains(state)
    }
}

impl Again<'_, Trace> {
    /// `outcome` is that of the search through the states of the recording.
    pub fn run(&self, trace: &Trace, model: Model, outcome: &Outcome) -> Recoveries {
        let first = Recording::of(trace, model);
        let found =
            Found::by_search(&first, outcome.failures.iter().map(|failure| &failure.recipe), outcome.failing);
        self.run_on(first, &found)
    }
}

impl<T> Again<'_, T> {
    pub(crate) fn run_on<S: Subject<Recorded = T> + Sync>(&self, first: S, by_search: &Found) -> Recoveries {
        let clock = SystemClock::default();
        let mut found = Recoveries { depth: self.depth, ..Recoveries::default() };
        let mut refusal = None;
        let mut seen = HashSet::new();
        let mut grounds =
            vec![Ground { subject: first, within: String::new(), told: Vec::new(), moment: None }];
        for depth in 1..=self.depth {
            let each = self.recoveries.div_ceil(grounds.len().max(1) as u64);
            let mut next = Vec::new();
            for ground in &grounds {
                let left = self.recoveries.saturating_sub(next.len() as u64).min(each);
                // A recording holds a whole tree, so the recordings of the last depth are not kept.
                let keep = |recovery| {
                    if depth < self.depth {
                        next.push(recovery);
                    }
                };
                let refused = self.crash(ground, left, &mut seen, &mut found, by_search, keep, &clock);
                refusal = refusal.or(refused);
            }
            grounds = next;
        }
        found.failures.extend(refusal);
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

    /// Records recoveries from crash states of a recording, and crashes each of them. Returns the
    /// first state on which the check fails without a second crash, if the search did not find it.
    #[allow(clippy::too_many_arguments)]
    fn crash<S: Subject<Recorded = T> + Sync>(
        &self,
        ground: &Ground<S>,
        mut left: u64,
        seen: &mut HashSet<(Digest, usize)>,
        found: &mut Recoveries,
        by_search: &Found,
        mut keep: impl FnMut(Ground<S>),
        clock: &SystemClock,
    ) -> Option<FailingRecovery> {
        let subject = &ground.subject;
        let mut next = subject.crash_states(&self.budget);
        let within = Within { checker: self.checker, ground };
        let mut recordings = left * RECORDINGS_EACH;
        let (mut stale, mut refusal) = (0, None);
        while left > 0 && recordings > 0 && stale < STALE_MAX && !self.is_over(found, clock) {
            let recipe = next();
            let Crashed { state, recipe: last, within: inner, moment } = subject.crashed(&recipe);
            let marks = subject.marks(&recipe);
            let told = within.all_told(&marks);
            let key = (state.digest(), told.len());
            if !seen.insert(key) {
                stale += 1;
                continue;
            }
            (stale, recordings) = (0, recordings - 1);
            let inner = format!("{}{inner}", ground.within);
            let moment = ground.moment.unwrap_or(moment);
            let name = format!("{inner}{last}");
            let case = Case { recipe: &last, state: &state, told: &told, moment, within: &inner, job: 0 };
            let recovery = match self.recorder.record(&case) {
                Ok(recorded) => subject.recovery(recorded),
                Err(why) if self.budget.stop.load(Ordering::Relaxed) => {
                    tracing::debug!("a recording was stopped: {why}");
                    continue;
                }
                Err(why) => {
                    found.broken = Some(format!("the recovery from state {name}: {why}"));
                    break;
                }
            };
            if recovery.end() != Some(0) {
                match self.refused(&case, &name, recovery.end()) {
                    Ok(failure) => {
                        // Recoveries of which a search found a failure are not recorded in turn, so
                        // a deeper state was never found.
                        let is_first = ground.within.is_empty();
                        if !(is_first && by_search.may_have(&key)) {
                            found.refused.states += 1;
                            found.refused.early += u64::from(is_first && subject.is_early(&recipe));
                            refusal.get_or_insert(failure);
                        }
                    }
                    Err(why) => found.broken = Some(why),
                }
                continue;
            }
            found.recorded += 1;
            if recovery.is_idle() {
                found.idle += 1;
                continue;
            }
            left -= 1;
            let ground = Ground {
                subject: recovery,
                within: format!("{name}/"),
                told: told.iter().map(|text| (*text).to_owned()).collect(),
                moment: Some(moment),
            };
            if self.judge(&ground, found, clock) {
                keep(ground);
            }
        }
        refusal
    }

    /// Judges a state once more on which the check failed while it was recorded. Normally it has
    /// failed in the search as well, which tries the same states first unless a limit ended it.
    /// Fails if the check cannot judge, or accepts the state: then it needs something that the
    /// recorder's mount lacks.
    fn refused(&self, case: &Case<'_>, name: &str, end: Option<i32>) -> Result<FailingRecovery, String> {
        match self.checker.check(case) {
            Verdict::Good => Err(format!(
                "the check accepts state {name} and fails there while it is recorded (exit code {})",
                end.unwrap_or(-1)
            )),
            Verdict::Bad(message) => Ok(FailingRecovery {
                state: name.to_owned(),
                sentence: format!(
                    "The check fails on the crash state {name}, which the search did not reach. A larger budget \
                     explains the failure."
                ),
                message,
                is_refusal: true,
                explanation: None,
                losses: Vec::new(),
            }),
            Verdict::Broken(why) => Err(why),
        }
    }

    /// Judges the crash states of a recovery. Returns `true` if none fails, so that the recoveries
    /// from these states can be crashed in turn.
    fn judge<S: Subject + Sync>(
        &self,
        ground: &Ground<S>,
        found: &mut Recoveries,
        clock: &SystemClock,
    ) -> bool {
        let within = Within { checker: self.checker, ground };
        let mut budget = self.budget.of_states(S::STATES_OF_ONE);
        budget.time = self.budget.time.map(|time| time.saturating_sub(clock.monotonic()));
        if found.failures.len() >= EXPLAINED_MAX {
            budget.explain = Some(Duration::ZERO);
        }
        let searched = ground.subject.search(&within, budget);
        found.states += searched.states;
        found.failing += searched.failing;
        found.is_cut |= searched.is_cut;
        if let Some(why) = &searched.broken {
            found.broken = Some(format!("the recovery from state {}: {why}", ground.within));
        }
        if let Some(hear) = self.hear {
            let (checked, failing, time) = (found.states, found.failing, clock.monotonic());
            hear(Progress { phase: Phase::Again, checked, failing, time });
        }
        if searched.failing == 0 {
            return searched.passed;
        }
        found.failing_recoveries += 1;
        for failure in failures(ground, searched) {
            let is_known = found.failures.iter().any(|known| known.cause() == failure.cause());
            if !is_known && found.failures.len() < EXPLAINED_MAX {
                found.failures.push(failure);
            }
        }
        false
    }
}

/// The failures of a recovery, one for each cause.
fn failures<S: Subject>(ground: &Ground<S>, searched: Searched) -> Vec<FailingRecovery> {
    let from = ground.within.trim_end_matches('/');
    let plain = |state: &str, sentence: String, message: String| {
        let state = format!("{}{state}", ground.within);
        let (is_refusal, explanation, losses) = (false, None, Vec::new());
        vec![FailingRecovery { state, sentence, message, is_refusal, explanation, losses }]
    };
    if let Some(message) = searched.fails_uncrashed {
        let sentence = format!(
            "The check accepts the crash state {from} and recovers from it. It fails when it runs once more on what it \
             left, without a crash in between: the recovery, or the check itself, cannot be repeated."
        );
        return plain(&ground.subject.whole(), sentence, message);
    }
    match (searched.causes.is_empty(), searched.first) {
        (true, Some((state, message))) => {
            let sentence =
                format!("A crash during the recovery from the crash state {from} leaves a state that fails.");
            plain(&state, sentence, message)
        }
        _ => { searched.causes.into_iter() }
            .map(|cause| FailingRecovery {
                state: format!("{}{}", ground.within, cause.state),
                sentence: format!("In the recovery from the crash state {from}: {}", cause.sentence),
                ..cause
            })
            .collect(),
    }
}

#[cfg(test)]
#[path = "again_tests.rs"]
mod tests;
