//! A volatile write cache in front of a real device: a process that is killed loses exactly the
//! writes that it has not flushed.
//!
//! Killing a daemon alone does not lose writes, because the kernel already has them. With this
//! device in between, all unflushed writes are lost with the process. The cache is unbounded,
//! because an eviction would make a write durable early; so it is for tests only.
//!
//! Locks: `drain` (held during a flush or a FUA write, so that no older buffered block is written
//! over a newer FUA write), then the leaf `buffered`, which is never held during a request to the
//! inner device.

use crate::batch::submit_inline;
use crate::pages::{Page, Pages, blocks, patch};
use crate::{CompletionSink, Device, DeviceStats, Request};
use kedge_base::{BLOCK_SIZE, IoBuf, Result};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

/// Maximum number of blocks in one write while draining.
const RUN_MAX: usize = 256;

pub struct VolatileDevice {
    inner: Arc<dyn Device>,
    stats: DeviceStats,
    drain: Mutex<()>,
    /// The unflushed blocks. A block that is absent is read from the inner device.
    buffered: RwLock<Pages>,
    name: String,
}

impl VolatileDevice {
    pub fn new(inner: Arc<dyn Device>) -> VolatileDevice {
        let name = format!("{} (volatile cache)", inner.name());
        VolatileDevice {
            inner,
            stats: DeviceStats::default(),
            drain: Mutex::default(),
            buffered: RwLock::default(),
            name,
        }
    }

    /// Returns whether a kill would lose nothing now.
    pub fn is_clean(&self) -> bool {
        self.buffered.read().is_empty()
    }

    /// Writes the buffered blocks, and removes those that were not written again in the meantime.
    fn write_back(&self) -> Result<()> {
        // A clone costs one pointer for each chunk, and lets writers continue while the blocks are
        // written.
        let snapshot = self.buffered.read().clone();
        let mut run: Vec<(u64, Page)> = Vec::new();
        for (block, page) in snapshot.iter() {
            if run.last().is_some_and(|(last, _)| last + 1 != block) || run.len() == RUN_MAX {
                self.write_run(&mut run)?;
            }
            run.push((block, page.clone()));
        }
        self.write_run(&mut run)?;
        let mut buffered = self.buffered.write();
        for (block, page) in snapshot.iter() {
            if buffered.get(block).is_some_and(|now| now.same(page)) {
                buffered.remove(block, 1);
            }
        }
        Ok(())
    }

    fn write_run(&self, run: &mut Vec<(u64, Page)>) -> Result<()> {
        let Some(&(first, _)) = run.first() else { return Ok(()) };
        let mut buf = IoBuf::zeroed(run.len());
        for ((_, page), out) in run.drain(..).zip(buf.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE)) {
            out.copy_from_slice(page.bytes());
        }
        self.inner.write(first * BLOCK_SIZE as u64, &buf, false)
    }
}

impl Device for VolatileDevice {
    crate::delegate!(inner: geometry, grow, cut, release, room, host_free, first_hole);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        submit_inline(self, batch, &*sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.stats.count_read(buf.len());
        self.geometry().check("read", offset, buf.len() as u64)?;
        // The buffer is read first. In the other order, a flush in between could move blocks from
        // the buffer to the inner device after the inner device was read.
        let buffered = self.buffered.read().present(blocks(offset), buf.blocks() as u64);
        if buffered.len() < buf.blocks() {
            self.inner.read(offset, buf)?;
        }
        patch(buf, &buffered);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.stats.count_write(buf.len(), fua);
        self.geometry().check("write", offset, buf.len() as u64)?;
        if fua {
            let _drain = self.drain.lock();
            self.inner.write(offset, buf, true)?;
            self.buffered.write().remove(blocks(offset), buf.blocks() as u64);
            return Ok(());
        }
        let new: Vec<Page> = buf.as_bytes().chunks_exact(BLOCK_SIZE).map(Page::new).collect();
        let mut buffered = self.buffered.write();
        for (block, page) in (blocks(offset)..).zip(new) {
            buffered.insert(block, page);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.stats.count_flush();
        let _drain = self.drain.lock();
        self.write_back()?;
        self.inner.flush()
    }

    /// Passed on at once: the contract lets a discard take effect at any time, and an immediate
    /// effect is the hardest case for the layers above.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("discard", offset, len)?;
        let _drain = self.drain.lock();
        self.inner.discard(offset, len)?;
        self.buffered.write().remove(blocks(offset), blocks(len));
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("write_zeroes", offset, len)?;
        let mut buffered = self.buffered.write();
        for block in blocks(offset)..blocks(offset + len) {
            buffered.insert(block, Page::ZERO);
        }
        Ok(())
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
#[path = "volatile_tests.rs"]
mod tests;
