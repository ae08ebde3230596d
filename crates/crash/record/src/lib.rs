//! Records what a program does to a file system: a KedgeFS in memory, mounted on a directory of its
//! own, that writes down each call before it answers.
//!
//! ```text
//! log         the recording as it grows; who called
//! recording   the file system that writes down what is done to it
//! output      what the command prints: promises in it
//! outside     what the command writes elsewhere
//! stack       where in the program a call was made
//! run         mount, fill, run the command, unmount
//! live        a mount that loses power when it is told to
//! rules       what happens at which call of it
//! tree        a file system's tree as a recording, and back
//! ```
//!
//! The mount writes through: each write(2) is one request of the thread that called it. Stores
//! through shared mappings come when the kernel writes the pages back: at msync, fsync, munmap or
//! when it likes; their thread is not known.
#![forbid(unsafe_code)]

mod live;
mod log;
mod output;
mod outside;
mod recording;
mod rules;
mod run;
mod stack;
mod tree;

pub use live::{Crashed, Live};
pub use recording::MARK_FILE;
pub(crate) use recording::Recording;
pub use rules::{Action, BadRule, Crash, Kill, Like, Lose, On, Rule};
pub use run::{Options, RecordError, Recorded, record};
