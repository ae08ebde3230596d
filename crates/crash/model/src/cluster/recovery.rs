//! A cluster whose nodes lose power again while they recover together.

use super::campaign::explore_cluster;
use super::clock::Cluster;
use super::judge::crashed;
use super::plan::{Plan, Recipes};
use super::search::{ClusterOutcome, ClusterSearch};
use crate::again::{Again, Crashed, Found, Searched, Subject};
use crate::recipe::Pick;
use crate::recoveries::{FailingRecovery, Recoveries};
use crate::run::{Budget, Checker};
use crate::trace::Trace;
use std::sync::Arc;

impl Again<'_, Vec<Trace>> {
    /// `outcome` is that of the search through the states of the cluster.
    pub fn run(&self, cluster: &Arc<Cluster>, outcome: &ClusterOutcome) -> Recoveries {
        let found = outcome.failures.iter().map(|failure| &failure.recipes);
        let found = Found::by_search(cluster, found, outcome.failing);
        self.run_on(cluster.clone(), &found)
    }
}

impl Subject for Arc<Cluster> {
    type Recipe = Recipes;
    type Recorded = Vec<Trace>;
    // A cluster starts slowly, so few states are tried.
    const STATES_OF_ONE: u64 = 100;

    fn crash_states<'s>(&'s self, budget: &Budget) -> Box<dyn FnMut() -> Recipes + 's> {
        let mut plan = Plan::new(self, budget.seed);
        Box::new(move || plan.next())
    }

    fn crashed(&self, recipes: &Recipes) -> Crashed {
        crashed(self, recipes, &self.states(recipes))
    }

    fn marks(&self, recipes: &Recipes) -> Vec<&str> {
        self.told(recipes)
    }

    fn is_early(&self, recipes: &Recipes) -> bool {
        Cluster::is_early(self, recipes)
    }

    fn whole(&self) -> String {
        self.name(&self.all(self.moments().len() - 1, &Pick::All))
    }

    fn recovery(&self, recorded: Vec<Trace>) -> Self {
        let recordings = self.names.iter().cloned().zip(recorded).collect();
        Arc::new(Cluster::new(recordings, self.model))
    }

    /// The exit code of the check, with which all recordings end.
    fn end(&self) -> Option<i32> {
        self.traces.first()?.end()
    }

    fn is_idle(&self) -> bool {
        self.traces.iter().all(Trace::is_unchanged)
    }

    fn search(&self, checker: &dyn Checker, budget: Budget) -> Searched {
        let report = explore_cluster(&ClusterSearch { cluster: self, checker, budget, hear: None });
        let passed = report.passed();
        let causes = report.causes.into_iter().map(|cause| FailingRecovery {
            sentence: cause.sentence(&self.names),
            state: cause.state,
            message: cause.message,
            is_refusal: false,
            explanation: None,
            losses: cause.losses,
        });
        let outcome = report.outcome;
        Searched {
            states: outcome.states,
            failing: outcome.failing,
            is_cut: outcome.ended.is_cut(outcome.unreached),
            broken: outcome.broken,
            passed,
            fails_uncrashed: outcome.fails_uncrashed,
            causes: causes.collect(),
            first: outcome.failures.into_iter().next().map(|f| (f.name, f.message)),
        }
    }
}
