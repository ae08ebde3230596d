//! The second half of a pass: the writes, the record, and what becomes of the pages.

use super::plan::{Gathered, How, Part, Writing};
use super::{BLOCK, SPLIT_BLOCKS_MAX};
use crate::core::{Change, Fs};
use crate::inode::Inode;
use crate::pages::{Backing, Delta, Pages};
use crate::{Error, Result};
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, BlockNo, Extent, IoBuf};
use kedge_device::{Io, Op, run_batch};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_store::{Handle, WriteSeq};
use std::sync::Arc;
use std::time::Duration;

/// A write that failed: its page, and where it went.
struct Piece {
    who: usize,
    index: u64,
    at: BlockNo,
}

impl Fs {
    /// Writes what was gathered as one batch, and notes in the parts which pages the device did not
    /// take. Answers the first error, also one that a second try mended.
    pub(super) fn write_gathered(
        &self,
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
            users.push((io.start, io.users));
        }
        let alone = if durable { self.all_flushed() } else { None };
        let mut first_error = None;
        let (mut again, mut pieces) = (Vec::new(), Vec::new());
        for (completion, (start, users)) in run_batch(&**self.store.device(), ios).into_iter().zip(users) {
            let Err(e) = completion.result else { continue };
            self.stats.data_write_errors.inc();
            tracing::error!("writeback: {e}");
            let flush_lost = durable && (alone.is_none() || self.all_flushed() != alone);
            let last = matches!(e, kedge_base::Error::Fenced | kedge_base::Error::OutcomeUnknown);
            if flush_lost || last {
                self.store.shutdown(&e);
            }
            first_error.get_or_insert(Error::from(e));
            for (who, ..) in &users {
                parts[*who].as_mut().expect("a write belongs to a part").met_error = true;
            }
            let pages = users.iter().flat_map(|(who, from, count)| (*from..from + count).map(|i| (*who, i)));
            let failed: Vec<Piece> = pages
                .zip(start.0..)
                .map(|((who, index), at)| Piece { who, index, at: BlockNo(at) })
                .collect();
            let Op::Write { buf, .. } = completion.op else { continue };
            if durable || last || failed.len() == 1 || again.len() + failed.len() > SPLIT_BLOCKS_MAX {
                failed.iter().for_each(|p| note_failed(parts, p));
                continue;
            }
            for (piece, bytes) in failed.iter().zip(buf.as_bytes().chunks_exact(BLOCK_SIZE)) {
                let op = Op::Write { buf: IoBuf::from_bytes(bytes), fua: false };
                again.push(Io { offset: piece.at.byte_offset(), op });
            }
            pieces.extend(failed);
        }
        self.write_again(parts, again, &pieces);
        first_error.map_or(Ok(()), Err)
    }

    /// Writes the blocks of failed writes once more, each by itself.
    fn write_again(&self, parts: &mut [Option<Part>], again: Vec<Io>, pieces: &[Piece]) {
        if again.is_empty() {
            return;
        }
        self.stats.data_writes.add(again.len() as u64);
        self.stats.data_write_bytes.add((again.len() * BLOCK_SIZE) as u64);
        for (completion, piece) in run_batch(&**self.store.device(), again).into_iter().zip(pieces) {
            if let Err(e) = completion.result {
                self.stats.data_write_errors.inc();
                tracing::error!("writeback, once more: {e}");
                if matches!(e, kedge_base::Error::Fenced | kedge_base::Error::OutcomeUnknown) {
                    self.store.shutdown(&e);
                }
                note_failed(parts, piece);
            }
        }
    }

    /// For a pass over one inode: the newest data write, if nothing waits for a flush and nothing
    /// else is being written.
    fn all_flushed(&self) -> Option<WriteSeq> {
        let newest = self.store.data_write_seq();
        (self.dirty.count_under_writeback() <= 1 && self.store.data_flushed(newest)).then_some(newest)
    }

    /// The record of a pass. `durable`: its data is, no flush is needed for it.
    pub(super) fn complete(
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
            part.leave_out_failed(meta.logged_size);
            if let Some(seq) = seq {
                meta.progress.write_seq = seq;
            }
            let core = meta.core;
            let mut change = Change { inode, meta, core, mask: InodeMask::default(), logged_size: None };
            if self.record_part(&mut record, part, &mut change) {
                changes.push(change);
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.commit(handle, record, &mut changes)?;
        Ok(())
    }

    /// One inode's part of the record. Answers whether it has any.
    fn record_part(&self, record: &mut RecordBuilder, part: &mut Part, change: &mut Change<'_>) -> bool {
        let ino = change.inode.ino;
        let before = record.edits();
        std::mem::take(&mut part.set).emit(record, ino);
        let mut fresh = 0;
        for (extent, old) in part.taken_runs() {
            record.alloc(extent);
            match old {
                Some(old) => record.free(old),
                None => fresh += extent.blocks,
            }
        }
        if fresh > 0 {
            change.set(InodeMask::BLOCKS, |c| c.blocks += fresh);
        }
        for (from, to) in part.ranges.iter().flat_map(|(from, to)| part.taken(*from, *to)) {
            // Broken on purpose: replay will put the logged bytes over these.
            let kept = broken::is(Variant::ReplayOldData);
            if !kept && self.store.is_resident(ino, from * BLOCK, (to - from) * BLOCK) {
                record.drop_data(ino, from * BLOCK, (to - from) * BLOCK);
            }
        }
        let size = change.meta.logged_size.max(part.size_to_record());
        if size > change.meta.logged_size {
            change.logged_size = Some(size);
            change.mask |= InodeMask::SIZE;
        }
        record.edits() > before || !change.mask.is_empty()
    }

    /// After the record: pages that it is about are in place. The others are what they were: an
    /// fsync that finds them tries anew, and never answers success for bytes that are not in place.
    /// `wb` of the inodes is held.
    pub(super) fn settle(&self, inodes: &[Arc<Inode>], parts: &[Option<Part>], completed: bool) {
        for (inode, part) in inodes.iter().zip(parts) {
            let Some(part) = part else { continue };
            let mut pages = inode.pages.lock();
            let (mut surplus, mut delta) = (0, Delta::default());
            let mut all = true;
            for page in &part.writing {
                let failed = part.failed.contains(&page.index);
                // Broken on purpose: a record that failed leaves its pages clean.
                let recorded = completed || broken::is(Variant::ErrorNotPropagated);
                if recorded && !part.kept.contains(&page.index) {
                    surplus += pages.written(page.index) as u64;
                    self.stats.relocated_writes.add((page.how == How::Moved) as u64);
                } else {
                    all = false;
                    delta.dirty += pages.not_written(page.index, page.before).dirty;
                    self.give_up_place(&mut pages, page, failed);
                }
            }
            pages.release(surplus);
            self.account(delta);
            let mut meta = inode.meta.lock();
            meta.write_failed |= !completed || part.met_error;
            if all {
                (meta.failures, meta.retry_at) = (0, Duration::ZERO);
            } else if pages.dirty_count() > 0 {
                self.list_dirty(inode, &mut meta);
            }
        }
    }

    /// The page did not get its place. A place that the device does not take is set aside; one that
    /// only has no record is given back.
    fn give_up_place(&self, pages: &mut Pages, page: &Writing, failed: bool) {
        let block = Extent::new(page.block, 1);
        let bad = failed && self.store.alloc().quarantine(block);
        match page.how {
            How::InPlace => {
                if bad {
                    pages.set_bad_home(page.index);
                }
            }
            // A record that failed half-way has shut the store down; which blocks it took is
            // unknown then.
            _ if !bad && self.store.check_alive().is_err() => {}
            How::Moved => {
                if !bad {
                    self.store.release_data(block);
                }
            }
            How::New => {
                // Without a promise, on a full image, the page asks for space when it is written.
                let promise = match bad {
                    true => self.store.alloc().reserve_data(1).ok(),
                    false => Some(self.store.alloc().unplace_data(block)),
                };
                let p = pages.map.get_mut(&page.index).expect("it was just being written");
                // A writer that found no extent meanwhile has made a promise of its own.
                if let Some(promise) = promise
                    && p.backing == Backing::Unknown
                {
                    p.backing = Backing::Reserved;
                    pages.reserve(promise);
                }
            }
        }
    }
}

fn note_failed(parts: &mut [Option<Part>], piece: &Piece) {
    parts[piece.who].as_mut().expect("a write belongs to a part").failed.insert(piece.index);
}
