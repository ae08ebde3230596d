//! Checks and repairs of damaged images. The tests are one program, so that the engine is linked
//! once.
#![allow(clippy::unwrap_used)]

mod common;

mod clean_mark;
mod copies;
mod counters;
mod losses;
mod repair;
mod shared;
