//! Trees as they were at one moment ([`TreeMoment`]), and what has changed between two.
//!
//! A moment is read beside all changes of its tree. While one is in use, the space of deleted trees
//! is not freed: [`kedge_store`] says why that suffices.

use crate::api::FileSystem;
use crate::core::Fs;
use crate::error::{Error, Result};
use crate::names::xattr::HIDDEN;
use crate::types::Attr;
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Ino, IoBuf};
use kedge_format::inline;
use kedge_format::item::{Dentry, ExtentItem, XattrItem, XattrRest};
use kedge_format::sums::{SumsItem, sum_of};
use kedge_format::{FileKind, InodeCore, ItemKind, Key};
use kedge_store::{Moment, Nodes};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A tree as it was at one moment, whatever is changed meanwhile. Inodes have the numbers within
/// the tree ([`Ino::local`]): those of a fork and of its source are the same.
#[derive(Clone)]
pub struct TreeMoment {
    pin: Arc<Pin>,
    moment: Moment,
}

/// Keeps what moments need until all of them are dropped.
struct Pin {
    fs: FileSystem,
    nodes: Nodes,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.fs.fs.engine().moments.fetch_sub(1, SeqCst);
        if !self.fs.fs.engine().store().is_read_only() {
            self.fs.fs.start_reclaim();
        }
    }
}

/// What a range of a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeKind {
    /// Bytes.
    Data,
    /// Space that was reserved and not written: it reads as zeros.
    Unwritten,
    /// No space: it reads as zeros.
    Hole,
}

/// A difference between two moments. All that concerns an inode comes together, first
/// [`TreeChange::Inode`]; inodes come in the order of their numbers. Inodes without a name are left
/// out. A number that means two inodes ([`TreeMoment::same_below`]) is first gone, then new.
#[derive(Clone, Copy, Debug)]
pub enum TreeChange<'a> {
    /// The inode's attributes, or other contents of it, are new, gone or have changed.
    Inode {
        /// The inode.
        ino: Ino,
        /// `None` if it is new.
        before: Option<Attr>,
        /// `None` if it is gone.
        after: Option<Attr>,
    },
    /// An extended attribute of an inode that is not gone.
    Xattr {
        /// The inode.
        ino: Ino,
        /// With its namespace.
        name: &'a [u8],
        /// The value before; `None` for none.
        before: Option<&'a [u8]>,
        /// The value now.
        after: Option<&'a [u8]>,
    },
    /// The target of a symbolic link that is new.
    Target {
        /// The symbolic link.
        ino: Ino,
        /// Where it leads.
        target: &'a [u8],
    },
    /// A name in a directory refers to another inode, or is new or gone.
    Entry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: &'a [u8],
        /// The inode to which the name referred before, and its type. `None`: there was no such
        /// name.
        before: Option<(Ino, FileKind)>,
        /// The same now.
        after: Option<(Ino, FileKind)>,
    },
    /// A range of a file, in whole blocks, is in other blocks than before. Its bytes may be those
    /// that it had.
    Data {
        /// The file.
        ino: Ino,
        /// The first byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What the range holds now.
        kind: RangeKind,
    },
}

/// Receives changes until it breaks.
pub type OnChange<'a> = dyn FnMut(TreeChange<'_>) -> Result<ControlFlow<()>> + 'a;

/// Receives names: the directory, the name, the inode, and its type.
pub type OnName<'a> = dyn FnMut(Ino, &[u8], Ino, FileKind) -> ControlFlow<()> + 'a;

/// Receives items until it breaks.
type OnItem<'a> = dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>> + 'a;

/// Receives ranges of file blocks, with what they hold.
type OnRange<'a> = dyn FnMut(u64, u64, RangeKind) -> Result<ControlFlow<()>> + 'a;

impl Fs {
    fn moments(&self, roots: &[Ino]) -> Result<Vec<Moment>> {
        for root in roots {
            self.check_tree(*root)?;
        }
        let store = self.engine().store();
        let take = || {
            let moments = store.moments(roots)?;
            self.engine().moments.fetch_add(1, SeqCst);
            Ok(moments)
        };
        if store.is_read_only() { take() } else { self.quietly(take) }
    }
}

impl FileSystem {
    /// The trees with these roots, all as they are at one moment. A tree that has changed since it
    /// was last forked takes the time of a fork; others take none. The space of deleted trees is
    /// not freed until the moments are dropped.
    ///
    /// # Errors
    /// EINVAL: a directory is not the root of a tree. Others as for [`FileSystem::fork`].
    pub fn moments(&self, roots: &[Ino]) -> Result<Vec<TreeMoment>> {
        let moments = self.fs.moments(roots)?;
        let pin = Arc::new(Pin { fs: self.clone(), nodes: Nodes::default() });
        Ok(moments.into_iter().map(|moment| TreeMoment { pin: pin.clone(), moment }).collect())
    }
}

fn corrupt(what: String) -> Error {
    kedge_base::Error::corrupt(CorruptKind::Item, BlockNo(0), what).into()
}

/// A core as an attribute of an inode that has a name.
fn named(ino: Ino, core: Option<InodeCore>) -> Option<Attr> {
    let core = core.filter(|core| core.nlink > 0)?;
    Some(Attr::from_core(ino, &core, core.kind()?))
}

/// Passes what fails in a callback of the store on.
struct Failed(Option<Error>);

impl Failed {
    fn pass(&mut self, result: Result<ControlFlow<()>>) -> kedge_base::Result<ControlFlow<()>> {
        Ok(result.unwrap_or_else(|e| {
            self.0 = Some(e);
            ControlFlow::Break(())
        }))
    }

    fn or<T>(self, value: kedge_base::Result<T>) -> Result<T> {
        match self.0 {
            Some(e) => Err(e),
            None => Ok(value?),
        }
    }
}

impl TreeMoment {
    /// The address and generation of the root node. No other state of the image's trees, earlier or
    /// later, has both.
    pub fn root_node(&self) -> (u64, u64) {
        self.moment.root()
    }

    /// If one tree was forked from the other, or both from a third: inodes with numbers below this
    /// are the same in both. Higher numbers may mean two inodes.
    pub fn same_below(&self, other: &TreeMoment) -> Option<Ino> {
        self.pin.fs.fs.engine().store().same_below(&self.moment, &other.moment)
    }

    fn scan(&self, from: Key, to: Key, visit: &mut OnItem<'_>) -> Result<u64> {
        let mut failed = Failed(None);
        let store = self.pin.fs.fs.engine().store();
        let scanned = store.scan_moment(&self.moment, &self.pin.nodes, (from, to), &mut |key, value| {
            failed.pass(visit(key, value))
        });
        failed.or(scanned)
    }

    fn core(&self, ino: Ino) -> Result<Option<InodeCore>> {
        let mut core = None;
        self.scan(Key::inode(ino), Key::inode(ino), &mut |_, value| {
            core = Some(InodeCore::decode(value)?);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(core)
    }

    /// The attributes of an inode that has a name.
    pub fn attr(&self, ino: Ino) -> Result<Option<Attr>> {
        Ok(named(ino, self.core(ino)?))
    }

    /// The directory above a directory; the root's is the root.
    pub fn parent(&self, dir: Ino) -> Result<Option<Ino>> {
        Ok(self.core(dir)?.map(|core| core.parent))
    }

    /// Passes the names in the directories with the numbers `[from, to]` to `visit`. Names of other
    /// trees are left out. Returns the number of tree nodes that were read.
    pub fn names(&self, from: Ino, to: Ino, visit: &mut OnName<'_>) -> Result<u64> {
        let to = Key::new(to, ItemKind::Dentry, u64::MAX);
        self.scan(Key::new(from, ItemKind::Dentry, 0), to, &mut |key, value| {
            if key.kind != ItemKind::Dentry as u8 {
                return Ok(ControlFlow::Continue(()));
            }
            let entry = Dentry::decode(value)?;
            Ok(visit(Ino(key.ino), entry.name, entry.ino, entry.kind))
        })
    }

    /// The extended attributes of an inode, by name.
    pub fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut found = self.all_xattrs(ino)?;
        found.retain(|name, _| !name.starts_with(HIDDEN));
        Ok(found)
    }

    fn all_xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut large: Option<(Vec<u8>, Vec<u8>, XattrRest)> = None;
        let key = |slot| Key::new(ino, ItemKind::Xattr, slot);
        self.scan(key(0), key(u64::MAX), &mut |at, item| {
            let item = XattrItem::decode(item)?;
            match item {
                XattrItem::Small(xattr) => {
                    found.insert(xattr.name.to_vec(), xattr.value.to_vec());
                }
                XattrItem::Large { name, len } => {
                    large = Some((name.to_vec(), Vec::new(), XattrRest::new(at.offset, len)));
                }
                XattrItem::Part { bytes, .. } => {
                    let taken = large.as_mut().is_some_and(|(_, value, rest)| {
                        value.extend_from_slice(bytes);
                        rest.take(at.offset, item)
                    });
                    if !taken {
                        return Err(corrupt(format!("inode {ino}: a part of no attribute")));
                    }
                }
            }
            if let Some((name, value, _)) = large.take_if(|(_, _, rest)| rest.next_slot().is_none()) {
                found.insert(name, value);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        match large {
            Some(_) => Err(corrupt(format!("an attribute of inode {ino} lacks a part of its value"))),
            None => Ok(found),
        }
    }

    /// The target of a symbolic link.
    pub fn target(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut target = None;
        let key = Key::new(ino, ItemKind::Symlink, 0);
        self.scan(key, key, &mut |_, value| {
            target = Some(value.to_vec());
            Ok(ControlFlow::Break(()))
        })?;
        target.ok_or(Error::NotFound)
    }

    pub(crate) fn hidden(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.all_xattrs(Ino::ROOT)?.remove(&[HIDDEN, name].concat()))
    }

    pub(crate) fn uuid(&self) -> uuid::Uuid {
        self.pin.fs.fs.engine().store().geometry().uuid
    }

    /// Reads whole blocks of a file from `offset` on, a multiple of a block, and verifies their
    /// checksums. Blocks without data are zeros, and so is what is beyond the file's end in its
    /// last block.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
        if !offset.is_multiple_of(BLOCK) || !(buf.len() as u64).is_multiple_of(BLOCK) {
            return Err(Error::Invalid("not whole blocks"));
        }
        buf.fill(0);
        let (first, end) = (offset / BLOCK, (offset / BLOCK).saturating_add(buf.len() as u64 / BLOCK));
        if first == end {
            return Ok(());
        }
        let core = self.core(ino)?.ok_or(Error::NotFound)?;
        let store = self.pin.fs.fs.engine().store();
        let sums = match store.geometry().sums_data(&core) {
            true => Some(self.sums(ino, first, end)?),
            false => None,
        };
        let extents = self.extents(ino, first, end)?;
        if first == 0
            && extents.first().is_none_or(|(at, _)| *at > 0)
            && let Some(bytes) = self.in_tree(ino)?
        {
            buf[..bytes.len()].copy_from_slice(&bytes);
        }
        for (at, extent) in extents {
            let (from, to) = (at.max(first), (at + u64::from(extent.blocks)).min(end));
            if from >= to || extent.unwritten {
                continue;
            }
            let place = BlockNo(extent.start.0 + from - at);
            let mut io = IoBuf::zeroed((to - from) as usize);
            store.device().read(place.byte_offset(), &mut io)?;
            for (i, block) in io.as_bytes().chunks(BLOCK_SIZE).enumerate() {
                let number = from + i as u64;
                if let Some(sums) = &sums
                    && sums[(number - first) as usize] != sum_of(block)
                {
                    let what = format!("inode {ino}: the checksum of file block {number} does not match");
                    let at = BlockNo(place.0 + i as u64);
                    return Err(kedge_base::Error::corrupt(CorruptKind::Data, at, what).into());
                }
                let start = ((number - first) * BLOCK) as usize;
                buf[start..start + BLOCK_SIZE].copy_from_slice(block);
            }
        }
        let past = core.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        buf[past..].fill(0);
        Ok(())
    }

    fn sums(&self, ino: Ino, first: u64, end: u64) -> Result<Vec<u32>> {
        let mut sums = vec![0; (end - first) as usize];
        let key = |block| Key::new(ino, ItemKind::Sums, SumsItem::first(block));
        self.scan(key(first), key(end - 1), &mut |at, value| {
            for (i, sum) in SumsItem::decode(value)?.0.into_iter().enumerate() {
                let block = at.offset.saturating_add(i as u64);
                if (first..end).contains(&block) {
                    sums[(block - first) as usize] = sum;
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(sums)
    }

    /// The first bytes of a file, if they are in the tree.
    fn in_tree(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let max = self.pin.fs.fs.engine().store().geometry().inline_max;
        let mut found = None;
        if max > 0 {
            self.scan(inline::key(ino), inline::key(ino), &mut |_, value| {
                found = Some(inline::decode(ino, value, max)?.to_vec());
                Ok(ControlFlow::Break(()))
            })?;
        }
        Ok(found)
    }

    /// The extents that overlap file blocks `[first, end)`, with their first file blocks.
    fn extents(&self, ino: Ino, first: u64, end: u64) -> Result<Vec<(u64, ExtentItem)>> {
        let mut found = Vec::new();
        let key = |block| Key::new(ino, ItemKind::Extent, block);
        // An extent that begins before the range is at most so long.
        let from = first.saturating_sub(kedge_format::item::EXTENT_BLOCKS_MAX);
        self.scan(key(from), key(end - 1), &mut |at, value| {
            let extent = ExtentItem::decode(value)?;
            if at.offset.saturating_add(u64::from(extent.blocks)) > first {
                found.push((at.offset, extent));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Passes to `visit` what differs from `since`, or without it all that the tree has. Takes time
    /// proportional to the differences, and little memory. Returns the number of tree nodes that
    /// were read for the comparison.
    ///
    /// # Errors
    /// EINVAL: the two trees are not related.
    pub fn changes(&self, since: Option<&TreeMoment>, visit: &mut OnChange<'_>) -> Result<u64> {
        let unrelated = Error::Invalid("the trees were not forked from one another or from a third");
        let same_below = match since {
            Some(since) => self.same_below(since).ok_or(unrelated)?,
            None => Ino(0),
        };
        let mut seen = Seen { before: since, after: self, same_below, here: None, ended: false, visit };
        let mut failed = Failed(None);
        let store = self.pin.fs.fs.engine().store();
        let compared = store.compare(since.map(|s| &s.moment), &self.moment, &mut |key, a, b| {
            let next = failed.pass(seen.differs(key, a, b))?;
            seen.ended |= next.is_break();
            Ok(next)
        });
        let reads = failed.or(compared)?;
        if !seen.ended {
            let _ = seen.leave()?;
        }
        Ok(reads)
    }
}

/// A run of file blocks in one of two trees.
#[derive(Clone, Copy)]
struct Run {
    first: u64,
    end: u64,
    start: BlockNo,
    unwritten: bool,
}

impl Run {
    /// What a file block has in the run.
    fn at(&self, block: u64) -> (u64, bool) {
        (self.start.0 + block - self.first, self.unwritten)
    }
}

/// Compares the extents of a file in two trees, of which it gets those that differ.
#[derive(Default)]
struct Runs {
    sides: [VecDeque<Run>; 2],
    /// File blocks below this are compared.
    at: u64,
    /// A range that may grow.
    open: Option<(u64, u64, RangeKind)>,
}

impl Runs {
    fn add(&mut self, side: usize, first: u64, item: Option<&[u8]>) -> Result<()> {
        let Some(item) = item else { return Ok(()) };
        let item = ExtentItem::decode(item)?;
        let end = first.saturating_add(u64::from(item.blocks));
        self.sides[side].push_back(Run { first, end, start: item.start, unwritten: item.unwritten });
        Ok(())
    }

    /// Adds the first bytes of the file in the two trees, where they are in the tree. Called before
    /// any extent is added.
    fn add_in_tree(&mut self, bytes: [Option<Vec<u8>>; 2]) {
        if bytes[0] == bytes[1] {
            return;
        }
        for (side, _) in bytes.iter().enumerate().filter(|(_, bytes)| bytes.is_some()) {
            // Places that no blocks have, and each side another.
            let start = BlockNo(u64::MAX - side as u64);
            self.sides[side].push_back(Run { first: 0, end: 1, start, unwritten: false });
        }
    }

    /// Compares the file blocks below `limit`. All extents that begin below it were added.
    fn compare(&mut self, limit: u64, emit: &mut OnRange<'_>) -> Result<ControlFlow<()>> {
        loop {
            for side in &mut self.sides {
                while side.front().is_some_and(|run| run.end <= self.at) {
                    side.pop_front();
                }
            }
            let fronts = [0, 1].map(|side: usize| self.sides[side].front().copied());
            let next = fronts.iter().flatten().map(|run| run.first.max(self.at)).min();
            let Some(at) = next.filter(|at| *at < limit) else { return Ok(ControlFlow::Continue(())) };
            let bound = |run: &Run| if run.first > at { run.first } else { run.end };
            let end = fronts.iter().flatten().map(bound).min().unwrap_or(limit).min(limit);
            let [a, b] = fronts.map(|run| run.filter(|run| run.first <= at).map(|run| run.at(at)));
            self.at = end;
            if a == b {
                continue;
            }
            let kind = match b {
                None => RangeKind::Hole,
                Some((_, true)) => RangeKind::Unwritten,
                Some(_) => RangeKind::Data,
            };
            match &mut self.open {
                Some((_, open_end, open)) if *open_end == at && *open == kind => *open_end = end,
                _ => {
                    if self.close(emit)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    self.open = Some((at, end, kind));
                }
            }
        }
    }

    fn close(&mut self, emit: &mut OnRange<'_>) -> Result<ControlFlow<()>> {
        match self.open.take() {
            Some((at, end, kind)) => emit(at, end, kind),
            None => Ok(ControlFlow::Continue(())),
        }
    }
}

/// The inode whose items are being compared.
struct Here {
    ino: Ino,
    before: Option<Attr>,
    after: Option<Attr>,
    /// Another inode had the number before.
    replaced: bool,
    has_xattrs: bool,
    /// All of it was passed on when it was entered.
    is_done: bool,
    runs: Runs,
}

struct Seen<'a, 'b> {
    before: Option<&'a TreeMoment>,
    after: &'a TreeMoment,
    same_below: Ino,
    here: Option<Here>,
    ended: bool,
    visit: &'a mut OnChange<'b>,
}

impl Seen<'_, '_> {
    fn differs(&mut self, key: Key, a: Option<&[u8]>, b: Option<&[u8]>) -> Result<ControlFlow<()>> {
        let ino = Ino(key.ino);
        // Inode 0 has the inodes without a name, and the counts of shared blocks.
        if ino.0 == 0 || (a == b && self.is_same(key, b)?) {
            return Ok(ControlFlow::Continue(()));
        }
        if self.here.as_ref().is_none_or(|here| here.ino != ino)
            && (self.leave()?.is_break() || self.enter(ino, key, a, b)?.is_break())
        {
            return Ok(ControlFlow::Break(()));
        }
        if self.here.as_ref().is_some_and(|here| here.is_done) {
            return Ok(ControlFlow::Continue(()));
        }
        self.item(key, a, b)
    }

    fn item(&mut self, key: Key, a: Option<&[u8]>, b: Option<&[u8]>) -> Result<ControlFlow<()>> {
        let ino = Ino(key.ino);
        let here = self.here.as_mut().expect("it was entered");
        let kind = ItemKind::from_u8(key.kind).ok_or_else(|| corrupt(format!("an item with key {key}")))?;
        let (had, has) = (here.before.is_some() || here.replaced, here.after.is_some());
        if !had && !has {
            return Ok(ControlFlow::Continue(()));
        }
        let (a, b) = (a.filter(|_| had), b.filter(|_| has));
        match kind {
            ItemKind::Inode | ItemKind::Orphan | ItemKind::Sums | ItemKind::Count | ItemKind::Inline => {}
            ItemKind::Xattr if has && !here.has_xattrs => {
                here.has_xattrs = true;
                let had = here.before.is_some();
                return self.xattrs(ino, had);
            }
            ItemKind::Xattr => {}
            ItemKind::Symlink => {
                if let Some(target) = b {
                    return (self.visit)(TreeChange::Target { ino, target });
                }
            }
            ItemKind::Dentry => return self.entry(ino, a, b),
            ItemKind::Extent if has => {
                let mut emit = emitter(ino, self.visit);
                if here.runs.compare(key.offset, &mut emit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                here.runs.add(0, key.offset, a.filter(|_| !here.replaced))?;
                here.runs.add(1, key.offset, b)?;
            }
            ItemKind::Extent => {}
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Whether an item that both trees have means the same in both.
    fn is_same(&self, key: Key, item: Option<&[u8]>) -> Result<bool> {
        let named = match item.filter(|_| key.kind == ItemKind::Dentry as u8) {
            Some(item) => Dentry::decode(item)?.ino,
            None => Ino(0),
        };
        Ok(key.ino < self.same_below.0 && named < self.same_below)
    }

    /// Begins with the items of an inode.
    fn enter(&mut self, ino: Ino, key: Key, a: Option<&[u8]>, b: Option<&[u8]>) -> Result<ControlFlow<()>> {
        let (before, after) = if key.kind == ItemKind::Inode as u8 {
            (a.map(InodeCore::decode).transpose()?, b.map(InodeCore::decode).transpose()?)
        } else {
            // It is the same in both.
            let core = self.after.core(ino)?;
            (core.filter(|_| self.before.is_some()), core)
        };
        let had_items = before.is_some();
        let (mut before, after) = (named(ino, before), named(ino, after));
        let replaced = ino >= self.same_below && before.is_some() && after.is_some();
        if replaced {
            // Two inodes of one number.
            if (self.visit)(TreeChange::Inode { ino, before, after: None })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            before = None;
        }
        let mut runs = Runs::default();
        let had = self.before.filter(|_| before.is_some_and(|attr| attr.kind == FileKind::Regular));
        let has = after.is_some_and(|attr| attr.kind == FileKind::Regular);
        let was = had.map(|tree| tree.in_tree(ino)).transpose()?.flatten();
        let is = if has { self.after.in_tree(ino)? } else { None };
        runs.add_in_tree([was, is]);
        self.here = Some(Here { ino, before, after, replaced, has_xattrs: false, is_done: false, runs });
        if before.is_none() && after.is_none() {
            return Ok(ControlFlow::Continue(()));
        }
        if (self.visit)(TreeChange::Inode { ino, before, after })?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        // It had no name and has one now: what did not change since is new all the same.
        if had_items && before.is_none() && !replaced {
            self.whole(ino)
        } else {
            Ok(ControlFlow::Continue(()))
        }
    }

    /// Passes on all that an inode has.
    fn whole(&mut self, ino: Ino) -> Result<ControlFlow<()>> {
        let (from, to) = (
            Key::new(ino, ItemKind::Xattr, 0),
            Key { kind: u8::MAX, ..Key::new(ino, ItemKind::Sums, u64::MAX) },
        );
        let mut next = ControlFlow::Continue(());
        let after = self.after;
        after.scan(from, to, &mut |key, value| {
            next = self.item(key, None, Some(value))?;
            Ok(next)
        })?;
        if let Some(here) = &mut self.here {
            here.is_done = true;
        }
        Ok(next)
    }

    fn leave(&mut self) -> Result<ControlFlow<()>> {
        let Some(mut here) = self.here.take() else { return Ok(ControlFlow::Continue(())) };
        let mut emit = emitter(here.ino, self.visit);
        if here.runs.compare(u64::MAX, &mut emit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        here.runs.close(&mut emit)
    }

    fn xattrs(&mut self, ino: Ino, had: bool) -> Result<ControlFlow<()>> {
        let before = self.before.filter(|_| had).map_or(Ok(BTreeMap::new()), |tree| tree.xattrs(ino))?;
        let after = self.after.xattrs(ino)?;
        let gone = before.keys().filter(|name| !after.contains_key(*name));
        for name in after.keys().chain(gone) {
            let (old, new) = (before.get(name), after.get(name));
            let (before, after) = (old.map(Vec::as_slice), new.map(Vec::as_slice));
            if before != after && (self.visit)(TreeChange::Xattr { ino, name, before, after })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn entry(&mut self, dir: Ino, a: Option<&[u8]>, b: Option<&[u8]>) -> Result<ControlFlow<()>> {
        let a = a.map(Dentry::decode).transpose()?;
        let b = b.map(Dentry::decode).transpose()?;
        let of = |entry: Dentry<'_>| (entry.ino, entry.kind);
        match (a, b) {
            (Some(a), Some(b)) if a.name != b.name => {
                // Two names with one hash.
                let gone = TreeChange::Entry { dir, name: a.name, before: Some(of(a)), after: None };
                if (self.visit)(gone)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                (self.visit)(TreeChange::Entry { dir, name: b.name, before: None, after: Some(of(b)) })
            }
            (a, b) => {
                let Some(name) = a.or(b).map(|entry| entry.name) else {
                    return Ok(ControlFlow::Continue(()));
                };
                (self.visit)(TreeChange::Entry { dir, name, before: a.map(of), after: b.map(of) })
            }
        }
    }
}

fn emitter<'a>(
    ino: Ino,
    visit: &'a mut OnChange<'_>,
) -> impl FnMut(u64, u64, RangeKind) -> Result<ControlFlow<()>> + 'a {
    move |at, end, kind| {
        let (offset, len) = (at.saturating_mul(BLOCK), (end - at).saturating_mul(BLOCK));
        visit(TreeChange::Data { ino, offset, len, kind })
    }
}
