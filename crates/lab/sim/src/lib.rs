//! The test apparatus: a reference file system, an oracle for crash states, workloads with
//! acknowledged writes, and written-down fsync cases.
//!
//! The model and the oracle judge only what the file system's public interface shows (or the
//! kernel's, on a mount), so that they are independent of the engine. The apparatus around them
//! uses the simulated device and the format's constants; `fuzz`, `forge`, `steady` and `trouble`
//! find structures on the device by the format, and `races` and `freeze` use marks and switches
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
