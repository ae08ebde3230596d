//! The part of a pass that concerns one inode, and the writes of a pass.

use super::super::BLOCK;
use super::{PATCHED, STEP_BYTES};
use crate::cache::pages::Before;
use crate::extents::ExtentSet;
use kedge_base::{BlockNo, Extent, IoBuf};
use kedge_format::counts::CountItem;
use kedge_format::item::ExtentItem;
use kedge_format::record::size;
use kedge_format::sums::{SUMS_BLOCKS, SumsItem};
use kedge_store::{LimitId, Spent};
use std::collections::BTreeSet;

/// If more pages of a part than this must be left out of the record, the whole part is left out,
/// because it would have too many extents.
const KEPT_MAX: usize = 64;

/// The most file blocks of one step of the plan, in a file with checksums.
pub(super) const SUMS_STEP_BLOCKS: u64 = 4 * SUMS_BLOCKS;
/// Upper bound on the log bytes of the checksums of such a step.
pub(super) const SUMS_STEP_BYTES: u64 = (SUMS_STEP_BLOCKS / SUMS_BLOCKS) * SUMS_BYTES;
/// Upper bound on the log bytes of one checksum item.
pub(super) const SUMS_BYTES: u64 = size::put(SumsItem::SIZE_MAX);

/// The most file blocks of one step of the plan, if their old blocks have counts. Another file may
/// change the counts before the record is made, so each block may then have a count item of its
/// own.
pub(super) const COUNTED_STEP_BLOCKS: u64 = 16;
/// Upper bound on the log bytes of the counts of such a step.
pub(super) const COUNTED_STEP_BYTES: u64 = counts_bytes(COUNTED_STEP_BLOCKS);

/// Upper bound on the log bytes of the changed counts of this many adjacent blocks: an item for
/// each block, and one that is cut at each end; each block may become free.
const fn counts_bytes(blocks: u64) -> u64 {
    (blocks + 2) * size::put(CountItem::SIZE) + blocks * size::RUN
}

/// Where the blocks of a run of pages come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// The pages had these blocks already.
    InPlace,
    /// New blocks, for pages without blocks or whose blocks must not be overwritten.
    New,
    /// New blocks, for pages to whose blocks a write has failed.
    Moved,
    /// No blocks: the bytes go into the tree.
    InTree,
}

/// A run of pages of one inode that is written to one run of blocks.
pub(super) struct Segment {
    /// Index of the inode in the pass.
    pub inode_index: usize,
    pub index: u64,
    pub count: u64,
    pub block: BlockNo,
    pub how: How,
    /// Whether the segment must be a write of its own, because a write to its block has failed
    /// before.
    pub alone: bool,
}

/// A run of blocks that a pass has allocated.
pub(super) struct NewRun {
    pub index: u64,
    pub extent: Extent,
    /// The old blocks of the pages, if they had any.
    pub old: Option<Old>,
    pub how: How,
}

/// The old blocks of a run of pages.
#[derive(Clone, Copy)]
pub(super) struct Old {
    pub start: BlockNo,
    /// Whether the blocks were unwritten.
    pub unwritten: bool,
    pub birth: u32,
    /// Whether another tree or another file may use the blocks, so that they do not simply become
    /// free.
    pub shared: bool,
    /// Whether the blocks have counts, which must be decremented.
    pub counted: bool,
}

/// A page that is being written.
pub(super) struct Writing {
    pub index: u64,
    pub block: BlockNo,
    pub how: How,
    pub before: Before,
    /// The checksum of the bytes, if the file has checksums.
    pub sum: u32,
}

/// The part of a pass that concerns one inode.
pub(super) struct Part {
    /// Whether the file has checksums.
    pub sums: bool,
    /// Whether the file's blocks may have counts.
    pub counts: bool,
    pub set: ExtentSet,
    pub new: Vec<NewRun>,
    /// Ranges of file blocks that are written.
    pub ranges: Vec<(u64, u64)>,
    /// Subranges of `ranges` that were in unwritten extents before this pass.
    pub unwritten: Vec<(u64, u64)>,
    /// Largest size of the file while its pages were copied, in bytes.
    pub size: u64,
    /// The first dirty page at or beyond the logged size that is not in the pass.
    pub left_out: Option<u64>,
    /// The pages that have been copied.
    pub writing: Vec<Writing>,
    /// Whether a write with pages of this inode failed, even if a retry succeeded.
    pub met_error: bool,
    /// Whether the last such failure was caused by a full host of the image.
    pub met_full: bool,
    /// Pages whose writes failed.
    pub failed: BTreeSet<u64>,
    /// The failed pages, and those that must not be recorded before them.
    pub kept: BTreeSet<u64>,
    pub more: bool,
    /// Charged pages in ascending order, and (`limit`) the limit that has promised their blocks.
    pub charged: Vec<u64>,
    pub limit: Option<LimitId>,
    /// Number of places in the tree at which extents change, and the file block after the last
    /// place.
    places: u32,
    place_end: u64,
    /// Number of checksum items that change, and the number of the item after the last of them.
    sums_items: u64,
    sums_end: u64,
    /// Upper bound on the log bytes of the counts that change.
    counts_bytes: u64,
    /// What happens to the inline data of the file.
    pub in_tree: InTree,
}

/// What a pass does with the inline data of a file ([`crate::inline`]).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum InTree {
    /// Leaves it unchanged.
    #[default]
    Same,
    /// Puts these bytes into the tree. The part writes no block.
    Put(Vec<u8>),
    /// Deletes the item, because file block 0 gets a block.
    Delete,
}

/// Log bytes of an [`InTree::Put`] of `len` bytes.
pub(super) const fn put_bytes(len: usize) -> u64 {
    size::patch(PATCHED) + size::put(len) + size::RANGE
}

impl Part {
    pub(super) fn new(left_out: Option<u64>, sums: bool, counts: bool) -> Part {
        Part {
            sums,
            counts,
            counts_bytes: 0,
            in_tree: InTree::Same,
            set: ExtentSet::default(),
            new: Vec::new(),
            ranges: Vec::new(),
            unwritten: Vec::new(),
            size: 0,
            left_out,
            writing: Vec::new(),
            met_error: false,
            met_full: false,
            failed: BTreeSet::new(),
            kept: BTreeSet::new(),
            more: false,
            charged: Vec::new(),
            limit: None,
            places: 0,
            place_end: u64::MAX,
            sums_items: 0,
            sums_end: u64::MAX,
        }
    }

    /// Adds a range of file blocks that are written.
    pub(super) fn add_range(&mut self, from: u64, to: u64) {
        self.ranges.push((from, to));
        if self.sums {
            let (first, end) = (from / SUMS_BLOCKS, to.div_ceil(SUMS_BLOCKS));
            // The first checksum item may be the last one of the range before.
            self.places += u32::from(first != self.sums_end && first + 1 != self.sums_end);
            self.sums_items += end - first;
            self.sums_end = end;
        }
    }

    /// Counts a change of the extents of `[from, to)`. Adjacent changes count as one place.
    pub(super) fn touch(&mut self, from: u64, to: u64) {
        self.places += (self.place_end != from) as u32;
        self.place_end = to;
    }

    /// Counts changes of the counts of this many adjacent blocks.
    pub(super) fn touch_counts(&mut self, blocks: u64) {
        self.places += 1;
        self.counts_bytes += counts_bytes(blocks);
    }

    /// Whether old blocks of the pages have counts, which change.
    pub(super) fn changes_counts(&self) -> bool {
        self.counts_bytes > 0
    }

    /// Upper bound on the bytes of the edits of counts.
    pub(super) fn counts_bytes_max(&self) -> u64 {
        self.counts_bytes
    }

    /// Upper bound on the bytes of the part's edits, unless pages are left out.
    pub(super) fn bytes_max(&self) -> u64 {
        let moved = self.new.iter().filter(|run| run.old.is_some()).count();
        size::patch(PATCHED)
            + self.set.edits_max() as u64 * size::EXTENT_ITEM
            + (self.new.len() + moved) as u64 * size::RUN
            + self.ranges.len() as u64 * size::RANGE
            + self.sums_items * SUMS_BYTES
            + self.counts_bytes
            + match &self.in_tree {
                InTree::Same => 0,
                InTree::Put(bytes) => size::put(bytes.len()),
                InTree::Delete => size::DELETE,
            }
    }

    /// Makes the part put the file's bytes into the tree, and nothing else.
    pub(super) fn put_in_tree(&mut self, bytes: Vec<u8>, before: Before) {
        self.size = bytes.len() as u64;
        self.touch(0, 1);
        self.ranges.push((0, 1));
        self.writing.push(Writing { index: 0, block: BlockNo(0), how: How::InTree, before, sum: 0 });
        self.in_tree = InTree::Put(bytes);
    }

    /// Makes the record delete the inline item when it names the new block of file block 0.
    pub(super) fn delete_from_tree(&mut self) {
        self.places += 1;
        self.in_tree = InTree::Delete;
    }

    /// Whether the record deletes the inline item, because it names a block for file block 0.
    pub(super) fn leaves_tree(&self) -> bool {
        self.in_tree == InTree::Delete
            && self.ranges.iter().any(|(from, _)| *from == 0)
            && !self.taken(0, 1).is_empty()
    }

    /// Whether the part puts bytes into the tree, and writes no block.
    pub(super) fn is_in_tree(&self) -> bool {
        matches!(self.in_tree, InTree::Put(_))
    }

    /// Leaves the whole part out of the record.
    pub(super) fn leave_out(&mut self) {
        self.kept = self.ranges.iter().flat_map(|(from, to)| *from..*to).collect();
        self.set = ExtentSet::default();
    }

    /// What the record uses up of the promises of a limit.
    pub(super) fn spends(&self) -> Option<Spent> {
        let id = self.limit?;
        let blocks = self.charged.iter().filter(|index| !self.kept.contains(index)).count() as u64;
        Some(Spent { id, blocks, inodes: 0 })
    }

    /// The subranges of `[from, to)` that the record may name.
    pub(super) fn taken(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let mut at = from;
        for end in self.kept.range(from..to).copied().chain([to]) {
            if at < end {
                out.push((at, end));
            }
            at = end + 1;
        }
        out
    }

    /// The runs of new blocks that the record may name, each with the old blocks that it replaces.
    pub(super) fn taken_runs(&self) -> Vec<(Extent, Option<(Extent, Old)>)> {
        let mut out = Vec::new();
        for run in &self.new {
            for (from, to) in self.taken(run.index, run.index + run.extent.blocks) {
                let part = |start: BlockNo| Extent::new(BlockNo(start.0 + from - run.index), to - from);
                out.push((part(run.extent.start), run.old.map(|old| (part(old.start), old))));
            }
        }
        out
    }

    /// Decides which pages the record leaves out, and restores their previous extents. These are
    /// the failed pages, and beyond the logged size also all pages after one that stays dirty. The
    /// recorded size must not cover bytes that are not written. No written block may be beyond the
    /// recorded size: if the file grew over it, it would show.
    pub(super) fn leave_out_failed(&mut self, logged_size: u64) {
        let end = logged_size / BLOCK;
        let obstacle = self.failed.range(end..).next().copied().into_iter().chain(self.left_out).min();
        self.kept = self.failed.clone();
        if let Some(obstacle) = obstacle {
            let behind = (obstacle + 1).max(logged_size.div_ceil(BLOCK));
            let pages = self.ranges.iter().flat_map(|(from, to)| *from..*to);
            self.kept.extend(pages.filter(|index| *index >= behind));
        }
        if self.kept.len() > KEPT_MAX {
            self.leave_out();
            return;
        }
        for &index in &self.kept {
            if let Some(run) = self.new.iter().find(|r| (r.index..r.index + r.extent.blocks).contains(&index))
            {
                self.set.remove(index, index + 1);
                if let Some(old) = run.old {
                    let start = BlockNo(old.start.0 + index - run.index);
                    let Old { unwritten, birth, counted, .. } = old;
                    self.set.insert(index, ExtentItem { start, blocks: 1, unwritten, birth, counted });
                }
            } else if self.unwritten.iter().any(|(from, to)| (*from..*to).contains(&index)) {
                self.set.set_unwritten(index, index + 1);
            }
        }
    }

    /// The checksums of the pages that the record may name, in ascending order.
    pub(super) fn taken_sums(&self) -> Vec<(u64, u32)> {
        let has_sum = |page: &&Writing| self.sums && page.how != How::InTree;
        let taken = self.writing.iter().filter(has_sum).filter(|page| !self.kept.contains(&page.index));
        let mut sums: Vec<(u64, u32)> = taken.map(|page| (page.index, page.sum)).collect();
        sums.sort_unstable();
        sums
    }

    /// Whether all pages of the part have written blocks below the recorded size, and stay there.
    pub(super) fn only_overwrites(&self, logged_size: u64) -> bool {
        self.new.is_empty()
            && self.unwritten.is_empty()
            && self.in_tree == InTree::Same
            && !self.sums
            && self.size_to_record() <= logged_size
    }

    /// The size that the record may set: it covers only written bytes.
    pub(super) fn size_to_record(&self) -> u64 {
        let taken = self.ranges.iter().flat_map(|(from, to)| self.taken(*from, *to));
        taken.map(|(_, to)| to * BLOCK).max().unwrap_or(0).min(self.size)
    }
}

/// The segments planned so far, and the room that is left in the record.
pub(super) struct Plan {
    pub segments: Vec<Segment>,
    pub goal: Option<BlockNo>,
    bytes_left: u64,
    /// Number of places in the tree at which extents may still change.
    places_left: u32,
    /// Whether files may have inline data.
    inline: bool,
}

impl Plan {
    pub(super) fn new(bytes: u64, places: u32, inline: bool) -> Plan {
        Plan { segments: Vec::new(), goal: None, bytes_left: bytes, places_left: places, inline }
    }

    /// Whether one more step of this part might not fit into the record.
    pub(super) fn is_full(&self, part: &Part) -> bool {
        let (bytes, places) = if part.sums { (SUMS_STEP_BYTES, 1) } else { (0, 0) };
        let (counts, paths) = if part.counts { (COUNTED_STEP_BYTES, 1) } else { (0, 0) };
        // The inline item that a block replaces is another place in the tree.
        let paths = paths + u32::from(self.inline);
        self.bytes_left < part.bytes_max() + STEP_BYTES + bytes + counts
            || self.places_left <= part.places + places + paths
    }

    /// Whether an inline item of this many bytes fits.
    pub(super) fn takes_in_tree(&self, len: usize) -> bool {
        self.bytes_left >= put_bytes(len) && self.places_left > 0
    }

    /// Whether another inode might not fit.
    pub(super) fn has_no_room(&self) -> bool {
        self.bytes_left < size::patch(PATCHED) + STEP_BYTES || self.places_left == 0
    }

    /// Adds a planned part.
    pub(super) fn add(&mut self, part: &Part) {
        self.bytes_left = self.bytes_left.saturating_sub(part.bytes_max());
        self.places_left = self.places_left.saturating_sub(part.places);
    }
}

/// A write to submit.
pub(super) struct Gathered {
    pub start: BlockNo,
    pub buf: IoBuf,
    /// The pages in it, in order: inode, first page, number of pages.
    pub users: Vec<(usize, u64, u64)>,
}
