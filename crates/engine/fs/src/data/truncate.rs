//! Truncate, and the steps that it shares with punch, zero range and deletion.
//!
//! # Crash argument
//! If a truncate removes more extents than one record can, its first record sets the size and puts
//! an orphan item. Further records remove the rest, and the last one deletes the orphan item.
//! Recovery finishes the work of each orphan item, or if that fails leaves it to the next change of
//! the file (`recover_orphans_of`). The item's value gives one of two reasons: the inode has no
//! name, or its truncate is not finished. The first reason includes the second, since the whole
//! inode is deleted. Both use the same key. So `unlink` of the last name replaces the second reason
//! by the first. `link` of a nameless inode replaces the first by the second if a truncate still
//! has extents to remove; otherwise a crash would leave bytes that were cut off, and they would
//! show once the file grew. Each operation checks and changes the link count and `shrinking` under
//! the meta lock with which its record is committed.
//!
//! A deletion runs the same steps, under the orphan item that the unlink left. A step's record also
//! ends the log residency of the removed bytes, so replay does not restore them. In cut blocks (by
//! punch, or by growth beyond a cut end) bytes get `Zero` edits: their zeros are as durable as the
//! record.

use super::Files;
use super::counting::Counting;
use super::planned::plan_page;
use super::read::HeldPage;
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::cache::pages::{Backing, Delta, Page, Pages, Which};
use crate::error::{Error, Result};
use crate::extents::{self, ExtentSet, Removed};
use crate::flags;
use crate::inline;
use crate::sums;
use kedge_base::broken::pause::{self, Point};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{MutexGuard, WriteGuard};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_format::Key;
use kedge_format::item::{FILE_SIZE_MAX, Orphan};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_store::{Class, DataReservation, Handle, Need};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most attempts of an operation while another thread keeps making the file dirty.
pub(super) const SETTLE_TRIES: u32 = 1000;
/// The most items that one record of a removal deletes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StepMax {
    pub extents: usize,
    /// Few, because a few of the largest attributes fill a leaf.
    pub xattrs: usize,
    /// Keys of counts of shared blocks; 0 in an image without clones.
    pub counts: usize,
}

const WIDE: StepMax = StepMax { extents: 512, xattrs: 8, counts: 0 };
/// For files with few extents, and for images so full that a wide step gets no tree nodes.
const NARROW: StepMax = StepMax { extents: 64, xattrs: 4, counts: 0 };
/// An operation that frees space must never need more nodes than are reserved for it. So in this
/// step each extent may be in a leaf of its own.
const LEAST: StepMax = StepMax { extents: 8, xattrs: 2, counts: 0 };
/// The same three steps for an image with clones. The smallest step changes at most three counts.
const COUNTED: [StepMax; 3] = [
    StepMax { extents: 256, xattrs: 8, counts: 256 },
    StepMax { extents: 32, xattrs: 4, counts: 32 },
    StepMax { extents: 3, xattrs: 1, counts: 3 },
];
const UNCOUNTED: [StepMax; 3] = [WIDE, NARROW, LEAST];

impl StepMax {
    /// The need of a record that removes, or marks, this many extents. The extents at both ends are
    /// cut, and may join those beside them.
    pub(super) const fn need(self, class: Class) -> Need {
        let need = Need::record(class).patches(1).puts(1, Orphan::SIZE).zeros(3).drops(1);
        let need = need.deletes(self.xattrs).runs(self.extents + 1 + self.counts);
        let need = match self.counts {
            0 => need,
            few if few <= LEAST.extents => need.counts(few, few),
            many => need.counts(1, many),
        };
        if self.extents > LEAST.extents {
            return need.extents(self.extents + 5).deletes(1);
        }
        need.extents_in(self.extents, self.extents).extents(5).deletes(1)
    }

    /// The next smaller step.
    fn less(self) -> Option<StepMax> {
        let steps = if self.counts == 0 { UNCOUNTED } else { COUNTED };
        let at = steps.iter().position(|step| *step == self)?;
        steps.get(at + 1).copied()
    }
}

/// The effect of a record on the file's size.
#[derive(Clone, Copy, Default)]
pub(super) struct Sizes {
    /// The new size, if the record sets one.
    pub named: Option<u64>,
    /// Whether a truncate still has extents to remove after this record.
    pub shrinking: bool,
}

/// Parts of blocks that a record zeroes.
///
/// The pages in memory change only after the record is committed. Otherwise, after a failed step in
/// between (a block that cannot be read, a full image, a limit), readers would find zeros that no
/// record has, that no writeback has to write, and that are gone after the next mount. Until the
/// commit `io` and `wb` keep other threads from the pages; each page is held in memory.
#[derive(Default)]
pub(super) struct Zeros<'a>(SmallVec<[Zero<'a>; 2]>);

/// A part of one block that a record zeroes.
struct Zero<'a> {
    /// The file block.
    index: u64,
    /// First and last byte within the block, as a half-open range.
    bytes: (usize, usize),
    /// Whether the record has a `Zero` edit for the bytes.
    is_recorded: bool,
    /// A block for a page whose present block must not be overwritten.
    promise: Option<DataReservation>,
    _held: HeldPage<'a>,
}

impl Zeros<'_> {
    /// Zeroes the bytes in memory, after the record is committed. Must be called once. The value
    /// must be dropped without the page lock, since it holds pages.
    pub(super) fn settle(&mut self, pages: &mut Pages) -> Delta {
        let mut delta = Delta::default();
        for zero in &mut self.0 {
            if let Some(promise) = zero.promise.take() {
                pages.move_later(zero.index, promise);
            }
            let page = pages.map.get_mut(&zero.index).expect("the page is held");
            page.data[zero.bytes.0..zero.bytes.1].fill(0);
            let dirty = page.dirty;
            if zero.is_recorded {
                delta.dirty += pages.set_logged(zero.index).dirty;
                // Other bytes of the page may still be in no record.
                delta.dirty += pages.mark_dirty(zero.index, dirty).dirty;
            }
        }
        delta
    }
}

impl Files {
    pub(crate) fn truncate(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        if size > FILE_SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        let shrinks = size < inode.meta.lock().core.size;
        let class = if shrinks { Class::Reclaim } else { Class::Normal };
        let max = self.step_max(inode.ino, size.div_ceil(BLOCK))?;
        let more = in_steps(class, max, |max| self.truncate_step(inode, size, class, max))?;
        if more { self.finish_truncate(inode) } else { Ok(()) }
    }

    /// Makes the first record of a truncate. Returns whether more extents are to be removed.
    fn truncate_step(&self, inode: &Arc<Inode>, size: u64, class: Class, max: StepMax) -> Result<bool> {
        let need = match inline::max(self.engine.store()) {
            0 => max.need(class),
            longest => max.need(class).cuts(1, longest),
        };
        let (mut handle, io, wb) =
            self.begin_settled(inode, need, |live| if size == live { 0 } else { size })?;
        let old = {
            let core = &inode.meta.lock().core;
            flags::check_change(core)?;
            core.size
        };
        let mut record = RecordBuilder::new(RecordOp::Truncate);
        let mut zeros = Zeros::default();
        if size > old {
            let behind = (old, old.next_multiple_of(BLOCK).min(size));
            self.zero_range_of_block(inode, &mut record, &mut zeros, behind)?;
        }
        if size < old {
            inline::cut(self.engine.store(), &mut record, inode.ino, size)?;
        }
        let first = size.div_ceil(BLOCK);
        let mut set = ExtentSet::default();
        let (mut counting, upto, more) = self.load_behind(inode, first, max, &mut set, &mut record)?;
        let sizes = Sizes { named: (size != old).then_some(size), shrinking: more };
        self.remove(
            &mut handle,
            inode,
            record,
            set,
            (first, upto),
            (size, u64::MAX),
            sizes,
            counting.as_mut(),
        )?;
        self.settle_zeros(inode, &mut zeros);
        drop(zeros);
        if size <= old {
            self.forget_behind(inode, size);
        }
        drop((wb, io, handle));
        Ok(more)
    }

    /// Loads the extents from file block `first` on that a step removes, and adds the edits that
    /// remove checksums. Returns the counts that change, the file block at which the step ends, and
    /// whether more may have to be removed.
    fn load_behind(
        &self,
        inode: &Inode,
        first: u64,
        max: StepMax,
        set: &mut ExtentSet,
        record: &mut RecordBuilder,
    ) -> Result<(Option<Counting<'_>>, u64, bool)> {
        let store = self.engine.store();
        let loaded = set.load(store, inode.ino, first, u64::MAX, max.extents)?;
        let left = max.extents.saturating_sub(loaded);
        let end = set.end().unwrap_or(first).max(first);
        let (counting, upto) = self.count_removal(inode.ino, set, (first, end), max.counts)?;
        let more = match (left, inode.has_sums()) {
            (0, _) => true,
            _ if upto < end => true,
            (_, false) => false,
            (_, true) => sums::remove(store, record, inode.ino, (first, u64::MAX), left)? >= left,
        };
        Ok((counting, upto, more))
    }

    /// The smallest usual step that suffices for the extents from `first` on. The number of extents
    /// may change until the inode is locked, but the step is bounded in any case.
    pub(super) fn step_max(&self, ino: Ino, first: u64) -> Result<StepMax> {
        // One is added, since an extent may extend across `first`.
        let counted = self.engine.store().has_clones();
        let steps = if counted { COUNTED } else { UNCOUNTED };
        let count = 1 + extents::count(self.engine.store(), ino, first, steps[1].extents)?;
        // The smallest step that takes all extents. How many counts these have is not known yet, so
        // with clones the least step is used only if a larger one fails on a full image.
        let usual = if counted { &steps[..2] } else { &steps[..] };
        Ok(*usual.iter().rev().find(|step| count < step.extents).unwrap_or(&steps[0]))
    }

    /// Reserves and locks, for an operation whose record sets the logged size to at least
    /// `names(size)`, or that removes dirty pages below that offset. Dirty bytes beyond the logged
    /// size are written in place first: their record raises the logged size, and with it come the
    /// zeros beyond the old end. If another record raised the size without these bytes, a crash
    /// would show bytes that an earlier truncate cut off.
    ///
    /// An unfinished truncate is finished first, without a handle, because its steps reserve too.
    #[allow(clippy::type_complexity)]
    pub(super) fn begin_settled<'a>(
        &'a self,
        inode: &'a Arc<Inode>,
        need: Need,
        names: impl Fn(u64) -> u64,
    ) -> Result<(Handle<'a>, WriteGuard<'a, ()>, MutexGuard<'a, ()>)> {
        for _ in 0..SETTLE_TRIES {
            let (handle, io) = self.begin_with_io(inode, need)?;
            let wb = inode.wb.lock();
            let dirty = inode.pages.lock().dirty_count() > 0;
            let (size, logged) = {
                let meta = inode.meta.lock();
                (meta.core.size, meta.logged_size)
            };
            if !dirty || size <= logged || names(size) <= logged {
                return Ok((handle, io, wb));
            }
            drop((wb, io, handle));
            self.writeback.write(std::slice::from_ref(inode), Which::Dirty, need.class)?;
        }
        Err(kedge_base::Error::Busy("the file, which is being written without pause,".into()).into())
    }

    /// [`Files::lock_io`] for an operation that also reserves.
    pub(super) fn begin_with_io<'a>(
        &'a self,
        inode: &'a Arc<Inode>,
        need: Need,
    ) -> Result<(Handle<'a>, WriteGuard<'a, ()>)> {
        loop {
            if inode.meta.lock().shrinking {
                self.finish_truncate(inode)?;
            }
            let handle = self.engine.begin(need)?;
            if let Some(io) = self.try_lock_io(inode)? {
                return Ok((handle, io));
            }
        }
    }

    /// Takes the io lock exclusively once no truncate is unfinished: extents that a truncate still
    /// has to remove must not be mistaken for new ones. A deletion needs the same lock, so the
    /// inode does not die while it is held. The caller holds no handle.
    pub(crate) fn lock_io<'a>(&self, inode: &'a Arc<Inode>) -> Result<WriteGuard<'a, ()>> {
        loop {
            if let Some(io) = self.try_lock_io(inode)? {
                return Ok(io);
            }
            self.finish_truncate(inode)?;
        }
    }

    /// Takes the io lock exclusively. `None` if a truncate is unfinished.
    fn try_lock_io<'a>(&self, inode: &'a Arc<Inode>) -> Result<Option<WriteGuard<'a, ()>>> {
        let io = inode.io.write();
        let (dead, shrinking) = {
            let meta = inode.meta.lock();
            (meta.dead, meta.shrinking)
        };
        if dead {
            return Err(Error::NotFound);
        }
        Ok((!shrinking).then_some(io))
    }

    /// Takes the inline data of a file out of the tree, and keeps it out ([`crate::inline`]). The
    /// bytes become log-resident. For operations that move, share or preallocate blocks.
    pub(super) fn take_out(&self, inode: &Arc<Inode>) -> Result<()> {
        let store = self.engine.store();
        let longest = inline::max(store);
        if longest == 0 {
            return Ok(());
        }
        inode.stay_outside();
        {
            // Waits for a writeback or fsync that is putting data into the tree.
            let _wb = inode.wb.lock();
            if !inline::is_there(store, inode.ino)? {
                return Ok(());
            }
        }
        let mut promise = store.reserve_data(1)?;
        let need = Need::record(Class::Normal).patches(1).data(1, longest).deletes(1);
        let (mut handle, _io) = self.begin_with_io(inode, need)?;
        let _wb = inode.wb.lock();
        let Some(len) = inline::read(store, inode.ino)?.map(|item| item.len()) else { return Ok(()) };
        let _held = self.load_page(inode, 0)?;
        let core = inode.meta.lock().core;
        let mut pages = inode.pages.lock();
        let plan = plan_page(&pages, 0, &[]);
        let mut charge = self.charge_new(&pages, inode.ino, &core, &[], 0..1);
        if plan.charged && charge.as_ref().is_some_and(|charge| charge.held_blocks() == 0) {
            return Err(Error::OverLimit);
        }
        let mut record = RecordBuilder::new(RecordOp::LogData);
        // The bytes of the page, not those of the item: the log may have newer bytes of an fsync,
        // which replay would overwrite with those of the item.
        let bytes = pages.get(0).expect("just loaded").data[..len].to_vec();
        // Broken on purpose: the bytes are only in memory.
        if !broken::is(Variant::InlineOutUnlogged) {
            record.data(inode.ino, 0, &bytes);
        }
        record.delete(kedge_format::inline::key(inode.ino));
        let mut changes = lock_metas(&[&**inode]);
        commit(&mut handle, record, &mut changes)?;
        drop(changes);
        // The page gets its block only now: if there is no record, nothing would return the block.
        if plan.promised {
            pages.reserve(promise.split(1));
        }
        if let (true, Some(charge)) = (plan.charged, &mut charge) {
            pages.charge_page(0, charge.split(1));
        }
        pages.map.get_mut(&0).expect("the page is held").backing = plan.backing;
        let dirty = pages.get(0).and_then(|page| page.dirty);
        let mut delta = pages.set_logged(0);
        // Dirty bytes are in no record, so they stay dirty.
        delta.dirty += pages.mark_dirty(0, dirty).dirty;
        drop(pages);
        self.writeback.account(delta);
        Ok(())
    }

    /// Removes the pages of blocks that a record has removed. Called after the record is applied:
    /// if the record failed, dirty bytes would still belong to the file, and logged bytes would
    /// still have to be written in place before the log can drop them. The caller holds `io` and
    /// `wb`, so no other thread accesses the pages in between.
    pub(super) fn forget_pages(&self, inode: &Inode, from: u64, to: u64) {
        let delta = inode.pages.lock().remove_range(from, to);
        self.writeback.account(delta);
    }

    /// Removes the pages beyond the new end, and zeroes the cut page beyond it.
    fn forget_behind(&self, inode: &Inode, size: u64) {
        let mut pages = inode.pages.lock();
        let delta = pages.remove_range(size.div_ceil(BLOCK), u64::MAX);
        if !size.is_multiple_of(BLOCK)
            && let Some(page) = pages.map.get_mut(&(size / BLOCK))
        {
            page.data[(size % BLOCK) as usize..].fill(0);
        }
        drop(pages);
        self.writeback.account(delta);
    }

    /// Prepares to zero bytes `[from, to)` of one block: loads its page, promises it a block if it
    /// must not be overwritten, and adds a `Zero` edit if the newest durable copy is in place or in
    /// the log. The page changes in [`Zeros::settle`]. The caller holds `io` exclusively and `wb`
    /// from here until then.
    pub(super) fn zero_range_of_block<'a>(
        &self,
        inode: &'a Arc<Inode>,
        record: &mut RecordBuilder,
        zeros: &mut Zeros<'a>,
        (from, to): (u64, u64),
    ) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let index = from / BLOCK;
        let held = self.load_page(inode, index)?;
        let (backing, logged) = {
            let pages = inode.pages.lock();
            let page = pages.get(index).expect("just loaded");
            (page.backing, page.logged)
        };
        let promised = zeros.0.iter().any(|zero| zero.index == index && zero.promise.is_some());
        let promise = match backing {
            Backing::Shared if !promised => Some(self.engine.store().alloc().reserve_data(1)?),
            _ => None,
        };
        let is_durable = matches!(backing, Backing::Written | Backing::Shared | Backing::Moving);
        let is_recorded = is_durable || logged;
        if is_recorded {
            record.zero(inode.ino, from, to - from);
        }
        let bytes = ((from - index * BLOCK) as usize, (to - index * BLOCK) as usize);
        zeros.0.push(Zero { index, bytes, is_recorded, promise, _held: held });
        Ok(())
    }

    /// Promises a block to each page of `zeros` in `blocks`, which the record is about to share.
    /// The pages become shared before [`Zeros::settle`].
    pub(super) fn promise_shared(
        &self,
        inode: &Inode,
        zeros: &mut Zeros<'_>,
        blocks: Range<u64>,
    ) -> Result<()> {
        let is_written = |page: &Page| page.backing == Backing::Written;
        for zero in zeros.0.iter_mut().filter(|zero| blocks.contains(&zero.index)) {
            if inode.pages.lock().get(zero.index).is_some_and(is_written) && zero.promise.is_none() {
                zero.promise = Some(self.engine.store().alloc().reserve_data(1)?);
            }
        }
        Ok(())
    }

    /// [`Zeros::settle`] for a caller that does not hold the page lock.
    pub(super) fn settle_zeros(&self, inode: &Inode, zeros: &mut Zeros<'_>) {
        let delta = zeros.settle(&mut inode.pages.lock());
        self.writeback.account(delta);
    }

    /// Makes one record that removes the extents of `set` in file blocks `range`, ends the log
    /// residency of bytes in `void`, and changes the size as `sizes` says. The caller holds `io`
    /// and `wb`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn remove(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        record: RecordBuilder,
        mut set: ExtentSet,
        range: (u64, u64),
        void: (u64, u64),
        sizes: Sizes,
        counting: Option<&mut Counting<'_>>,
    ) -> Result<()> {
        let removed = set.remove(range.0, range.1);
        self.change(handle, inode, record, set, &removed, void, sizes, counting)
    }

    /// Completes and commits the record of [`Files::remove`] and [`Files::unwrite`]: adds the
    /// changed extents and the blocks that become free.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn change(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        mut record: RecordBuilder,
        set: ExtentSet,
        removed: &Removed,
        void: (u64, u64),
        sizes: Sizes,
        counting: Option<&mut Counting<'_>>,
    ) -> Result<()> {
        let ino = inode.ino;
        set.emit(&mut record, ino);
        if let Some(counting) = counting {
            counting.emit(&mut record, ino, removed)?;
        }
        for extent in &removed.freed {
            record.free(*extent);
        }
        let blocks = removed.blocks;
        if void.0 < void.1 && self.engine.store().is_resident(ino, void.0, void.1 - void.0) {
            record.drop_data(ino, void.0, void.1 - void.0);
        }
        let now = self.engine.now();
        // Broken on purpose: the state is read before the lock under which the record is committed.
        let early = broken::is(Variant::EarlyRemoval).then(|| {
            let meta = inode.meta.lock();
            (meta.dead, meta.core.nlink)
        });
        pause::at(Point::Removal);
        let mut changes = lock_metas(&[inode]);
        let c = &mut changes[0];
        let (dead, nlink) = early.unwrap_or((c.meta.dead, c.core.nlink));
        if dead {
            return Err(Error::NotFound);
        }
        c.touch(now);
        if let Some(size) = sizes.named {
            c.set(InodeMask::SIZE, |core| core.size = size);
        }
        // A nameless inode has an orphan item already, which covers the truncate.
        match (nlink > 0, c.meta.shrinking, sizes.shrinking) {
            (true, false, true) => record.put(Key::orphan(ino), &Orphan::Truncate.encode()),
            (true, true, false) => record.delete(Key::orphan(ino)),
            _ => {}
        }
        if blocks > 0 {
            c.set(InodeMask::BLOCKS, |core| core.blocks = core.blocks.saturating_sub(blocks));
        }
        commit(handle, record, &mut changes)?;
        changes[0].meta.shrinking = sizes.shrinking;
        Ok(())
    }

    /// Runs the further steps of a long truncate, or of one that recovery found. The caller holds
    /// no handle.
    pub(crate) fn finish_truncate(&self, inode: &Arc<Inode>) -> Result<()> {
        let mut more = true;
        while more {
            pause::at(Point::TruncateStep);
            let behind = inode.meta.lock().core.size.div_ceil(BLOCK);
            let max = self.step_max(inode.ino, behind)?;
            more = in_steps(Class::Reclaim, max, |max| self.finish_step(inode, max))?;
        }
        Ok(())
    }

    /// Runs one such step. Returns whether more extents are to be removed.
    fn finish_step(&self, inode: &Arc<Inode>, max: StepMax) -> Result<bool> {
        let mut handle = self.engine.begin(max.need(Class::Reclaim))?;
        let _io = inode.io.write();
        let _wb = inode.wb.lock();
        let first = {
            let meta = inode.meta.lock();
            if !meta.shrinking {
                return Ok(false);
            }
            meta.core.size.div_ceil(BLOCK)
        };
        let mut set = ExtentSet::default();
        let mut record = RecordBuilder::new(RecordOp::Reclaim);
        let (mut counting, upto, more) = self.load_behind(inode, first, max, &mut set, &mut record)?;
        let sizes = Sizes { named: None, shrinking: more };
        self.remove(&mut handle, inode, record, set, (first, upto), (0, 0), sizes, counting.as_mut())?;
        Ok(more)
    }
}

/// Runs a step of an operation that frees space. If there are no tree nodes for the step, it is
/// retried with smaller ones. The lack may show as late as at the commit of the record; nothing has
/// changed then.
pub(super) fn in_steps<R>(
    class: Class,
    mut max: StepMax,
    mut step: impl FnMut(StepMax) -> Result<R>,
) -> Result<R> {
    loop {
        match (step(max), max.less()) {
            (Err(Error::Engine(kedge_base::Error::NoSpace)), Some(less)) if class == Class::Reclaim => {
                max = less;
            }
            (other, _) => return other,
        }
    }
}
