//! Tests that wait most of their time: for a commit interval, or for a host that has space again.
//! `cargo xtask test` runs them beside the other programs.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod commit;
mod fsck;
mod host_full;
