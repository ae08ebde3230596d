//! Simulated processors: the real engine runs on threads of which exactly one runs at a time, in an
//! order that a seed chooses ([`kedge_base::machine`] connects the engine to them). So a race is
//! found by searching and repeated by its seed, and a deadlock or a lost wake-up is found at once.
//!
//! # Files
//! A file uses only those before it.
//! 1. `strategy`: chooses the next thread, by chance, by priorities (PCT) or as recorded;
//! 2. `machine`: the threads, virtual time, the trace; `run`: one run on it, and its report;
//! 3. `disk`: a device whose requests take time; `history`: concurrent operations and their judge;
//! 4. `scenarios`: the programs that run on the machine, and their judges;
//! 5. `timing`: the second use, N processors in virtual time; it uses none of the other files;
//! 6. `campaign`: runs scenarios under many seeds; `shrink`: removes the switches that a failure
//!    does not need.
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
