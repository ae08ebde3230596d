//! The basis that all KedgeFS crates share: newtypes for units, the error type, ranked locks,
//! clocks, counters and aligned IO buffers.
//!
//! This crate does not know the on-disk format and does no IO, except that [`skip::note`] writes a
//! line for each test that skips something.
#![deny(unsafe_code)]

pub mod atomic;
pub mod broken;
mod buf;
mod clock;
mod counter;
pub mod errno;
mod error;
pub mod lock;
pub mod machine;
mod panics;
mod printable;
pub mod process;
pub mod skip;
mod thread;
pub mod trace;
mod units;
pub mod wait;
pub mod witness;

pub use buf::{BLOCK_SIZE, Block, IoBuf};
pub use clock::{Clock, HANG, ManualClock, SystemClock, Timespec, pause};
pub use counter::{Counter, Histogram, HistogramSnapshot, STRIPES, stripe};
pub use error::{CorruptKind, Error, Result};
pub use panics::{panic_words, without_panic};
pub use printable::{is_acted_upon, printable, printable_name};
#[cfg(feature = "simulated")]
pub use thread::run_in;
pub use thread::{JoinHandle, spawn_named};
pub use units::{BlockNo, Epoch, Extent, Generation, Ino, InoHasher, InoMap, Lsn, parse_size};
