//! Writing file data in place, many inodes in one pass.
//!
//! # A pass
//! 1. Reserve log space, and lock the inodes' `wb`, in ascending order.
//! 2. List the unclean pages, and map them. Pages without an extent get blocks, adjacent ones for
//!    successive pages.
//! 3. Sort the pages by block, merge, copy them into large buffers, and submit one batch.
//! 4. Commit one record. It maps new blocks, drops the log-resident data that is now in place, and
//!    sets the sizes. Then the pages are clean.
//!
//! # Plug
//! A pass gathers the IO of up to `PASS_INODES` inodes before it submits any. Files that are
//! written one after the other get adjacent blocks, so their 4 KiB become few large writes. With
//! `noplug` nothing is merged or sorted across inodes, as in Linux before it plugged at a high
//! level. The IO of each inode is then a submission of its own, because the kernel merges the
//! requests of one submission. The option is kept for comparison.
//!
//! A plug is safe for these reasons:
//! - At submission no page or meta lock is held, only `wb`. No thread that could hold up the IO
//!   takes `wb`.
//! - A pass with gathered IO waits for nothing before it submits.
//! - The size of a plug is bounded in pages, segments and inodes.
//! - A page counts as written only when its write has completed.
//!
//! # Durable writes
//! If the data of an fsync is one write, it is made durable by one FUA write, instead of a write
//! and a flush of the whole device. There are four conditions:
//! 1. Nothing of this file waits for a flush, because a FUA write makes nothing else durable.
//! 2. Few other durable writes are in progress, because one flush serves any number of files.
//! 3. No other fsync of this file is in progress. `wb` is held during a durable write (on a device
//!    without FUA also during its flush), but not during a shared flush. So several calls on one
//!    file are faster with a flush that they share.
//! 4. The host of the image has allocated its blocks ([`kedge_device::Device::first_hole`]). On a
//!    full host the first write to a block fails, and nothing is lost by that. But the failure of a
//!    durable write does not show whether its flush failed, so it may shut the mount down. A plain
//!    write fails with ENOSPC, and the bytes stay dirty.
//!
//! On a device that makes a write and a flush of a FUA write, an fsync that logs time stamps after
//! data that only overwrites makes no durable write: one flush serves the data and the log write
//! (`kedge_log::Barrier`).
//!
//! The pass of a group of fsyncs ([`crate::durability::sync`]) is durable under all
//! conditions except the third, if it has at most one write for each file.
//!
//! A durable write gets no sequence number from the flusher, since no log write and no fsync has to
//! flush for it.
//!
//! On a device without FUA a durable write includes a flush. If that flush fails, other writes may
//! be lost. So a failed durable write shuts the mount down like a failed flush, unless nothing else
//! was written meanwhile and nothing waited for a flush before ([`kedge_device::TrackedDevice`]).
//!
//! # When a write fails
//! 1. The error of a write of several blocks does not show which block failed. So each of its
//!    blocks is written again by itself (not after a durable write, since its flush may have
//!    failed). Only pages whose own write fails count as failed.
//! 2. A page that failed, or whose record failed, returns to its previous state: dirty, logged, or
//!    both. No record names its new block; if the rest of the record is committed, the edits of the
//!    page are left out. The size in the record ends before the first page that is still dirty.
//! 3. The page's block goes into quarantine (`Alloc::quarantine`), and the next writeback of the
//!    page uses another block: one record frees the old block, maps the new one and drops the
//!    log-resident data. Without free space the old block is tried again.
//! 4. An fsync or a write-through that finds a failed write returns the error, even if rule 1 or
//!    another thread has repaired it. All other callers (sync, the flusher, a checkpoint's
//!    preparation, unmount) retry immediately, once, inode by inode, and return the error of the
//!    retry. So one file's failure holds up no other file.
//! 5. Each inode with bytes in a failed write records the failure, repaired or not, until an fsync
//!    of the inode has returned an error. That may be the fsync that found the failure.
//! 6. Background writeback and the commit timer skip an inode that failed for a while, longer each
//!    time. Callers that wait for the data do not skip it.
//!
//! # Crash argument
//! A record names extents and sizes only after their data IO has completed, and its log write
//! flushes the device first. So no crash shows stale or foreign bytes. The `Drop` of log-resident
//! bytes is in the same record, so replay never writes old logged bytes over newer ones in place.
//! If a crash interrupts a pass, the blocks allocated for it have no owner, since no record names
//! them. The size of a file is read after the bytes of its pages were copied, so no recorded size
//! covers bytes that were not written.
//!
//! After a failure, pages beyond the recorded size wait for the pages before them. So a record
//! never sets a size over bytes that are not written. Nor does it map a written block beyond the
//! size: if the file grew later, stale bytes of that block would show. A page that moves keeps its
//! old block until the record is durable. A crash before that finds in the old block the previous
//! bytes, or sectors of the failed write; log-resident bytes are still in the log. The old block is
//! not used again, because it is bad.

mod pass;
mod throttle;
mod write;

use crate::cache::budget::Budget;
use crate::cache::inode::{Inode, Meta};
use crate::cache::inodes::Inodes;
use crate::cache::pages::Delta;
use crate::durability::dirty::DirtyList;
use crate::durability::flushers::Member;
use crate::engine::Engine;
use crate::error::LostData;
use crate::policy::shared_budget::SharedBudget;
use kedge_base::atomic::AtomicU32;
use kedge_base::{BLOCK_SIZE, Ino};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// How long background writeback skips an inode after its first failed write. The time doubles with
/// each further failure.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_DOUBLINGS_MAX: u32 = 5;

/// The dirty data of a file system, its limits, and its writeback.
pub(crate) struct Writeback {
    engine: Arc<Engine>,
    inodes: Arc<Inodes>,
    dirty: DirtyList,
    budget: Budget,
    /// Number of durable writes in flight.
    durable_writes: AtomicU32,
    flusher: Arc<Member>,
}

impl Writeback {
    /// `bytes`: memory for pages.
    pub(crate) fn new(
        engine: Arc<Engine>,
        inodes: Arc<Inodes>,
        dirty: DirtyList,
        bytes: u64,
        shared: Option<Arc<SharedBudget>>,
        flusher: Arc<Member>,
    ) -> Writeback {
        Writeback {
            engine,
            inodes,
            dirty,
            budget: Budget::new(bytes, shared),
            durable_writes: AtomicU32::new(0),
            flusher,
        }
    }

    pub(crate) fn account(&self, delta: Delta) {
        self.budget.account(delta);
    }

    /// Counts a new page in memory that is about to become dirty. May be called with the page lock
    /// held.
    pub(crate) fn page_added(&self, ino: Ino, index: u64) {
        self.budget.token(ino, index);
    }

    /// Counts a new clean page in memory, if `delta` has one, and evicts older pages if necessary.
    /// The caller holds no page lock.
    pub(crate) fn page_cached(&self, delta: Delta, ino: Ino, index: u64) {
        if delta.pages > 0 {
            self.account(delta);
            self.budget.cached(&self.inodes, ino, index);
        }
    }

    /// Counts the changes of a write, and evicts older pages if necessary.
    pub(crate) fn pages_written(&self, delta: Delta) {
        self.account(delta);
        self.budget.enforce(&self.inodes, delta.pages);
    }

    /// Sets the memory for pages, in bytes. Wakes the flusher if too many pages are dirty for it.
    pub(crate) fn set_page_bytes(&self, bytes: u64) {
        self.budget.set_bytes(&self.inodes, bytes);
        if self.budget.over_background() {
            self.wake_flusher();
        }
    }

    pub(crate) fn pages_max(&self) -> i64 {
        self.budget.pages_max()
    }

    pub(crate) fn cached_pages(&self) -> i64 {
        self.budget.cached_pages()
    }

    pub(crate) fn dirty_pages(&self) -> i64 {
        self.budget.dirty_pages()
    }

    pub(crate) fn wake_flusher(&self) {
        self.flusher.wake();
    }

    /// Leaves the pool of flusher threads, so that no further turn begins.
    pub(crate) fn leave_flushers(&self) {
        self.flusher.leave();
    }

    // ----- the lists -----

    /// Adds the inode to the dirty list. The caller holds its meta lock. A dead inode is not added:
    /// its data is never written, so it would stay on the list forever.
    pub(crate) fn list_dirty(&self, inode: &Arc<Inode>, meta: &mut Meta) {
        if !meta.listed && !meta.dead {
            meta.listed = true;
            self.dirty.add(inode.clone(), self.engine.clock().monotonic());
        }
    }

    /// Removes the inode from the dirty list, if it is listed. The caller holds its meta lock.
    pub(crate) fn unlist(&self, ino: Ino, meta: &mut Meta) {
        if std::mem::take(&mut meta.listed) {
            self.dirty.remove(ino);
        }
    }

    /// The name of the tracking of dirty inodes.
    pub(crate) fn tracking(&self) -> &'static str {
        self.dirty.name()
    }

    pub(crate) fn dirty_inodes(&self) -> usize {
        self.dirty.len()
    }

    /// Returns all dirty inodes, in the order of writeback.
    pub(crate) fn all_dirty(&self) -> Vec<Arc<Inode>> {
        self.dirty.all(&*self.engine.live().order())
    }

    /// Number of inodes that syncs examined to find running writeback.
    pub(crate) fn walked_by_sync(&self) -> u64 {
        self.dirty.walked.get()
    }

    pub(crate) fn inodes_under_writeback(&self) -> usize {
        self.dirty.count_under_writeback()
    }

    /// Waits for the passes that are running now.
    pub(crate) fn wait_for_passes(&self) {
        for inode in self.dirty.under_writeback() {
            drop(inode.wb.lock());
        }
    }

    /// Removes inodes from the dirty list that have no dirty page, no page being written (which may
    /// become dirty again), and no pending time stamps.
    pub(crate) fn unlist_clean(&self, inodes: &[Arc<Inode>]) {
        for inode in inodes {
            let pages = inode.pages.lock();
            let mut meta = inode.meta.lock();
            if pages.is_written() && meta.unlogged.is_empty() {
                self.unlist(inode.ino, &mut meta);
            }
        }
    }

    fn note_failure(&self, inode: &Inode) {
        let mut meta = inode.meta.lock();
        let wait = RETRY_MIN * (1 << meta.failures.min(RETRY_DOUBLINGS_MAX));
        meta.failures += 1;
        meta.retry_at = self.engine.clock().monotonic() + wait;
    }

    /// Removes the inodes that failed and that the background still skips.
    pub(crate) fn due(&self, mut inodes: Vec<Arc<Inode>>) -> Vec<Arc<Inode>> {
        let now = self.engine.clock().monotonic();
        inodes.retain(|inode| inode.meta.lock().retry_at <= now);
        inodes
    }

    /// The data that is still dirty after the last sync, and is therefore lost. `None` if there is
    /// none.
    pub(crate) fn lost_data(&self) -> Option<LostData> {
        let mut some: Vec<(Ino, u64)> = self
            .all_dirty()
            .iter()
            .map(|inode| (inode.ino, inode.pages.lock().dirty_count() as u64 * BLOCK))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        some.sort_unstable();
        let (files, bytes) = (some.len() as u64, some.iter().map(|(_, bytes)| bytes).sum());
        some.truncate(LostData::NAMED_MAX);
        (files > 0).then_some(LostData { files, bytes, some })
    }
}
