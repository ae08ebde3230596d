//! Step 4 of [`super`]: writes the log-resident data that remains after replay in place.
//!
//! # Batches
//! Blocks of all inodes are gathered, [`BATCH_BLOCKS`] at a time. For each batch,
//! 1. the leaves with the inodes and extents are read in, in parallel;
//! 2. each block gets a location, and blocks of which the log has only a part are read, in
//!    parallel;
//! 3. all blocks are written in parallel, neighbours with one request;
//! 4. one record for each block maps it, if it was not mapped.
//!
//! The crash argument is that of the step as a whole. Nothing refers to these writes before the
//! checkpoint, and the checkpoint flushes before its slot. So the order of the writes does not
//! matter.
//!
//! # Files with checksums
//! A written block of such a file is never overwritten ([`kedge_format::sums`]): the bytes go to a
//! free block, and the record sets its checksum. A block of which the log has only a part is read
//! and verified first. If it is damaged, the new block gets a checksum that does not match, so that
//! no reader takes the damaged bytes beside the logged ones for valid. The old block is not reused
//! before the checkpoint is durable, because after a crash the next recovery reads it again. A full
//! image has the free blocks: in the running file system each page that would need one here held a
//! promise for one.
//!
//! # Files with data in the tree
//! A block whose bytes are in an inline item ([`kedge_format::inline`]) is treated like a block of
//! which the log has a part: its bytes and the logged ones go to a free block together. The record
//! that maps that block deletes the item.
//!
//! # When a write of step 4 fails
//! The block goes into quarantine (`Alloc::quarantine`) and the bytes go to a free block, as in the
//! running file system's writeback: one record frees the old block and maps the new one. After
//! [`PLACES_MAX`] failed blocks, or without a free block, the open fails, the error names inode and
//! block, and the bytes stay in the log. Continuing without the bytes would lose what an fsync
//! promised.
//!
//! If the log has only a part of a block and the rest cannot be read, the block cannot be completed
//! anywhere, and the open fails too. A read-only open continues, and all reads of that block fail.
//!
//! A crash during such a move leaves the slot and the log as they were, so the next recovery is
//! unaffected. It finds the old block mapped, perhaps with some sectors of the failed write, and
//! writes the same bytes over it. In that slot's view the new block has no owner. The old block is
//! not reused while the image is open. The checkpoint makes its release and the mapping of the new
//! block durable together.

use super::image::{KEYS_AT_A_TIME, Recovery};
use crate::apply::{Target, apply};
use crate::counts::CountChanges;
use crate::residents::{DrainedPiece, Source};
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, Extent, Ino, IoBuf, Lsn, Result};
use kedge_device::{Completion, Io, Op, run_batch};
use kedge_format::inline;
use kedge_format::item::ExtentItem;
use kedge_format::record::{InodeMask, Record, RecordBuilder, RecordOp};
use kedge_format::sums::{SumsItem, sum_of};
use kedge_format::{InodeCore, ItemKind, Key};
use kedge_log::RecordLsn;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The most blocks that are tried for one block of data whose writes fail.
const PLACES_MAX: usize = 8;
/// Blocks in a batch: 4 MiB. Bounds the memory and the requests in flight.
const BATCH_BLOCKS: usize = 1024;
/// The most blocks in a merged write.
const RUN_BLOCKS: usize = 64;

/// A block of a file of which log-resident data replaces a part or all.
struct Wanted<'a> {
    ino: Ino,
    file_block: u64,
    /// Size of the file in bytes.
    size: u64,
    /// Whether the file has checksums.
    sums: bool,
    pieces: &'a [DrainedPiece],
}

/// A block of a file with its final bytes and its location, ready to be written.
struct Placed {
    ino: Ino,
    file_block: u64,
    place: BlockNo,
    buf: IoBuf,
    /// The checksum of the bytes, if the file has checksums.
    sum: Option<u32>,
}

impl Recovery {
    /// The number of new blocks that overlay data needs: for holes, and for blocks that must not be
    /// overwritten. This is an upper bound, because bytes beyond the end of a file count too.
    pub(crate) fn overlay_holes(&self) -> Result<u64> {
        let (mut holes, mut group) = (0, Vec::new());
        for ino in self.residents.inodes_by_age() {
            let mut last = None;
            for range in self.residents.ranges(ino) {
                for block in range.offset / BLOCK..(range.offset + range.len).div_ceil(BLOCK) {
                    if last.replace(block) != Some(block) {
                        group.push((ino, block));
                    }
                    if group.len() >= KEYS_AT_A_TIME {
                        holes += self.count_holes(&group)?;
                        group.clear();
                    }
                    if holes >= self.sb.geometry.total_blocks {
                        return Ok(holes); // more than the image has, so the loop ends whatever the log contains
                    }
                }
            }
        }
        Ok(holes + self.count_holes(&group)?)
    }

    fn count_holes(&self, blocks: &[(Ino, u64)]) -> Result<u64> {
        let key = |&(ino, block): &(Ino, u64)| Key::new(ino, ItemKind::Extent, block);
        self.forest.prefetch(&blocks.iter().map(key).collect::<Vec<_>>());
        let mut last = None;
        let mut holes = 0;
        for &(ino, block) in blocks {
            let mapped = self.find_extent(ino, block)?;
            let sums = match last {
                Some((of, sums)) if of == ino => sums,
                _ => self.sb.geometry.has_sums() && self.has_sums(ino)?,
            };
            last = Some((ino, sums));
            let moves =
                |item: &ExtentItem| self.is_shared(ino, item) || item.counted || sums && !item.unwritten;
            holes += u64::from(mapped.is_none_or(|(_, item)| moves(&item)));
        }
        Ok(holes)
    }

    /// Writes what remains of the overlay in place.
    pub(crate) fn write_overlay(&mut self) -> Result<()> {
        let drained = self.residents.drain();
        let mut batch = Vec::new();
        for group in drained.chunks(KEYS_AT_A_TIME) {
            let inodes: Vec<Key> = group.iter().map(|(ino, _)| Key::inode(*ino)).collect();
            self.forest.prefetch(&inodes);
            for (ino, pieces) in group {
                self.summary.data_ranges += pieces.len() as u64;
                self.summary.data_bytes += pieces.iter().map(|(_, len, _)| len).sum::<u64>();
                let core = self.inode(*ino)?;
                let (size, sums) = (core.size, self.sb.geometry.sums_data(&core));
                let mut last = None;
                for (at, len, _) in pieces.iter().filter(|(at, len, _)| *at < size && *len > 0) {
                    for file_block in at / BLOCK..(at + len).min(size).div_ceil(BLOCK) {
                        if last.replace(file_block) == Some(file_block) {
                            continue;
                        }
                        batch.push(Wanted {
                            ino: *ino,
                            file_block,
                            size,
                            sums,
                            pieces: pieces_of(pieces, file_block),
                        });
                        if batch.len() == BATCH_BLOCKS {
                            self.write_batch(&std::mem::take(&mut batch))?;
                        }
                    }
                }
            }
        }
        self.write_batch(&batch)
    }

    fn inode(&self, ino: Ino) -> Result<InodeCore> {
        let Some(value) = self.forest.get(Key::inode(ino))? else {
            return Err(Error::corrupt_log(
                self.sb.checkpoint.tail_lsn,
                format!("data of inode {ino}, which does not exist"),
            ));
        };
        InodeCore::decode(&value)
    }

    fn write_batch(&mut self, batch: &[Wanted<'_>]) -> Result<()> {
        let keys =
            batch.iter().flat_map(|w| [Key::inode(w.ino), Key::new(w.ino, ItemKind::Extent, w.file_block)]);
        self.forest.prefetch(&keys.collect::<Vec<_>>());
        let placed = self.compose(batch)?;
        let places = self.write_all(&placed)?;
        for (block, at) in placed.iter().zip(places) {
            self.map(block, at)?;
        }
        Ok(())
    }

    /// Finds a location for each block and composes its bytes. Omits zeros over a hole.
    fn compose(&mut self, batch: &[Wanted<'_>]) -> Result<Vec<Placed>> {
        let mut found = Vec::with_capacity(batch.len());
        let mut reads = Vec::new();
        for wanted in batch {
            let mapped = self.find_extent(wanted.ino, wanted.file_block)?;
            let at = mapped.map(|mapped| place_of(mapped, wanted.file_block));
            let in_use = mapped.is_some_and(|(_, item)| !item.unwritten);
            // A block that is replaced as a whole is not read; it may be unreadable.
            let read = at.filter(|_| in_use && !covers(wanted.pieces, wanted.file_block, wanted.size));
            // A block that another tree or another file also uses, or that has a checksum, must not
            // be overwritten.
            let counted = |item: &ExtentItem| item.counted && !broken::is(Variant::CountsInReplay);
            let shared = mapped.is_some_and(|(_, item)| self.is_shared(wanted.ino, &item) || counted(&item));
            // Broken on purpose: a block with a checksum is overwritten.
            let stays = shared || wanted.sums && in_use && !broken::is(Variant::SumsInReplay);
            let place = at.filter(|_| !stays);
            if let Some(at) = read {
                reads.push(Io { offset: at.byte_offset(), op: Op::Read(IoBuf::zeroed(1)) });
            }
            let base = match mapped {
                None => self.in_tree(wanted.ino, wanted.file_block)?,
                Some(_) => None,
            };
            found.push((place, in_use || base.is_some(), read, base));
        }
        let mut answers = run_batch(&*self.device, reads).into_iter();
        let mut placed = Vec::with_capacity(batch.len());
        for (wanted, (place, in_use, read, base)) in batch.iter().zip(found) {
            let mut buf = IoBuf::zeroed(1);
            // Broken on purpose: the bytes that were in the tree are lost.
            if let Some(bytes) = base.filter(|_| !broken::is(Variant::InlineInReplay)) {
                buf.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
            }
            let mut damaged = false;
            if let Some(at) = read {
                match self.read_answer(wanted.ino, at, answers.next().expect("a read has a completion"))? {
                    Some(old) => buf = old,
                    None => continue,
                }
                damaged = wanted.sums && !self.matches(wanted, at, buf.as_bytes())?;
            }
            let has_bytes = overlay_bytes(buf.as_mut_bytes(), wanted.file_block, wanted.pieces);
            if !in_use && !has_bytes {
                continue;
            }
            let place = match place {
                Some(place) => place,
                None => {
                    let goal = self.alloc.goal_for(wanted.ino, wanted.ino);
                    self.alloc.alloc_data(goal, 1, self.promised.as_mut())?.start
                }
            };
            let sum = wanted.sums.then(|| match (sum_of(buf.as_bytes()), damaged) {
                (sum, false) => sum,
                (sum, true) => (!sum).max(1), // must not match
            });
            placed.push(Placed { ino: wanted.ino, file_block: wanted.file_block, place, buf, sum });
        }
        Ok(placed)
    }

    /// Whether the data of an inode has checksums; false if there is no such inode.
    fn has_sums(&self, ino: Ino) -> Result<bool> {
        let Some(value) = self.forest.get(Key::inode(ino))? else { return Ok(false) };
        Ok(self.sb.geometry.sums_data(&InodeCore::decode(&value)?))
    }

    fn sums_item(&self, ino: Ino, file_block: u64) -> Result<(Key, SumsItem)> {
        let key = Key::new(ino, ItemKind::Sums, SumsItem::first(file_block));
        let item = self.forest.get(key)?.map(|value| SumsItem::decode(&value)).transpose()?;
        Ok((key, item.unwrap_or_default()))
    }

    /// Whether the bytes of a written block match its checksum. Logs an error if they do not.
    fn matches(&self, wanted: &Wanted<'_>, at: BlockNo, bytes: &[u8]) -> Result<bool> {
        let (ino, file_block) = (wanted.ino, wanted.file_block);
        let matches = self.sums_item(ino, file_block)?.1.get(file_block) == sum_of(bytes);
        if !matches {
            tracing::error!(
                "inode {ino}: file block {file_block}, at block {at}, does not match its checksum; the log \
                 holds only a part of it: reads of the block will fail"
            );
        }
        Ok(matches)
    }

    /// The bytes of a block that was read. An error fails the open; in a read-only open the result
    /// is then `None`, and all later reads of the block fail.
    fn read_answer(&self, ino: Ino, at: BlockNo, completion: Completion) -> Result<Option<IoBuf>> {
        match (completion.result, completion.op, &self.read_only) {
            (Ok(()), Op::Read(buf), _) => Ok(Some(buf)),
            (Ok(()), ..) => unreachable!("a completion returns its request's operation"),
            (Err(e @ Error::Io { .. }), _, Some(overlay)) => {
                tracing::warn!("{}: reads of the block will fail", unplaced(ino, at, e.clone()));
                overlay.spoil(at, e);
                Ok(None)
            }
            (Err(e), ..) => Err(unplaced(ino, at, e)),
        }
    }

    /// Writes the blocks, each to its location or, if that write fails, to a free block. Returns
    /// the final location of each.
    fn write_all(&self, placed: &[Placed]) -> Result<Vec<BlockNo>> {
        let mut by_place: Vec<usize> = (0..placed.len()).collect();
        by_place.sort_unstable_by_key(|i| placed[*i].place);
        let follows = |a: &usize, b: &usize| placed[*a].place.0 + 1 == placed[*b].place.0;
        let runs: Vec<&[usize]> =
            by_place.chunk_by(follows).flat_map(|neighbours| neighbours.chunks(RUN_BLOCKS)).collect();
        let writes = runs.iter().map(|run| {
            let mut buf = IoBuf::zeroed(run.len());
            for (bytes, i) in buf.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE).zip(*run) {
                bytes.copy_from_slice(placed[*i].buf.as_bytes());
            }
            Io { offset: placed[run[0]].place.byte_offset(), op: Op::Write { buf, fua: false } }
        });
        // Blocks whose writes failed. The error is that of the block, if it was written alone.
        let mut refused: Vec<(usize, Option<Error>)> = Vec::new();
        for (completion, run) in run_batch(&*self.device, writes.collect()).into_iter().zip(&runs) {
            match (completion.result, *run) {
                (Ok(()), _) => {}
                (Err(e @ Error::Io { .. }), &[i]) => refused.push((i, Some(e))),
                (Err(Error::Io { .. }), run) => refused.extend(run.iter().map(|i| (*i, None))),
                // The device as a whole has failed.
                (Err(e), _) => return Err(e),
            }
        }
        // Sorted back into the order of inodes, so that an error names the first file.
        refused.sort_unstable_by_key(|(i, _)| *i);
        let mut places: Vec<BlockNo> = placed.iter().map(|block| block.place).collect();
        for (i, error) in refused {
            places[i] = match error {
                Some(error) => self.write_elsewhere(&placed[i], error)?,
                // A merged write failed: each of its blocks is written again alone, to find the bad
                // one.
                None => self.write_somewhere(&placed[i])?,
            };
        }
        Ok(places)
    }

    fn write_somewhere(&self, block: &Placed) -> Result<BlockNo> {
        match self.device.write(block.place.byte_offset(), &block.buf, false) {
            Ok(()) => Ok(block.place),
            Err(e @ Error::Io { .. }) => self.write_elsewhere(block, e),
            Err(e) => Err(e),
        }
    }

    /// Called when the write of a block has failed with `first_error`. Puts the block into
    /// quarantine and writes the bytes to a free block, which is returned.
    fn write_elsewhere(&self, block: &Placed, first_error: Error) -> Result<BlockNo> {
        let (ino, mut at, mut error) = (block.ino, block.place, first_error.clone());
        for _ in 1..PLACES_MAX {
            tracing::warn!("data of inode {ino} in the log: block {at} is set aside: {error}");
            if !self.alloc.quarantine(Extent::new(at, 1)) {
                break;
            }
            // Not from the recovery's promise, which covers only data that needs a new block
            // anyway.
            match self.alloc.alloc_data(self.alloc.goal_for(ino, ino), 1, None) {
                Ok(extent) => at = extent.start,
                Err(Error::NoSpace) => break,
                Err(e) => return Err(e),
            }
            error = match self.device.write(at.byte_offset(), &block.buf, false) {
                Ok(()) => return Ok(at),
                Err(e @ Error::Io { .. }) => e,
                Err(e) => return Err(e),
            };
        }
        Err(unplaced(ino, block.place, first_error))
    }

    /// Maps a block of a file to the block `at` where its bytes are now.
    fn map(&self, block: &Placed, at: BlockNo) -> Result<()> {
        let (ino, file_block) = (block.ino, block.file_block);
        let mut record = RecordBuilder::new(RecordOp::WriteBack);
        let mut waits = block.sum.is_some();
        // The extent is looked up again, since another block of the batch may have split it.
        if let Some((first, item)) = self.find_extent(ino, file_block)? {
            let old = place_of((first, item), file_block);
            if at != old {
                if item.counted {
                    let mut counts = CountChanges::new(&self.forest);
                    let freed = counts.remove(ino, Extent::new(old, 1))?;
                    counts.emit(&mut record);
                    freed.into_iter().for_each(|extent| record.free(extent));
                    waits = true;
                } else if !self.is_shared(ino, &item) {
                    record.free(Extent::new(old, 1));
                }
                record.alloc(Extent::new(at, 1));
            }
            if at != old || item.unwritten {
                map_block(&mut record, ino, (first, item), file_block, (at, self.forest.birth()));
            }
        } else {
            record.alloc(Extent::new(at, 1));
            let item = ExtentItem {
                start: at,
                blocks: 1,
                unwritten: false,
                birth: self.forest.birth(),
                counted: false,
            };
            record.put(Key::new(ino, ItemKind::Extent, file_block), &item.encode());
            if self.in_tree(ino, file_block)?.is_some() {
                record.delete(inline::key(ino));
            }
            let mut core = self.inode(ino)?;
            core.blocks += 1;
            record.inode(ino, InodeMask::BLOCKS, &core);
        }
        if let Some(sum) = block.sum {
            let (key, mut item) = self.sums_item(ino, file_block)?;
            item.set(file_block, sum);
            record.put(key, &item.encode());
        }
        if !record.is_empty() {
            let bytes = record.finish();
            // An old block that had a checksum, or that files shared, stays busy until the
            // checkpoint of this recovery is durable: after a crash the next recovery reads it
            // again.
            let end = if waits { self.checkpointed() } else { Lsn(0) };
            let lsn = RecordLsn { write_start: Lsn(0), start: Lsn(0), end };
            let target = Target {
                forest: &self.forest,
                alloc: &self.alloc,
                residents: &self.residents,
                spent: &[],
                replay: false,
            };
            apply(&target, lsn, &Record::decode(Lsn(0), &bytes)?.edits)?;
        }
        Ok(())
    }

    /// The inline data of a file block, if it is in the tree. Such a block has no extent.
    fn in_tree(&self, ino: Ino, file_block: u64) -> Result<Option<Vec<u8>>> {
        let max = self.sb.geometry.inline_max;
        if max == 0 || file_block != 0 {
            return Ok(None);
        }
        let Some(value) = self.forest.get(inline::key(ino))? else { return Ok(None) };
        inline::decode(ino, &value, max)?;
        Ok(Some(value))
    }

    fn is_shared(&self, ino: Ino, item: &ExtentItem) -> bool {
        self.forest.is_shared(ino, item.birth)
    }

    fn find_extent(&self, ino: Ino, file_block: u64) -> Result<Option<(u64, ExtentItem)>> {
        let key = Key::new(ino, ItemKind::Extent, file_block);
        let Some((found, value)) = self.forest.prev(key)? else { return Ok(None) };
        if (found.ino, found.kind) != (key.ino, key.kind) {
            return Ok(None);
        }
        let item = ExtentItem::decode(&value)?;
        Ok((file_block - found.offset < item.blocks as u64).then_some((found.offset, item)))
    }
}

/// The device block of a file block. `first` and `item`: the extent that maps it, and its first
/// file block.
fn place_of((first, item): (u64, ExtentItem), file_block: u64) -> BlockNo {
    BlockNo(item.start.0 + (file_block - first))
}

/// The pieces of an inode that overlap a block. The pieces are sorted and disjoint, so a binary
/// search finds these. A check of each piece for each block would take hours if one file filled a
/// log of 1 GiB.
fn pieces_of(pieces: &[DrainedPiece], file_block: u64) -> &[DrainedPiece] {
    let start = file_block * BLOCK_SIZE as u64;
    let first = pieces.partition_point(|(at, len, _)| at + len <= start);
    let count = pieces[first..].partition_point(|(at, _, _)| *at < start + BLOCK_SIZE as u64);
    &pieces[first..first + count]
}

/// Copies the parts of pieces that overlap a block into it. Returns whether any of these pieces is
/// data rather than zeros.
fn overlay_bytes(block: &mut [u8], file_block: u64, pieces: &[DrainedPiece]) -> bool {
    let start = file_block * BLOCK_SIZE as u64;
    let end = start + BLOCK_SIZE as u64;
    let mut any = false;
    for (at, len, source) in pieces {
        let (from, to) = ((*at).max(start), (at + len).min(end));
        if from >= to {
            continue;
        }
        let target = &mut block[(from - start) as usize..(to - start) as usize];
        match source {
            Source::Bytes(bytes, skip) => {
                let skip = skip + (from - at) as usize;
                target.copy_from_slice(&bytes[skip..skip + target.len()]);
                any = true;
            }
            Source::Zero | Source::Live => target.fill(0),
        }
    }
    any
}

/// Whether the pieces of a block replace all of its bytes below the end of the file.
fn covers(pieces: &[DrainedPiece], file_block: u64, size: u64) -> bool {
    let start = file_block * BLOCK_SIZE as u64;
    let end = (start + BLOCK_SIZE as u64).min(size);
    let reached = pieces.iter().fold(start, |to, (at, len, _)| if *at <= to { to.max(at + len) } else { to });
    reached >= end
}

/// Makes an error that names inode and block from an error of the device.
fn unplaced(ino: Ino, block: BlockNo, error: Error) -> Error {
    match error {
        Error::Io { .. } => Error::Unplaced { ino, block, why: Arc::new(error) },
        other => other,
    }
}

/// Splits an extent around one file block, which is now written, at device block `place`. If that
/// block is new, its extent gets the given birth.
fn map_block(
    record: &mut RecordBuilder,
    ino: Ino,
    (first, item): (u64, ExtentItem),
    file_block: u64,
    (place, birth): (BlockNo, u32),
) {
    let at = file_block - first;
    let mut put = |from: u64, blocks: u64, piece: ExtentItem| {
        if blocks > 0 {
            let piece = ExtentItem { blocks: blocks as u32, ..piece };
            record.put(Key::new(ino, ItemKind::Extent, first + from), &piece.encode());
        }
    };
    let old = |from: u64| ExtentItem { start: BlockNo(item.start.0 + from), ..item };
    let (birth, counted) = if place == old(at).start { (item.birth, item.counted) } else { (birth, false) };
    put(0, at, old(0));
    put(at, 1, ExtentItem { start: place, blocks: 1, unwritten: false, birth, counted });
    put(at + 1, item.blocks as u64 - at - 1, old(at + 1));
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
