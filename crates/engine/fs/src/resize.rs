//! Changing the size of an image while it is in use: see `docs/rfcs/0027-resize.md` for growth, and
//! `docs/rfcs/0044-shrink.md`.

use crate::core::Fs;
use crate::error::{Error, Result};
use crate::gate::Phase;
use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind};
use kedge_store::{CheckpointCause, ForceCause, Shrinking};
use std::time::Duration;

/// The most passes of a shrink. Another pass is needed if an operation that began before the shrink
/// has allocated blocks beyond the new end.
const SHRINK_TRIES: u32 = 64;
/// The pause between two passes, in which operations of that kind can end.
const SHRINK_PAUSE: Duration = Duration::from_millis(10);
/// The most names of trees in an error message.
const NAMES_MAX: usize = 8;
/// Number of checkpoints after which all blocks that were given up are free.
const SETTLING: u32 = 2;

impl Fs {
    /// Excludes freezes, thaws and closes meanwhile, since a frozen image must not be written.
    /// Changes continue.
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
        // Frees the space of deleted trees first, unless a comparison of trees needs it.
        while self.engine().moments.load(SeqCst) == 0 && self.reclaim_alone()? {}
        // Writes dirty pages first, so that they have blocks and hold no promises.
        self.syncer().sync(ForceCause::Sync)?;
        let mut shrinking = self.begin_shrink(bytes)?;
        self.check_points(bytes, shrinking.end())?;
        for _ in 0..SHRINK_TRIES {
            let stay = self.files().relocate(shrinking.end())?;
            if stay > 0 {
                // `check_points` has found no point with blocks there, and none is made meanwhile.
                let what = "blocks below the marks of a tree belong to no point";
                return Err(kedge_base::Error::corrupt(CorruptKind::Item, shrinking.end(), what).into());
            }
            shrinking.move_nodes()?;
            if shrinking.finish()? {
                return Ok(bytes);
            }
            // Blocks beyond the new end that were allocated before the limit get their records
            // here.
            self.syncer().sync(ForceCause::Sync)?;
            self.engine().clock().sleep(SHRINK_PAUSE);
        }
        Err(Error::Busy("the end of the image, which is in use,"))
    }

    /// Refuses a shrink that needs the deletion of trees: a point does not change, so its blocks
    /// cannot move. Points are made and removed only with `gate.single()` held.
    fn check_points(&self, bytes: u64, end: BlockNo) -> Result<()> {
        let store = self.engine().store();
        let (points, last) = store.points_beyond(end)?;
        if points.is_empty() {
            return Ok(());
        }
        let entries = store.trees();
        let has_one = |number: u32| {
            let above =
                |number: &u32| entries.get(number).map(|entry| entry.point).filter(|point| *point != 0);
            std::iter::successors(Some(number), above).any(|number| points.contains(&number))
        };
        let heads = entries.iter().filter(|(number, entry)| entry.dir.0 != 0 && has_one(**number));
        let mut names: Vec<_> = heads.map(|(_, entry)| String::from_utf8_lossy(&entry.name)).collect();
        let more = names.len().saturating_sub(NAMES_MAX);
        names.truncate(NAMES_MAX);
        if more > 0 {
            names.push(format!("{more} more").into());
        }
        let reach = last.0 * BLOCK_SIZE as u64;
        let what =
            format!("{bytes} bytes: forks or snapshots have blocks up to byte {reach}, which cannot move");
        let refused = match names.is_empty() {
            true => format!("{what} until those that were deleted are freed"),
            false => format!("{what} until these are deleted: {}", names.join(", ")),
        };
        Err(kedge_base::Error::invalid(refused).into())
    }

    /// Starts the shrink in the store. Blocks below the new end that files gave up recently become
    /// free only with a checkpoint. If there are too few blocks for what is promised, checkpoints
    /// are made.
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
