//! Names and attributes: directories, links, rename, extended attributes, access control lists.

mod acl;
mod attr;
pub(crate) mod directory;
mod new_name;
mod rename;
mod slots;
pub(crate) mod xattr;

use crate::cache::inodes::Inodes;
use crate::data::Files;
use crate::durability::writeback::Writeback;
use crate::engine::Engine;
use kedge_base::lock::{Mutex, Rank};
use std::sync::Arc;

/// Names and attributes of a file system; see the module's head.
pub(crate) struct Names {
    engine: Arc<Engine>,
    inodes: Arc<Inodes>,
    writeback: Arc<Writeback>,
    files: Arc<Files>,
    /// Held by a rename between two directories, so that no other one changes the shape of the
    /// directory tree meanwhile.
    shape: Mutex<()>,
}

impl Names {
    pub(crate) fn new(
        engine: Arc<Engine>,
        inodes: Arc<Inodes>,
        writeback: Arc<Writeback>,
        files: Arc<Files>,
    ) -> Names {
        Names { engine, inodes, writeback, files, shape: Mutex::new(Rank::Rename, ()) }
    }
}
