//! Decides which items a repaired tree may hold, one by one in key order.
//!
//! A decision depends only on the earlier items. So the decisions are the same in each pass over
//! the same leaves, and none is kept in memory. Decisions that need all items are made in
//! [`super::plan`].
//!
//! # Rules
//! 1. Items of an unknown kind or under an impossible key are dropped.
//! 2. An inode core that cannot be decoded is dropped. The items that follow without a core
//!    determine the type of the inode: the first entry makes it a directory, the first target a
//!    symlink, the first extent a file. Inode 1 is always a directory.
//! 3. Attributes and entries stay if they are in a slot that their name hashes to, each name once.
//!    An access control list must be well-formed. The parts of a large value stay if they follow
//!    their attribute. An attribute that lacks a part is noted in [`ItemFilter::incomplete`] and
//!    dropped in the second pass.
//! 4. Extents stay if they are in order, inside the data area and inside one group. Which of their
//!    blocks stay, and which become a hole, is decided in [`super::claims`].
//! 5. File data in the tree stays under a file without an extent for the same file block, up to the
//!    end of the file.
//! 6. Count items stay if they do not overlap. Then they are compared with the extents that stay,
//!    in [`super::shares`].

use super::claims::Claims;
use super::done::RepairKind;
use crate::items::FILE_BLOCKS_MAX;
use crate::report::what_of;
use kedge_base::Ino;
use kedge_format::acl::is_acl_name;
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::counts::CountItem;
use kedge_format::item::{
    Dentry, ExtentItem, Orphan, SLOT_ORDINALS, SYMLINK_MAX, XattrItem, XattrRest, name_slot,
};
use kedge_format::sums::SumsItem;
use kedge_format::superblock::Geometry;
use kedge_format::{FileKind, INO_MAX, InodeCore, ItemKind, Key};

/// The highest inode number in an image with several trees. It leaves room for inodes that a repair
/// makes.
const INO_MAX_IN_TREE: u64 = (1 << Ino::LOCAL_BITS) - 4;

/// A decision about an item.
pub(crate) enum Filtered<'v> {
    /// The item is left out, for this reason.
    Drop(RepairKind, String),
    Core(InodeCore),
    /// The slot of the attribute, or of the attribute that the part belongs to.
    Xattr(u64),
    Target(usize),
    Dentry(Dentry<'v>),
    Orphan(Orphan),
    /// The pieces that stay, with their first file blocks; the number of blocks that do not stay;
    /// whether marks or births of pieces change.
    Extent(Vec<(u64, ExtentItem)>, u64, bool),
    Count(CountItem),
    Sums(SumsItem),
    /// The bytes of the file's data in the tree that stay.
    Inline(&'v [u8]),
}

pub(crate) struct ItemFilter<'a> {
    geometry: &'a Geometry,
    pub claims: Claims<'a>,
    /// The highest inode number that an item may have.
    ino_max: u64,
    ino: u64,
    /// The type of the inode, once known.
    kind: Option<FileKind>,
    /// The size of the inode, if it has a core.
    size: Option<u64>,
    next_file_block: u64,
    /// Whether an extent covers file block 0.
    has_first: bool,
    has_target: bool,
    bucket: (u64, u8, u64),
    names: Vec<Vec<u8>>,
    /// Inodes that are being deleted, in ascending order.
    unlinked: Vec<u64>,
    /// The slot of the inode's last attribute, and the parts of its value that have not been seen
    /// yet.
    value: Option<(u64, Option<XattrRest>)>,
    /// Inode and slot of each attribute that lacks a part of its value.
    pub incomplete: Vec<(u64, u64)>,
}

impl<'a> ItemFilter<'a> {
    pub fn new(geometry: &'a Geometry, claims: Claims<'a>) -> ItemFilter<'a> {
        ItemFilter {
            geometry,
            claims,
            ino_max: if geometry.has_trees() { INO_MAX_IN_TREE } else { INO_MAX },
            ino: 0,
            kind: None,
            size: None,
            next_file_block: 0,
            has_first: false,
            has_target: false,
            bucket: (0, 0, 0),
            names: Vec::new(),
            unlinked: Vec::new(),
            value: None,
            incomplete: Vec::new(),
        }
    }

    /// The type of the last item's inode, as far as its items determine it.
    pub fn kind(&self) -> Option<FileKind> {
        self.kind
    }

    pub fn item<'v>(&mut self, key: Key, value: &'v [u8]) -> Filtered<'v> {
        let drop = |what: &str| Filtered::Drop(RepairKind::ItemDropped, format!("item {key}: {what}"));
        let Some(kind) = ItemKind::from_u8(key.kind) else { return drop("unknown kind") };
        if (key.ino == 0) != matches!(kind, ItemKind::Orphan | ItemKind::Count) || key.ino > self.ino_max {
            return drop("cannot be under this inode number");
        }
        if kind == ItemKind::Count {
            return self.count(key, value);
        }
        if kind == ItemKind::Orphan {
            return match Orphan::decode(value) {
                Ok(orphan) if key.offset != 0 => {
                    if orphan == Orphan::Unlinked {
                        self.unlinked.push(key.offset);
                    }
                    Filtered::Orphan(orphan)
                }
                Ok(_) => drop("orphan item of inode 0"),
                Err(e) => drop(&what_of(&e)),
            };
        }
        if key.ino != self.ino || kind != ItemKind::Xattr {
            self.end_value();
        }
        if key.ino != self.ino {
            self.ino = key.ino;
            self.value = None;
            self.kind = (key.ino == Ino::ROOT.0).then_some(FileKind::Directory);
            (self.next_file_block, self.has_target) = (0, false);
            (self.size, self.has_first) = (None, false);
        }
        if matches!(kind, ItemKind::Inode | ItemKind::Symlink | ItemKind::Inline) && key.offset != 0 {
            return drop("must have offset 0");
        }
        match kind {
            ItemKind::Inode => self.core(key, value),
            ItemKind::Xattr => self.xattr(key, value),
            ItemKind::Symlink => self.target(key, value),
            ItemKind::Dentry => self.dentry(key, value),
            ItemKind::Extent => self.extent(key, value),
            ItemKind::Sums => self.sums(key, value),
            ItemKind::Inline => self.inline(key, value),
            ItemKind::Orphan | ItemKind::Count => drop("cannot be under this inode number"),
        }
    }

    fn core<'v>(&mut self, key: Key, value: &'v [u8]) -> Filtered<'v> {
        let drop = |what: &str| Filtered::Drop(RepairKind::ItemDropped, format!("item {key}: {what}"));
        match InodeCore::decode(value) {
            Ok(core) if key.ino == Ino::ROOT.0 && core.kind() != Some(FileKind::Directory) => {
                drop("the root directory is none")
            }
            Ok(core) => {
                self.kind = core.kind();
                self.size = Some(core.size);
                Filtered::Core(core)
            }
            Err(e) => drop(&what_of(&e)),
        }
    }

    /// Whether an item for inodes of this type is allowed under its inode. The first such item of
    /// an inode without a core determines the inode's type.
    fn is(&mut self, kind: FileKind) -> bool {
        *self.kind.get_or_insert(kind) == kind
    }

    /// Whether a name lies in a slot that it hashes to and occurs for the first time.
    fn placed(&mut self, key: Key, name: &[u8]) -> bool {
        let slot = name_slot(&self.geometry.hash_seed, name);
        if key.offset / SLOT_ORDINALS * SLOT_ORDINALS != slot {
            return false;
        }

        let bucket = (key.ino, key.kind, slot);
        if self.bucket != bucket {
            self.bucket = bucket;
            self.names.clear();
        }
        let fresh = !self.names.iter().any(|n| n == name);
        if fresh {
            self.names.push(name.to_vec());
        }
        fresh
    }

    fn xattr<'v>(&mut self, key: Key, value: &'v [u8]) -> Filtered<'v> {
        let drop = |what: String| Filtered::Drop(RepairKind::ItemDropped, format!("item {key}: {what}"));
        let item = XattrItem::decode(value);
        if let Ok(part @ XattrItem::Part { .. }) = item {
            // The deletion of an inode removes its attributes one by one, beginning with the first.
            let of = match &mut self.value {
                Some((slot, Some(rest))) => rest.take(key.offset, part).then_some(*slot),
                Some((_, None)) => None,
                None => self.unlinked.binary_search(&key.ino).is_ok().then_some(key.offset),
            };
            let Some(slot) = of else {
                self.end_value();
                return drop("a part of no attribute's value".into());
            };
            return Filtered::Xattr(slot);
        }
        self.end_value();
        self.value = Some((key.offset, None));
        let item = match item {
            Ok(item) => item,
            Err(e) => return drop(what_of(&e)),
        };
        let name = item.name().expect("all but parts have names");
        if name.contains(&0) || !self.placed(key, name) {
            return drop(format!("attribute \"{}\" in a slot of another name", name.escape_ascii()));
        }
        if is_acl_name(name) && !item.is_acl() {
            return drop(format!("\"{}\" is no access control list", name.escape_ascii()));
        }
        if let XattrItem::Large { len, .. } = item {
            if len > self.geometry.xattr_value_max() {
                return drop(format!("\"{}\" is larger than this image may hold", name.escape_ascii()));
            }
            self.value = Some((key.offset, Some(XattrRest::new(key.offset, len))));
        }
        Filtered::Xattr(key.offset)
    }

    /// Ends the last attribute's value: the next item belongs to something else, so a value with a
    /// missing part is noted.
    pub fn end_value(&mut self) {
        if let Some((slot, rest)) = &mut self.value
            && rest.take().is_some_and(|rest| rest.next_slot().is_some())
        {
            self.incomplete.push((self.ino, *slot));
        }
    }

    fn target<'v>(&mut self, key: Key, target: &'v [u8]) -> Filtered<'v> {
        let drop = |what: String| Filtered::Drop(RepairKind::ItemDropped, format!("item {key}: {what}"));
        if target.is_empty() || target.len() > SYMLINK_MAX || target.contains(&0) {
            return drop(format!("impossible target of {} bytes", target.len()));
        }
        if self.has_target || !self.is(FileKind::Symlink) {
            return drop("a target of what is no symlink".into());
        }
        self.has_target = true;
        Filtered::Target(target.len())
    }

    fn dentry<'v>(&mut self, key: Key, value: &'v [u8]) -> Filtered<'v> {
        let drop = |what: String| Filtered::Drop(RepairKind::NameDropped, what);
        let dentry = match Dentry::decode(value) {
            Ok(dentry) => dentry,
            Err(e) => return drop(format!("item {key}: {}", what_of(&e))),
        };
        let shown = || format!("entry \"{}\" of inode {}", dentry.name.escape_ascii(), dentry.ino);
        if matches!(dentry.name, b"." | b"..") || !self.placed(key, dentry.name) {
            return drop(format!("{} in a slot of another name, or again", shown()));
        }
        if !self.is(FileKind::Directory) {
            return drop(format!("{} under what is no directory", shown()));
        }
        Filtered::Dentry(dentry)
    }

    fn sums<'v>(&mut self, key: Key, value: &'v [u8]) -> Filtered<'v> {
        let drop = |what: String| Filtered::Drop(RepairKind::ItemDropped, format!("item {key}: {what}"));
        if SumsItem::first(key.offset) != key.offset || !self.geometry.has_sums() {
            return drop("checksums that cannot be there".into());
        }
        match SumsItem::decode(value) {
            Ok(_) if !self.is(FileKind::Regular) => drop("checksums of what is no file".into()),
            Ok(item) => Filtered::Sums(item),
            Err(e) => drop(what_of(&e)),
        }
    }

    fn inline<'v>(&mut self, key: Key, value: &'v [u8]) -> Filtered<'v> {
        let drop = |what: String| Filtered::Drop(RepairKind::ItemDropped, format!("item {key}: {what}"));
        if let Err(e) = kedge_format::inline::decode(Ino(key.ino), value, self.geometry.inline_max) {
            return drop(what_of(&e));
        }
        if self.has_first {
            return drop("data in the tree of a file block that an extent has".into());
        }
        if !self.is(FileKind::Regular) {
            return drop("data in the tree of what is no file".into());
        }
        match self.size {
            Some(0) => drop("data in the tree of an empty file".into()),
            Some(size) => Filtered::Inline(&value[..value.len().min(size as usize)]),
            None => Filtered::Inline(value),
        }
    }

    fn extent<'v>(&mut self, key: Key, value: &'v [u8]) -> Filtered<'v> {
        let drop = |what: String| Filtered::Drop(RepairKind::ItemDropped, format!("item {key}: {what}"));
        let item = match ExtentItem::decode(value) {
            Ok(item) => item,
            Err(e) => return drop(what_of(&e)),
        };
        let (extent, first, g) = (item.extent(), key.offset, self.geometry);
        let shown = format!("extent of {} blocks at block {}", extent.blocks, extent.start);
        if first.checked_add(extent.blocks).is_none_or(|end| end > FILE_BLOCKS_MAX) {
            return drop(format!("{shown}, beyond the largest file size"));
        }
        if extent.start < g.data_start || extent.end().0 > g.total_blocks {
            return drop(format!("{shown}, outside the data area"));
        }
        if extent.start.0 / GROUP_BLOCKS != (extent.end().0 - 1) / GROUP_BLOCKS {
            return drop(format!("{shown}, across groups"));
        }
        if first < self.next_file_block {
            return drop(format!("{shown}, over file blocks that another extent has"));
        }
        if !self.is(FileKind::Regular) {
            return drop(format!("{shown} of what is no file"));
        }
        self.next_file_block = first + extent.blocks;
        self.has_first |= first == 0;
        let (pieces, cut) = self.claims.extent(first, &item);
        let is_same =
            |(_, piece): &(u64, ExtentItem)| (piece.birth, piece.counted) == (item.birth, item.counted);
        let changed = !pieces.iter().all(is_same);
        Filtered::Extent(pieces, cut, changed)
    }

    fn count<'v>(&mut self, key: Key, value: &'v [u8]) -> Filtered<'v> {
        let drop = |what: String| Filtered::Drop(RepairKind::ItemDropped, format!("item {key}: {what}"));
        let item = match CountItem::decode(key.offset, value) {
            Ok(item) => item,
            Err(e) => return drop(what_of(&e)),
        };
        let (extent, g) = (item.extent(key.offset), self.geometry);
        if !self.claims.has_counts() {
            return drop("a count in an image without counts".into());
        }
        if extent.start < g.data_start || extent.end().0 > g.total_blocks {
            return drop(format!("a count of {} blocks outside the data area", extent.blocks));
        }
        if !self.claims.count(key.offset, &item) {
            return drop("a count of blocks that have another one".into());
        }
        Filtered::Count(item)
    }
}
