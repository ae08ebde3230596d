//! Checks of one inode while its items are streamed in key order: core, attributes, target,
//! entries, extents.
//!
//! The items of an inode are neighbours in the tree, core first. So checks of a single inode need
//! memory for one inode only. Relations between inodes (names, link counts, parents) are collected
//! as [`Facts`], a few bytes for each inode and name, and checked in [`crate::names`] once all
//! items have been seen. Extents are claimed in [`Owned`] meanwhile.

use crate::counts::Counts;
use crate::facts::{Facts, InodeRec, Lost, NameRef};
use crate::kinds::FindingKind;
use crate::limits::Tally;
use crate::owned::Owned;
use crate::report::{At, Counters, Findings, what_of};
use crate::sums::Written;
use crate::tree::NodeRef;
use kedge_base::{BLOCK_SIZE, BlockNo, Extent, Generation, Ino};
use kedge_format::acl::is_acl_name;
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::counts::CountItem;
use kedge_format::item::{
    Dentry, ExtentItem, FILE_SIZE_MAX, Orphan, SLOT_ORDINALS, SYMLINK_MAX, XattrItem, XattrRest, name_slot,
};
use kedge_format::sums::SumsItem;
use kedge_format::superblock::Superblock;
use kedge_format::{FileKind, INO_MAX, InodeCore, ItemKind, Key};
use std::collections::BTreeSet;

/// The number of conflicts up to which the report names all owners.
const CONFLICTS_MAX: usize = 64;
/// The first file block beyond the largest file size.
pub(crate) const FILE_BLOCKS_MAX: u64 = FILE_SIZE_MAX / BLOCK_SIZE as u64;

/// Blocks that a file claims although they already have an owner.
#[derive(Clone, Copy)]
pub(crate) struct Conflict {
    pub start: BlockNo,
    pub blocks: u64,
    pub ino: Ino,
}

/// The state that all phases share.
pub(crate) struct State {
    pub findings: Findings,
    pub counters: Counters,
    pub owned: Owned,
    pub facts: Facts,
    pub lost: Lost,
    pub conflicts: Vec<Conflict>,
    /// Nodes that do not match their parents' pointers.
    pub bad_nodes: Vec<NodeRef>,
    /// In an image with several trees: the blocks that this tree owns.
    pub own: Option<Own>,
    /// The blocks and inodes that count for each limit.
    pub tally: Tally,
    /// The extents and count items that refer to shared blocks.
    pub counts: Counts,
}

/// The blocks that one of several trees owns: those at or above its marks.
pub(crate) struct Own {
    pub nodes_below: Generation,
    pub births_below: u32,
    /// The tree's own extents under lower keys are freed already, because the tree is being
    /// deleted.
    pub freed_below: Key,
    pub blocks: Owned,
    /// The blocks to compare with those of the point; `None` if they are not compared.
    pub shared: Option<Shared>,
}

/// The blocks that a tree shares with its point. For a point, all blocks that it uses.
#[derive(Default)]
pub(crate) struct Shared {
    /// Whether this is a point.
    pub of_point: bool,
    /// Data with its births.
    pub data: Vec<(Extent, u32)>,
    /// The first blocks of nodes.
    pub nodes: BTreeSet<u64>,
}

impl Own {
    /// Notes a node. Returns whether the tree owns it.
    pub fn node(&mut self, block: BlockNo, generation: Generation) -> bool {
        let own = generation >= self.nodes_below;
        if let Some(shared) = self.shared.as_mut().filter(|shared| shared.of_point || !own) {
            shared.nodes.insert(block.0);
        }
        own
    }

    /// Notes an extent. Returns whether the tree owns it.
    fn data(&mut self, extent: Extent, birth: u32) -> bool {
        let own = birth >= self.births_below;
        if let Some(shared) = self.shared.as_mut().filter(|shared| shared.of_point || !own) {
            match shared.data.last_mut() {
                Some((last, of)) if *of == birth && last.end() == extent.start => {
                    last.blocks += extent.blocks;
                }
                _ => shared.data.push((extent, birth)),
            }
        }
        own
    }
}

impl State {
    pub fn new(groups: u64, findings: Findings) -> State {
        State {
            findings,
            counters: Counters::default(),
            owned: Owned::new(groups),
            facts: Facts::default(),
            lost: Lost::default(),
            conflicts: Vec::new(),
            bad_nodes: Vec::new(),
            own: None,
            tally: Tally::default(),
            counts: Counts::default(),
        }
    }
}

/// The leaf that contains an item.
#[derive(Clone, Copy)]
pub(crate) struct Leaf {
    pub index: usize,
    pub block: BlockNo,
}

pub(crate) struct ItemCheck<'a> {
    sb: &'a Superblock,
    state: &'a mut State,
    current: Option<Current>,
    bucket: Bucket,
}

/// The inode whose items are being streamed.
struct Current {
    ino: Ino,
    leaf: Leaf,
    has_core: bool,
    /// `None` if the core is missing or cannot be decoded.
    core: Option<InodeCore>,
    entries: u64,
    subdirs: u32,
    blocks: u64,
    has_target: bool,
    /// Whether an attribute has been seen. A deletion in progress leaves parts without their
    /// attribute, and only before the first attribute.
    has_xattr: bool,
    /// The parts of the last attribute's value that have not been seen yet.
    rest: Option<XattrRest>,
    next_file_block: u64,
    /// Whether an extent covers file block 0.
    has_first: bool,
    /// For a file with checksums: the written blocks whose checksums have not been seen yet.
    written: Option<Written>,
}

/// The names with the same hash that have been seen so far.
#[derive(Default)]
struct Bucket {
    slot: Option<(u64, u8, u64)>,
    names: Vec<Vec<u8>>,
}

impl Bucket {
    /// Adds `name` to the names of `slot`. Returns whether it was there already.
    fn holds(&mut self, slot: (u64, u8, u64), name: &[u8]) -> bool {
        if self.slot != Some(slot) {
            self.slot = Some(slot);
            self.names.clear();
        }
        let known = self.names.iter().any(|n| n == name);
        if !known {
            self.names.push(name.to_vec());
        }
        known
    }
}

impl<'a> ItemCheck<'a> {
    pub fn new(sb: &'a Superblock, state: &'a mut State) -> ItemCheck<'a> {
        ItemCheck { sb, state, current: None, bucket: Bucket::default() }
    }

    pub fn state(&mut self) -> &mut State {
        self.state
    }

    /// Checks one item. Keys must be passed in strictly ascending order.
    pub fn item(&mut self, key: Key, value: &[u8], leaf: Leaf) {
        self.state.counters.items += 1;
        let at = At::both(key.ino, leaf.block);
        let Some(kind) = ItemKind::from_u8(key.kind) else {
            self.add(FindingKind::ItemUnknown, at, || format!("item {key} of {} bytes", value.len()));
            return;
        };
        let is_under_none = matches!(kind, ItemKind::Orphan | ItemKind::Count);
        if (key.ino == 0) != is_under_none || key.ino > INO_MAX {
            self.add(FindingKind::ItemMisplaced, at, || {
                format!("item {key} cannot be under this inode number")
            });
            return;
        }
        if kind == ItemKind::Orphan {
            return self.orphan(key, value, leaf);
        }
        if kind == ItemKind::Count {
            return self.count(key, value, At::block(leaf.block));
        }
        if self.current.as_ref().is_none_or(|c| c.ino.0 != key.ino) {
            self.finish_inode();
            self.begin_inode(key, leaf);
        }
        if matches!(kind, ItemKind::Inode | ItemKind::Symlink | ItemKind::Inline) && key.offset != 0 {
            self.add(FindingKind::ItemMisplaced, at, || format!("item {key} must have offset 0"));
            return;
        }
        let mut current = self.current.take().expect("just begun if it was not there");
        if kind != ItemKind::Xattr {
            self.end_value(&mut current);
        }
        match kind {
            ItemKind::Inode => self.core(&mut current, value, at),
            ItemKind::Xattr => self.xattr(&mut current, key, value, at),
            ItemKind::Symlink => self.symlink(&mut current, value, at),
            ItemKind::Dentry => self.dentry(&mut current, key, value, leaf),
            ItemKind::Extent => self.extent(&mut current, key, value, at),
            ItemKind::Sums => self.sums(&mut current, key, value, at),
            ItemKind::Inline => self.inline(&mut current, value, at),
            ItemKind::Orphan | ItemKind::Count => {}
        }
        self.current = Some(current);
    }

    /// Ends the last inode, and checks the reference counts. Must be called after the last item.
    pub fn finish(mut self) {
        self.finish_inode();
        // If items are lost, the sums are incomplete.
        if self.state.lost.is_empty() {
            std::mem::take(&mut self.state.counts).judge(&mut self.state.findings);
        }
    }

    fn add(&mut self, kind: FindingKind, at: At, what: impl FnOnce() -> String) {
        self.state.findings.add(kind, at, what);
    }

    fn orphan(&mut self, key: Key, value: &[u8], leaf: Leaf) {
        self.state.counters.orphans += 1;
        let at = At::both(key.offset, leaf.block);
        match Orphan::decode(value) {
            Ok(_) if key.offset == 0 => {
                self.add(FindingKind::OrphanBad, at, || "orphan item of inode 0".into());
            }
            Ok(orphan) => self.state.facts.orphans.push((key.offset, orphan)),
            Err(e) => {
                self.add(FindingKind::OrphanBad, at, || what_of(&e));
                self.state.lost.item(key);
            }
        }
    }

    fn begin_inode(&mut self, key: Key, leaf: Leaf) {
        let is_core = key.kind == ItemKind::Inode as u8;
        if !is_core && !self.state.lost.has(Key::inode(Ino(key.ino))) {
            self.add(FindingKind::ItemWithoutInode, At::both(key.ino, leaf.block), || {
                format!("item {key} and perhaps more, but no inode")
            });
        }
        self.current = Some(Current {
            ino: Ino(key.ino),
            leaf,
            has_core: false,
            core: None,
            entries: 0,
            subdirs: 0,
            blocks: 0,
            has_target: false,
            has_xattr: false,
            rest: None,
            next_file_block: 0,
            has_first: false,
            written: None,
        });
    }

    fn core(&mut self, current: &mut Current, value: &[u8], at: At) {
        current.has_core = true;
        self.state.counters.inodes += 1;
        let core = match InodeCore::decode(value) {
            Ok(core) => core,
            Err(e) => return self.add(FindingKind::InodeBad, at, || what_of(&e)),
        };
        let Some(kind) = core.kind() else { return };
        current.core = Some(core);
        current.written = self.sb.geometry.sums_data(&core).then(Written::default);
        self.state.tally.add(&core);
        let counters = &mut self.state.counters;
        match kind {
            FileKind::Directory => counters.directories += 1,
            FileKind::Regular => counters.files += 1,
            FileKind::Symlink => counters.symlinks += 1,
            _ => {}
        }
        if core.mode & !(FileKind::MODE_MASK | 0o7777) != 0 {
            self.add(FindingKind::InodeBad, at, || {
                format!("mode {:#o} has bits that no mode has", core.mode)
            });
        }
        if core.limit != 0 && !self.sb.geometry.has_limits() {
            self.add(FindingKind::InodeBad, at, || {
                format!("limit {} in an image without limits", core.limit)
            });
        }
        let flags = self.sb.geometry.file_flags(&core).bits();
        if core.flags != flags {
            self.add(FindingKind::InodeBad, at, || {
                format!("flags {:#x}, of which a {kind:?} of this image has only {flags:#x}", core.flags)
            });
        }
        if kind == FileKind::Regular && core.size > FILE_SIZE_MAX {
            self.add(FindingKind::InodeBad, at, || {
                format!("size {} is above the largest, {FILE_SIZE_MAX}", core.size)
            });
        }
        if kind != FileKind::Directory && core.parent.0 != 0 {
            self.add(FindingKind::InodeBad, at, || format!("a {kind:?} with parent {}", core.parent));
        }
    }

    fn xattr(&mut self, current: &mut Current, key: Key, value: &[u8], at: At) {
        let item = match XattrItem::decode(value) {
            Ok(item) => item,
            Err(e) => {
                self.end_value(current);
                return self.add(FindingKind::XattrBad, at, || what_of(&e));
            }
        };
        let Some(name) = item.name() else { return self.part(current, key, item, at) };
        self.end_value(current);
        self.state.counters.xattrs += 1;
        current.has_xattr = true;
        let shown = || name.escape_ascii();
        if let XattrItem::Large { len, .. } = item {
            current.rest = Some(XattrRest::new(key.offset, len));
            if len > self.sb.geometry.xattr_value_max() {
                self.add(FindingKind::XattrBad, at, || {
                    format!("\"{}\" has {len} bytes, more than this image may hold", shown())
                });
            }
        }
        if name.contains(&0) {
            return self
                .add(FindingKind::XattrBad, at, || format!("attribute name \"{}\" holds a NUL", shown()));
        }
        if is_acl_name(name) && !item.is_acl() {
            self.add(FindingKind::XattrBad, at, || format!("\"{}\" is no access control list", shown()));
        }
        match self.placed(key, name) {
            Err(right) => self.add(FindingKind::XattrSlot, at, || {
                format!("attribute \"{}\" lies in slot {:#x}, its name's is {right:#x}", shown(), key.offset)
            }),
            Ok(true) => {}
            Ok(false) => {
                self.add(FindingKind::XattrDuplicate, at, || format!("attribute \"{}\" again", shown()));
            }
        }
    }

    fn part(&mut self, current: &mut Current, key: Key, item: XattrItem<'_>, at: At) {
        if let Some(rest) = &mut current.rest {
            let is_next = rest.take(key.offset, item);
            if !is_next {
                self.end_value(current);
            } else if rest.next_slot().is_none() {
                current.rest = None;
            }
            return;
        }
        // The deletion of an inode removes its attributes one by one, beginning with the first.
        let deleted = self.state.facts.orphan(key.ino) == Some(Orphan::Unlinked);
        if !(deleted && !current.has_xattr || self.state.lost.touches_inode(current.ino)) {
            self.add(FindingKind::XattrPart, at, || format!("item {key} is a part of no attribute's value"));
        }
    }

    /// Ends the last attribute's value: the next item belongs to something else, so a part that is
    /// still missing is a finding.
    fn end_value(&mut self, current: &mut Current) {
        let Some(slot) = current.rest.take().and_then(|rest| rest.next_slot()) else { return };
        let missing = Key::new(current.ino, ItemKind::Xattr, slot);
        if !self.state.lost.touches_inode(current.ino) {
            self.add(FindingKind::XattrPart, At::both(current.ino.0, current.leaf.block), || {
                format!("item {missing} is not the part of an attribute's value that should be there")
            });
        }
    }

    /// Returns whether the inode does not have this name yet. The error is the first slot of the
    /// name's hash, if the item is in another slot.
    fn placed(&mut self, key: Key, name: &[u8]) -> Result<bool, u64> {
        let slot = name_slot(&self.sb.geometry.hash_seed, name);
        if key.offset / SLOT_ORDINALS * SLOT_ORDINALS != slot {
            return Err(slot);
        }
        Ok(!self.bucket.holds((key.ino, key.kind, slot), name))
    }

    fn symlink(&mut self, current: &mut Current, target: &[u8], at: At) {
        current.has_target = true;
        let Some(core) = &current.core else { return };
        if core.kind() != Some(FileKind::Symlink) {
            return self
                .add(FindingKind::SymlinkOnOther, at, || format!("a {:?} with a target", core.kind()));
        }
        if target.is_empty() || target.len() > SYMLINK_MAX || target.contains(&0) {
            let len = target.len();
            return self.add(FindingKind::SymlinkBad, at, || format!("impossible target of {len} bytes"));
        }
        if target.len() as u64 != core.size {
            self.add(FindingKind::SymlinkBad, at, || {
                format!("target of {} bytes, but the size is {}", target.len(), core.size)
            });
        }
    }

    fn dentry(&mut self, current: &mut Current, key: Key, value: &[u8], leaf: Leaf) {
        let at = At::both(key.ino, leaf.block);
        self.state.counters.names += 1;
        current.entries += 1;
        if let Some(core) = &current.core
            && core.kind() != Some(FileKind::Directory)
            && current.entries == 1
        {
            self.add(FindingKind::DentryOnFile, at, || format!("a {:?} with directory entries", core.kind()));
        }
        let dentry = match Dentry::decode(value) {
            Ok(dentry) => dentry,
            Err(e) => {
                self.add(FindingKind::DentryBad, at, || what_of(&e));
                return self.state.lost.item(key);
            }
        };
        if dentry.kind == FileKind::Directory {
            current.subdirs = current.subdirs.saturating_add(1);
        }
        let index = u32::try_from(leaf.index).unwrap_or(u32::MAX);
        let name_ref = NameRef { target: dentry.ino.0, dir: key.ino, leaf: index, kind: dentry.kind };
        self.state.facts.names.push(name_ref);
        let shown = || dentry.name.escape_ascii();
        if matches!(dentry.name, b"." | b"..") {
            return self
                .add(FindingKind::DentryBad, at, || format!("an entry with the name \"{}\"", shown()));
        }
        match self.placed(key, dentry.name) {
            Err(right) => self.add(FindingKind::DentrySlot, at, || {
                format!("entry \"{}\" lies in slot {:#x}, its name's is {right:#x}", shown(), key.offset)
            }),
            Ok(true) => {}
            Ok(false) => {
                self.add(FindingKind::DentryDuplicate, at, || format!("entry \"{}\" again", shown()));
            }
        }
    }

    fn extent(&mut self, current: &mut Current, key: Key, value: &[u8], at: At) {
        self.state.counters.extents += 1;
        let item = match ExtentItem::decode(value) {
            Ok(item) => item,
            Err(e) => {
                self.add(FindingKind::ExtentBad, at, || what_of(&e));
                return self.state.lost.item(key);
            }
        };
        let (extent, first) = (item.extent(), key.offset);
        let shown = || format!("{} blocks at block {} for file block {first}", extent.blocks, extent.start);
        current.blocks = current.blocks.saturating_add(extent.blocks);
        if let Some(core) = &current.core
            && core.kind() != Some(FileKind::Regular)
        {
            self.add(FindingKind::ExtentOnOther, at, || {
                format!("a {:?} with an extent: {}", core.kind(), shown())
            });
        }
        if first.checked_add(extent.blocks).is_none_or(|end| end > FILE_BLOCKS_MAX) {
            self.add(FindingKind::ExtentBeyondLimit, at, shown);
        }
        if first < current.next_file_block {
            let next = current.next_file_block;
            self.add(FindingKind::ExtentOverlap, at, || {
                format!("{}; the one before ends at {next}", shown())
            });
        }
        current.has_first |= first == 0;
        current.next_file_block = current.next_file_block.max(first.saturating_add(extent.blocks));
        if let Some(written) = &mut current.written {
            written.extent(first, &item);
        }
        let g = &self.sb.geometry;
        if extent.start < g.data_start || extent.end().0 > g.total_blocks {
            return self.add(FindingKind::ExtentMisplaced, at, || {
                format!("{}; the data area is {} to {}", shown(), g.data_start, g.total_blocks)
            });
        }
        if extent.start.0 / GROUP_BLOCKS != (extent.end().0 - 1) / GROUP_BLOCKS {
            self.add(FindingKind::ExtentCrossesGroup, at, shown);
        }
        let birth_max = self.sb.checkpoint.trees.map_or(0, |trees| trees.birth);
        if item.birth > birth_max {
            self.add(FindingKind::ExtentBad, at, || {
                format!("{}, of birth {}; the newest are of birth {birth_max}", shown(), item.birth)
            });
        }
        if item.counted && self.sb.geometry.has_clones() {
            // The count item owns the blocks.
            return self.state.counts.extent(&item);
        }
        if item.counted {
            self.add(FindingKind::ExtentBad, at, || {
                format!("{}, marked as counted in an image without counts", shown())
            });
        }
        self.claim(key, extent, item.birth, current.ino);
    }

    /// Makes an item of the tree the owner of blocks.
    fn claim(&mut self, key: Key, extent: Extent, birth: u32, ino: Ino) {
        if let Some(own) = self.state.own.as_mut()
            && own.data(extent, birth)
        {
            if key < own.freed_below {
                return;
            }
            own.blocks.claim(extent.start, extent.blocks);
        }
        self.state.counters.blocks_data += extent.blocks;
        for (start, blocks) in self.state.owned.claim(extent.start, extent.blocks) {
            self.conflict(Conflict { start, blocks, ino });
        }
    }

    fn count(&mut self, key: Key, value: &[u8], at: At) {
        let item = match CountItem::decode(key.offset, value) {
            Ok(item) => item,
            Err(e) => {
                self.add(FindingKind::CountBad, at, || what_of(&e));
                return self.state.lost.item(key);
            }
        };
        let g = &self.sb.geometry;
        let extent = item.extent(key.offset);
        let shown = || format!("count {} of {} blocks at block {}", item.count, item.blocks, key.offset);
        let birth_max = self.sb.checkpoint.trees.map_or(0, |trees| trees.birth);
        if !g.has_clones() {
            return self.add(FindingKind::CountBad, at, || format!("{} in an image without counts", shown()));
        }
        if item.birth > birth_max {
            self.add(FindingKind::CountBad, at, || {
                format!("{}, of birth {}; the newest are of birth {birth_max}", shown(), item.birth)
            });
        }
        if extent.start < g.data_start || extent.end().0 > g.total_blocks {
            return self.add(FindingKind::CountBad, at, || {
                format!("{}; the data area is {} to {}", shown(), g.data_start, g.total_blocks)
            });
        }
        self.state.counts.item(extent, &item);
        self.claim(key, extent, item.birth, Ino(0));
    }

    fn sums(&mut self, current: &mut Current, key: Key, value: &[u8], at: At) {
        let item = match SumsItem::decode(value) {
            Ok(item) if SumsItem::first(key.offset) == key.offset => item,
            Ok(_) => {
                return self
                    .add(FindingKind::SumsBad, at, || format!("checksums of file block {}", key.offset));
            }
            Err(e) => return self.add(FindingKind::SumsBad, at, || what_of(&e)),
        };
        match &mut current.written {
            Some(written) => written.item(key.offset, &item),
            None if current.core.is_none() => {}
            None => self.add(FindingKind::SumsBad, at, || {
                format!("checksums of file block {} of an inode that has none", key.offset)
            }),
        }
    }

    fn inline(&mut self, current: &mut Current, value: &[u8], at: At) {
        if let Err(e) = kedge_format::inline::decode(current.ino, value, self.sb.geometry.inline_max) {
            return self.add(FindingKind::InlineBad, at, || what_of(&e));
        }
        if current.has_first {
            self.add(FindingKind::InlineOverlap, at, || {
                format!("{} bytes in the tree, and an extent for the same file block", value.len())
            });
        }
        let Some(core) = &current.core else { return };
        let (kind, size) = (core.kind(), core.size);
        if kind != Some(FileKind::Regular) {
            self.add(FindingKind::InlineBad, at, || format!("a {kind:?} with data in the tree"));
        } else if value.len() as u64 > size {
            self.add(FindingKind::InlineBad, at, || {
                format!("{} bytes in the tree, but the size is {size}", value.len())
            });
        }
    }

    fn conflict(&mut self, conflict: Conflict) {
        if self.state.conflicts.len() < CONFLICTS_MAX {
            self.state.conflicts.push(conflict);
        } else {
            let Conflict { start, blocks, ino } = conflict;
            self.add(FindingKind::BlockShared, At::both(ino.0, start), || {
                format!("{blocks} blocks have another owner")
            });
        }
    }

    fn finish_inode(&mut self) {
        let Some(mut current) = self.current.take() else { return };
        self.end_value(&mut current);
        if !current.has_core {
            return;
        }
        // If items could not be read, every count of this inode's items is a lower bound.
        let gap = self.state.lost.touches_inode(current.ino);
        let core = current.core.unwrap_or_default();
        let kind = core.kind();
        self.state.facts.inodes.push(InodeRec {
            ino: current.ino.0,
            parent: core.parent.0,
            nlink: core.nlink,
            subdirs: current.subdirs,
            kind,
            has_entries: current.entries > 0,
            gap,
        });
        if kind.is_none() || gap {
            return;
        }
        let at = At::both(current.ino.0, current.leaf.block);
        if kind == Some(FileKind::Directory) && core.size != current.entries {
            self.add(FindingKind::DirSize, at, || {
                format!("size is {}, the directory has {} entries", core.size, current.entries)
            });
        }
        if kind == Some(FileKind::Symlink) && !current.has_target {
            self.add(FindingKind::SymlinkMissing, at, || "symlink without a target".into());
        }
        if let Some((first, count)) = current.written.and_then(Written::finish) {
            self.add(FindingKind::SumsMissing, at, || {
                format!("{count} written blocks without a checksum, the first is file block {first}")
            });
        }
        if core.blocks != current.blocks {
            self.add(FindingKind::BlocksWrong, at, || {
                format!("block count is {}, the extents have {}", core.blocks, current.blocks)
            });
        }
    }
}
