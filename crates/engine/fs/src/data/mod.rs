//! The contents of files: reading, writing, truncate, fallocate, clones, and the deletion of
//! nameless inodes. Uses extents ([`crate::extents`]) and writeback
//! ([`crate::durability::writeback`]).

pub(crate) mod atomic;
pub(crate) mod clone;
mod counting;
mod deletion;
mod fallocate;
pub(crate) mod orphans;
mod planned;
pub(crate) mod read;
pub(crate) mod relocate;
mod taken;
mod truncate;
mod write;

use crate::cache::inodes::Inodes;
use crate::durability::writeback::Writeback;
use crate::engine::Engine;
use orphans::Orphans;
use std::sync::Arc;

/// The contents of the files of a file system; see the module's head.
pub(crate) struct Files {
    engine: Arc<Engine>,
    inodes: Arc<Inodes>,
    writeback: Arc<Writeback>,
    orphans: Orphans,
}

impl Files {
    pub(crate) fn new(engine: Arc<Engine>, inodes: Arc<Inodes>, writeback: Arc<Writeback>) -> Files {
        Files { engine, inodes, writeback, orphans: Orphans::new() }
    }

    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }
}

#[cfg(test)]
mod promise_tests;
