//! The recordings of the nodes on one clock.
//!
//! The recorder assigns each event its time after its call took effect and before the call returns.
//! So an event that another event caused, over whatever connection, has a later time, and the
//! events up to any time are a consistent cut. A *moment* is a crash point of the cluster: for each
//! node, how many of its events come before the crash.
//!
//! Times are replaced by positions in the common order. Promises are made to the users of the whole
//! cluster, so each is inserted into the recording of every node.

use crate::early::Early;
use crate::history::History;
use crate::model::Model;
use crate::recipe::{Pick, Recipe};
use crate::state::State;
use crate::trace::{Call, Event, Trace};
use std::collections::BTreeSet;

/// The recordings of all nodes, and their legal states.
pub struct Cluster {
    pub names: Vec<String>,
    pub traces: Vec<Trace>,
    pub histories: Vec<History>,
    pub model: Model,
    /// The moments in the order of time.
    moments: Vec<Moment>,
}

/// A crash point of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    /// The position of the last event before the crash in the common order.
    pub time: u64,
    /// For each node, the crash point in its recording.
    pub at: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadState {
    #[error("{0:?} names no state of this cluster: it has the form {1}")]
    Form(String, String),
    #[error("{0:?} names no state of this cluster: its nodes do not crash at one moment")]
    Moment(String),
}

impl Cluster {
    /// Makes a cluster from recordings as the recorder made them, with the names of their nodes.
    pub fn new(recordings: Vec<(String, Trace)>, model: Model) -> Cluster {
        let (names, traces): (Vec<_>, Vec<_>) = recordings.into_iter().unzip();
        Cluster::with(names, on_one_clock(traces), model)
    }

    /// Makes a cluster from recordings that are already on one clock.
    pub(super) fn with(names: Vec<String>, traces: Vec<Trace>, model: Model) -> Cluster {
        let histories = traces.iter().map(|trace| History::new(trace, model)).collect();
        let moments = moments(&traces);
        Cluster { names, traces, histories, model, moments }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// The first and the last moment at which a node is at crash point `at` of its recording.
    pub(super) fn range(&self, node: usize, at: u32) -> (usize, usize) {
        let first = self.moments.partition_point(|m| m.at[node] < at);
        let end = self.moments.partition_point(|m| m.at[node] <= at);
        let last = self.moments.len() - 1;
        (first.min(last), end.saturating_sub(1).max(first).min(last))
    }

    /// The moment of a state.
    pub(super) fn moment_of(&self, recipes: &[Recipe]) -> Option<usize> {
        // Find the moment by the total number of events, which grows from moment to moment.
        let sum = |at: &mut dyn Iterator<Item = u32>| at.map(u64::from).sum::<u64>();
        let wanted = sum(&mut recipes.iter().map(|r| r.at));
        let found = self.moments.binary_search_by_key(&wanted, |m| sum(&mut m.at.iter().copied())).ok()?;
        let is_same = self.moments[found].at.iter().zip(recipes).all(|(at, r)| *at == r.at);
        is_same.then_some(found)
    }

    /// The last calls before a moment, each with its node.
    pub(super) fn last_calls(&self, moment: usize) -> impl Iterator<Item = (usize, &Call)> {
        let Moment { time, at } = &self.moments[moment];
        self.traces.iter().zip(at).enumerate().filter_map(move |(node, (trace, at))| {
            let event = trace.events.get((*at as usize).checked_sub(1)?)?;
            (event.time == *time).then_some((node, &event.call))
        })
    }

    pub(super) fn is_promise(&self, moment: usize) -> bool {
        moment > 0 && self.last_calls(moment).any(|(_, call)| matches!(call, Call::Mark { .. }))
    }

    /// The promises before a state's moment. They are in the recordings of all nodes.
    pub fn told(&self, recipes: &[Recipe]) -> Vec<&str> {
        self.traces[0].marks(recipes[0].at as usize)
    }

    /// Whether a crash comes before the first promise, and no node had a file at the start.
    pub(super) fn is_early(&self, recipes: &[Recipe]) -> bool {
        let parts = self.traces.iter().zip(&self.histories).zip(recipes);
        { parts }.all(|((trace, history), recipe)| Early::of(trace, history).has(recipe.at))
    }

    /// The same pick for all nodes at a moment.
    pub(super) fn all(&self, moment: usize, pick: &Pick) -> Vec<Recipe> {
        self.moments[moment].at.iter().map(|at| Recipe::new(*at, pick.clone())).collect()
    }

    /// The recipe with the same choice of edits for the node at another moment. `None` if some of
    /// these edits were made after that moment.
    pub(super) fn moved(&self, node: usize, recipe: &Recipe, moment: usize) -> Option<Recipe> {
        let at = self.moments[moment].at[node];
        let upto = self.histories[node].upto(at) as u32;
        let edits = match &recipe.pick {
            Pick::Lose(edits) | Pick::Keep(edits) => &edits[..],
            Pick::All | Pick::Durable | Pick::Sample(_) => &[],
        };
        let exists = edits.iter().chain(recipe.torn.iter().map(|t| &t.micro)).all(|n| *n < upto);
        exists.then(|| Recipe { at, ..recipe.clone() })
    }

    pub fn states(&self, recipes: &[Recipe]) -> Vec<State> {
        self.histories.iter().zip(recipes).map(|(history, recipe)| history.state(recipe)).collect()
    }

    /// A tree with a directory for each node.
    pub fn join(&self, states: &[State]) -> State {
        State::join(self.names.iter().map(String::as_str).zip(states))
    }

    /// The name of a state: `a=120.durable,b=98,c=77.lose-3`.
    pub fn name(&self, recipes: &[Recipe]) -> String {
        let parts = self.names.iter().zip(recipes).map(|(name, recipe)| format!("{name}={recipe}"));
        parts.collect::<Vec<_>>().join(",")
    }

    /// Parses the name of a state.
    pub fn parse(&self, name: &str) -> Result<Vec<Recipe>, BadState> {
        let parts: Vec<&str> = name.split(',').collect();
        let recipe = |(node, part): (&String, &&str)| {
            part.strip_prefix(node.as_str())?.strip_prefix('=')?.parse::<Recipe>().ok()
        };
        let recipes: Option<Vec<Recipe>> = self.names.iter().zip(&parts).map(recipe).collect();
        let Some(recipes) = recipes.filter(|r| r.len() == self.len() && parts.len() == self.len()) else {
            let form = self.names.iter().map(|name| format!("{name}=STATE")).collect::<Vec<_>>().join(",");
            return Err(BadState::Form(name.to_owned(), form));
        };
        match self.moment_of(&recipes) {
            Some(_) => Ok(recipes),
            None => Err(BadState::Moment(name.to_owned())),
        }
    }
}

/// Converts the times of the recordings to positions in the common order, and inserts all promises.
fn on_one_clock(mut traces: Vec<Trace>) -> Vec<Trace> {
    let mut order: Vec<(u64, usize, usize)> = Vec::new();
    for (node, trace) in traces.iter().enumerate() {
        let mut latest = 0;
        for (number, event) in trace.events.iter().enumerate() {
            // The recording may be forged: if times and order of events disagree, the order counts.
            latest = event.time.max(latest);
            order.push((latest, node, number));
        }
    }
    order.sort_unstable();
    let mut counts = vec![0; traces.len()];
    let mut copies: Vec<Vec<(usize, Event)>> = vec![Vec::new(); traces.len()];
    for ((_, node, number), time) in order.into_iter().zip(1..) {
        let event = &mut traces[node].events[number];
        event.time = time;
        counts[node] = number + 1;
        if let Call::Mark { text } = &event.call {
            let call = Call::Mark { text: text.clone() };
            let copy = Event { time, pid: 0, tid: 0, errno: 0, call, stack: Vec::new() };
            for (other, list) in copies.iter_mut().enumerate().filter(|(other, _)| *other != node) {
                list.push((counts[other], copy.clone()));
            }
        }
    }
    traces.into_iter().zip(copies).map(|(trace, copies)| trace.with_events(copies)).collect()
}

/// The moments at which all nodes have started.
fn moments(traces: &[Trace]) -> Vec<Moment> {
    let start = traces.iter().map(|trace| trace.time_before(trace.start() as u32)).max().unwrap_or(0);
    let times = traces.iter().flat_map(|trace| trace.events.iter().map(|event| event.time));
    let times: BTreeSet<u64> = times.filter(|time| *time > start).chain([start]).collect();
    let mut at = vec![0u32; traces.len()];
    let moment = |time| {
        for (at, trace) in at.iter_mut().zip(traces) {
            while trace.events.get(*at as usize).is_some_and(|event| event.time <= time) {
                *at += 1;
            }
        }
        Moment { time, at: at.clone() }
    };
    times.into_iter().map(moment).collect()
}
