//! Log records: one record for each operation, with a list of edits that take effect together or
//! not at all.
//!
//! Edits are *logical* (keys and fields, never node addresses) and *absolute* (the new value, never
//! a difference), and name every block they allocate or free. So applying them needs no decision,
//! and replay and the running operation use the same code.
//!
//! ```text
//! record  op u8 · flags u8 (0) · edits u16 · edit…
//! edit    tag u8 · body
//! ```

use crate::{InodeCore, Key};
use kedge_base::{BlockNo, Error, Extent, Ino, Lsn, Result, Timespec};

/// The operation that wrote a record. Only displays and statistics use it; replay uses the edits
/// alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum RecordOp {
    Format = 1,
    Create = 2,
    Link = 3,
    Unlink = 4,
    Rename = 5,
    SetAttr = 6,
    Truncate = 7,
    /// A data write has completed: extents, size, `Drop` edits of log-resident ranges.
    WriteBack = 8,
    /// Small data is stored in the log.
    LogData = 9,
    Fallocate = 10,
    Xattr = 11,
    /// One bounded step of the cleanup of an orphan.
    Reclaim = 12,
    /// Pending time stamps of an inode are recorded.
    Times = 13,
    /// A range of a file becomes a copy of a range of another file and shares its blocks.
    Clone = 14,
}

impl RecordOp {
    pub const ALL: [RecordOp; 14] = [
        RecordOp::Format,
        RecordOp::Create,
        RecordOp::Link,
        RecordOp::Unlink,
        RecordOp::Rename,
        RecordOp::SetAttr,
        RecordOp::Truncate,
        RecordOp::WriteBack,
        RecordOp::LogData,
        RecordOp::Fallocate,
        RecordOp::Xattr,
        RecordOp::Reclaim,
        RecordOp::Times,
        RecordOp::Clone,
    ];

    pub fn from_u8(n: u8) -> Option<RecordOp> {
        RecordOp::ALL.into_iter().find(|op| *op as u8 == n)
    }
}

/// The fields that an [`InodePatch`] sets. The bit numbers are on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeMask(pub u32);

impl InodeMask {
    pub const MODE: InodeMask = InodeMask(1 << 0);
    pub const FLAGS: InodeMask = InodeMask(1 << 1);
    pub const UID: InodeMask = InodeMask(1 << 2);
    pub const GID: InodeMask = InodeMask(1 << 3);
    pub const NLINK: InodeMask = InodeMask(1 << 4);
    pub const SIZE: InodeMask = InodeMask(1 << 5);
    pub const BLOCKS: InodeMask = InodeMask(1 << 6);
    pub const RDEV: InodeMask = InodeMask(1 << 7);
    pub const PARENT: InodeMask = InodeMask(1 << 8);
    pub const CHANGE: InodeMask = InodeMask(1 << 9);
    pub const ATIME: InodeMask = InodeMask(1 << 10);
    pub const MTIME: InodeMask = InodeMask(1 << 11);
    pub const CTIME: InodeMask = InodeMask(1 << 12);
    pub const BTIME: InodeMask = InodeMask(1 << 13);
    pub const LIMIT: InodeMask = InodeMask(1 << 14);
    /// The patch creates the inode, which must not exist yet; fields that are not set are zero.
    pub const CREATE: InodeMask = InodeMask(1 << 31);
    pub const ALL_FIELDS: InodeMask = InodeMask((1 << 15) - 1);

    /// The bits, with the names of their fields and the lengths of the fields in bytes, in the
    /// order in which the fields follow the mask in a record.
    pub const FIELDS: [(InodeMask, &'static str, usize); 15] = [
        (InodeMask::MODE, "mode", 4),
        (InodeMask::FLAGS, "flags", 4),
        (InodeMask::UID, "uid", 4),
        (InodeMask::GID, "gid", 4),
        (InodeMask::NLINK, "nlink", 4),
        (InodeMask::SIZE, "size", 8),
        (InodeMask::BLOCKS, "blocks", 8),
        (InodeMask::RDEV, "rdev", 8),
        (InodeMask::PARENT, "parent", 8),
        (InodeMask::CHANGE, "change", 8),
        (InodeMask::ATIME, "atime", 12),
        (InodeMask::MTIME, "mtime", 12),
        (InodeMask::CTIME, "ctime", 12),
        (InodeMask::BTIME, "btime", 12),
        (InodeMask::LIMIT, "limit", 4),
    ];

    pub const fn contains(self, other: InodeMask) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn without(self, other: InodeMask) -> InodeMask {
        InodeMask(self.0 & !other.0)
    }
}

impl std::ops::BitOr for InodeMask {
    type Output = InodeMask;
    fn bitor(self, other: InodeMask) -> InodeMask {
        InodeMask(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for InodeMask {
    fn bitor_assign(&mut self, other: InodeMask) {
        self.0 |= other.0;
    }
}

/// Sets the fields of an inode core that are in `mask` to their values in `core`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodePatch {
    pub ino: Ino,
    pub mask: InodeMask,
    pub core: InodeCore,
}

impl InodePatch {
    /// Applies the patch to `target`.
    pub fn apply_to(&self, target: &mut InodeCore) {
        macro_rules! set {
            ($($bit:ident $field:ident),* $(,)?) => {
                $(if self.mask.contains(InodeMask::$bit) { target.$field = self.core.$field; })*
            };
        }
        set!(MODE mode, FLAGS flags, UID uid, GID gid, NLINK nlink, SIZE size, BLOCKS blocks, RDEV rdev,
             PARENT parent, CHANGE change, ATIME atime, MTIME mtime, CTIME ctime, BTIME btime, LIMIT limit);
    }
}

/// One edit, borrowed from the bytes of its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edit<'a> {
    Inode(InodePatch),
    /// Inserts an item or replaces it.
    Put {
        key: Key,
        value: &'a [u8],
    },
    /// Deletes an item, which must exist.
    Delete {
        key: Key,
    },
    /// Allocates blocks, which must be free.
    Alloc(Extent),
    /// Frees blocks, which must be allocated.
    Free(Extent),
    /// File bytes whose newest durable copy is in this record until a `Drop` covers their range.
    Data {
        ino: Ino,
        offset: u64,
        bytes: &'a [u8],
    },
    /// Like `Data`, with `len` zero bytes within one block: the rest of the last block after a
    /// truncate or punch.
    Zero {
        ino: Ino,
        offset: u64,
        len: u64,
    },
    /// Ends log residency of the bytes in the range: they have been written in place, or removed by
    /// a truncate, punch or unlink.
    Drop {
        ino: Ino,
        offset: u64,
        len: u64,
    },
}

mod tag {
    pub const INODE: u8 = 1;
    pub const PUT: u8 = 2;
    pub const DELETE: u8 = 3;
    pub const ALLOC: u8 = 4;
    pub const FREE: u8 = 5;
    pub const DATA: u8 = 6;
    pub const ZERO: u8 = 7;
    pub const DROP: u8 = 8;
}

#[allow(dead_code)]
#[repr(C)]
struct RawRecord {
    op: u8,
    flags: u8,
    edits: [u8; 2],
}

crate::layout::layout!(LAYOUT: RawRecord, RECORD_HEADER, {
    op: 0, 1, "operation";
    flags: 1, 1, "zero";
    edits: 2, 2, "count; the edits follow";
});

/// Bytes to reserve after a `Data` edit: most records with data also have an `Inode` edit and an
/// edit of a small range.
const AFTER_DATA: usize = (size::PATCH + size::RANGE) as usize;

/// Length of an encoded record's header in bytes.
pub const RECORD_HEADER: usize = 4;

/// The layout of an edit: tag, name, and the fields of its body with their lengths in bytes. Length
/// 0 marks a field whose length follows from the length field before it or from the bits of the
/// mask.
#[derive(Clone, Copy, Debug)]
pub struct EditLayout {
    pub tag: u8,
    pub name: &'static str,
    pub parts: &'static [(&'static str, usize)],
}

const EXTENT_PARTS: &[(&str, usize)] = &[("first block", 8), ("blocks", 8)];
const RANGE_PARTS: &[(&str, usize)] = &[("ino", 8), ("offset", 8), ("length", 8)];

/// All edits in the order of their tags.
pub const EDITS: [EditLayout; 8] = [
    EditLayout { tag: tag::INODE, name: "Inode", parts: &[("ino", 8), ("mask", 4), ("fields", 0)] },
    EditLayout { tag: tag::PUT, name: "Put", parts: &[("key", Key::SIZE), ("length", 2), ("value", 0)] },
    EditLayout { tag: tag::DELETE, name: "Delete", parts: &[("key", Key::SIZE)] },
    EditLayout { tag: tag::ALLOC, name: "Alloc", parts: EXTENT_PARTS },
    EditLayout { tag: tag::FREE, name: "Free", parts: EXTENT_PARTS },
    EditLayout {
        tag: tag::DATA,
        name: "Data",
        parts: &[("ino", 8), ("offset", 8), ("length", 4), ("bytes", 0)],
    },
    EditLayout { tag: tag::ZERO, name: "Zero", parts: RANGE_PARTS },
    EditLayout { tag: tag::DROP, name: "Drop", parts: RANGE_PARTS },
];

/// Encoded lengths of edits in bytes, computed from [`EDITS`]. Operations compute their log
/// reservations from these lengths.
pub mod size {
    use super::{EDITS, InodeMask, tag};
    use crate::item::ExtentItem;

    /// Returns the length of tag and body, without the bytes whose number a length field or a mask
    /// gives.
    const fn fixed(tag: u8) -> u64 {
        let mut bytes = 1;
        let mut at = 0;
        let parts = EDITS[tag as usize - 1].parts;
        while at < parts.len() {
            bytes += parts[at].1 as u64;
            at += 1;
        }
        bytes
    }

    /// Length of an `Inode` edit with these fields.
    pub const fn patch(mask: InodeMask) -> u64 {
        let mut bytes = fixed(tag::INODE);
        let mut at = 0;
        while at < InodeMask::FIELDS.len() {
            let (bit, _, field) = InodeMask::FIELDS[at];
            bytes += if mask.contains(bit) { field as u64 } else { 0 };
            at += 1;
        }
        bytes
    }

    /// Length of an `Inode` edit with all fields.
    pub const PATCH: u64 = patch(InodeMask::ALL_FIELDS);

    /// Length of a `Put` edit whose value has `value_len` bytes.
    pub const fn put(value_len: usize) -> u64 {
        fixed(tag::PUT) + value_len as u64
    }

    pub const DELETE: u64 = fixed(tag::DELETE);
    /// Length of a `Put` of an extent. A `Delete` of an extent is shorter.
    pub const EXTENT_ITEM: u64 = put(ExtentItem::SIZE);
    /// Length of an `Alloc` or a `Free` edit.
    pub const RUN: u64 = fixed(tag::ALLOC);
    /// Length of a `Zero` or a `Drop` edit.
    pub const RANGE: u64 = fixed(tag::ZERO);
    /// Length of a `Data` edit without its data bytes.
    pub const DATA: u64 = fixed(tag::DATA);

    const _: () = assert!(DELETE <= EXTENT_ITEM);
    const _: () = assert!(fixed(tag::FREE) == RUN && fixed(tag::DROP) == RANGE);
    const _: () = {
        let mut at = 0;
        while at < EDITS.len() {
            assert!(EDITS[at].tag as usize == at + 1, "an edit's tag is its place in the table");
            at += 1;
        }
    };
}

/// Generates the tables about records in `docs/FORMAT.md` (`cargo xtask docs`).
pub mod tables {
    use super::{EDITS, InodeMask, RecordOp};

    /// Returns the table of tags and bodies of the edits.
    pub fn edits() -> String {
        let mut out = String::from("| tag | edit | body |\n|---|---|---|\n");
        for edit in EDITS {
            let part = |(name, bytes): &(&str, usize)| match bytes {
                0 => (*name).to_owned(),
                n => format!("{name} {n}"),
            };
            let parts: Vec<_> = edit.parts.iter().map(part).collect();
            out += &format!("| {} | {} | {} |\n", edit.tag, edit.name, parts.join(" · "));
        }
        out
    }

    /// Returns the table of bits in the mask of an `Inode` edit.
    pub fn mask() -> String {
        let mut out = String::from("| bit | field | bytes |\n|---|---|---|\n");
        for (bit, name, bytes) in InodeMask::FIELDS {
            out += &format!("| {} | {name} | {bytes} |\n", bit.0.trailing_zeros());
        }
        let create = InodeMask::CREATE.0.trailing_zeros();
        out + &format!(
            "| {create} | the inode must not exist yet; fields that are not named are zero | 0 |\n"
        )
    }

    /// Returns the table of operation numbers.
    pub fn ops() -> String {
        let ops: Vec<_> = RecordOp::ALL.into_iter().map(|op| format!("{} {op:?}", op as u8)).collect();
        ops.join(" · ")
    }
}

/// A position in a record under construction.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    bytes: usize,
    edits: u16,
}

/// Builds a record.
#[derive(Clone, Debug)]
pub struct RecordBuilder {
    bytes: Vec<u8>,
    edits: u16,
}

impl RecordBuilder {
    pub fn new(op: RecordOp) -> RecordBuilder {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[op as u8, 0, 0, 0]);
        RecordBuilder { bytes, edits: 0 }
    }

    fn edit(&mut self, tag: u8) {
        self.edits = self.edits.checked_add(1).expect("operations are split long before 65,535 edits");
        self.bytes.push(tag);
    }

    fn u64(&mut self, n: u64) -> &mut Self {
        self.bytes.extend_from_slice(&n.to_le_bytes());
        self
    }

    fn u32(&mut self, n: u32) -> &mut Self {
        self.bytes.extend_from_slice(&n.to_le_bytes());
        self
    }

    fn key(&mut self, key: Key) {
        self.bytes.extend_from_slice(&key.encode());
    }

    pub fn inode(&mut self, ino: Ino, mask: InodeMask, core: &InodeCore) {
        self.edit(tag::INODE);
        self.u64(ino.0).u32(mask.0);
        let has = |bit| mask.contains(bit);
        for (bit, value) in [
            (InodeMask::MODE, core.mode),
            (InodeMask::FLAGS, core.flags),
            (InodeMask::UID, core.uid),
            (InodeMask::GID, core.gid),
            (InodeMask::NLINK, core.nlink),
        ] {
            if has(bit) {
                self.u32(value);
            }
        }
        for (bit, value) in [
            (InodeMask::SIZE, core.size),
            (InodeMask::BLOCKS, core.blocks),
            (InodeMask::RDEV, core.rdev),
            (InodeMask::PARENT, core.parent.0),
            (InodeMask::CHANGE, core.change),
        ] {
            if has(bit) {
                self.u64(value);
            }
        }
        for (bit, value) in [
            (InodeMask::ATIME, core.atime),
            (InodeMask::MTIME, core.mtime),
            (InodeMask::CTIME, core.ctime),
            (InodeMask::BTIME, core.btime),
        ] {
            if has(bit) {
                self.u64(value.sec as u64).u32(value.nsec);
            }
        }
        if has(InodeMask::LIMIT) {
            self.u32(core.limit);
        }
    }

    pub fn put(&mut self, key: Key, value: &[u8]) {
        assert!(value.len() <= crate::item::VALUE_MAX, "item values are bounded by the format");
        self.edit(tag::PUT);
        self.key(key);
        self.bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(value);
    }

    pub fn delete(&mut self, key: Key) {
        self.edit(tag::DELETE);
        self.key(key);
    }

    pub fn alloc(&mut self, extent: Extent) {
        self.edit(tag::ALLOC);
        self.u64(extent.start.0).u64(extent.blocks);
    }

    pub fn free(&mut self, extent: Extent) {
        self.edit(tag::FREE);
        self.u64(extent.start.0).u64(extent.blocks);
    }

    pub fn data(&mut self, ino: Ino, offset: u64, bytes: &[u8]) {
        // Reserve room for the following edits too; otherwise growing for them would copy all of
        // these bytes once more.
        self.bytes.reserve(size::DATA as usize + bytes.len() + AFTER_DATA);
        self.edit(tag::DATA);
        self.u64(ino.0).u64(offset).u32(bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
    }

    pub fn zero(&mut self, ino: Ino, offset: u64, len: u64) {
        assert!(within_block(offset, len), "the zeros of an edit lie in one block");
        self.edit(tag::ZERO);
        self.u64(ino.0).u64(offset).u64(len);
    }

    pub fn drop_data(&mut self, ino: Ino, offset: u64, len: u64) {
        self.edit(tag::DROP);
        self.u64(ino.0).u64(offset).u64(len);
    }

    pub fn edits(&self) -> u16 {
        self.edits
    }

    pub fn is_empty(&self) -> bool {
        self.edits == 0
    }

    /// Returns the present length of the record in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the present end of the record, for [`RecordBuilder::go_back`].
    pub fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), edits: self.edits }
    }

    /// Removes the edits that were added after `mark`.
    pub fn go_back(&mut self, mark: Mark) {
        self.bytes.truncate(mark.bytes);
        self.edits = mark.edits;
    }

    /// Returns the encoded record.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[2..4].copy_from_slice(&self.edits.to_le_bytes());
        self.bytes
    }
}

/// A decoded record: its operation and its checked edits.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    pub op: RecordOp,
    pub edits: Vec<Edit<'a>>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn key(&mut self) -> Option<Key> {
        Some(Key::decode(self.take(Key::SIZE)?.try_into().ok()?))
    }

    fn time(&mut self) -> Option<Timespec> {
        let t = Timespec { sec: self.u64()? as i64, nsec: self.u32()? };
        (t.nsec < 1_000_000_000).then_some(t)
    }

    fn extent(&mut self) -> Option<Extent> {
        let e = Extent::new(BlockNo(self.u64()?), self.u64()?);
        // No run crosses an allocation group, so the work for one edit is bounded by one group's
        // bitmap.
        let blocks = 1..=crate::item::EXTENT_BLOCKS_MAX;
        (blocks.contains(&e.blocks) && crate::item::fits(e.start.0, e.blocks)).then_some(e)
    }

    /// Decodes inode, offset and length of a byte range whose end does not overflow.
    fn range(&mut self, wide: bool) -> Option<(Ino, u64, u64)> {
        let (ino, offset) = (Ino(self.u64()?), self.u64()?);
        let len = if wide { self.u64()? } else { self.u32()? as u64 };
        // A range may extend up to the largest offset, which means that it has no end.
        offset.checked_add(len)?;
        Some((ino, offset, len))
    }

    fn inode(&mut self) -> Option<InodePatch> {
        let ino = Ino(self.u64()?);
        let mask = InodeMask(self.u32()?);
        let known = InodeMask::ALL_FIELDS | InodeMask::CREATE;
        if ino.0 == 0 || ino.0 > crate::INO_MAX || !known.contains(mask) {
            return None;
        }
        let mut core = InodeCore::default();
        macro_rules! get {
            ($($bit:ident => $field:ident = $read:expr);* $(;)?) => {
                $(if mask.contains(InodeMask::$bit) { core.$field = $read?; })*
            };
        }
        get! {
            MODE => mode = self.u32();
            FLAGS => flags = self.u32();
            UID => uid = self.u32();
            GID => gid = self.u32();
            NLINK => nlink = self.u32();
            SIZE => size = self.u64();
            BLOCKS => blocks = self.u64();
            RDEV => rdev = self.u64();
            PARENT => parent = self.u64().map(Ino);
            CHANGE => change = self.u64();
            ATIME => atime = self.time();
            MTIME => mtime = self.time();
            CTIME => ctime = self.time();
            BTIME => btime = self.time();
            LIMIT => limit = self.u32();
        }
        core.is_possible().then_some(InodePatch { ino, mask, core })
    }

    fn edit(&mut self) -> Option<Edit<'a>> {
        Some(match self.u8()? {
            tag::INODE => Edit::Inode(self.inode()?),
            tag::PUT => {
                let key = self.key()?;
                let len = self.u16()? as usize;
                if len > crate::item::VALUE_MAX {
                    return None;
                }
                Edit::Put { key, value: self.take(len)? }
            }
            tag::DELETE => Edit::Delete { key: self.key()? },
            tag::ALLOC => Edit::Alloc(self.extent()?),
            tag::FREE => Edit::Free(self.extent()?),
            tag::DATA => {
                let (ino, offset, len) = self.range(false)?;
                Edit::Data { ino, offset, bytes: self.take(len as usize)? }
            }
            tag::ZERO => {
                let (ino, offset, len) = self.range(true)?;
                if !within_block(offset, len) {
                    return None;
                }
                Edit::Zero { ino, offset, len }
            }
            tag::DROP => {
                let (ino, offset, len) = self.range(true)?;
                Edit::Drop { ino, offset, len }
            }
            _ => return None,
        })
    }
}

/// Returns whether a range is not empty and lies within one block. Without this bound a `Zero` edit
/// of a few bytes could cover any number of blocks, and replay would have to visit each.
fn within_block(offset: u64, len: u64) -> bool {
    let block = kedge_base::BLOCK_SIZE as u64;
    len > 0 && len <= block - offset % block
}

impl<'a> Record<'a> {
    /// Decodes the record at `lsn`. Every returned edit is well-formed; only the store can check
    /// whether it can be applied.
    pub fn decode(lsn: Lsn, bytes: &'a [u8]) -> Result<Record<'a>> {
        let bad = || Error::corrupt_log(lsn, "malformed record");
        let mut r = Reader(bytes);
        let op = r.u8().and_then(RecordOp::from_u8).ok_or_else(bad)?;
        if r.u8() != Some(0) {
            return Err(Error::corrupt_log(lsn, "record with unknown flags"));
        }
        let count = r.u16().ok_or_else(bad)? as usize;
        let mut edits = Vec::with_capacity(count.min(bytes.len()));
        for _ in 0..count {
            edits.push(r.edit().ok_or_else(bad)?);
        }
        if !r.0.is_empty() {
            return Err(bad());
        }
        Ok(Record { op, edits })
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
