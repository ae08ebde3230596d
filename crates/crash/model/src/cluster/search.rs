//! Tries states of a cluster until the budget ends.
//!
//! States are taken and built under one lock. So the states tried depend on the recordings, the
//! model, the seed and a budget counted in states, and never on the scheduling of threads.

use super::clock::Cluster;
use super::judge::judge;
use super::plan::{Plan, Recipes};
use crate::model::Model;
use crate::page::Digest;
use crate::recipe::{Pick, Recipe};
use crate::run::{Budget, Checker, Ended, Hear, Phase, Progress, Verdict, crash_states_were_judged};
use crate::state::State;
use kedge_base::{Clock, SystemClock};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::Duration;

/// The number of states in a row that were already judged after which random search stops.
const STALE_MAX: u64 = 2000;
/// The most failing states that are kept for the report. All are counted.
const FAILURES_KEPT_MAX: usize = 200;

#[derive(Clone, Debug)]
pub struct ClusterFailure {
    pub recipes: Vec<Recipe>,
    /// The name of the state.
    pub name: String,
    pub message: String,
    /// The number of the state in the order of the search.
    pub number: u64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct ClusterOutcome {
    pub model: Model,
    pub seed: u64,
    /// The number of distinct states that were judged.
    pub states: u64,
    /// The number of systematic states, and of those that the budget did not reach.
    pub planned: u64,
    pub unreached: u64,
    pub failing: u64,
    /// How many of the failing states lie before the first promise.
    pub failing_early: u64,
    /// The first failing states, in the order in which they were tried.
    pub failures: Vec<ClusterFailure>,
    pub ended: Ended,
    pub broken: Option<String>,
    pub took: Duration,
    /// The checker's message if it fails on the complete state.
    pub fails_uncrashed: Option<String>,
}

impl ClusterOutcome {
    /// Whether the checker judged states, and accepts the complete one.
    pub fn is_judged(&self) -> bool {
        self.broken.is_none() && self.fails_uncrashed.is_none() && self.states > 0
    }

    /// Whether crash states were judged, besides the complete state.
    pub fn has_crash_states(&self) -> bool {
        crash_states_were_judged(self.states, self.unreached)
    }

    /// Whether every systematic state was tried.
    pub fn is_whole(&self) -> bool {
        self.unreached == 0 && self.broken.is_none()
    }
}

/// One search through the states of a cluster.
pub struct ClusterSearch<'a> {
    pub cluster: &'a Cluster,
    /// Judges a tree with a directory for each node.
    pub checker: &'a dyn Checker,
    pub budget: Budget,
    pub hear: Option<Hear<'a>>,
}

struct Source<'a> {
    plan: Plan<'a>,
    /// The states that were taken, as the digests of the visible contents and the number of
    /// promises before the crash.
    seen: HashSet<(Vec<Digest>, usize)>,
    states: u64,
    taken: u64,
    stale: u64,
    /// The number of states that were taken and not judged.
    unjudged: u64,
    ended: Option<Ended>,
}

#[derive(Default)]
struct Found {
    failing: u64,
    failing_early: u64,
    judged: u64,
    failures: Vec<ClusterFailure>,
    broken: Option<String>,
}

impl ClusterSearch<'_> {
    pub fn run(&self) -> ClusterOutcome {
        let clock = SystemClock::default();
        let source = Mutex::new(Source {
            plan: Plan::new(self.cluster, self.budget.seed),
            seen: HashSet::new(),
            states: 0,
            taken: 0,
            stale: 0,
            unjudged: 0,
            ended: None,
        });
        let found = Mutex::new(Found::default());
        let jobs = self.budget.jobs.clamp(1, 256);
        std::thread::scope(|scope| {
            for job in 1..jobs {
                let (source, found, clock) = (&source, &found, &clock);
                scope.spawn(move || self.work(job, source, found, clock));
            }
            self.work(0, &source, &found, &clock);
        });
        let took = clock.monotonic();
        let (source, mut found) = (source.into_inner(), found.into_inner());
        found.failures.sort_by_key(|f| f.number);
        let (taken, left) = source.plan.finish();
        let whole = self.whole();
        let fails_uncrashed = found.failures.iter().find(|f| f.recipes == whole).map(|f| f.message.clone());
        ClusterOutcome {
            model: self.cluster.model,
            seed: self.budget.seed,
            states: source.states,
            planned: taken + left,
            unreached: left + source.unjudged,
            failing: found.failing,
            failing_early: found.failing_early,
            failures: found.failures,
            ended: source.ended.unwrap_or(Ended::Covered),
            broken: found.broken,
            took,
            fails_uncrashed,
        }
    }

    /// The state at the end of the recordings with nothing lost.
    fn whole(&self) -> Recipes {
        self.cluster.all(self.cluster.moments().len() - 1, &Pick::All)
    }

    fn work(&self, job: usize, source: &Mutex<Source<'_>>, found: &Mutex<Found>, clock: &SystemClock) {
        loop {
            let next = self.next(&mut source.lock(), clock);
            let Some((number, recipes, states)) = next else { return };
            let told = self.cluster.told(&recipes);
            let verdict = judge(self.cluster, self.checker, &recipes, &states, &told, job);
            let mut end = None;
            let mut found = found.lock();
            match verdict {
                _ if self.is_stopped() => end = Some(Ended::Stopped),
                Verdict::Good => found.judged += 1,
                Verdict::Bad(message) => {
                    found.judged += 1;
                    found.failing += 1;
                    found.failing_early += u64::from(self.cluster.is_early(&recipes));
                    if found.failures.len() < FAILURES_KEPT_MAX {
                        found.failures.push(ClusterFailure {
                            name: self.cluster.name(&recipes),
                            recipes,
                            message,
                            number,
                        });
                    }
                    if self.budget.failures.is_some_and(|max| found.failing >= max) {
                        source.lock().ended.get_or_insert(Ended::Failures);
                    }
                }
                Verdict::Broken(why) => {
                    found.broken.get_or_insert(why);
                    end = Some(Ended::Broken);
                }
            }
            if let Some(why) = end {
                let mut source = source.lock();
                source.states -= 1;
                source.unjudged += 1;
                source.ended.get_or_insert(why);
            }
            if let Some(hear) = self.hear {
                let (checked, failing, time) = (found.judged, found.failing, clock.monotonic());
                hear(Progress { phase: Phase::Search, checked, failing, time });
            }
        }
    }

    /// The next state that has not been judged.
    fn next(&self, source: &mut Source<'_>, clock: &SystemClock) -> Option<(u64, Recipes, Vec<State>)> {
        loop {
            if source.ended.is_none() {
                source.ended = self.end(source, clock.monotonic());
            }
            if source.ended.is_some() {
                return None;
            }
            // The complete state is tried first: if it fails, the failures are not due to crashes.
            let recipes = if source.taken == 0 { self.whole() } else { source.plan.next() };
            source.taken += 1;
            let states = self.cluster.states(&recipes);
            let told = self.cluster.told(&recipes).len();
            if source.seen.insert((states.iter().map(State::digest).collect(), told)) {
                source.states += 1;
                source.stale = 0;
                return Some((source.states, recipes, states));
            }
            source.stale += 1;
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.budget.is_stopped()
    }

    fn end(&self, source: &Source<'_>, now: Duration) -> Option<Ended> {
        let is_covered = source.stale >= STALE_MAX && source.plan.is_random();
        self.budget.ended(source.states, now).or_else(|| is_covered.then_some(Ended::Covered))
    }
}
