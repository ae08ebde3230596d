//! Atomic writes: writes to several ranges of one file become durable together, or not at all.
//!
//! # How
//! The bytes are staged beside the file. A commit puts all of them, the new size and the new time
//! stamps into one record, and forces the log. A crash leaves the whole record or nothing of it, so
//! the old bytes need not be saved elsewhere. The pages become log-resident, like the small data of
//! an fsync, and are written in place later.
//!
//! # Crash argument
//! - Before the record is durable, the blocks of the file keep the old bytes. Staged bytes are in
//!   no page. From the record until the end of the force the commit holds `wb`, so no writeback can
//!   write a page to a block that the file already has. Without that, a checkpoint could overwrite
//!   one page in place, and a crash could then lose the record with the other pages.
//! - Once the record is durable, replay restores every byte until a later record ends its
//!   residency. That record is in the log only after the bytes are in place.
//! - A record sets a size beyond the logged one only when no page is dirty
//!   ([`Files::begin_settled`]): the new size covers no byte that is neither in place nor in the
//!   record.
//! - Bytes that other calls have written to the same pages, and that are in no record, stay dirty.
//!   They are not part of the atomic write.
//!
//! The commit waits for the force even with `volatile`, since the first rule needs it.

use super::Files;
use super::planned::{PagePlan, plan_page};
use super::truncate::Zeros;
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::cache::pages::{Delta, Page, Pages};
use crate::error::{Error, Result};
use crate::extents::{self, Mapping};
use crate::flags;
use kedge_base::broken::{self, Variant};
use kedge_base::lock::MutexGuard;
use kedge_base::trace::{self, Event};
use kedge_base::{BLOCK_SIZE, Ino, Lsn};
use kedge_format::item::FILE_SIZE_MAX;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_store::{Charge, Class, DataReservation, ForceCause, Need};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most pages of one atomic write. Their bytes and edits fit into one log write.
const PAGES_MAX: u64 = 224;
/// The most bytes of all `Data` edits of one atomic write. The rest of a log write is for its
/// headers, and for the record's other edits.
const EDIT_BYTES_MAX: u64 = (kedge_format::logwrite::WRITE_BLOCKS_MAX as u64 - 4) * BLOCK;
/// Log bytes for a page, its edit, and the promises for its resident pieces; rounded up.
const LOG_BYTES_PER_PAGE: u64 = BLOCK + 1024;
/// One atomic write may take one part in this many of the log.
const LOG_SHARE: u64 = 4;

const _: () = {
    assert!(edit_bytes(PAGES_MAX as usize, PAGES_MAX as usize * BLOCK_SIZE) <= EDIT_BYTES_MAX);
    let page = Need::record(Class::Normal).data(1, BLOCK_SIZE).log_bytes;
    assert!(page <= LOG_BYTES_PER_PAGE);
};

/// The length of `edits` `Data` edits with `bytes` bytes in all.
const fn edit_bytes(edits: usize, bytes: usize) -> u64 {
    edits as u64 * kedge_format::record::size::DATA + bytes as u64
}

/// The bounds of an atomic write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicMax {
    pub pages: u64,
    /// Log bytes for the edits, and for the promises of their resident pieces. Whole pages reach
    /// `pages` first; many separate ranges in a page reach this bound first.
    pub log_bytes: u64,
}

impl AtomicMax {
    fn allows(self, edits: usize, bytes: usize) -> bool {
        edit_bytes(edits, bytes) <= EDIT_BYTES_MAX
            && Need::record(Class::Normal).data(edits, bytes).log_bytes <= self.log_bytes
    }
}

/// Staged bytes of a page, as half-open ranges that neither touch nor overlap.
type Ranges = SmallVec<[(u16, u16); 1]>;

struct StagedPage {
    data: Box<[u8; BLOCK_SIZE]>,
    ranges: Ranges,
}

/// The bytes of an atomic write that is not committed yet.
#[derive(Default)]
pub(crate) struct Staged {
    pages: BTreeMap<u64, StagedPage>,
    /// The file offset after the last staged byte.
    end: u64,
}

impl Staged {
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Stages bytes. Fails, and stages nothing, if the bounds of `max` would be exceeded.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], max: AtomicMax) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let end = end.ok_or(Error::FileTooLarge)?;
        let pages = offset / BLOCK..end.div_ceil(BLOCK);
        let room = max.pages.saturating_sub(self.pages.len() as u64);
        let known = self.pages.range(pages.clone()).count() as u64;
        let too_large = Err(Error::AtomicTooLarge(max.pages * BLOCK));
        if pages.end - pages.start - known > room {
            return too_large;
        }
        let part = |index: u64| {
            let (from, to) = (offset.max(index * BLOCK), end.min((index + 1) * BLOCK));
            (from, to, (from - index * BLOCK) as usize, (to - index * BLOCK) as usize)
        };
        // The record must fit into a log write, whatever the ranges are.
        let (mut edits, mut bytes) = (self.edits(), self.bytes());
        for index in pages.clone() {
            let (_, _, lo, hi) = part(index);
            let mut ranges = self.pages.get(&index).map_or_else(Ranges::new, |page| page.ranges.clone());
            (edits, bytes) = (edits - ranges.len(), bytes - length(&ranges));
            add(&mut ranges, lo as u16, hi as u16);
            (edits, bytes) = (edits + ranges.len(), bytes + length(&ranges));
        }
        if !max.allows(edits, bytes) {
            return too_large;
        }
        for index in pages {
            let (from, to, lo, hi) = part(index);
            let page = self
                .pages
                .entry(index)
                .or_insert_with(|| StagedPage { data: Box::new([0; BLOCK_SIZE]), ranges: Ranges::new() });
            page.data[lo..hi].copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            add(&mut page.ranges, lo as u16, hi as u16);
        }
        self.end = self.end.max(end);
        Ok(())
    }

    /// Copies staged bytes over those of a buffer that starts at file offset `offset`.
    pub(crate) fn lay_over(&self, offset: u64, buf: &mut [u8]) {
        let end = offset.saturating_add(buf.len() as u64);
        for (index, page) in self.pages.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            for (lo, hi) in &page.ranges {
                let from = (index * BLOCK + u64::from(*lo)).max(offset);
                let to = (index * BLOCK + u64::from(*hi)).min(end);
                if from < to {
                    let bytes = &page.data[(from - index * BLOCK) as usize..(to - index * BLOCK) as usize];
                    buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(bytes);
                }
            }
        }
    }

    fn edits(&self) -> usize {
        self.pages.values().map(|page| page.ranges.len()).sum()
    }

    fn bytes(&self) -> usize {
        self.pages.values().map(|page| length(&page.ranges)).sum()
    }

    /// The staged pages as runs of successive file blocks.
    pub(crate) fn runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for index in self.pages.keys() {
            match runs.last_mut() {
                Some(run) if run.end == *index => run.end += 1,
                _ => runs.push(*index..index + 1),
            }
        }
        runs
    }

    /// Removes and returns the second half of the pages.
    fn split_half(&mut self) -> Staged {
        let middle = self.pages.keys().nth(self.pages.len() / 2).copied().unwrap_or(u64::MAX);
        let later = self.pages.split_off(&middle);
        Staged { pages: later, end: self.end }
    }
}

impl StagedPage {
    fn is_whole(&self) -> bool {
        self.ranges[..] == [(0, BLOCK_SIZE as u16)]
    }
}

/// Adds a range, and joins it with those that it touches.
fn add(ranges: &mut Ranges, mut lo: u16, mut hi: u16) {
    ranges.retain(|(from, to)| {
        let apart = *to < lo || hi < *from;
        if !apart {
            (lo, hi) = (lo.min(*from), hi.max(*to));
        }
        apart
    });
    let at = ranges.iter().position(|(from, _)| *from > lo).unwrap_or(ranges.len());
    ranges.insert(at, (lo, hi));
}

fn length(ranges: &Ranges) -> usize {
    ranges.iter().map(|(lo, hi)| usize::from(hi - lo)).sum()
}

/// The space promised for the pages of an atomic write, before a lock is taken.
struct Promises {
    blocks: Option<DataReservation>,
    charge: Option<Charge>,
}

impl Files {
    /// The bounds of an atomic write to this image, whose log may be small.
    pub(crate) fn atomic_max(&self) -> AtomicMax {
        let log = self.engine.store().geometry().log_bytes();
        let share = log.min(self.engine.options().log_use_max.unwrap_or(log)) / LOG_SHARE;
        let pages = (share / LOG_BYTES_PER_PAGE).clamp(1, PAGES_MAX);
        AtomicMax { pages, log_bytes: share.max(LOG_BYTES_PER_PAGE) }
    }

    /// Makes the staged bytes part of the file, durably and all together. After an error the file
    /// is unchanged. The exception: if the log could not be written, the file system is shut down,
    /// and recovery finds all of the bytes or none.
    pub(crate) fn commit_atomic(&self, ino: Ino, mut staged: Staged) -> Result<()> {
        self.engine.check_open()?;
        let store = self.engine.store();
        if store.is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        store.check_alive()?;
        let inode = self.inodes.get_file(ino)?;
        if staged.is_empty() {
            return Ok(());
        }
        trace::note(|| Event::Atomic { edits: staged.edits() });
        if broken::is(Variant::AtomicInParts) {
            let later = staged.split_half();
            let first = self.commit_staged(&inode, &staged)?;
            store.force(first, ForceCause::Fsync)?;
            staged = later;
        }
        self.writeback.throttle()?;
        self.commit_staged(&inode, &staged)?;
        self.writeback.unlist_clean(std::slice::from_ref(&inode));
        self.engine.stats().atomic_writes.inc();
        Ok(())
    }

    /// Commits one record with everything staged, and forces the log. Returns the end of the
    /// record.
    fn commit_staged(&self, inode: &Arc<Inode>, staged: &Staged) -> Result<Lsn> {
        let store = self.engine.store();
        // Promised before any lock is taken: finding space may need a checkpoint, which takes inode
        // locks.
        if self.engine.host_is_full(self.writeback.dirty_pages()) {
            return Err(kedge_base::Error::NoSpace.into());
        }
        let most = staged.pages.len() as u64;
        let blocks = match store.reserve_data(most) {
            Ok(blocks) => Some(blocks),
            // Fewer blocks may suffice: pages that already have a block need none.
            Err(kedge_base::Error::NoSpace) => store.reserve_some_data(most),
            Err(e) => return Err(e.into()),
        };
        let need = Need::record(Class::Normal).patches(1).zeros(1).data(staged.edits(), staged.bytes());
        let (mut handle, io, wb) = self.begin_settled(inode, need, |_| staged.end)?;
        let core = {
            let meta = inode.meta.lock();
            flags::check_change(&meta.core)?;
            meta.core
        };
        let mut record = RecordBuilder::new(RecordOp::LogData);
        let mut zeros = Zeros::default();
        if staged.end > core.size {
            let behind = core.size.next_multiple_of(BLOCK).min(staged.end);
            self.zero_range_of_block(inode, &mut record, &mut zeros, (core.size, behind))?;
        }
        let mut held = Vec::new();
        for (index, _) in staged.pages.iter().filter(|(i, page)| !page.is_whole() && *i * BLOCK < core.size) {
            held.push(self.load_page(inode, *index)?);
        }
        let mut map = Vec::new();
        if core.blocks > 0 {
            for run in staged.runs() {
                map.extend(extents::map(store, inode, run.start, run.end - run.start)?);
            }
        }
        let mut pages = inode.pages.lock();
        pages.follow(store.births_below(inode.ino));
        let plans = plan(&pages, staged, &map);
        let promised = plans.iter().filter(|plan| plan.promised).count() as u64;
        if promised > blocks.as_ref().map_or(0, DataReservation::blocks) {
            return Err(kedge_base::Error::NoSpace.into());
        }
        let charged = plans.iter().filter(|plan| plan.charged).count() as u64;
        let charge =
            (core.limit != 0).then(|| store.charge_blocks(store.limit_id(inode.ino, core.limit), charged));
        if charge.as_ref().is_some_and(|charge| charge.held_blocks() < charged) {
            return Err(Error::OverLimit);
        }
        let now = self.engine.now();
        let mut changes = lock_metas(&[&**inode]);
        let c = &mut changes[0];
        for (index, page) in &staged.pages {
            for (lo, hi) in &page.ranges {
                let (lo, hi) = (*lo as usize, *hi as usize);
                record.data(inode.ino, index * BLOCK + lo as u64, &page.data[lo..hi]);
            }
        }
        c.touch(now);
        if staged.end > c.meta.logged_size {
            c.set(InodeMask::SIZE, |core| core.size = core.size.max(staged.end));
        }
        let end = commit(&mut handle, record, &mut changes)?.end;
        drop(changes);
        // The zeros come first: the staged bytes may be in the same block.
        let mut delta = zeros.settle(&mut pages);
        let staged_delta = self.settle_atomic(inode, &mut pages, staged, plans, Promises { blocks, charge });
        delta.pages += staged_delta.pages;
        delta.dirty += staged_delta.dirty;
        drop(pages);
        self.writeback.pages_written(delta);
        drop((held, zeros, io, handle));
        self.force_atomic(inode, end, wb)?;
        Ok(end)
    }

    /// Copies the staged bytes into the pages, which become log-resident. The record is committed.
    fn settle_atomic(
        &self,
        inode: &Inode,
        pages: &mut Pages,
        staged: &Staged,
        plans: Vec<PagePlan>,
        mut promises: Promises,
    ) -> Delta {
        let mut delta = Delta::default();
        for plan in plans {
            let page = &staged.pages[&plan.index];
            if pages.get(plan.index).is_none() {
                delta.pages += pages.insert_clean(plan.index, Page::zeroed()).pages;
                self.writeback.page_added(inode.ino, plan.index);
            }
            // The page at the old end may have got a block with its zeros.
            let has_block = pages.get(plan.index).is_some_and(|page| page.backing.is_reserved());
            delta.dirty += pages.log_over(plan.index, &page.data, &page.ranges, plan.backing).dirty;
            if let (true, Some(blocks)) = (plan.promised && !has_block, &mut promises.blocks) {
                pages.reserve(blocks.split(1));
            }
            if let (true, Some(charge)) = (plan.charged, &mut promises.charge) {
                pages.charge_page(plan.index, charge.split(1));
            }
        }
        delta
    }

    /// Forces the log while `wb` excludes writeback of the inode.
    fn force_atomic(&self, inode: &Arc<Inode>, end: Lsn, wb: MutexGuard<'_, ()>) -> Result<()> {
        if broken::is(Variant::AtomicWrittenEarly) {
            // Broken on purpose: the pages are written in place before the record is durable.
            drop(wb);
            self.writeback.write_range(inode, 0..u64::MAX / BLOCK)?;
            return Ok(self.engine.store().force(end, ForceCause::Fsync)?);
        }
        self.engine.store().force(end, ForceCause::Fsync)?;
        drop(wb);
        Ok(())
    }
}

/// Computes the new state of each staged page.
fn plan(pages: &Pages, staged: &Staged, map: &[Mapping]) -> Vec<PagePlan> {
    staged.pages.keys().map(|index| plan_page(pages, *index, map)).collect()
}

#[cfg(test)]
#[path = "atomic_tests.rs"]
mod tests;
