//! The first pass of a rebuild: collects the facts of the readable items, a few bytes for each
//! inode and name.

use super::claims::Claims;
use super::done::{RepairKind, Repairs};
use super::filter::{Filtered, ItemFilter};
use super::shares::Shares;
use super::source::Source;
use crate::Progress;
use crate::read::Reader;
use crate::report::At;
use crate::sums::Written;
use crate::tree::{NodeRef, stream_items};
use kedge_base::{Extent, Ino, Result};
use kedge_format::item::Orphan;
use kedge_format::{FileFlags, FileKind, Key};
use std::collections::{BTreeMap, BTreeSet};

/// An inode with at least one item. Kept in ascending order of inode numbers.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub ino: u64,
    /// `None` if its type is unknown.
    pub kind: Option<FileKind>,
    /// Whether its core could not be read.
    pub headless: bool,
    /// Whether the repair makes this directory.
    pub made: bool,
    pub has_target: bool,
    // Read from the core.
    pub mode: u32,
    pub uid: u32,
    pub flags: u32,
    pub limit: u32,
    pub nlink: u32,
    pub size: u64,
    pub blocks: u64,
    pub core_parent: u64,
    // Summed over the items.
    pub kept_blocks: u64,
    pub end_block: u64,
    pub target_len: u32,
    /// Whether some of its written blocks have no checksums.
    pub unsummed: bool,
    // Set by the plan.
    pub keep: bool,
    /// The number of the limit that the inode counts for after the repair.
    pub new_limit: u32,
    /// For a directory: the directory whose entry names it.
    pub parent: u64,
    pub names: u32,
    pub subdirs: u32,
    pub entries: u64,
}

impl Inode {
    pub fn is_dir(&self) -> bool {
        self.kind == Some(FileKind::Directory)
    }
}

/// A directory entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub target: u64,
    pub dir: u64,
    pub slot: u64,
    pub kind: FileKind,
    pub keep: bool,
}

/// The prefix of the names that lost+found may have.
pub(crate) const LOST_FOUND: &[u8] = b"lost+found";

#[derive(Default)]
pub(crate) struct Gathered {
    pub inodes: Vec<Inode>,
    pub names: Vec<Name>,
    pub orphans: Vec<(u64, Orphan)>,
    /// Entries of the root directory whose names begin with [`LOST_FOUND`], and their targets.
    pub lost_found: BTreeMap<Vec<u8>, u64>,
    /// The target of the entry named exactly [`LOST_FOUND`]. It is known before any other directory
    /// is read, because the root's items come first.
    lost_found_ino: Option<u64>,
    /// The names in lost+found that begin with '#'.
    pub reattached: BTreeSet<Vec<u8>>,
    /// Inode and slot of each attribute that lacks a part of its value, in ascending order.
    pub incomplete: Vec<(u64, u64)>,
    /// Marked extents and count items, to be compared with each other.
    pub shares: Shares,
    /// The blocks of the tree with their births, each once. `None` unless requested.
    pub data: Option<Vec<(Extent, u32)>>,
    /// Written blocks of the last inode whose checksums have not been seen yet.
    written: Written,
}

impl Gathered {
    pub fn find(&self, ino: u64) -> Option<usize> {
        self.inodes.binary_search_by_key(&ino, |i| i.ino).ok()
    }

    /// The index of the first name that an inode keeps. The names are sorted by target.
    pub fn name_of(&self, target: u64) -> Option<usize> {
        let from = self.names.partition_point(|n| n.target < target);
        let names = self.names[from..].iter().take_while(|n| n.target == target);
        names.enumerate().find(|(_, n)| n.keep).map(|(i, _)| from + i)
    }

    fn inode(&mut self, ino: u64) -> &mut Inode {
        if self.inodes.last().is_none_or(|last| last.ino != ino) {
            self.end_inode();
            self.inodes.push(Inode {
                ino,
                kind: None,
                headless: true,
                made: false,
                has_target: false,
                mode: 0,
                uid: 0,
                flags: 0,
                limit: 0,
                nlink: 0,
                size: 0,
                blocks: 0,
                core_parent: 0,
                parent: 0,
                kept_blocks: 0,
                end_block: 0,
                target_len: 0,
                unsummed: false,
                keep: false,
                new_limit: 0,
                names: 0,
                subdirs: 0,
                entries: 0,
            });
        }
        self.inodes.last_mut().expect("pushed if it was not there")
    }

    /// Ends the last inode.
    fn end_inode(&mut self) {
        let missing = std::mem::take(&mut self.written).finish().is_some();
        if let Some(last) = self.inodes.last_mut() {
            last.unsummed |= missing;
        }
    }

    fn take(&mut self, key: Key, value: &[u8], filtered: Filtered, node: &NodeRef, repairs: &mut Repairs) {
        match filtered {
            Filtered::Drop(kind, what) => repairs.add(kind, At::both(key.ino, node.block), || what),
            Filtered::Orphan(orphan) => self.orphans.push((key.offset, orphan)),
            Filtered::Core(core) => {
                let inode = self.inode(key.ino);
                inode.headless = false;
                (inode.mode, inode.nlink, inode.size) = (core.mode, core.nlink, core.size);
                (inode.uid, inode.limit) = (core.uid, core.limit);
                (inode.flags, inode.blocks, inode.core_parent) = (core.flags, core.blocks, core.parent.0);
                inode.parent = core.parent.0;
            }
            Filtered::Xattr(_) => drop(self.inode(key.ino)),
            Filtered::Target(len) => {
                let inode = self.inode(key.ino);
                inode.has_target = true;
                inode.target_len = len as u32;
            }
            Filtered::Dentry(dentry) => {
                self.inode(key.ino);
                let (target, kind) = (dentry.ino.0, dentry.kind);
                self.names.push(Name { target, dir: key.ino, slot: key.offset, kind, keep: false });
                if key.ino == Ino::ROOT.0 && dentry.name.starts_with(LOST_FOUND) {
                    self.lost_found.insert(dentry.name.to_vec(), target);
                    if dentry.name == LOST_FOUND {
                        self.lost_found_ino = Some(target);
                    }
                }
                if self.lost_found_ino == Some(key.ino) && dentry.name.starts_with(b"#") {
                    self.reattached.insert(dentry.name.to_vec());
                }
            }
            Filtered::Sums(item) => {
                let inode = self.inode(key.ino);
                if inode.flags & FileFlags::NOCOW.bits() != 0 {
                    let what = || format!("item {key}: checksums of a file that has none");
                    repairs.add(RepairKind::ItemDropped, At::both(key.ino, node.block), what);
                }
                self.written.item(key.offset, &item);
            }
            Filtered::Count(item) => self.shares.item(key.offset, item),
            Filtered::Inline(bytes) => {
                let inode = self.inode(key.ino);
                inode.end_block = inode.end_block.max(1);
                if bytes.len() < value.len() {
                    repairs.add(RepairKind::InlineCut, At::both(key.ino, node.block), || {
                        format!("{} bytes beyond the end of the file", value.len() - bytes.len())
                    });
                }
            }
            Filtered::Extent(pieces, cut, changed) => {
                self.inode(key.ino);
                for (first, piece) in &pieces {
                    self.written.extent(*first, piece);
                    self.shares.extent(piece);
                    if let Some(data) = self.data.as_mut().filter(|_| !piece.counted) {
                        data.push((piece.extent(), piece.birth));
                    }
                }
                if changed {
                    repairs.add(RepairKind::ExtentCorrected, At::both(key.ino, node.block), || {
                        format!("birth or mark of the extent at file block {}", key.offset)
                    });
                }
                let inode = self.inode(key.ino);
                inode.kept_blocks += pieces.iter().map(|(_, p)| p.blocks as u64).sum::<u64>();
                if let Some((first, piece)) = pieces.last() {
                    inode.end_block = first + piece.blocks as u64;
                }
                if cut > 0 {
                    repairs.add(RepairKind::ExtentDropped, At::both(key.ino, node.block), || {
                        format!("{cut} blocks from file block {} on have another owner: a hole", key.offset)
                    });
                }
            }
        }
    }
}

/// Streams the items once and collects their facts. Also returns `claims` with the blocks of the
/// items. With `notes_data` fills [`Gathered::data`].
pub(crate) fn gather<'c>(
    source: &'c Source,
    reader: &mut Reader,
    leaves: &[NodeRef],
    claims: Claims<'c>,
    notes_data: bool,
    repairs: &mut Repairs,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Gathered, Claims<'c>)> {
    let mut gathered = Gathered { data: notes_data.then(Vec::new), ..Gathered::default() };
    let mut filter = ItemFilter::new(&source.sb.geometry, claims);
    stream_items(
        &source.sb,
        reader,
        leaves,
        |node, key, value, inside| {
            if !inside {
                repairs.add(RepairKind::ItemDropped, At::both(key.ino, node.block), || {
                    format!("item {key}: outside {}, which its leaf is for", node.span())
                });
                return Ok(());
            }
            let filtered = filter.item(key, value);
            gathered.take(key, value, filtered, node, repairs);
            if let Some(inode) = gathered.inodes.last_mut().filter(|i| i.ino == key.ino) {
                inode.kind = filter.kind();
            }
            Ok(())
        },
        &mut |done, total| progress(Progress { phase: "gather", done, total }),
    )?;
    filter.end_value();
    gathered.end_inode();
    for (ino, slot) in &filter.incomplete {
        repairs.add(RepairKind::ItemDropped, At::ino(*ino), || {
            format!("attribute in slot {slot:#x}: its value lacks a part")
        });
    }
    gathered.incomplete = filter.incomplete;
    Ok((gathered, filter.claims))
}
