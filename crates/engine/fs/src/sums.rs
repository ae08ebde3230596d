//! Checksums of file data: verified when blocks are read, recorded when they are written.
//!
//! A file whose data has checksums ([`kedge_format::sums`]) is never overwritten in place: bytes
//! that replace others go to another block, as for a block that another tree uses
//! ([`crate::extents::Place::Shared`]). Two alternatives were measured or rejected:
//! - overwriting in place and also logging the block: each byte is written twice, also those of
//!   large writes;
//! - two checksums, one of them for the bytes that may be there after a crash: after several
//!   overwrites between two records any of them may be there, and sectors of each.
//!
//! The few bytes of a small fsync still go to the log first, and to their new block later.
//!
//! # Crash argument
//! A block that a durable record names is not written again until a durable record has freed it.
//! The record that names a block also has its checksum. So after any crash each named block has the
//! bytes from which the checksum was computed. Three cases need more than that:
//! - A *preallocated block* is written in place. Until the record that marks it as written is
//!   durable, it reads as zeros, and its checksum is not used.
//! - *Zero range* marks written blocks as unwritten, and the next write goes to the same block. So
//!   zero range forces the log before anything can be written to these blocks (`data::fallocate`).
//! - *Recovery* completes blocks of which the log has a part. It reads the old block, verifies it,
//!   and writes the result to a free block. So after a crash of the recovery the next one finds the
//!   same state (`kedge_store`, recovery).
//!
//! Collapse and insert range move checksums with their blocks, in the same record.
//!
//! A truncate cuts off bytes that stay in their block, under its checksum, until the block is
//! written again. A reader verifies the block as it is on the device, and then zeroes these bytes.

use crate::error::Result;
use kedge_base::{BlockNo, CorruptKind, Error, Ino};
use kedge_format::record::RecordBuilder;
use kedge_format::sums::{SUMS_BLOCKS, SumsItem, sum_of};
use kedge_format::{ItemKind, Key};
use kedge_store::Store;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

fn key(ino: Ino, file_block: u64) -> Key {
    Key::new(ino, ItemKind::Sums, SumsItem::first(file_block))
}

/// The checksums of a run of file blocks.
pub(crate) struct Sums {
    from: u64,
    sums: Vec<u32>,
}

impl Sums {
    /// Reads the checksums of file blocks `[from, to)`. The caller reads the extents between the
    /// same two records.
    pub(crate) fn read(store: &Store, ino: Ino, from: u64, to: u64) -> Result<Sums> {
        let mut sums = vec![0; (to - from) as usize];
        let mut bad = None;
        store.scan(key(ino, from), key(ino, to - 1), &mut |at, value| match SumsItem::decode(value) {
            Ok(item) => {
                for (i, sum) in item.0.into_iter().enumerate() {
                    let block = at.offset.saturating_add(i as u64);
                    if (from..to).contains(&block) {
                        sums[(block - from) as usize] = sum;
                    }
                }
                ControlFlow::Continue(())
            }
            Err(e) => {
                bad = Some(e);
                ControlFlow::Break(())
            }
        })?;
        bad.map_or(Ok(Sums { from, sums }), |e| Err(e.into()))
    }

    /// The checksum of a file block; 0 for none.
    pub(crate) fn get(&self, file_block: u64) -> u32 {
        self.sums[(file_block - self.from) as usize]
    }

    /// Verifies the bytes of a written block. An error names the inode and the block.
    pub(crate) fn verify(&self, ino: Ino, file_block: u64, at: BlockNo, bytes: &[u8]) -> Result<()> {
        let sum = self.get(file_block);
        if sum == sum_of(bytes) {
            return Ok(());
        }
        let what = match sum {
            0 => format!("inode {ino}: file block {file_block} has no checksum"),
            _ => format!("inode {ino}: the checksum of file block {file_block} does not match"),
        };
        Err(Error::corrupt(CorruptKind::Data, at, what).into())
    }
}

/// Adds the edits that set the checksums of written blocks, given in ascending order. The caller
/// holds `wb` of the inode.
pub(crate) fn emit(store: &Store, record: &mut RecordBuilder, ino: Ino, blocks: &[(u64, u32)]) -> Result<()> {
    for group in blocks.chunk_by(|(a, _), (b, _)| SumsItem::first(*a) == SumsItem::first(*b)) {
        let key = key(ino, group[0].0);
        let mut item = match store.get(key)? {
            Some(value) => SumsItem::decode(&value)?,
            None => SumsItem::default(),
        };
        group.iter().for_each(|(block, sum)| item.set(*block, *sum));
        record.put(key, &item.encode());
    }
    Ok(())
}

/// Adds the edits that delete checksum items, up to `max`, that lie wholly in file blocks `[from,
/// to)`. Returns their number. The caller holds `wb` of the inode.
pub(crate) fn remove(
    store: &Store,
    record: &mut RecordBuilder,
    ino: Ino,
    (from, to): (u64, u64),
    max: usize,
) -> Result<usize> {
    let (first, end) = (SumsItem::first(from.saturating_add(SUMS_BLOCKS - 1)), to);
    let mut count = 0;
    if max == 0 || first >= end {
        return Ok(0);
    }
    store.scan(key(ino, first), Key::new(ino, ItemKind::Sums, end - 1), &mut |at, _| {
        if end < u64::MAX && at.offset.saturating_add(SUMS_BLOCKS) > end {
            return ControlFlow::Break(());
        }
        record.delete(at);
        count += 1;
        if count >= max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(count)
}

/// The number of checksum items of file blocks from `first` on, up to `max`.
pub(crate) fn count(store: &Store, ino: Ino, first: u64, max: usize) -> Result<usize> {
    if !store.geometry().has_sums() {
        return Ok(0);
    }
    let mut count = 0;
    store.scan(key(ino, first), Key::new(ino, ItemKind::Sums, u64::MAX), &mut |_, _| {
        count += 1;
        if count >= max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(count)
}

/// Adds the edits that move the checksums of file blocks from `from` on by `by` blocks, and delete
/// those of blocks in `[first, from)`. Returns false, and adds no edit, if there are more than
/// `max` items. The caller holds `wb` of the inode.
pub(crate) fn shift(
    store: &Store,
    record: &mut RecordBuilder,
    ino: Ino,
    first: u64,
    (from, by): (u64, i64),
    max: usize,
) -> Result<bool> {
    if !store.geometry().has_sums() {
        return Ok(true);
    }
    let mut was: BTreeMap<u64, SumsItem> = BTreeMap::new();
    let mut bad = None;
    store.scan(key(ino, first), Key::new(ino, ItemKind::Sums, u64::MAX), &mut |at, value| {
        match SumsItem::decode(value) {
            Ok(item) => drop(was.insert(at.offset, item)),
            Err(e) => bad = Some(e),
        }
        if bad.is_some() || was.len() > max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(e) = bad {
        return Err(e.into());
    }
    if was.len() > max {
        return Ok(false);
    }
    let mut now: BTreeMap<u64, SumsItem> = BTreeMap::new();
    for (at, item) in &was {
        for (block, sum) in (*at..).zip(item.0).filter(|(_, sum)| *sum != 0) {
            let to = match block {
                block if block < first => block,
                block if block < from => continue,
                block => block.wrapping_add_signed(by),
            };
            now.entry(SumsItem::first(to)).or_default().set(to, sum);
        }
    }
    for at in was.keys().filter(|at| !now.contains_key(at)) {
        record.delete(key(ino, *at));
    }
    for (at, item) in now.iter().filter(|(at, item)| was.get(at) != Some(item)) {
        record.put(key(ino, *at), &item.encode());
    }
    Ok(true)
}
