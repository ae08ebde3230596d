//! What programs see of a mount.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod acl;
mod attributes;
mod caches;
mod checksums;
mod coherence;
mod df;
mod encrypted;
mod flags;
mod forks;
mod freeze;
mod fsx;
mod idmap;
mod inline;
mod kill9;
mod life;
mod limits;
mod losses;
mod one_tree;
mod overlay;
mod promises;
mod remount;
mod resize;
mod rings;
mod sweep;
mod times;
mod trim;
mod volatile;
mod window;
