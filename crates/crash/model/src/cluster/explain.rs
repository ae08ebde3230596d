//! The smallest failing state of a cluster, and for each node that loses something: what it loses,
//! and the persistence call that prevents the failure.
//!
//! First, everything that a node lost is restored, node by node, as long as the check still fails.
//! Then the loss of each remaining node is shrunk and explained like that of a single recording,
//! while the other nodes keep theirs. Finally all missing calls are inserted into the recordings,
//! and the cluster is searched again.

use super::clock::Cluster;
use super::judge::judge;
use super::node::NodeView;
use super::plan::Recipes;
use super::search::{ClusterFailure, ClusterSearch};
use crate::describe::{Paths, count};
use crate::explain::{Candidate, Explainer, Explanation, NodeLoss, with_calls};
use crate::explaining::{Explaining, Watched};
use crate::history::History;
use crate::recipe::{Pick, Recipe};
use crate::run::{Budget, Hear, Phase, Progress, Verdict};
use crate::shrink::{Shrinker, Shrunk};
use kedge_base::{Clock, SystemClock};
use serde::Serialize;
use std::time::Duration;

/// The most causes that are explained.
const CAUSES_MAX: usize = 5;
/// The most states of a node that are tried with a missing call inserted. A cluster starts slowly.
const VERIFY_STATES: u64 = 40;
/// The most states of the cluster that are tried with all missing calls inserted.
const MENDED_STATES: u64 = 100;

/// A failure of the cluster explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterExplanation {
    /// The name by which the state can be reproduced.
    pub state: String,
    /// The checker's message.
    pub message: String,
    /// The last promise before the crash.
    pub told: Option<String>,
    /// Whether the crash comes before the first promise, and no file was there at the start.
    pub is_early: bool,
    /// Whether the time limit was reached before everything was tried.
    pub is_cut: bool,
    /// The nodes that must lose something; the others lose nothing.
    pub losses: Vec<NodeLoss>,
    /// The number of other failing states that the missing calls prevent too.
    pub also: u64,
    /// The number of states of the cluster tried with the missing calls inserted, and of those that
    /// failed.
    pub mended: Option<(u64, u64)>,
}

impl ClusterExplanation {
    /// A sentence about when the nodes lose power and which of them must lose something.
    pub(super) fn opening(&self, nodes: &[String]) -> String {
        let when = match &self.told {
            Some(told) => format!("after the promise {told:?}"),
            None => "before the first promise".to_owned(),
        };
        let lossy: Vec<&str> = self.losses.iter().map(|loss| loss.node.as_str()).collect();
        let what = match lossy.len() {
            0 => "no node loses anything, and the state does not pass the check".to_owned(),
            n if n == nodes.len() => "every node loses something".to_owned(),
            _ => format!("{} must lose something, and the others nothing", lossy.join(" and ")),
        };
        format!("All nodes lose power {when}: {what}.")
    }

    /// The failure as text, with the loss of each node.
    pub(super) fn sentence(&self, nodes: &[String]) -> String {
        let of_nodes =
            self.losses.iter().map(|loss| format!(" {}: {}", loss.node, loss.explanation.sentence));
        [self.opening(nodes)].into_iter().chain(of_nodes).collect()
    }

    /// A text about the effect of the missing calls of all nodes together.
    pub(super) fn effect(&self) -> Option<String> {
        let (states, failing) = self.mended?;
        let states = count(states, "state");
        Some(match failing {
            0 => format!("With the missing calls put in, none of {states} of the cluster fails."),
            n => format!("With the missing calls put in, {n} of {states} of the cluster still fail."),
        })
    }
}

/// The missing calls of one node, inserted into its recording.
struct Mending {
    node: usize,
    calls: Vec<Candidate>,
    history: History,
}

impl Mending {
    /// Whether a state is illegal with the calls inserted.
    fn prevents(&self, cluster: &Cluster, recipes: &[Recipe]) -> bool {
        let recipe = &recipes[self.node];
        let mut lost = cluster.histories[self.node].lost(recipe);
        lost.extend(recipe.torn.as_ref().map(|torn| torn.micro));
        let inserted = self.calls.iter().filter(|c| c.before <= recipe.at).count() as u32;
        !lost.is_empty() && !self.history.allows(recipe.at + inserted, &lost)
    }
}

struct Run<'a, 'b> {
    search: &'a ClusterSearch<'b>,
    clock: SystemClock,
    failing: u64,
    /// The number of runs of the checker so far.
    checks: u64,
    is_cut: bool,
}

/// Explains failures, one for each cause. Returns them with the cost of explaining.
pub(super) fn explain(
    search: &ClusterSearch<'_>,
    failures: &[ClusterFailure],
    failing: u64,
) -> (Vec<ClusterExplanation>, Explaining) {
    let mut run = Run { search, clock: SystemClock::default(), failing, checks: 0, is_cut: false };
    let mut causes: Vec<(ClusterExplanation, Vec<Mending>)> = Vec::new();
    for failure in failures {
        let is_full = causes.len() >= CAUSES_MAX;
        let known = causes.iter_mut().find(|(_, mendings)| {
            mendings.iter().any(|mending| mending.prevents(search.cluster, &failure.recipes))
        });
        match known {
            Some((cause, _)) => cause.also += 1,
            None if is_full || run.is_over() || search.is_stopped() => {}
            None => {
                let found = run.explain(failure);
                // A state that shrinks to a known one has the same cause.
                match causes.iter_mut().find(|(cause, _)| cause.state == found.0.state) {
                    Some((cause, _)) => cause.also += 1,
                    None => causes.push(found),
                }
            }
        }
    }
    let (took, cut_at) = (run.clock.monotonic(), run.limit().filter(|_| run.is_cut));
    let cost = Explaining { checks: run.checks, took, cut_at };
    (causes.into_iter().map(|(cause, _)| cause).collect(), cost)
}

impl Run<'_, '_> {
    fn limit(&self) -> Option<Duration> {
        self.search.budget.explain_time()
    }

    fn is_over(&mut self) -> bool {
        let is_over = self.limit().is_some_and(|limit| self.clock.monotonic() >= limit);
        self.is_cut |= is_over;
        is_over
    }

    fn hear(&self) {
        if let Some(hear) = self.search.hear {
            let (checked, failing, time) = (self.checks, self.failing, self.clock.monotonic());
            hear(Progress { phase: Phase::Explain, checked, failing, time });
        }
    }

    fn explain(&mut self, failure: &ClusterFailure) -> (ClusterExplanation, Vec<Mending>) {
        let cluster = self.search.cluster;
        let (mut recipes, mut message) = (failure.recipes.clone(), failure.message.clone());
        self.give_back_nodes(&mut recipes, &mut message);
        let mut shrunk: Vec<(usize, Shrunk)> = Vec::new();
        for node in 0..cluster.len() {
            if has_loss(cluster, node, &recipes) {
                self.shrink_node(node, &mut recipes, &mut message);
            }
        }
        for (node, recipe) in
            recipes.iter().enumerate().filter(|(node, _)| has_loss(cluster, *node, &recipes))
        {
            let history = &cluster.histories[node];
            let roots = history.roots(&history.lost(recipe));
            let (recipe, message) = (recipe.clone(), message.clone());
            shrunk.push((node, Shrunk { recipe, roots, message, checks: 0, is_cut: false }));
        }
        let losses: Vec<(usize, Explanation)> =
            shrunk.iter().map(|(node, shrunk)| (*node, self.explain_node(*node, shrunk, &recipes))).collect();
        let mendings: Vec<Mending> =
            losses.iter().filter_map(|(node, e)| mending(cluster, *node, e)).collect();
        let mended = self.mended(&mendings);
        let told = cluster.told(&recipes).last().map(|text| (*text).to_owned());
        let is_cut = self.is_over();
        let losses = losses
            .into_iter()
            .map(|(node, explanation)| NodeLoss { node: cluster.names[node].clone(), explanation });
        let explanation = ClusterExplanation {
            state: cluster.name(&recipes),
            message,
            told,
            is_early: cluster.is_early(&recipes),
            is_cut,
            losses: losses.collect(),
            also: 0,
            mended,
        };
        (explanation, mendings)
    }

    /// The checker's message if a state fails. `None` if it passes or is not judged.
    fn fails(&mut self, recipes: &[Recipe]) -> Option<String> {
        if self.is_over() || self.search.is_stopped() {
            return None;
        }
        self.checks += 1;
        self.hear();
        let cluster = self.search.cluster;
        let (states, told) = (cluster.states(recipes), cluster.told(recipes));
        match judge(cluster, self.search.checker, recipes, &states, &told, 0) {
            Verdict::Bad(message) => Some(message),
            Verdict::Good | Verdict::Broken(_) => None,
        }
    }

    /// Restores everything that a node lost, node by node, as long as the check still fails.
    fn give_back_nodes(&mut self, recipes: &mut Recipes, message: &mut String) {
        for node in 0..recipes.len() {
            let mut fewer = recipes.clone();
            fewer[node] = Recipe::new(recipes[node].at, Pick::All);
            if fewer[node] == recipes[node] || !has_loss(self.search.cluster, node, recipes) {
                *recipes = fewer;
                continue;
            }
            if let Some(why) = self.fails(&fewer) {
                (*recipes, *message) = (fewer, why);
            }
        }
    }

    fn shrink_node(&mut self, node: usize, recipes: &mut Recipes, message: &mut String) {
        let cluster = self.search.cluster;
        let Some(moment) = cluster.moment_of(recipes) else { return };
        let given = recipes.clone();
        let view = NodeView { cluster, checker: self.search.checker, node, recipes: &given, moment };
        let (trace, history) = (&cluster.traces[node], &cluster.histories[node]);
        let found = self
            .watching(&view, |watched| Shrinker::new(trace, history, watched).shrink(&given[node], message));
        let moment = view.moment_at(trace.time_before(found.recipe.at));
        if let Some(smaller) = view.moved(&found.recipe, moment) {
            (*recipes, *message) = (smaller, found.message);
        }
    }

    fn explain_node(&mut self, node: usize, shrunk: &Shrunk, recipes: &[Recipe]) -> Explanation {
        let cluster = self.search.cluster;
        let moment = cluster.moment_of(recipes).expect("a state of the search is at a moment");
        let view = NodeView { cluster, checker: self.search.checker, node, recipes, moment };
        let (trace, history) = (&cluster.traces[node], &cluster.histories[node]);
        let paths = Paths::of(trace);
        let budget = self.search.budget.of_states(VERIFY_STATES);
        self.watching(&view, |watched| {
            Explainer { trace, paths: &paths, history, watched, budget: &budget }.explain(shrunk)
        })
    }

    /// Runs a step with a checker that counts the checks and enforces the remaining time.
    fn watching<T>(&mut self, view: &NodeView<'_>, step: impl FnOnce(&Watched<'_>) -> T) -> T {
        let left = self.limit().map(|limit| limit.saturating_sub(self.clock.monotonic()));
        let (before, start) = (self.checks, self.clock.monotonic());
        let told = self.search.hear;
        let hear = |p: Progress| {
            if let Some(told) = told {
                told(Progress { checked: before + p.checked, time: start + p.time, ..p });
            }
        };
        let watched =
            Watched::new(view, left, &self.search.budget.stop, Some(&hear as Hear<'_>), self.failing);
        let result = step(&watched);
        let (cost, is_cut) = (watched.cost(), watched.is_cut());
        self.checks += cost.checks;
        self.is_cut |= is_cut;
        result
    }

    /// Searches the cluster again with the missing calls of all nodes inserted.
    fn mended(&mut self, mendings: &[Mending]) -> Option<(u64, u64)> {
        if mendings.is_empty() || self.is_over() || self.search.is_stopped() {
            return None;
        }
        let cluster = self.search.cluster;
        let mut traces = cluster.traces.clone();
        for mending in mendings {
            traces[mending.node] = with_calls(&cluster.traces[mending.node], &mending.calls);
        }
        let mended = Cluster::with(cluster.names.clone(), traces, cluster.model);
        let left = self.limit().map(|limit| limit.saturating_sub(self.clock.monotonic()));
        let budget = Budget { time: left, ..self.search.budget.of_states(MENDED_STATES) };
        let search = ClusterSearch { cluster: &mended, checker: self.search.checker, budget, hear: None };
        let outcome = search.run();
        self.checks += outcome.states;
        (outcome.states > 0 && outcome.broken.is_none()).then_some((outcome.states, outcome.failing))
    }
}

fn has_loss(cluster: &Cluster, node: usize, recipes: &[Recipe]) -> bool {
    recipes[node].torn.is_some() || !cluster.histories[node].lost(&recipes[node]).is_empty()
}

fn mending(cluster: &Cluster, node: usize, explanation: &Explanation) -> Option<Mending> {
    let mut calls: Vec<Candidate> =
        explanation.fixes.iter().flat_map(|fix| fix.places.iter().copied()).collect();
    calls.sort_by_key(|c| (c.before, c.ino));
    calls.dedup();
    if calls.is_empty() {
        return None;
    }
    let history = History::new(&with_calls(&cluster.traces[node], &calls), cluster.model);
    Some(Mending { node, calls, history })
}
