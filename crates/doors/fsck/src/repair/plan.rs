//! Repairs relations between inodes: decides which inodes and names stay and which inodes go to
//! lost+found, and computes the counts.
//!
//! # Decisions, in this order
//! 1. An inode stays if its items determine its type. A symlink also needs its target.
//! 2. A name stays if its directory and its target stay. If several entries name one directory,
//!    only one of them stays: the entry in the directory that the inode records as its parent, or
//!    else the first entry. No entry that names the root stays.
//! 3. If directories name each other in a cycle, the directory with the smallest inode number loses
//!    its name.
//! 4. An inode that stays and has no name goes to lost+found, unless an orphan item says that it
//!    was unlinked.
//! 5. Counts, parents and entry types follow from the names that stay, counts of shared blocks from
//!    the extents ([`super::shares`]), limits from the directories ([`super::limits`]).

use super::done::{RepairKind, Repairs};
use super::gather::{Gathered, Inode, LOST_FOUND, Name};
use super::limits::{self, Limits, OfTree};
use super::shares::Items;
use crate::report::At;
use kedge_base::{BLOCK_SIZE, Error, Extent, Ino, Result, Timespec};
use kedge_format::item::{Dentry, ExtentItem, FILE_SIZE_MAX, Orphan, SLOT_ORDINALS, name_slot};
use kedge_format::superblock::{Geometry, Superblock};
use kedge_format::{FileFlags, FileKind, InodeCore, ItemKind, Key};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Stands for "no inode" in arrays of indexes.
const NONE: usize = usize::MAX;

pub(crate) struct Plan<'a> {
    pub geometry: &'a Geometry,
    pub gathered: Gathered,
    /// Entries to drop, by directory and slot, with the reason.
    pub dropped: BTreeMap<(u64, u64), &'static str>,
    /// Whether the type in any entry differs from its target's type.
    pub retyped: bool,
    /// Items that the old tree does not have.
    pub added: BTreeMap<Key, Vec<u8>>,
    /// Inodes whose orphan items stay.
    pub orphans: BTreeSet<u64>,
    /// First blocks of the counts of shared blocks that stay.
    pub counts: BTreeSet<u64>,
    /// All counts after the repair.
    pub count_items: Items,
    pub limits: OfTree,
    pub next_ino: u64,
    pub inodes: u64,
    /// Orphan items after the repair.
    pub orphan_items: u64,
}

/// Additional inputs of a plan.
pub(crate) struct Around<'a> {
    pub limits: Limits<'a>,
    /// Extents with births that the tree must own, although no item has them.
    pub adopted: &'a [(Extent, u32)],
    pub now: Timespec,
}

/// Makes the plan. Repairs of inodes are reported here, repairs of names when the items are
/// streamed again.
pub(crate) fn plan<'a>(
    sb: &'a Superblock,
    mut gathered: Gathered,
    around: &Around<'_>,
    repairs: &mut Repairs,
) -> Result<Plan<'a>> {
    add_root(&mut gathered);
    let now = around.now;
    let mut planner = Planner { sb, now, repairs, dropped: BTreeMap::new(), added: BTreeMap::new() };
    planner.keep_inodes(&mut gathered);
    planner.choose_names(&mut gathered);
    planner.break_circles(&mut gathered);
    count_entries(&mut gathered);
    let mut next_ino = planner.reattach(&mut gathered)?;
    let orphans = planner.orphans(&gathered);
    let limits = limits::assign(&around.limits, &mut gathered, planner.repairs);
    planner.cores(&gathered);
    let (mut count_items, new_counts) = std::mem::take(&mut gathered.shares).settle(planner.repairs);
    let counts = count_items.keys().copied().collect();
    for (start, item) in new_counts {
        count_items.insert(start, item);
        planner
            .added
            .insert(Key { ino: 0, kind: ItemKind::Count as u8, offset: start }, item.encode().to_vec());
    }
    let mut inodes = gathered.inodes.iter().filter(|i| i.keep).count() as u64;
    let mut orphan_items = orphans.len() as u64;
    if !around.adopted.is_empty() {
        planner.adopt(next_ino, around.adopted);
        next_ino = next_ino.checked_add(1).ok_or(Error::NoSpace)?;
        (inodes, orphan_items) = (inodes + 1, orphan_items + 1);
    }
    let retyped = gathered
        .names
        .iter()
        .any(|n| n.keep && gathered.find(n.target).is_some_and(|i| gathered.inodes[i].kind != Some(n.kind)));
    let (geometry, Planner { dropped, added, .. }) = (&sb.geometry, planner);
    Ok(Plan {
        geometry,
        gathered,
        dropped,
        retyped,
        added,
        orphans,
        counts,
        count_items,
        limits,
        next_ino,
        inodes,
        orphan_items,
    })
}

impl Plan<'_> {
    pub fn inode(&self, ino: u64) -> Option<&Inode> {
        self.gathered.find(ino).map(|i| &self.gathered.inodes[i]).filter(|i| i.keep)
    }

    /// A directory for names of trees: lost+found if only root may enter it, or else the root
    /// directory.
    pub fn refuge(&self) -> Ino {
        let lost_found = self.gathered.lost_found.get(LOST_FOUND).copied();
        let usable = lost_found.filter(|ino| self.inode(*ino).is_some_and(is_private));
        Ino(usable.unwrap_or(Ino::ROOT.0))
    }

    /// Whether any name is dropped or corrected, so that the tree must be rewritten.
    pub fn changes_names(&self) -> bool {
        !self.dropped.is_empty() || self.retyped
    }
}

/// The core of an inode after the repair.
pub(crate) fn final_core(g: &Geometry, inode: &Inode, core: InodeCore) -> InodeCore {
    let kind = inode.kind.unwrap_or(FileKind::Regular);
    let is_root = inode.ino == Ino::ROOT.0;
    let mode = core.mode & (FileKind::MODE_MASK | 0o7777);
    let (nlink, size, parent) = match kind {
        FileKind::Directory if is_root => (2 + inode.subdirs, inode.entries, Ino::ROOT),
        FileKind::Directory if inode.names == 0 => (0, inode.entries, core.parent),
        FileKind::Directory => (2 + inode.subdirs, inode.entries, Ino(inode.parent)),
        FileKind::Symlink => (inode.names, inode.target_len as u64, Ino(0)),
        FileKind::Regular if core.size > FILE_SIZE_MAX => {
            (inode.names, inode.end_block * BLOCK_SIZE as u64, Ino(0))
        }
        _ => (inode.names, core.size, Ino(0)),
    };
    // A file with a missing checksum keeps its data and loses all its checksums.
    let lost = kind == FileKind::Regular && g.has_sums() && inode.unsummed;
    let flags = g.file_flags(&core) | if lost { FileFlags::NOCOW } else { FileFlags::default() };
    let flags = flags.bits();
    let (blocks, limit) = (inode.kept_blocks, inode.new_limit);
    InodeCore { mode, flags, nlink, size, parent, blocks, limit, ..core }
}

/// Makes a core for an inode without one.
fn made_core(g: &Geometry, inode: &Inode, now: Timespec) -> InodeCore {
    let kind = inode.kind.unwrap_or(FileKind::Regular);
    let permissions = match kind {
        FileKind::Directory if inode.ino == Ino::ROOT.0 => 0o755,
        FileKind::Directory => 0o700,
        FileKind::Symlink => 0o777,
        _ => 0o600,
    };
    let core = InodeCore {
        mode: kind.mode_bits() | permissions,
        size: inode.end_block * BLOCK_SIZE as u64,
        parent: Ino(inode.parent),
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        ..InodeCore::default()
    };
    final_core(g, inode, core)
}

/// Whether the inode is a directory that only root may enter.
fn is_private(inode: &Inode) -> bool {
    let others = inode.mode & 0o077;
    !inode.headless && inode.is_dir() && inode.uid == 0 && others == 0
}

/// Adds the root directory if it is lost.
fn add_root(gathered: &mut Gathered) {
    if gathered.find(Ino::ROOT.0).is_none() {
        gathered.inodes.insert(0, directory(Ino::ROOT.0));
    }
}

/// The facts of a directory that the repair will make.
fn directory(ino: u64) -> Inode {
    Inode {
        ino,
        kind: Some(FileKind::Directory),
        headless: true,
        made: ino != Ino::ROOT.0,
        has_target: false,
        mode: 0,
        uid: 0,
        flags: 0,
        limit: 0,
        nlink: 0,
        size: 0,
        blocks: 0,
        core_parent: 0,
        parent: Ino::ROOT.0,
        kept_blocks: 0,
        end_block: 0,
        target_len: 0,
        unsummed: false,
        keep: true,
        new_limit: 0,
        names: 0,
        subdirs: 0,
        entries: 0,
    }
}

fn count_entries(gathered: &mut Gathered) {
    let Gathered { inodes, names, .. } = gathered;
    let find = |inodes: &[Inode], ino: u64| inodes.binary_search_by_key(&ino, |i| i.ino).ok();
    for name in names.iter().filter(|n| n.keep) {
        let is_dir = find(inodes, name.target).is_some_and(|t| inodes[t].kind == Some(FileKind::Directory));
        if let Some(dir) = find(inodes, name.dir) {
            inodes[dir].entries += 1;
            inodes[dir].subdirs += is_dir as u32;
        }
    }
}

struct Planner<'a> {
    sb: &'a Superblock,
    now: Timespec,
    repairs: &'a mut Repairs,
    dropped: BTreeMap<(u64, u64), &'static str>,
    added: BTreeMap<Key, Vec<u8>>,
}

impl Planner<'_> {
    fn keep_inodes(&mut self, gathered: &mut Gathered) {
        for inode in &mut gathered.inodes {
            inode.keep = inode.kind.is_some_and(|kind| kind != FileKind::Symlink || inode.has_target);
            if !inode.keep {
                self.repairs.add(RepairKind::InodeDropped, At::ino(inode.ino), || match inode.kind {
                    Some(_) => "a symlink whose target is lost".into(),
                    None => "its core and all items that determine its type are lost".into(),
                });
            }
        }
    }

    fn drop_name(&mut self, name: &mut Name, why: &'static str) {
        name.keep = false;
        self.dropped.insert((name.dir, name.slot), why);
    }

    fn choose_names(&mut self, gathered: &mut Gathered) {
        gathered.names.sort_unstable_by_key(|n| (n.target, n.dir, n.slot));
        let mut names = std::mem::take(&mut gathered.names);
        for group in names.chunk_by_mut(|a, b| a.target == b.target) {
            let target = gathered.find(group[0].target).filter(|&t| gathered.inodes[t].keep);
            let Some(target) = target else {
                group.iter_mut().for_each(|n| self.drop_name(n, "its inode is lost"));
                continue;
            };
            if group[0].target == Ino::ROOT.0 {
                group.iter_mut().for_each(|n| self.drop_name(n, "nothing names the root directory"));
                continue;
            }
            for name in group.iter_mut() {
                let dir = gathered.find(name.dir).map(|d| &gathered.inodes[d]);
                name.keep = dir.is_some_and(|d| d.keep && d.kind == Some(FileKind::Directory));
                if !name.keep {
                    self.drop_name(name, "its directory is lost");
                }
            }
            let inode = &mut gathered.inodes[target];
            if inode.kind == Some(FileKind::Directory) {
                let right = group.iter().position(|n| n.keep && n.dir == inode.parent);
                let chosen = right.or_else(|| group.iter().position(|n| n.keep));
                for (i, name) in group.iter_mut().enumerate() {
                    if name.keep && Some(i) != chosen {
                        self.drop_name(name, "another entry names this directory");
                    }
                }
            }
            inode.names = group.iter().filter(|n| n.keep).count() as u32;
        }
        gathered.names = names;
    }

    fn break_circles(&mut self, gathered: &mut Gathered) {
        const DONE: usize = usize::MAX - 1;
        let parents: Vec<usize> = gathered
            .inodes
            .iter()
            .map(|i| match i.kind {
                Some(FileKind::Directory) if i.keep => {
                    let name = gathered.name_of(i.ino);
                    name.and_then(|n| gathered.find(gathered.names[n].dir)).unwrap_or(NONE)
                }
                _ => NONE,
            })
            .collect();
        let mut seen = vec![NONE; parents.len()];
        for start in 0..parents.len() {
            let mut at = start;
            while at != NONE && seen[at] == NONE {
                seen[at] = start;
                at = parents[at];
            }
            if at != NONE && seen[at] == start {
                let (mut smallest, mut next) = (at, parents[at]);
                while next != at {
                    smallest = smallest.min(next);
                    next = parents[next];
                }
                let ino = gathered.inodes[smallest].ino;
                if let Some(name) = gathered.name_of(ino) {
                    self.drop_name(&mut gathered.names[name], "its directory lies below the one it names");
                    gathered.inodes[smallest].names = 0;
                }
            }
            let mut at = start;
            while at != NONE && seen[at] == start {
                seen[at] = DONE;
                at = parents[at];
            }
        }
        for i in 0..gathered.inodes.len() {
            let inode = &gathered.inodes[i];
            if inode.keep && inode.kind == Some(FileKind::Directory) && inode.names > 0 {
                let name = gathered.name_of(inode.ino);
                gathered.inodes[i].parent = name.map_or(inode.parent, |n| gathered.names[n].dir);
            }
        }
    }

    /// Gives each inode without a name a name in lost+found. Returns the next inode number.
    fn reattach(&mut self, gathered: &mut Gathered) -> Result<u64> {
        let highest = gathered.inodes.last().map_or(Ino::ROOT.0, |i| i.ino);
        let mut next_ino = super::next_ino(self.sb, highest);
        let unlinked: BTreeSet<u64> = {
            let orphans = gathered.orphans.iter().filter(|o| o.1 == Orphan::Unlinked);
            orphans.map(|o| o.0).collect()
        };
        let homeless: Vec<usize> = (0..gathered.inodes.len())
            .filter(|&i| {
                let inode = &gathered.inodes[i];
                let meant = unlinked.contains(&inode.ino)
                    && (inode.kind != Some(FileKind::Directory) || inode.entries == 0);
                inode.keep && inode.ino != Ino::ROOT.0 && inode.names == 0 && !meant
            })
            .collect();
        if homeless.is_empty() {
            return Ok(next_ino);
        }
        let mut taken_names = std::mem::take(&mut gathered.reattached);
        let place = match self.lost_found(gathered) {
            Some(place) => place,
            None => {
                taken_names.clear();
                let ino = next_ino;
                next_ino = ino.checked_add(1).ok_or(Error::NoSpace)?;
                self.make_lost_found(gathered, ino)?;
                ino
            }
        };
        let mut slots = taken_slots(gathered, place);
        let at = gathered.find(place).ok_or(Error::NoSpace)?;
        for i in homeless {
            let inode = &mut gathered.inodes[i];
            let Some(kind) = inode.kind else { continue };
            let plain = format!("#{}", inode.ino);
            let name = (0..u64::MAX)
                .map(|n| if n == 0 { plain.clone() } else { format!("{plain}.{n}") })
                .find(|name| !taken_names.contains(name.as_bytes()))
                .ok_or(Error::NoSpace)?;
            let (ino, is_dir) = (inode.ino, kind == FileKind::Directory);
            inode.names = 1;
            if is_dir {
                inode.parent = place;
            }
            self.add_name(&mut slots, place, name.as_bytes(), ino, kind)?;
            gathered.inodes[at].entries += 1;
            gathered.inodes[at].subdirs += is_dir as u32;
            self.repairs.add(RepairKind::Reattached, At::ino(ino), || {
                format!("a {kind:?} that no entry names is now lost+found/{name}")
            });
        }
        Ok(next_ino)
    }

    /// The directory lost+found, if only root may enter it. Another directory of that name is not
    /// used: a user may have made it to reach lost files of other users, which no longer have the
    /// protection of their former directories.
    fn lost_found(&self, gathered: &Gathered) -> Option<u64> {
        let ino = gathered.lost_found.get(LOST_FOUND)?;
        let inode = &gathered.inodes[gathered.find(*ino)?];
        let name = gathered.name_of(*ino)?;
        let usable = inode.keep && is_private(inode);
        (usable && gathered.names[name].dir == Ino::ROOT.0).then_some(*ino)
    }

    fn make_lost_found(&mut self, gathered: &mut Gathered, ino: u64) -> Result<()> {
        let text = String::from_utf8_lossy(LOST_FOUND);
        let name = (0..u64::MAX)
            .map(|n| if n == 0 { text.to_string() } else { format!("{text}.{n}") })
            .find(|name| !gathered.lost_found.contains_key(name.as_bytes()))
            .ok_or(Error::NoSpace)?;
        let mut slots = taken_slots(gathered, Ino::ROOT.0);
        self.add_name(&mut slots, Ino::ROOT.0, name.as_bytes(), ino, FileKind::Directory)?;
        gathered.inodes.push(Inode { names: 1, ..directory(ino) });
        let root = gathered.find(Ino::ROOT.0).ok_or(Error::NoSpace)?;
        gathered.inodes[root].entries += 1;
        gathered.inodes[root].subdirs += 1;
        self.repairs.add(RepairKind::LostFoundMade, At::ino(ino), || format!("directory \"{name}\""));
        Ok(())
    }

    fn add_name(
        &mut self,
        slots: &mut BTreeSet<u64>,
        dir: u64,
        name: &[u8],
        ino: u64,
        kind: FileKind,
    ) -> Result<()> {
        let first = name_slot(&self.sb.geometry.hash_seed, name);
        let slot = (first..first + SLOT_ORDINALS).find(|slot| slots.insert(*slot)).ok_or(Error::NoSpace)?;
        let value = Dentry { ino: Ino(ino), kind, name }.encode();
        self.added.insert(Key::new(Ino(dir), ItemKind::Dentry, slot), value);
        Ok(())
    }

    /// Adds an unlinked file that owns the blocks. Its extents are unwritten, so their bytes are
    /// never read.
    fn adopt(&mut self, ino: u64, adopted: &[(Extent, u32)]) {
        let mut first = 0;
        for (extent, birth) in adopted {
            let blocks = u32::try_from(extent.blocks).expect("no extent is larger than a group");
            let item =
                ExtentItem { start: extent.start, blocks, unwritten: true, birth: *birth, counted: false };
            self.added.insert(Key::new(Ino(ino), ItemKind::Extent, first), item.encode().to_vec());
            first += extent.blocks;
        }
        let mode = FileKind::Regular.mode_bits() | 0o600;
        let (atime, mtime, ctime, btime) = (self.now, self.now, self.now, self.now);
        let times = InodeCore { atime, mtime, ctime, btime, ..InodeCore::default() };
        let core = InodeCore { mode, size: first * BLOCK_SIZE as u64, blocks: first, ..times };
        self.added.insert(Key::inode(Ino(ino)), core.encode().to_vec());
        self.added.insert(Key::orphan(Ino(ino)), Orphan::Unlinked.encode().to_vec());
        self.repairs.add(RepairKind::InodeRemade, At::ino(ino), || {
            format!("an unlinked file for {first} blocks that trees share and nothing owned")
        });
    }

    fn orphans(&mut self, gathered: &Gathered) -> BTreeSet<u64> {
        let mut stay = BTreeSet::new();
        for &(ino, orphan) in &gathered.orphans {
            let inode = gathered.find(ino).map(|i| &gathered.inodes[i]).filter(|i| i.keep);
            let fits = inode.is_some_and(|i| match orphan {
                Orphan::Unlinked => i.names == 0 && i.ino != Ino::ROOT.0,
                Orphan::Truncate => i.kind == Some(FileKind::Regular),
            });
            if fits {
                stay.insert(ino);
            } else {
                self.repairs.add(RepairKind::OrphanDropped, At::ino(ino), || {
                    let state = if inode.is_some() { "does not suit it" } else { "its inode does not exist" };
                    format!("orphan item {orphan:?}: {state}")
                });
            }
        }
        stay
    }

    /// Makes the missing cores and reports which other cores change.
    fn cores(&mut self, gathered: &Gathered) {
        for inode in gathered.inodes.iter().filter(|i| i.keep) {
            let at = At::ino(inode.ino);
            if inode.headless {
                let core = made_core(&self.sb.geometry, inode, self.now);
                if !inode.made {
                    let kind = inode.kind.unwrap_or(FileKind::Regular);
                    self.repairs.add(RepairKind::InodeRemade, at, || {
                        format!(
                            "its core was lost: now a {kind:?} of size {} that belongs to root",
                            core.size
                        )
                    });
                }
                self.added.insert(Key::inode(Ino(inode.ino)), core.encode().to_vec());
                continue;
            }
            let is = InodeCore {
                mode: inode.mode,
                flags: inode.flags,
                limit: inode.limit,
                nlink: inode.nlink,
                size: inode.size,
                blocks: inode.blocks,
                parent: Ino(inode.core_parent),
                ..InodeCore::default()
            };
            let shall = final_core(&self.sb.geometry, inode, is);
            let is_dir = inode.kind == Some(FileKind::Directory);
            let counts = (is.nlink, is.blocks, if is_dir { is.size } else { 0 });
            let right = (shall.nlink, shall.blocks, if is_dir { shall.size } else { 0 });
            if counts != right {
                self.repairs.add(RepairKind::CountsCorrected, at, || {
                    let mut text = format!("links {} → {}", counts.0, right.0);
                    if is_dir {
                        let _ = write!(text, ", entries {} → {}", counts.2, right.2);
                    } else {
                        let _ = write!(text, ", blocks {} → {}", counts.1, right.1);
                    }
                    text
                });
            }
            let fields = |core: &InodeCore| (core.mode, core.parent, if is_dir { 0 } else { core.size });
            let (was, now) = (fields(&is), fields(&shall));
            if was != now {
                let size = if is_dir { String::new() } else { format!(", size {} → {}", was.2, now.2) };
                self.repairs.add(RepairKind::InodeCorrected, at, || {
                    format!("mode {:o} → {:o}, parent {} → {}{size}", was.0, now.0, was.1, now.1)
                });
            }
            if is.limit != shall.limit {
                self.repairs
                    .add(RepairKind::InodeCorrected, at, || format!("limit {} → {}", is.limit, shall.limit));
            }
            if is.flags != shall.flags {
                self.repairs.add(RepairKind::InodeCorrected, at, || {
                    format!("flags {:#x} → {:#x}", is.flags, shall.flags)
                });
            }
        }
    }
}

/// The slots of all entries of a directory, including removed ones.
fn taken_slots(gathered: &Gathered, dir: u64) -> BTreeSet<u64> {
    gathered.names.iter().filter(|n| n.dir == dir).map(|n| n.slot).collect()
}
