//! The modes of fallocate(2).
//!
//! # Crash argument
//!
//! Zero range first allocates the holes of the range, in records of their own that do not change
//! what reads return: if there is no space, no byte changes. Then it marks the range's written
//! extents as unwritten, in place. The next write goes to the same blocks, and may be there before
//! the record is durable. A crash then shows that write beside older bytes, as after any overwrite.
//!
//! Punch, zero range and growth zero parts of blocks at the edges of their range. All blocks that
//! they need are read, and all space is promised, before the record is committed, and the pages in
//! memory change after it ([`super::truncate::Zeros`]). So an operation that fails leaves the bytes
//! of this step as they are in the records: what readers see is what a crash would leave. Between
//! the record and the change of the pages `io` keeps readers out, and `wb` writeback: a checkpoint
//! that finds the range log-resident waits for `wb` before it writes the page in place.
//!
//! A preallocation releases the promises of exactly those pages whose holes it fills. Every other
//! page that must not run out of space keeps its block: a page over an unwritten extent that
//! another tree uses is written to a new block. If the page is log-resident and there were none,
//! the checkpoint could not write it in place, the log would become full, and recovery would have
//! no block for it.
//!
//! In a file with checksums older bytes beside a newer checksum would be an error. So in such a
//! file zero range forces the log before anything can be written to the blocks.
//!
//! Collapse and insert range move written blocks to other offsets. An overwrite at the new offset
//! goes in place. If it reached the device before the record is durable, a crash would show its
//! bytes at the old offset, to which they were never written. So both operations force the log
//! before anything can be written to the moved blocks. The alternative is to remember, for each
//! inode, the record for which its next write in place must wait. That would save the force, but
//! would have to survive the inode's eviction, and the operations are too rare for that.

use super::Files;
use super::taken::Taken;
use super::truncate::{SETTLE_TRIES, Sizes, StepMax, Zeros, in_steps};
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::cache::pages::{Backing, Which};
use crate::error::{Error, Result};
use crate::extents::{self, ExtentSet, Place, Removed};
use crate::flags;
use crate::sums;
use crate::types::FallocateMode;
use kedge_base::broken::pause::{self, Point};
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_format::item::FILE_SIZE_MAX;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_store::{Charge, Class, DataReservation, ForceCause, Handle, Need, Spent};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most file blocks that one record allocates, or that one query of the map covers.
const STEP_BLOCKS: u64 = 1 << 15;
/// The most extents that collapse and insert range move.
const SHIFT_ITEMS: usize = 2048;
/// The most extents that one record of a preallocation adds.
const NEW_EXTENTS: usize = 128;
/// The need of one record of a preallocation. An extent in a hole may join the extents on both
/// sides.
const PREALLOCATE: Need =
    Need::record(Class::Normal).patches(1).extents(3 * NEW_EXTENTS + 2).runs(NEW_EXTENTS).zeros(1);

/// The need of a record that moves this many extents: each moves from its old key to a new one. The
/// extent before the range may change too, and one extent may be cut at each end of the range.
const fn shift_need(items: usize) -> Need {
    Need::record(Class::Normal).patches(1).extents(2 * (items + 4)).runs(items + 2)
}

/// What one record of a preallocation allocates.
struct Filled {
    /// Ranges of file blocks that were holes.
    ranges: Vec<Range<u64>>,
    /// The file block up to which no hole is left.
    reached: u64,
}

impl Files {
    pub(crate) fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        if self.engine.store().is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        let inode = self.inodes.get_file(ino)?;
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else {
            return Err(if len == 0 { Error::Invalid("fallocate of nothing") } else { Error::FileTooLarge });
        };
        if end > FILE_SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        match mode {
            // A preallocation does not change the contents of an append-only file.
            FallocateMode::Allocate { .. } => flags::check_touch(&inode.meta.lock().core)?,
            _ => flags::check_change(&inode.meta.lock().core)?,
        }
        self.take_out(&inode)?;
        match mode {
            FallocateMode::Allocate { keep_size } => {
                self.or_after_writeback(&inode, || self.preallocate(&inode, offset, end, keep_size))
            }
            FallocateMode::PunchHole => {
                // Broken on purpose: a write for which the punch waits may still let the file grow.
                let end = match broken::is(Variant::StaleEnd) {
                    true => end.min(inode.meta.lock().core.size.next_multiple_of(BLOCK)),
                    false => end,
                };
                self.punch(&inode, offset, end)
            }
            FallocateMode::ZeroRange { keep_size } => {
                // The holes are allocated first: if there is no space, no byte changes.
                self.fill_holes(&inode, offset, end)?;
                self.unwrite(&inode, offset, end, keep_size)
            }
            FallocateMode::CollapseRange => self.shift_range(&inode, offset, len, true),
            FallocateMode::InsertRange => self.shift_range(&inode, offset, len, false),
        }
    }

    /// Removes the whole blocks of the range and zeroes the rest, up to the end of the file's last
    /// block. Each record has a bounded number of extents.
    fn punch(&self, inode: &Arc<Inode>, offset: u64, mut end: u64) -> Result<()> {
        let mut from = offset.div_ceil(BLOCK);
        let mut is_first = true;
        loop {
            let max = self.step_max(inode.ino, from)?;
            let head = is_first.then_some(offset);
            (from, end) = in_steps(Class::Reclaim, max, |max| self.punch_step(inode, head, from, end, max))?;
            is_first = false;
            if from >= end / BLOCK {
                return Ok(());
            }
        }
    }

    /// Makes one record of a punch; the first one zeroes the bytes from `head` on. Returns the file
    /// block that it reached, and the end of the range, cut to the end of the file.
    fn punch_step(
        &self,
        inode: &Arc<Inode>,
        head: Option<u64>,
        from: u64,
        end: u64,
        max: StepMax,
    ) -> Result<(u64, u64)> {
        let within = |size: u64| end.min(size.next_multiple_of(BLOCK));
        let (mut handle, _io, _wb) = self.begin_settled(inode, max.need(Class::Reclaim), within)?;
        // The size is read under the locks: a concurrent write comes before or after the punch as a
        // whole.
        let end = within(inode.meta.lock().core.size);
        if end <= head.unwrap_or(from * BLOCK) {
            return Ok((from, end));
        }
        let to = end / BLOCK;
        let mut record = RecordBuilder::new(RecordOp::Fallocate);
        let (set, upto, loaded) = self.load_step(inode.ino, from, to, max)?;
        let (mut counting, upto) = self.count_removal(inode.ino, &set, (from, upto), max.counts)?;
        let mut zeros = Zeros::default();
        if let Some(head) = head {
            let part = (head, (from * BLOCK).min(end));
            self.zero_range_of_block(inode, &mut record, &mut zeros, part)?;
        }
        if upto >= to && from <= to {
            self.zero_range_of_block(inode, &mut record, &mut zeros, (to * BLOCK, end))?;
        }
        let void = (from * BLOCK, upto * BLOCK);
        let left = max.extents.saturating_sub(loaded);
        sums::remove(self.engine.store(), &mut record, inode.ino, (from, upto), left)?;
        self.remove(
            &mut handle,
            inode,
            record,
            set,
            (from, upto),
            void,
            Sizes::default(),
            counting.as_mut(),
        )?;
        self.settle_zeros(inode, &mut zeros);
        self.forget_pages(inode, from, upto);
        Ok((upto, end))
    }

    /// Returns the extents of whole blocks in `[from, to)` that one step takes, the file block at
    /// which the step ends, and the number of extents.
    fn load_step(&self, ino: Ino, from: u64, to: u64, max: StepMax) -> Result<(ExtentSet, u64, usize)> {
        let mut set = ExtentSet::default();
        let (mut upto, mut loaded) = (to.max(from), 0);
        if from < to {
            loaded = set.load(self.engine.store(), ino, from, to, max.extents)?;
        }
        if loaded >= max.extents {
            upto = set.end().unwrap_or(to).clamp(from + 1, to);
        }
        Ok((set, upto, loaded))
    }

    /// Marks the whole blocks of an allocated range as unwritten and zeroes the rest. Each record
    /// has a bounded number of extents; the last one sets the size. The file keeps all of its
    /// blocks.
    fn unwrite(&self, inode: &Arc<Inode>, offset: u64, end: u64, keep_size: bool) -> Result<()> {
        let mut from = offset.div_ceil(BLOCK);
        let mut is_first = true;
        loop {
            let max = self.step_max(inode.ino, from)?;
            let (upto, finished) = in_steps(Class::Reclaim, max, |max| {
                self.unwrite_step(inode, (offset, end), is_first, from, keep_size, max)
            })?;
            (from, is_first) = (upto, false);
            if finished {
                return Ok(());
            }
        }
    }

    /// Makes one record of [`Files::unwrite`]. Returns the file block that it reached, and whether
    /// it was the last record.
    fn unwrite_step(
        &self,
        inode: &Arc<Inode>,
        (offset, end): (u64, u64),
        is_first: bool,
        from: u64,
        keep_size: bool,
        max: StepMax,
    ) -> Result<(u64, bool)> {
        let to = end / BLOCK;
        let (mut handle, _io, _wb) = self.begin_settled(inode, max.need(Class::Reclaim), |_| end)?;
        let mut record = RecordBuilder::new(RecordOp::Fallocate);
        let (mut set, upto, _) = self.load_step(inode.ino, from, to, max)?;
        let size = inode.meta.lock().core.size;
        // Beyond the file's last block there are only holes and unwritten extents, so nothing to
        // zero.
        let behind = size.next_multiple_of(BLOCK);
        let mut zeros = Zeros::default();
        if is_first {
            let part = (offset, (from * BLOCK).min(end).min(behind));
            self.zero_range_of_block(inode, &mut record, &mut zeros, part)?;
        }
        let finished = upto >= to;
        if finished && from <= to {
            self.zero_range_of_block(inode, &mut record, &mut zeros, (to * BLOCK, end.min(behind)))?;
        }
        let new_size = (finished && !keep_size && end > size).then_some(end);
        if new_size.is_some() {
            // Only up to `offset`: the part of the last block in the range is zeroed already.
            self.zero_range_of_block(inode, &mut record, &mut zeros, (size, behind.min(offset)))?;
        }
        let sizes = Sizes { named: new_size, shrinking: false };
        set.set_unwritten(from, upto);
        self.change(
            &mut handle,
            inode,
            record,
            set,
            &Removed::default(),
            (from * BLOCK, upto * BLOCK),
            sizes,
            None,
        )?;
        self.settle_zeros(inode, &mut zeros);
        self.forget_pages(inode, from, upto);
        if inode.has_sums() && from < upto {
            // `wb` is held, so nothing is written to the blocks before the record is durable.
            self.engine.store().force(self.engine.store().head_lsn(), ForceCause::Fallocate)?;
        }
        Ok((upto, finished))
    }

    /// Allocates the holes of a range.
    fn fill_holes(&self, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<()> {
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        self.or_after_writeback(inode, || match self.is_allocated(inode, first, last)? {
            true => Ok(()),
            false => self.preallocate(inode, offset, end, true),
        })
    }

    /// Runs an allocation for the holes of a file. Dirty pages in holes have promises for blocks:
    /// if no other space is left, these pages are written in place, which allocates their blocks,
    /// and the allocation runs again for the rest.
    fn or_after_writeback(&self, inode: &Arc<Inode>, allocate: impl Fn() -> Result<()>) -> Result<()> {
        match allocate() {
            Err(Error::Engine(kedge_base::Error::NoSpace)) => {
                self.writeback.write(std::slice::from_ref(inode), Which::All, Class::Normal)?;
                allocate()
            }
            other => other,
        }
    }

    /// Whether the file blocks in `[at, last)` have no hole.
    fn is_allocated(&self, inode: &Inode, mut at: u64, last: u64) -> Result<bool> {
        let _io = inode.io.read();
        let _wb = inode.wb.lock();
        // The first hole ends the loop, so the number of the file's extents bounds it.
        while at < last {
            let blocks = (last - at).min(STEP_BLOCKS);
            if extents::map(self.engine.store(), inode, at, blocks)?.iter().any(|m| m.place == Place::Hole) {
                return Ok(false);
            }
            at += blocks;
        }
        Ok(true)
    }

    /// Allocates the holes in `[offset, end)`. Each record has a bounded number of extents.
    fn preallocate(&self, inode: &Arc<Inode>, offset: u64, end: u64, keep_size: bool) -> Result<()> {
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let mut at = first;
        loop {
            // Promises all blocks of the step. If that fails, blocks are allocated without a
            // promise: the range may have most of its blocks already.
            let want = (last - at).min(STEP_BLOCKS);
            let mut promise = self.engine.store().reserve_data(want).ok();
            let names = |size| if keep_size || end <= size { 0 } else { end };
            let (mut handle, _io, _wb) = self.begin_settled(inode, PREALLOCATE, names)?;
            let mut record = RecordBuilder::new(RecordOp::Fallocate);
            let mut set = ExtentSet::default();
            let mut new = Taken { store: self.engine.store(), extents: Vec::new() };
            let filled = self.take_holes(inode, at, at + want, &mut set, &mut promise, &mut new)?;
            let reached = filled.reached;
            pause::at(Point::ExtentsTaken);
            let finished = reached >= last;
            let size = inode.meta.lock().core.size;
            let grows = finished && !keep_size && end > size;
            let mut zeros = Zeros::default();
            if grows {
                let part = (size, size.next_multiple_of(BLOCK).min(end));
                self.zero_range_of_block(inode, &mut record, &mut zeros, part)?;
            }
            set.emit(&mut record, inode.ino);
            for extent in &new.extents {
                record.alloc(*extent);
            }
            let fresh: u64 = new.extents.iter().map(|e| e.blocks).sum();
            let mut charge = self.charge_extents(&mut handle, inode, at..reached, fresh)?;
            let now = self.engine.now();
            let mut changes = lock_metas(&[&**inode]);
            let c = &mut changes[0];
            c.touch(now);
            if fresh > 0 {
                c.set(InodeMask::BLOCKS, |core| core.blocks += fresh);
            }
            if grows {
                c.set(InodeMask::SIZE, |core| core.size = end);
            }
            commit(&mut handle, record, &mut changes)?;
            new.extents.clear(); // the file owns them now
            if let Some(charge) = &mut charge {
                charge.spent(charge.held_blocks(), 0);
            }
            drop(changes);
            self.settle_zeros(inode, &mut zeros);
            self.settle_preallocated(inode, &filled.ranges);
            at = reached;
            if finished {
                return Ok(());
            }
        }
    }

    /// Charges the limit of a file for `fresh` new blocks of a range; for some of them pages are
    /// charged already. The next record of the handle spends both. `None` for a file without a
    /// limit.
    fn charge_extents(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        range: Range<u64>,
        fresh: u64,
    ) -> Result<Option<Charge>> {
        let number = inode.meta.lock().core.limit;
        if number == 0 || fresh == 0 {
            return Ok(None);
        }
        let pages = inode.pages.lock();
        let waiting = pages.charged_in(range);
        if let Some(charge) = pages.charge.as_ref().filter(|_| waiting > 0) {
            handle.spend(Spent { id: charge.id(), blocks: waiting, inodes: 0 });
        }
        drop(pages);
        let want = fresh.saturating_sub(waiting);
        let store = self.engine.store();
        let charge = store.charge_blocks(store.limit_id(inode.ino, number), want);
        if charge.held_blocks() < want {
            return Err(Error::OverLimit);
        }
        handle.spend(charge.all());
        Ok(Some(charge))
    }

    /// Allocates extents for the holes of `[at, to)` until the record is full.
    fn take_holes(
        &self,
        inode: &Inode,
        at: u64,
        to: u64,
        set: &mut ExtentSet,
        promise: &mut Option<DataReservation>,
        new: &mut Taken<'_>,
    ) -> Result<Filled> {
        let mut ranges = Vec::new();
        for m in extents::map(self.engine.store(), inode, at, to - at)? {
            if m.place != Place::Hole {
                continue;
            }
            set.load(self.engine.store(), inode.ino, m.first, m.first + m.blocks, usize::MAX)?;
            let mut done = 0;
            while done < m.blocks {
                if new.extents.len() >= NEW_EXTENTS {
                    return Ok(Filled { ranges, reached: m.first + done });
                }
                let goal = inode
                    .meta
                    .lock()
                    .goal
                    .unwrap_or_else(|| self.engine.store().data_goal(inode.ino, inode.ino));
                let extent = self.engine.store().alloc_data(goal, m.blocks - done, promise.as_mut())?;
                new.extents.push(extent);
                set.insert_new(m.first + done, extent, true, self.engine.store().birth());
                ranges.push(m.first + done..m.first + done + extent.blocks);
                inode.meta.lock().goal = Some(extent.end());
                done += extent.blocks;
            }
        }
        Ok(Filled { ranges, reached: to })
    }

    /// Releases the promises of pages whose holes have just been filled.
    fn settle_preallocated(&self, inode: &Inode, filled: &[Range<u64>]) {
        let mut pages = inode.pages.lock();
        let (mut surplus, mut charged) = (0, Vec::new());
        for range in filled {
            for (index, page) in pages.map.range_mut(range.clone()) {
                if page.backing == Backing::Reserved {
                    surplus += 1;
                    page.backing = Backing::Unwritten;
                    charged.extend(page.is_charged().then_some(*index));
                }
            }
        }
        pages.release(surplus);
        for index in charged {
            pages.end_charge(index, true);
        }
    }

    /// Upper bound on the keys of counts that change if file blocks `[from, to)` are given up,
    /// doubled because others may add some meanwhile. Fails if these are too many for a record.
    fn counts_max(&self, inode: &Inode, from: u64, to: u64) -> Result<usize> {
        let store = self.engine.store();
        if !store.has_clones() {
            return Ok(0);
        }
        let _wb = inode.wb.lock();
        let mut set = ExtentSet::default();
        set.load(store, inode.ino, from, to, SHIFT_ITEMS)?;
        let mut keys = 0;
        let mut counting = self.count();
        for (_, item) in set.parts(from, to).into_iter().filter(|(_, item)| item.counted) {
            let read = counting.changes.load(inode.ino, item.extent(), SHIFT_ITEMS)?;
            keys += 2;
            if read < item.blocks as u64 || counting.changes.edits_max() + keys > SHIFT_ITEMS {
                return Err(Error::FileTooLarge);
            }
        }
        Ok(2 * (counting.changes.edits_max() + keys))
    }

    /// Collapses (removes a range and closes the gap) or inserts (opens a hole), in one record.
    fn shift_range(&self, inode: &Arc<Inode>, offset: u64, len: u64, collapse: bool) -> Result<()> {
        if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return Err(Error::Invalid("collapse and insert range take whole blocks"));
        }
        let (first, count) = (offset / BLOCK, len / BLOCK);
        for _ in 0..SETTLE_TRIES {
            // Dirty or logged data after the offset would have to move with its blocks, so it is
            // written in place first.
            self.writeback.write(std::slice::from_ref(inode), Which::All, Class::Normal)?;
            let behind = extents::count(self.engine.store(), inode.ino, first, SHIFT_ITEMS + 1)?;
            if behind > SHIFT_ITEMS {
                return Err(Error::FileTooLarge);
            }
            let items = behind + 1; // one may extend across `first`
            let sums_behind = sums::count(self.engine.store(), inode.ino, first, SHIFT_ITEMS + 1)?;
            if sums_behind > SHIFT_ITEMS {
                return Err(Error::FileTooLarge);
            }
            // A collapse gives up the blocks of the range, which may have counts.
            let counts = if collapse { self.counts_max(inode, first, first + count)? } else { 0 };
            // Each checksum item is deleted and put again, and one more may be new.
            let need = shift_need(items).sums(if sums_behind > 0 { 2 * sums_behind + 2 } else { 0 });
            let need = if counts > 0 { need.counts(1, counts).runs(counts) } else { need };
            let (mut handle, _io) = self.begin_with_io(inode, need)?;
            let _wb = inode.wb.lock();
            let (mut counting, upto) = match collapse {
                true => {
                    let mut range = ExtentSet::default();
                    range.load(self.engine.store(), inode.ino, first, first + count, items + 1)?;
                    self.count_removal(inode.ino, &range, (first, first + count), counts)?
                }
                false => (None, first + count),
            };
            if upto < first + count {
                continue; // more than the reservation allows
            }
            let mut pages = inode.pages.lock();
            if pages.dirty_count() + pages.logged_count() > 0 {
                continue; // another thread has made pages dirty
            }
            let size = inode.meta.lock().core.size;
            if (collapse && offset + len >= size) || (!collapse && offset >= size) {
                return Err(Error::Invalid("range reaches the end of the file"));
            }
            let new_size = if collapse { size - len } else { size.saturating_add(len) };
            let mut set = ExtentSet::default();
            if set.load(self.engine.store(), inode.ino, first, u64::MAX, usize::MAX)? > items + 1 {
                continue; // more than the reservation allows
            }
            // Blocks that are allocated beyond the end of the file move too.
            let end = set.end().unwrap_or(0).saturating_add(if collapse { 0 } else { count });
            if new_size > FILE_SIZE_MAX || end > FILE_SIZE_MAX.div_ceil(BLOCK) {
                return Err(Error::FileTooLarge);
            }
            let delta = pages.remove_range(first, u64::MAX);
            drop(pages);
            self.writeback.account(delta);
            let removed = if collapse { set.remove(first, first + count) } else { Removed::default() };
            let (from, by) = if collapse { (first + count, -(count as i64)) } else { (first, count as i64) };
            set.shift(from, by);
            let mut record = RecordBuilder::new(RecordOp::Fallocate);
            if !sums::shift(self.engine.store(), &mut record, inode.ino, first, (from, by), sums_behind)? {
                continue; // more than the reservation allows
            }
            set.emit(&mut record, inode.ino);
            if let Some(counting) = &mut counting {
                counting.emit(&mut record, inode.ino, &removed)?;
            }
            for extent in &removed.freed {
                record.free(*extent);
            }
            let blocks = removed.blocks;
            let now = self.engine.now();
            let mut changes = lock_metas(&[&**inode]);
            let c = &mut changes[0];
            c.touch(now);
            c.set(InodeMask::SIZE | InodeMask::BLOCKS, |core| {
                core.size = new_size;
                core.blocks = core.blocks.saturating_sub(blocks);
            });
            commit(&mut handle, record, &mut changes)?;
            drop(changes);
            // `wb` is held, so nothing is written to the moved blocks at their new offsets before
            // the move is durable.
            return Ok(self.engine.store().force(self.engine.store().head_lsn(), ForceCause::Fallocate)?);
        }
        Err(kedge_base::Error::Busy("the file, which is being written without pause,".into()).into())
    }
}

#[cfg(test)]
#[path = "fallocate_tests.rs"]
mod tests;
