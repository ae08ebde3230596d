//! The test apparatus: a reference file system, an oracle for crash states, workloads with
//! acknowledged writes, and written-down fsync cases.
//!
//! The model, the oracle and the workloads use only the file system's public interface (or the
//! kernel's, on a mount), so that they are independent of the engine. Only attacks and aimed tests
//! know more: `fuzz`, `forge`, `steady` and `trouble` know the format, and `races` uses marks
//! inside the engine.
#![forbid(unsafe_code)]

pub mod backend;
pub mod campaign;
pub mod cases;
pub mod content;
pub mod crash;
pub mod deltas;
pub mod discard;
pub mod explore;
pub mod forge;
pub mod freeze;
pub mod fuzz;
pub mod generate;
pub mod ledger;
pub mod model;
pub mod ops;
#[cfg(feature = "broken")]
pub mod races;
pub mod rig;
pub mod shrink;
pub mod steady;
pub mod trouble;
pub mod view;
pub mod workload;
pub mod writers;
