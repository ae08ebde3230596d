//! The protocol of durability as a checked model: log, group commit, checkpoint, quarantine,
//! log-resident data and recovery, small enough that every order of its steps and every crash state
//! can be visited.
//!
//! # Files
//! A file uses only those before it.
//! 1. `rule`: the rules, and the guarantee that each upholds; `counterparts`: the mutant for each
//!    broken engine; `event`: the steps of the engine;
//! 2. `engine`: the state while an image is mounted, and the transition relation: which rule
//!    forbids an event in a state. The exploration and traces of the real engine share it;
//! 3. `medium`: the device and its crash states; `recovery`: a function of the medium;
//! 4. `history`: what was promised, and the judgement of what a recovery finds;
//! 5. `world`: the possible next steps; `canonical`: reduces equivalent states to one; `explore`:
//!    visits all states;
//! 6. `trace`: replays what the real engine has noted; `runs`: runs of the engine that make such
//!    traces. Both are built with a feature.
#![forbid(unsafe_code)]

pub mod canonical;
pub mod counterparts;
pub mod engine;
pub mod event;
pub mod explore;
pub mod history;
pub mod medium;
pub mod recovery;
pub mod rule;
#[cfg(feature = "traced")]
pub mod runs;
#[cfg(feature = "traced")]
pub mod trace;
pub mod world;
