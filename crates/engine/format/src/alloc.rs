//! Allocation groups: two copies of each group's bitmap, and the index that selects the current
//! copy.
//!
//! Group `g` covers blocks `[g * GROUP_BLOCKS, (g + 1) * GROUP_BLOCKS)`. Its bitmap is one block:
//! bit `i` (byte `i / 8`, bit `i % 8`) is set when block `g * GROUP_BLOCKS + i` is owned. Copy `h`
//! of group `g` is block `bitmap_start[h] + g`. The index area of slot `s` is `index_blocks` blocks
//! from `index_start[s]`.

use crate::crc_without;
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Error, Generation, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Blocks of an allocation group: the number of bits in a bitmap block (128 MiB).
pub const GROUP_BLOCKS: u64 = (BLOCK_SIZE * 8) as u64;

const INDEX_MAGIC: [u8; 8] = *b"KEDGEALI";
/// Number of entries in one index block.
pub const INDEX_ENTRIES: usize = (BLOCK_SIZE - size_of::<IndexHeader>()) / size_of::<RawEntry>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IndexHeader {
    magic: [u8; 8],
    crc: U32,
    entries: U32,
    uuid: [u8; 16],
    generation: U64,
    first_group: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawEntry {
    bitmap_crc: U32,
    free_blocks: U32,
    copy: U32,
    reserved: U32,
}

crate::layout::layout!(INDEX_LAYOUT: IndexHeader, 48, {
    magic: 0, 8, "`KEDGEALI`";
    crc: 8, 4, "CRC32C of the block";
    entries: 12, 4, "count";
    uuid: 16, 16;
    generation: 32, 8;
    first_group: 40, 8;
});
crate::layout::layout!(ENTRY_LAYOUT: RawEntry, 16, {
    bitmap_crc: 0, 4, "CRC32C of the number of the group (8 bytes) and the bitmap";
    free_blocks: 4, 4;
    copy: 8, 4, "0 or 1: which copy of the bitmap is current";
    reserved: 12, 4, "zero";
});
const _: () = assert!(INDEX_ENTRIES == 253);
const CRC_AT: usize = std::mem::offset_of!(IndexHeader, crc);

/// The index entry of one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupEntry {
    pub bitmap_crc: u32,
    pub free_blocks: u32,
    /// The number of the current copy of the bitmap, 0 or 1.
    pub copy: u8,
}

/// Returns the CRC of a bitmap block that the index stores. It also covers the group's number, so
/// that a bitmap of another group fails the check.
pub fn bitmap_crc(group: u64, bitmap: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&group.to_le_bytes()), bitmap)
}

/// Encodes one index block. `entries` are the entries of consecutive groups from `first_group`, at
/// most [`INDEX_ENTRIES`].
pub fn encode_index_block(
    uuid: &uuid::Uuid,
    generation: Generation,
    first_group: u64,
    entries: &[GroupEntry],
    out: &mut [u8],
) {
    assert!(out.len() == BLOCK_SIZE && entries.len() <= INDEX_ENTRIES);
    out.fill(0);
    let header = IndexHeader {
        magic: INDEX_MAGIC,
        crc: 0.into(),
        entries: (entries.len() as u32).into(),
        uuid: *uuid.as_bytes(),
        generation: generation.0.into(),
        first_group: first_group.into(),
    };
    let (head, body) = out.split_at_mut(size_of::<IndexHeader>());
    head.copy_from_slice(header.as_bytes());
    for (slot, e) in body.chunks_exact_mut(size_of::<RawEntry>()).zip(entries) {
        let raw = RawEntry {
            bitmap_crc: e.bitmap_crc.into(),
            free_blocks: e.free_blocks.into(),
            copy: (e.copy as u32).into(),
            reserved: 0.into(),
        };
        slot.copy_from_slice(raw.as_bytes());
    }
    let crc = crc_without(out, CRC_AT);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the index block at `block`, which must have this generation and start at `first_group`.
pub fn decode_index_block(
    bytes: &[u8],
    block: BlockNo,
    uuid: &uuid::Uuid,
    generation: Generation,
    first_group: u64,
) -> Result<Vec<GroupEntry>> {
    let bad = |what: &str| Error::corrupt(CorruptKind::AllocIndex, block, what);
    let Ok((header, body)) = IndexHeader::read_from_prefix(bytes) else {
        return Err(bad("short block"));
    };
    if bytes.len() != BLOCK_SIZE || header.magic != INDEX_MAGIC {
        return Err(bad("no allocation index magic"));
    }
    if crc_without(bytes, CRC_AT) != header.crc.get() {
        return Err(bad("checksum mismatch"));
    }
    if header.uuid != *uuid.as_bytes() {
        return Err(bad("belongs to another image"));
    }
    if header.generation.get() != generation.0 || header.first_group.get() != first_group {
        return Err(bad("is of another generation or place"));
    }
    if header.entries.get() as usize > INDEX_ENTRIES {
        return Err(bad("too many entries"));
    }
    body.chunks_exact(size_of::<RawEntry>())
        .take(header.entries.get() as usize)
        .map(|raw| {
            let raw = RawEntry::read_from_bytes(raw).map_err(|_| bad("short entry"))?;
            if raw.copy.get() > 1 || raw.free_blocks.get() as u64 > GROUP_BLOCKS {
                return Err(bad("entry out of range"));
            }
            Ok(GroupEntry {
                bitmap_crc: raw.bitmap_crc.get(),
                free_blocks: raw.free_blocks.get(),
                copy: raw.copy.get() as u8,
            })
        })
        .collect()
}
