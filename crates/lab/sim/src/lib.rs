//! The test apparatus: a reference file system, an oracle for crash states, workloads with
//! acknowledged writes, and written-down fsync cases.
//!
//! Everything here uses the file system's public interface (on a mount, the kernel's) and the
//! format of the device. It never uses the log, the tree, the allocator or the store, so that the
//! checks are independent of them.
#![forbid(unsafe_code)]

pub mod atomic;
pub mod backend;
pub mod campaign;
pub mod cases;
pub mod content;
mod courses;
pub mod crash;
pub mod deltas;
pub mod discard;
pub mod explore;
pub mod forge;
pub mod forks;
pub mod freeze;
pub mod fuzz;
pub mod generate;
pub mod ledger;
pub mod limits;
pub mod model;
pub mod ops;
#[cfg(feature = "broken")]
pub mod races;
pub mod resize;
pub mod rig;
pub mod shrink;
pub mod steady;
pub mod trouble;
pub mod view;
pub mod workload;
pub mod writers;
