//! Changing the size of an image while it is in use: see `docs/rfcs/0027-resize.md` for growth, and
//! `docs/rfcs/0044-shrink.md`.

use crate::core::Fs;
use crate::error::{Error, Result};
use crate::gate::Phase;
use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind};
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
        // What deleted trees have left is free afterwards, unless a comparison of trees needs it.
        while self.engine().moments.load(SeqCst) == 0 && self.reclaim_alone()? {}
        // What waits for blocks gets them, so that nothing is promised twice over.
        self.syncer().sync(ForceCause::Sync)?;
        let mut shrinking = self.begin_shrink(bytes)?;
        self.check_points(bytes, shrinking.end())?;
        for _ in 0..SHRINK_TRIES {
            let stay = self.files().relocate(shrinking.end())?;
            if stay > 0 {
                // No point has them, and none is made meanwhile.
                let what = "blocks below the marks of a tree belong to no point";
                return Err(kedge_base::Error::corrupt(CorruptKind::Item, shrinking.end(), what).into());
            }
            shrinking.move_nodes()?;
            if shrinking.finish()? {
                return Ok(bytes);
            }
            // What was placed there before the limit is recorded now.
            self.syncer().sync(ForceCause::Sync)?;
            self.engine().clock().sleep(SHRINK_PAUSE);
        }
        Err(Error::Busy("the end of the image, which is in use,"))
    }

    /// Refuses what only the deletion of trees makes possible: the nodes of a point do not change,
    /// so what it owns stays where it is. Points come and go only with `gate.single()`.
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
