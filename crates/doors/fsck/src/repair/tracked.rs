//! An overlay device that records which blocks were written. A repair later writes only these
//! blocks, which the replay in memory has changed, to the device.

use crate::owned::Owned;
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BLOCK_SIZE, BlockNo, IoBuf, Result};
use kedge_device::{CompletionSink, Device, Op, OverlayDevice, Request};
use kedge_format::alloc::GROUP_BLOCKS;
use std::sync::Arc;

pub(crate) struct Tracked {
    overlay: OverlayDevice,
    written: Mutex<Owned>,
}

impl Tracked {
    pub fn new(base: Arc<dyn Device>) -> Tracked {
        let groups = (base.geometry().size / BLOCK_SIZE as u64).div_ceil(GROUP_BLOCKS);
        Tracked { overlay: OverlayDevice::new(base), written: Mutex::new(Rank::Leaf, Owned::new(groups)) }
    }

    /// The blocks written since the overlay was made.
    pub fn written(&self) -> Owned {
        self.written.lock().clone()
    }

    fn note(&self, offset: u64, len: u64) {
        // The overlay refuses ranges outside the device, so they are not recorded.
        let end = offset.checked_add(len).is_some_and(|end| end <= self.overlay.geometry().size);
        if end && len > 0 {
            let block = BLOCK_SIZE as u64;
            self.written.lock().claim(BlockNo(offset / block), len.div_ceil(block));
        }
    }
}

impl Device for Tracked {
    kedge_device::delegate!(overlay: geometry, read, flush, stats, name);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        for request in &batch {
            match &request.op {
                Op::Write { buf, .. } => self.note(request.offset, buf.len() as u64),
                Op::Discard { len } | Op::WriteZeroes { len } => self.note(request.offset, *len),
                Op::Read(_) | Op::Flush => {}
            }
        }
        self.overlay.submit(batch, sink);
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.note(offset, buf.len() as u64);
        self.overlay.write(offset, buf, fua)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.note(offset, len);
        self.overlay.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.note(offset, len);
        self.overlay.write_zeroes(offset, len)
    }
}
