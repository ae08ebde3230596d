//! KedgeFS as a C library: the functions of `include/kedgefs.h`, which is generated from this
//! crate.
//!
//! | part | does |
//! |---|---|
//! | `image` | makes, opens and closes images |
//! | `name` | operations on paths |
//! | `file` | open files |
//! | `dir` | open directories |
//! | `attr` | attributes, extended attributes |
//! | `tree` | forks and snapshots, clones, limits, atomic writes |
//! | `types` | structures and numbers of the header |
//! | `open`, `table` | the open objects, and their handles |
//! | `call` | the boundary: errors, panics, threads, forks |
//! | `arg` | pointers of the caller |
//!
//! # Handles
//! A handle is not an address, although C sees a pointer. It consists of the index of a slot in a
//! table, the number of times that the slot was used, and the kind of handle. So a closed handle, a
//! handle of another kind and NULL are refused with EBADF, and no caller can make the library use
//! freed memory by a handle. The alternative is the address of a `Box`: a use after close would
//! then corrupt the memory of the program, and of the image that it writes.
//!
//! A call holds a reference to the object of its handle. So one thread may close a handle during a
//! call of another: the call ends as usual, and the object is freed after it.
//!
//! # What does not cross the boundary
//! - *Panics.* A panic is a broken invariant of the file system. It becomes EIO, and the file
//!   system shuts down, as after a failed write of the log: what was synced stays, and nothing
//!   that the panic left incomplete is written.
//! - *Forks.* A child has a copy of the caches and the log's position, but none of the threads, and
//!   its writes would destroy the image of its parent. So a child of a process that has opened an
//!   image is refused.
#![deny(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's, for C programmers")]

mod arg;
mod call;
mod open;
mod table;
mod types;

// The order of the modules is that of the functions in the header; a blank line keeps it.

mod image;

mod file;

mod name;

mod dir;

mod attr;

mod tree;

pub use attr::*;
pub use dir::*;
pub use file::*;
pub use image::*;
pub use name::*;
pub use tree::*;
pub use types::*;
