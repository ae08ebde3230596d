//! Checks relations between inodes after all items have been read: names and their targets, link
//! counts, parents, reachability, orphans, and the superblock's inode counters.
//!
//! # If parts of the tree are lost
//! Names and inodes that could not be read are not reported as missing. A count is reported as
//! wrong only if the items that were read exceed it already, and a target or orphan as missing only
//! if its key is in no lost range.

use crate::facts::{Facts, InodeRec, Lost, NameRef};
use crate::items::State;
use crate::kinds::FindingKind;
use crate::report::{At, Findings};
use kedge_base::{BlockNo, Ino};
use kedge_format::item::Orphan;
use kedge_format::superblock::Superblock;
use kedge_format::{FileKind, Key};

/// Stands for "no directory". In the array of parents: no entry names the directory.
const NONE: usize = usize::MAX;

/// Fetches the name of an entry from its leaf for a finding's text. Arguments: leaf, directory,
/// target.
pub(crate) type NameOf<'a> = dyn FnMut(u32, u64, u64) -> Option<(BlockNo, String)> + 'a;

struct Names<'a> {
    facts: &'a Facts,
    lost: &'a Lost,
    findings: &'a mut Findings,
    name_of: &'a mut NameOf<'a>,
    /// The directories in ascending order of inode numbers.
    dirs: Vec<u64>,
    /// The index of the directory that names each directory of `dirs`, or `NONE`.
    parents: Vec<usize>,
}

pub(crate) fn check_names<'a>(sb: &Superblock, state: &'a mut State, name_of: &'a mut NameOf<'a>) {
    let State { facts, lost, findings, counters, .. } = state;
    facts.names.sort_unstable_by_key(|n| (n.target, n.dir));
    let dirs: Vec<u64> =
        facts.inodes.iter().filter(|i| i.kind == Some(FileKind::Directory)).map(|i| i.ino).collect();
    let parents = vec![NONE; dirs.len()];
    let mut names = Names { facts, lost, findings, name_of, dirs, parents };
    names.walk();
    names.cycles();
    names.orphans();
    names.root();
    if lost.is_empty() && sb.checkpoint.inodes != counters.inodes {
        findings.add(FindingKind::SuperblockInodes, At::block(sb.block()), || {
            format!("{} inodes, the tree has {}", sb.checkpoint.inodes, counters.inodes)
        });
    }
    let highest = facts.inodes.last().map_or(0, |i| i.ino);
    if highest >= sb.checkpoint.next_ino.0 {
        findings.add(FindingKind::SuperblockNextIno, At::both(highest, sb.block()), || {
            format!("the next inode is to be {}, but {highest} is in use", sb.checkpoint.next_ino)
        });
    }
}

impl Names<'_> {
    /// Walks inodes and names in parallel; names are sorted by target.
    fn walk(&mut self) {
        let facts = self.facts;
        let mut rest = facts.names.as_slice();
        for inode in &facts.inodes {
            let before = rest.partition_point(|n| n.target < inode.ino);
            let (dangling, from_here) = rest.split_at(before);
            self.dangling(dangling);
            let (mine, after) = from_here.split_at(from_here.partition_point(|n| n.target == inode.ino));
            rest = after;
            self.inode(inode, mine);
        }
        self.dangling(rest);
    }

    fn dangling(&mut self, names: &[NameRef]) {
        for name in names {
            if !self.lost.has(Key::inode(Ino(name.target))) {
                self.add(FindingKind::DentryDangling, name, |shown| {
                    format!("{shown} names inode {}, which does not exist", name.target)
                });
            }
        }
    }

    fn inode(&mut self, inode: &InodeRec, names: &[NameRef]) {
        let Some(kind) = inode.kind else { return };
        for name in names.iter().filter(|n| n.kind != kind) {
            self.add(FindingKind::DentryType, name, |shown| {
                format!("{shown} says {:?}, inode {} is a {kind:?}", name.kind, name.target)
            });
        }
        if inode.ino == Ino::ROOT.0 {
            for name in names {
                self.add(FindingKind::RootBad, name, |shown| format!("{shown} names the root directory"));
            }
            return;
        }
        let at = At::ino(inode.ino);
        let orphan = self.facts.orphan(inode.ino);
        if names.is_empty() {
            return self.unnamed(inode, orphan);
        }
        if orphan == Some(Orphan::Unlinked) {
            self.findings.add(FindingKind::OrphanWrong, at, || {
                format!("an orphan item says it has no name, but {} name it", names.len())
            });
        }
        if kind == FileKind::Directory {
            self.directory(inode, names);
        } else {
            self.links(inode, names.len() as u64, false);
        }
    }

    /// Compares a link count with the number of names seen; `gap` means that names may be missing.
    fn links(&mut self, inode: &InodeRec, seen: u64, gap: bool) {
        let nlink = inode.nlink as u64;
        if seen > nlink || (seen < nlink && !gap && self.lost.is_empty()) {
            self.findings.add(FindingKind::NlinkWrong, At::ino(inode.ino), || {
                format!("link count is {nlink}, but there are {seen}")
            });
        }
    }

    fn directory(&mut self, inode: &InodeRec, names: &[NameRef]) {
        self.links(inode, 2 + inode.subdirs as u64, inode.gap);
        if let [first, second, ..] = names {
            self.add(FindingKind::DirManyNames, second, |shown| {
                format!("{shown} names directory {}, which directory {} names too", inode.ino, first.dir)
            });
        }
        let right = names.iter().find(|n| n.dir == inode.parent);
        let name = right.unwrap_or(&names[0]);
        if right.is_none() {
            self.findings.add(FindingKind::DirParent, At::ino(inode.ino), || {
                format!("its parent is said to be {}, but directory {} names it", inode.parent, name.dir)
            });
        }
        if let (Ok(me), Ok(parent)) =
            (self.dirs.binary_search(&inode.ino), self.dirs.binary_search(&name.dir))
        {
            self.parents[me] = parent;
        }
    }

    fn unnamed(&mut self, inode: &InodeRec, orphan: Option<Orphan>) {
        let at = At::ino(inode.ino);
        if orphan == Some(Orphan::Unlinked) {
            if inode.nlink != 0 {
                self.findings.add(FindingKind::NlinkWrong, at, || {
                    format!("link count is {}, but it is an orphan without a name", inode.nlink)
                });
            }
            if inode.kind == Some(FileKind::Directory) && inode.has_entries {
                self.findings
                    .add(FindingKind::DirUnlinkedNotEmpty, at, || "an orphan directory with entries".into());
            }
            return;
        }
        let explained =
            if inode.nlink == 0 { self.lost.has(Key::orphan(Ino(inode.ino))) } else { !self.lost.is_empty() };
        if !explained {
            self.findings.add(FindingKind::InodeUnnamed, at, || {
                format!("no entry names it, no orphan item says so; its link count is {}", inode.nlink)
            });
        }
    }

    /// Finds directories whose parents form a cycle. All other chains of parents end at the root or
    /// at a fault that is reported already.
    fn cycles(&mut self) {
        /// `seen` holds the index of the directory whose walk visited the entry, or `DONE` once the
        /// end of its chain is known.
        const DONE: usize = usize::MAX - 1;
        let mut seen = vec![NONE; self.dirs.len()];
        for start in 0..self.dirs.len() {
            let mut at = start;
            while at != NONE && seen[at] == NONE {
                seen[at] = start;
                at = self.parents[at];
            }
            if at != NONE && seen[at] == start {
                let mut smallest = self.dirs[at];
                let mut length = 1u64;
                let mut next = self.parents[at];
                while next != at {
                    smallest = smallest.min(self.dirs[next]);
                    length += 1;
                    next = self.parents[next];
                }
                self.findings.add(FindingKind::DirCycle, At::ino(smallest), || {
                    format!("{length} directories name one another in a circle, out of reach of the root")
                });
            }
            let mut at = start;
            while at != NONE && seen[at] == start {
                seen[at] = DONE;
                at = self.parents[at];
            }
        }
    }

    fn orphans(&mut self) {
        let facts = self.facts;
        for &(ino, orphan) in &facts.orphans {
            let Some(inode) = facts.inode(ino) else {
                if !self.lost.has(Key::inode(Ino(ino))) {
                    self.findings.add(FindingKind::OrphanDangling, At::ino(ino), || {
                        format!("orphan item {orphan:?} of an inode that does not exist")
                    });
                }
                continue;
            };
            let Some(kind) = inode.kind else { continue };
            if orphan == Orphan::Truncate && kind != FileKind::Regular {
                self.findings
                    .add(FindingKind::OrphanWrong, At::ino(ino), || format!("truncate of a {kind:?}"));
            }
        }
    }

    fn root(&mut self) {
        let at = At::ino(Ino::ROOT.0);
        let Some(root) = self.facts.inode(Ino::ROOT.0) else {
            if !self.lost.has(Key::inode(Ino::ROOT)) {
                self.findings.add(FindingKind::RootBad, at, || "there is no root directory".into());
            }
            return;
        };
        match root.kind {
            None => {}
            Some(FileKind::Directory) => {
                self.links(root, 2 + root.subdirs as u64, root.gap);
                if root.parent != Ino::ROOT.0 {
                    self.findings.add(FindingKind::RootBad, at, || {
                        format!("its parent is {}, not itself", root.parent)
                    });
                }
                if self.facts.orphan(Ino::ROOT.0).is_some() {
                    self.findings
                        .add(FindingKind::OrphanWrong, at, || "an orphan item of the root directory".into());
                }
            }
            Some(kind) => {
                self.findings.add(FindingKind::RootBad, at, || format!("the root directory is a {kind:?}"));
            }
        }
    }

    /// Adds a finding about an entry, with the entry's name in the text.
    fn add(&mut self, kind: FindingKind, name: &NameRef, what: impl FnOnce(&str) -> String) {
        if !self.findings.has_room(kind) {
            self.findings.add(kind, At::ino(name.dir), String::new);
            return;
        }
        let (at, shown) = match (self.name_of)(name.leaf, name.dir, name.target) {
            Some((block, shown)) => (At::both(name.dir, block), format!("entry \"{shown}\"")),
            None => (At::ino(name.dir), "an entry".into()),
        };
        self.findings.add(kind, at, || what(&shown));
    }
}
