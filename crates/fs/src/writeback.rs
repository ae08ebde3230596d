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
//! # Crash argument
//! Extents and sizes are named only after their data IO has completed, and a log write that names them flushes the
//! device first: no crash shows stale or foreign bytes. A `Drop` for log-resident bytes stands in the same record, so
//! replay never puts old logged bytes over newer ones in place. Blocks allocated for a pass that a crash cuts off are
//! nobody's: no record names them. A page's size is read after its bytes were copied, so no size ever covers bytes that
//! were not written.

use crate::core::{Change, Fs};
use crate::extents::{ExtentSet, Place};
use crate::inode::Inode;
use crate::pages::{Backing, Delta, Pages, Which};
use crate::{Error, Result};
use kedge_base::broken::{self, Variant};

use kedge_base::{BLOCK_SIZE, BlockNo, Extent, Ino, IoBuf};
use kedge_device::{Io, Op, run_batch};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_store::{CheckpointClient, Class, Handle, WriteSeq};

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

/// What a pass is to write, and how.
#[derive(Clone, Copy)]
struct Kind {
    which: Which,
    class: Class,
    segments_max: usize,
    /// By durable writes, if that is cheaper than a flush.
    durable: bool,
}

/// A run of pages of one inode that goes to one run of blocks.
struct Segment {
    /// Place among the pass's inodes.
    who: usize,
    index: u64,
    count: u64,
    block: BlockNo,
}

/// One inode's part of a pass.
struct Part {
    set: ExtentSet,
    new: Vec<Extent>,
    /// File blocks written, as ranges.
    ranges: Vec<(u64, u64)>,
    /// Largest size seen when pages were copied.
    size: u64,
    failed: bool,
    more: bool,
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

/// One write to come.
struct Gathered {
    start: BlockNo,
    buf: IoBuf,
    /// Whose pages it carries, and which of them were logged.
    users: Vec<(usize, Vec<u64>)>,
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
    /// Writes pages of the inodes in place, in the order given. Pages dirtied meanwhile may stay dirty.
    pub fn writeback(&self, inodes: &[Arc<Inode>], which: Which, class: Class) -> Result<()> {
        // What is written here was promised when it became dirty: it may use what is kept back from new promises.
        let class = if class == Class::Normal { Class::Reclaim } else { class };
        self.writeback_of(inodes, Kind { which, class, segments_max: PASS_SEGMENTS, durable: false })
    }

    /// Writes what is dirty of an inode for an fsync. What it makes durable by that needs no flush.
    pub fn writeback_for_fsync(&self, inode: &Arc<Inode>) -> Result<()> {
        let (which, class) = (Which::Dirty, Class::Reclaim);
        let kind = Kind { which, class, segments_max: PASS_SEGMENTS, durable: true };
        self.writeback_of(std::slice::from_ref(inode), kind)
    }

    /// Writes what is unclean of a range of file blocks in place.
    pub fn writeback_range(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
        let (which, class) = (Which::All, Class::Reclaim);
        for segments_max in [PASS_SEGMENTS, NARROW_SEGMENTS] {
            let kind = Kind { which, class, segments_max, durable: false };
            let mut left = Some(vec![range.clone()]);
            let written = loop {
                match self.writeback_pass(std::slice::from_ref(inode), kind, &mut left) {
                    Ok(true) => {}
                    Ok(false) => break Ok(()),
                    Err(e) => break Err(e),
                }
            };
            match written {
                // See `writeback_of`.
                Err(Error::Engine(kedge_base::Error::NoSpace)) if segments_max != NARROW_SEGMENTS => {}
                other => return other,
            }
        }
        unreachable!("the narrow try returns")
    }

    fn writeback_of(&self, inodes: &[Arc<Inode>], kind: Kind) -> Result<()> {
        let mut first_error = None;
        for chunk in inodes.chunks(PASS_INODES) {
            // Those of one pass are locked together: in the order of locks.
            let mut chunk = chunk.to_vec();
            chunk.sort_by_key(|i| i.ino);
            chunk.dedup_by_key(|i| i.ino);
            let mut result = self.writeback_passes(&chunk, kind);
            if let Err(Error::Engine(kedge_base::Error::NoSpace)) = result {
                // A wide pass may ask for more tree nodes than a full image has; narrow ones need few at a time.
                let kind = Kind { segments_max: NARROW_SEGMENTS, ..kind };
                let narrow = |inode| self.writeback_passes(std::slice::from_ref(inode), kind);
                result = chunk.iter().map(narrow).fold(Ok(()), Result::and);
            }
            if let Err(e) = result {
                first_error.get_or_insert(e);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Passes until all is written that was unclean at the start. Each goes on where the last one stopped, up to the last page that was
    /// unclean then: so a writer who dirties pages anew neither holds us, nor do we write his in place of those that we were
    /// asked for.
    fn writeback_passes(&self, inodes: &[Arc<Inode>], kind: Kind) -> Result<()> {
        let mut left = None;
        while self.writeback_pass(inodes, kind, &mut left)? {}
        Ok(())
    }

    /// One pass over the pages that are left, of which it takes away what it did. `None`: all. Returns whether more is to be done.
    fn writeback_pass(
        &self,
        inodes: &[Arc<Inode>],
        kind: Kind,
        left: &mut Option<Vec<Range<u64>>>,
    ) -> Result<bool> {
        let Kind { which, class, segments_max, durable } = kind;
        let items = 2 * inodes.len() + segments_max.min(24);
        let mut handle = self.begin(PASS_LOG_BYTES, items as u32, class)?;
        let _wb: Vec<_> = inodes.iter().map(|i| i.wb.lock()).collect();
        // Under `wb`: what another writeback took and failed to write is unclean again.
        let left =
            left.get_or_insert_with(|| inodes.iter().map(|i| 0..i.pages.lock().unclean_end(which)).collect());
        let mut parts: Vec<Option<Part>> = Vec::with_capacity(inodes.len());
        let mut segments = Vec::new();
        let mut room = PASS_PAGES;
        let mut goal = None;
        let mut planned = Ok(());
        for (who, (inode, left)) in inodes.iter().zip(left.iter_mut()).enumerate() {
            if room == 0 || segments.len() >= segments_max || planned.is_err() {
                parts.push(None);
                continue;
            }
            let pages = inode.pages.lock().unclean(which, left.clone(), room);
            if pages.len() < room {
                left.start = left.end; // these are all
            }
            let Some(last) = pages.last() else {
                parts.push(None);
                continue;
            };
            left.start = left.start.max(last + 1);
            room -= pages.len();
            let mut part = Part {
                set: ExtentSet::default(),
                new: Vec::new(),
                ranges: Vec::new(),
                size: 0,
                failed: false,
                more: false,
            };
            planned = self.plan(inode, who, &pages, &mut part, &mut segments, &mut goal, segments_max);
            if part.more {
                left.start = part.ranges.last().map_or(pages[0], |(_, to)| *to);
            }
            parts.push(Some(part));
        }
        let more = left.iter().any(|left| !left.is_empty());
        if segments.is_empty() {
            self.unlist_clean(inodes);
            return planned.map(|()| false);
        }
        // Broken on purpose: the record comes first. The pause makes it likely that somebody forces it meanwhile.
        let busy = UnderWriteback::join(self, inodes, &parts);
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
        let turn = if durable && !more { self.durable_turn(&inodes[0], &ios) } else { None };
        let outcome = self.write_gathered(inodes, &mut parts, ios, turn.is_some());
        let completed =
            early.unwrap_or_else(|| self.complete(&mut handle, inodes, &mut parts, turn.is_some()));
        drop(turn);
        self.settle(inodes, &parts, completed.is_ok());
        drop(busy);
        completed?;
        self.unlist_clean(inodes);
        outcome?;
        planned?;
        Ok(more)
    }

    /// Finds or takes a place for each page. A part whose planning fails writes what was planned before.
    #[allow(clippy::too_many_arguments)]
    fn plan(
        &self,
        inode: &Inode,
        who: usize,
        pages: &[u64],
        part: &mut Part,
        segments: &mut Vec<Segment>,
        goal: &mut Option<BlockNo>,
        segments_max: usize,
    ) -> Result<()> {
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let (first, count) = (run[0], run.len() as u64);
            for m in self.map(inode.ino, first, count)? {
                if segments.len() >= segments_max {
                    part.more = true;
                    return Ok(());
                }
                match m.place {
                    Place::Written(block) => {
                        segments.push(Segment { who, index: m.first, count: m.blocks, block });
                    }
                    Place::Unwritten(block) => {
                        part.set.load(self, inode.ino, m.first, m.first + m.blocks, usize::MAX)?;
                        part.set.set_written(m.first, m.first + m.blocks);
                        segments.push(Segment { who, index: m.first, count: m.blocks, block });
                    }
                    Place::Hole => {
                        part.set.load(self, inode.ino, m.first, m.first + m.blocks, usize::MAX)?;
                        let mut at = m.first;
                        while at < m.first + m.blocks {
                            if segments.len() >= segments_max {
                                part.more = true;
                                return Ok(());
                            }
                            let want = m.first + m.blocks - at;
                            let near = self.data_goal(inode, *goal);
                            let mut pages = inode.pages.lock();
                            let extent = self.store.alloc_data(near, want, pages.reservation.as_mut())?;
                            for index in at..at + extent.blocks {
                                if let Some(p) = pages.map.get_mut(&index) {
                                    p.backing = Backing::Unknown; // its reserved block is used
                                }
                            }
                            drop(pages);
                            part.set.insert(at, extent, false);
                            part.new.push(extent);
                            segments.push(Segment {
                                who,
                                index: at,
                                count: extent.blocks,
                                block: extent.start,
                            });
                            part.ranges.push((at, at + extent.blocks));
                            at += extent.blocks;
                            *goal = Some(extent.end());
                            inode.meta.lock().goal = Some(extent.end());
                        }
                        continue;
                    }
                }
                part.ranges.push((m.first, m.first + m.blocks));
            }
        }
        Ok(())
    }

    /// Behind the file's last block, else behind the last file of this pass, else where the allocator sends the inode.
    fn data_goal(&self, inode: &Inode, running: Option<BlockNo>) -> BlockNo {
        let own = inode.meta.lock().goal;
        own.or(running).unwrap_or_else(|| self.store.data_goal(inode.ino, inode.ino))
    }

    /// Copies pages into merged buffers.
    fn gather(
        &self,
        inodes: &[Arc<Inode>],
        parts: &mut [Option<Part>],
        mut segments: Vec<Segment>,
    ) -> Vec<Gathered> {
        let plug = self.live.plug();
        if plug {
            segments.sort_by_key(|s| s.block);
        }
        let mut ios = Vec::new();
        let mut at = 0;
        while at < segments.len() {
            let start = segments[at].block;
            let mut end = at + 1;
            let mut blocks = segments[at].count;
            while end < segments.len()
                && (plug || segments[end].who == segments[at].who)
                && segments[end].block.0 == start.0 + blocks
                && blocks + segments[end].count <= MERGE_BLOCKS_MAX
            {
                blocks += segments[end].count;
                end += 1;
            }
            let mut buf = IoBuf::zeroed(blocks as usize);
            let mut users = Vec::new();
            let mut offset = 0;
            for s in &segments[at..end] {
                let part = parts[s.who].as_mut().expect("a segment belongs to a part");
                let len = s.count as usize * BLOCK_SIZE;
                let logged =
                    self.copy_pages(&inodes[s.who], s, part, &mut buf.as_mut_bytes()[offset..offset + len]);
                users.push((s.who, logged));
                offset += len;
            }
            ios.push(Gathered { start, buf, users });
            at = end;
        }
        ios
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

    /// Writes what was gathered as one batch, and marks parts whose IO failed.
    fn write_gathered(
        &self,
        inodes: &[Arc<Inode>],
        parts: &mut [Option<Part>],
        gathered: Vec<Gathered>,
        durable: bool,
    ) -> Result<()> {
        // Broken on purpose: bytes overwritten in place are left to chance.
        let fua = durable && !broken::is(Variant::FdatasyncSkipsFlush);
        let (mut ios, mut users) = (Vec::new(), Vec::new());
        for io in gathered {
            self.stats.data_writes.inc();
            self.stats.data_write_bytes.add(io.buf.len() as u64);
            self.stats.data_writes_durable.add(durable as u64);
            ios.push(Io { offset: io.start.byte_offset(), op: Op::Write { buf: io.buf, fua } });
            users.push(io.users);
        }
        let alone = if durable { self.all_flushed() } else { None };
        let mut first_error = None;
        for (completion, who) in run_batch(&**self.store.device(), ios).into_iter().zip(users) {
            let Err(e) = completion.result else { continue };
            tracing::error!("writeback: {e}");
            for (who, logged) in who {
                parts[who].as_mut().expect("a segment belongs to a part").failed = true;
                self.restore_logged(&inodes[who], &logged);
            }
            let flush_lost = durable && (alone.is_none() || self.all_flushed() != alone);
            if flush_lost || matches!(e, kedge_base::Error::Fenced | kedge_base::Error::OutcomeUnknown) {
                self.store.shutdown(&e);
            }
            first_error.get_or_insert(Error::from(e));
        }
        first_error.map_or(Ok(()), Err)
    }

    /// For a pass over one inode: the newest data write, if nothing waits for a flush and nothing else is being written.
    fn all_flushed(&self) -> Option<WriteSeq> {
        let newest = self.store.data_write_seq();
        (self.dirty.count_under_writeback() <= 1 && self.store.data_flushed(newest)).then_some(newest)
    }

    /// Copies a segment's pages and marks them as being written. Returns those that were logged.
    fn copy_pages(&self, inode: &Inode, s: &Segment, part: &mut Part, out: &mut [u8]) -> Vec<u64> {
        let mut logged = Vec::new();
        let mut delta = Delta::default();
        let mut pages = inode.pages.lock();
        for (i, block) in out.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            let index = s.index + i as u64;
            let page = pages.get(index).expect("unclean pages stay in memory; `wb` excludes truncate");
            block.copy_from_slice(&page.data[..]);
            if page.logged {
                logged.push(index);
            }
            delta.dirty += pages.set_writing(index).dirty;
        }
        // The page lock makes bytes and size one state: a writer changes both under it.
        part.size = part.size.max(inode.meta.lock().core.size);
        drop(pages);
        self.account(delta);
        logged
    }

    /// The write failed, the log still has the bytes: keep them for another try at the next checkpoint.
    fn restore_logged(&self, inode: &Inode, logged: &[u64]) {
        let mut pages = inode.pages.lock();
        for &index in logged {
            let Some(dirty) = pages.get(index).map(|p| p.dirty) else { continue };
            let down = pages.set_logged(index);
            let up = pages.mark_dirty(index, dirty);
            self.account(Delta { pages: 0, dirty: down.dirty + up.dirty });
        }
    }

    /// The record of a pass. `durable`: its data is, no flush is needed for it.
    fn complete(
        &self,
        handle: &mut Handle<'_>,
        inodes: &[Arc<Inode>],
        parts: &mut [Option<Part>],
        durable: bool,
    ) -> Result<()> {
        let seq = (!durable).then(|| self.store.note_data_write());
        let mut record = RecordBuilder::new(RecordOp::WriteBack);
        let mut changes: Vec<Change<'_>> = Vec::new();
        for (inode, part) in inodes.iter().zip(parts) {
            let Some(part) = part else { continue };
            let mut meta = inode.meta.lock();
            if part.failed {
                meta.write_failed = true;
                drop(meta);
                for extent in part.new.drain(..) {
                    self.store.release_data(extent);
                }
                continue;
            }
            if let Some(seq) = seq {
                meta.progress.write_seq = seq;
            }
            let core = meta.core;
            let mut change = Change { inode, meta, core, mask: InodeMask::default(), logged_size: None };
            let before = record.edits();
            std::mem::take(&mut part.set).emit(&mut record, inode.ino);
            let fresh: u64 = part.new.iter().map(|e| e.blocks).sum();
            for extent in &part.new {
                record.alloc(*extent);
            }
            if fresh > 0 {
                change.set(InodeMask::BLOCKS, |c| c.blocks += fresh);
            }
            for (from, to) in &part.ranges {
                // Broken on purpose: replay will put the logged bytes over these.
                let kept = broken::is(Variant::ReplayOldData);
                if !kept && self.store.is_resident(inode.ino, from * BLOCK, (to - from) * BLOCK) {
                    record.drop_data(inode.ino, from * BLOCK, (to - from) * BLOCK);
                }
            }
            let written_to = part.ranges.iter().map(|(_, to)| to * BLOCK).max().unwrap_or(0);
            let size = change.meta.logged_size.max(written_to.min(part.size));
            if size > change.meta.logged_size {
                change.logged_size = Some(size);
                change.mask |= InodeMask::SIZE;
            }
            if record.edits() > before || !change.mask.is_empty() {
                changes.push(change);
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.commit(handle, record, &mut changes)?;
        Ok(())
    }

    /// After the record: the blocks behind the pages have written extents now. Pages whose write failed are dirty again:
    /// an fsync that finds them tries anew, and never answers success for bytes that are not in place.
    fn settle(&self, inodes: &[Arc<Inode>], parts: &[Option<Part>], completed: bool) {
        for (inode, part) in inodes.iter().zip(parts) {
            let Some(part) = part else { continue };
            let mut pages = inode.pages.lock();
            let indices = || part.ranges.iter().flat_map(|(from, to)| *from..*to);
            indices().for_each(|index| pages.release_hold(index));
            if part.failed {
                self.account(self.keep_dirty(&mut pages, indices()));
                self.list_dirty(inode, &mut inode.meta.lock());
                continue;
            }
            let mut surplus = 0;
            for (from, to) in part.ranges.iter().filter(|_| completed) {
                for (_, page) in pages.map.range_mut(*from..*to) {
                    // A writer that came before the record was there has promised a block that is not needed.
                    surplus += (page.backing == Backing::Reserved) as u64;
                    page.backing = Backing::Written;
                }
            }
            pages.release(surplus);
        }
    }

    /// Pages that were to be written and were not. Blocks found for them were given back: they are promised anew.
    fn keep_dirty(&self, pages: &mut Pages, indices: impl Iterator<Item = u64>) -> Delta {
        let mut delta = Delta::default();
        for index in indices {
            delta.dirty += pages.mark_dirty(index, Some((0, BLOCK_SIZE as u16))).dirty;
            if pages.get(index).is_some_and(|page| page.backing == Backing::Unknown)
                // Without a promise, if others were faster, the page asks for space when it is written.
                && let Ok(promise) = self.store.alloc().reserve_data(1)
            {
                pages.reserve(promise);
                pages.map.get_mut(&index).expect("just seen").backing = Backing::Reserved;
            }
        }
        delta
    }

    fn unlist_clean(&self, inodes: &[Arc<Inode>]) {
        for inode in inodes {
            let pages = inode.pages.lock();
            let mut meta = inode.meta.lock();
            if meta.listed && pages.dirty_count() == 0 && meta.unlogged.is_empty() {
                meta.listed = false;
                self.dirty.remove(inode.ino);
            }
        }
    }

    /// Waits, before any lock, while too much is dirty: a little at first, then the writer helps to write.
    pub fn throttle(&self) -> Result<()> {
        if self.budget.over_background() {
            self.wake_flusher();
        }
        if let Some(delay) = self.budget.delay() {
            std::thread::sleep(delay);
        }
        for _ in 0..64 {
            if !self.budget.over_hard() {
                return Ok(());
            }
            self.stats.throttled.inc();
            let next = self.dirty.take(PASS_INODES, &*self.live.order());
            if !next.is_empty() {
                self.writeback(&next, Which::Dirty, Class::Normal)?;
            } else if let Some(inode) = self.dirty.any_under_writeback() {
                drop(inode.wb.lock()); // others write the rest
            } else {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl CheckpointClient for Fs {
    /// Oldest first, so that the tail can move even if the log is too full to complete all at once.
    fn prepare_checkpoint(&self) -> kedge_base::Result<()> {
        let resident = self.store.resident_inodes();
        for chunk in resident.chunks(PASS_INODES) {
            let inodes: Vec<Arc<Inode>> = chunk.iter().filter_map(|ino| self.inodes.get(*ino)).collect();
            match self.writeback(&inodes, Which::Logged, Class::Checkpoint) {
                Ok(()) => {}
                // Data that cannot be written, or has no room to be, stays in the log and holds the tail: what the store makes
                // of it is its own decision.
                Err(Error::Engine(e)) => return Err(e),
                Err(e) => return Err(kedge_base::Error::invalid(e.to_string())),
            }
        }
        Ok(())
    }
}
