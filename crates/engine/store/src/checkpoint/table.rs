//! The checkpoint that changes the table of trees: see [`crate::trees`].
//!
//! # A host without space
//! The cut makes the change visible to all readers; its checkpoint is written afterwards. If the
//! host of a sparse image has no space for the checkpoint, it is deferred: the caller gets an
//! error, although a later checkpoint will complete the change. To avoid that, a change that adds
//! trees is refused before its cut if the host may lack the space. A change that adds none is tried
//! in any case, since the deletion of a tree gives space back.
//!
//! # No record follows a deferred cut
//! The log has no record of a change of the table. A record after the cut relies on the change: on
//! the marks that decide what it frees, or on a name that is gone. After a crash before the
//! checkpoint is durable, recovery would apply that record to the trees of the checkpoint before.
//! So while a cut that concerns trees in use is deferred, no record is appended. An operation that
//! would append one first tries to write the cut, and fails as its caller did if the host still has
//! no space. No handle is held from before the cut, because the callers of such changes stop all
//! changes of files until the cut is durable or deferred. Nothing waits for the host without a
//! limit: each attempt is one write of the cut.
//!
//! What concerns no tree in use needs none of this, and is made while operations run: freeing what
//! a dying tree or a point owns, and moving nodes of the table. No record names these blocks before
//! the checkpoint is durable.

use super::cause::{By, CheckpointCause, Freed, Kind};
use crate::forest::Change;
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::{BLOCK_SIZE, Error, Result, errno};

/// Bytes that a checkpoint writes besides the nodes that are dirty before its cut: nodes of the
/// table, bitmaps, the superblock and its copies.
const BESIDE_NODES: u64 = 1 << 20;

impl Store {
    /// Fails if the host is known to lack space that the next checkpoint needs.
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

    /// Called before an operation reserves space for a record. If a deferred cut stops records,
    /// makes a checkpoint, which writes that cut first. Fails if the host still has no space.
    pub(crate) fn check_records_allowed(&self) -> Result<()> {
        while self.checkpoint.stops_records() {
            self.checkpoint(CheckpointCause::Request)?;
        }
        Ok(())
    }

    /// Whether no record can be appended until the host has space for a change of the table.
    pub fn stops_records(&self) -> bool {
        self.checkpoint.stops_records()
    }

    /// Runs a checkpoint that changes the table. `more`: number of entries that it adds. After an
    /// error the change is not made. The exception: if the host of the image became full meanwhile,
    /// a later checkpoint makes the change durable, and a crash before it undoes the change.
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
