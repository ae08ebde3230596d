//! The checkpoint that changes the table of trees: see [`crate::trees`].
//!
//! # A host without space
//! The cut makes the change for all readers, and only then its checkpoint is written. If the host
//! of a sparse image has no space for it, the checkpoint is deferred, and the caller gets the error
//! of a change that a later checkpoint completes. So a change that adds trees is refused before its
//! cut if the host may not have the space. One that adds none is tried all the same: the deletion
//! of a tree gives space back.

use super::cause::{By, CheckpointCause, Freed, Kind};
use crate::forest::Change;
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::{BLOCK_SIZE, Error, Result, errno};

/// Bytes of a checkpoint beside the nodes that are dirty before its cut: nodes of the table,
/// bitmaps, the superblock and its copies.
const BESIDE_NODES: u64 = 1 << 20;

impl Store {
    /// Whether the host has space for the next checkpoint, or none is needed, as far as is known.
    fn check_host(&self) -> Result<()> {
        let bytes = self.forest.dirty_bytes() as u64 + BESIDE_NODES;
        if self.device.host_free().is_none_or(|free| free >= bytes) {
            return Ok(());
        }
        let start = self.geometry.data_start.byte_offset();
        match self.device.first_hole(start, self.total_blocks() * BLOCK_SIZE as u64 - start) {
            None => Ok(()),
            Some(offset) => Err(Error::Io { op: "write", offset, len: bytes, errno: errno::ENOSPC }),
        }
    }

    /// Runs the checkpoint that changes the table. `more`: entries that it adds. After an error the
    /// change is not made, or, if the host of the image became full meanwhile, a later checkpoint
    /// makes it durable.
    pub(crate) fn change_trees(&self, changes: &[Change], freed: &Freed, more: u32) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let mut single = self.checkpoint.alone(CheckpointCause::Request);
        self.check_alive()?;
        if self.checkpoint.is_frozen() || self.closed.load(Ordering::Acquire) {
            return Err(Error::Busy("the file system, which is frozen or being unmounted,".into()));
        }
        if more > 0 {
            self.check_host()?;
        }
        self.forest.promise_nodes(more)?;
        let kind = Kind::Trees(changes, freed);
        self.run_checkpoint(&mut single, CheckpointCause::Request, By::Operation, kind)
    }
}
