//! Writing file data in place, many inodes in one pass.
//!
//! # A pass
//! 1. Reserve log space, and lock the inodes' `wb`, in ascending order.
//! 2. List the unclean pages and map them. Those without an extent get blocks, adjacent for
//!    neighbours.
//! 3. Sort by place, merge, copy the pages into large buffers, and submit one batch.
//! 4. Commit one record. It maps new blocks, drops the log-resident data that is now in place, and
//!    names the sizes. Then the pages are clean.
//!
//! # Plug
//! A pass gathers the IO of up to `PASS_INODES` inodes before it submits any: files written one
//! after the other are adjacent, so their 4 KiB become few large writes. With `noplug` nothing is
//! merged or sorted across inodes, as in Linux before it plugged at a high level: the IO of each
//! inode is a submission of its own, because the kernel merges the requests of one submission. It
//! is kept for comparison.
//!
//! What makes a plug safe:
//! - At submission no page or meta lock is held, only `wb`. No thread that could hold up the IO
//!   takes `wb`.
//! - A pass with gathered IO waits for nothing before it submits.
//! - Its size is bounded in pages, segments and inodes.
//! - A page counts as written when its write has completed.
//!
//! # Durable writes
//! An fsync whose data is one write gets it with one FUA write, instead of a write and a flush of
//! the whole device. It is done only under three conditions:
//! 1. Nothing of this file waits for a flush, because a FUA write makes nothing else durable.
//! 2. Few others of its kind are under way, because one flush serves any number of files.
//! 3. The call is alone with its file. `wb` is held during the write (with the flush that a device
//!    without FUA makes of it), and not during a flush, so
//!    calls on one file are faster with a flush that they share.
//!
//! The pass of a group of fsyncs ([`crate::durability::sync`]) is durable under the first two
//! conditions, with one write for each file at most.
//!
//! A durable write gets no number from the flusher, since no barrier and no fsync has to flush for
//! it.
//!
//! On a device without FUA a durable write includes a flush, and it may have failed in that flush,
//! which loses other writes. So its failure shuts the mount down like a failed flush, unless
//! nothing else was written while it ran and nothing had waited for a flush before.
//!
//! # When a write fails
//! 1. The error of a write of several blocks does not show which block failed. So its blocks are
//!    written again, each by itself (not as a durable write, since the flush may be what failed).
//!    Only pages whose own write fails count as failed.
//! 2. A page that failed, or whose record failed, returns to its previous state: dirty, logged, or
//!    both. No record names its new block, and if the rest of the record is committed, the page's
//!    part is left out. The size in the record ends before the first page that is still dirty.
//! 3. Its block is set aside (`Alloc::quarantine`), and the next writeback of the page goes
//!    elsewhere: one record frees the old block, maps the new one and drops the log-resident data.
//!    Without free space it tries the old place again.
//! 4. An fsync or a write-through that met a failed write returns the error, even if rule 1 or
//!    another thread has mended it. All other callers (sync, the flusher, a checkpoint's
//!    preparation, unmount) retry once at once, inode by inode, and return the error of the retry.
//!    So one file's failure holds up no other.
//! 5. Each inode with bytes in a failed write records the failure, mended or not, until an fsync of
//!    it has returned an error. That may be the fsync that met the failure.
//! 6. Background writeback and the commit timer skip an inode that failed for a while, longer each
//!    time; callers that wait for the data do not skip it.
//!
//! # Crash argument
//! Extents and sizes are named only after their data IO has completed, and a log write that names
//! them flushes the device first: no crash shows stale or foreign bytes. A `Drop` for log-resident
//! bytes is in the same record, so replay never puts old logged bytes over newer ones in place.
//! Blocks allocated for a pass that a crash interrupts have no owner, since no record names them. A
//! page's size is read after its bytes were copied, so no size ever covers bytes that were not
//! written.
//!
//! After failures, pages beyond the recorded size wait for the pages before them. So a record never
//! names a size over bytes that are not there. Nor does it name a written block beyond the size,
//! whose stale bytes a file that grows later would show. A page that moves keeps its old block
//! until the record is durable. A crash before that finds in the old block the previous bytes, or
//! sectors of the failed write; log-resident bytes are still in the log. The old block is not used
//! again, because it is bad.

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
/// How long background writeback skips an inode whose write failed: twice as long each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_DOUBLINGS_MAX: u32 = 5;

/// The dirty data of a file system, its limits, and its writeback.
pub(crate) struct Writeback {
    engine: Arc<Engine>,
    inodes: Arc<Inodes>,
    dirty: DirtyList,
    budget: Budget,
    /// Durable writes in flight.
    durable_writes: AtomicU32,
    flusher: Arc<Member>,
}

impl Writeback {
    /// With memory for pages of this many bytes.
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

    /// Accounts for a new page in memory that will be dirty. May be called with the page lock held.
    pub(crate) fn page_added(&self, ino: Ino, index: u64) {
        self.budget.token(ino, index);
    }

    /// Accounts for a new clean page in memory, if `delta` has one, and evicts older pages if
    /// necessary. No page lock is held.
    pub(crate) fn page_cached(&self, delta: Delta, ino: Ino, index: u64) {
        if delta.pages > 0 {
            self.account(delta);
            self.budget.cached(&self.inodes, ino, index);
        }
    }

    /// Accounts for a write that changed the totals, and evicts older pages if necessary.
    pub(crate) fn pages_written(&self, delta: Delta) {
        self.account(delta);
        self.budget.enforce(&self.inodes, delta.pages);
    }

    /// Sets the memory for pages. The flusher writes what is dirty beyond its part of it.
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

    /// Prevents further turns of a flusher.
    pub(crate) fn leave_flushers(&self) {
        self.flusher.leave();
    }

    // ----- the lists -----

    /// Puts the inode on the dirty list. The caller holds its meta lock. A dead inode is not
    /// listed: its data is never written, so it would stay on the list forever.
    pub(crate) fn list_dirty(&self, inode: &Arc<Inode>, meta: &mut Meta) {
        if !meta.listed && !meta.dead {
            meta.listed = true;
            self.dirty.add(inode.clone(), self.engine.clock().monotonic());
        }
    }

    /// Removes the inode from the dirty list, if it is there. The caller holds its meta lock.
    pub(crate) fn unlist(&self, ino: Ino, meta: &mut Meta) {
        if std::mem::take(&mut meta.listed) {
            self.dirty.remove(ino);
        }
    }

    /// How the dirty inodes are tracked.
    pub(crate) fn tracking(&self) -> &'static str {
        self.dirty.name()
    }

    pub(crate) fn dirty_inodes(&self) -> usize {
        self.dirty.len()
    }

    /// All dirty inodes, in the order of writeback.
    pub(crate) fn all_dirty(&self) -> Vec<Arc<Inode>> {
        self.dirty.all(&*self.engine.live().order())
    }

    /// Inodes that syncs examined for a running writeback.
    pub(crate) fn walked_by_sync(&self) -> u64 {
        self.dirty.walked.get()
    }

    pub(crate) fn inodes_under_writeback(&self) -> usize {
        self.dirty.count_under_writeback()
    }

    /// Waits for each running pass.
    pub(crate) fn wait_for_passes(&self) {
        for inode in self.dirty.under_writeback() {
            drop(inode.wb.lock());
        }
    }

    /// Removes inodes from the dirty list that have no dirty page, no page in flight that may
    /// become dirty again, and no waiting time stamps.
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

    /// The inodes except those that failed and that the background skips for a while.
    pub(crate) fn due(&self, mut inodes: Vec<Arc<Inode>>) -> Vec<Arc<Inode>> {
        let now = self.engine.clock().monotonic();
        inodes.retain(|inode| inode.meta.lock().retry_at <= now);
        inodes
    }

    /// The data that is still dirty after the last sync, and is lost.
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
