//! Log writes: a header, framed records, zero padding to a block.
//!
//! # A log write at LSN `n` is *valid* when all of this holds
//! 1. Its header has the magic, and `tag` is the SipHash-2-4 of the header, with the fields `tag`
//!    and `crc` as zero, under the image's [`LogSecret`].
//! 2. `crc` is the CRC32C of the whole write (padding included) with the `crc` field zero, and
//!    `body` the SipHash-1-3 of the payload under the same secret.
//! 3. `uuid` is the image's.
//! 4. `epoch` is the epoch in the superblock slot.
//! 5. `lsn` equals `n`, the position at which the previous valid write ended.
//! 6. `blocks` is at least 1 and at most [`WRITE_BLOCKS_MAX`] and the ring's size; header and
//!    payload fit it.
//! 7. The payload divides exactly into frames (`u32` length, then that many bytes, length at least
//!    1).
//!
//! Recovery stops at the first position without a valid write. Some findings there and beyond are
//! corruption instead of the end of the log: a write that fails rule 7 alone, a write of a newer
//! epoch or with a newer tail, which proves that a newer superblock slot was lost, and a later
//! write whose `durable_lsn` is above the stop. The tables in `kedge_log::scan` list all cases.
//!
//! # Why no file's content can pass for a log write
//! Small file data is stored in the ring as the application wrote it, at predictable places. Block
//! boundaries fall into it, and a scan reads every block beyond the stop. Magic, uuid and CRC are
//! no secret. Without a key a user could put a header of a later epoch into a file. The image would
//! then look as if its newest superblock was lost: after a clean unmount neither a mount, read-only
//! or not, nor `fsck -p` would accept it. A user who knows this format can try the following:
//! - *Make up a header.* It needs a tag under 128 secret bits, which no program shows and no file
//!   holds. A guess succeeds with one chance in 2^64 for each block, and failures reveal nothing.
//! - *Take a header from the log.* Blocks of the ring never belong to a file, and no read of a file
//!   reaches them. Remains of earlier mounts and laps have valid tags, but for their own epoch and
//!   LSN, so rules 4 and 5 exclude them. The engine never writes a header into a file.
//! - *Replace the body after a genuine header.* After a power failure during a write, its header
//!   can be new while sectors of its body hold the previous contents of the ring. A user may have
//!   chosen those bytes so that the CRC is correct: a CRC is linear, and four free bytes suffice.
//!   Such a body would be replayed as records, with any owner and mode in them. So the payload has
//!   a keyed hash of its own. The padding, which nothing reads, has only the CRC.
//!
//! This protects against file content only. A user who can read the image's blocks can read the
//! secret, and a copy of an image has the secret of the original. So an image must not be readable
//! by users who must not write to it.
//!
//! The tag covers the header alone. That bounds the work on blocks that only look like headers:
//! with a tag over the whole write, each block could make a reader hash a megabyte. The CRC finds
//! torn writes: it costs a tenth of a keyed hash, and covers the padding too.

use crate::crc_without;
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, Epoch, Lsn};
use siphasher::sip::{SipHasher13, SipHasher24};
use std::hash::Hasher;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"KEDGELOG";
/// Bytes of a log write's header.
pub const HEADER_SIZE: usize = 88;
/// Bytes in front of each record.
pub const FRAME_SIZE: usize = 4;
/// Largest log write, in blocks (1 MiB). A record never crosses log writes, so this also bounds a
/// record.
pub const WRITE_BLOCKS_MAX: u32 = 256;

/// No log reaches this position, and sums above it do not overflow.
pub const LSN_MAX: u64 = 1 << 62;

/// Random bytes that are made with the image and key its log writes and tree nodes. Knowing them is
/// enough to forge either, so no program shows them. `Debug` hides them too, since the text of a
/// superblock uses it.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct LogSecret(pub [u8; 16]);

impl std::fmt::Debug for LogSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogSecret(..)")
    }
}

/// The key that identifies log writes of an image.
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
    body: U64,
    tag: U64,
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
    payload_bytes: 64, 4, "frames after the header";
    records: 68, 4, "count";
    body: 72, 8, "SipHash-1-3 of the frames, under `log_secret`";
    tag: 80, 8, "SipHash-2-4 of the header with `crc` and `tag` as zero, under `log_secret`";
});
const CRC_AT: usize = std::mem::offset_of!(RawHeader, crc);

impl RawHeader {
    /// Rule 1: what `tag` must be.
    fn tag(&self, secret: &LogSecret) -> u64 {
        let mut bytes = [0; HEADER_SIZE];
        bytes.copy_from_slice(self.as_bytes());
        bytes[CRC_AT..CRC_AT + 4].fill(0);
        bytes[std::mem::offset_of!(RawHeader, tag)..].fill(0);
        let mut hasher = SipHasher24::new_with_key(&secret.0);
        hasher.write(&bytes);
        hasher.finish()
    }
}

/// Rule 2: what `body` must be.
fn body_hash(secret: &LogSecret, payload: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(&secret.0);
    hasher.write(payload);
    hasher.finish()
}

/// Recomputes tag, body hash and CRC, whatever the write holds. For tests that damage images.
pub(crate) fn reseal(bytes: &mut [u8], secret: &LogSecret) -> bool {
    let Ok((mut raw, _)) = RawHeader::read_from_prefix(bytes) else { return false };
    let end = HEADER_SIZE.saturating_add(raw.payload_bytes.get() as usize).min(bytes.len());
    raw.body = body_hash(secret, &bytes[HEADER_SIZE..end]).into();
    raw.tag = raw.tag(secret).into();
    bytes[..HEADER_SIZE].copy_from_slice(raw.as_bytes());
    let crc = crc_without(bytes, CRC_AT);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    true
}

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
    /// Bytes of frames after the header.
    pub payload_bytes: u32,
    pub records: u32,
}

impl WriteHeader {
    pub fn end_lsn(&self) -> Lsn {
        Lsn(self.lsn.0 + self.blocks as u64 * BLOCK_SIZE as u64)
    }

    /// Seals `write`: fills in the header with tag, body hash and CRC. `write` is the whole log
    /// write, frames already in place, padding zero.
    pub fn seal(&self, key: &LogKey, write: &mut [u8]) {
        assert_eq!(write.len(), self.blocks as usize * BLOCK_SIZE, "a log write is whole blocks");
        let raw = RawHeader {
            magic: MAGIC,
            crc: 0.into(),
            blocks: self.blocks.into(),
            uuid: *key.uuid.as_bytes(),
            epoch: self.epoch.0.into(),
            lsn: self.lsn.0.into(),
            tail_lsn: self.tail_lsn.0.into(),
            durable_lsn: self.durable_lsn.0.into(),
            payload_bytes: self.payload_bytes.into(),
            records: self.records.into(),
            body: 0.into(),
            tag: 0.into(),
        };
        write[..HEADER_SIZE].copy_from_slice(raw.as_bytes());
        assert!(reseal(write, &key.secret), "a log write holds a header");
    }

    /// Reads a header: rules 1, 3 and the bounds of rule 6. `None` if no log write of this image
    /// starts here. This is the only way from bytes to a header, so no header is accepted without
    /// the key.
    pub fn peek(key: &LogKey, block: &[u8]) -> Option<WriteHeader> {
        let (raw, _) = RawHeader::read_from_prefix(block).ok()?;
        let blocks = raw.blocks.get();
        let capacity = blocks as u64 * BLOCK_SIZE as u64;
        let fits = (1..=WRITE_BLOCKS_MAX).contains(&blocks)
            && HEADER_SIZE as u64 + raw.payload_bytes.get() as u64 <= capacity
            && raw.lsn.get() <= LSN_MAX;
        if raw.magic != MAGIC || raw.uuid != *key.uuid.as_bytes() || !fits {
            return None;
        }
        // Broken on purpose: any bytes with the right magic, uuid and CRC are a log write.
        let genuine = raw.tag.get() == raw.tag(&key.secret) || broken::is(Variant::UnkeyedLog);
        genuine.then(|| WriteHeader {
            epoch: Epoch(raw.epoch.get()),
            lsn: Lsn(raw.lsn.get()),
            blocks,
            tail_lsn: Lsn(raw.tail_lsn.get()),
            durable_lsn: Lsn(raw.durable_lsn.get()),
            payload_bytes: raw.payload_bytes.get(),
            records: raw.records.get(),
        })
    }

    /// Rule 2 for a whole write that starts with this header.
    pub fn is_whole(&self, key: &LogKey, write: &[u8]) -> bool {
        let Ok((raw, _)) = RawHeader::read_from_prefix(write) else { return false };
        if write.len() != self.blocks as usize * BLOCK_SIZE || crc_without(write, CRC_AT) != raw.crc.get() {
            return false;
        }
        let payload = &write[HEADER_SIZE..HEADER_SIZE + self.payload_bytes as usize];
        raw.body.get() == body_hash(&key.secret, payload) || broken::is(Variant::UnkeyedLog)
    }

    /// Rule 7: the records of a whole write with their positions, or `None` if the frames do not
    /// divide the payload exactly.
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

#[cfg(test)]
#[path = "logwrite_tests.rs"]
mod tests;
