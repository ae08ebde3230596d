//! Tries crash states until the budget ends, and reports what was covered.
//!
//! Recipes are taken and their states built under one lock, so that the states tried depend on
//! recording, model, seed and a budget counted in states, never on thread scheduling. Checkers run
//! in parallel.

use crate::early::Early;
use crate::explore::{Plan, SearchOrder};
use crate::history::History;
use crate::page::Digest;
use crate::recipe::{Pick, Recipe};
use crate::state::State;
use crate::trace::{Marks, Trace};
use kedge_base::{Clock, SystemClock};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// After this many recipes in a row without a new state, random search stops.
const STALE_MAX: u64 = 5000;
/// Failing states kept for the report; all are counted.
const FAILURES_KEPT_MAX: usize = 200;

/// If no limit was set for explaining, it may take as long as the search's time limit, but at least
/// this.
const EXPLAIN_MIN: Duration = Duration::from_secs(30);

/// A crash state to be judged.
pub struct Case<'a> {
    pub recipe: &'a Recipe,
    pub state: &'a State,
    /// The marks before the crash.
    pub told: &'a [&'a str],
    /// The time of the last event before the crash.
    pub moment: u64,
    /// The part of the state's name before the recipe: the names of the crash states in whose
    /// recovery this crash comes, each followed by a `/`; in a cluster, the states of other nodes.
    pub within: &'a str,
    /// Which of the parallel checkers this is, from 0.
    pub job: usize,
}

/// A checker's verdict on a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// The program does not recover, or broke a promise; with the reason.
    Bad(String),
    /// The state could not be judged; this is no verdict on the program.
    Broken(String),
}

pub trait Checker: Sync {
    fn check(&self, case: &Case<'_>) -> Verdict;
}

impl<F: Fn(&Case<'_>) -> Verdict + Sync> Checker for F {
    fn check(&self, case: &Case<'_>) -> Verdict {
        self(case)
    }
}

#[derive(Clone, Debug)]
pub struct Budget {
    /// Limit of distinct states.
    pub states: Option<u64>,
    pub time: Option<Duration>,
    /// Limit of time for explaining. `None`: as long as the search's limit, and at least 30
    /// seconds.
    pub explain: Option<Duration>,
    /// Stop after this many failing states.
    pub failures: Option<u64>,
    pub seed: u64,
    pub order: SearchOrder,
    pub jobs: usize,
    /// When set, the search ends at once.
    pub stop: Arc<AtomicBool>,
}

impl Budget {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Why a search that has tried this many states ends now, if it does.
    pub(crate) fn ended(&self, states: u64, now: Duration) -> Option<Ended> {
        if self.is_stopped() {
            Some(Ended::Stopped)
        } else if self.states.is_some_and(|max| states >= max) {
            Some(Ended::States)
        } else {
            self.time.is_some_and(|max| now >= max).then_some(Ended::Time)
        }
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            states: Some(10_000),
            time: None,
            explain: None,
            failures: None,
            seed: 1,
            order: SearchOrder::default(),
            jobs: 1,
            stop: Arc::default(),
        }
    }
}

impl Budget {
    /// The time limit for explaining.
    pub(crate) fn explain_time(&self) -> Option<Duration> {
        self.explain.or_else(|| self.time.map(|t| t.max(EXPLAIN_MIN)))
    }

    /// A budget for a search with a missing call inserted: at most `most` states, and no more than
    /// the user allowed for the search itself, since a check may take seconds. The time limit is
    /// that of explaining, which the checker enforces ([`crate::explaining`]).
    pub(crate) fn of_states(&self, most: u64) -> Budget {
        let states = self.states.map_or(most, |states| states.min(most));
        Budget { states: Some(states), time: None, failures: None, ..self.clone() }
    }
}

/// Why the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All systematic states were tried, and random ones repeat.
    Covered,
    States,
    Time,
    Failures,
    /// The caller asked for it.
    Stopped,
    /// A state could not be judged, see [`Outcome::broken`].
    Broken,
}

impl Ended {
    /// Whether a limit or a signal left states untried.
    pub(crate) fn is_cut(self, unreached: u64) -> bool {
        matches!(self, Ended::Time | Ended::Stopped) || (self == Ended::States && unreached > 0)
    }
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub recipe: Recipe,
    pub message: String,
    /// The ordinal of the state in the search.
    pub number: u64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Distinct states judged.
    pub states: u64,
    /// Recipes taken; the others led to states already judged.
    pub recipes: u64,
    /// Systematic recipes, and how many of them the budget did not reach.
    pub planned: u64,
    pub unreached: u64,
    pub failing: u64,
    /// How many of the failing states lie before the first promise (module `early`).
    pub failing_early: u64,
    /// The first failing states, in the order in which they were tried.
    pub failures: Vec<Failure>,
    pub ended: Ended,
    pub broken: Option<String>,
    pub took: Duration,
}

impl Outcome {
    /// Nothing failed and every systematic state was tried.
    pub fn is_whole(&self) -> bool {
        self.unreached == 0 && self.broken.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Search,
    Explain,
    /// Recoveries are recorded and crashed.
    Again,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub phase: Phase,
    /// States judged by the search, runs of the checker during explaining, or states of recoveries.
    pub checked: u64,
    /// Failing states that the search found.
    pub failing: u64,
    /// Time since the phase began.
    pub time: Duration,
}

/// Receives the progress of a run.
pub type Hear<'a> = &'a (dyn Fn(Progress) + Sync);

struct Source<'a> {
    plan: Plan<'a>,
    /// States that were taken: the visible content, and the number of marks before the crash.
    seen: HashSet<(Digest, usize)>,
    states: u64,
    recipes: u64,
    stale: u64,
    /// States that were taken and not judged.
    unjudged: u64,
    ended: Option<Ended>,
}

impl Source<'_> {
    /// The last state taken, or one taken with it, has no verdict.
    fn end_without_verdict(&mut self, why: Ended) {
        self.states -= 1;
        self.unjudged += 1;
        self.ended.get_or_insert(why);
    }
}

#[derive(Default)]
struct Found {
    failing: u64,
    failing_early: u64,
    judged: u64,
    failures: Vec<Failure>,
    broken: Option<String>,
}

/// One search through the states of a recording.
pub struct Search<'a> {
    pub trace: &'a Trace,
    pub history: &'a History,
    pub checker: &'a dyn Checker,
    pub budget: Budget,
    pub hear: Option<Hear<'a>>,
}

impl Search<'_> {
    pub fn run(&self) -> Outcome {
        let clock = SystemClock::default();
        let source = Mutex::new(Source {
            plan: Plan::new(self.trace, self.history, self.budget.seed, self.budget.order),
            seen: HashSet::new(),
            states: 0,
            recipes: 0,
            stale: 0,
            unjudged: 0,
            ended: None,
        });
        let found = Mutex::new(Found::default());
        let marks = self.trace.all_marks();
        let jobs = self.budget.jobs.clamp(1, 256);
        std::thread::scope(|scope| {
            for job in 1..jobs {
                let (source, found, marks, clock) = (&source, &found, &marks, &clock);
                scope.spawn(move || self.work(job, source, found, marks, clock));
            }
            self.work(0, &source, &found, &marks, &clock);
        });
        let took = clock.monotonic();
        let (source, mut found) = (source.into_inner(), found.into_inner());
        found.failures.sort_by_key(|f| f.number);
        let (taken, left) = source.plan.finish();
        Outcome {
            states: source.states,
            recipes: source.recipes,
            planned: taken + left,
            unreached: left + source.unjudged,
            failing: found.failing,
            failing_early: found.failing_early,
            failures: found.failures,
            ended: source.ended.unwrap_or(Ended::Covered),
            broken: found.broken,
            took,
        }
    }

    fn work(
        &self,
        job: usize,
        source: &Mutex<Source<'_>>,
        found: &Mutex<Found>,
        marks: &Marks<'_>,
        clock: &SystemClock,
    ) {
        let early = Early::of(self.trace, self.history);
        loop {
            let next = self.next(&mut source.lock(), marks, clock);
            let Some((number, recipe, state)) = next else { return };
            let told = marks.before(recipe.at);
            let moment = self.trace.time_before(recipe.at);
            let verdict =
                self.checker.check(&Case { recipe: &recipe, state: &state, told, moment, within: "", job });
            if self.is_stopped() {
                return source.lock().end_without_verdict(Ended::Stopped);
            }
            let mut found = found.lock();
            found.judged += 1;
            match verdict {
                Verdict::Good => {}
                Verdict::Bad(message) => {
                    found.failing += 1;
                    found.failing_early += u64::from(early.has(recipe.at));
                    if found.failures.len() < FAILURES_KEPT_MAX {
                        found.failures.push(Failure { recipe, message, number });
                    }
                    if self.budget.failures.is_some_and(|max| found.failing >= max) {
                        source.lock().ended.get_or_insert(Ended::Failures);
                    }
                }
                Verdict::Broken(why) => {
                    found.judged -= 1;
                    found.broken.get_or_insert(why);
                    source.lock().end_without_verdict(Ended::Broken);
                }
            }
            if let Some(hear) = self.hear {
                let (checked, failing, time) = (found.judged, found.failing, clock.monotonic());
                hear(Progress { phase: Phase::Search, checked, failing, time });
            }
        }
    }

    /// The next state that has not been judged.
    fn next(
        &self,
        source: &mut Source<'_>,
        marks: &Marks<'_>,
        clock: &SystemClock,
    ) -> Option<(u64, Recipe, State)> {
        loop {
            if source.ended.is_none() {
                source.ended = self.end(source, clock.monotonic());
            }
            if source.ended.is_some() {
                return None;
            }
            // The complete states are tried first: if one fails, the checker's failures are not due
            // to crashes.
            let recipe = match source.recipes {
                0 => Recipe::new(*self.history.points().end(), Pick::All),
                _ => source.plan.next(),
            };
            source.recipes += 1;
            let state = self.history.state(&recipe);
            let told = marks.before(recipe.at).len();
            if source.seen.insert((state.digest(), told)) {
                source.states += 1;
                source.stale = 0;
                return Some((source.states, recipe, state));
            }
            source.stale += 1;
        }
    }

    fn is_stopped(&self) -> bool {
        self.budget.is_stopped()
    }

    fn end(&self, source: &mut Source<'_>, now: Duration) -> Option<Ended> {
        let is_covered = source.stale >= STALE_MAX && source.plan.is_random();
        self.budget.ended(source.states, now).or_else(|| is_covered.then_some(Ended::Covered))
    }
}
