//! Changing what a file maps: truncate, fallocate in its modes, and the deletion of orphans.
//!
//! # Crash argument
//! A truncate that removes more extents than one record takes sets the size and an orphan item in its first record;
//! the rest follows in further records, the last of which removes the orphan item. Recovery finishes what it finds.
//! One key holds what an inode is an orphan for: it has no name, or its truncate is not finished. The
//! first covers the second, for the inode goes as a whole. So names and truncates meet there. `unlink`
//! of the last name puts the first over the second. `link` of a nameless inode puts the second in
//! place of the first if a truncate still has something to remove: else a crash would leave bytes
//! that were cut off, and they would show once the file grew. Each of them looks at the link count and
//! at `shrinking`, and changes them, under the meta lock that its record is committed with.
//!
//! A deletion works through the same steps under the orphan item that the unlink left. Log-resident bytes of what goes
//! are voided in the same record, so replay does not bring them back. Cut blocks (punch, growth behind a cut end) get
//! `Zero` edits: their zeros are as durable as the record.
//!
//! Zero range allocates the holes first, in records of their own that nobody sees: without the space, no byte changes. Then it
//! turns blocks that hold data into unwritten ones where they lie. A write that comes next goes to the same place and may be there
//! before the record is: a crash then shows it beside older bytes, as after any overwrite.
//!
//! Collapse and insert range move blocks that hold data to other offsets. An overwrite at the new offset goes in place; were
//! it on the device before the record is durable, a crash would show it at the old offset, where no byte of it was ever
//! written. So the two force the log before anything can be written to what they moved. To remember per inode which
//! record its next write in place has to wait for would save the force, and would have to survive the inode's eviction;
//! the operations are too rare for that.

use crate::attr::PATCH_BYTES;
use crate::core::Fs;
use crate::extents::{ExtentSet, Place};
use crate::inode::Inode;
use crate::pages::{Backing, Which};
use crate::{Error, FallocateMode, Result};
use kedge_base::broken::pause::{self, Point};
use kedge_base::lock::{MutexGuard, WriteGuard};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_format::item::{ExtentItem, FILE_SIZE_MAX, Orphan};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{ItemKind, Key};
use kedge_store::{Class, DataReservation, ForceCause, Handle, PROMISE_PER_PIECE};
use std::ops::ControlFlow;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most that one record of a removal takes away.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StepMax {
    extents: usize,
    /// A few of the largest fill a leaf.
    xattrs: usize,
}

const WIDE: StepMax = StepMax { extents: 512, xattrs: 8 };
/// For files with few extents, and for images so full that a wide step finds no tree nodes: what frees space must never need
/// more of them than are kept for it.
const NARROW: StepMax = StepMax { extents: 32, xattrs: 2 };

impl StepMax {
    /// Log bytes of such a record: an item's edit and a block's edit each, the patch, voids and zeros.
    const fn log_bytes(self) -> u64 {
        (self.extents + self.xattrs) as u64 * 96 + PATCH_BYTES + 4 * PROMISE_PER_PIECE as u64 + 512
    }
}

/// What a removal says of the file's size.
#[derive(Clone, Copy, Default)]
struct Sizes {
    /// The new one, if there is one.
    named: Option<u64>,
    /// Whether a truncate still has extents to remove when this record is there.
    shrinking: bool,
}

/// Extents taken for a file until a record names them: whatever fails before, they go back.
struct Taken<'a> {
    fs: &'a Fs,
    extents: Vec<kedge_base::Extent>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // A record that failed half applied has shut the store down: some may be owned, and none is
        // taken again.
        if self.fs.store.check_alive().is_err() {
            return;
        }
        for extent in self.extents.drain(..) {
            self.fs.store.release_data(extent);
        }
    }
}

/// File blocks that one record allocates, or one look at the map covers.
const STEP_BLOCKS: u64 = 1 << 15;
/// How often an operation makes room for itself beside a writer that keeps dirtying the file.
const SETTLE_TRIES: u32 = 1000;
/// Extents that collapse and insert range move in one record.
const SHIFT_ITEMS: usize = 2048;

impl Fs {
    pub fn truncate(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        if size > FILE_SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        let shrinks = size < inode.meta.lock().core.size;
        let class = if shrinks { Class::Reclaim } else { Class::Normal };
        let max = self.step_max(inode.ino, size.div_ceil(BLOCK))?;
        let (mut handle, max, io, wb) =
            self.begin_settled(inode, class, max, |live| if size == live { 0 } else { size })?;
        let old = inode.meta.lock().core.size;
        let mut record = RecordBuilder::new(RecordOp::Truncate);
        if size > old {
            self.zero_range_of_block(inode, &mut record, old, old.next_multiple_of(BLOCK).min(size))?;
        }
        let first = size.div_ceil(BLOCK);
        let mut set = ExtentSet::default();
        let more = set.load(self, inode.ino, first, u64::MAX, max.extents)? >= max.extents;
        let upto = set.end().unwrap_or(first).max(first);
        let sizes = Sizes { named: (size != old).then_some(size), shrinking: more };
        self.remove(&mut handle, inode, record, set, (first, upto), (size, u64::MAX), sizes)?;
        if size <= old {
            self.forget_behind(inode, size);
        }
        drop((wb, io, handle));
        if more { self.finish_truncate(inode) } else { Ok(()) }
    }

    /// A step that is enough for the extents from `first` on, or a wide one. What it is enough for may change until the
    /// inode is locked: it bounds the step all the same.
    fn step_max(&self, ino: Ino, first: u64) -> Result<StepMax> {
        let few = self.extents(ino, first, u64::MAX, NARROW.extents)?.len() < NARROW.extents;
        Ok(if few { NARROW } else { WIDE })
    }

    /// Reserves for a record that removes or adds up to so many extents, or fewer: the answer says how many.
    fn begin_step(&self, class: Class, max: StepMax) -> Result<(Handle<'_>, StepMax)> {
        let begin = |max: StepMax| {
            let handle =
                self.begin_many(max.log_bytes(), 4 + max.xattrs as u32, max.extents as u32, class)?;
            Ok((handle, max))
        };
        match begin(max) {
            Err(Error::Engine(kedge_base::Error::NoSpace)) if class != Class::Normal && max != NARROW => {
                begin(NARROW)
            }
            other => other,
        }
    }

    /// Reserves and locks for an operation whose record makes the file at least `names(size)` bytes long for recovery, or
    /// takes dirty pages below that offset away. Bytes that were written behind the logged size and are still dirty go in
    /// place first: their record is what grows the logged size, and with it the zeros behind the old end. A record that
    /// grew it without them would show after a crash what an earlier truncate cut off.
    #[allow(clippy::type_complexity)]
    fn begin_settled<'a>(
        &'a self,
        inode: &'a Arc<Inode>,
        class: Class,
        max: StepMax,
        names: impl Fn(u64) -> u64,
    ) -> Result<(Handle<'a>, StepMax, WriteGuard<'a, ()>, MutexGuard<'a, ()>)> {
        for _ in 0..SETTLE_TRIES {
            let (handle, max) = self.begin_step(class, max)?;
            let io = self.lock_io(inode)?;
            let wb = inode.wb.lock();
            let dirty = inode.pages.lock().dirty_count() > 0;
            let (size, logged) = {
                let meta = inode.meta.lock();
                (meta.core.size, meta.logged_size)
            };
            if !dirty || size <= logged || names(size) <= logged {
                return Ok((handle, max, io, wb));
            }
            drop((wb, io, handle));
            self.writeback(std::slice::from_ref(inode), Which::Dirty, class)?;
        }
        Err(kedge_base::Error::Busy("the file, which is being written without pause,".into()).into())
    }

    /// Takes the io lock exclusively once no truncate is half done: extents that it still has to remove must not be
    /// mistaken for new ones. A deletion needs the lock too: while it is held the inode does not
    /// die.
    pub fn lock_io<'a>(&self, inode: &'a Arc<Inode>) -> Result<WriteGuard<'a, ()>> {
        loop {
            let io = inode.io.write();
            let (dead, shrinking) = {
                let meta = inode.meta.lock();
                (meta.dead, meta.shrinking)
            };
            if dead {
                return Err(Error::NotFound);
            }
            if !shrinking {
                return Ok(io);
            }
            drop(io);
            self.finish_truncate(inode)?;
        }
    }

    /// Pages of blocks that a record took away. Not before it is there: if it fails, dirty bytes
    /// are still the file's, and logged ones still have to be written to where the log may let go
    /// of them. The caller holds `io` and `wb`, so nobody looks at the pages in between.
    fn forget_pages(&self, inode: &Inode, from: u64, to: u64) {
        let delta = inode.pages.lock().remove_range(from, to);
        self.account(delta);
    }

    /// Pages behind the new end go; the rest of the cut page becomes zero.
    fn forget_behind(&self, inode: &Inode, size: u64) {
        let mut pages = inode.pages.lock();
        let delta = pages.remove_range(size.div_ceil(BLOCK), u64::MAX);
        if !size.is_multiple_of(BLOCK)
            && let Some(page) = pages.map.get_mut(&(size / BLOCK))
        {
            page.data[(size % BLOCK) as usize..].fill(0);
        }
        drop(pages);
        self.account(delta);
    }

    /// Zeroes bytes `[from, to)` of one block in memory, and with a `Zero` edit wherever their newest durable copy may
    /// be: in place or in the log. The caller holds `io` exclusively and `wb`.
    fn zero_range_of_block(
        &self,
        inode: &Arc<Inode>,
        record: &mut RecordBuilder,
        from: u64,
        to: u64,
    ) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let index = from / BLOCK;
        let _held = self.load_page(inode, index)?;
        let mut pages = inode.pages.lock();
        let page = pages.map.get_mut(&index).expect("just loaded");
        page.data[(from - index * BLOCK) as usize..(to - index * BLOCK) as usize].fill(0);
        if page.backing != Backing::Written && !page.logged {
            return Ok(()); // nothing durable behind it
        }
        record.zero(inode.ino, from, to - from);
        let dirty = page.dirty;
        let mut delta = pages.set_logged(index);
        if dirty.is_some() {
            // Other bytes of the page are still in no record.
            delta.dirty += pages.mark_dirty(index, dirty).dirty;
        }
        drop(pages);
        self.account(delta);
        Ok(())
    }

    /// One record: removes the extents of `set` in file blocks `range`, voids log-resident bytes in `void`, sets the
    /// size if asked. The caller holds `io` and `wb`.
    #[allow(clippy::too_many_arguments)]
    fn remove(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        record: RecordBuilder,
        mut set: ExtentSet,
        range: (u64, u64),
        void: (u64, u64),
        sizes: Sizes,
    ) -> Result<()> {
        let freed = set.remove(range.0, range.1);
        self.change(handle, inode, record, set, &freed, void, sizes)
    }

    /// The record of [`Fs::remove`] and [`Fs::unwrite`]: names the changed extents and what became free of them.
    #[allow(clippy::too_many_arguments)]
    fn change(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        mut record: RecordBuilder,
        set: ExtentSet,
        freed: &[kedge_base::Extent],
        void: (u64, u64),
        sizes: Sizes,
    ) -> Result<()> {
        let ino = inode.ino;
        set.emit(&mut record, ino);
        for extent in freed {
            record.free(*extent);
        }
        let blocks: u64 = freed.iter().map(|e| e.blocks).sum();
        if void.0 < void.1 && self.store.is_resident(ino, void.0, void.1 - void.0) {
            record.drop_data(ino, void.0, void.1 - void.0);
        }
        let now = self.now();
        pause::at(Point::Removal);
        let mut changes = self.lock_metas(&[inode]);
        let c = &mut changes[0];
        if c.meta.dead {
            return Err(Error::NotFound);
        }
        c.touch(now);
        if let Some(size) = sizes.named {
            c.set(InodeMask::SIZE, |core| core.size = size);
        }
        // A nameless inode has an orphan item that covers the truncate.
        match (c.core.nlink > 0, c.meta.shrinking, sizes.shrinking) {
            (true, false, true) => record.put(Key::orphan(ino), &Orphan::Truncate.encode()),
            (true, true, false) => record.delete(Key::orphan(ino)),
            _ => {}
        }
        if blocks > 0 {
            c.set(InodeMask::BLOCKS, |core| core.blocks = core.blocks.saturating_sub(blocks));
        }
        self.commit(handle, record, &mut changes)?;
        changes[0].meta.shrinking = sizes.shrinking;
        Ok(())
    }

    /// The further steps of a long truncate, here or after a crash. Any thread may help.
    pub fn finish_truncate(&self, inode: &Arc<Inode>) -> Result<()> {
        loop {
            pause::at(Point::TruncateStep);
            let behind = inode.meta.lock().core.size.div_ceil(BLOCK);
            let (mut handle, max) = self.begin_step(Class::Reclaim, self.step_max(inode.ino, behind)?)?;
            let _io = inode.io.write();
            let _wb = inode.wb.lock();
            let first = {
                let meta = inode.meta.lock();
                if !meta.shrinking {
                    return Ok(());
                }
                meta.core.size.div_ceil(BLOCK)
            };
            let mut set = ExtentSet::default();
            let more = set.load(self, inode.ino, first, u64::MAX, max.extents)? >= max.extents;
            let record = RecordBuilder::new(RecordOp::Reclaim);
            let upto = set.end().unwrap_or(first).max(first);
            let sizes = Sizes { named: None, shrinking: more };
            self.remove(&mut handle, inode, record, set, (first, upto), (0, 0), sizes)?;
        }
    }

    pub fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        if self.store.is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        let inode = self.get_file(ino)?;
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else {
            return Err(if len == 0 { Error::Invalid("fallocate of nothing") } else { Error::FileTooLarge });
        };
        if end > FILE_SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        match mode {
            FallocateMode::Allocate { keep_size } => self.preallocate(&inode, offset, end, keep_size),
            FallocateMode::PunchHole => {
                let end = end.min(inode.meta.lock().core.size.next_multiple_of(BLOCK).max(offset));
                self.punch(&inode, offset, end.max(offset))
            }
            FallocateMode::ZeroRange { keep_size } => {
                // The space first: where it is missing, no byte changes.
                self.fill_holes(&inode, offset, end)?;
                self.unwrite(&inode, offset, end, keep_size)
            }
            FallocateMode::CollapseRange => self.shift_range(&inode, offset, len, true),
            FallocateMode::InsertRange => self.shift_range(&inode, offset, len, false),
        }
    }

    /// Removes whole blocks and zeroes the rest, a bounded number of extents a record.
    fn punch(&self, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<()> {
        if offset >= end {
            return Ok(());
        }
        let (mut from, to) = (offset.div_ceil(BLOCK), end / BLOCK);
        let mut cut_head = true;
        loop {
            let max = self.step_max(inode.ino, from)?;
            let (mut handle, max, _io, _wb) = self.begin_settled(inode, Class::Reclaim, max, |_| end)?;
            let mut record = RecordBuilder::new(RecordOp::Fallocate);
            let (set, upto) = self.load_step(inode.ino, from, to, max)?;
            if std::mem::take(&mut cut_head) {
                self.zero_range_of_block(inode, &mut record, offset, (from * BLOCK).min(end))?;
            }
            if upto >= to && from <= to {
                self.zero_range_of_block(inode, &mut record, to * BLOCK, end)?;
            }
            let void = (from * BLOCK, upto * BLOCK);
            self.remove(&mut handle, inode, record, set, (from, upto), void, Sizes::default())?;
            self.forget_pages(inode, from, upto);
            from = upto;
            if from >= to {
                return Ok(());
            }
        }
    }

    /// The extents of whole blocks from `from` on that one step takes, and how far towards `to` it comes.
    fn load_step(&self, ino: Ino, from: u64, to: u64, max: StepMax) -> Result<(ExtentSet, u64)> {
        let mut set = ExtentSet::default();
        let mut upto = to.max(from);
        if from < to && set.load(self, ino, from, to, max.extents)? >= max.extents {
            upto = set.end().unwrap_or(to).clamp(from + 1, to);
        }
        Ok((set, upto))
    }

    /// Turns whole blocks of an allocated range into unwritten ones and zeroes the rest, a bounded number of extents a
    /// record; the last one names the size. Blocks stay where they are: what reads as zero now was the file's all along.
    fn unwrite(&self, inode: &Arc<Inode>, offset: u64, end: u64, keep_size: bool) -> Result<()> {
        let (mut from, to) = (offset.div_ceil(BLOCK), end / BLOCK);
        let mut cut_head = true;
        loop {
            let max = self.step_max(inode.ino, from)?;
            let (mut handle, max, _io, _wb) = self.begin_settled(inode, Class::Reclaim, max, |_| end)?;
            let mut record = RecordBuilder::new(RecordOp::Fallocate);
            let (mut set, upto) = self.load_step(inode.ino, from, to, max)?;
            let size = inode.meta.lock().core.size;
            // Behind the last block there is nothing but holes and unwritten blocks.
            let behind = size.next_multiple_of(BLOCK);
            if std::mem::take(&mut cut_head) {
                self.zero_range_of_block(inode, &mut record, offset, (from * BLOCK).min(end).min(behind))?;
            }
            let finished = upto >= to;
            if finished && from <= to {
                self.zero_range_of_block(inode, &mut record, to * BLOCK, end.min(behind))?;
            }
            let new_size = (finished && !keep_size && end > size).then_some(end);
            if new_size.is_some() {
                // What of the last block lies in the range is seen to already.
                self.zero_range_of_block(inode, &mut record, size, behind.min(offset))?;
            }
            let sizes = Sizes { named: new_size, shrinking: false };
            set.set_unwritten(from, upto);
            self.change(&mut handle, inode, record, set, &[], (from * BLOCK, upto * BLOCK), sizes)?;
            self.forget_pages(inode, from, upto);
            from = upto;
            if finished {
                return Ok(());
            }
        }
    }

    /// Allocates the holes of a range, if there are any. Dirty pages hold promises for blocks of their own: where nothing else
    /// is left, they are written in place, and have those blocks then.
    fn fill_holes(&self, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<()> {
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        if self.is_allocated(inode, first, last)? {
            return Ok(());
        }
        match self.preallocate(inode, offset, end, true) {
            Err(Error::Engine(kedge_base::Error::NoSpace)) => {
                self.writeback(std::slice::from_ref(inode), Which::All, Class::Normal)?;
                if self.is_allocated(inode, first, last)? {
                    return Ok(());
                }
                self.preallocate(inode, offset, end, true)
            }
            other => other,
        }
    }

    /// Whether no file block of `[at, last)` is a hole.
    fn is_allocated(&self, inode: &Inode, mut at: u64, last: u64) -> Result<bool> {
        let _io = inode.io.read();
        let _wb = inode.wb.lock();
        // The first hole ends it, so this is bounded by what the file has.
        while at < last {
            let blocks = (last - at).min(STEP_BLOCKS);
            if self.map(inode.ino, at, blocks)?.iter().any(|m| m.place == Place::Hole) {
                return Ok(false);
            }
            at += blocks;
        }
        Ok(true)
    }

    /// Allocates what is a hole in `[offset, end)`, a bounded number of extents a record.
    fn preallocate(&self, inode: &Arc<Inode>, offset: u64, end: u64, keep_size: bool) -> Result<()> {
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let mut at = first;
        loop {
            // Refused before anything is taken, unless blocks of the range are allocated already.
            let want = (last - at).min(STEP_BLOCKS);
            let mut promise = self.store.reserve_data(want).ok();
            let names = |size| if keep_size || end <= size { 0 } else { end };
            let (mut handle, _, _io, _wb) = self.begin_settled(inode, Class::Normal, WIDE, names)?;
            let mut record = RecordBuilder::new(RecordOp::Fallocate);
            let mut set = ExtentSet::default();
            let mut new = Taken { fs: self, extents: Vec::new() };
            let reached = self.take_holes(inode, at, at + want, &mut set, &mut promise, &mut new)?;
            pause::at(Point::ExtentsTaken);
            let finished = reached >= last;
            let size = inode.meta.lock().core.size;
            let grows = finished && !keep_size && end > size;
            if grows {
                self.zero_range_of_block(inode, &mut record, size, size.next_multiple_of(BLOCK).min(end))?;
            }
            set.emit(&mut record, inode.ino);
            for extent in &new.extents {
                record.alloc(*extent);
            }
            let fresh: u64 = new.extents.iter().map(|e| e.blocks).sum();
            let now = self.now();
            let mut changes = self.lock_metas(&[&**inode]);
            let c = &mut changes[0];
            c.touch(now);
            if fresh > 0 {
                c.set(InodeMask::BLOCKS, |core| core.blocks += fresh);
            }
            if grows {
                c.set(InodeMask::SIZE, |core| core.size = end);
            }
            self.commit(&mut handle, record, &mut changes)?;
            new.extents.clear(); // the file's now
            drop(changes);
            self.settle_preallocated(inode, at, reached);
            at = reached;
            if finished {
                return Ok(());
            }
        }
    }

    /// Takes extents for the holes of `[at, to)` until a record is full. Returns how far it came.
    fn take_holes(
        &self,
        inode: &Inode,
        at: u64,
        to: u64,
        set: &mut ExtentSet,
        promise: &mut Option<DataReservation>,
        new: &mut Taken<'_>,
    ) -> Result<u64> {
        for m in self.map(inode.ino, at, to - at)? {
            if m.place != Place::Hole {
                continue;
            }
            set.load(self, inode.ino, m.first, m.first + m.blocks, usize::MAX)?;
            let mut done = 0;
            while done < m.blocks {
                if new.extents.len() >= WIDE.extents / 4 {
                    return Ok(m.first + done);
                }
                let goal =
                    inode.meta.lock().goal.unwrap_or_else(|| self.store.data_goal(inode.ino, inode.ino));
                let extent = self.store.alloc_data(goal, m.blocks - done, promise.as_mut())?;
                new.extents.push(extent);
                set.insert(m.first + done, extent, true);
                inode.meta.lock().goal = Some(extent.end());
                done += extent.blocks;
            }
        }
        Ok(to)
    }

    /// Pages that waited for allocation have a block now and need their promise no more.
    fn settle_preallocated(&self, inode: &Inode, from: u64, to: u64) {
        let mut pages = inode.pages.lock();
        let mut surplus = 0;
        for (_, page) in pages.map.range_mut(from..to) {
            if page.backing == Backing::Reserved {
                surplus += 1;
                page.backing = Backing::Unwritten;
            }
        }
        pages.release(surplus);
    }

    /// Collapse (remove a range and close up) and insert (open a hole). One record: all or nothing.
    fn shift_range(&self, inode: &Arc<Inode>, offset: u64, len: u64, collapse: bool) -> Result<()> {
        if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return Err(Error::Invalid("collapse and insert range take whole blocks"));
        }
        let (first, count) = (offset / BLOCK, len / BLOCK);
        for _ in 0..SETTLE_TRIES {
            // What is dirty or logged behind the offset would move with its blocks: put it in place first.
            self.writeback(std::slice::from_ref(inode), Which::All, Class::Normal)?;
            let items = self.extents(inode.ino, first, u64::MAX, SHIFT_ITEMS + 1)?.len();
            if items > SHIFT_ITEMS {
                return Err(Error::FileTooLarge);
            }
            let bytes = (items as u64 + 4) * 160 + WIDE.log_bytes();
            let mut handle = self.begin_many(bytes, 8, 2 * items as u32, Class::Normal)?;
            let _io = self.lock_io(inode)?;
            let _wb = inode.wb.lock();
            let mut pages = inode.pages.lock();
            if pages.dirty_count() + pages.logged_count() > 0 {
                continue; // dirtied again meanwhile
            }
            let size = inode.meta.lock().core.size;
            if (collapse && offset + len >= size) || (!collapse && offset >= size) {
                return Err(Error::Invalid("range reaches the end of the file"));
            }
            let new_size = if collapse { size - len } else { size.saturating_add(len) };
            if new_size > FILE_SIZE_MAX {
                return Err(Error::FileTooLarge);
            }
            let delta = pages.remove_range(first, u64::MAX);
            drop(pages);
            self.account(delta);
            let mut set = ExtentSet::default();
            if set.load(self, inode.ino, first, u64::MAX, usize::MAX)? > SHIFT_ITEMS {
                continue;
            }
            let freed = if collapse { set.remove(first, first + count) } else { Vec::new() };
            let (from, by) = if collapse { (first + count, -(count as i64)) } else { (first, count as i64) };
            set.shift(from, by);
            let mut record = RecordBuilder::new(RecordOp::Fallocate);
            set.emit(&mut record, inode.ino);
            for extent in &freed {
                record.free(*extent);
            }
            let blocks: u64 = freed.iter().map(|e| e.blocks).sum();
            let now = self.now();
            let mut changes = self.lock_metas(&[&**inode]);
            let c = &mut changes[0];
            c.touch(now);
            c.set(InodeMask::SIZE | InodeMask::BLOCKS, |core| {
                core.size = new_size;
                core.blocks = core.blocks.saturating_sub(blocks);
            });
            self.commit(&mut handle, record, &mut changes)?;
            drop(changes);
            // With `wb` held: nothing is written to the moved blocks at their new offsets before they are there for good.
            return Ok(self.store.force(self.store.head_lsn(), ForceCause::Fallocate)?);
        }
        Err(kedge_base::Error::Busy("the file, which is being written without pause,".into()).into())
    }

    // ----- deletion -----

    /// An inode lost its last name: it goes now, or with its last pin.
    pub fn orphaned(&self, ino: Ino) {
        // Listed before the look at the pins: whoever gives the last one back meanwhile finds it.
        self.orphans.lock().insert(ino, false);
        if self.inodes.is_pinned(ino) {
            return;
        }
        if let Err(e) = self.delete_orphan(ino)
            && self.store.check_alive().is_ok()
        {
            // It stays an orphan: the next mount deletes it.
            tracing::warn!("deletion of inode {ino}: {e}");
        }
    }

    /// Deletes a nameless inode that nobody pins, in bounded steps.
    pub fn delete_orphan(&self, ino: Ino) -> Result<()> {
        loop {
            let (mut handle, max) = self.begin_step(Class::Reclaim, self.step_max(ino, 0)?)?;
            let inode = match self.get(ino) {
                Err(Error::NotFound) => {
                    self.orphans.lock().remove(&ino);
                    return Ok(());
                }
                other => other?,
            };
            let _io = inode.io.write();
            let _wb = inode.wb.lock();
            let meta = inode.meta.lock();
            if meta.core.nlink > 0 || meta.dead {
                // Another thread was faster, or gave an O_TMPFILE a name. Under the meta lock:
                // whoever takes the last name comes later and lists it anew.
                self.orphans.lock().remove(&ino);
                return Ok(());
            }
            if self.inodes.is_pinned(ino) {
                return Ok(());
            }
            drop(meta);
            let gone = self.delete_step(&mut handle, &inode, max)?;
            self.forget_pages(&inode, 0, u64::MAX);
            if gone {
                return Ok(());
            }
        }
    }

    /// Returns true when the inode is gone.
    fn delete_step(&self, handle: &mut Handle<'_>, inode: &Inode, max: StepMax) -> Result<bool> {
        let ino = inode.ino;
        let mut record = RecordBuilder::new(RecordOp::Reclaim);
        let extents = self.extents(ino, 0, u64::MAX, max.extents)?;
        let mut blocks = 0;
        for (at, item) in &extents {
            record.delete(Key::new(ino, ItemKind::Extent, *at));
            record.free(ExtentItem::extent(item));
            blocks += item.blocks as u64;
        }
        let mut finished = extents.len() < max.extents;
        let mut others = 0;
        for kind in [ItemKind::Xattr, ItemKind::Symlink] {
            let key = |offset| Key::new(ino, kind, offset);
            // A symlink's target goes last, with its inode: until then the two agree.
            if !finished {
                break;
            }
            self.store.scan(key(0), key(u64::MAX), &mut |at, _| {
                if others >= max.xattrs {
                    finished = false;
                    return ControlFlow::Break(());
                }
                record.delete(at);
                others += 1;
                ControlFlow::Continue(())
            })?;
        }
        let mut changes = self.lock_metas(&[inode]);
        let c = &mut changes[0];
        if self.store.is_resident(ino, 0, u64::MAX) {
            record.drop_data(ino, 0, u64::MAX);
        }
        if !finished {
            if blocks > 0 {
                c.set(InodeMask::BLOCKS, |core| core.blocks = core.blocks.saturating_sub(blocks));
            }
            self.commit(handle, record, &mut changes)?;
            return Ok(false);
        }
        record.delete(Key::inode(ino));
        record.delete(Key::orphan(ino));
        handle.commit(record)?;
        c.meta.dead = true;
        if c.meta.listed {
            c.meta.listed = false;
            self.dirty.remove(ino);
        }
        drop(changes);
        self.inodes.remove(ino);
        self.orphans.lock().remove(&ino);
        Ok(true)
    }

    /// At mount: finishes what the orphan items name.
    pub fn recover_orphans(&self) -> Result<u64> {
        let mut found = Vec::new();
        let from = Key::orphan(Ino(0));
        self.store.scan(from, Key::orphan(Ino(u64::MAX)), &mut |key, value| {
            found.push((Ino(key.offset), Orphan::decode(value)));
            ControlFlow::Continue(())
        })?;
        let count = found.len() as u64;
        for (ino, orphan) in found {
            match orphan? {
                Orphan::Unlinked => self.delete_orphan(ino)?,
                Orphan::Truncate => {
                    let inode = self.get(ino)?;
                    let mut meta = inode.meta.lock();
                    meta.shrinking = true;
                    drop(meta);
                    self.finish_truncate(&inode)?;
                }
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
#[path = "space_tests.rs"]
mod tests;
