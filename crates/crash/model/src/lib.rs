//! Crash tests for other people's programs. From the recording of a program's calls to a file
//! system, this crate finds the states that a crash may leave, judges each, and names the
//! persistence call that is missing.
//!
//! ```text
//! trace, kcr, vet       what the program did; its file; what an event may say
//! model                 what each file system may lose
//! split, edit, history  calls → edits → which sets of edits are legal
//! spans                 values of ranges of pages or bytes
//! state, sparse         a directory tree that is cheap to copy
//! parts                 which edits change which part of the tree
//! every                 all legal states of a short recording
//! recipe, explore       names of states; which are tried, in which order
//! updates               which states represent others like them
//! run, check, files     the search; a command, or the versions of files, as the judge
//! infer, observed       the program without a crash as the judge; what a command shows
//! shipped, pattern      checkers that come with the tool; which files they judge
//! shrink, explain       the smallest failing state; in words, with the call that prevents it
//! campaign, explaining  a whole run; what its explanations cost, and their limit
//! causes, early         failures grouped by what prevents them; those before the first promise
//! cluster               several recordings on one clock, all crashed at one moment
//! again, recoveries     crashes the recoveries from crash states; the results
//! workdir, beneath      directories that outlive no run; files that lie below one
//! leftovers             ends the processes that a checker has left running
//! loops                 files as block devices
//! disk                  a file system in memory, for tests in Rust
//! ```
#![forbid(unsafe_code)]

pub mod again;
mod beneath;
mod bits;
mod campaign;
mod causes;
pub mod check;
pub mod cluster;
pub mod describe;
pub mod disk;
mod early;
pub mod edit;
mod every;
pub mod explain;
mod explaining;
mod explore;
mod files;
mod history;
mod infer;
pub mod kcr;
pub mod leftovers;
pub mod loops;
mod model;
mod observed;
pub mod page;
mod parts;
mod pattern;
mod recipe;
mod recoveries;
pub mod report;
mod run;
mod shipped;
mod shrink;
mod spans;
mod sparse;
mod split;
pub mod state;
pub mod trace;
mod updates;
mod vet;
pub mod workdir;

pub use campaign::{Campaign, Report, explore_in_memory};
pub use check::CommandChecker;
pub use disk::{Disk, DiskFile};
pub use every::Every;
pub use explain::{Also, CallRef, Explanation, Fix};
pub use explaining::Explaining;
pub use explore::SearchOrder;
pub use files::FilesChecker;
pub use history::History;
pub use infer::InferChecker;
pub use model::{DISKS, MODELS, Model, Order};
pub use pattern::Pattern;
pub use recipe::{Pick, Recipe, Torn};
pub use recoveries::{FailingRecovery, Recoveries, Refused};
pub use run::{Budget, Case, Checker, Ended, Failure, Hear, Outcome, Phase, Progress, Search, Verdict};
pub use shipped::{SHIPPED, Shipped, ShippedChecker};
pub use state::State;
pub use trace::{Call, Event, Trace};

/// Runs the code blocks of docs/CRASH_TESTING.md with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/CRASH_TESTING.md")]
struct CrashTesting;
