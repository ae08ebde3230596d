//! One pass of writeback: [`Pass::run`] runs its phases, each in a file of its own.
//!
//! plan → gather → write → complete → settle

mod complete;
mod gather;
mod part;
mod plan;
mod settle;
mod write;

use super::{BLOCK, Writeback};
use crate::cache::inode::{Inode, tree_count};
use crate::cache::pages::Which;
use crate::durability::dirty::DirtyList;
use crate::error::{Error, Result};
use crate::inline;
use crate::stats::FsStats;
use kedge_base::Ino;
use kedge_base::atomic::{AtomicU32, Ordering};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::MutexGuard;
use kedge_device::FuaKind;
use kedge_format::counts::CountItem;
use kedge_format::record::{InodeMask, size};
use kedge_format::sums::SumsItem;
use kedge_store::{CHECKPOINT_RECORD_MAX, Class, ForceCause, Handle, Need, PROMISE_PER_PIECE, Store};
use part::{COUNTED_STEP_BYTES, Gathered, Part, SUMS_BYTES, SUMS_STEP_BYTES, put_bytes};
use std::ops::Range;
use std::sync::Arc;

/// The most inodes, pages and segments of a pass. They bound the record, the locks held and the
/// memory for copies.
pub(crate) const PASS_INODES: usize = 128;
const PASS_PAGES: usize = 1024;
pub(super) const PASS_SEGMENTS: usize = 256;
/// Segments of a pass on an image that is too full for a wide one.
const NARROW_SEGMENTS: usize = 8;
/// Largest merged write, in blocks.
const MERGE_BLOCKS_MAX: u64 = 256;
/// The most durable writes in flight.
const DURABLE_MAX: u32 = 4;
/// Longest durable write, in blocks: a longer one takes longer than a flush.
const DURABLE_BLOCKS_MAX: usize = 16;
/// Log bytes for inline items of a pass over several inodes.
const IN_TREE_BYTES: u64 = 64 << 10;
/// The most blocks of failed writes that one pass writes again one by one.
const SPLIT_BLOCKS_MAX: usize = MERGE_BLOCKS_MAX as usize;
/// Which pages a pass writes, and how.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub which: Which,
    pub class: Class,
    /// Normal maximum of runs of blocks; log bytes are reserved for this many.
    pub segments_max: usize,
    /// Whether the pass belongs to an fsync, and uses durable writes if these are cheaper than a
    /// flush.
    pub durable: bool,
    /// Whether the pass is part of an fsync that logs time stamps afterwards.
    pub stamps: bool,
    /// Whether every failed write is returned to the caller, without a retry.
    pub told: bool,
    /// Whether small files go into the tree. On an image without nodes for that they get the blocks
    /// that were promised to their pages.
    pub in_tree: bool,
}

/// The outcome of a pass.
#[must_use]
pub(super) struct Ended {
    pub more: bool,
    /// The error of a failed write, if the caller must get it.
    pub error: Option<Error>,
}

impl Kind {
    /// The same kind of pass for an image that is too full for a wide one.
    pub(super) fn narrow(self) -> Kind {
        Kind { segments_max: NARROW_SEGMENTS, in_tree: false, ..self }
    }

    /// Whether pages may go into the tree. Log-resident bytes may not: the log space promised for
    /// the record that ends their residency is too small for the bytes themselves.
    fn takes_in_tree(self) -> bool {
        self.in_tree && self.which != Which::Logged
    }

    pub(super) fn told(which: Which, durable: bool) -> Kind {
        Kind {
            which,
            class: Class::Promised,
            segments_max: PASS_SEGMENTS,
            durable,
            stamps: false,
            told: true,
            in_tree: true,
        }
    }
}

/// Fields of an inode that a pass records, including pending time stamps.
const PATCHED: InodeMask = InodeMask(
    InodeMask::SIZE.0
        | InodeMask::BLOCKS.0
        | InodeMask::CHANGE.0
        | InodeMask::ATIME.0
        | InodeMask::MTIME.0
        | InodeMask::CTIME.0,
);
/// Upper bound on the log bytes of one step of the plan, in which a run of pages gets a run of
/// blocks. An extent is cut in three, or put between two others; the step may allocate a run of
/// blocks, free one, and end the log residency of a range.
const STEP_BYTES: u64 = 4 * size::EXTENT_ITEM + 2 * size::RUN + size::RANGE + size::DELETE;
/// Log bytes of a usual step: the pages are in a hole or in an unwritten extent.
const SEGMENT_BYTES: u64 = 3 * size::EXTENT_ITEM + size::RUN + size::RANGE;

// The record of a pass for a checkpoint fits into the part of a full log that is reserved for
// checkpoints.
const _: () = assert!(
    need(Class::Checkpoint, PASS_INODES, PASS_SEGMENTS, 1, Some(0), true).log_bytes <= CHECKPOINT_RECORD_MAX
);
// The log bytes promised for a resident piece suffice for the record that ends its residency.
const _: () = assert!(
    size::patch(PATCHED)
        + 3 * size::EXTENT_ITEM
        + 2 * size::RUN
        + size::RANGE
        + SUMS_BYTES
        + 3 * size::put(CountItem::SIZE)
        + size::DELETE
        <= PROMISE_PER_PIECE
);

/// The need of a pass over this many inodes, whose extents change in `places` leaves of the tree.
/// `sums`: if the files have checksums, the number of their items, besides those of one step.
/// `counts`: whether blocks of the files may have counts.
const fn need(
    class: Class,
    inodes: usize,
    segments: usize,
    places: usize,
    sums: Option<usize>,
    counts: bool,
) -> Need {
    let sums = match sums {
        Some(items) => items as u64 * SUMS_BYTES + SUMS_STEP_BYTES,
        None => 0,
    };
    let counts = if counts { COUNTED_STEP_BYTES } else { 0 };
    let bytes = inodes as u64 * size::patch(PATCHED) + segments as u64 * SEGMENT_BYTES + STEP_BYTES;
    let bytes = bytes + sums + counts;
    let need = Need::record(class);
    Need {
        log_bytes: need.log_bytes + bytes,
        changes: inodes as u32,
        puts: places as u32,
        neighbours: segments as u32,
        ..need
    }
}

/// The inodes of a pass while they are on the under-writeback list.
struct UnderWriteback<'a> {
    dirty: &'a DirtyList,
    inos: Vec<Ino>,
}

impl<'a> UnderWriteback<'a> {
    fn join(dirty: &'a DirtyList, inodes: &[Arc<Inode>], parts: &[Option<Part>]) -> UnderWriteback<'a> {
        let written = inodes.iter().zip(parts).filter(|(_, part)| part.is_some());
        let inos = written.map(|(inode, _)| {
            dirty.join_writeback(inode);
            inode.ino
        });
        UnderWriteback { dirty, inos: inos.collect() }
    }
}

impl Drop for UnderWriteback<'_> {
    fn drop(&mut self) {
        self.inos.iter().for_each(|ino| self.dirty.leave_writeback(*ino));
    }
}

/// Durable writes that count as in flight until this is dropped.
struct DurableTurn<'a> {
    under_way: &'a AtomicU32,
    count: u32,
}

impl Drop for DurableTurn<'_> {
    fn drop(&mut self) {
        self.under_way.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// A pass over some inodes. It holds their `wb` locks.
pub(super) struct Pass<'a> {
    writeback: &'a Writeback,
    inodes: &'a [Arc<Inode>],
    kind: Kind,
    /// One for each planned inode; `None` if there is nothing to write.
    parts: Vec<Option<Part>>,
    _wb: Vec<MutexGuard<'a, ()>>,
    handle: Handle<'a>,
}

impl<'a> Pass<'a> {
    /// Reserves, then takes the locks.
    pub(super) fn begin(writeback: &'a Writeback, inodes: &'a [Arc<Inode>], kind: Kind) -> Result<Pass<'a>> {
        // Many fsyncs of one inode each may run at once, so a pass over one inode reserves log only
        // for the pages that are unclean now. If there are more when it has the lock, another pass
        // writes them.
        let has_sums = inodes.iter().any(|inode| inode.has_sums());
        let (kind, places, items) = match inodes {
            [one] => {
                let pages = one.pages.lock().unclean(kind.which, 0..u64::MAX, kind.segments_max);
                let runs = pages.chunk_by(|a, b| a + 1 == *b).count();
                let items = pages.chunk_by(|a, b| SumsItem::first(*a) == SumsItem::first(*b)).count();
                let places = if has_sums { runs + items.min(runs) } else { runs };
                (Kind { segments_max: pages.len().max(NARROW_SEGMENTS), ..kind }, places, items)
            }
            _ => (kind, kind.segments_max, 0),
        };
        let sums = has_sums.then_some(items);
        // The counts of a run of blocks are in another leaf than its extent.
        let counts = writeback.engine.store().has_clones();
        let places = if counts { 2 * places } else { places };
        // If there are no nodes for all places, fewer are reserved; the pass then ends early.
        let trees = tree_count(inodes);
        // Log bytes for inline items, if pages may go into the tree.
        let in_tree = match (inline::max(writeback.engine.store()), inodes) {
            (0, _) => 0,
            _ if !kind.takes_in_tree() => 0,
            (longest, [_]) => put_bytes(longest),
            _ => IN_TREE_BYTES,
        };
        let need = |places| {
            let need = need(kind.class, inodes.len(), kind.segments_max, places, sums, counts);
            Need { log_bytes: need.log_bytes + in_tree, ..need }.in_trees(trees)
        };
        let handle = writeback
            .engine
            .begin_up_to(need(places.max(NARROW_SEGMENTS)), need(NARROW_SEGMENTS.min(kind.segments_max)))
            .inspect_err(|e| {
                // The log itself may have found the host full. Then no more bytes are accepted
                // until it has space.
                if let Error::Engine(e) = e {
                    writeback.engine.note_host_error(e);
                }
            })?;
        let wb = inodes.iter().map(|i| i.wb.lock()).collect();
        let parts = Vec::with_capacity(inodes.len());
        Ok(Pass { writeback, inodes, kind, parts, _wb: wb, handle })
    }

    fn store(&self) -> &'a Store {
        self.writeback.engine.store()
    }

    fn stats(&self) -> &'a FsStats {
        self.writeback.engine.stats()
    }

    /// Writes the pages in `left`, and removes the written ones from it. `None` stands for all
    /// pages that are unclean now.
    pub(super) fn run(mut self, left: &mut Option<Vec<Range<u64>>>) -> Result<Ended> {
        let (writeback, inodes) = (self.writeback, self.inodes);
        // Listed with `wb` held: pages that another writeback took and failed to write are unclean
        // again.
        let left = left.get_or_insert_with(|| {
            inodes.iter().map(|i| 0..i.pages.lock().unclean_end(self.kind.which)).collect()
        });
        let (segments, planned) = self.plan(left);
        let more = left.iter().any(|left| !left.is_empty());
        if segments.is_empty() && !self.parts.iter().flatten().any(Part::is_in_tree) {
            writeback.unlist_clean(inodes);
            return planned.map(|()| Ended { more: false, error: None });
        }
        let busy = UnderWriteback::join(&writeback.dirty, inodes, &self.parts);
        let early = broken::is(Variant::ExtentBeforeData).then(|| self.complete_early());
        let ios = self.gather(segments);
        let turn = if self.kind.durable && !more { self.durable_turn(&ios) } else { None };
        let written = self.write(ios, turn.is_some());
        let completed = match early {
            Some(completed) => {
                self.note_late();
                completed
            }
            None => self.complete(turn.is_some()),
        };
        drop(turn);
        self.settle(completed.is_ok());
        drop(busy);
        writeback.unlist_clean(inodes);
        completed?;
        // Pages that were planned before the error have been written.
        planned?;
        let failed = self.parts.iter().flatten().any(|part| !part.kept.is_empty());
        Ok(Ended { more, error: written.err().filter(|_| failed || self.kind.told) })
    }

    /// Broken on purpose: commits the record before the data is written, and forces the log as
    /// another thread could meanwhile.
    fn complete_early(&mut self) -> Result<()> {
        for (inode, part) in self.inodes.iter().zip(&mut self.parts) {
            if let Some(part) = part {
                part.size = inode.meta.lock().core.size;
            }
        }
        self.complete(false)?;
        let store = self.store();
        Ok(store.force(store.head_lsn(), ForceCause::Fsync)?)
    }

    /// Makes the fsyncs of these inodes flush the data that was written after an early record.
    fn note_late(&self) {
        let seq = self.store().note_data_write();
        self.inodes.iter().for_each(|inode| inode.meta.lock().progress.write_seq = seq);
    }

    /// Whether the pass only overwrites bytes to which records refer already, so that it has no
    /// record of its own.
    fn only_overwrites(&self) -> bool {
        self.inodes.iter().zip(&self.parts).all(|(inode, part)| {
            let Some(part) = part else { return true };
            let logged_size = inode.meta.lock().logged_size;
            let is_resident = |(from, to): &(u64, u64)| {
                self.store().is_resident(inode.ino, from * BLOCK, (to - from) * BLOCK)
            };
            part.only_overwrites(logged_size) && !part.ranges.iter().any(is_resident)
        })
    }

    /// Whether one of these writes is the first to a block that the host of the image has not
    /// allocated. Blocks with written bytes of a file are allocated, so that an fsync of a file
    /// that is only overwritten makes no system call here.
    fn may_need_host_space(&self, ios: &[Gathered]) -> bool {
        let overwrites = |part: &Part| part.new.is_empty() && part.unwritten.is_empty();
        if self.parts.iter().flatten().all(overwrites) {
            return false;
        }
        let device = self.store().device();
        ios.iter().any(|io| device.first_hole(io.start.byte_offset(), io.buf.len() as u64).is_some())
    }

    /// Decides whether these writes for fsyncs are durable writes. `wb` of the inodes is held.
    fn durable_turn(&self, ios: &[Gathered]) -> Option<DurableTurn<'a>> {
        let writeback = self.writeback;
        // With several inodes this is the pass of a group, whose calls the inodes' counts do not
        // include.
        let alone = self.inodes.len() > 1 || self.inodes[0].syncing.load(Ordering::Relaxed) <= 1;
        let count = ios.len() as u32;
        let fits = count <= self.inodes.len() as u32;
        // The log write of the time stamps shares its flush with the data. Where each FUA write is
        // a write and a flush, that is one flush instead of two.
        let emulated = self.store().device().geometry().fua == FuaKind::Emulated;
        let shares = self.kind.stamps && emulated && self.only_overwrites();
        if !alone || !fits || shares || ios.iter().any(|io| io.buf.blocks() > DURABLE_BLOCKS_MAX) {
            return None;
        }
        // If earlier data of a file waits for a flush, its fsync needs that flush anyway.
        let flushed = |inode: &Inode| {
            let seq = inode.meta.lock().progress.write_seq;
            writeback.engine.store().data_flushed(seq)
        };
        if !self.inodes.iter().all(|inode| flushed(inode)) || self.may_need_host_space(ios) {
            return None;
        }
        let others = writeback.durable_writes.fetch_add(count, Ordering::Relaxed);
        let turn = DurableTurn { under_way: &writeback.durable_writes, count };
        (others + count <= DURABLE_MAX).then_some(turn)
    }
}
