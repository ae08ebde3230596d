//! Throttling of writers: they are delayed, then write back dirty data themselves, and never wait
//! forever.

use super::Writeback;
use super::pass::PASS_INODES;
use crate::cache::pages::Which;
use crate::error::{Error, Result};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_store::Class;
use std::time::Duration;

/// The most attempts of a writer at the hard limit to write back that fail, and (`VAIN_REST`) half
/// of the pause after the first.
const VAIN_MAX: u32 = 8;
const VAIN_REST: Duration = Duration::from_millis(5);

impl Writeback {
    /// Waits while too much is dirty. First the writer is delayed briefly; above the hard limit it
    /// writes back dirty data. Failed writes of other files do not affect the writer, unless so
    /// much data cannot be written that memory would grow without bound. Called before any lock is
    /// taken.
    pub(crate) fn throttle(&self) -> Result<()> {
        if self.budget.over_background() {
            self.wake_flusher();
        }
        if let Some(delay) = self.budget.delay() {
            self.engine.clock().sleep(delay);
        }
        let mut vain = 0;
        for _ in 0..64 {
            if !self.budget.over_hard() {
                return Ok(());
            }
            self.engine.stats().throttled.inc();
            let next = self.dirty.take(PASS_INODES, &*self.engine.live().order());
            if !next.is_empty() {
                if let Err(e) = self.write(&next, Which::Dirty, Class::Normal) {
                    vain += 1;
                    self.helped_in_vain(vain, e)?;
                    if vain >= VAIN_MAX {
                        return Ok(()); // most of the dirty data can be written
                    }
                }
            } else if let Some(inode) = self.dirty.any_under_writeback() {
                drop(inode.wb.lock()); // other threads write the rest
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Called when a writer at the hard limit could not write back the data of other files. The
    /// writer pauses, longer each time. If all attempts fail, and the data that cannot be written
    /// takes half of the memory for dirty pages, the file system shuts down. Three alternatives
    /// were rejected. Letting writers continue would grow memory without bound. Holding them
    /// forever would be a hang without a message. Failing the write would return the error of
    /// another file's data.
    fn helped_in_vain(&self, times: u32, e: Error) -> Result<()> {
        self.engine.store().check_alive()?;
        // The reason is no file's: no data at all can be written before the host has space.
        if matches!(&e, Error::Engine(e) if e.is_host_full()) && self.engine.store().stops_records() {
            return Err(e);
        }
        self.engine.clock().sleep(VAIN_REST * (1 << times.min(VAIN_MAX)));
        if times < VAIN_MAX || !self.budget.over_hard() {
            return Ok(());
        }
        let stuck: Vec<(Ino, usize)> = self
            .all_dirty()
            .iter()
            .filter(|inode| inode.meta.lock().failures > 1)
            .map(|inode| (inode.ino, inode.pages.lock().dirty_count()))
            .collect();
        let pages: usize = stuck.iter().map(|(_, pages)| pages).sum();
        if let Some((ino, _)) = stuck.first()
            && 2 * pages as i64 >= self.budget.hard_limit()
        {
            let bytes = pages * BLOCK_SIZE;
            let reason =
                format!("{bytes} bytes of file data cannot be written, those of inode {ino} among them: {e}");
            self.engine.store().shutdown(&kedge_base::Error::Shutdown(reason.into()));
        }
        Ok(self.engine.store().check_alive()?)
    }
}
