//! The writes of a repair. Writes to adjacent blocks are merged, and batches have bounded memory.

use kedge_base::{BLOCK_SIZE, BlockNo, IoBuf, Result};
use kedge_device::{Device, Io, Op, run_batch};

/// Limits in blocks: for one write (1 MiB), and for all pending writes (16 MiB).
const WRITE_BLOCKS: usize = 256;
const PENDING_BLOCKS: usize = 4096;

pub(crate) struct Writer<'a> {
    device: &'a dyn Device,
    pending: Vec<(BlockNo, IoBuf)>,
    blocks: usize,
}

impl<'a> Writer<'a> {
    pub fn new(device: &'a dyn Device) -> Writer<'a> {
        Writer { device, pending: Vec::new(), blocks: 0 }
    }

    pub fn put(&mut self, at: BlockNo, bytes: &[u8]) -> Result<()> {
        let blocks = bytes.len() / BLOCK_SIZE;
        match self.pending.last_mut() {
            Some((start, buf))
                if start.0 + buf.blocks() as u64 == at.0 && buf.blocks() + blocks <= WRITE_BLOCKS =>
            {
                let end = buf.len();
                buf.resize(buf.blocks() + blocks);
                buf.as_mut_bytes()[end..].copy_from_slice(bytes);
            }
            _ => self.pending.push((at, IoBuf::from_bytes(bytes))),
        }
        self.blocks += blocks;
        if self.blocks < PENDING_BLOCKS { Ok(()) } else { self.finish() }
    }

    /// Waits until all pending writes are complete. They are not durable before the device is
    /// flushed.
    pub fn finish(&mut self) -> Result<()> {
        self.blocks = 0;
        let writes = std::mem::take(&mut self.pending);
        let batch = writes
            .into_iter()
            .map(|(at, buf)| Io { offset: at.byte_offset(), op: Op::Write { buf, fua: false } })
            .collect();
        run_batch(self.device, batch).into_iter().try_for_each(|done| done.result)
    }
}
