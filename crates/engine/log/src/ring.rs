//! Positions: of a record in the log, and of the log on the device, where an LSN is `lsn % ring`
//! bytes after the start of the ring.

use kedge_base::{BLOCK_SIZE, BlockNo, IoBuf, Lsn, Result};
use kedge_device::Device;

/// The position of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLsn {
    /// First byte (of its frame).
    pub start: Lsn,
    /// End of its last byte. The record is durable if and only if the log's durable LSN reaches it.
    pub end: Lsn,
    /// Start of the log write that holds it. To keep the record, keep the tail at or below *this*
    /// position: a scan that begins at a later position cannot read the record.
    pub write_start: Lsn,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    start: BlockNo,
    bytes: u64,
}

impl Ring {
    pub(crate) fn new(start: BlockNo, blocks: u64) -> Ring {
        assert!(blocks > 0, "a ring has blocks");
        Ring { start, bytes: blocks * BLOCK_SIZE as u64 }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Device offset of a position.
    pub(crate) fn offset(&self, lsn: Lsn) -> u64 {
        self.start.byte_offset() + lsn.0 % self.bytes
    }

    /// The block that holds a position.
    pub(crate) fn block(&self, lsn: Lsn) -> BlockNo {
        BlockNo(self.offset(lsn) / BLOCK_SIZE as u64)
    }

    /// Bytes from a position to the ring's end.
    pub(crate) fn until_end(&self, lsn: Lsn) -> u64 {
        self.bytes - lsn.0 % self.bytes
    }

    /// Writes whole blocks durably, in two parts if they cross the ring's end. A crash between the
    /// two leaves a write whose CRC does not match, like any torn write.
    pub(crate) fn write(&self, device: &dyn Device, lsn: Lsn, buf: &IoBuf) -> Result<()> {
        let first = self.until_end(lsn);
        if buf.len() as u64 <= first {
            return device.write(self.offset(lsn), buf, true);
        }
        let (left, right) = buf.as_bytes().split_at(first as usize);
        device.write(self.offset(lsn), &IoBuf::from_bytes(left), true)?;
        device.write(self.start.byte_offset(), &IoBuf::from_bytes(right), true)
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
