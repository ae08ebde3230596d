//! Discards of free blocks.
//!
//! # Crash argument
//! A discard may take effect at any time until the next flush, and may leave any contents in its
//! blocks. After a crash this is harmless if recovery reads none of these blocks as what they were.
//! `Alloc::claim_free` returns only blocks that are not busy:
//!
//! - A data block is not busy once the record that freed it is durable. So every recovery replays
//!   the free, and no file has the block. If the block were discarded earlier, a crash would
//!   restore the old file with zeros or garbage in place of its bytes (G9).
//! - A tree node is not busy once a checkpoint is durable that does not reach it. If the node were
//!   discarded earlier, the tree of the last checkpoint would have a hole.
//! - The next owner of the block writes it before a record names it. A discard counts as a data
//!   write, so that record's log write flushes the device first, and the discard cannot overwrite
//!   the new bytes. Writing those bytes with FUA would not be enough: a FUA write makes nothing
//!   else durable, and a discard that no flush has covered may land after it. A discard that fails
//!   counts as well: the device may have performed a part of it.
//!
//! The simpler rule, to discard only after a checkpoint, was rejected. The next checkpoint may be
//! minutes away, and waiting for it adds no safety: the durable free already protects the block.

use crate::store::Store;
use kedge_alloc::Which;
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, Extent, Lsn, Result};
use kedge_log::ForceCause;
use std::ops::Range;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The result of a pass of discards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    pub blocks: u64,
    /// Requests to the device.
    pub runs: u64,
    /// Where a further pass continues: after the last run, or at the end of the range.
    pub end: BlockNo,
}

impl Store {
    /// Whether the device can take discards.
    pub fn can_discard(&self) -> bool {
        !self.read_only && self.device.geometry().discard_granularity > 0
    }

    /// Discards free runs of at least `min_blocks` in the range, at most `runs_max` of them. Blocks
    /// freed before the call count as free, because the log is forced first.
    pub fn discard_free(
        &self,
        range: Range<BlockNo>,
        min_blocks: u64,
        which: Which,
        runs_max: u64,
    ) -> Result<Discarded> {
        self.check_alive()?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if broken::is(Variant::DiscardEarly) {
            // Broken on purpose: blocks whose free is not durable are discarded.
            for extent in self.alloc.pending_frees() {
                trace::note(|| Event::Discards(extent));
                self.device.discard(extent.start.byte_offset(), extent.blocks * BLOCK)?;
            }
        } else if self.alloc.free_counts().pending_data > 0 {
            self.force(Lsn(u64::MAX), ForceCause::Space)?;
            self.alloc.durable(self.log.durable_lsn());
        }
        let step = (self.device.geometry().discard_granularity as u64 / BLOCK).max(1);
        let mut done = Discarded { end: range.start, ..Discarded::default() };
        while done.runs < runs_max {
            let rest = done.end..range.end;
            let Some(run) = self.alloc.claim_free(rest, min_blocks.max(step), which) else {
                done.end = range.end;
                break;
            };
            done.end = run.end();
            let result = self.discard_run(run, step);
            self.alloc.end_claim(run, result.is_ok());
            done.blocks += result?;
            done.runs += 1;
            self.check_alive()?;
        }
        Ok(done)
    }

    /// Discards the whole granules of a run, since the device ignores the rest. Returns the number
    /// of blocks discarded.
    fn discard_run(&self, run: Extent, step: u64) -> Result<u64> {
        let (start, end) = (run.start.0.next_multiple_of(step), run.end().0 / step * step);
        if start >= end {
            return Ok(0);
        }
        trace::note(|| Event::Discards(Extent::new(BlockNo(start), end - start)));
        let result = self.device.discard(start * BLOCK, (end - start) * BLOCK);
        // The write is noted before the blocks are released, since their next owner may write them
        // at once. It is noted after an error, too, since a part of the discard may have been
        // performed. Broken on purpose: no flush is requested.
        if !broken::is(Variant::DiscardWithoutFlush) {
            self.note_data_write();
        }
        result.map(|()| end - start)
    }
}
