//! The exhaustive exploration visits every order of the steps and every crash state.

use crate::canonical::canonical;
use crate::rule::{Guarantee, Rule};
use crate::world::{Action, CRASH_STATES, Left, World};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::sync::atomic::Ordering;

/// Limits of the operations, checkpoints, crashes and discards on a path.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub operations: u8,
    pub checkpoints: u8,
    pub crashes: u8,
    pub discards: u8,
    /// Number of records for which the ring has room.
    pub ring: usize,
}

impl Bounds {
    /// Small limits, which a test explores in seconds.
    pub const QUICK: Bounds = Bounds { operations: 2, checkpoints: 1, crashes: 1, discards: 0, ring: 4 };
}

/// The protocol, or the protocol without one rule.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub bounds: Bounds,
    pub without: Option<Rule>,
}

fn holds<const GUARANTEE: u8>(_: &Protocol, world: &World) -> bool {
    world.broken.is_none_or(|broken| broken as u8 != GUARANTEE)
}

fn takes_metadata(protocol: &Protocol, world: &World) -> bool {
    world.takes_metadata(protocol.without)
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let Bounds { operations, checkpoints, crashes, discards, ring } = self.bounds;
        vec![World::new(ring, Left { operations, checkpoints, crashes, discards })]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self.without, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.after(action, self.without);
        if self.without.is_none() {
            canonical(&mut next);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        const G1: u8 = Guarantee::G1 as u8;
        const G3: u8 = Guarantee::G3 as u8;
        const G9: u8 = Guarantee::G9 as u8;
        const G12: u8 = Guarantee::G12 as u8;
        const G13: u8 = Guarantee::G13 as u8;
        const G15: u8 = Guarantee::G15 as u8;
        const MOUNTS: u8 = Guarantee::Mounts as u8;
        const PREFIX: u8 = Guarantee::Prefix as u8;
        let always = |guarantee: Guarantee| {
            let condition = match guarantee {
                Guarantee::G1 => holds::<G1>,
                Guarantee::G3 => holds::<G3>,
                Guarantee::G9 => holds::<G9>,
                Guarantee::G11 => takes_metadata,
                Guarantee::G12 => holds::<G12>,
                Guarantee::G13 => holds::<G13>,
                Guarantee::G15 => holds::<G15>,
                Guarantee::Mounts => holds::<MOUNTS>,
                Guarantee::Prefix => holds::<PREFIX>,
            };
            Property::always(guarantee.name(), condition)
        };
        Guarantee::ALL.into_iter().map(always).collect()
    }
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Number of steps taken, and of different states.
    pub steps: usize,
    pub states: usize,
    pub depth: usize,
    /// Number of crash states that were recovered and judged. A crash state counts once for each
    /// state that can crash into it.
    pub crash_states: u64,
    /// The guarantees that are broken, each with a path that breaks it (a shortest one with
    /// [`Search::Breadth`]).
    pub violations: Vec<(&'static str, Vec<Action>)>,
}

/// The order of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// Finds a shortest path to a violation. With one thread that is always the same path.
    Breadth { threads: usize },
    /// Keeps few states in memory, and eight bytes for each visited state.
    Depth { threads: usize },
}

/// Explores all states, or until the first violation.
pub fn explore(protocol: Protocol, search: Search) -> Explored {
    let before = CRASH_STATES.load(Ordering::Relaxed);
    let (Search::Breadth { threads } | Search::Depth { threads }) = search;
    let checker = protocol.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
    match search {
        Search::Breadth { .. } => explored(&checker.spawn_bfs().join(), before),
        Search::Depth { .. } => explored(&checker.spawn_dfs().join(), before),
    }
}

fn explored(checker: &impl Checker<Protocol>, before: u64) -> Explored {
    let found = checker.discoveries();
    let mut violations: Vec<_> = found.into_iter().map(|(name, path)| (name, path.into_actions())).collect();
    violations.sort_by_key(|(name, _)| *name);
    Explored {
        steps: checker.state_count(),
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        crash_states: CRASH_STATES.load(Ordering::Relaxed) - before,
        violations,
    }
}
