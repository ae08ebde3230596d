//! One node's states while the other nodes keep theirs, judged as states of the cluster.
//!
//! So the loss of a node is shrunk and explained with the code for a single recording. A state at
//! another crash point of the node moves the whole cluster to the nearest moment at which the node
//! is at that point.

use super::clock::Cluster;
use super::judge::judge;
use crate::recipe::Recipe;
use crate::run::{Case, Checker, Verdict};

pub(super) struct NodeView<'a> {
    pub cluster: &'a Cluster,
    pub checker: &'a dyn Checker,
    pub node: usize,
    /// The state of the cluster, in which the recipe of this node is replaced.
    pub recipes: &'a [Recipe],
    pub moment: usize,
}

impl NodeView<'_> {
    /// The moment nearest to the present one at which exactly the node's events up to `time` have
    /// happened. The recording may contain inserted events, which have the times of others.
    pub fn moment_at(&self, time: u64) -> usize {
        let events = &self.cluster.traces[self.node].events;
        let at = events.partition_point(|event| event.time <= time) as u32;
        let (first, last) = self.cluster.range(self.node, at);
        self.moment.clamp(first, last)
    }

    /// The state of the cluster at another moment. `None` if another node has no such state there.
    pub fn moved(&self, own: &Recipe, moment: usize) -> Option<Vec<Recipe>> {
        let others = self.recipes.iter().enumerate();
        others
            .map(|(node, recipe)| match node == self.node {
                true => Some(own.clone()),
                false => self.cluster.moved(node, recipe, moment),
            })
            .collect()
    }
}

impl Checker for NodeView<'_> {
    fn check(&self, case: &Case<'_>) -> Verdict {
        let moment = self.moment_at(case.moment);
        // A state that the cluster cannot be in must not count as a failure.
        let Some(recipes) = self.moved(case.recipe, moment) else { return Verdict::Good };
        let states: Vec<_> = (self.cluster.histories.iter().zip(&recipes).enumerate())
            .map(|(node, (history, recipe))| match node == self.node {
                true => case.state.clone(),
                false => history.state(recipe),
            })
            .collect();
        judge(self.cluster, self.checker, &recipes, &states, case.told, case.job)
    }
}
