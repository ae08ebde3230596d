//! Writers that dirty more than is written: they are delayed, then help, and never wait forever.

use super::Writeback;
use super::pass::PASS_INODES;
use crate::cache::pages::Which;
use crate::error::{Error, Result};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_store::Class;
use std::time::Duration;

/// How often a writer at the hard limit tries to help without success, and how long it pauses after
/// the first time.
const VAIN_MAX: u32 = 8;
const VAIN_REST: Duration = Duration::from_millis(5);

impl Writeback {
    /// Waits, before any lock is taken, while too much is dirty: briefly at first, then the writer
    /// helps to write. Failed writes of other files do not affect the writer, unless none of the
    /// dirty data can be written and memory would grow without bound.
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
                        return Ok(()); // most of what is dirty can be written
                    }
                }
            } else if let Some(inode) = self.dirty.any_under_writeback() {
                drop(inode.wb.lock()); // others write the rest
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Handles a writer at the hard limit that could not write back the data of other files: it
    /// pauses, longer each time. If that does not help, and the data that cannot be written takes
    /// half of the memory for dirty pages, the file system shuts down. Letting writers continue
    /// would grow memory without bound; holding them forever would be a hang without a message; and
    /// failing the write would return the error of another file's data.
    fn helped_in_vain(&self, times: u32, e: Error) -> Result<()> {
        self.engine.store().check_alive()?;
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
