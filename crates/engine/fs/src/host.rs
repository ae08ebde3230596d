//! An image file whose host file system is full.
//!
//! The image is sparse: a block that was never written has no place on the host yet, and the first
//! write to it may fail with ENOSPC although the image has room. Bytes that were accepted before
//! stay dirty and are retried, as after any failed write (`writeback`). This module stops the
//! acceptance of more such bytes: a write into a hole of a file, which needs a block, fails with
//! ENOSPC where the program sees the error, at write(2). Without that, memory would fill with bytes
//! that no fsync can save, until the file system shuts down. Refusing overwrites too would be
//! wrong, since their blocks have a place.
//!
//! The state ends when the host has room for everything dirty, or when nothing is dirty any longer.
//! The second may happen on a full host too: files deleted inside the image have left blocks that
//! the host has already allocated, and the retries find them. A device that does not know its host
//! (a thin volume) never refuses here.

use crate::engine::Engine;
use kedge_base::atomic::Ordering::Relaxed;
use kedge_base::{BLOCK_SIZE, Error};

/// Free space on the host, besides that for dirty data, from which on writes are accepted again:
/// tree nodes and the other writers of the host need some too.
pub(crate) const SPARE_BYTES: u64 = 4 << 20;

impl Engine {
    /// Records that a write of file data failed with this error.
    pub(crate) fn note_host_error(&self, e: &Error) {
        if e.is_host_full() && !self.host_full.swap(true, Relaxed) {
            tracing::error!(
                "the host of {} has no space: {e}. Writes that need new blocks are refused until it has",
                self.store().device().name()
            );
        }
    }

    /// Whether a write has met a full host, and no check has found space since.
    pub(crate) fn knows_host_full(&self) -> bool {
        self.host_full.load(Relaxed)
    }

    /// Whether the host has no space for new blocks, beside those for `dirty_pages`. Costs a system
    /// call only while the host is full.
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
