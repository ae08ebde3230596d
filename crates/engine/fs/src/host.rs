//! An image file whose host file system is full.
//!
//! The image is sparse: the host has no block yet for a block that was never written, and the first
//! write to it may fail with ENOSPC although the image has space. Bytes that were accepted before
//! stay dirty and are retried, as after any failed write (`writeback`). This module stops the
//! acceptance of more such bytes: a write into a hole of a file, which needs a block, fails with
//! ENOSPC at write(2), where the program sees the error. Without that, memory would fill with bytes
//! that no fsync can save, until the file system shuts down. Overwrites are not refused, since the
//! host has their blocks.
//!
//! The state ends when the host has space for everything dirty, or when nothing is dirty any
//! longer. The second can happen on a full host too: files deleted inside the image leave blocks
//! that the host has already allocated, and the retries use them. With a device that does not know
//! its host (a thin volume) no write is refused here.

use crate::engine::Engine;
use kedge_base::atomic::Ordering::Relaxed;
use kedge_base::{BLOCK_SIZE, Error};

/// Writes are accepted again when the host has this much free space, in bytes, besides that for
/// dirty data. Tree nodes and other users of the host need some too.
pub(crate) const SPARE_BYTES: u64 = 4 << 20;

impl Engine {
    /// Records the error of a failed write of file data, if it is that of a full host.
    pub(crate) fn note_host_error(&self, e: &Error) {
        if e.is_host_full() && !self.host_full.swap(true, Relaxed) {
            tracing::error!(
                "the host of {} has no space: {e}. Writes that need new blocks are refused until it has",
                self.store().device().name()
            );
        }
    }

    /// Whether a write has failed because of a full host, and no check has found space since.
    pub(crate) fn knows_host_full(&self) -> bool {
        self.host_full.load(Relaxed)
    }

    /// Whether the host has no space for new blocks, besides those for `dirty_pages`. Makes a
    /// system call only while the host is known to be full.
    pub(crate) fn host_is_full(&self, dirty_pages: i64) -> bool {
        if !self.host_full.load(Relaxed) {
            return false;
        }
        let Some(free) = self.store().device().host_free() else { return false };
        let dirty = dirty_pages.max(0) as u64 * BLOCK_SIZE as u64;
        if dirty > 0 && free < dirty + SPARE_BYTES {
            return true;
        }
        if self.host_full.swap(false, Relaxed) {
            tracing::warn!("the host of {} has space again", self.store().device().name());
        }
        false
    }
}
