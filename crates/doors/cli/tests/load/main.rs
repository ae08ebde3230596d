//! Software of others on a mount, and loads that fill the memory.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod differential;
mod memory;
mod posix;
mod software;
mod tools;
