//! Changing the size of an image while it is in use: see `docs/rfcs/0027-resize.md` for growth, and
//! `docs/rfcs/0044-shrink.md`.

use crate::core::Fs;
use crate::error::{Error, Result};
use crate::gate::Phase;
use kedge_base::BLOCK_SIZE;
use kedge_store::{CheckpointCause, ForceCause, Shrinking};
use std::time::Duration;

/// The most passes of a shrink. Another pass is needed when an operation that began before the
/// shrink has placed blocks beyond the new end.
const SHRINK_TRIES: u32 = 64;
/// The pause between two passes, in which such operations end.
const SHRINK_PAUSE: Duration = Duration::from_millis(10);
/// Names of trees in a refusal.
const NAMES_MAX: usize = 8;
/// Checkpoints after which everything that was given up is free.
const SETTLING: u32 = 2;

impl Fs {
    /// Excludes freeze, thaw and close: a frozen image must not be written. Changes continue.
    pub(crate) fn resize(&self, bytes: Option<u64>) -> Result<u64> {
        let gate = self.engine().gate();
        let _single = gate.single();
        if gate.phase() != Phase::Open {
            return Err(Error::Busy("the file system is frozen"));
        }
        self.engine().check_open()?;
        let store = self.engine().store();
        let bytes = bytes.map_or_else(|| store.device().room(), Ok)?;
        let block = BLOCK_SIZE as u64;
        match bytes / block < store.total_blocks() {
            true => self.shrink(bytes / block * block),
            false => Ok(store.grow(bytes)?),
        }
    }

    fn shrink(&self, bytes: u64) -> Result<u64> {
        let store = self.engine().store();
        if store.is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        // What waits for blocks gets them, so that nothing is promised twice over.
        self.syncer().sync(ForceCause::Sync)?;
        let mut shrinking = self.begin_shrink(bytes)?;
        for _ in 0..SHRINK_TRIES {
            let moved = self.files().relocate(shrinking.end())?;
            let paths = shrinking.move_nodes()?;
            if shrinking.finish()? {
                return Ok(bytes);
            }
            if moved.shared > 0 || store.is_forked() && moved.blocks + paths == 0 {
                return Err(kedge_base::Error::invalid(self.refused_for_trees(bytes)).into());
            }
            // What was placed there before the limit is recorded now.
            self.syncer().sync(ForceCause::Sync)?;
            self.engine().clock().sleep(SHRINK_PAUSE);
        }
        Err(Error::Busy("the end of the image, which is in use,"))
    }

    /// A point of the past may hold the blocks, which only the trees that came from it can give up.
    fn refused_for_trees(&self, bytes: u64) -> String {
        let trees = self.trees();
        let mut names: Vec<String> = trees[1..]
            .iter()
            .take(NAMES_MAX)
            .map(|tree| String::from_utf8_lossy(&tree.name).into_owned())
            .collect();
        if trees.len() > 1 + NAMES_MAX {
            names.push(format!("{} more", trees.len() - 1 - NAMES_MAX));
        }
        let what = "bytes: blocks and nodes of forks or snapshots lie beyond that size, and cannot move";
        match names.is_empty() {
            true => format!("{bytes} {what} until those that were deleted are freed"),
            false => format!("{bytes} {what}; there are: {}", names.join(", ")),
        }
    }

    /// Blocks below the new end that files gave up last are free only after a checkpoint. Without
    /// them there may be fewer than are promised.
    fn begin_shrink(&self, bytes: u64) -> Result<Shrinking<'_>> {
        let store = self.engine().store();
        for _ in 0..SETTLING {
            match store.begin_shrink(bytes) {
                Err(kedge_base::Error::Busy(_)) => store.checkpoint(CheckpointCause::Request)?,
                begun => return Ok(begun?),
            }
        }
        Ok(store.begin_shrink(bytes)?)
    }
}
