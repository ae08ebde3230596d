//! Reference counts of blocks that several files share.
//!
//! # Rules
//! 1. An image may have reference counts if [`crate::superblock::INCOMPAT_CLONES`] is set. The
//!    first clone sets it.
//! 2. A *count item* stores how many extents of its tree refer to each block of a run. Its key has
//!    inode 0, and the key's offset is the first block of the run. Runs of one tree do not overlap,
//!    and no run crosses an allocation group.
//! 3. An extent whose blocks have counts is marked ([`crate::item::ExtentItem::counted`]). Each of
//!    its blocks lies in the run of a count item with the extent's birth. The number of marked
//!    extents of the tree that refer to a block of a run equals the item's count, and no other
//!    extent refers to the block.
//! 4. The count item, not the extent, owns the blocks. A tree frees blocks when their last extent
//!    and with it the count item is removed. Deletion of a tree or a point frees the blocks of its
//!    count items, once each, and frees nothing for its marked extents.
//!
//! The birth decides whether the blocks belong to a point, as it does for an extent: see
//! [`crate::trees`]. Each tree counts only its own references.

use crate::item::{BIRTH_MAX, EXTENT_BLOCKS_MAX};
use crate::{ItemKind, Key};
use kedge_base::{BlockNo, CorruptKind, Error, Extent, Ino, Result};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The reference count of each block of a run. The run starts at the offset of the item's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountItem {
    pub blocks: u32,
    /// Number of extents that refer to each of the blocks.
    pub count: u32,
    /// The birth of the blocks, equal to the birth of the extents that refer to them.
    pub birth: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCount {
    blocks: U32,
    count: U32,
    birth: U32,
}

crate::layout::layout!(LAYOUT: RawCount, CountItem::SIZE, {
    blocks: 0, 4, "1 to 32768";
    count: 4, 4, "extents of the tree that refer to each of the blocks, at least 1";
    birth: 8, 4, "that of the blocks";
});

/// Returns the key of the count item for the run that starts at block `start`, in the tree to which
/// inode `tree` belongs; any inode of the tree will do.
pub const fn key(tree: Ino, start: BlockNo) -> Key {
    Key::new(tree, ItemKind::Count, start.0)
}

impl CountItem {
    pub const SIZE: usize = 12;

    /// Returns the run of blocks that the item counts, for a key with the offset `start`.
    pub fn extent(&self, start: u64) -> Extent {
        Extent::new(BlockNo(start), self.blocks as u64)
    }

    pub fn encode(&self) -> [u8; CountItem::SIZE] {
        zerocopy::transmute!(RawCount {
            blocks: self.blocks.into(),
            count: self.count.into(),
            birth: self.birth.into(),
        })
    }

    /// Decodes the value of a count item whose key has the offset `start`.
    pub fn decode(start: u64, bytes: &[u8]) -> Result<CountItem> {
        let bad = |what: String| Error::corrupt(CorruptKind::Item, BlockNo(start), what);
        let raw = RawCount::read_from_bytes(bytes)
            .map_err(|_| bad(format!("count item of {} bytes", bytes.len())))?;
        let item = CountItem { blocks: raw.blocks.get(), count: raw.count.get(), birth: raw.birth.get() };
        let blocks = item.blocks as u64;
        let fits = (1..=EXTENT_BLOCKS_MAX).contains(&blocks)
            && crate::item::fits(start, blocks)
            && start / EXTENT_BLOCKS_MAX == (start + blocks - 1) / EXTENT_BLOCKS_MAX;
        if !fits || item.count == 0 || item.birth > BIRTH_MAX {
            return Err(bad(format!(
                "count {} of {blocks} blocks at block {start}, birth {}",
                item.count, item.birth
            )));
        }
        Ok(item)
    }
}

#[cfg(test)]
mod tests {
    use super::CountItem;

    #[test]
    fn an_item_is_read_as_it_was_written() {
        let item = CountItem { blocks: 7, count: 65_000, birth: 3 };
        assert_eq!(CountItem::decode(100, &item.encode()).unwrap(), item);
    }

    #[test]
    fn impossible_items_are_refused() {
        let good = CountItem { blocks: 7, count: 1, birth: 0 };
        let refused = |start, item: CountItem| CountItem::decode(start, &item.encode()).is_err();
        assert!(!refused(100, good));
        assert!(refused(100, CountItem { blocks: 0, ..good }));
        assert!(refused(100, CountItem { blocks: 32769, ..good }));
        assert!(refused(100, CountItem { count: 0, ..good }));
        assert!(refused(100, CountItem { birth: u32::MAX, ..good }));
        assert!(refused(32765, good), "it crosses a group");
        assert!(refused(u64::MAX - 2, good));
        assert!(CountItem::decode(100, &good.encode()[1..]).is_err());
    }
}
