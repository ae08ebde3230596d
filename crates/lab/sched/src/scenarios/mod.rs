//! The programs that run on the machine: a few threads with a few operations each, and the judge of
//! their results and of what they left.

mod close;
mod forks;
mod freeze;
mod fsyncs;
mod inodes;
mod programs;
mod roots;
mod space;
mod stage;

use crate::run::Run;
use crate::strategy::Plan;

/// A scenario. Its operations and their order follow from the seed and the plan.
#[derive(Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub play: fn(u64, &Plan) -> Run,
}

pub const ALL: &[Scenario] = &[
    Scenario { name: "programs", play: programs::play },
    Scenario { name: "close", play: close::play },
    Scenario { name: "forks", play: forks::play },
    Scenario { name: "freeze", play: freeze::play },
    Scenario { name: "fsyncs", play: fsyncs::play },
    Scenario { name: "syncs", play: fsyncs::play_syncs },
    Scenario { name: "space", play: space::play },
    Scenario { name: "roots", play: roots::play },
    Scenario { name: "deleted", play: inodes::play_deleted },
    Scenario { name: "truncated", play: inodes::play_truncated },
    Scenario { name: "extents", play: inodes::play_extents },
    Scenario { name: "punched", play: inodes::play_punched },
];

/// Returns the scenario of this name.
pub fn named(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}
