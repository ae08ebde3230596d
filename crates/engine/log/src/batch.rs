//! A batch: the bytes of one log write, from the first append until they are on the device.
//!
//! The buffer is always zero from `used` on: it grows with zeros and shrinks only to block
//! boundaries. So padding needs no work when the batch is sealed.

use crate::stats::ForceCause;
use kedge_base::{BLOCK_SIZE, Epoch, IoBuf, Lsn};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE, LogKey, WriteHeader};

/// Bytes by which the buffer grows for a short record. Its vector doubles what it allocates.
const GROW: usize = 4 * BLOCK_SIZE;

/// Records between two block-aligned positions. Open while records are appended, then sealed.
pub(crate) struct Batch {
    /// Position of the header.
    pub base: Lsn,
    buf: IoBuf,
    /// Bytes used, header included; [`HEADER_SIZE`] when there is no record.
    used: usize,
    pub records: u32,
    /// Forces whose target is in this batch.
    pub forces: u32,
    pub asked: Asked,
}

/// Why a batch is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Asked {
    /// It is full, or a checkpoint or a search for space needs it.
    No,
    ByTimer,
    ByOperation,
}

impl Asked {
    pub(crate) fn by(cause: ForceCause) -> Asked {
        match cause {
            ForceCause::CommitTimer => Asked::ByTimer,
            cause if cause.is_commit() => Asked::ByOperation,
            _ => Asked::No,
        }
    }
}

impl Batch {
    pub(crate) fn new(base: Lsn, mut buf: IoBuf) -> Batch {
        buf.resize(0);
        Batch { base, buf, used: HEADER_SIZE, records: 0, forces: 0, asked: Asked::No }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// End of the last record; `base` if there is none, because an empty batch is never written.
    pub(crate) fn head(&self) -> Lsn {
        if self.is_empty() { self.base } else { Lsn(self.base.0 + self.used as u64) }
    }

    fn blocks(&self) -> usize {
        if self.is_empty() { 0 } else { self.used.div_ceil(BLOCK_SIZE) }
    }

    /// Bytes on the device if it is sealed now.
    pub(crate) fn padded(&self) -> u64 {
        (self.blocks() * BLOCK_SIZE) as u64
    }

    /// Where the next batch starts if this one is sealed now.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.base.0 + self.padded())
    }

    pub(crate) fn fits(&self, record: usize, batch_bytes_max: usize) -> bool {
        self.used + FRAME_SIZE + record <= batch_bytes_max
    }

    /// Appends a record with its frame. Returns its position.
    pub(crate) fn push(&mut self, record: &[u8], batch_bytes_max: usize) -> Lsn {
        let at = self.used;
        let end = at + FRAME_SIZE + record.len();
        if end > self.buf.len() {
            // In small steps: the log's mutex is held while zeros are written.
            let step = (self.buf.len() + GROW).min(batch_bytes_max);
            self.buf.resize(end.max(step).div_ceil(BLOCK_SIZE));
        }
        let bytes = &mut self.buf.as_mut_bytes()[at..end];
        bytes[..FRAME_SIZE].copy_from_slice(&(record.len() as u32).to_le_bytes());
        bytes[FRAME_SIZE..].copy_from_slice(record);
        self.used = end;
        self.records += 1;
        Lsn(self.base.0 + at as u64)
    }

    /// The log write, complete except for its header, which [`Write::seal`] computes outside of the
    /// lock.
    pub(crate) fn into_write(mut self, epoch: Epoch, tail_lsn: Lsn, durable_lsn: Lsn) -> Write {
        let blocks = self.blocks();
        self.buf.resize(blocks);
        let header = WriteHeader {
            epoch,
            lsn: self.base,
            blocks: blocks as u32,
            tail_lsn,
            durable_lsn,
            payload_bytes: (self.used - HEADER_SIZE) as u32,
            records: self.records,
        };
        Write { header, buf: self.buf, forces: self.forces, asked: self.asked }
    }

    /// Returns the buffer for reuse; its contents are no longer needed.
    pub(crate) fn into_buf(self) -> IoBuf {
        self.buf
    }
}

/// A batch that a leader has taken to write it.
pub(crate) struct Write {
    pub header: WriteHeader,
    pub buf: IoBuf,
    pub forces: u32,
    pub asked: Asked,
}

impl Write {
    pub(crate) fn seal(&mut self, key: &LogKey) {
        self.header.seal(key, self.buf.as_mut_bytes());
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
