//! A whole run: search, shrink, explain.

use crate::causes::Causes;
use crate::describe::Paths;
use crate::disk::Disk;
use crate::explain::{Candidate, Explainer, Explanation, point_without_calls, with_calls};
use crate::explaining::{Explaining, Watched};
use crate::history::History;
use crate::model::Model;
use crate::recipe::{Pick, Recipe};
use crate::recoveries::{Recoveries, all_early};
use crate::run::{Budget, Case, Checker, Ended, Failure, Hear, Outcome, Search, Verdict};
use crate::trace::Trace;

/// The most states that are tried with all missing calls inserted.
const MENDED_STATES: u64 = 1000;
/// How many times the missing calls are inserted and the remaining failures explained.
const MENDINGS_MAX: usize = 3;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    pub model: Model,
    pub seed: u64,
    pub outcome: Outcome,
    /// The explained failures, one for each cause.
    pub failures: Vec<Explanation>,
    /// The checker's message if it fails on the complete state. Then no failure is due to a crash.
    pub fails_uncrashed: Option<String>,
    /// Failing states that were not examined.
    pub unexplained: u64,
    /// The number of states tried with all missing calls inserted together, and of those that
    /// failed.
    pub mended: Option<(u64, u64)>,
    /// The recoveries that were crashed, if the user requested that.
    pub again: Option<Recoveries>,
    /// The cost of explaining the failures; [`Outcome::took`] is the cost of the search.
    pub explaining: Explaining,
}

impl Report {
    pub fn failed(&self) -> bool {
        self.outcome.failing > 0 || self.again.as_ref().is_some_and(Recoveries::has_failed)
    }

    /// Whether all failures lie before the first promise, and no file was there at the start.
    pub fn is_early(&self) -> bool {
        all_early(self.outcome.failing, self.outcome.failing_early, self.again.as_ref())
    }

    /// Whether crash states were judged and none failed. [`Outcome::is_whole`] says whether all
    /// states were tried.
    pub fn passed(&self) -> bool {
        let is_judged = self.again.as_ref().is_none_or(|again| again.broken.is_none());
        !self.failed() && self.outcome.broken.is_none() && is_judged && self.outcome.has_crash_states()
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
            report.explaining = watched.cost();
        }
        report
    }

    /// Explains the failures, inserts the missing calls, and searches again. Failures that remain
    /// have causes that the first ones had hidden, and are explained in turn.
    fn explain(&self, history: &History, watched: &Watched<'_>, report: &mut Report) {
        let paths = Paths::of(self.trace);
        let explainer =
            Explainer { trace: self.trace, paths: &paths, history, watched, budget: &self.budget };
        let mut causes = Causes::new(&explainer);
        let outcome = &report.outcome;
        report.unexplained = causes.explain(&outcome.failures);
        report.unexplained += outcome.failing - outcome.failures.len() as u64;
        for _ in 0..MENDINGS_MAX {
            causes.merge();
            let Some((tried, hidden)) = self.mend(causes.found(), watched) else { break };
            report.mended = Some(tried);
            let before = causes.found().len();
            causes.explain(&hidden);
            if causes.found().len() == before {
                break;
            }
        }
        report.failures = causes.into_found();
    }

    /// Searches again with every missing call inserted. Returns how many states were tried and how
    /// many failed, and the failures converted to states of the recording itself.
    fn mend(&self, found: &[Explanation], watched: &Watched<'_>) -> Option<((u64, u64), Vec<Failure>)> {
        let fixes = found.iter().flat_map(|f| &f.fixes);
        let places: Vec<Candidate> = fixes.flat_map(|f| f.places.iter().copied()).collect();
        if places.is_empty() || watched.is_stopped() || watched.is_over() {
            return None;
        }
        let trace = with_calls(self.trace, &places);
        let mended = History::new(&trace, self.model);
        let budget = self.budget.of_states(MENDED_STATES);
        let outcome = Search { trace: &trace, history: &mended, checker: watched, budget, hear: None }.run();
        // If time ran out, the verdicts before still count.
        let is_judged = outcome.broken.is_none() || watched.is_cut();
        let is_counted = is_judged && outcome.states > 0 && outcome.ended != Ended::Stopped;
        let hidden = outcome
            .failures
            .iter()
            .map(|f| Failure { recipe: without_calls(&f.recipe, &places, &mended), ..f.clone() });
        is_counted.then(|| ((outcome.states, outcome.failing), hidden.collect()))
    }
}

/// Converts a state of the recording with inserted calls to the same state of the recording without
/// them. The edits are the same, and edits that can be lost with the calls can be lost without
/// them.
fn without_calls(recipe: &Recipe, places: &[Candidate], mended: &History) -> Recipe {
    let lost = mended.lost(recipe);
    let kept = (0..mended.upto(recipe.at) as u32).filter(|n| lost.binary_search(n).is_err());
    let at = point_without_calls(places, recipe.at);
    Recipe { at, pick: Pick::Keep(kept.collect()), torn: recipe.torn.clone() }
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
