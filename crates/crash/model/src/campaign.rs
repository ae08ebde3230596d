//! A whole run: search, shrink, explain.

use crate::describe::Paths;
use crate::disk::Disk;
use crate::explain::{Explainer, Explanation, with_calls};
use crate::explaining::{Explaining, Watched};
use crate::history::History;
use crate::model::Model;
use crate::recipe::{Pick, Recipe};
use crate::recoveries::Recoveries;
use crate::run::{Budget, Case, Checker, Ended, Hear, Outcome, Search, Verdict};
use crate::shrink::Shrinker;
use crate::trace::Trace;

/// Causes explained in a report; failing states beyond them are only counted.
const CAUSES_MAX: usize = 8;
/// Failing states that are shrunk to find causes.
const SHRUNK_MAX: usize = 24;
/// States tried with all missing calls inserted.
const MENDED_STATES: u64 = 1000;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    pub model: Model,
    pub seed: u64,
    pub outcome: Outcome,
    /// One for each cause.
    pub failures: Vec<Explanation>,
    /// The checker's message if it fails on the complete state: then its failures are not due to a
    /// crash.
    pub fails_uncrashed: Option<String>,
    /// Failing states that were not examined.
    pub unexplained: u64,
    /// States tried with all missing calls inserted together, and how many of them failed.
    pub mended: Option<(u64, u64)>,
    /// The recoveries that were crashed, if the user asked for it.
    pub again: Option<Recoveries>,
    /// The cost of explaining the failures; [`Outcome::took`] is the cost of the search.
    pub explaining: Explaining,
}

impl Report {
    pub fn failed(&self) -> bool {
        self.outcome.failing > 0 || self.again.as_ref().is_some_and(|again| again.failing > 0)
    }

    /// At least one state was judged and none failed. [`Outcome::is_whole`] says whether all were
    /// tried.
    pub fn passed(&self) -> bool {
        let is_judged = self.again.as_ref().is_none_or(|again| again.broken.is_none());
        !self.failed() && self.outcome.broken.is_none() && is_judged && self.outcome.states > 0
    }
}

/// A run over a recording under a model.
pub struct Campaign<'a> {
    pub trace: &'a Trace,
    pub model: Model,
    pub checker: &'a dyn Checker,
    pub budget: Budget,
    pub hear: Option<Hear<'a>>,
}

impl Campaign<'_> {
    pub fn run(&self) -> Report {
        let history = History::new(self.trace, self.model);
        let outcome = Search {
            trace: self.trace,
            history: &history,
            checker: self.checker,
            budget: self.budget.clone(),
            hear: self.hear,
        }
        .run();
        let whole = Recipe::new(*history.points().end(), Pick::All);
        let fails_uncrashed = outcome.failures.iter().find(|f| f.recipe == whole).map(|f| f.message.clone());
        let mut report = Report {
            model: self.model,
            seed: self.budget.seed,
            outcome,
            failures: Vec::new(),
            fails_uncrashed,
            unexplained: 0,
            mended: None,
            again: None,
            explaining: Explaining::default(),
        };
        // A checker that cannot run, or that fails without a crash, would fail on every state
        // during shrinking.
        if report.outcome.ended != Ended::Broken && report.fails_uncrashed.is_none() {
            let (time, failing) = (self.budget.explain_time(), report.outcome.failing);
            let watched = Watched::new(self.checker, time, &self.budget.stop, self.hear, failing);
            self.explain(&history, &watched, &mut report);
            report.mended = (!watched.is_stopped()).then(|| self.mend(&report, &watched)).flatten();
            report.explaining = watched.cost();
        }
        report
    }

    /// Searches again with every missing call inserted.
    fn mend(&self, report: &Report, watched: &Watched<'_>) -> Option<(u64, u64)> {
        let fixes = report.failures.iter().flat_map(|f| &f.fixes);
        let places: Vec<_> = fixes.flat_map(|f| f.places.iter().copied()).collect();
        if places.is_empty() || watched.is_over() {
            return None;
        }
        let trace = with_calls(self.trace, &places);
        let history = History::new(&trace, self.model);
        let budget = self.budget.of_states(MENDED_STATES);
        let outcome = Search { trace: &trace, history: &history, checker: watched, budget, hear: None }.run();
        // If time ran out, the states tried before still count.
        let is_judged = outcome.broken.is_none() || watched.is_cut();
        (is_judged && outcome.states > 0 && outcome.ended != Ended::Stopped)
            .then_some((outcome.states, outcome.failing))
    }

    fn explain(&self, history: &History, watched: &Watched<'_>, report: &mut Report) {
        let paths = Paths::of(self.trace);
        let shrinker = Shrinker::new(self.trace, history, watched);
        let explainer =
            Explainer { trace: self.trace, paths: &paths, history, watched, budget: &self.budget };
        let mut known: Vec<Vec<u32>> = Vec::new();
        let mut shrunk_count = 0;
        for failure in &report.outcome.failures {
            let lost = history.lost(&failure.recipe);
            let is_known = known
                .iter()
                .any(|roots| !roots.is_empty() && roots.iter().all(|n| lost.binary_search(n).is_ok()));
            if is_known {
                continue;
            }
            let is_enough = shrunk_count == SHRUNK_MAX || report.failures.len() == CAUSES_MAX;
            if is_enough || watched.is_stopped() || watched.is_over() {
                report.unexplained += 1;
                continue;
            }
            shrunk_count += 1;
            let shrunk = shrinker.shrink(&failure.recipe, &failure.message);
            let is_new = !known.contains(&shrunk.roots);
            known.push(shrunk.roots.clone());
            if !is_new {
                continue;
            }
            let explanation = explainer.explain(&shrunk);
            if watched.is_stopped() {
                // The last attempt got no verdict, so the sentence might be wrong.
                report.unexplained += 1;
                continue;
            }
            if !report.failures.iter().any(|e| e.cause == explanation.cause) {
                report.failures.push(explanation);
            }
        }
        report.unexplained += report.outcome.failing - report.outcome.failures.len() as u64;
    }
}

/// Explores a recording in this process: the judge gets each crash state as a [`Disk`] to recover
/// on, and the marks that the user had seen. Tries the systematic states and at most 10,000 states
/// in all, always the same ones.
pub fn explore_in_memory(
    trace: &Trace,
    model: Model,
    judge: impl Fn(&Disk, &[&str]) -> Result<(), String> + Sync,
) -> Report {
    let checker = |case: &Case<'_>| match judge(&Disk::after(case.state.clone()), case.told) {
        Ok(()) => Verdict::Good,
        Err(why) => Verdict::Bad(why),
    };
    Campaign { trace, model, checker: &checker, budget: Budget::default(), hear: None }.run()
}
