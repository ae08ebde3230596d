//! KedgeFS as a library: a crash-consistent journaling file system in this process, on an image
//! file, a block device or memory.
//!
//! ```
//! use kedgefs::FileSystem;
//! use std::io::Write;
//!
//! # fn main() -> std::io::Result<()> {
//! let fs = FileSystem::in_memory(32 << 20)?; // or create_image, open_image
//! let root = fs.root();
//! root.create_dir_all("mail/new")?;
//! let mut letter = root.create("mail/new/1")?;
//! letter.write_all(b"hello")?;
//! letter.sync_all()?; // durable: data, size, name and all directories above it
//! assert_eq!(root.read_to_string("mail/new/1")?, "hello");
//! fs.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Two interfaces
//! - [`Dir`] and [`File`], from [`FileSystem::root`], are modelled on std::fs: paths, symbolic
//!   links that are followed, [`std::io::Read`], [`std::io::Write`], [`std::io::Seek`],
//!   [`std::io::Error`].
//! - [`FileSystem`] itself works on inodes, as a kernel's file system interface does. A mount uses
//!   nothing else.
//!
//! [`FileSystem::open`] opens the devices of [`device`]: files and block devices, memory, NBD and
//! RBD, and simulators that lose power or fail on request.
//!
//! ```
//! use kedgefs::device::MemDevice;
//! use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, SystemClock};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), kedgefs::Error> {
//! let device = Arc::new(MemDevice::new(32 << 20));
//! let clock = Arc::new(SystemClock::default());
//! FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default())?;
//!
//! let fs = FileSystem::open(device.clone(), clock.clone(), MountOptions::default())?;
//! let file = fs.create(Ino::ROOT, b"greeting", 0o644, Owner::default())?;
//! fs.write(file.ino, 0, b"hello")?;
//! fs.fsync(file.ino, false)?;
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
//!
//! # Files
//! A file uses only those before it:
//! 1. values: `error`, `types`, `flags`, `stats`, `claim`, `gate`, `numbers`;
//! 2. `policy`: options, and the orders and lists that a program may provide;
//! 3. `engine`: the store with the options in force; `host`, and `format`, which makes an image;
//! 4. `cache`: inodes and pages in memory; `extents`, `sums`, `inline`;
//! 5. `durability`: writeback, fsync, sync;
//! 6. `data`: the contents of files;
//! 7. `names`: directories and attributes;
//! 8. `core`: the parts together;
//! 9. what uses all of them: `discard`, `freeze`, `limits`, `report`, `resize`, `trees`;
//! 10. `api`; with it `handles`, the second interface, and `moment` and `receive`, which compare
//!     and make trees.
//!
//! # Examples
//! In `examples/`, run as tests: `embed` keeps an application's files in one image file,
//! `in_memory` tests code against a file system in memory, `crash` shows what a program that forgot
//! an fsync finds after a power failure.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![warn(missing_docs)]

/// The example of the project's front page, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
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
mod flags;
mod format;
mod freeze;
mod gate;
mod handles;
mod host;
mod inline;
mod limits;
mod moment;
mod names;
mod numbers;
mod policy;
mod receive;
mod report;
mod resize;
mod stats;
mod sums;
mod trees;
mod types;

pub use api::{FileSystem, Pass};
pub use error::{Done, Error, LostData, Result};
pub use gate::Thawed;
pub use handles::{AtomicWrite, Dir, Entry, File, OpenOptions, ReadDir};
pub use kedge_base::{Clock, Ino, ManualClock, SystemClock, Timespec};
/// The devices on which an image can be stored: files and block devices, memory, the network, and
/// simulators for tests.
pub use kedge_device as device;
#[doc(hidden)]
pub use kedge_format::record::RecordOp;
pub use kedge_format::{FileFlags, FileKind, acl};
pub use kedge_store::{TreeLock, histogram_text};
pub use limits::{Limit, SetLimit};
pub use moment::{OnChange, OnName, RangeKind, TreeChange, TreeMoment};
pub use policy::dirty_set::{DirtyHandle, DirtySet, OwnSet};
pub use policy::options::{DirtyTracking, FdatasyncRule, FormatOptions, MountOptions, NewName, OrderWord};
pub use policy::order::{ByLocation, DirtyInode, OldestFirst, WritebackOrder};
pub use policy::shared_budget::SharedBudget;
pub use policy::switches::{SWITCH_WORDS, Switches};
pub use receive::{Receiving, TreeIdentity};
pub use trees::{TreeInfo, TreeSpace};
pub use types::*;
