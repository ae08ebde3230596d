//! A whole run over a cluster: search, shrink, explain.

use super::explain::{ClusterExplanation, explain};
use super::search::{ClusterOutcome, ClusterSearch};
use crate::explaining::Explaining;
use crate::run::Ended;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct ClusterReport {
    pub outcome: ClusterOutcome,
    /// One for each cause.
    pub causes: Vec<ClusterExplanation>,
    pub explaining: Explaining,
}

/// Searches, and explains what was found.
pub fn explore_cluster(search: &ClusterSearch<'_>) -> ClusterReport {
    let outcome = search.run();
    let (mut causes, mut explaining) = (Vec::new(), Explaining::default());
    // A checker that cannot run, or that fails without a crash, would fail on every state.
    if outcome.ended != Ended::Broken && outcome.fails_uncrashed.is_none() {
        (causes, explaining) = explain(search, &outcome.failures, outcome.failing);
    }
    ClusterReport { outcome, causes, explaining }
}
