//! Moves blocks of files that lie beyond a limit, for a shrink of the image.
//!
//! The bytes are copied to new blocks, which the allocator keeps below the limit. Then one record
//! names the new blocks and frees the old ones. Unwritten extents move without their bytes.
//! Checksums are stored by file block and stay unchanged, so a damaged block is still found
//! damaged.
//!
//! # Crash argument
//! - The record names the new blocks and frees the old ones together, and its log write flushes the
//!   copy first. So a crash finds the old blocks or the new ones, with the bytes that were durable.
//! - Nothing writes to the old blocks after they were read: both locks of the file are held until
//!   the record is committed, and afterwards nothing names the old blocks.
//! - A write in place after the record goes to the new block. If the record is lost, so is that
//!   write, and the old block has the older bytes. An fsync after the write forces the record.
//! - The old blocks are not allocated again: they are beyond the limit. A crash lifts the limit,
//!   but then the record that frees them is either durable or lost.
//!
//! Blocks that files of one tree share move with their counts ([`shared`]). In each tree in use the
//! blocks move that only this tree has. Blocks of a point, which several trees may use, stay.

mod shared;

use super::Files;
use super::taken::Taken;
use crate::cache::commit::{Change, commit, lock_metas};
use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use crate::extents::{self, ExtentSet};
use kedge_base::trace::{self, Event};
use kedge_base::{BlockNo, Extent, Ino, IoBuf};
use kedge_format::item::ExtentItem;
use kedge_format::record::{RecordBuilder, RecordOp};
use kedge_format::{ItemKind, Key};
use kedge_store::{Class, Need};
use shared::{Moves, Shared};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The most blocks that one record moves. They are in memory meanwhile.
const STEP_BLOCKS: u64 = 1024;
/// The most extents that are listed before they are moved.
const LIST_MAX: usize = 4096;
/// The need of one record: an extent is cut in three, and the new extent may join those on both
/// sides.
const NEED: Need = Need::record(Class::Normal).patches(1).extents(5).runs(2);

/// Moves the file's allocation goal below the limit, if it is beyond: the next block would
/// otherwise be allocated near a block that has just moved away.
fn keep_goal_below(change: &mut Change<'_>, end: BlockNo, new: Extent) {
    let meta = &mut change.meta;
    if meta.goal.is_some_and(|goal| goal >= end) {
        meta.goal = Some(new.end());
    }
}

/// The smallest key of a tree.
fn first_key(number: u32) -> Key {
    Key { ino: Ino(0).in_tree(number).0, ..Key::MIN }
}

/// A range of file blocks whose blocks lie beyond the limit.
struct Found {
    ino: Ino,
    from: u64,
    to: u64,
}

impl Files {
    /// Moves the blocks of files that lie at or after `end`. Returns the number of blocks that stay
    /// because a point has them.
    pub(crate) fn relocate(&self, end: BlockNo) -> Result<u64> {
        let mut stay = 0;
        for number in self.engine.store().changed_trees() {
            let (mut at, mut moves) = (Some(first_key(number)), Moves::default());
            while let Some(from) = at {
                let (found, next) = self.list_beyond(from, end)?;
                for part in &found {
                    stay += self.relocate_part(part, end, &mut moves)?;
                }
                at = next;
            }
        }
        Ok(stay)
    }

    /// Returns ranges of files beyond the limit, in key order, and the key at which the list
    /// continues.
    fn list_beyond(&self, from: Key, end: BlockNo) -> Result<(Vec<Found>, Option<Key>)> {
        let (mut found, mut next, mut bad) = (Vec::new(), None, None);
        self.engine.store().scan(from, Key::MAX, &mut |key, value| {
            if key.kind != ItemKind::Extent as u8 {
                return ControlFlow::Continue(());
            }
            if found.len() >= LIST_MAX {
                next = Some(key);
                return ControlFlow::Break(());
            }
            match ExtentItem::decode(value) {
                Ok(item) if item.extent().end() <= end => {}
                Ok(item) => {
                    let below = end.0.saturating_sub(item.start.0);
                    let to = key.offset.saturating_add(item.blocks as u64);
                    found.push(Found { ino: Ino(key.ino), from: key.offset.saturating_add(below), to });
                }
                Err(e) => {
                    bad = Some(e);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        bad.map_or(Ok((found, next)), |e| Err(e.into()))
    }

    /// Moves a listed range. Returns the number of blocks that stay.
    fn relocate_part(&self, part: &Found, end: BlockNo, moves: &mut Moves) -> Result<u64> {
        let inode = match self.inodes.get_file(part.ino) {
            Ok(inode) => inode,
            // The file was deleted since the list was made.
            Err(Error::NotFound) => return Ok(0),
            Err(e) => return Err(e),
        };
        let (mut at, mut stay) = (part.from, 0);
        moves.goal = None;
        while at < part.to {
            match self.relocate_step(&inode, (at, part.to), end, moves, &mut stay) {
                Ok(reached) => at = reached,
                Err(Error::NotFound) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(stay)
    }

    /// Moves blocks of file blocks `[from, to)`, up to the maximum of a step. Returns the file
    /// block that it reached, and adds the number of blocks that stay to `stay`.
    fn relocate_step(
        &self,
        inode: &Arc<Inode>,
        (from, to): (u64, u64),
        end: BlockNo,
        moves: &mut Moves,
        stay: &mut u64,
    ) -> Result<u64> {
        let store = self.engine.store();
        // If the blocks for the whole step are not free, one suffices: others may only become free
        // after a force of the log or a checkpoint.
        let want = (to - from).min(STEP_BLOCKS);
        let mut promise = match store.reserve_data(want) {
            Err(kedge_base::Error::NoSpace) => store.reserve_data(1)?,
            other => other?,
        };
        let need = if store.has_clones() { shared::NEED } else { NEED };
        let (mut handle, _io) = self.begin_with_io(inode, need)?;
        let _wb = inode.wb.lock();
        // The extents may have changed since they were listed.
        let found = extents::find(store, inode.ino, from, to, 1)?;
        let Some((start, item)) = found.first() else { return Ok(to) };
        let below = end.0.saturating_sub(item.start.0).min(item.blocks as u64);
        let first = from.max(start + below);
        let last = to.min(start + item.blocks as u64);
        if first >= last {
            return Ok(last.max(from + 1));
        }
        if item.birth < store.births_below(inode.ino) {
            *stay += last - first;
            return Ok(last);
        }
        let near = moves.goal.unwrap_or_else(|| store.data_goal(inode.ino, inode.ino));
        let want = (last - first).min(promise.blocks());
        if item.counted {
            let old = Extent::new(BlockNo(item.start.0 + first - start), want);
            let shared = Shared { inode, first, old, unwritten: item.unwritten, near, end };
            return Ok(first + self.relocate_shared(&mut handle, &shared, moves, &mut promise)?);
        }
        let new = store.alloc_data(near, want, Some(&mut promise))?;
        let mut taken = Taken { store, extents: vec![new] };
        let old = Extent::new(BlockNo(item.start.0 + first - start), new.blocks);
        let seq = if item.unwritten { None } else { Some(self.copy_blocks(old, new)?) };
        let mut set = ExtentSet::default();
        set.load(store, inode.ino, first, first + new.blocks, usize::MAX)?;
        set.remove(first, first + new.blocks);
        set.insert_new(first, new, item.unwritten, store.birth());
        let mut record = RecordBuilder::new(RecordOp::WriteBack);
        set.emit(&mut record, inode.ino);
        record.alloc(new);
        record.free(old);
        let mut changes = lock_metas(&[&**inode]);
        if let Some(seq) = seq {
            changes[0].meta.progress.write_seq = seq;
        }
        commit(&mut handle, record, &mut changes)?;
        taken.extents.clear(); // the file owns them now
        keep_goal_below(&mut changes[0], end, new);
        moves.goal = Some(new.end());
        Ok(first + new.blocks)
    }

    /// Copies blocks on the device. Returns the number of the data write.
    fn copy_blocks(&self, from: Extent, to: Extent) -> Result<kedge_store::WriteSeq> {
        let (store, mut buf) = (self.engine.store(), IoBuf::zeroed(from.blocks as usize));
        store.device().read(from.start.byte_offset(), &mut buf)?;
        store.device().write(to.start.byte_offset(), &buf, false)?;
        trace::note(|| Event::Wrote(to));
        Ok(store.note_data_write())
    }
}
