//! Writing file data in place, many inodes in one pass.
//!
//! # A pass
//! reserve → lock the inodes' `wb` (ascending) → list unclean pages → map them, allocating for those without an extent,
//! neighbours next to one another → sort by place, merge, copy pages into large buffers → one batch → one record that
//! maps what is new, drops what was log-resident, and names the sizes → the pages are clean.
//!
//! # Plug
//! A pass gathers the IO of up to `PASS_INODES` inodes before it submits any: files written one after the other lie side by
//! side, so their 4 KiB become few large writes. No page or meta lock is held at submission, only `wb`, which nobody takes
//! who might hold up the IO; a pass never waits for anything with IO gathered and not submitted; its size is bounded in
//! pages, segments and inodes; pages count as written when their write has completed. With `noplug` nothing is
//! merged or sorted across inodes, as in Linux before it plugged at a high level: it is kept to compare with.
//!
//! # Durable writes
//! An fsync whose data is one write gets it with one FUA write, instead of a write and a flush of the whole device. Nothing that
//! was written before is made durable by that, so it is done only if nothing of this file waits for a flush; only beside few others of
//! its kind, for a flush serves any number of files; and only by a call that is alone with its file: `wb` is held during the write and
//! not during a flush, so that calls on one file are faster with a flush that they share. A durable write gets no number from the
//! flusher: no barrier and no fsync has to flush for it.
//!
//! A write that is durable on its own may have failed in the flush that a device without FUA makes of it, and what others had written
//! is lost then. So its failure shuts the mount down as that of a flush does, unless nothing else was written while it ran and nothing
//! had waited for a flush before.
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
//! Extents and sizes are named only after their data IO has completed, and a log write that names them flushes the
//! device first: no crash shows stale or foreign bytes. A `Drop` for log-resident bytes stands in the same record, so
//! replay never puts old logged bytes over newer ones in place. Blocks allocated for a pass that a crash cuts off are
//! nobody's: no record names them. A page's size is read after its bytes were copied, so no size ever covers bytes that
//! were not written.
//!
//! With failures: pages behind the recorded size wait for those before them, so that a record never
//! names a size over bytes that are not there, nor a written block behind the size, which a file
//! that grows later would show. A page that moves has its old block until the record is durable:
//! what a crash before finds there is what was there, or sectors of the write that failed;
//! log-resident bytes are still in the log. The old block is not used again, for it is bad.

mod finish;
mod plan;

use crate::core::Fs;
use crate::inode::Inode;
use crate::pages::Which;
use crate::{Error, Result};
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_store::{CheckpointClient, Class};
use plan::{Gathered, Part, Plan};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Inodes of one pass, pages of one pass: bounds the record, the locks held and the staging memory.
const PASS_INODES: usize = 128;
const PASS_PAGES: usize = 1024;
/// Log bytes of a pass: an inode's patch and drop, a segment's extent and allocation.
const PASS_LOG_BYTES: u64 = PASS_INODES as u64 * 200 + PASS_SEGMENTS as u64 * 120 + 256;
const PASS_SEGMENTS: usize = 256;
/// Segments of a pass on an image without room for a wide one.
const NARROW_SEGMENTS: usize = 8;
/// Largest merged write.
const MERGE_BLOCKS_MAX: u64 = 256;
/// Most durable writes under way.
const DURABLE_MAX: u32 = 4;
/// Longest durable write: a longer one takes longer than a flush.
const DURABLE_BLOCKS_MAX: usize = 16;
/// Blocks of failed writes that one pass writes once more, each by itself.
const SPLIT_BLOCKS_MAX: usize = MERGE_BLOCKS_MAX as usize;
/// How long background writeback leaves an inode alone whose write failed: twice as long each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_DOUBLINGS_MAX: u32 = 5;
/// How often a write that goes through looks again whether it is through.
const RANGE_TRIES: u32 = 3;
/// How often a writer at the hard limit tries to help in vain, and how long it rests after the
/// first time.
const VAIN_MAX: u32 = 8;
const VAIN_REST: Duration = Duration::from_millis(5);

/// What a pass is to write, and how.
#[derive(Clone, Copy)]
struct Kind {
    which: Which,
    class: Class,
    segments_max: usize,
    /// Part of an fsync: by durable writes, if that is cheaper than a flush.
    durable: bool,
    /// The caller answers for the data: it hears of each write that failed, and does not try again
    /// by itself.
    told: bool,
}

/// How a pass ended.
#[must_use]
struct Ended {
    more: bool,
    /// A write that failed.
    error: Option<Error>,
}

/// The inodes of a pass while their pages are being written.
struct UnderWriteback<'a> {
    fs: &'a Fs,
    inos: Vec<Ino>,
}

impl<'a> UnderWriteback<'a> {
    fn join(fs: &'a Fs, inodes: &[Arc<Inode>], parts: &[Option<Part>]) -> UnderWriteback<'a> {
        let written = inodes.iter().zip(parts).filter(|(_, part)| part.is_some());
        let inos = written.map(|(inode, _)| {
            fs.dirty.join_writeback(inode);
            inode.ino
        });
        UnderWriteback { fs, inos: inos.collect() }
    }
}

impl Drop for UnderWriteback<'_> {
    fn drop(&mut self) {
        self.inos.iter().for_each(|ino| self.fs.dirty.leave_writeback(*ino));
    }
}

/// A durable write under way, until dropped.
struct DurableTurn<'a> {
    under_way: &'a AtomicU32,
}

impl Drop for DurableTurn<'_> {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that wants the inode's data durable, until it has seen it written.
pub(crate) struct Syncing<'a>(&'a Inode);

impl Syncing<'_> {
    pub fn join(inode: &Inode) -> Syncing<'_> {
        inode.syncing.fetch_add(1, Ordering::Relaxed);
        Syncing(inode)
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.0.syncing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Fs {
    /// Writes pages of the inodes in place, in the order given. Pages dirtied meanwhile may stay
    /// dirty. What fails is tried once more, inode by inode; answers the first error of that.
    pub fn writeback(&self, inodes: &[Arc<Inode>], which: Which, class: Class) -> Result<()> {
        // What is written here was promised when it became dirty: it may use what is kept back from new promises.
        let class = if class == Class::Normal { Class::Reclaim } else { class };
        let kind = Kind { which, class, segments_max: PASS_SEGMENTS, durable: false, told: false };
        let mut result = Ok(());
        for chunk in inodes.chunks(PASS_INODES) {
            // Those of one pass are locked together: in the order of locks.
            let mut chunk = chunk.to_vec();
            chunk.sort_by_key(|i| i.ino);
            chunk.dedup_by_key(|i| i.ino);
            let of_chunk = match self.writeback_passes(&chunk, kind, None) {
                Err(e) if self.store.check_alive().is_ok() => self.writeback_singly(&chunk, kind, &e),
                other => other,
            };
            result = result.and(of_chunk);
        }
        result
    }

    /// Once more, after an error. With narrow passes if it was for want of space: a wide one may
    /// ask for more tree nodes than a full image has.
    fn writeback_singly(&self, inodes: &[Arc<Inode>], kind: Kind, after: &Error) -> Result<()> {
        let mut result = Ok(());
        for inode in inodes {
            let of_inode = self.writeback_again(inode, kind, after);
            if of_inode.is_err() {
                self.note_failure(inode);
            }
            result = result.and(of_inode);
        }
        result
    }

    fn writeback_again(&self, inode: &Arc<Inode>, kind: Kind, after: &Error) -> Result<()> {
        let no_space = matches!(after, Error::Engine(kedge_base::Error::NoSpace));
        let kind = Kind { segments_max: if no_space { NARROW_SEGMENTS } else { kind.segments_max }, ..kind };
        self.writeback_passes(std::slice::from_ref(inode), kind, None)
    }

    /// Writes what is dirty of an inode for an fsync. What it makes durable by that needs no flush.
    pub fn writeback_for_fsync(&self, inode: &Arc<Inode>) -> Result<()> {
        self.writeback_told(inode, Kind::told(Which::Dirty, true), None)
    }

    /// Writes what is unclean of a range of file blocks in place.
    pub fn writeback_range(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
        for _ in 0..RANGE_TRIES {
            // With what lies between the recorded size and the range: it cannot be recorded before
            // that.
            let start = range.start.min(inode.meta.lock().logged_size / BLOCK);
            self.writeback_told(inode, Kind::told(Which::All, false), Some(start..range.end))?;
            // A truncate may have moved the recorded size meanwhile, or somebody has written again.
            if inode.pages.lock().unclean(Which::All, range.clone(), 1).is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn writeback_told(&self, inode: &Arc<Inode>, kind: Kind, range: Option<Range<u64>>) -> Result<()> {
        match self.writeback_passes(std::slice::from_ref(inode), kind, range.clone()) {
            Err(Error::Engine(kedge_base::Error::NoSpace)) => {
                let kind = Kind { segments_max: NARROW_SEGMENTS, ..kind };
                self.writeback_passes(std::slice::from_ref(inode), kind, range)
            }
            other => other,
        }
    }

    /// Passes until all is written that was unclean at the start, or in the range. Each goes on
    /// where the last one stopped, up to the last page that was unclean then: so a writer who
    /// dirties pages anew neither holds us, nor do we write his in place of those that we were
    /// asked for. A write that fails does not keep the others from being tried.
    fn writeback_passes(&self, inodes: &[Arc<Inode>], kind: Kind, range: Option<Range<u64>>) -> Result<()> {
        let mut left = range.map(|range| vec![range; inodes.len()]);
        let mut error = None;
        loop {
            let ended = self.writeback_pass(inodes, kind, &mut left)?;
            error = error.or(ended.error);
            if !ended.more || self.store.check_alive().is_err() {
                return error.map_or(Ok(()), Err);
            }
        }
    }

    /// One pass over the pages that are left, of which it takes away what it did. `None`: all.
    fn writeback_pass(
        &self,
        inodes: &[Arc<Inode>],
        kind: Kind,
        left: &mut Option<Vec<Range<u64>>>,
    ) -> Result<Ended> {
        let items = 2 * inodes.len() + kind.segments_max.min(24);
        let mut handle = self.begin(PASS_LOG_BYTES, items as u32, kind.class)?;
        let _wb: Vec<_> = inodes.iter().map(|i| i.wb.lock()).collect();
        // Under `wb`: what another writeback took and failed to write is unclean again.
        let left = left.get_or_insert_with(|| {
            inodes.iter().map(|i| 0..i.pages.lock().unclean_end(kind.which)).collect()
        });
        let (mut parts, segments, planned) = self.plan_pass(inodes, kind, left);
        let more = left.iter().any(|left| !left.is_empty());
        if segments.is_empty() {
            self.unlist_clean(inodes);
            return planned.map(|()| Ended { more: false, error: None });
        }
        let busy = UnderWriteback::join(self, inodes, &parts);
        // Broken on purpose: the record comes first. The pause makes it likely that somebody forces
        // it meanwhile.
        let early = broken::is(Variant::ExtentBeforeData).then(|| {
            for (inode, part) in inodes.iter().zip(&mut parts) {
                if let Some(part) = part {
                    part.size = inode.meta.lock().core.size;
                }
            }
            let completed = self.complete(&mut handle, inodes, &mut parts, false);
            std::thread::sleep(Duration::from_millis(1));
            completed
        });
        let ios = self.gather(inodes, &mut parts, segments);
        let turn = if kind.durable && !more { self.durable_turn(&inodes[0], &ios) } else { None };
        let written = self.write_gathered(&mut parts, ios, turn.is_some());
        let completed =
            early.unwrap_or_else(|| self.complete(&mut handle, inodes, &mut parts, turn.is_some()));
        drop(turn);
        self.settle(inodes, &parts, completed.is_ok());
        drop(busy);
        self.unlist_clean(inodes);
        completed?;
        planned?;
        let failed = parts.iter().flatten().any(|part| !part.kept.is_empty());
        Ok(Ended { more, error: written.err().filter(|_| failed || kind.told) })
    }

    /// Lists the pages of a pass and finds their places. What was planned before an error is
    /// written.
    fn plan_pass(
        &self,
        inodes: &[Arc<Inode>],
        kind: Kind,
        left: &mut [Range<u64>],
    ) -> (Vec<Option<Part>>, Vec<plan::Segment>, Result<()>) {
        let mut parts: Vec<Option<Part>> = Vec::with_capacity(inodes.len());
        let mut plan = Plan::new(kind.segments_max);
        let mut room = PASS_PAGES;
        let mut planned = Ok(());
        for (who, (inode, left)) in inodes.iter().zip(left.iter_mut()).enumerate() {
            if room == 0 || plan.is_full() || planned.is_err() {
                parts.push(None);
                continue;
            }
            let logged_size = inode.meta.lock().logged_size;
            let (pages, left_out) = {
                let cached = inode.pages.lock();
                let pages = cached.unclean(kind.which, left.clone(), room);
                let left_out = cached.first_dirty_beside(logged_size / BLOCK, &pages);
                (pages, left_out)
            };
            if pages.len() < room {
                left.start = left.end; // these are all
            }
            let Some(last) = pages.last() else {
                parts.push(None);
                continue;
            };
            left.start = left.start.max(last + 1);
            room -= pages.len();
            let mut part = Part::new(left_out);
            planned = self.plan(inode, who, &pages, &mut part, &mut plan);
            if part.more {
                left.start = part.ranges.last().map_or(pages[0], |(_, to)| *to);
            }
            parts.push(Some(part));
        }
        (parts, plan.segments, planned)
    }

    /// Whether these writes of an fsync shall be durable ones. `wb` of the inode is held.
    fn durable_turn(&self, inode: &Inode, ios: &[Gathered]) -> Option<DurableTurn<'_>> {
        let alone = inode.syncing.load(Ordering::Relaxed) == 1;
        if !alone || ios.len() > 1 || ios.iter().any(|io| io.buf.blocks() > DURABLE_BLOCKS_MAX) {
            return None;
        }
        // Its answer would wait for that flush anyway.
        if !self.store.data_flushed(inode.meta.lock().progress.write_seq) {
            return None;
        }
        let others = self.durable_writes.fetch_add(1, Ordering::Relaxed);
        let turn = DurableTurn { under_way: &self.durable_writes };
        (others < DURABLE_MAX).then_some(turn)
    }

    /// Takes inodes off the dirty list that have nothing dirty, nothing on its way that may become
    /// dirty again, and no waiting time stamps.
    pub fn unlist_clean(&self, inodes: &[Arc<Inode>]) {
        for inode in inodes {
            let pages = inode.pages.lock();
            let mut meta = inode.meta.lock();
            if meta.listed && pages.is_written() && meta.unlogged.is_empty() {
                meta.listed = false;
                self.dirty.remove(inode.ino);
            }
        }
    }

    fn note_failure(&self, inode: &Inode) {
        let mut meta = inode.meta.lock();
        let wait = RETRY_MIN * (1 << meta.failures.min(RETRY_DOUBLINGS_MAX));
        meta.failures += 1;
        meta.retry_at = self.clock.monotonic() + wait;
    }

    /// The inodes but for those that failed and that the background leaves alone for a while.
    pub fn due(&self, mut inodes: Vec<Arc<Inode>>) -> Vec<Arc<Inode>> {
        let now = self.clock.monotonic();
        inodes.retain(|inode| inode.meta.lock().retry_at <= now);
        inodes
    }

    /// Waits, before any lock, while too much is dirty: a little at first, then the writer helps to
    /// write. What others' data meets there is not the writer's affair, unless nothing of it can be
    /// written and memory would grow without bound.
    pub fn throttle(&self) -> Result<()> {
        if self.budget.over_background() {
            self.wake_flusher();
        }
        if let Some(delay) = self.budget.delay() {
            std::thread::sleep(delay);
        }
        let mut vain = 0;
        for _ in 0..64 {
            if !self.budget.over_hard() {
                return Ok(());
            }
            self.stats.throttled.inc();
            let next = self.dirty.take(PASS_INODES, &*self.live.order());
            if !next.is_empty() {
                if let Err(e) = self.writeback(&next, Which::Dirty, Class::Normal) {
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

    /// A writer at the hard limit could not write back what others have dirtied: it rests, more and
    /// more. If that does not help, and what cannot be written takes half of the memory for dirty
    /// pages, the file system shuts down. To let writers on would be to grow without bound; to hold
    /// them for ever would be a hang without a word; and a refused write would be the answer for
    /// another file's data.
    fn helped_in_vain(&self, times: u32, e: Error) -> Result<()> {
        self.store.check_alive()?;
        std::thread::sleep(VAIN_REST * (1 << times.min(VAIN_MAX)));
        if times < VAIN_MAX || !self.budget.over_hard() {
            return Ok(());
        }
        let stuck: Vec<(Ino, usize)> = self
            .dirty
            .all(&*self.live.order())
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
            self.store.shutdown(&kedge_base::Error::Shutdown(reason.into()));
        }
        Ok(self.store.check_alive()?)
    }
}

impl Kind {
    fn told(which: Which, durable: bool) -> Kind {
        Kind { which, class: Class::Reclaim, segments_max: PASS_SEGMENTS, durable, told: true }
    }
}

impl CheckpointClient for Fs {
    /// Oldest first, so that the tail can move even if the log is too full to complete all at once.
    /// What no place takes stays in the log and holds the tail, and keeps nothing else from being
    /// written: what the store makes of the first error is its own decision.
    fn prepare_checkpoint(&self) -> kedge_base::Result<()> {
        let resident = self.store.resident_inodes();
        let mut result = Ok(());
        for chunk in resident.chunks(PASS_INODES) {
            let inodes: Vec<Arc<Inode>> = chunk.iter().filter_map(|ino| self.inodes.get(*ino)).collect();
            let error = match self.writeback(&inodes, Which::Logged, Class::Checkpoint) {
                Ok(()) => continue,
                Err(Error::Engine(e)) => e,
                Err(e) => kedge_base::Error::invalid(e.to_string()),
            };
            let no_space = matches!(error, kedge_base::Error::NoSpace);
            result = result.and(Err(error));
            if no_space || self.store.check_alive().is_err() {
                break; // nor is there for what is younger
            }
        }
        result
    }
}
