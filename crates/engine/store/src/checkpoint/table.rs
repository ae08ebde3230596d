//! The checkpoint that changes the table of trees: see [`crate::trees`].

use super::cause::{By, CheckpointCause, Freed, Kind};
use crate::forest::Change;
use crate::store::Store;
use kedge_base::atomic::Ordering;
use kedge_base::{Error, Result};

impl Store {
    /// Runs the checkpoint that changes the table. `more`: entries that it adds.
    pub(crate) fn change_trees(&self, changes: &[Change], freed: &Freed, more: u32) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let mut single = self.checkpoint.alone(CheckpointCause::Request);
        self.check_alive()?;
        if self.checkpoint.is_frozen() || self.closed.load(Ordering::Acquire) {
            return Err(Error::Busy("the file system, which is frozen or being unmounted,".into()));
        }
        self.forest.promise_nodes(more)?;
        let kind = Kind::Trees(changes, freed);
        self.run_checkpoint(&mut single, CheckpointCause::Request, By::Operation, kind)
    }
}
