//! KedgeFS as a library: a crash-consistent journaling file system in this process, on an image file, a block device or
//! memory.
#![forbid(unsafe_code)]

mod api;
mod error;
mod types;

pub use api::FileSystem;
pub use error::{Error, Result};
pub use kedge_base::{Clock, Ino, SystemClock, Timespec};
pub use kedge_format::FileKind;
pub use types::*;
