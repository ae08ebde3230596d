//! Keeps writes in memory, above a device that is only read, so that a log can be replayed and
//! checked without changing the image.
//!
//! Memory grows with the number of written blocks and is freed with the device. When a log is
//! replayed into the overlay, the log's size and the tree nodes that the log changes bound the
//! memory. Lock: one leaf, never held during a request to the base.

use crate::batch::submit_inline;
use crate::pages::{Page, Pages, blocks, patch};
use crate::{CompletionSink, Device, DeviceStats, FuaKind, Geometry, Latency, Op, Request};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, IoBuf, Result};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct OverlayDevice {
    base: Arc<dyn Device>,
    geometry: Geometry,
    stats: DeviceStats,
    /// The written blocks. An absent block is read from the base. A discarded block is stored as a
    /// page of zeros, so that the base's contents do not reappear.
    written: RwLock<Pages>,
    /// Blocks whose reads fail with this error until the block is written.
    spoilt: RwLock<BTreeMap<u64, Error>>,
    name: String,
}

impl OverlayDevice {
    pub fn new(base: Arc<dyn Device>) -> OverlayDevice {
        let geometry = Geometry {
            discard_granularity: BLOCK_SIZE as u32,
            discard_zeroes: true,
            fua: FuaKind::Native,
            ..base.geometry().clone()
        };
        let name = format!("{} (overlaid)", base.name());
        let (stats, written, spoilt) = (DeviceStats::default(), RwLock::default(), RwLock::default());
        OverlayDevice { base, geometry, stats, written, spoilt, name }
    }

    /// Makes every read of a block fail until the block is written to the overlay: readers must not
    /// see the base's contents, even if the base becomes readable again.
    pub fn spoil(&self, block: BlockNo, error: Error) {
        self.spoilt.write().insert(block.0, error);
    }

    /// Returns whether a request is a read that only the base must serve.
    fn is_the_bases(&self, request: &Request) -> bool {
        let Op::Read(buf) = &request.op else { return false };
        let (first, count) = (blocks(request.offset), buf.blocks() as u64);
        count > 0
            && self.geometry.check_request(request).is_ok()
            && self.written.read().present(first, count).is_empty()
            && self.spoilt.read().range(first..first + count).next().is_none()
    }

    fn zero(&self, offset: u64, len: u64) {
        let mut written = self.written.write();
        for block in blocks(offset)..blocks(offset + len) {
            written.insert(block, Page::ZERO);
        }
    }
}

impl Device for OverlayDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Reads of ranges that were not written to the overlay go to the base as one batch, so that
    /// the base can serve them in parallel.
    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let (below, here): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|request| self.is_the_bases(request));
        if !below.is_empty() {
            below.iter().for_each(|request| self.stats.count(&request.op));
            self.base.submit(below, sink.clone());
        }
        submit_inline(self, here, &*sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.stats.count_read(buf.len());
        self.geometry.check("read", offset, buf.len() as u64)?;
        let written = self.written.read().present(blocks(offset), buf.blocks() as u64);
        let first = blocks(offset);
        let spoilt = self.spoilt.read();
        let mut in_range = spoilt.range(first..first + buf.blocks() as u64);
        let is_written = |block: u64| written.iter().any(|(i, _)| first + *i as u64 == block);
        if let Some((_, error)) = in_range.find(|(block, _)| !is_written(**block)) {
            return Err(error.clone());
        }
        drop(spoilt);
        // If the overlay has the whole range, the base is not read, because the range may be
        // unreadable there.
        if written.len() < buf.blocks() {
            self.base.read(offset, buf)?;
        }
        patch(buf, &written);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.stats.count_write(buf.len(), fua);
        self.geometry.check("write", offset, buf.len() as u64)?;
        let new: Vec<Page> = buf.as_bytes().chunks_exact(BLOCK_SIZE).map(Page::new).collect();
        let mut written = self.written.write();
        for (block, page) in (blocks(offset)..).zip(new) {
            written.insert(block, page);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.stats.count_flush();
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry.check("discard", offset, len)?;
        self.zero(offset, len);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry.check("write_zeroes", offset, len)?;
        self.zero(offset, len);
        Ok(())
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn latency(&self) -> &Arc<Latency> {
        self.base.latency()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
