//! Moves blocks that files of a tree share. They stay shared.
//!
//! The files are moved one after the other. The first one copies the blocks and gets the copy, with
//! a count of one. Each other file that has the old blocks gets the same copy. Each of these steps
//! is a record that decrements the count of the old blocks and increments that of the copy. So the
//! counts are right between any two steps, and the record that moves the last file frees the old
//! blocks.
//!
//! # Crash argument
//! - A record changes the extent of one file and both counts, or nothing. After a crash each file
//!   has the old blocks or the copy, and each of the two has the count of its files.
//! - Both have the same bytes. Nothing writes to a block that has a count, and the log write of the
//!   first step flushes the copy first.
//! - When the next file is moved, the copy may not exist any more: the files that had it were
//!   written to, and its blocks may have been freed and reused. So a step checks, under the lock of
//!   the counts, that the blocks have counts, and compares their bytes with those of the old
//!   blocks. That suffices, whatever happened to the blocks in between. If the check fails, the
//!   file gets a copy of its own.
//!
//! The alternative, one record for all files, is not bounded, and needs the locks of all files.

use super::super::Files;
use super::super::counting::Counting;
use super::super::taken::Taken;
use super::{STEP_BLOCKS, keep_goal_below};
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::error::Result;
use crate::extents::ExtentSet;
use kedge_base::broken::{self, Variant};
use kedge_base::{BlockNo, Extent, Ino, IoBuf};
use kedge_format::item::ExtentItem;
use kedge_format::record::{RecordBuilder, RecordOp};
use kedge_store::{Class, DataReservation, Handle, Need, WriteSeq};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most counts of old blocks, and of the copy, that a record changes.
const COUNTS: usize = 64;
/// The need of one record: that of `super::NEED`, and counts of two ranges of blocks, with an
/// item cut at both ends of each.
pub(super) const NEED: Need =
    Need::record(Class::Normal).patches(1).extents(5).runs(2 + COUNTS).counts(2, 2 * (COUNTS + 3));
/// The most moves that are remembered. They cover at most 256 GiB.
const MOVES_MAX: usize = 1 << 16;

/// The blocks that were moved and their copies, so that the next file with the same blocks gets the
/// copy.
#[derive(Default)]
pub(super) struct Moves {
    copies: BTreeMap<u64, Extent>,
    /// The block near which the next blocks of the file are allocated.
    pub(super) goal: Option<BlockNo>,
}

impl Moves {
    /// The copy of the first blocks of `old`, as far as one run of the copy reaches. `None` if
    /// there is none.
    fn of(&self, old: Extent) -> Option<Extent> {
        let (start, copy) = self.copies.range(..=old.start.0).next_back()?;
        let skip = old.start.0 - start;
        let left = copy.blocks.checked_sub(skip).filter(|left| *left > 0)?;
        Some(Extent::new(BlockNo(copy.start.0 + skip), left.min(old.blocks)))
    }

    fn note(&mut self, old: Extent, copy: Extent) {
        if self.copies.len() >= MOVES_MAX {
            self.copies.clear(); // later files get copies of their own
        }
        self.copies.insert(old.start.0, copy);
    }
}

/// A range of a file whose blocks have counts.
pub(super) struct Shared<'a> {
    pub inode: &'a Arc<Inode>,
    pub first: u64,
    pub old: Extent,
    pub unwritten: bool,
    /// The block near which a copy is allocated.
    pub near: BlockNo,
    /// The limit of the shrink: blocks from this one on must move.
    pub end: BlockNo,
}

/// The blocks to which the range moves.
struct Place<'a> {
    new: Extent,
    birth: u32,
    /// For a new copy: the allocated blocks until the record names them, and the write that filled
    /// them.
    copied: Option<(Taken<'a>, Option<WriteSeq>)>,
}

impl Files {
    /// Makes one record for as many of the blocks as fit into it. Returns their number.
    pub(super) fn relocate_shared(
        &self,
        handle: &mut Handle<'_>,
        part: &Shared<'_>,
        moves: &mut Moves,
        promise: &mut DataReservation,
    ) -> Result<u64> {
        let (store, inode, first) = (self.engine.store(), part.inode, part.first);
        let mut counting = self.count();
        let blocks = counting.changes.load(inode.ino, part.old, COUNTS)?;
        let old = Extent::new(part.old.start, blocks.min(STEP_BLOCKS));
        let known = moves.of(old).filter(|_| !part.unwritten);
        let known = known.map(|copy| self.usable_copy(&mut counting, inode.ino, old, copy)).transpose()?;
        let place = match known.flatten() {
            Some(place) => place,
            None => self.make_copy(part, old, promise)?,
        };
        let (new, old) = (place.new, Extent::new(old.start, place.new.blocks));
        let mut set = ExtentSet::default();
        set.load(store, inode.ino, first, first + new.blocks, usize::MAX)?;
        let removed = set.remove(first, first + new.blocks);
        let (start, blocks, unwritten) = (new.start, new.blocks as u32, part.unwritten);
        set.insert(first, ExtentItem { start, blocks, unwritten, birth: place.birth, counted: !unwritten });
        let mut record = RecordBuilder::new(RecordOp::WriteBack);
        set.emit(&mut record, inode.ino);
        match &place.copied {
            Some(_) => {
                record.alloc(new);
                if !unwritten {
                    counting.changes.begin(inode.ino, new, place.birth)?;
                }
            }
            // Broken on purpose: the second file gets the copy without an increment of its count.
            None if broken::is(Variant::MoveUncounted) => {}
            None => counting.changes.add(inode.ino, new)?,
        }
        counting.emit(&mut record, inode.ino, &removed)?;
        let mut changes = lock_metas(&[&**inode]);
        if let Some((_, Some(seq))) = place.copied {
            changes[0].meta.progress.write_seq = seq;
        }
        commit(handle, record, &mut changes)?;
        if let Some((mut taken, _)) = place.copied {
            taken.extents.clear(); // the file owns them now
            keep_goal_below(&mut changes[0], part.end, new);
            moves.goal = Some(new.end());
            moves.note(old, new);
        }
        Ok(new.blocks)
    }

    /// Returns the known copy, or its first blocks, if it has counts and the same bytes as the old
    /// blocks.
    fn usable_copy(
        &self,
        counting: &mut Counting<'_>,
        ino: Ino,
        old: Extent,
        copy: Extent,
    ) -> Result<Option<Place<'_>>> {
        let room = counting.changes.edits_max() + COUNTS;
        let blocks = counting.changes.load(ino, copy, room)?.min(copy.blocks);
        let new = Extent::new(copy.start, blocks);
        let Some(birth) = counting.changes.birth_of(ino, new) else { return Ok(None) };
        let device = self.engine.store().device();
        let read = |start: BlockNo| -> Result<IoBuf> {
            let mut buf = IoBuf::zeroed(blocks as usize);
            device.read(start.byte_offset(), &mut buf)?;
            Ok(buf)
        };
        let same = read(old.start)?.as_bytes() == read(new.start)?.as_bytes();
        Ok(same.then_some(Place { new, birth, copied: None }))
    }

    fn make_copy(&self, part: &Shared<'_>, old: Extent, promise: &mut DataReservation) -> Result<Place<'_>> {
        let store = self.engine.store();
        let new = store.alloc_data(part.near, old.blocks.min(promise.blocks()), Some(promise))?;
        let taken = Taken { store, extents: vec![new] };
        let old = Extent::new(old.start, new.blocks);
        let seq = if part.unwritten { None } else { Some(self.copy_blocks(old, new)?) };
        Ok(Place { new, birth: store.birth(), copied: Some((taken, seq)) })
    }
}
