//! Simulated processors: the real engine runs on threads of which exactly one runs at a time, in an
//! order that a seed chooses ([`kedge_base::machine`] is the seam). So a race is found by searching
//! and repeated by its seed, and a deadlock or a lost wake-up is found at once.
//!
//! # Files
//! A file uses only those before it.
//! 1. `strategy`: the thread that runs next, by chance, by priorities (PCT) or as recorded;
//! 2. `machine`: the threads, virtual time, the trace; `run` on top of it: one run and its report;
//! 3. `disk`: a device whose requests take time; `history`: concurrent operations and their judge;
//! 4. `scenarios`;
//! 5. `timing`: the second use, on N processors in virtual time, which uses none of the others;
//! 6. `campaign`, which runs them under many seeds, and `shrink`: fewer switches that show the
//!    same.
#![forbid(unsafe_code)]
#![cfg(feature = "simulated")]

pub mod campaign;
pub mod disk;
pub mod history;
pub mod machine;
pub mod run;
pub mod scenarios;
pub mod shrink;
pub mod strategy;
pub mod timing;
