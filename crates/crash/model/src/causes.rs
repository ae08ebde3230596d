//! The causes of failing states. Each failing state is shrunk and explained, and states that the
//! same missing calls prevent are merged into one cause.

use crate::early::Early;
use crate::explain::{Also, Explainer, Explanation};
use crate::run::Failure;
use crate::shrink::Shrinker;

/// The most causes that a report explains; the failing states of others are only counted.
const CAUSES_MAX: usize = 8;
/// The most failing states of one search that are shrunk to find causes.
const SHRUNK_MAX: usize = 24;

pub(crate) struct Causes<'a> {
    explainer: &'a Explainer<'a>,
    shrinker: Shrinker<'a>,
    early: Early,
    found: Vec<Explanation>,
}

impl<'a> Causes<'a> {
    pub fn new(explainer: &'a Explainer<'a>) -> Causes<'a> {
        let (trace, history) = (explainer.trace, explainer.history);
        Causes {
            explainer,
            shrinker: Shrinker::new(trace, history, explainer.watched),
            early: Early::of(trace, history),
            found: Vec::new(),
        }
    }

    pub fn found(&self) -> &[Explanation] {
        &self.found
    }

    /// The causes, broken promises first.
    pub fn into_found(mut self) -> Vec<Explanation> {
        self.found.sort_by_key(|e| e.is_early);
        // If a state was explained itself later, do not list it below another one.
        let own: Vec<String> = self.found.iter().map(|e| e.state.clone()).collect();
        self.found.iter_mut().for_each(|e| e.also.retain(|also| !own.contains(&also.state)));
        self.found
    }

    /// Explains failing states. A state that lacks everything that the smallest form of an earlier
    /// state lacks counts as having the same cause. Returns how many states were not examined.
    pub fn explain(&mut self, failures: &[Failure]) -> u64 {
        let (explainer, watched) = (self.explainer, self.explainer.watched);
        let mut known: Vec<(bool, Vec<u32>)> = Vec::new();
        let (mut unexamined, mut shrunk_count) = (0, 0);
        // Broken promises first, since the number of explained failures is limited.
        let mut failures: Vec<&Failure> = failures.iter().collect();
        failures.sort_by_key(|failure| self.early.has(failure.recipe.at));
        for failure in failures {
            let is_early = self.early.has(failure.recipe.at);
            let lost = explainer.history.lost(&failure.recipe);
            let is_known = known.iter().any(|(early, roots)| {
                *early == is_early && !roots.is_empty() && roots.iter().all(|n| lost.binary_search(n).is_ok())
            });
            if is_known {
                continue;
            }
            let is_enough = shrunk_count == SHRUNK_MAX || self.found.len() == CAUSES_MAX;
            if is_enough || watched.is_stopped() || watched.is_over() {
                unexamined += 1;
                continue;
            }
            shrunk_count += 1;
            let shrunk = self.shrinker.shrink(&failure.recipe, &failure.message);
            let roots = (is_early, shrunk.roots.clone());
            let is_new = !known.contains(&roots);
            known.push(roots);
            if !is_new {
                continue;
            }
            let explanation = explainer.explain(&shrunk);
            if watched.is_stopped() {
                // The checker was stopped, so the explanation might be wrong.
                unexamined += 1;
                continue;
            }
            let is_same = |e: &Explanation| e.is_early == is_early && e.cause == explanation.cause;
            if !self.found.iter().any(is_same) {
                self.found.push(explanation);
            }
        }
        unexamined
    }

    /// Merges failures that the same missing calls prevent. Those whose calls prevent most failures
    /// are kept; the others are listed below them.
    pub fn merge(&mut self) {
        let count = self.found.len();
        let of = |i: usize| (0..count).filter(|j| *j != i && self.prevents(i, *j)).collect();
        let prevented: Vec<Vec<usize>> = (0..count).map(of).collect();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|i| std::cmp::Reverse(prevented[*i].len()));
        let mut below: Vec<Option<usize>> = vec![None; count];
        for i in order {
            if below[i].is_none() {
                // A failure that already has others listed below it stays a cause of its own.
                let is_free = |j: &&usize| below[**j].is_none() && !below.contains(&Some(**j));
                let free: Vec<usize> = prevented[i].iter().filter(is_free).copied().collect();
                free.into_iter().for_each(|j| below[j] = Some(i));
            }
        }
        let found = std::mem::take(&mut self.found);
        let also = |j: usize| {
            let Explanation { state, loss, message, also, .. } = found[j].clone();
            [Also { state, loss, message }].into_iter().chain(also)
        };
        let kept = (0..count).filter(|i| below[*i].is_none()).map(|i| {
            let more = (0..count).filter(|j| below[*j] == Some(i)).flat_map(also);
            Explanation { also: found[i].also.iter().cloned().chain(more).collect(), ..found[i].clone() }
        });
        self.found = kept.collect();
    }

    fn prevents(&self, i: usize, j: usize) -> bool {
        let (one, other) = (&self.found[i], &self.found[j]);
        // Do not list a broken promise below a failure before the first promise.
        one.is_early <= other.is_early && self.explainer.prevents(&one.fixes, other)
    }
}
