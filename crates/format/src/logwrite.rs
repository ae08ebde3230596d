//! Log writes: a header, framed records, zero padding to a block.
//!
//! # A log write at LSN `n` is *valid* when all of this holds
//! 1. Its header's magic is right.
//! 2. `crc` is the CRC32C of the whole write (padding included) with the `crc` field zero.
//! 3. `uuid` is the image's.
//! 4. `epoch` is the one the superblock slot names.
//! 5. `lsn` equals `n`: the place where the previous valid write ended.
//! 6. `blocks` is at least 1 and at most [`WRITE_BLOCKS_MAX`] and the ring's size; header and payload fit it.
//! 7. The payload divides exactly into frames (`u32` length, then that many bytes, length at least 1).
//!
//! Recovery stops at the first write that is not valid. A write that fails 7 *alone* was written so: corruption. A write that fails 4 *alone*, with a newer epoch, proves that a
//! newer superblock slot was lost: corruption, not the end of the log. So does a valid write behind the stop whose
//! `durable_lsn` lies behind the stop.

use crate::crc_without;
use kedge_base::{BLOCK_SIZE, Epoch, Lsn};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"KEDGELOG";
/// Bytes of a log write's header.
pub const HEADER_SIZE: usize = 80;
/// Bytes in front of each record.
pub const FRAME_SIZE: usize = 4;
/// Largest log write, in blocks (1 MiB). A record never crosses log writes, so this also bounds a record.
pub const WRITE_BLOCKS_MAX: u32 = 256;

/// No log comes so far; behind it is room to count on.
const LSN_MAX: u64 = i64::MAX as u64;

/// Random bytes made with the image. Who knows them can make log writes that pass for the engine's own, so they are shown
/// nowhere: not by `Debug` either, which the text of a superblock goes through.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct LogSecret(pub [u8; 16]);

impl std::fmt::Debug for LogSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogSecret(..)")
    }
}

/// What an image's log writes are recognised by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogKey {
    pub uuid: uuid::Uuid,
    pub secret: LogSecret,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    crc: U32,
    blocks: U32,
    uuid: [u8; 16],
    epoch: U64,
    lsn: U64,
    tail_lsn: U64,
    durable_lsn: U64,
    payload_bytes: U32,
    records: U32,
    reserved: U64,
}

crate::layout::layout!(LAYOUT: RawHeader, HEADER_SIZE, {
    magic: 0, 8, "`KEDGELOG`";
    crc: 8, 4, "CRC32C of the whole write";
    blocks: 12, 4, "of the whole write";
    uuid: 16, 16;
    epoch: 32, 8;
    lsn: 40, 8, "of this header";
    tail_lsn: 48, 8, "when the write was composed";
    durable_lsn: 56, 8, "when the write was composed";
    payload_bytes: 64, 4, "frames behind the header";
    records: 68, 4, "count";
    reserved: 72, 8;
});
const CRC_AT: usize = std::mem::offset_of!(RawHeader, crc);

/// Decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteHeader {
    pub epoch: Epoch,
    /// Position of the header's first byte.
    pub lsn: Lsn,
    /// Blocks of the whole write.
    pub blocks: u32,
    /// The tail when the write was composed.
    pub tail_lsn: Lsn,
    /// Everything below was durable when the write was composed.
    pub durable_lsn: Lsn,
    /// Bytes of frames behind the header.
    pub payload_bytes: u32,
    pub records: u32,
}

impl WriteHeader {
    pub fn end_lsn(&self) -> Lsn {
        Lsn(self.lsn.0 + self.blocks as u64 * BLOCK_SIZE as u64)
    }

    /// Seals `write`: fills in the header and the CRC. `write` is the whole log write, frames already in place, padding
    /// zero.
    pub fn seal(&self, uuid: &uuid::Uuid, write: &mut [u8]) {
        assert_eq!(write.len(), self.blocks as usize * BLOCK_SIZE, "a log write is whole blocks");
        let raw = RawHeader {
            magic: MAGIC,
            crc: 0.into(),
            blocks: self.blocks.into(),
            uuid: *uuid.as_bytes(),
            epoch: self.epoch.0.into(),
            lsn: self.lsn.0.into(),
            tail_lsn: self.tail_lsn.0.into(),
            durable_lsn: self.durable_lsn.0.into(),
            payload_bytes: self.payload_bytes.into(),
            records: self.records.into(),
            reserved: 0.into(),
        };
        write[..HEADER_SIZE].copy_from_slice(raw.as_bytes());
        let crc = crc_without(write, CRC_AT);
        write[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header without its CRC: rules 1, 3 and the bounds of rule 6. `None`: no log write of this image starts
    /// here.
    pub fn peek(uuid: &uuid::Uuid, block: &[u8]) -> Option<WriteHeader> {
        let (raw, _) = RawHeader::read_from_prefix(block).ok()?;
        let blocks = raw.blocks.get();
        let capacity = blocks as u64 * BLOCK_SIZE as u64;
        let fits = (1..=WRITE_BLOCKS_MAX).contains(&blocks)
            && HEADER_SIZE as u64 + raw.payload_bytes.get() as u64 <= capacity
            && raw.lsn.get() <= LSN_MAX;
        (raw.magic == MAGIC && raw.uuid == *uuid.as_bytes() && fits).then(|| WriteHeader {
            epoch: Epoch(raw.epoch.get()),
            lsn: Lsn(raw.lsn.get()),
            blocks,
            tail_lsn: Lsn(raw.tail_lsn.get()),
            durable_lsn: Lsn(raw.durable_lsn.get()),
            payload_bytes: raw.payload_bytes.get(),
            records: raw.records.get(),
        })
    }

    /// Rule 2 for a whole write.
    pub fn crc_matches(write: &[u8]) -> bool {
        let Some(stored) = write.get(CRC_AT..CRC_AT + 4) else { return false };
        crc_without(write, CRC_AT).to_le_bytes() == *stored
    }

    /// Rule 7: the records of a whole write with their positions, or `None` when the frames do not divide the payload.
    pub fn records<'a>(&self, write: &'a [u8]) -> Option<Vec<(Lsn, &'a [u8])>> {
        let end = HEADER_SIZE + self.payload_bytes as usize;
        let mut at = HEADER_SIZE;
        let mut out = Vec::new();
        while at < end {
            let len = u32::from_le_bytes(write.get(at..at + FRAME_SIZE)?.try_into().ok()?) as usize;
            if len == 0 || len > (end - at).saturating_sub(FRAME_SIZE) {
                return None;
            }
            out.push((Lsn(self.lsn.0 + at as u64), write.get(at + FRAME_SIZE..at + FRAME_SIZE + len)?));
            at += FRAME_SIZE + len;
        }
        (out.len() == self.records as usize).then_some(out)
    }
}
