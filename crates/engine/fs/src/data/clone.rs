//! Clones: a range of one file gets the contents of a range of another file, or of another range of
//! the same file. Both share the blocks until one of them is written.
//!
//! A clone first writes what is dirty in the source range in place. Then a record marks the extents
//! of the source as counted, maps them in the target in place of its old extents, and changes the
//! counts ([`kedge_format::counts`]). From then on neither file overwrites the blocks: a write goes
//! to another block, as in a hole ([`Place::Shared`](crate::extents::Place)).
//!
//! Holes and unwritten extents of the source become holes of the target. The checksums of the
//! blocks are copied, since checksums are stored by file block.
//!
//! # Records
//! A record clones a bounded number of extents. A range with more takes several records, from its
//! start on. A crash may leave a prefix of the range cloned; the target's size grows with the
//! prefix.
//!
//! A clone of a whole file is one record, made under the locks of both files: it replaces
//! everything that the target had, and sets the new size. If either file has too many extents,
//! counts or checksums for one record, the target is truncated first, and then the source's whole
//! range is cloned.
//!
//! # Crash argument
//! - The blocks have the source's bytes before a record names them for the target: writeback has
//!   completed, and the log write of the record flushes the device first.
//! - Marks, extents, counts and freed blocks are in one record.
//! - After the record nothing overwrites a shared block in place, whether the record is durable or
//!   not: the mark is in the tree once the record is committed, and until then the locks of both
//!   files are held. If the record is lost, so are all later ones, and the blocks belong to the
//!   source alone, with its bytes.
//! - Nothing in the two ranges is log-resident when the record is made. So bytes in the log never
//!   belong to a cloned block, with one exception: within one file the source may end with the cut
//!   block of the file, and the record that clones it zeroes its bytes after the old end. These
//!   zeros are log-resident, and for the source alone. They belong to a block that is now shared,
//!   so writeback and recovery put them into a new one, which is promised to the page before the
//!   record is committed. The target has the cut block too, and ends within it.

use super::Files;
use super::counting::Counting;
use super::truncate::{SETTLE_TRIES, Zeros};
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::cache::pages::Which;
use crate::error::{Error, Result};
use crate::extents::{self, ExtentSet};
use crate::flags;
use crate::sums::{self, Sums};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{MutexGuard, WriteGuard};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_format::item::{ExtentItem, FILE_SIZE_MAX};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::sums::SUMS_BLOCKS;
use kedge_store::{Charge, Class, Handle, Need};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most extents of the source, and of the target, in one record.
const STEP_EXTENTS: usize = 128;
/// The most keys of counts that one record changes for the source, and for the target.
const STEP_COUNTS: usize = 256;
/// The most file blocks in one record of a file with checksums.
const STEP_SUMS: u64 = 256 * SUMS_BLOCKS;

/// The need of one record. Extents at both ends of the ranges are cut.
fn need(sums: bool) -> Need {
    let need = Need::record(Class::Normal).patches(2).extents(4 * STEP_EXTENTS + 8);
    let need = need.counts(2, 2 * STEP_COUNTS + 4 * STEP_EXTENTS).runs(STEP_EXTENTS + STEP_COUNTS);
    let need = need.zeros(1).drops(1);
    if sums { need.sums((STEP_SUMS / SUMS_BLOCKS) as usize + 2) } else { need }
}

/// The ranges of a clone, in bytes: `len` bytes at `from` of the source replace those at `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CloneRange {
    pub from: u64,
    pub to: u64,
    pub len: u64,
}

/// One record of a clone.
struct Step {
    /// The range of file blocks of the source.
    from: (u64, u64),
    /// The file block of the target to which the first of them is mapped.
    to: u64,
    /// The range of file blocks of the target whose old extents are removed.
    replaced: (u64, u64),
    /// The size of the target afterwards.
    size: u64,
    /// The most checksum items after the last cloned block that the step deletes.
    sums_max: usize,
}

/// A reservation, and the locks of both files: `io` exclusively, then `wb`, each in ascending
/// order.
struct Locked<'a> {
    handle: Handle<'a>,
    _wb: Vec<MutexGuard<'a, ()>>,
    _io: Vec<WriteGuard<'a, ()>>,
}

impl Files {
    /// Clones a range. If its length is 0, it extends to the end of the source. Returns the number
    /// of bytes that are cloned, with the error if these are not all.
    pub(crate) fn clone_range(
        &self,
        source: Ino,
        target: Ino,
        range: CloneRange,
    ) -> Result<(u64, Result<()>)> {
        let store = self.engine.store();
        if store.is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        let (source, target) = (self.inodes.get_file(source)?, self.inodes.get_file(target)?);
        if !store.same_tree(source.ino, target.ino) {
            return Err(Error::CrossTree);
        }
        flags::check_change(&target.meta.lock().core)?;
        if source.has_sums() != target.has_sums() {
            return Err(Error::Invalid("only one of the files has checksums of its data"));
        }
        let size = source.meta.lock().core.size;
        let len = if range.len == 0 { size.saturating_sub(range.from) } else { range.len };
        let range = CloneRange { len, ..range };
        check(&source, &target, range, size)?;
        if len == 0 { Ok((0, Ok(()))) } else { self.clone_checked(&source, &target, range) }
    }

    /// [`Files::clone_range`] for a range that is not empty, after the checks.
    fn clone_checked(
        &self,
        source: &Arc<Inode>,
        target: &Arc<Inode>,
        range: CloneRange,
    ) -> Result<(u64, Result<()>)> {
        self.take_out(source)?;
        self.take_out(target)?;
        self.engine.store().allow_clones()?;
        let (mut done, blocks) = (0, range.len.div_ceil(BLOCK));
        while done < blocks {
            match self.clone_some(source, target, range, done) {
                Ok(upto) => done = upto,
                Err(e) => return Ok((done * BLOCK, Err(e))),
            }
        }
        Ok((range.len, Ok(())))
    }

    /// Replaces the contents of `target` by those of `source`.
    pub(crate) fn clone_file(&self, source: Ino, target: Ino) -> Result<()> {
        let (from, to) = (self.inodes.get_file(source)?, self.inodes.get_file(target)?);
        if !self.engine.store().same_tree(source, target) {
            return Err(Error::CrossTree);
        }
        if from.has_sums() != to.has_sums() {
            return Err(Error::Invalid("only one of the files has checksums of its data"));
        }
        if source == target {
            return self.check_target(&to);
        }
        // Broken on purpose: readers and a crash can find the target empty.
        if !broken::is(Variant::CloneAfterTruncate) && self.clone_whole(&from, &to)? {
            return Ok(());
        }
        // What is appended to the source from now on is not cloned.
        let len = from.meta.lock().core.size;
        self.truncate(&to, 0)?;
        match len {
            0 => Ok(()),
            _ => self.clone_checked(&from, &to, CloneRange { from: 0, to: 0, len })?.1,
        }
    }

    /// Checks whether a clone may change the target.
    fn check_target(&self, target: &Inode) -> Result<()> {
        if self.engine.store().is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        flags::check_change(&target.meta.lock().core)
    }

    /// [`Files::clone_file`] in one record. Returns false, without a change, if one record cannot
    /// hold it.
    fn clone_whole(&self, source: &Arc<Inode>, target: &Arc<Inode>) -> Result<bool> {
        let store = self.engine.store();
        self.check_target(target)?;
        self.take_out(source)?;
        self.take_out(target)?;
        store.allow_clones()?;
        let mut locked =
            self.lock_clean(source, target, CloneRange { from: 0, to: 0, len: FILE_SIZE_MAX })?;
        flags::check_change(&target.meta.lock().core)?;
        let size = source.meta.lock().core.size;
        let blocks = size.div_ceil(BLOCK);
        let sums = blocks.div_ceil(SUMS_BLOCKS);
        if blocks == 0 || target.has_sums() && blocks > STEP_SUMS {
            return Ok(false);
        }
        let (mut sources, mut targets) = (ExtentSet::default(), ExtentSet::default());
        let few = sources.load(store, source.ino, 0, blocks, STEP_EXTENTS)? < STEP_EXTENTS
            && targets.load(store, target.ino, 0, u64::MAX, STEP_EXTENTS)? < STEP_EXTENTS;
        if !few {
            return Ok(false);
        }
        let end = targets.end().unwrap_or(0).max(blocks);
        let sums_max = (STEP_SUMS / SUMS_BLOCKS + 1 - sums.min(STEP_SUMS / SUMS_BLOCKS)) as usize;
        if target.has_sums() && sums::count(store, target.ino, blocks, sums_max)? >= sums_max {
            return Ok(false);
        }
        let mut counting = self.count();
        for (extents, end) in [(&sources, blocks), (&targets, end)] {
            let counted: Vec<_> =
                extents.parts(0, end).into_iter().filter(|(_, item)| item.counted).collect();
            let max = counting.changes.edits_max() + STEP_COUNTS;
            if counting.load(target.ino, &counted, max)?.is_some() {
                return Ok(false);
            }
        }
        let step = Step { from: (0, blocks), to: 0, replaced: (0, u64::MAX), size, sums_max };
        self.clone_step(&mut locked.handle, &mut counting, (source, target), step)?;
        Ok(true)
    }

    /// Reserves, and locks both files once no truncate is unfinished, and no byte of the target or
    /// of the source range waits to be written.
    fn lock_clean<'a>(
        &'a self,
        source: &'a Arc<Inode>,
        target: &'a Arc<Inode>,
        range: CloneRange,
    ) -> Result<Locked<'a>> {
        let mut both = vec![source, target];
        both.sort_by_key(|inode| inode.ino);
        both.dedup_by_key(|inode| inode.ino);
        let blocks = range.from / BLOCK..(range.from + range.len).div_ceil(BLOCK);
        for _ in 0..SETTLE_TRIES {
            for inode in &both {
                self.writeback.write(std::slice::from_ref(*inode), Which::All, Class::Normal)?;
                if inode.meta.lock().shrinking {
                    self.finish_truncate(inode)?;
                }
            }
            let handle = self.engine.begin(need(target.has_sums()))?;
            let io: Vec<_> = both.iter().map(|inode| inode.io.write()).collect();
            let wb: Vec<_> = both.iter().map(|inode| inode.wb.lock()).collect();
            let mut shrinking = false;
            for inode in &both {
                let meta = inode.meta.lock();
                if meta.dead {
                    return Err(Error::NotFound);
                }
                shrinking |= meta.shrinking;
            }
            let clean = {
                let pages = target.pages.lock();
                pages.dirty_count() + pages.logged_count() == 0
            };
            let clean = clean && source.pages.lock().unclean(Which::All, blocks.clone(), 1).is_empty();
            if clean && !shrinking {
                return Ok(Locked { handle, _wb: wb, _io: io });
            }
        }
        Err(kedge_base::Error::Busy("a file, which is being written without pause,".into()).into())
    }

    /// Makes one record for the file blocks of the range from `done` on. Returns how many blocks of
    /// the range are done then.
    fn clone_some(
        &self,
        source: &Arc<Inode>,
        target: &Arc<Inode>,
        range: CloneRange,
        done: u64,
    ) -> Result<u64> {
        let store = self.engine.store();
        let mut locked = self.lock_clean(source, target, range)?;
        check_sizes(source, target, range)?;
        flags::check_change(&target.meta.lock().core)?;
        let (from, to) = (range.from / BLOCK, range.to / BLOCK);
        let mut upto = range.len.div_ceil(BLOCK);
        if target.has_sums() {
            upto = upto.min(done + STEP_SUMS);
        }
        // Limits the step to the extents that fit into the record.
        let found = extents::find(store, source.ino, from + done, from + upto, STEP_EXTENTS)?;
        if let Some((at, item)) = found.last().filter(|_| found.len() >= STEP_EXTENTS) {
            upto = upto.min(at + item.blocks as u64 - from);
        }
        let mut set = ExtentSet::default();
        if set.load(store, target.ino, to + done, to + upto, STEP_EXTENTS)? >= STEP_EXTENTS {
            upto = upto.min(set.end().unwrap_or(0).saturating_sub(to).max(done + 1));
        }
        // Limits the step to the counts that fit into the record.
        let mut counting = self.count();
        let (from_blocks, to_blocks) = ((from + done, from + upto), (to + done, to + upto));
        let mut sources = ExtentSet::default();
        sources.load(store, source.ino, from_blocks.0, from_blocks.1, usize::MAX)?;
        for (extents, blocks, start) in [(&sources, from_blocks, from), (&set, to_blocks, to)] {
            let counted: Vec<_> =
                extents.parts(blocks.0, blocks.1).into_iter().filter(|(_, item)| item.counted).collect();
            let max = counting.changes.edits_max() + STEP_COUNTS;
            if let Some(end) = counting.load(target.ino, &counted, max)? {
                upto = upto.min(end - start);
            }
        }
        let (from, to) = ((from + done, from + upto), (to + done, to + upto));
        let size = (range.to + range.len).min(to.1 * BLOCK).max(target.meta.lock().core.size);
        let step = Step { from, to: to.0, replaced: to, size, sums_max: 0 };
        self.clone_step(&mut locked.handle, &mut counting, (source, target), step)?;
        Ok(upto)
    }

    /// Makes the record of a step. The caller has checked that it fits.
    fn clone_step(
        &self,
        handle: &mut Handle<'_>,
        counting: &mut Counting<'_>,
        (source, target): (&Arc<Inode>, &Arc<Inode>),
        step: Step,
    ) -> Result<()> {
        let store = self.engine.store();
        let Step { from, to, replaced, size: named, sums_max } = step;
        let mut record = RecordBuilder::new(RecordOp::Clone);
        // Within one file both ranges are in the same set.
        let mut set = ExtentSet::default();
        set.load(store, source.ino, from.0, from.1, usize::MAX)?;
        let shared: Vec<(u64, ExtentItem)> =
            set.parts(from.0, from.1).into_iter().filter(|(_, item)| !item.unwritten).collect();
        for (first, item) in &shared {
            if !item.counted {
                counting.changes.begin(source.ino, item.extent(), item.birth)?;
                // Broken on purpose: the source treats the blocks as its own.
                if !broken::is(Variant::CloneWithoutFlag) {
                    set.set_counted(*first, first + item.blocks as u64);
                }
            }
            counting.changes.add(source.ino, item.extent())?;
        }
        if source.ino != target.ino {
            std::mem::take(&mut set).emit(&mut record, source.ino);
        }
        set.load(store, target.ino, replaced.0, replaced.1, usize::MAX)?;
        let removed = set.remove(replaced.0, replaced.1);
        for (first, item) in &shared {
            set.insert(first - from.0 + to, ExtentItem { counted: true, ..*item });
        }
        set.emit(&mut record, target.ino);
        counting.emit(&mut record, target.ino, &removed)?;
        removed.freed.iter().for_each(|extent| record.free(*extent));
        if target.has_sums() {
            self.clone_sums(&mut record, (source.ino, target.ino), &shared, (from.0, to))?;
            let behind = to + from.1 - from.0;
            sums::remove(store, &mut record, target.ino, (behind, u64::MAX), sums_max)?;
        }
        let size = target.meta.lock().core.size;
        let mut zeros = Zeros::default();
        if named > size && to * BLOCK > size {
            let end = size.next_multiple_of(BLOCK).min(named);
            self.zero_range_of_block(target, &mut record, &mut zeros, (size, end))?;
            if source.ino == target.ino {
                self.promise_shared(target, &mut zeros, from.0..from.1)?;
            }
        }
        let void = (replaced.0 * BLOCK, replaced.1.saturating_mul(BLOCK));
        if store.is_resident(target.ino, void.0, void.1 - void.0) {
            record.drop_data(target.ino, void.0, void.1 - void.0);
        }
        let mapped: u64 = shared.iter().map(|(_, item)| item.blocks as u64).sum();
        let mut charge = self.charge_clone(handle, target, mapped.saturating_sub(removed.blocks))?;
        let now = self.engine.now();
        let mut changes = lock_metas(&[&**source, &**target]);
        for change in changes.iter_mut().filter(|change| change.inode.ino == target.ino) {
            change.touch(now);
            change.set(InodeMask::BLOCKS, |core| {
                core.blocks = (core.blocks + mapped).saturating_sub(removed.blocks);
            });
            if named != size {
                change.set(InodeMask::SIZE, |core| core.size = named);
            }
        }
        commit(handle, record, &mut changes)?;
        drop(changes);
        if let Some(charge) = &mut charge {
            charge.spent(charge.held_blocks(), 0);
        }
        // The source's pages stay, but their blocks are shared now. If the zeros are in such a
        // block, its page moves later.
        source.pages.lock().share(from.0..from.1);
        self.settle_zeros(target, &mut zeros);
        self.forget_pages(target, replaced.0, replaced.1);
        Ok(())
    }

    /// Charges the limit of a file for `blocks` new blocks, which the next record of the handle
    /// spends. `None` for a file without a limit.
    fn charge_clone(&self, handle: &mut Handle<'_>, inode: &Inode, blocks: u64) -> Result<Option<Charge>> {
        let number = inode.meta.lock().core.limit;
        if number == 0 || blocks == 0 {
            return Ok(None);
        }
        let store = self.engine.store();
        let charge = store.charge_blocks(store.limit_id(inode.ino, number), blocks);
        if charge.held_blocks() < blocks {
            return Err(Error::OverLimit);
        }
        handle.spend(charge.all());
        Ok(Some(charge))
    }

    /// Adds the edits that give blocks of the target the checksums of the source. A block of the
    /// source without a checksum is left out.
    fn clone_sums(
        &self,
        record: &mut RecordBuilder,
        (source, target): (Ino, Ino),
        shared: &[(u64, ExtentItem)],
        (from, to): (u64, u64),
    ) -> Result<()> {
        let mut named = Vec::new();
        for (first, item) in shared {
            let end = first + item.blocks as u64;
            let sums = Sums::read(self.engine.store(), source, *first, end)?;
            named.extend((*first..end).map(|block| (block - from + to, sums.get(block))));
        }
        named.retain(|(_, sum)| *sum != 0);
        sums::emit(self.engine.store(), record, target, &named)
    }
}

/// Checks a range before its first record: whole blocks, or up to the ends of both files. `size` is
/// that of the source.
fn check(source: &Inode, target: &Inode, range: CloneRange, size: u64) -> Result<()> {
    let CloneRange { from, to, len } = range;
    if !from.is_multiple_of(BLOCK) || !to.is_multiple_of(BLOCK) {
        return Err(Error::Invalid("files share whole blocks of 4096 bytes"));
    }
    let (Some(from_end), Some(to_end)) = (from.checked_add(len), to.checked_add(len)) else {
        return Err(Error::FileTooLarge);
    };
    if to_end > FILE_SIZE_MAX {
        return Err(Error::FileTooLarge);
    }
    if from_end > size {
        return Err(Error::Invalid("the range ends after the source"));
    }
    if !len.is_multiple_of(BLOCK) && from_end < size {
        return Err(Error::Invalid("files share whole blocks of 4096 bytes, or up to both ends"));
    }
    check_sizes(source, target, range)?;
    let (from_last, to_last) = (from_end.next_multiple_of(BLOCK), to_end.next_multiple_of(BLOCK));
    if source.ino == target.ino && from < to_last && to < from_last {
        return Err(Error::Invalid("the ranges of one file overlap"));
    }
    Ok(())
}

/// Checks a range before each of its records. The source may have become longer since [`check`], by
/// an append or by this clone itself. The target then gets a last block with bytes after its end,
/// which no read returns: a file that grows past a cut block zeroes these bytes first.
fn check_sizes(source: &Inode, target: &Inode, range: CloneRange) -> Result<()> {
    let CloneRange { from, to, len } = range;
    if from + len > source.meta.lock().core.size {
        return Err(Error::Invalid("the range ends after the source"));
    }
    if !len.is_multiple_of(BLOCK) && to + len < target.meta.lock().core.size {
        return Err(Error::Invalid("files share whole blocks of 4096 bytes, or up to both ends"));
    }
    Ok(())
}
