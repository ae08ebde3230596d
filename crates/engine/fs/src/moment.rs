//! Trees as they were at one moment ([`TreeMoment`]), and the changes between two moments.
//!
//! A moment is read while its tree changes. While a moment is in use, the space of deleted trees is
//! not freed; [`kedge_store`] says why that suffices.

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

/// A tree as it was at one moment. Later changes do not affect it. Inodes have their numbers within
/// the tree ([`Ino::local`]), which are the same in a fork and in its source.
#[derive(Clone)]
pub struct TreeMoment {
    pin: Arc<Pin>,
    moment: Moment,
}

/// Delays the freeing of deleted trees until all moments that share it are dropped.
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

/// What a range of a file contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeKind {
    /// Data.
    Data,
    /// Allocated blocks that were not written: they read as zeros.
    Unwritten,
    /// No blocks: the range reads as zeros.
    Hole,
}

/// A difference between two moments. All changes of an inode come together, [`TreeChange::Inode`]
/// first; inodes come in the order of their numbers. Inodes without a name are left out. If a
/// number means different inodes at the two moments ([`TreeMoment::same_below`]), the old one is
/// reported gone, then the other one new.
#[derive(Clone, Copy, Debug)]
pub enum TreeChange<'a> {
    /// An inode is new or gone, or its attributes or other contents have changed.
    Inode {
        /// The inode.
        ino: Ino,
        /// `None` if it is new.
        before: Option<Attr>,
        /// `None` if it is gone.
        after: Option<Attr>,
    },
    /// An extended attribute has changed, of an inode that is not gone.
    Xattr {
        /// The inode.
        ino: Ino,
        /// The name, with its namespace.
        name: &'a [u8],
        /// The value before; `None` if the attribute did not exist.
        before: Option<&'a [u8]>,
        /// The value now; `None` if the attribute does not exist any more.
        after: Option<&'a [u8]>,
    },
    /// The target of a new symbolic link.
    Target {
        /// The symbolic link.
        ino: Ino,
        /// The target.
        target: &'a [u8],
    },
    /// A name in a directory is new or gone, or refers to another inode.
    Entry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: &'a [u8],
        /// The inode and its type to which the name referred before; `None` if the name did not
        /// exist.
        before: Option<(Ino, FileKind)>,
        /// The inode and its type to which the name refers now; `None` if the name is gone.
        after: Option<(Ino, FileKind)>,
    },
    /// A range of a file, in whole blocks, is in other blocks than before. Its bytes may still be
    /// the same.
    Data {
        /// The file.
        ino: Ino,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// What the range contains now.
        kind: RangeKind,
    },
}

/// Receives changes until it returns a break.
pub type OnChange<'a> = dyn FnMut(TreeChange<'_>) -> Result<ControlFlow<()>> + 'a;

/// Receives names until it returns a break: the directory, the name, the inode, and its type.
pub type OnName<'a> = dyn FnMut(Ino, &[u8], Ino, FileKind) -> ControlFlow<()> + 'a;

/// Receives items until it returns a break.
type OnItem<'a> = dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>> + 'a;

/// Receives ranges of file blocks, `[first, end)` and their contents, until it returns a break.
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
    /// Returns the trees with these roots, all as they are at the same moment. For a tree that has
    /// changed since its last fork this takes as long as a fork. The space of deleted trees is not
    /// freed until all returned moments are dropped.
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

/// The attributes of an inode with this core; `None` if the inode has no name.
fn named(ino: Ino, core: Option<InodeCore>) -> Option<Attr> {
    let core = core.filter(|core| core.nlink > 0)?;
    Some(Attr::from_core(ino, &core, core.kind()?))
}

/// Passes an error of this crate through a callback of the store, which knows only its own errors.
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
    /// The address and generation of the root node. Together they identify the state: no other
    /// state of any tree of the image, earlier or later, has the same pair.
    pub fn root_node(&self) -> (u64, u64) {
        self.moment.root()
    }

    /// The end of the inode numbers that mean the same inode in both trees: numbers below the
    /// result were given out before the trees separated. Higher numbers may mean two inodes. `None`
    /// if the trees have no common origin.
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

    /// The attributes of an inode. `None` if it does not exist or has no name.
    pub fn attr(&self, ino: Ino) -> Result<Option<Attr>> {
        Ok(named(ino, self.core(ino)?))
    }

    /// The parent of a directory; that of the root is the root.
    pub fn parent(&self, dir: Ino) -> Result<Option<Ino>> {
        Ok(self.core(dir)?.map(|core| core.parent))
    }

    /// Passes the names in directories with numbers in `[from, to]` to `visit`. Names of other
    /// trees are left out. Returns the number of tree nodes read.
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

    /// The extended attributes of an inode: values by name.
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

    /// Reads whole blocks of a file from `offset` on, a multiple of the block size, and verifies
    /// their checksums. Blocks without data, and bytes after the end of the file, are zeros.
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

    /// The inline data of a file, if it has some.
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
        // An extent that overlaps the range begins at most its greatest length before the range.
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

    /// Passes the differences from `since` to `visit`; without `since`, everything in the tree. The
    /// time is proportional to the differences, and the memory small. Returns the number of tree
    /// nodes read for the comparison.
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

/// A run of file blocks that an extent maps in one of two trees.
#[derive(Clone, Copy)]
struct Run {
    first: u64,
    end: u64,
    start: BlockNo,
    unwritten: bool,
}

impl Run {
    /// The device block of a file block in the run, and whether it is unwritten.
    fn at(&self, block: u64) -> (u64, bool) {
        (self.start.0 + block - self.first, self.unwritten)
    }
}

/// Compares the extents of a file in two trees. It gets only the extents that differ.
#[derive(Default)]
struct Runs {
    sides: [VecDeque<Run>; 2],
    /// File blocks below this one have been compared.
    at: u64,
    /// A differing range that was not passed on yet, because it may grow.
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

    /// Adds the inline data of the file in the two trees, if it differs. Called before any extent
    /// is added.
    fn add_in_tree(&mut self, bytes: [Option<Vec<u8>>; 2]) {
        if bytes[0] == bytes[1] {
            return;
        }
        for (side, _) in bytes.iter().enumerate().filter(|(_, bytes)| bytes.is_some()) {
            // Block numbers that no extent has, and that differ between the two sides.
            let start = BlockNo(u64::MAX - side as u64);
            self.sides[side].push_back(Run { first: 0, end: 1, start, unwritten: false });
        }
    }

    /// Compares the file blocks below `limit`. All extents that begin below `limit` have been
    /// added.
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
    /// Whether the number meant another inode before.
    replaced: bool,
    has_xattrs: bool,
    /// Whether everything of the inode was passed on when its items were entered.
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
        // Inode 0 has the orphan items and the counts of shared blocks.
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

    /// Whether an item with equal bytes in both trees also means the same inodes in both.
    fn is_same(&self, key: Key, item: Option<&[u8]>) -> Result<bool> {
        let named = match item.filter(|_| key.kind == ItemKind::Dentry as u8) {
            Some(item) => Dentry::decode(item)?.ino,
            None => Ino(0),
        };
        Ok(key.ino < self.same_below.0 && named < self.same_below)
    }

    /// Starts the comparison of an inode at its first item that differs.
    fn enter(&mut self, ino: Ino, key: Key, a: Option<&[u8]>, b: Option<&[u8]>) -> Result<ControlFlow<()>> {
        let (before, after) = if key.kind == ItemKind::Inode as u8 {
            (a.map(InodeCore::decode).transpose()?, b.map(InodeCore::decode).transpose()?)
        } else {
            // The core does not differ, so it is the same in both trees.
            let core = self.after.core(ino)?;
            (core.filter(|_| self.before.is_some()), core)
        };
        let had_items = before.is_some();
        let (mut before, after) = (named(ino, before), named(ino, after));
        let replaced = ino >= self.same_below && before.is_some() && after.is_some();
        if replaced {
            // Two inodes have the same number: the old one is gone, the other one is new.
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
        // The inode had no name before and has one now. It is reported as new with all its items,
        // including those that did not change.
        if had_items && before.is_none() && !replaced {
            self.whole(ino)
        } else {
            Ok(ControlFlow::Continue(()))
        }
    }

    /// Passes on everything that an inode has.
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
                // Two different names with the same hash.
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
