//! Reference counts of blocks that files share ([`kedge_format::counts`]): reading them, and
//! changing them as a set of edits.
//!
//! Records are absolute, and inodes of different locks share a count. So an operation that changes
//! counts holds [`Store::lock_counts`] from before it reads them until its record is committed.
//! Files without shared blocks never take the lock.
//!
//! # Crash argument
//! The counts, the extents that they count and the `Free` edits of blocks that lose their last
//! extent are in one record. So after any crash the counts are those of the extents that recovery
//! finds, and a block that another extent needs is in no `Free` edit.

use crate::checkpoint::CheckpointCause;
use crate::forest::Forest;
use crate::store::Store;
use kedge_base::broken::{self, Variant};
use kedge_base::lock::MutexGuard;
use kedge_base::{BlockNo, CorruptKind, Error, Extent, Ino, Result};
use kedge_format::counts::{self, CountItem};
use kedge_format::item::EXTENT_BLOCKS_MAX;
use kedge_format::record::RecordBuilder;
use kedge_format::{ItemKind, Key};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The exclusive right to change reference counts, until it is dropped.
pub struct CountsLock<'a> {
    _guard: MutexGuard<'a, ()>,
}

impl Store {
    /// Whether files of the image may share blocks.
    pub fn has_clones(&self) -> bool {
        self.clones.load(Acquire)
    }

    /// Allows files to share blocks. Sets a feature bit, so that older versions refuse the image.
    /// The bit is durable when the call returns, before the log has any count that such a version
    /// would replay.
    pub fn allow_clones(&self) -> Result<()> {
        if self.has_clones() {
            return Ok(());
        }
        self.alloc.set_has_clones();
        self.checkpoint(CheckpointCause::Request)?;
        self.clones.store(true, Release);
        Ok(())
    }

    /// Waits until no other operation changes counts, and takes the right to change them.
    pub fn lock_counts(&self) -> CountsLock<'_> {
        CountsLock { _guard: self.counts.lock() }
    }

    /// An empty set of changes. The caller holds [`Store::lock_counts`].
    pub fn count_changes(&self) -> CountChanges<'_> {
        CountChanges::new(&self.forest)
    }
}

/// The counts that an operation reads and changes, in their old and new state.
/// [`CountChanges::emit`] records the difference.
pub struct CountChanges<'a> {
    forest: &'a Forest,
    /// Count items by tree and first block: as read, and as changed.
    was: BTreeMap<(u32, u64), CountItem>,
    now: BTreeMap<(u32, u64), CountItem>,
    /// Upper bound on the keys of items in the old and the new state together.
    keys: usize,
}

impl<'a> CountChanges<'a> {
    pub(crate) fn new(forest: &'a Forest) -> CountChanges<'a> {
        CountChanges { forest, was: BTreeMap::new(), now: BTreeMap::new(), keys: 0 }
    }

    /// Upper bound on the edits that [`CountChanges::emit`] adds.
    pub fn edits_max(&self) -> usize {
        self.keys
    }

    /// Reads the counts of the blocks of `extent`, in the tree of `of`. Stops when all items read
    /// so far have `max` keys. Returns the number of blocks read, from the first of the extent on.
    pub fn load(&mut self, of: Ino, extent: Extent, max: usize) -> Result<u64> {
        let tree = self.forest.tree_of(of);
        let mut found = Vec::new();
        let key = |block| counts::key(Ino(0).in_tree(tree), BlockNo(block));
        if let Some((at, value)) = self.forest.prev(key(extent.start.0))?
            && self.forest.tree_of(Ino(at.ino)) == tree
            && self.forest.in_item(Ino(at.ino)) == Ino(0)
            && at.kind == ItemKind::Count as u8
            && at.offset < extent.start.0
        {
            let item = CountItem::decode(at.offset, &value)?;
            if item.extent(at.offset).end() > extent.start {
                found.push((at.offset, item));
            }
        }
        let mut bad = None;
        let room = max.saturating_sub(self.keys).max(1);
        let mut reached = extent.end().0;
        self.forest.scan(key(extent.start.0), key(extent.end().0 - 1), &mut |at, value| {
            // Each item needs one key. Splitting the first and the last item may need two more.
            if found.len() >= room {
                reached = at.offset;
                return ControlFlow::Break(());
            }
            match CountItem::decode(at.offset, value) {
                Ok(item) => found.push((at.offset, item)),
                Err(e) => bad = Some(e),
            }
            if bad.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(e) = bad {
            return Err(e);
        }
        for (at, item) in found {
            if self.was.insert((tree, at), item).is_none() {
                self.now.insert((tree, at), item);
                self.keys += 1;
            }
        }
        Ok(reached - extent.start.0)
    }

    /// Splits an item so that none crosses `at`.
    fn split(&mut self, tree: u32, at: u64) {
        let Some((&(_, start), &item)) = self.now.range((tree, 0)..(tree, at)).next_back() else { return };
        let head = at - start;
        if head >= item.blocks as u64 {
            return;
        }
        self.keys += 1;
        self.now.insert((tree, start), CountItem { blocks: head as u32, ..item });
        self.now.insert((tree, at), CountItem { blocks: item.blocks - head as u32, ..item });
    }

    /// Gives a count of one to blocks to which one extent refers and which have no count yet.
    pub fn begin(&mut self, of: Ino, extent: Extent, birth: u32) -> Result<()> {
        let tree = self.forest.tree_of(of);
        self.load(of, extent, usize::MAX)?;
        if self.overlapping(tree, extent).next().is_some() {
            return Err(wrong(extent, "has counts, and an extent that is not marked"));
        }
        self.keys += 1;
        let item = CountItem { blocks: extent.blocks as u32, count: 1, birth };
        self.now.insert((tree, extent.start.0), item);
        Ok(())
    }

    /// Increments the counts of the blocks: one more extent refers to them. All of them have
    /// counts.
    pub fn add(&mut self, of: Ino, extent: Extent) -> Result<()> {
        self.change(of, extent, |count| {
            count.checked_add(1).ok_or_else(|| Error::Unsupported("too many files share a block".into()))
        })
        .map(|_| ())
    }

    /// Decrements the counts of the blocks: one extent less refers to them. Returns the blocks that
    /// become free: no extent refers to them any more, and they do not belong to a point.
    pub fn remove(&mut self, of: Ino, extent: Extent) -> Result<Vec<Extent>> {
        let below = self.forest.births_below(of);
        let gone = self.change(of, extent, |count| Ok(count - 1))?;
        let own = gone.into_iter().filter(|(_, birth)| *birth >= below).map(|(extent, _)| extent);
        let mut freed: Vec<Extent> = own.collect();
        if broken::is(Variant::SharedBlockFreed) {
            // Broken on purpose: the first removal frees the blocks.
            freed = vec![extent];
        }
        Ok(freed)
    }

    /// The birth of the blocks, if all have counts and the same birth. The caller has loaded their
    /// counts.
    pub fn birth_of(&self, of: Ino, extent: Extent) -> Option<u32> {
        let (mut at, mut birth) = (extent.start.0, None);
        for (start, item) in self.overlapping(self.forest.tree_of(of), extent) {
            if start > at || birth.is_some_and(|birth| birth != item.birth) {
                return None;
            }
            (at, birth) = (item.extent(start).end().0, Some(item.birth));
        }
        birth.filter(|_| at >= extent.end().0)
    }

    fn overlapping(&self, tree: u32, extent: Extent) -> impl Iterator<Item = (u64, CountItem)> + '_ {
        let first = self.now.range((tree, 0)..=(tree, extent.start.0)).next_back();
        let from = first.map_or(extent.start.0, |((_, at), _)| *at);
        let items = self.now.range((tree, from)..(tree, extent.end().0));
        items
            .filter(move |((_, at), item)| item.extent(*at).end() > extent.start)
            .map(|((_, at), i)| (*at, *i))
    }

    /// Replaces the count of each block by the result of `edit`. Returns the runs whose count is
    /// now zero, with their births.
    fn change(
        &mut self,
        of: Ino,
        extent: Extent,
        mut edit: impl FnMut(u32) -> Result<u32>,
    ) -> Result<Vec<(Extent, u32)>> {
        let tree = self.forest.tree_of(of);
        self.load(of, extent, usize::MAX)?;
        self.split(tree, extent.start.0);
        self.split(tree, extent.end().0);
        let items: Vec<(u64, CountItem)> = self.overlapping(tree, extent).collect();
        let mut at = extent.start.0;
        let mut gone = Vec::new();
        for (start, item) in items {
            if start != at {
                break;
            }
            at = item.extent(start).end().0;
            let count = edit(item.count)?;
            if count == 0 {
                self.now.remove(&(tree, start));
                gone.push((item.extent(start), item.birth));
            } else {
                self.now.insert((tree, start), CountItem { count, ..item });
            }
        }
        if at != extent.end().0 {
            return Err(wrong(Extent::new(BlockNo(at), extent.end().0 - at), "has no count"));
        }
        Ok(gone)
    }

    /// Adds the edits that turn the old state into the new one. Returns their number.
    pub fn emit(&self, record: &mut RecordBuilder) -> usize {
        let mut merged: BTreeMap<(u32, u64), CountItem> = BTreeMap::new();
        for (&(tree, at), &item) in &self.now {
            if let Some((&(prev_tree, prev_at), prev)) = merged.iter_mut().next_back()
                && prev_tree == tree
                && prev_at + prev.blocks as u64 == at
                && (prev.count, prev.birth) == (item.count, item.birth)
                && prev_at / EXTENT_BLOCKS_MAX == (item.extent(at).end().0 - 1) / EXTENT_BLOCKS_MAX
            {
                prev.blocks += item.blocks;
                continue;
            }
            merged.insert((tree, at), item);
        }
        let before = record.edits();
        let key = |(tree, at): &(u32, u64)| -> Key { counts::key(Ino(0).in_tree(*tree), BlockNo(*at)) };
        for at in self.was.keys().filter(|at| !merged.contains_key(at)) {
            record.delete(key(at));
        }
        for (at, item) in merged.iter().filter(|(at, item)| self.was.get(at) != Some(item)) {
            record.put(key(at), &item.encode());
        }
        let edits = (record.edits() - before) as usize;
        debug_assert!(edits <= self.keys, "{edits} edits of {} keys", self.keys);
        edits
    }
}

fn wrong(extent: Extent, what: &str) -> Error {
    let what = format!("a run of {} blocks {what}", extent.blocks);
    Error::corrupt(CorruptKind::Item, extent.start, what)
}
