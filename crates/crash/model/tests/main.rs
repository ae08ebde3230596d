//! Crash tests of recorded and of planted programs. All tests are in one program, so that the
//! engine is linked once.
#![allow(clippy::unwrap_used)]

mod causes;
mod crafted;
mod disks;
mod literature;
mod planted;
mod savers;
