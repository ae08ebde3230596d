//! KedgeFS as a library: a crash-consistent journaling file system in this process, on an image
//! file, a block device or memory.
//!
//! ```
//! use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, SystemClock};
//! use kedge_device::MemDevice;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(MemDevice::new(32 << 20));
//! let clock = Arc::new(SystemClock::default());
//! FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default())?;
//!
//! let fs = FileSystem::open(device.clone(), clock.clone(), MountOptions::default())?;
//! let file = fs.create(Ino::ROOT, b"greeting", 0o644, Owner::default())?;
//! fs.write(file.ino, 0, b"hello")?;
//! fs.fsync(file.ino, false)?; // durable: data, size, name and all that leads to it
//! drop(fs); // not closed: as if the process had died
//!
//! let fs = FileSystem::open(device, clock, MountOptions::default())?;
//! let found = fs.lookup(Ino::ROOT, b"greeting")?;
//! let mut bytes = [0; 16];
//! let n = fs.read(found.ino, 0, &mut bytes)?;
//! assert_eq!(&bytes[..n], b"hello");
//! fs.close()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![warn(missing_docs)]

/// The example of the project's front page, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;

mod api;
mod cache;
mod claim;
mod core;
mod data;
mod discard;
mod durability;
mod engine;
mod error;
mod extents;
mod format;
mod host;
mod names;
mod options;
mod report;
mod stats;
mod switches;
mod types;

pub use api::FileSystem;
pub use cache::shared_budget::SharedBudget;
pub use durability::order::{ByLocation, DirtyInode, OldestFirst, WritebackOrder};
pub use error::{Done, Error, LostData, Result};
pub use kedge_base::{Clock, Ino, ManualClock, SystemClock, Timespec};
pub use kedge_format::FileKind;
pub use kedge_store::{TreeLock, histogram_text};
pub use options::{DirtyTracking, FdatasyncRule, FormatOptions, MountOptions, NewName, OrderWord};
pub use switches::{SWITCH_WORDS, Switches};
pub use types::*;
