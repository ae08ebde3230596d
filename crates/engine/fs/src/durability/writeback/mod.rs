//! Writing file data in place, many inodes in one pass.
//!
//! # A pass
//! 1. Reserve log space, and lock the inodes' `wb`, in ascending order.
//! 2. List the unclean pages and map them. Those without an extent get blocks, neighbours next to
//!    one another.
//! 3. Sort by place, merge, copy the pages into large buffers, and submit one batch.
//! 4. Commit one record. It maps what is new, drops what was log-resident, and names the sizes.
//!    Then the pages are clean.
//!
//! # Plug
//! A pass gathers the IO of up to `PASS_INODES` inodes before it submits any: files written one
//! after the other lie side by side, so their 4 KiB become few large writes. With `noplug` nothing
//! is merged or sorted across inodes, as in Linux before it plugged at a high level: the IO of each
//! inode is a submission of its own, because the kernel merges what one call submits. It is kept to
//! compare with.
//!
//! What makes a plug safe:
//! - At submission no page or meta lock is held, only `wb`. Nobody takes it who might hold up the
//!   IO.
//! - A pass waits for nothing while it has IO gathered and not submitted.
//! - Its size is bounded in pages, segments and inodes.
//! - A page counts as written when its write has completed.
//!
//! # Durable writes
//! An fsync whose data is one write gets it with one FUA write, instead of a write and a flush of
//! the whole device. It is done only under three conditions:
//! 1. Nothing of this file waits for a flush, because a FUA write makes nothing else durable.
//! 2. Few others of its kind are under way, because one flush serves any number of files.
//! 3. The call is alone with its file. `wb` is held during the write and not during a flush, so
//!    calls on one file are faster with a flush that they share.
//!
//! A durable write gets no number from the flusher: no barrier and no fsync has to flush for it.
//!
//! A write that is durable on its own may have failed in the flush that a device without FUA makes
//! of it, and what others had written is lost then. So its failure shuts the mount down as that of
//! a flush does, unless nothing else was written while it ran and nothing had waited for a flush
//! before.
//!
//! # When a write fails
//! 1. The device's answer to a write of several blocks does not say which it did not take. So its
//!    blocks are written once more, each by itself (not a durable write: what failed may have been
//!    its flush). Only pages whose own write fails count as failed.
//! 2. A page that failed, or that the pass's record failed for, is what it was before: dirty,
//!    logged, or both. No record names its new block, and its part of the record, if the rest goes
//!    on, is left out. The size that the record names ends before the first page that is still
//!    dirty.
//! 3. Its block is set aside (`Alloc::quarantine`), and the next writeback of the page goes
//!    elsewhere: one record frees the old block, maps the new one and drops what is log-resident.
//!    Without free space it tries the old place again.
//! 4. An fsync, or a write that goes through, that met a failed write answers the error, even if
//!    rule 1 or another thread has mended it. Everybody else (sync, the flusher, a checkpoint's
//!    preparation, unmount) tries once more at once, inode by inode, and answers the error of that.
//!    So one file's failure holds up no other.
//! 5. Each inode whose bytes a failed write carried remembers that, mended or not, until an fsync
//!    of it has answered an error. That fsync may be the one that met it.
//! 6. Background writeback and the commit timer leave an inode that failed alone for a while, more
//!    and more; those who wait for the data do not.
//!
//! # Crash argument
//! Extents and sizes are named only after their data IO has completed, and a log write that names
//! them flushes the device first: no crash shows stale or foreign bytes. A `Drop` for log-resident
//! bytes stands in the same record, so replay never puts old logged bytes over newer ones in place.
//! Blocks allocated for a pass that a crash cuts off are nobody's: no record names them. A page's
//! size is read after its bytes were copied, so no size ever covers bytes that were not written.
//!
//! With failures, pages behind the recorded size wait for those before them. So a record never
//! names a size over bytes that are not there. Nor does it name a written block behind the size,
//! which a file that grows later would show. A page that moves has its old block until the record
//! is durable. A crash before finds there what was there, or sectors of the write that failed;
//! log-resident bytes are still in the log. The old block is not used again, for it is bad.

mod pass;
mod throttle;
mod write;

use crate::cache::budget::Budget;
use crate::cache::inode::{Inode, Meta};
use crate::cache::inodes::Inodes;
use crate::cache::pages::Delta;
use crate::cache::shared_budget::SharedBudget;
use crate::durability::dirty::DirtyList;
use crate::durability::flushers::Member;
use crate::engine::Engine;
use crate::error::LostData;
use kedge_base::{BLOCK_SIZE, Ino};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// How long background writeback leaves an inode alone whose write failed: twice as long each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_DOUBLINGS_MAX: u32 = 5;

/// What is dirty, how much of it there may be, and who writes it.
pub(crate) struct Writeback {
    engine: Arc<Engine>,
    inodes: Arc<Inodes>,
    dirty: DirtyList,
    budget: Budget,
    /// Data writes under way that are durable on their own.
    durable_writes: AtomicU32,
    flusher: Arc<Member>,
}

impl Writeback {
    /// With memory for pages of so many bytes.
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

    /// A page came into memory that will be dirty. May be called with the page lock held.
    pub(crate) fn page_added(&self, ino: Ino, index: u64) {
        self.budget.token(ino, index);
    }

    /// A clean page came into memory, if `delta` says so: older ones may have to go. No page lock
    /// is held.
    pub(crate) fn page_cached(&self, delta: Delta, ino: Ino, index: u64) {
        if delta.pages > 0 {
            self.account(delta);
            self.budget.cached(&self.inodes, ino, index);
        }
    }

    /// A write ended that changed the totals: older pages may have to go.
    pub(crate) fn pages_written(&self, delta: Delta) {
        self.account(delta);
        self.budget.enforce(&self.inodes, delta.pages);
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

    /// No turn of a flusher begins any more.
    pub(crate) fn leave_flushers(&self) {
        self.flusher.leave();
    }

    // ----- the lists -----

    /// Puts the inode on the dirty list. The caller holds its meta lock.
    /// Nothing of a dead one is ever written: it would stay on the list for good.
    pub(crate) fn list_dirty(&self, inode: &Arc<Inode>, meta: &mut Meta) {
        if !meta.listed && !meta.dead {
            meta.listed = true;
            self.dirty.add(inode.clone(), self.engine.clock().monotonic());
        }
    }

    /// Takes the inode off the dirty list, if it is there. The caller holds its meta lock.
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

    /// Inodes that syncs looked at for writeback to wait for.
    pub(crate) fn walked_by_sync(&self) -> u64 {
        self.dirty.walked.get()
    }

    pub(crate) fn inodes_under_writeback(&self) -> usize {
        self.dirty.count_under_writeback()
    }

    /// Waits for each pass that is under way.
    pub(crate) fn wait_for_passes(&self) {
        for inode in self.dirty.under_writeback() {
            drop(inode.wb.lock());
        }
    }

    /// Takes inodes off the dirty list that have nothing dirty, nothing on its way that may become
    /// dirty again, and no waiting time stamps.
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

    /// The inodes but for those that failed and that the background leaves alone for a while.
    pub(crate) fn due(&self, mut inodes: Vec<Arc<Inode>>) -> Vec<Arc<Inode>> {
        let now = self.engine.clock().monotonic();
        inodes.retain(|inode| inode.meta.lock().retry_at <= now);
        inodes
    }

    /// What is dirty behind the last sync, and is lost.
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
