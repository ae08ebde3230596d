//! Values of all items except inode cores, and the name hash that determines the keys of directory
//! entries and extended attributes.

use crate::FileKind;
use crate::acl::Acl;
use kedge_base::{BlockNo, CorruptKind, Error, Extent, Ino, Result};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::XATTR_PART_MAX;

/// Longest name of a directory entry or of an extended attribute, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest value of an extended attribute, in bytes, as in Linux.
pub const XATTR_VALUE_MAX: usize = 65536;
/// Longest symlink target, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Length in bytes of the largest item value. A leaf must have room for it.
pub const VALUE_MAX: usize = 1 + NAME_MAX + XATTR_PART_MAX;
/// Longest extent, in blocks: an extent does not cross an allocation group.
pub const EXTENT_BLOCKS_MAX: u64 = 32768;
/// Largest file size in bytes. It bounds file block numbers to 43 bits.
pub const FILE_SIZE_MAX: u64 = (1 << 55) - 4096;

/// Number of slots for names with the same hash. Such names differ in the low bits of their slots,
/// the *ordinal*; a lookup scans all ordinals of the hash.
pub const SLOT_ORDINALS: u64 = 256;

/// Returns the first slot (item offset) for a name: 55 bits of keyed hash, then 8 bits of ordinal,
/// which start at 0. A slot is never below 256, so that small directory cookies stay free for "."
/// and "..", and always below 2^63, so that it is a valid off_t.
pub fn name_slot(seed: &[u8; 16], name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(seed);
    hasher.write(name);
    ((hasher.finish() >> 9) << 8).max(SLOT_ORDINALS)
}

/// A directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dentry<'a> {
    pub ino: Ino,
    pub kind: FileKind,
    pub name: &'a [u8],
}

impl<'a> Dentry<'a> {
    /// Returns the length in bytes of an encoded entry whose name has `name_len` bytes.
    pub const fn encoded_len(name_len: usize) -> usize {
        size_of::<DentryHead>() + name_len
    }

    pub fn encode(&self) -> Vec<u8> {
        let head = DentryHead { ino: self.ino.0.into(), kind: self.kind.dtype() };
        let mut out = Vec::with_capacity(size_of::<DentryHead>() + self.name.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.name);
        out
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Dentry<'a>> {
        let bad = |what: String| Error::corrupt(CorruptKind::Dentry, BlockNo(0), what);
        let Ok((head, name)) = DentryHead::read_from_prefix(bytes) else {
            return Err(bad(format!("dentry of {} bytes", bytes.len())));
        };
        let Some(kind) = FileKind::from_dtype(head.kind) else {
            return Err(bad(format!("dentry with unknown type {}", head.kind)));
        };
        let ino = Ino(head.ino.get());
        if ino.0 == 0
            || name.is_empty()
            || name.len() > NAME_MAX
            || name.iter().any(|b| matches!(b, 0 | b'/'))
        {
            return Err(bad(format!(
                "dentry of inode {ino} with an impossible name of {} bytes",
                name.len()
            )));
        }
        Ok(Dentry { ino, kind, name })
    }
}

/// An extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Xattr<'a> {
    /// The name with its namespace prefix ("user.…").
    pub name: &'a [u8],
    pub value: &'a [u8],
}

impl Xattr<'_> {
    /// Encodes the item of an attribute whose value fits into one item.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.value.len() <= XATTR_PART_MAX, "a larger value takes several items");
        [&[self.name.len() as u8][..], self.name, self.value].concat()
    }

    /// Encodes the attribute as items, for its slot and the slots after it.
    pub fn items(&self) -> Vec<Vec<u8>> {
        assert!(self.value.len() <= XATTR_VALUE_MAX, "attribute values are bounded by the format");
        if self.value.len() <= XATTR_PART_MAX {
            return vec![self.encode()];
        }
        let head = large_head(self.name, self.value.len());
        let parts = self.value.chunks(XATTR_PART_MAX).enumerate();
        let parts = parts.map(|(index, bytes)| [&[0, 0, index as u8][..], bytes].concat());
        std::iter::once(head).chain(parts).collect()
    }
}

fn large_head(name: &[u8], len: usize) -> Vec<u8> {
    [&[0, name.len() as u8][..], name, &(len as u32).to_le_bytes()].concat()
}

/// Returns the number of slots that an attribute with a value of `value_len` bytes occupies.
pub fn xattr_slots(value_len: usize) -> u64 {
    if value_len <= XATTR_PART_MAX { 1 } else { 1 + value_len.div_ceil(XATTR_PART_MAX) as u64 }
}

/// An item of an extended attribute.
///
/// ```text
/// Small   name length 1 · name · value (up to 4096 bytes)
/// Large   0 · name length 1 · name · value length 4 (4097 to 65536)
/// Part    0 · 0 · index 1 · bytes (4096; the last part has the remaining bytes)
/// ```
/// The parts of a large value are in the slots after its `Large` item, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrItem<'a> {
    /// An attribute whose value is in this item.
    Small(Xattr<'a>),
    /// An attribute whose value has `len` bytes and is stored in parts.
    Large {
        name: &'a [u8],
        len: usize,
    },
    Part {
        index: u8,
        bytes: &'a [u8],
    },
}

impl<'a> XattrItem<'a> {
    pub fn decode(item: &'a [u8]) -> Result<XattrItem<'a>> {
        XattrItem::read(item).ok_or_else(|| {
            let what = format!("xattr item of {} bytes", item.len());
            Error::corrupt(CorruptKind::Item, BlockNo(0), what)
        })
    }

    fn read(item: &'a [u8]) -> Option<XattrItem<'a>> {
        match item {
            [0, 0, index, bytes @ ..] => (!bytes.is_empty() && bytes.len() <= XATTR_PART_MAX)
                .then_some(XattrItem::Part { index: *index, bytes }),
            [0, name_len, rest @ ..] => {
                let (name, len) = rest.split_at_checked(*name_len as usize)?;
                let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
                (XATTR_PART_MAX + 1..=XATTR_VALUE_MAX)
                    .contains(&len)
                    .then_some(XattrItem::Large { name, len })
            }
            [name_len, rest @ ..] => {
                let (name, value) = rest.split_at_checked(*name_len as usize)?;
                (*name_len > 0 && value.len() <= XATTR_PART_MAX)
                    .then_some(XattrItem::Small(Xattr { name, value }))
            }
            [] => None,
        }
    }

    /// Returns the attribute's name; a part has none.
    pub fn name(&self) -> Option<&'a [u8]> {
        match self {
            XattrItem::Small(Xattr { name, .. }) | XattrItem::Large { name, .. } => Some(name),
            XattrItem::Part { .. } => None,
        }
    }

    /// Encodes this item with `name` in place of its name, if it has a name, and with zeros in
    /// place of the bytes of its value.
    pub fn blank(&self, name: &[u8]) -> Vec<u8> {
        match *self {
            XattrItem::Small(xattr) => Xattr { name, value: &vec![0; xattr.value.len()] }.encode(),
            XattrItem::Large { len, .. } => large_head(name, len),
            XattrItem::Part { index, bytes } => [&[0, 0, index][..], &vec![0; bytes.len()]].concat(),
        }
    }

    /// Returns whether the value is a valid access control list.
    pub fn is_acl(&self) -> bool {
        matches!(self, XattrItem::Small(xattr) if Acl::decode(xattr.value).is_some())
    }
}

/// The parts of a large value that have yet to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XattrRest {
    slot: u64,
    index: u8,
    left: usize,
}

impl XattrRest {
    /// Expects all parts of a value of `len` bytes whose `Large` item is in `slot`.
    pub fn new(slot: u64, len: usize) -> XattrRest {
        XattrRest { slot: slot.saturating_add(1), index: 0, left: len }
    }

    /// Takes the next part. Returns false if `item` in `slot` is not the next part.
    pub fn take(&mut self, slot: u64, item: XattrItem<'_>) -> bool {
        let XattrItem::Part { index, bytes } = item else { return false };
        let fits = (slot, index) == (self.slot, self.index) && bytes.len() == self.left.min(XATTR_PART_MAX);
        if fits && self.left > 0 {
            *self =
                XattrRest { slot: slot.saturating_add(1), index: index + 1, left: self.left - bytes.len() };
        }
        fits
    }

    /// Returns the slot of the next part, or `None` after the last.
    pub fn next_slot(&self) -> Option<u64> {
        (self.left > 0).then_some(self.slot)
    }
}

/// Returns whether the byte offsets of all blocks of a run fit into a `u64`.
pub(crate) fn fits(start: u64, blocks: u64) -> bool {
    start.checked_add(blocks).is_some_and(|end| end <= crate::BLOCKS_MAX)
}

/// The blocks of an extent. The offset of the item's key is the extent's first file block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentItem {
    pub start: BlockNo,
    pub blocks: u32,
    /// Allocated by fallocate and never written: reads as zeros.
    pub unwritten: bool,
    /// Number of the period between two forks in which the blocks were allocated: see
    /// [`crate::trees`]. 0 in an image that was never forked.
    pub birth: u32,
    /// Whether other extents of the tree may also refer to the blocks. A count item then owns the
    /// blocks ([`crate::counts`]).
    pub counted: bool,
}

/// The highest birth of an extent.
pub const BIRTH_MAX: u32 = u32::MAX >> 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtent {
    start: U64,
    blocks: U32,
    flags: U32,
}

crate::layout::layout!(EXTENT_LAYOUT: RawExtent, ExtentItem::SIZE, {
    start: 0, 8, "first block";
    blocks: 8, 4, "1 to 32768; bit 31: the blocks have counts";
    flags: 12, 4, "bit 0: unwritten, reads as zeros; the others: birth, 0 in an image with one tree";
});

/// The fields before the name of an encoded directory entry.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DentryHead {
    ino: U64,
    kind: u8,
}

crate::layout::layout!(DENTRY_LAYOUT: DentryHead, 9, {
    ino: 0, 8;
    kind: 8, 1, "type, as `d_type`; the name follows, 1 to 255 bytes";
});

impl ExtentItem {
    pub const SIZE: usize = 16;
    const UNWRITTEN: u32 = 1;
    /// Bit of the `blocks` field that stores [`ExtentItem::counted`]; the number of blocks never
    /// needs this bit.
    const COUNTED: u32 = 1 << 31;

    pub fn extent(&self) -> Extent {
        Extent::new(self.start, self.blocks as u64)
    }

    pub fn encode(&self) -> [u8; ExtentItem::SIZE] {
        let flags = u32::from(self.unwritten) | self.birth << 1;
        let blocks = if self.counted { self.blocks | ExtentItem::COUNTED } else { self.blocks };
        zerocopy::transmute!(RawExtent {
            start: self.start.0.into(),
            blocks: blocks.into(),
            flags: flags.into(),
        })
    }

    pub fn decode(bytes: &[u8]) -> Result<ExtentItem> {
        let bad = |what: String| Error::corrupt(CorruptKind::ExtentItem, BlockNo(0), what);
        let raw = RawExtent::read_from_bytes(bytes)
            .map_err(|_| bad(format!("extent item of {} bytes", bytes.len())))?;
        let (start, blocks, flags) = (raw.start.get(), raw.blocks.get(), raw.flags.get());
        let (blocks, counted) = (blocks & !ExtentItem::COUNTED, blocks & ExtentItem::COUNTED != 0);
        if blocks == 0 || blocks as u64 > EXTENT_BLOCKS_MAX || !fits(start, blocks as u64) {
            return Err(bad(format!("extent of {blocks} blocks at block {start}")));
        }
        let unwritten = flags & ExtentItem::UNWRITTEN != 0;
        Ok(ExtentItem { start: BlockNo(start), blocks, unwritten, birth: flags >> 1, counted })
    }
}

/// Work that recovery must finish for an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Orphan {
    /// The inode has no name: recovery deletes it.
    Unlinked = 1,
    /// A truncate has set the size but may have left blocks beyond it: recovery frees them.
    Truncate = 2,
}

impl Orphan {
    /// Bytes of an encoded orphan item.
    pub const SIZE: usize = 1;

    pub fn encode(self) -> [u8; Orphan::SIZE] {
        [self as u8]
    }

    pub fn decode(bytes: &[u8]) -> Result<Orphan> {
        match bytes {
            [1] => Ok(Orphan::Unlinked),
            [2] => Ok(Orphan::Truncate),
            _ => Err(Error::corrupt(CorruptKind::Item, BlockNo(0), format!("orphan item {bytes:?}"))),
        }
    }
}

#[cfg(test)]
#[path = "item_tests.rs"]
mod tests;
