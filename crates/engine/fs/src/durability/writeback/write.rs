//! The callers of passes: fsync, write-through, and all others. The head of
//! [`crate::durability::writeback`] describes how they handle failed writes.

use super::pass::{Kind, PASS_INODES, PASS_SEGMENTS, Pass};
use super::{BLOCK, Writeback};
use crate::cache::inode::Inode;
use crate::cache::pages::Which;
use crate::error::{Error, Result};
use kedge_store::{CheckpointClient, Class};
use std::ops::Range;
use std::sync::Arc;

/// The most attempts of a write-through to have its data in place.
const RANGE_TRIES: u32 = 3;

impl Writeback {
    /// Writes pages of the inodes in place, in the given order. Pages that become dirty meanwhile
    /// may stay dirty. Failed writes are retried once, inode by inode; the first error of the retry
    /// is returned.
    pub(crate) fn write(&self, inodes: &[Arc<Inode>], which: Which, class: Class) -> Result<()> {
        // Space was promised to the data when it became dirty. So it may use the reserves that are
        // closed to new promises.
        let class = if class == Class::Checkpoint { class } else { Class::Promised };
        let kind = Kind {
            which,
            class,
            segments_max: PASS_SEGMENTS,
            durable: false,
            stamps: false,
            told: false,
            in_tree: true,
        };
        let mut result = Ok(());
        for chunk in inodes.chunks(PASS_INODES) {
            // The inodes of one pass are locked together, so in ascending order.
            let mut chunk = chunk.to_vec();
            chunk.sort_by_key(|i| i.ino);
            chunk.dedup_by_key(|i| i.ino);
            let of_chunk = match self.write_passes(&chunk, kind, None) {
                Err(e) if self.engine.store().check_alive().is_ok() => self.write_singly(&chunk, kind, &e),
                other => other,
            };
            result = result.and(of_chunk);
        }
        result
    }

    /// Retries inode by inode after an error. After a lack of space the passes are narrow, since a
    /// wide pass may need more tree nodes than a full image has.
    fn write_singly(&self, inodes: &[Arc<Inode>], kind: Kind, after: &Error) -> Result<()> {
        let mut result = Ok(());
        for inode in inodes {
            let of_inode = self.write_again(inode, kind, after);
            if of_inode.is_err() {
                self.note_failure(inode);
            }
            result = result.and(of_inode);
        }
        result
    }

    fn write_again(&self, inode: &Arc<Inode>, kind: Kind, after: &Error) -> Result<()> {
        let no_space = matches!(after, Error::Engine(kedge_base::Error::NoSpace));
        let kind = if no_space { kind.narrow() } else { kind };
        self.write_passes(std::slice::from_ref(inode), kind, None)
    }

    /// Writes up to `inodes_max` dirty inodes, in the order of writeback. Skips inodes that failed
    /// recently.
    pub(crate) fn write_some(&self, inodes_max: usize) -> Result<()> {
        let next = self.dirty.take(inodes_max, &*self.engine.live().order());
        self.write(&self.due(next), Which::Dirty, Class::Normal)
    }

    /// Writes the dirty data of an inode for an fsync, by a durable write if that is cheaper than a
    /// flush. With `stamps` the fsync logs time stamps afterwards.
    pub(crate) fn write_for_fsync(&self, inode: &Arc<Inode>, stamps: bool) -> Result<()> {
        self.write_told(inode, Kind { stamps, ..Kind::told(Which::Dirty, true) }, None)
    }

    /// Writes the dirty data of inodes for the fsyncs of a group, in one pass if it fits.
    pub(crate) fn write_group(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        let kind = Kind::told(Which::Dirty, true);
        inodes.chunks(PASS_INODES).try_for_each(|chunk| self.write_passes(chunk, kind, None))
    }

    /// Writes the unclean data of a range of file blocks in place.
    pub(crate) fn write_range(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
        for _ in 0..RANGE_TRIES {
            // Data between the recorded size and the range is written too, because its record must
            // come first.
            let start = range.start.min(inode.meta.lock().logged_size / BLOCK);
            self.write_told(inode, Kind::told(Which::All, false), Some(start..range.end))?;
            // A truncate may have changed the recorded size meanwhile, or another thread may have
            // written new data. Then the range is not clean yet.
            if inode.pages.lock().unclean(Which::All, range.clone(), 1).is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn write_told(&self, inode: &Arc<Inode>, kind: Kind, range: Option<Range<u64>>) -> Result<()> {
        match self.write_passes(std::slice::from_ref(inode), kind, range.clone()) {
            Err(Error::Engine(kedge_base::Error::NoSpace)) => {
                self.write_passes(std::slice::from_ref(inode), kind.narrow(), range)
            }
            other => other,
        }
    }

    /// Runs passes until everything is written that was unclean at the start, or in the range. Each
    /// pass continues where the last one stopped, up to the last page that was unclean at the
    /// start. So a writer that keeps making pages dirty does not hold the passes up, and its new
    /// pages do not displace those of the start. A write that fails does not prevent the others.
    fn write_passes(&self, inodes: &[Arc<Inode>], kind: Kind, range: Option<Range<u64>>) -> Result<()> {
        let mut left = range.map(|range| vec![range; inodes.len()]);
        let mut error = None;
        loop {
            let ended = Pass::begin(self, inodes, kind)?.run(&mut left)?;
            error = error.or(ended.error);
            if !ended.more || self.engine.store().check_alive().is_err() {
                return error.map_or(Ok(()), Err);
            }
        }
    }
}

impl CheckpointClient for Writeback {
    /// Writes oldest data first, so that the tail can move even if the log is too full for all of
    /// it. Data that cannot be written to any block stays in the log and holds the tail, but does
    /// not prevent other data from being written. The first error is returned; the store decides
    /// what follows.
    fn prepare_checkpoint(&self, wrote: &dyn Fn(usize)) -> kedge_base::Result<()> {
        let resident = self.engine.store().resident_inodes();
        let mut result = Ok(());
        for chunk in resident.chunks(PASS_INODES) {
            let inodes: Vec<Arc<Inode>> = chunk.iter().filter_map(|ino| self.inodes.cached(*ino)).collect();
            let pieces =
                inodes.iter().map(|inode| self.engine.store().resident_ranges(inode.ino).len()).sum();
            let error = match self.write(&inodes, Which::Logged, Class::Checkpoint) {
                Ok(()) => {
                    wrote(pieces);
                    continue;
                }
                Err(Error::Engine(e)) => e,
                Err(e) => kedge_base::Error::invalid(e.to_string()),
            };
            let no_space = matches!(error, kedge_base::Error::NoSpace);
            result = result.and(Err(error));
            if no_space || self.engine.store().check_alive().is_err() {
                break; // there is no space for younger data either
            }
        }
        result
    }
}
