//! Logs the pending time stamps of inodes.

use super::Syncer;
use crate::cache::commit::{Change, commit};
use crate::cache::inode::{Inode, tree_count};
use crate::error::{Error, Result};
use kedge_format::record::{RecordBuilder, RecordOp};
use kedge_store::{Class, Need};
use std::sync::Arc;

/// The most inodes in one record of time stamps.
const TIMES_INODES: usize = 256;
/// The most inodes in one record if an image is too full for the larger record.
const TIMES_INODES_FULL: usize = 8;

impl Syncer {
    /// Logs the pending time stamps of these inodes. A failure of one inode does not affect the
    /// others.
    pub(super) fn log_times(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        let mut result = Ok(());
        for chunk in inodes.chunks(TIMES_INODES) {
            // The inodes of one record are locked together, so in ascending order.
            let mut chunk = chunk.to_vec();
            chunk.sort_by_key(|i| i.ino);
            let few = match self.log_times_of(&chunk) {
                Ok(()) => continue,
                // A full image may have no tree nodes for a record of many inodes. Records of fewer
                // inodes need fewer nodes.
                Err(Error::Engine(kedge_base::Error::NoSpace)) => TIMES_INODES_FULL,
                Err(_) => 1,
            };
            for few in chunk.chunks(few).take_while(|_| self.engine.store().check_alive().is_ok()) {
                result = result.and(self.log_times_of(few));
            }
            result = result.and(self.engine.store().check_alive().map_err(Error::from));
        }
        result
    }

    fn log_times_of(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        let mut handle = self
            .engine
            .begin(Need::record(Class::Promised).patches(inodes.len()).in_trees(tree_count(inodes)))?;
        let mut changes = Vec::with_capacity(inodes.len());
        for inode in inodes {
            let meta = inode.meta.lock();
            if meta.unlogged.is_empty() || meta.dead {
                continue;
            }
            changes.push(Change::of(inode, meta));
        }
        if changes.is_empty() {
            return Ok(());
        }
        commit(&mut handle, RecordBuilder::new(RecordOp::Times), &mut changes)?;
        Ok(())
    }
}
