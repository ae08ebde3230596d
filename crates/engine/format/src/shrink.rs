//! The layout of an image that becomes smaller.
//!
//! Everything before the data area stays where it is: the log, its size, and the place of maps that
//! mkfs put before it. Maps in the data area stay if they end before the new end. Otherwise they go
//! back to the place before the log if that has room, and else to free blocks below the new end.

use crate::alloc::{GROUP_BLOCKS, INDEX_ENTRIES};
use crate::node::NODE_BLOCKS;
use crate::superblock::{FIRST_AREA, Geometry, IMAGE_MIN, INCOMPAT_MOVED_MAPS};
use kedge_base::{BLOCK_SIZE, BlockNo};

/// Where the allocation maps of a smaller image lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maps {
    /// Where they are.
    Stay,
    /// Before the log.
    Return,
    /// In this many adjacent blocks of the data area that the caller provides.
    Move(u64),
}

impl Geometry {
    /// The first block from which on a shrink to this size has to move what is there: the last
    /// block of the image holds a copy of the superblock.
    pub fn vacated_from(&self) -> BlockNo {
        BlockNo(self.total_blocks - u64::from(self.has_copies()))
    }

    /// This image with `total_blocks` blocks, no more than it has, and its maps where they are.
    fn cut_to(&self, total_blocks: u64) -> Geometry {
        let groups = total_blocks.div_ceil(GROUP_BLOCKS);
        Geometry { total_blocks, index_blocks: groups.div_ceil(INDEX_ENTRIES as u64), ..self.clone() }
    }

    /// Where the maps lie once the image has `total_blocks` blocks, no more than it has now.
    pub fn maps_after_shrink(&self, total_blocks: u64) -> Maps {
        let new = self.cut_to(total_blocks);
        if self.moved_maps().is_empty() || new.moved_maps().end <= new.vacated_from().0 {
            return Maps::Stay;
        }
        let blocks = 2 * (new.index_blocks + new.groups());
        if FIRST_AREA + blocks <= self.log_start.0 { Maps::Return } else { Maps::Move(blocks) }
    }

    /// The geometry of this image once it has `total_blocks` blocks, no more than it has now.
    /// `maps`: the start of the blocks for maps that move ([`Maps::Move`]).
    pub fn shrunk(&self, total_blocks: u64, maps: Option<BlockNo>) -> Geometry {
        let mut new = self.cut_to(total_blocks);
        let at = match (self.maps_after_shrink(total_blocks), maps) {
            (Maps::Stay, _) => return new,
            (Maps::Return, _) => {
                new.feature_incompat &= !INCOMPAT_MOVED_MAPS;
                FIRST_AREA
            }
            // A caller that needs only the number of blocks gives no place: any will do.
            (Maps::Move(_), at) => at.unwrap_or(self.data_start).0,
        };
        let (index, groups) = (new.index_blocks, new.groups());
        new.index_start = [BlockNo(at), BlockNo(at + index)];
        new.bitmap_start = [BlockNo(at + 2 * index), BlockNo(at + 2 * index + groups)];
        new
    }

    /// Whether the areas of the format leave room for data in an image of `total_blocks` blocks.
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
