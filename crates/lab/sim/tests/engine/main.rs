//! The engine against the model: after operations, after power failures, and on devices that fail.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod atomic;
mod bitflip;
mod coherence;
mod crash_random;
mod crash_shared;
mod discard;
mod durable_writes;
mod enospc;
mod eviction;
mod explore;
mod faults;
mod forks;
mod fsync_cases;
mod limits;
mod model_based;
mod one_flush;
mod remote;
mod reservations;
mod resize;
mod tracking;
mod trees;
mod trouble;
