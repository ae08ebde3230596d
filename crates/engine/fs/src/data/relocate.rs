//! Moving the blocks of files that lie beyond a limit: an image that becomes smaller.
//!
//! The bytes are copied to new blocks below the limit, which the allocator keeps. Then one record
//! names these and frees the old ones. Unwritten extents move without their bytes. Checksums belong
//! to file blocks and stay as they are, so a block that is damaged stays damaged, and is noticed.
//!
//! # Crash argument
//! - The record takes both steps or none, and the log write flushes the copy first. So a crash
//!   finds the old blocks or the new ones, each with the bytes that were durable.
//! - Nothing writes the old blocks after they were read: both locks of the file are held until the
//!   record is committed, and afterwards nothing names them.
//! - A write in place after the record goes to the new block. If the record is lost, so is that
//!   write, and the old block has the bytes of before; an fsync after the write forces the record.
//! - The old blocks are used by no one again: they are beyond the limit. A crash lifts the limit,
//!   but then the record that frees them is durable or lost.
//!
//! Blocks that files of the tree share move with their counts ([`shared`]). Each tree that can be
//! used moves what it has alone. Blocks of a point, which several trees may use, are left where
//! they are.

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

/// Blocks that one record moves at most, which are in memory meanwhile.
const STEP_BLOCKS: u64 = 1024;
/// Extents that are listed before they are moved.
const LIST_MAX: usize = 4096;
/// The need of a record: an extent is cut in three, and the new one may join both neighbours.
const NEED: Need = Need::record(Class::Normal).patches(1).extents(5).runs(2);

/// The next block after one that is beyond the limit would be there, too.
fn keep_goal_below(change: &mut Change<'_>, end: BlockNo, new: Extent) {
    let meta = &mut change.meta;
    if meta.goal.is_some_and(|goal| goal >= end) {
        meta.goal = Some(new.end());
    }
}

/// The first key of a tree.
fn first_key(number: u32) -> Key {
    Key { ino: Ino(0).in_tree(number).0, ..Key::MIN }
}

/// A part of a file that lies beyond the limit.
struct Found {
    ino: Ino,
    from: u64,
    to: u64,
}

impl Files {
    /// Moves the blocks of files that lie at or after `end`. Returns the number of blocks that
    /// stay, since a point has them.
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

    /// Parts of files beyond the limit, in the order of their keys, and where the list continues.
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

    /// Returns the number of blocks that stay.
    fn relocate_part(&self, part: &Found, end: BlockNo, moves: &mut Moves) -> Result<u64> {
        let inode = match self.inodes.get_file(part.ino) {
            Ok(inode) => inode,
            // Deleted meanwhile.
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

    /// Moves up to a step of file blocks `[from, to)`. Returns how far it got, and adds up the
    /// blocks that stay.
    fn relocate_step(
        &self,
        inode: &Arc<Inode>,
        (from, to): (u64, u64),
        end: BlockNo,
        moves: &mut Moves,
        stay: &mut u64,
    ) -> Result<u64> {
        let store = self.engine.store();
        // Blocks that were just freed may wait for the log, or for a checkpoint.
        let want = (to - from).min(STEP_BLOCKS);
        let mut promise = match store.reserve_data(want) {
            Err(kedge_base::Error::NoSpace) => store.reserve_data(1)?,
            other => other?,
        };
        let need = if store.has_clones() { shared::NEED } else { NEED };
        let (mut handle, _io) = self.begin_with_io(inode, need)?;
        let _wb = inode.wb.lock();
        // What lies there may have changed since it was listed.
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
        taken.extents.clear(); // the file's now
        keep_goal_below(&mut changes[0], end, new);
        moves.goal = Some(new.end());
        Ok(first + new.blocks)
    }

    /// Copies blocks on the device.
    fn copy_blocks(&self, from: Extent, to: Extent) -> Result<kedge_store::WriteSeq> {
        let (store, mut buf) = (self.engine.store(), IoBuf::zeroed(from.blocks as usize));
        store.device().read(from.start.byte_offset(), &mut buf)?;
        store.device().write(to.start.byte_offset(), &buf, false)?;
        trace::note(|| Event::Wrote(to));
        Ok(store.note_data_write())
    }
}
