//! Judges one state of a cluster: a tree with a directory for each node.

use super::clock::Cluster;
use crate::again::Crashed;
use crate::recipe::Recipe;
use crate::run::{Case, Checker, Verdict};
use crate::state::State;

/// Calls `f` with a state as the check gets it. `within` has the names of the crash states in whose
/// recovery the state comes, each followed by `/`.
pub fn with_case<T>(
    cluster: &Cluster,
    recipes: &[Recipe],
    told: &[&str],
    within: &str,
    f: impl FnOnce(&Case<'_>) -> T,
) -> T {
    let Crashed { state, recipe, within: inner, moment } =
        crashed(cluster, recipes, &cluster.states(recipes));
    f(&Case { recipe: &recipe, state: &state, told, moment, within: &format!("{within}{inner}"), job: 0 })
}

/// Judges one state of a cluster.
pub(super) fn judge(
    cluster: &Cluster,
    checker: &dyn Checker,
    recipes: &[Recipe],
    states: &[State],
    told: &[&str],
    job: usize,
) -> Verdict {
    let Crashed { state, recipe, within, moment } = crashed(cluster, recipes, states);
    checker.check(&Case { recipe: &recipe, state: &state, told, moment, within: &within, job })
}

/// A state of the cluster as one tree, which has a directory for each node.
pub(super) fn crashed(cluster: &Cluster, recipes: &[Recipe], states: &[State]) -> Crashed {
    // The name of the state ends with the recipe of the last node, so that recipe stands for it.
    let name = cluster.name(recipes);
    let recipe = recipes.last().expect("a cluster has nodes").clone();
    let within = name.strip_suffix(&recipe.to_string()).expect("the name ends with it").to_owned();
    Crashed { state: cluster.join(states), recipe, within, moment: 0 }
}
