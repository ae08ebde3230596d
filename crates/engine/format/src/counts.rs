//! Reference counts of blocks that several files share.
//!
//! # Rules
//! 1. An image has them if [`crate::superblock::INCOMPAT_CLONES`] is set, which the first clone
//!    does.
//! 2. A *count item* says how many extents of its tree refer to each block of a run. Its key is
//!    under inode 0, and the key's offset is the first block of the run. Runs of one tree do not
//!    overlap, and none crosses an allocation group.
//! 3. An extent whose blocks have counts is marked ([`crate::item::ExtentItem::counted`]). Each of
//!    its blocks lies in the run of a count item with the birth of the extent. Each block of a run
//!    is referred to by as many marked extents of the tree as the item says, and by no other
//!    extent.
//! 4. The count item, not the extent, is what owns the blocks: a tree frees them when the last
//!    extent is gone and the item with it, and a tree or point that is deleted frees what its count
//!    items name, once each, and nothing for its marked extents.
//!
//! The birth decides, as for an extent, whether the blocks belong to a point: see
//! [`crate::trees`]. Each tree counts its own references.

use crate::item::{BIRTH_MAX, EXTENT_BLOCKS_MAX};
use crate::{ItemKind, Key};
use kedge_base::{BlockNo, CorruptKind, Error, Extent, Ino, Result};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The references to each block of a run that starts at the offset of the item's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountItem {
    pub blocks: u32,
    /// Extents that refer to each of the blocks.
    pub count: u32,
    /// The birth of the blocks, as in the extents.
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

/// The key of the item whose run starts at this block, in the tree of an inode or of any other of
/// its inodes.
pub const fn key(tree: Ino, start: BlockNo) -> Key {
    Key::new(tree, ItemKind::Count, start.0)
}

impl CountItem {
    pub const SIZE: usize = 12;

    /// The blocks of the item under a key with this offset.
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

    /// Decodes the item under a key with the offset `start`.
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
