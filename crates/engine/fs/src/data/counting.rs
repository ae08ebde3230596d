//! Counts of shared blocks, for records that remove extents.

use super::Files;
use crate::error::Result;
use crate::extents::{ExtentSet, Removed};
use kedge_base::Ino;
use kedge_format::record::RecordBuilder;
use kedge_store::{CountChanges, CountsLock};

/// The changes of counts by one record. The lock of the counts is held from the first read to the
/// commit.
pub(super) struct Counting<'a> {
    pub changes: CountChanges<'a>,
    _lock: CountsLock<'a>,
}

/// The most keys that the removal from one item needs: the item is cut in three.
const PIECE_KEYS: usize = 3;

impl Files {
    pub(super) fn count(&self) -> Counting<'_> {
        let lock = self.engine.store().lock_counts();
        Counting { changes: self.engine.store().count_changes(), _lock: lock }
    }

    /// Reads the counts of the blocks that a step removes from `set` in file blocks `[from, to)`.
    /// An extent may have any number of counts, so the step may have to end before `to`: returns
    /// its end. The first result is `None` if no block there has a count.
    pub(super) fn count_removal(
        &self,
        ino: Ino,
        set: &ExtentSet,
        (from, to): (u64, u64),
        max: usize,
    ) -> Result<(Option<Counting<'_>>, u64)> {
        let parts: Vec<_> = set.parts(from, to).into_iter().filter(|(_, item)| item.counted).collect();
        if parts.is_empty() {
            return Ok((None, to));
        }
        let mut counting = self.count();
        let upto = counting.load(ino, &parts, max)?;
        Ok((Some(counting), upto.unwrap_or(to)))
    }
}

impl Counting<'_> {
    /// Reads the counts of extents, given with their first file blocks, until `max` edits may be
    /// needed. Returns the file block at which the reading stopped; `None` if all counts are read.
    pub(super) fn load(
        &mut self,
        ino: Ino,
        parts: &[(u64, kedge_format::item::ExtentItem)],
        max: usize,
    ) -> Result<Option<u64>> {
        for (done, (first, item)) in parts.iter().enumerate() {
            let cuts = (PIECE_KEYS - 1) * done;
            if done > 0 && self.changes.edits_max() + cuts + PIECE_KEYS > max {
                return Ok(Some(*first));
            }
            let room = max.saturating_sub(cuts + PIECE_KEYS - 1);
            let read = self.changes.load(ino, item.extent(), room)?;
            if read < item.blocks as u64 {
                return Ok(Some(first + read));
            }
        }
        Ok(None)
    }

    /// Adds the edits of the counts of removed extents, and the `Free` edits of blocks that nothing
    /// uses any more.
    pub(super) fn emit(&mut self, record: &mut RecordBuilder, ino: Ino, removed: &Removed) -> Result<()> {
        for extent in &removed.counted {
            self.changes.remove(ino, *extent)?.into_iter().for_each(|extent| record.free(extent));
        }
        self.changes.emit(record);
        Ok(())
    }
}
