//! A whole run over a cluster: search, shrink, explain.

use super::explain::{ClusterExplanation, explain};
use super::search::{ClusterOutcome, ClusterSearch};
use crate::explaining::Explaining;
use crate::recoveries::{Recoveries, all_early};
use crate::run::Ended;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct ClusterReport {
    pub outcome: ClusterOutcome,
    /// The explained failures, one for each cause.
    pub causes: Vec<ClusterExplanation>,
    pub explaining: Explaining,
    /// The recoveries that were crashed, if the user requested that.
    pub again: Option<Recoveries>,
}

impl ClusterReport {
    pub fn failed(&self) -> bool {
        self.outcome.failing > 0 || self.again.as_ref().is_some_and(Recoveries::has_failed)
    }

    /// Whether all failures lie before the first promise, and no file was there at the start.
    pub fn is_early(&self) -> bool {
        all_early(self.outcome.failing, self.outcome.failing_early, self.again.as_ref())
    }

    /// Whether crash states were judged and none failed.
    pub fn passed(&self) -> bool {
        let is_judged = self.again.as_ref().is_none_or(|again| again.broken.is_none());
        !self.failed() && self.outcome.is_judged() && self.outcome.has_crash_states() && is_judged
    }
}

/// Searches the states of the cluster, and explains the failures.
pub fn explore_cluster(search: &ClusterSearch<'_>) -> ClusterReport {
    let outcome = search.run();
    let (mut causes, mut explaining) = (Vec::new(), Explaining::default());
    // A checker that cannot run, or that fails without a crash, would fail on every state.
    if outcome.ended != Ended::Broken && outcome.fails_uncrashed.is_none() {
        (causes, explaining) = explain(search, &outcome.failures, outcome.failing);
    }
    ClusterReport { outcome, causes, explaining, again: None }
}
