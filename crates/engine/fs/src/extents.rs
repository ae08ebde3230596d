//! The extent map of a file: reading it, and changing it as a set of edits.

use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use kedge_base::broken::{self, Variant};
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Extent, Ino};
use kedge_format::item::{EXTENT_BLOCKS_MAX, ExtentItem};
use kedge_format::record::RecordBuilder;
use kedge_format::{ItemKind, Key};
use kedge_store::Store;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The state of a run of file blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Hole,
    Written(BlockNo),
    Unwritten(BlockNo),
    /// Blocks that must not be overwritten, so bytes written here get other blocks. Another tree or
    /// another file uses the blocks too, or the file has checksums ([`crate::sums`]). The flag:
    /// whether the blocks are unwritten.
    Shared(BlockNo, bool),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub first: u64,
    pub blocks: u64,
    pub place: Place,
    /// The birth of the blocks; 0 for a hole.
    pub birth: u32,
    /// Whether another tree or another file may use the blocks too. The blocks then do not become
    /// free just because this file gives them up.
    pub others: bool,
    /// Whether the blocks have counts ([`kedge_format::counts`]).
    pub counted: bool,
}

impl Mapping {
    fn hole(first: u64, blocks: u64) -> Mapping {
        Mapping { first, blocks, place: Place::Hole, birth: 0, others: false, counted: false }
    }

    /// The part of the run in file blocks `[from, to)`, a range that overlaps the run.
    pub(crate) fn part(self, from: u64, to: u64) -> Mapping {
        let first = self.first.max(from);
        let blocks = (self.first + self.blocks).min(to) - first;
        let skip = |at: BlockNo| BlockNo(at.0 + first - self.first);
        let place = match self.place {
            Place::Hole => Place::Hole,
            Place::Written(at) => Place::Written(skip(at)),
            Place::Unwritten(at) => Place::Unwritten(skip(at)),
            Place::Shared(at, unwritten) => Place::Shared(skip(at), unwritten),
        };
        Mapping { first, blocks, place, ..self }
    }
}

/// Returns up to `max` extents that overlap file blocks `[from, to)`, in order. A record changes
/// several items one after the other. So that it sees no intermediate state, the caller holds `wb`,
/// or `io` exclusively and `wb`, or calls this through
/// [`Inode::between_records`](crate::cache::inode::Inode::between_records).
pub(crate) fn find(
    store: &Store,
    ino: Ino,
    from: u64,
    to: u64,
    max: usize,
) -> Result<Vec<(u64, ExtentItem)>> {
    let mut found = Vec::new();
    let mut bad = None;
    let key = |block| Key::new(ino, ItemKind::Extent, block);
    if to <= from {
        return Ok(found);
    }
    if let Some((at, value)) = store.prev(key(from))?
        && (at.ino, at.kind) == (ino.0, ItemKind::Extent as u8)
        && at.offset < from
    {
        let item = ExtentItem::decode(&value)?;
        if from - at.offset < item.blocks as u64 {
            found.push((at.offset, item));
        }
    }
    store.scan(key(from), key(to - 1), &mut |at, value| {
        match ExtentItem::decode(value) {
            Ok(item) => found.push((at.offset, item)),
            Err(e) => bad = Some(e),
        }
        if found.len() >= max || bad.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(e) = bad {
        return Err(e.into());
    }
    let last = kedge_format::SIZE_MAX / BLOCK_SIZE as u64 + 1;
    if let Some((at, item)) = found.iter().find(|(at, item)| *at > last - item.blocks as u64) {
        let what = format!("inode {ino}: an extent at file block {at}");
        let bad = kedge_base::Error::corrupt(CorruptKind::ExtentItem, item.start, what);
        return Err(Error::Engine(bad));
    }
    if let Some((at, item)) = found.iter().find(|(_, item)| item.counted && !store.has_clones()) {
        let what = format!("inode {ino}: the extent at file block {at} has counts, which the image has not");
        return Err(Error::Engine(kedge_base::Error::corrupt(CorruptKind::ExtentItem, item.start, what)));
    }
    if let Some(w) = found.windows(2).find(|w| w[0].0 + w[0].1.blocks as u64 > w[1].0) {
        let what = format!("inode {ino}: extents at file blocks {} and {} overlap", w[0].0, w[1].0);
        return Err(Error::Engine(kedge_base::Error::corrupt(CorruptKind::ExtentItem, w[1].1.start, what)));
    }
    Ok(found)
}

/// The number of extents that begin at or after file block `from`, up to `max`. Needs no lock,
/// because it does not read the contents of the items.
pub(crate) fn count(store: &Store, ino: Ino, from: u64, max: usize) -> Result<usize> {
    let mut count = 0;
    let key = |block| Key::new(ino, ItemKind::Extent, block);
    store.scan(key(from), key(u64::MAX), &mut |_, _| {
        count += 1;
        if count >= max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(count)
}

/// Maps file blocks `[first, first + blocks)` of an inode to runs, holes included.
pub(crate) fn map(store: &Store, inode: &Inode, first: u64, blocks: u64) -> Result<Vec<Mapping>> {
    let (ino, end) = (inode.ino, first + blocks);
    let below = store.births_below(ino);
    let mut out = Vec::new();
    let mut at = first;
    for (start, item) in find(store, ino, first, end, usize::MAX)? {
        if start > at {
            out.push(Mapping::hole(at, start - at));
            at = start;
        }
        let skip = at - start;
        let run = (item.blocks as u64 - skip).min(end - at);
        let block = BlockNo(item.start.0 + skip);
        let others = item.birth < below || item.counted;
        let place = match item.unwritten {
            unwritten if others => Place::Shared(block, unwritten),
            true => Place::Unwritten(block),
            // Broken on purpose: a block with a checksum is overwritten in place.
            false if inode.has_sums() && !broken::is(Variant::SumsInPlace) => Place::Shared(block, false),
            false => Place::Written(block),
        };
        out.push(Mapping { first: at, blocks: run, place, birth: item.birth, others, counted: item.counted });
        at += run;
    }
    if at < end {
        out.push(Mapping::hole(at, end - at));
    }
    Ok(out)
}

/// The extents of a range of a file that an operation changes, in their old and new state.
/// [`ExtentSet::emit`] records the difference.
#[derive(Default)]
pub(crate) struct ExtentSet {
    was: BTreeMap<u64, ExtentItem>,
    now: BTreeMap<u64, ExtentItem>,
    /// Upper bound on the keys of extents in the old and the new state together.
    keys: usize,
    /// Extents of lower birth do not become free: another tree uses them.
    births_below: u32,
}

/// What [`ExtentSet::remove`] removed.
#[derive(Default)]
pub(crate) struct Removed {
    /// Number of blocks removed.
    pub blocks: u64,
    /// The blocks that become free.
    pub freed: Vec<Extent>,
    /// The blocks whose reference counts must be decremented.
    pub counted: Vec<Extent>,
}

impl ExtentSet {
    /// Reads up to `max` extents that overlap or touch `[from, to)` into the set. Extents already
    /// in the set keep their changes. Returns the number read.
    pub(crate) fn load(&mut self, store: &Store, ino: Ino, from: u64, to: u64, max: usize) -> Result<usize> {
        self.births_below = store.births_below(ino);
        let found = find(store, ino, from.saturating_sub(1), to.saturating_add(1), max)?;
        let count = found.len();
        for (at, item) in found {
            if self.was.insert(at, item).is_none() {
                self.now.insert(at, item);
                self.keys += 1;
            }
        }
        Ok(count)
    }

    /// Upper bound on the edits that [`ExtentSet::emit`] adds: one for each key.
    pub(crate) fn edits_max(&self) -> usize {
        self.keys
    }

    /// Splits an extent so that none crosses `at`.
    fn split(&mut self, at: u64) {
        let Some((&start, &item)) = self.now.range(..at).next_back() else { return };
        let head = at - start;
        if head >= item.blocks as u64 {
            return;
        }
        self.keys += 1;
        self.now.insert(start, ExtentItem { blocks: head as u32, ..item });
        self.now.insert(
            at,
            ExtentItem { start: BlockNo(item.start.0 + head), blocks: item.blocks - head as u32, ..item },
        );
    }

    /// Removes the extents in file blocks `[from, to)`.
    pub(crate) fn remove(&mut self, from: u64, to: u64) -> Removed {
        self.split(from);
        self.split(to);
        let gone: Vec<u64> = self.now.range(from..to).map(|(&at, _)| at).collect();
        let mut removed = Removed::default();
        for at in gone {
            let item = self.now.remove(&at).expect("just listed");
            removed.blocks += item.blocks as u64;
            if item.counted {
                removed.counted.push(item.extent());
            } else if item.birth >= self.births_below {
                removed.freed.push(item.extent());
            }
        }
        removed
    }

    /// File block after the last extent in the set.
    pub(crate) fn end(&self) -> Option<u64> {
        self.now.last_key_value().map(|(at, item)| at + item.blocks as u64)
    }

    /// Adds an extent where the map has a hole.
    pub(crate) fn insert(&mut self, at: u64, item: ExtentItem) {
        self.keys += 1;
        self.now.insert(at, item);
    }

    /// Adds newly allocated blocks where the map has a hole.
    pub(crate) fn insert_new(&mut self, at: u64, extent: Extent, unwritten: bool, birth: u32) {
        let (start, blocks) = (extent.start, extent.blocks as u32);
        self.insert(at, ExtentItem { start, blocks, unwritten, birth, counted: false });
    }

    /// The extents in `[from, to)`, cut at the ends of the range, with their first file blocks.
    pub(crate) fn parts(&self, from: u64, to: u64) -> Vec<(u64, ExtentItem)> {
        let before = self.now.range(..from).next_back();
        let all = before.into_iter().chain(self.now.range(from..to));
        all.filter_map(|(&at, item)| {
            let (first, end) = (at.max(from), (at + item.blocks as u64).min(to));
            let start = BlockNo(item.start.0 + first.checked_sub(at)?);
            (first < end).then(|| (first, ExtentItem { start, blocks: (end - first) as u32, ..*item }))
        })
        .collect()
    }

    /// Marks the extents of `[from, to)` as having counts.
    pub(crate) fn set_counted(&mut self, from: u64, to: u64) {
        self.split(from);
        self.split(to);
        for (_, item) in self.now.range_mut(from..to) {
            item.counted = true;
        }
    }

    /// Marks the mapped blocks of `[from, to)` as written.
    pub(crate) fn set_written(&mut self, from: u64, to: u64) {
        self.mark(from, to, false);
    }

    /// Marks the mapped blocks of `[from, to)` as unwritten, so that they read as zero.
    pub(crate) fn set_unwritten(&mut self, from: u64, to: u64) {
        self.mark(from, to, true);
    }

    fn mark(&mut self, from: u64, to: u64, unwritten: bool) {
        self.split(from);
        self.split(to);
        for (_, item) in self.now.range_mut(from..to) {
            item.unwritten = unwritten;
        }
    }

    /// Moves all extents that begin at or after `from` by `by` blocks.
    pub(crate) fn shift(&mut self, from: u64, by: i64) {
        self.split(from);
        let tail = self.now.split_off(&from);
        self.keys += tail.len();
        self.now.extend(tail.into_iter().map(|(at, item)| (at.wrapping_add_signed(by), item)));
    }

    fn merge(&mut self) {
        let mut merged: BTreeMap<u64, ExtentItem> = BTreeMap::new();
        for (&at, &item) in &self.now {
            if let Some((&prev_at, prev)) = merged.iter_mut().next_back()
                && prev_at + prev.blocks as u64 == at
                && prev.extent().end() == item.start
                && prev.unwritten == item.unwritten
                && (prev.birth, prev.counted) == (item.birth, item.counted)
                && prev.blocks as u64 + item.blocks as u64 <= EXTENT_BLOCKS_MAX
                && prev.start.0 / EXTENT_BLOCKS_MAX == (item.extent().end().0 - 1) / EXTENT_BLOCKS_MAX
            {
                prev.blocks += item.blocks;
                continue;
            }
            merged.insert(at, item);
        }
        self.now = merged;
    }

    /// Adds the edits that turn the old state into the new one. Returns their number.
    pub(crate) fn emit(mut self, record: &mut RecordBuilder, ino: Ino) -> usize {
        self.merge();
        let before = record.edits();
        let key = |at| Key::new(ino, ItemKind::Extent, at);
        for at in self.was.keys().filter(|at| !self.now.contains_key(at)) {
            record.delete(key(*at));
        }
        for (at, item) in self.now.iter().filter(|(at, item)| self.was.get(at) != Some(item)) {
            record.put(key(*at), &item.encode());
        }
        let edits = (record.edits() - before) as usize;
        debug_assert!(edits <= self.keys, "{edits} edits of {} keys", self.keys);
        edits
    }
}

#[cfg(test)]
#[path = "extents_tests.rs"]
mod tests;
