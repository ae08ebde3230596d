//! Decides which blocks the extents and count items of one tree keep.
//!
//! # Rules
//! 1. A block of the format's areas or of a node belongs to no file. Neither does a block that a
//!    dropped log record allocated: it may contain another file's bytes.
//! 2. A block of another tree is removed, unless the nearest point above this tree has it. Then it
//!    gets the birth that it has there, so that this tree shares it.
//! 3. A block is removed if its birth says that it is the point's, but the point does not have it.
//! 4. A block without a count keeps only one extent, the first.
//! 5. A marked extent shares its blocks with other marked extents of the tree. The counts are made
//!    again from the marked extents that stay ([`super::shares`]), so a wrong or lost count loses
//!    no data. But a marked extent loses the blocks that have no count and also belong to an
//!    unmarked extent.
//! 6. An unmarked extent becomes marked if its blocks have a higher count than there are marked
//!    extents: the count proves that a mark was lost.
//! 7. All extents of a block with a count get the same birth: that of the point, or else that of
//!    the count item if it is in the tree's range, or else the lowest of that range.
//!
//! A decision depends only on the block and on earlier items, so it is the same in each pass.

use crate::owned::Owned;
use crate::runs::Runs;
use kedge_base::BlockNo;
use kedge_format::counts::CountItem;
use kedge_format::item::ExtentItem;
use std::ops::Range;

/// Facts about a tree that are the same for all of its items.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    /// Blocks that dropped log records allocated.
    pub suspect: Option<&'a Owned>,
    /// The data of the nearest point above the tree, with births.
    pub above: &'a Runs<u32>,
    /// Blocks of trees that are repaired already.
    pub others: Option<&'a Owned>,
    /// The lowest and the highest birth that the tree's own blocks may have.
    pub births: (u32, u32),
    /// Whether the image supports counts.
    pub has_counts: bool,
    /// Blocks whose count exceeds the number of marked extents.
    pub owed: Option<&'a Owned>,
    /// Blocks of unmarked extents without a count.
    pub plain: Option<&'a Owned>,
}

#[derive(Clone)]
pub(crate) struct Claims<'a> {
    scene: Scene<'a>,
    /// Blocks with an owner: the format's areas, nodes, and the items accepted so far.
    pub owned: Owned,
    counted: Owned,
    /// The count items seen so far.
    counts: Runs<CountItem>,
}

/// The birth and the mark that one block of an extent gets.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Share {
    birth: u32,
    counted: bool,
}

impl<'a> Claims<'a> {
    /// `owned` has the blocks of the format's areas and the nodes; `groups` is the number of groups
    /// of the image.
    pub fn new(scene: Scene<'a>, owned: Owned, groups: u64) -> Claims<'a> {
        Claims { scene, owned, counted: Owned::new(groups), counts: Runs::default() }
    }

    /// Notes a count item for blocks from `start`. Returns false if it overlaps another one.
    pub fn count(&mut self, start: u64, item: &CountItem) -> bool {
        self.counts.insert(start, start + u64::from(item.blocks), *item)
    }

    pub fn has_counts(&self) -> bool {
        self.scene.has_counts
    }

    /// Returns the pieces of an extent that stay, each with its first file block, and the number of
    /// blocks that do not stay. The extent must be inside one group of the data area.
    pub fn extent(&mut self, first: u64, item: &ExtentItem) -> (Vec<(u64, ExtentItem)>, u64) {
        let (start, blocks) = (item.start.0, u64::from(item.blocks));
        let (mut out, mut kept): (Vec<(u64, ExtentItem)>, u64) = (Vec::new(), 0);
        let mut open: Option<(Range<u64>, Share)> = None;
        let piece = |(run, share): (Range<u64>, Share)| {
            let blocks = u32::try_from(run.end - run.start).expect("a part of an extent");
            let Share { birth, counted } = share;
            (
                first + (run.start - start),
                ExtentItem { start: BlockNo(run.start), blocks, birth, counted, ..*item },
            )
        };
        for block in start..start + blocks {
            let share = self.share(block, item);
            if let Some((run, was)) = &mut open
                && share == Some(*was)
            {
                run.end = block + 1;
            } else {
                out.extend(open.take().map(piece));
                open = share.map(|share| (block..block + 1, share));
            }
            if let Some(share) = share {
                kept += 1;
                self.owned.claim(BlockNo(block), 1);
                if share.counted {
                    self.counted.claim(BlockNo(block), 1);
                }
            }
        }
        out.extend(open.map(piece));
        (out, blocks - kept)
    }

    fn share(&self, block: u64, item: &ExtentItem) -> Option<Share> {
        let has = |owned: Option<&Owned>| owned.is_some_and(|owned| !owned.is_free(BlockNo(block), 1));
        let Scene { suspect, above, others, births: (low, high), has_counts, owed, plain } = self.scene;
        let of_point = above.at(block).map(|(_, birth)| birth);
        if has(suspect) || of_point.is_none() && (item.birth < low || has(others)) {
            return None;
        }
        if has_counts && item.counted && has(plain) {
            return None;
        }
        let counted = has_counts && (item.counted || has(owed));
        if has(Some(&self.owned)) && !(counted && has(Some(&self.counted))) {
            return None;
        }
        let fits = |birth: u32| (low..=high).contains(&birth).then_some(birth);
        let own = match counted {
            true => self.counts.at(block).and_then(|(_, count)| fits(count.birth)),
            false => fits(item.birth),
        };
        Some(Share { birth: of_point.unwrap_or_else(|| own.unwrap_or(low)), counted })
    }
}
