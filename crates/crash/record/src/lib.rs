//! Records the calls of a program to a file system: it mounts a KedgeFS in memory on a directory of
//! its own and records each call before the call returns.
//!
//! ```text
//! ahead       a growing file, whose space is made before it is needed
//! log         the growing recording; processes of the calls
//! recording   the file system that records its calls
//! output      the command's standard output, which may contain promises
//! family      which processes belong to the command
//! outside     files that the command writes outside the mount
//! mapped      stores through shared mappings, collected before each call
//! msync       the range of an msync
//! changed     which bytes of a page are new
//! maps        the mappings of a process
//! stack       the callers of a recorded call
//! device      a block device for the command
//! error       why a recording cannot be made
//! run         mount, fill, run the command, unmount
//! cluster     as run, with a mount for each node of a cluster
//! recovery    records what a checker does in a crash state
//! live        a mount that loses power on request
//! lazy        such a mount with the faults of LazyFS
//! rules       rules: which calls fail or trigger a crash
//! tree        converts a file system's tree to a recording, and back
//! ```
//!
//! The mount is write-through: each write(2) is one request of the calling thread. Stores to shared
//! mappings arrive when the kernel writes the pages back: at msync, fsync, munmap or any other
//! time, or before each recorded call if the recorder collects them. The thread that made a store
//! is unknown.
#![forbid(unsafe_code)]

mod ahead;
mod changed;
mod cluster;
mod device;
mod error;
mod family;
mod lazy;
mod live;
mod log;
mod mapped;
mod maps;
mod msync;
mod output;
mod outside;
mod processes;
mod recording;
mod recovery;
mod rules;
mod run;
mod stack;
mod tree;

pub use cluster::{ClusterOptions, ClusterRecorded, Node, record_cluster};
pub use device::Device;
pub use error::RecordError;
pub use lazy::{
    Clear, Due, Fault, Faults, Kept, Lazy, Named, Notice, Op, Parts, Seen, Takes, Timing, TornOp, TornSeq,
};
pub use live::{Crashed, Live, LostBytes, Unsynced};
pub use mapped::Unseen;
pub use recording::MARK_FILE;
pub(crate) use recording::Recording;
pub use recovery::{record_cluster_recovery, record_recovery};
pub use rules::{Action, BadRule, Crash, Kill, Like, Lose, On, Rule};
pub use run::{Options, Recorded, record};
