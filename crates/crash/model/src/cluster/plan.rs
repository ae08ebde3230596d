//! Which states of a cluster are tried, and in which order.
//!
//! The product of the nodes' states is far too large. The nodes run the same program, so most bugs
//! show when all nodes are in the same kind of state, or when one or two nodes differ from the
//! others (Alagappan et al., OSDI 2016). So the order is as follows; each round is completed before
//! the next:
//!
//! 1. *Same*: all nodes lose everything that is not durable, or nothing: after each promise, the
//!    last one first, and before each call that persists or promises. Then all nodes lose updates
//!    of one class.
//! 2. *One*: one node loses everything that is not durable while the others lose nothing, and the
//!    reverse. Then one node is in any of the states that the search of a single recording tries,
//!    while the others lose nothing or everything.
//! 3. *Pairs*: two nodes differ from the others. This includes the representative states of both.
//! 4. The first two rounds at every other moment.
//!
//! An endless seeded sample follows.

use super::clock::Cluster;
use crate::explore::{Plan as NodePlan, SearchOrder};
use crate::recipe::{Pick, Recipe};
use crate::trace::Call;
use crate::updates::Classes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A state of the cluster: a recipe for each node.
pub(super) type Recipes = Vec<Recipe>;
type Round<'a> = Box<dyn Iterator<Item = Recipes> + Send + 'a>;

/// The picks that need no search: nothing is lost, or everything that is not durable.
const KINDS: [Pick; 2] = [Pick::All, Pick::Durable];
/// The most representative states of a node that are combined with those of another.
const REPRESENTATIVES_MAX: usize = 96;

pub(super) struct Plan<'a> {
    cluster: &'a Cluster,
    rounds: VecDeque<Round<'a>>,
    rng: SmallRng,
    taken: u64,
}

impl<'a> Plan<'a> {
    pub fn new(cluster: &'a Cluster, seed: u64) -> Plan<'a> {
        let build = Build { cluster };
        let chosen: Arc<Vec<Vec<Recipe>>> =
            Arc::new((0..cluster.len()).map(|node| build.representatives(node)).collect());
        let (main, rest) = build.main_moments();
        let (main, rest): (Arc<[usize]>, Arc<[usize]>) = (main.into(), rest.into());
        let rounds: [Round<'a>; 8] = [
            Box::new(build.same(main.clone())),
            Box::new(build.alike(&chosen)),
            Box::new(build.one(main.clone())),
            Box::new(build.one_searched()),
            Box::new(build.two(main)),
            Box::new(build.pairs(chosen)),
            Box::new(build.same(rest.clone())),
            Box::new(build.one(rest)),
        ];
        Plan { cluster, rounds: rounds.into(), rng: SmallRng::seed_from_u64(seed), taken: 0 }
    }

    /// The next state, systematic or random.
    pub fn next(&mut self) -> Recipes {
        while let Some(round) = self.rounds.front_mut() {
            match round.next() {
                Some(recipes) => {
                    self.taken += 1;
                    return recipes;
                }
                None => self.rounds.pop_front(),
            };
        }
        let moment = self.rng.random_range(0..self.cluster.moments().len());
        let mut recipes = self.cluster.all(moment, &Pick::All);
        for recipe in &mut recipes {
            recipe.pick = match self.rng.random_range(0..4) {
                0 => Pick::All,
                1 => Pick::Durable,
                _ => Pick::Sample(self.rng.random_range(0..1 << 32)),
            };
        }
        recipes
    }

    /// Whether all systematic states that are known so far have been taken.
    pub fn is_random(&self) -> bool {
        self.rounds.is_empty()
    }

    /// How many systematic states were taken, and how many were not.
    pub fn finish(self) -> (u64, u64) {
        let left = self.rounds.into_iter().map(|round| round.count() as u64).sum();
        (self.taken, left)
    }
}

#[derive(Clone, Copy)]
struct Build<'a> {
    cluster: &'a Cluster,
}

impl<'a> Build<'a> {
    fn nodes(self) -> std::ops::Range<usize> {
        0..self.cluster.len()
    }

    fn node_plan(self, node: usize) -> NodePlan<'a> {
        let (trace, history) = (&self.cluster.traces[node], &self.cluster.histories[node]);
        NodePlan::new(trace, history, 0, SearchOrder::Updates)
    }

    fn representatives(self, node: usize) -> Vec<Recipe> {
        self.node_plan(node).first().iter().take(REPRESENTATIVES_MAX).cloned().collect()
    }

    /// Splits the moments into those to try first and the others. The first are the promises from
    /// the last to the first, the end, and the moments before a call that persists or promises.
    fn main_moments(self) -> (Vec<usize>, Vec<usize>) {
        let end = self.cluster.moments().len() - 1;
        let promises = (0..end).rev().filter(|m| self.cluster.is_promise(*m));
        let is_watched = |call: &Call| {
            matches!(
                call,
                Call::Fsync { .. }
                    | Call::Msync { .. }
                    | Call::SyncRange { .. }
                    | Call::Sync { .. }
                    | Call::Mark { .. }
                    | Call::End { .. }
            )
        };
        let before = (0..end).filter(|m| self.cluster.last_calls(m + 1).any(|(_, call)| is_watched(call)));
        let mut seen = BTreeSet::new();
        let main: Vec<usize> =
            [end].into_iter().chain(promises).chain(before).filter(|m| seen.insert(*m)).collect();
        (main, (0..end).filter(|m| !seen.contains(m)).collect())
    }

    fn same(self, moments: Arc<[usize]>) -> impl Iterator<Item = Recipes> + Send + 'a {
        (0..moments.len()).flat_map(move |n| {
            let moment = moments[n];
            [Pick::Durable, Pick::All].map(|pick| self.cluster.all(moment, &pick))
        })
    }

    /// States in which all nodes lose updates of the classes that one node loses in a
    /// representative state.
    fn alike(self, chosen: &[Vec<Recipe>]) -> impl Iterator<Item = Recipes> + Send + use<'a> {
        let classes: Vec<Classes<'a>> = self
            .nodes()
            .map(|node| Classes::new(&self.cluster.traces[node], &self.cluster.histories[node]))
            .collect();
        let all: Vec<(usize, Recipe)> = chosen
            .iter()
            .enumerate()
            .flat_map(|(node, recipes)| recipes.iter().map(move |recipe| (node, recipe.clone())))
            .collect();
        all.into_iter().filter_map(move |(node, recipe)| {
            let Pick::Lose(edits) = &recipe.pick else { return None };
            let lost: BTreeSet<u64> = edits.iter().filter_map(|n| classes[node].of_edit(*n)).collect();
            let (_, moment) = self.cluster.range(node, recipe.at);
            let mut recipes = self.cluster.all(moment, &Pick::All);
            for (other, mine) in recipes.iter_mut().enumerate() {
                let is_lost = |n: &u32| classes[other].of_edit(*n).is_some_and(|class| lost.contains(&class));
                let pending = self.cluster.histories[other].pending(mine.at).filter(is_lost);
                mine.pick = Pick::Lose(pending.collect());
            }
            recipes[node].pick = recipe.pick.clone();
            Some(recipes)
        })
    }

    fn one(self, moments: Arc<[usize]>) -> impl Iterator<Item = Recipes> + Send + 'a {
        (0..moments.len()).flat_map(move |n| {
            let moment = moments[n];
            self.nodes().flat_map(move |node| {
                [(Pick::All, Pick::Durable), (Pick::Durable, Pick::All)].map(|(others, own)| {
                    let mut recipes = self.cluster.all(moment, &others);
                    recipes[node].pick = own;
                    recipes
                })
            })
        })
    }

    /// States in which one node is in a state that the search of its recording tries, and the
    /// others lose nothing or everything. The nodes take turns.
    fn one_searched(self) -> impl Iterator<Item = Recipes> + Send + 'a {
        let mut plans: VecDeque<(usize, NodePlan<'a>)> =
            self.nodes().map(|node| (node, self.node_plan(node))).collect();
        let next = std::iter::from_fn(move || {
            while let Some((node, mut plan)) = plans.pop_front() {
                if let Some(recipe) = plan.next_systematic() {
                    plans.push_back((node, plan));
                    return Some((node, recipe));
                }
            }
            None
        });
        next.flat_map(move |(node, recipe)| {
            self.places(node, &recipe).into_iter().flat_map(move |moment| {
                let recipe = recipe.clone();
                KINDS.map(move |pick| {
                    let mut recipes = self.cluster.all(moment, &pick);
                    recipes[node] = recipe.clone();
                    recipes
                })
            })
        })
    }

    /// The last and the first moment at which a node can be in a state.
    fn places(self, node: usize, recipe: &Recipe) -> Vec<usize> {
        let (first, last) = self.cluster.range(node, recipe.at);
        if first == last { vec![last] } else { vec![last, first] }
    }

    fn node_pairs(self) -> impl Iterator<Item = (usize, usize)> + Send + 'a {
        self.nodes().flat_map(move |i| (i + 1..self.cluster.len()).map(move |j| (i, j)))
    }

    fn two(self, moments: Arc<[usize]>) -> impl Iterator<Item = Recipes> + Send + 'a {
        // With three nodes, two that differ from the third are the same as one that differs from
        // two.
        let is_new = self.cluster.len() > 3;
        (0..if is_new { moments.len() } else { 0 }).flat_map(move |n| {
            let moment = moments[n];
            self.node_pairs().flat_map(move |(i, j)| {
                [(Pick::All, Pick::Durable), (Pick::Durable, Pick::All)].map(|(others, own)| {
                    let mut recipes = self.cluster.all(moment, &others);
                    recipes[i].pick = own.clone();
                    recipes[j].pick = own;
                    recipes
                })
            })
        })
    }

    /// States in which two nodes are in representative states that can occur at one moment, and the
    /// others lose nothing or everything.
    fn pairs(self, chosen: Arc<Vec<Vec<Recipe>>>) -> impl Iterator<Item = Recipes> + Send + 'a {
        self.node_pairs().flat_map(move |(i, j)| {
            let chosen = chosen.clone();
            (0..chosen[i].len()).flat_map(move |m| {
                let chosen = chosen.clone();
                (0..chosen[j].len()).flat_map(move |n| self.both((i, &chosen[i][m]), (j, &chosen[j][n])))
            })
        })
    }

    fn both(self, one: (usize, &Recipe), other: (usize, &Recipe)) -> Vec<Recipes> {
        let (from, to) = self.cluster.range(one.0, one.1.at);
        let (other_from, other_to) = self.cluster.range(other.0, other.1.at);
        let (from, to) = (from.max(other_from), to.min(other_to));
        if from > to {
            return Vec::new();
        }
        let with = |pick: &Pick| {
            let mut recipes = self.cluster.all(to, pick);
            recipes[one.0] = one.1.clone();
            recipes[other.0] = other.1.clone();
            recipes
        };
        KINDS.iter().map(with).collect()
    }
}
