//! The layout of an image after a shrink.
//!
//! Everything before the data area stays in place, including the log and the area for allocation
//! maps that mkfs put before the log. Maps in the data area stay if they end before the new end of
//! the image. Otherwise they return to the area before the log if that is large enough, or else
//! move to free blocks below the new end.

use crate::alloc::{GROUP_BLOCKS, INDEX_ENTRIES};
use crate::node::NODE_BLOCKS;
use crate::superblock::{FIRST_AREA, Geometry, IMAGE_MIN, INCOMPAT_MOVED_MAPS};
use kedge_base::{BLOCK_SIZE, BlockNo};

/// Where the allocation maps of a shrunk image lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maps {
    /// The maps stay in place.
    Stay,
    /// The maps return to the area before the log.
    Return,
    /// The maps move to this number of adjacent blocks in the data area, which the caller provides.
    Move(u64),
}

impl Geometry {
    /// Returns the first block that a shrink to the size of `self` must vacate. It is the new last
    /// block, because the last block of an image holds a copy of the superblock.
    pub fn vacated_from(&self) -> BlockNo {
        BlockNo(self.total_blocks - u64::from(self.has_copies()))
    }

    /// Returns this geometry with `total_blocks` blocks, at most the present number, and with its
    /// maps in place.
    fn cut_to(&self, total_blocks: u64) -> Geometry {
        let groups = total_blocks.div_ceil(GROUP_BLOCKS);
        Geometry { total_blocks, index_blocks: groups.div_ceil(INDEX_ENTRIES as u64), ..self.clone() }
    }

    /// Returns where the maps lie once the image has `total_blocks` blocks, at most the present
    /// number.
    pub fn maps_after_shrink(&self, total_blocks: u64) -> Maps {
        let new = self.cut_to(total_blocks);
        if self.moved_maps().is_empty() || new.moved_maps().end <= new.vacated_from().0 {
            return Maps::Stay;
        }
        let blocks = 2 * (new.index_blocks + new.groups());
        if FIRST_AREA + blocks <= self.log_start.0 { Maps::Return } else { Maps::Move(blocks) }
    }

    /// Returns the geometry of this image once it has `total_blocks` blocks, at most the present
    /// number. `maps` is the first of the blocks for maps that move ([`Maps::Move`]).
    pub fn shrunk(&self, total_blocks: u64, maps: Option<BlockNo>) -> Geometry {
        let mut new = self.cut_to(total_blocks);
        let at = match (self.maps_after_shrink(total_blocks), maps) {
            (Maps::Stay, _) => return new,
            (Maps::Return, _) => {
                new.feature_incompat &= !INCOMPAT_MOVED_MAPS;
                FIRST_AREA
            }
            // A caller that needs only the number of blocks passes `None`; then any start is
            // correct.
            (Maps::Move(_), at) => at.unwrap_or(self.data_start).0,
        };
        let (index, groups) = (new.index_blocks, new.groups());
        new.index_start = [BlockNo(at), BlockNo(at + index)];
        new.bitmap_start = [BlockNo(at + 2 * index), BlockNo(at + 2 * index + groups)];
        new
    }

    /// Returns whether the areas of the format leave room for data in an image of `total_blocks`
    /// blocks.
    pub fn can_have(&self, total_blocks: u64) -> bool {
        let new = self.cut_to(total_blocks);
        total_blocks <= self.total_blocks
            && total_blocks >= IMAGE_MIN / BLOCK_SIZE as u64
            && self.data_start.0 + 2 * NODE_BLOCKS <= total_blocks
            && self.data_start.0 <= new.data_start_max()
    }
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
