//! The commands of `kedge`, on images that are mounted or not.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod badinput;
mod beside;
mod daemon;
mod damage;
mod health;
mod image;
mod import;
mod inside;
mod install;
mod metadata_copy;
mod next;
mod nfs;
mod nfs_beside;
mod remote;
mod scrub;
mod send;
mod sqlite;
mod upgrade;
mod usage;
mod watch;
