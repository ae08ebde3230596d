//! Giving free blocks back to the device.
//!
//! # Crash argument
//! A discard may take effect at any time until the next flush, and leaves anything in its blocks. A
//! crash finds this harmless if recovery reads none of them as what they were. `Alloc::claim_free`
//! gives out blocks that are not busy, and only these:
//!
//! - A data block is not busy when the record that freed it is durable. So every recovery replays
//!   the free, and no file has the block. Discarded earlier, a crash would bring the old file back
//!   with zeros or garbage in the place of its bytes (G9).
//! - A tree node is not busy when a checkpoint is durable that does not reach it. Discarded
//!   earlier, the tree of the last checkpoint would have a hole.
//! - Whoever is given the block after the discard writes it before a record names it. A discard
//!   counts as a data write, so that record's log write flushes the device first, and the discard
//!   cannot win over the new bytes. That they were written with FUA is not enough: a FUA write
//!   makes nothing else durable, and a discard that no flush has covered may come after it.
//!
//! The clearest rule, to discard only after a checkpoint, was rejected: a checkpoint may be far
//! away, and a discard then would be safe for the same reason as before it.

use crate::{ForceCause, Store};
use kedge_alloc::Which;
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, Extent, Lsn, Result};
use std::ops::Range;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What a pass of discards did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    pub blocks: u64,
    /// Requests to the device.
    pub runs: u64,
    /// Where a further pass goes on: behind the last run, or at the end of the range.
    pub end: BlockNo,
}

impl Store {
    /// Whether the device can take discards.
    pub fn can_discard(&self) -> bool {
        !self.read_only && self.device.geometry().discard_granularity > 0
    }

    /// Discards free runs of at least `min_blocks` in the range, at most `runs_max` of them. What
    /// was freed before the call counts as free: the log is forced first.
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

    /// The device ignores what is no whole granule. Answers how many blocks were discarded.
    fn discard_run(&self, run: Extent, step: u64) -> Result<u64> {
        let (start, end) = (run.start.0.next_multiple_of(step), run.end().0 / step * step);
        if start >= end {
            return Ok(0);
        }
        self.device.discard(start * BLOCK, (end - start) * BLOCK)?;
        // Before the blocks are given back: who gets them may write them at once. Broken on
        // purpose: no flush is asked for.
        if !broken::is(Variant::DiscardWithoutFlush) {
            self.note_data_write();
        }
        Ok(end - start)
    }
}
