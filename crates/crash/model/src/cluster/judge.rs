//! Judges one state of a cluster: a tree with a directory for each node.

use super::clock::Cluster;
use crate::recipe::Recipe;
use crate::run::{Case, Checker, Verdict};
use crate::state::State;

/// Judges one state of a cluster.
pub fn judge(
    cluster: &Cluster,
    checker: &dyn Checker,
    recipes: &[Recipe],
    states: &[State],
    told: &[&str],
    job: usize,
) -> Verdict {
    let state = cluster.join(states);
    // The name ends with the recipe of the last node.
    let name = cluster.name(recipes);
    let last = recipes.last().expect("a cluster has nodes");
    let within = name.strip_suffix(&last.to_string()).expect("the name ends with it");
    checker.check(&Case { recipe: last, state: &state, told, moment: 0, within, job })
}
