//! Reads the log's ring for a repair. A sector that the device cannot read hides the log write that
//! it belongs to, and no other: a repair must not fail because of it.

use kedge_base::{BLOCK_SIZE, BlockNo, Epoch, IoBuf, Lsn, Result};
use kedge_device::Device;
use kedge_format::logwrite::WriteHeader;
use kedge_format::superblock::Geometry;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes of the ring read at once.
const READ_AHEAD: u64 = 1 << 20;

/// Reads the ring forward from a position, for one lap. Unreadable blocks are zeros.
pub(super) struct Ring<'a> {
    device: &'a dyn Device,
    geometry: &'a Geometry,
    /// The end of the lap.
    pub(super) limit: Lsn,
    start: u64,
    data: Vec<u8>,
    unreadable: Vec<BlockNo>,
}

impl<'a> Ring<'a> {
    pub(super) fn new(device: &'a dyn Device, geometry: &'a Geometry, from: Lsn) -> Ring<'a> {
        // The decoder of the slot bounds the ring's size. Replay refuses an LSN near the maximum as
        // well.
        let limit = Lsn(from.0.saturating_add(geometry.log_bytes()) / BLOCK * BLOCK);
        Ring { device, geometry, limit, start: from.0, data: Vec::new(), unreadable: Vec::new() }
    }

    /// Whether one of the blocks read so far could not be read.
    pub(super) fn has_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Returns the complete log write of this image at `at`. `at` must not be below that of an
    /// earlier call.
    pub(super) fn write_at(&mut self, at: Lsn) -> Option<(WriteHeader, &[u8])> {
        let key = self.geometry.log_key();
        let header = WriteHeader::peek(&key, self.bytes(at, BLOCK)?)?;
        let write = self.bytes(at, header.blocks as u64 * BLOCK)?;
        header.is_whole(&key, write).then_some((header, write))
    }

    fn bytes(&mut self, at: Lsn, len: u64) -> Option<&[u8]> {
        if at.0.checked_add(len).is_none_or(|end| end > self.limit.0) {
            return None;
        }
        let skip = (at.0 - self.start).min(self.data.len() as u64);
        if self.start + (self.data.len() as u64) < at.0 + len {
            self.data.drain(..skip as usize);
            self.start = at.0;
        }
        while self.start + (self.data.len() as u64) < at.0 + len {
            let from = self.start + self.data.len() as u64;
            let place = from % self.geometry.log_bytes();
            let piece = READ_AHEAD.min(self.limit.0 - from).min(self.geometry.log_bytes() - place);
            let buf = self.read(place / BLOCK, piece / BLOCK);
            self.data.extend_from_slice(buf.as_bytes());
        }
        let first = (at.0 - self.start) as usize;
        Some(&self.data[first..first + len as usize])
    }

    /// Reads blocks of the ring, which must not wrap around its end.
    fn read(&mut self, first: u64, blocks: u64) -> IoBuf {
        let block = |i: u64| BlockNo(self.geometry.log_start.0 + first + i);
        let mut buf = IoBuf::zeroed(blocks as usize);
        if self.device.read(block(0).byte_offset(), &mut buf).is_ok() {
            return buf;
        }
        for i in 0..blocks {
            let at = (i * BLOCK) as usize;
            let mut one = IoBuf::zeroed(1);
            if self.device.read(block(i).byte_offset(), &mut one).is_err() {
                self.unreadable.push(block(i));
                one = IoBuf::zeroed(1);
            }
            buf.as_mut_bytes()[at..at + BLOCK_SIZE].copy_from_slice(one.as_bytes());
        }
        buf
    }
}

/// The result of a search through the whole ring.
#[derive(Default)]
pub(super) struct Newest {
    /// The newest epoch and tail of any complete log write.
    pub(super) write: Option<(Epoch, Lsn)>,
    /// The blocks of the ring that cannot be read.
    unreadable: Vec<BlockNo>,
}

impl Newest {
    /// Searches the ring from its first block on. A write that wraps around the ring's end is
    /// recognised by its header, which has a tag, and not checked further.
    pub(super) fn search(device: &dyn Device, g: &Geometry) -> Newest {
        let (key, mut newest) = (g.log_key(), Newest::default());
        // LSNs that are multiples of the ring's size are at its first block.
        let mut ring = Ring::new(device, g, Lsn(0));
        let mut at = 0;
        while at < g.log_blocks {
            let mut step = 1;
            let header = ring.bytes(Lsn(at * BLOCK), BLOCK).and_then(|bytes| WriteHeader::peek(&key, bytes));
            if let Some(header) = header {
                let blocks = header.blocks as u64;
                let wraps = blocks > g.log_blocks - at;
                let mut whole =
                    || ring.bytes(Lsn(at * BLOCK), blocks * BLOCK).map(|write| header.is_whole(&key, write));
                if wraps || whole() == Some(true) {
                    newest.write = newest.write.max(Some((header.epoch, header.tail_lsn)));
                    step = blocks;
                }
            }
            at += step;
        }
        newest.unreadable = ring.unreadable;
        newest
    }

    /// Writes zeros to the unreadable blocks, so that the scan of the next mount can read them. A
    /// disk replaces a bad sector when it is written. Only after the repaired checkpoint is
    /// durable, which needs nothing of the log.
    pub(super) fn replace_unreadable(&self, device: &dyn Device) -> Result<()> {
        for block in &self.unreadable {
            device.write(block.byte_offset(), &IoBuf::zeroed(1), true)?;
        }
        Ok(())
    }
}
