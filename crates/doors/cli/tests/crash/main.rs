//! `kedge crash` as a user runs it, alone and in the pipelines of GitHub and GitLab.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod again;
mod bad;
mod checkers;
mod ci;
mod cluster;
mod commits;
mod device;
mod explore;
mod infer;
mod lazyfs;
mod live;
mod mapped;
