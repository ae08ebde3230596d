//! Tries crash states until the budget ends, and reports what was covered.
//!
//! Recipes are taken and their states are built under one lock. So the states tried depend on the
//! recording, the model, the seed and a budget counted in states, and never on the scheduling of
//! threads. Checkers run in parallel.

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

/// The number of recipes in a row without a new state after which random search stops.
const STALE_MAX: u64 = 5000;
/// The most failing states that are kept for the report. All are counted.
const FAILURES_KEPT_MAX: usize = 200;

/// The minimal time for explaining if the user set no limit. Without a limit, explaining may take
/// as long as the search's time limit.
const EXPLAIN_MIN: Duration = Duration::from_secs(30);

/// A crash state to be judged.
pub struct Case<'a> {
    pub recipe: &'a Recipe,
    pub state: &'a State,
    /// The texts of the marks before the crash.
    pub told: &'a [&'a str],
    /// The time of the last event before the crash, in nanoseconds since the recording of the
    /// program began. If the crash comes in a recovery, that of the crash before the first
    /// recovery.
    pub moment: u64,
    /// The beginning of the state's name before the recipe: the names of the crash states in whose
    /// recovery this crash comes, each followed by `/`; in a cluster also the states of other
    /// nodes.
    pub within: &'a str,
    /// The number of the parallel checker, from 0.
    pub job: usize,
}

/// A checker's verdict on a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// The program does not recover, or broke a promise, for this reason.
    Bad(String),
    /// The state could not be judged, for this reason. This is no verdict on the program.
    Broken(String),
}

pub trait Checker: Sync {
    fn check(&self, case: &Case<'_>) -> Verdict;

    /// A number that differs between two times ([`Case::moment`]) if the verdict on the same state
    /// may differ between crashes at these times, with the same promises before both. States with
    /// equal visible content are judged once for each number.
    fn stage(&self, _time: u64) -> usize {
        0
    }
}

impl<F: Fn(&Case<'_>) -> Verdict + Sync> Checker for F {
    fn check(&self, case: &Case<'_>) -> Verdict {
        self(case)
    }
}

#[derive(Clone, Debug)]
pub struct Budget {
    /// The most distinct states that are judged.
    pub states: Option<u64>,
    pub time: Option<Duration>,
    /// The time limit for explaining. `None`: the limit of the search, but at least 30 seconds.
    pub explain: Option<Duration>,
    /// The number of failing states after which the search stops.
    pub failures: Option<u64>,
    pub seed: u64,
    pub order: SearchOrder,
    pub jobs: usize,
    /// The caller sets this to end the search at once.
    pub stop: Arc<AtomicBool>,
}

impl Budget {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The reason to end a search that has tried this many states; `None` if it should continue.
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
    /// the user set for the search itself, since a check may take seconds. Its time limit is that
    /// of explaining, which the checker enforces ([`crate::explaining`]).
    pub(crate) fn of_states(&self, most: u64) -> Budget {
        let states = self.states.map_or(most, |states| states.min(most));
        Budget { states: Some(states), time: None, failures: None, ..self.clone() }
    }
}

/// Why the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All systematic states were tried, and random recipes lead to no new states.
    Covered,
    States,
    Time,
    Failures,
    /// The caller set [`Budget::stop`].
    Stopped,
    /// A state could not be judged; [`Outcome::broken`] has the reason.
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
    /// The number of the state in the order of the search.
    pub number: u64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The number of distinct states that were judged.
    pub states: u64,
    /// The number of recipes that were taken. Some led to states that were already judged.
    pub recipes: u64,
    /// The number of systematic recipes, and of those that the budget did not reach.
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
    /// Whether crash states were judged. A search begins with the complete state, in which nothing
    /// is lost: if a limit ended it there, the result says nothing about crashes.
    pub fn has_crash_states(&self) -> bool {
        crash_states_were_judged(self.states, self.unreached)
    }

    /// Whether nothing failed and every systematic state was tried.
    pub fn is_whole(&self) -> bool {
        self.unreached == 0 && self.broken.is_none()
    }
}

/// Whether a search of `states` states that left `unreached` systematic ones judged more than the
/// complete state. A recording without changes has no other state.
pub(crate) fn crash_states_were_judged(states: u64, unreached: u64) -> bool {
    states > 1 || states == 1 && unreached == 0
}

/// The verdict on a search that judged the complete state only.
pub(crate) const ONLY_COMPLETE: &str =
    "no verdict: the search ended before any crash state was tried; only the complete state was judged";

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
    /// The number of states judged by the search, of the checker's runs during explaining, or of
    /// states of recoveries.
    pub checked: u64,
    /// The number of failing states that the search found.
    pub failing: u64,
    /// The time since the phase began.
    pub time: Duration,
}

/// A function that receives the progress of a run.
pub type Hear<'a> = &'a (dyn Fn(Progress) + Sync);

struct Source<'a> {
    plan: Plan<'a>,
    /// The states that were taken, as the digest of the visible contents, the number of marks
    /// before the crash, and the checker's stage there.
    seen: HashSet<(Digest, usize, usize)>,
    states: u64,
    recipes: u64,
    stale: u64,
    /// The number of states that were taken and not judged.
    unjudged: u64,
    ended: Option<Ended>,
}

impl Source<'_> {
    /// Ends the search because the last state taken, or one taken with it, has no verdict.
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
            // Try the complete state first: if it fails, the checker's failures are not due to
            // crashes.
            let recipe = match source.recipes {
                0 => Recipe::new(*self.history.points().end(), Pick::All),
                _ => source.plan.next(),
            };
            source.recipes += 1;
            let state = self.history.state(&recipe);
            let told = marks.before(recipe.at).len();
            let stage = self.checker.stage(self.trace.time_before(recipe.at));
            if source.seen.insert((state.digest(), told, stage)) {
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
