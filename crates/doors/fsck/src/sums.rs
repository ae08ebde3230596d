//! The check that each written block of a file with checksums has one, without reading the blocks.
//! [`crate::data`] reads them.

use kedge_format::item::ExtentItem;
use kedge_format::sums::{SUMS_BLOCKS, SumsItem};
use std::collections::VecDeque;

/// The written file blocks of an inode whose checksums have not been seen yet. Extents come before
/// checksums, and both in ascending order.
#[derive(Default)]
pub(crate) struct Written {
    runs: VecDeque<(u64, u64)>,
    /// The first written block without a checksum, and the number of such blocks.
    missing: Option<(u64, u64)>,
}

impl Written {
    pub fn extent(&mut self, first: u64, item: &ExtentItem) {
        // The overlap itself is reported elsewhere.
        let from = first.max(self.runs.back().map_or(0, |(_, end)| *end));
        let end = first.saturating_add(item.blocks as u64);
        if !item.unwritten && from < end {
            self.runs.push_back((from, end));
        }
    }

    /// Handles an item of checksums that begins at file block `first`. Blocks before it that are
    /// still left have no checksum.
    pub fn item(&mut self, first: u64, item: &SumsItem) {
        self.miss_before(first);
        let end = first.saturating_add(SUMS_BLOCKS);
        while let Some((from, to)) = self.runs.front().copied().filter(|(from, _)| *from < end) {
            let upto = to.min(end);
            (from..upto).filter(|block| item.get(*block) == 0).for_each(|block| self.miss(block, 1));
            self.runs.pop_front();
            if upto < to {
                self.runs.push_front((upto, to));
            }
        }
    }

    /// Must be called after the last item. Returns the first written block without a checksum and
    /// the number of such blocks.
    pub fn finish(mut self) -> Option<(u64, u64)> {
        self.miss_before(u64::MAX);
        self.missing
    }

    fn miss_before(&mut self, end: u64) {
        while let Some((from, to)) = self.runs.front().copied().filter(|(from, _)| *from < end) {
            let upto = to.min(end);
            self.miss(from, upto - from);
            self.runs.pop_front();
            if upto < to {
                self.runs.push_front((upto, to));
            }
        }
    }

    fn miss(&mut self, block: u64, count: u64) {
        self.missing.get_or_insert((block, 0)).1 += count;
    }
}

#[cfg(test)]
#[path = "sums_tests.rs"]
mod tests;
