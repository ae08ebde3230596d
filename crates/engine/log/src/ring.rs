//! Positions: the LSNs of a record, and the mapping of LSNs to the device, where an LSN is stored
//! `lsn % ring` bytes after the start of the ring.

use kedge_base::{BLOCK_SIZE, BlockNo, IoBuf, Lsn, Result};
use kedge_device::Device;

/// The LSNs of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLsn {
    /// First byte of the record's frame.
    pub start: Lsn,
    /// End of the record's last byte. The record is durable if and only if the log's durable LSN is
    /// at or above this LSN.
    pub end: Lsn,
    /// Start of the log write that holds the record. To keep the record readable, the tail must not
    /// pass this LSN: a scan from a later LSN cannot read the record.
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

    /// Returns the device offset at which an LSN is stored.
    pub(crate) fn offset(&self, lsn: Lsn) -> u64 {
        self.start.byte_offset() + lsn.0 % self.bytes
    }

    /// Returns the block in which an LSN is stored.
    pub(crate) fn block(&self, lsn: Lsn) -> BlockNo {
        BlockNo(self.offset(lsn) / BLOCK_SIZE as u64)
    }

    /// Returns the number of bytes from an LSN to the end of the ring.
    pub(crate) fn until_end(&self, lsn: Lsn) -> u64 {
        self.bytes - lsn.0 % self.bytes
    }

    /// Writes whole blocks, with FUA if `fua`, in two parts if they cross the end of the ring.
    /// After a crash between the two parts the CRC of the write does not match, as with any torn
    /// write.
    pub(crate) fn write(&self, device: &dyn Device, lsn: Lsn, buf: &IoBuf, fua: bool) -> Result<()> {
        let first = self.until_end(lsn);
        if buf.len() as u64 <= first {
            return device.write(self.offset(lsn), buf, fua);
        }
        let (left, right) = buf.as_bytes().split_at(first as usize);
        device.write(self.offset(lsn), &IoBuf::from_bytes(left), fua)?;
        device.write(self.start.byte_offset(), &IoBuf::from_bytes(right), fua)
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
