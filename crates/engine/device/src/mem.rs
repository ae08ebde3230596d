//! A sparse device in memory. Snapshots are cheap enough for one at each crash state.
//!
//! Every write is durable at once; [`crate::sim`] adds a volatile cache. Lock: one leaf, held only
//! while bytes are copied.

use crate::batch::submit_inline;
use crate::pages::{Page, Pages, blocks};
use crate::sizes::Sizes;
use crate::{CompletionSink, Device, DeviceStats, Geometry, Request};
use kedge_base::{BLOCK_SIZE, IoBuf, Result};
use parking_lot::RwLock;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

pub struct MemDevice {
    sizes: Sizes,
    stats: DeviceStats,
    /// The contents; an absent block reads as zeros.
    pages: RwLock<Pages>,
}

impl MemDevice {
    /// Makes a zeroed device of `size` bytes, rounded down to whole blocks.
    pub fn new(size: u64) -> MemDevice {
        MemDevice::with_pages(Geometry::memory(size), Pages::default())
    }

    /// Makes a device of `size` bytes, rounded down to whole blocks, each of them `byte`. Blocks
    /// that are never written share their memory.
    pub fn filled(size: u64, byte: u8) -> MemDevice {
        let geometry = Geometry::memory(size);
        let pages = match byte {
            0 => Pages::default(),
            _ => Pages::filled(blocks(geometry.size), &Page::new(&[byte; BLOCK_SIZE])),
        };
        MemDevice::with_pages(geometry, pages)
    }

    fn with_pages(geometry: Geometry, pages: Pages) -> MemDevice {
        MemDevice { sizes: Sizes::new(geometry), stats: DeviceStats::default(), pages: RwLock::new(pages) }
    }

    /// Returns a copy that shares each block until one of the two devices writes it. The copy's
    /// counters start at zero.
    pub fn fork(&self) -> MemDevice {
        MemDevice::with_pages(self.sizes.now().clone(), self.pages.read().clone())
    }

    /// Returns a hash of the difference from `base`. It is equal for equal contents, whatever
    /// writes led to them.
    pub fn difference_hash(&self, base: &MemDevice) -> u64 {
        self.pages.read().difference_hash(&base.pages.read())
    }

    /// Returns a hash of the contents of these blocks. Blocks beyond the end count as zeros.
    pub fn range_hash(&self, blocks: Range<u64>) -> u64 {
        let pages = self.pages.read();
        let mut hasher = std::hash::DefaultHasher::new();
        for block in blocks {
            hasher.write_u64(pages.get(block).unwrap_or(&Page::ZERO).hash());
        }
        hasher.finish()
    }

    /// Returns a copy of any byte range, for tests. Panics if the range extends beyond the device.
    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = offset + len as u64;
        assert!(end <= self.sizes.now().size, "byte range inside the device");
        let pages = self.pages.read();
        let mut out = Vec::with_capacity(len);
        let mut at = offset;
        while at < end {
            let skip = (at % BLOCK_SIZE as u64) as usize;
            let take = (BLOCK_SIZE - skip).min((end - at) as usize);
            let page = pages.get(blocks(at)).unwrap_or(&Page::ZERO);
            out.extend_from_slice(&page.bytes()[skip..skip + take]);
            at += take as u64;
        }
        out
    }

    /// Damages the image, for tests: calls `f` with the bytes from `offset` to the end of its
    /// block. Panics if `offset` is beyond the end of the device.
    pub fn corrupt(&self, offset: u64, f: impl FnOnce(&mut [u8])) {
        assert!(offset < self.sizes.now().size, "offset inside the device");
        let mut pages = self.pages.write();
        let mut bytes = *pages.get(blocks(offset)).unwrap_or(&Page::ZERO).bytes();
        f(&mut bytes[(offset % BLOCK_SIZE as u64) as usize..]);
        put(&mut pages, blocks(offset), Page::new(&bytes));
    }

    /// Returns the contents without locking, for the only owner.
    pub(crate) fn pages_mut(&mut self) -> &mut Pages {
        self.pages.get_mut()
    }
}

/// Stores a page; a page of zeros is removed instead, because an absent block reads as zeros.
pub(crate) fn put(pages: &mut Pages, block: u64, page: Page) {
    if page.is_zero() {
        pages.remove(block, 1);
    } else {
        pages.insert(block, page);
    }
}

impl Device for MemDevice {
    fn geometry(&self) -> &Geometry {
        self.sizes.now()
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        submit_inline(self, batch, &*sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.stats.count_read(buf.len());
        self.sizes.now().check("read", offset, buf.len() as u64)?;
        let pages = self.pages.read();
        for (block, out) in (blocks(offset)..).zip(buf.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE)) {
            out.copy_from_slice(pages.get(block).unwrap_or(&Page::ZERO).bytes());
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.stats.count_write(buf.len(), fua);
        self.sizes.now().check("write", offset, buf.len() as u64)?;
        let new: Vec<Page> = buf.as_bytes().chunks_exact(BLOCK_SIZE).map(Page::new).collect();
        let mut pages = self.pages.write();
        for (block, page) in (blocks(offset)..).zip(new) {
            put(&mut pages, block, page);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.stats.count_flush();
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.sizes.now().check("discard", offset, len)?;
        self.pages.write().remove(blocks(offset), blocks(len));
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.sizes.now().check("write_zeroes", offset, len)?;
        self.pages.write().remove(blocks(offset), blocks(len));
        Ok(())
    }

    fn grow(&self, size: u64) -> Result<()> {
        if size > self.sizes.now().size {
            self.sizes.set(size);
        }
        Ok(())
    }

    fn cut(&self, size: u64) -> Result<()> {
        let has = self.sizes.now().size;
        if size < has {
            self.sizes.set(size);
            self.pages.write().remove(blocks(size), blocks(has - size));
        }
        Ok(())
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn name(&self) -> &str {
        "memory"
    }
}

#[cfg(test)]
#[path = "mem_tests.rs"]
mod tests;
