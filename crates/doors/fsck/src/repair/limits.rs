//! Decides which limit each inode of a repaired tree counts for, and computes the counts of the
//! limits.
//!
//! # Decisions
//! 1. A limit stays if its directory stays and has the limit's number. If the directory's core was
//!    lost, the limit's entry alone decides.
//! 2. An inode whose limit is removed counts for the nearest limit that contained it. If the
//!    inode's limit has no entry, or its core was lost, it counts for the limit of the directory
//!    that names it. So damage removes no inode from a limit that still exists.
//! 3. A limit whose parent is removed or impossible gets the limit of the directory above its own
//!    directory as its parent.
//! 4. The counts are added up from the inodes that stay.
//!
//! Points have no limits of their own; their inodes keep the numbers that they have.

use super::done::{RepairKind, Repairs};
use super::gather::Gathered;
use crate::limits::{Entries, way};
use crate::report::At;
use kedge_base::Ino;
use kedge_format::limits::{DEPTH_MAX, LimitEntry};
use std::collections::BTreeMap;

/// The limits of one tree by number.
pub(crate) type OfTree = BTreeMap<u32, LimitEntry>;

/// The limits to which the numbers in inode cores refer.
pub(crate) enum Limits<'a> {
    /// The image has no limits.
    None,
    /// The tree is a point.
    Point,
    Of(&'a OfTree),
}

/// Sets the limit of each inode, and returns the limits that stay.
pub(crate) fn assign(limits: &Limits<'_>, gathered: &mut Gathered, repairs: &mut Repairs) -> OfTree {
    let entries = match limits {
        Limits::None => return OfTree::new(),
        Limits::Point => {
            gathered.inodes.iter_mut().for_each(|inode| inode.new_limit = inode.limit);
            return OfTree::new();
        }
        Limits::Of(entries) => *entries,
    };
    let mut stay = OfTree::new();
    let mut of_dir: BTreeMap<u64, u32> = BTreeMap::new();
    for (number, entry) in entries {
        let dir =
            gathered.find(entry.dir.0).map(|i| &gathered.inodes[i]).filter(|dir| dir.keep && dir.is_dir());
        let has = dir.is_some_and(|dir| dir.limit == *number || dir.headless && !dir.made);
        if has && !of_dir.contains_key(&entry.dir.0) {
            stay.insert(*number, *entry);
            of_dir.insert(entry.dir.0, *number);
        } else {
            repairs.add(RepairKind::LimitDropped, At::ino(entry.dir.0), || {
                format!("limit {number}: its directory is lost or has another limit")
            });
        }
    }
    let fixed: Vec<Option<u32>> = gathered
        .inodes
        .iter()
        .map(|inode| match of_dir.get(&inode.ino) {
            Some(number) => Some(*number),
            None if inode.headless => None,
            None => around(entries, &stay, inode.limit),
        })
        .collect();
    inherit(gathered, &fixed);
    correct_parents(&mut stay, gathered, repairs);
    count(&mut stay, entries, gathered, repairs);
    stay
}

/// The limit itself, or the nearest limit that contains it and stays. `None` if an entry in between
/// is missing.
fn around(entries: &OfTree, stay: &OfTree, number: u32) -> Option<u32> {
    let mut at = number;
    for _ in 0..=DEPTH_MAX {
        if at == 0 || stay.contains_key(&at) {
            return Some(at);
        }
        at = entries.get(&at)?.parent;
    }
    None
}

/// Gives each inode its entry in `fixed`, or else that of the nearest directory above it that has
/// one.
fn inherit(gathered: &mut Gathered, fixed: &[Option<u32>]) {
    const UNKNOWN: u32 = u32::MAX;
    let mut known = vec![UNKNOWN; fixed.len()];
    for start in 0..fixed.len() {
        let mut way = Vec::new();
        let mut at = Some(start);
        let mut found = 0;
        // The plan has cut circles of directories, but the recorded parent of an orphan may be any
        // directory. So the walk is bounded.
        while let Some(i) = at.filter(|_| way.len() <= fixed.len()) {
            if let Some(number) = fixed[i].or(Some(known[i]).filter(|n| *n != UNKNOWN)) {
                found = number;
                break;
            }
            way.push(i);
            at = above(gathered, i);
        }
        way.into_iter().for_each(|i| known[i] = found);
    }
    for (i, inode) in gathered.inodes.iter_mut().enumerate() {
        inode.new_limit = fixed[i].or(Some(known[i]).filter(|n| *n != UNKNOWN)).unwrap_or(0);
    }
}

/// The index of the directory above an inode: of a directory its parent, of others the first that
/// names it.
fn above(gathered: &Gathered, i: usize) -> Option<usize> {
    let inode = &gathered.inodes[i];
    if inode.ino == Ino::ROOT.0 {
        return None;
    }
    let dir = match inode.is_dir() {
        true => inode.parent,
        false => gathered.name_of(inode.ino).map_or(Ino::ROOT.0, |n| gathered.names[n].dir),
    };
    gathered.find(dir)
}

fn correct_parents(stay: &mut OfTree, gathered: &Gathered, repairs: &mut Repairs) {
    let above_of: BTreeMap<u32, u32> = stay
        .iter()
        .map(|(number, entry)| {
            let dir = gathered.find(entry.dir.0).and_then(|i| above(gathered, i));
            (*number, dir.map_or(0, |i| gathered.inodes[i].new_limit))
        })
        .collect();
    let mut correct = |stay: &mut OfTree, number: u32, parent: u32| {
        let entry = stay.get_mut(&number).expect("a limit that stays");
        let (was, dir) = (std::mem::replace(&mut entry.parent, parent), entry.dir);
        repairs.add(RepairKind::LimitCorrected, At::ino(dir.0), || {
            format!("limit {number}: inside limit {was} → {parent}")
        });
    };
    let numbers: Vec<u32> = stay.keys().copied().collect();
    for number in &numbers {
        let parent = stay[number].parent;
        if parent != 0 && !stay.contains_key(&parent) {
            correct(stay, *number, above_of[number]);
        }
    }
    for number in &numbers {
        if way_of(stay, *number).len() > DEPTH_MAX {
            let above = Some(above_of[number]).filter(|above| *above != stay[number].parent).unwrap_or(0);
            correct(stay, *number, above);
        }
    }
    for number in numbers {
        if way_of(stay, number).len() > DEPTH_MAX {
            correct(stay, number, 0);
        }
    }
}

fn way_of(entries: &OfTree, number: u32) -> Vec<u32> {
    way(|number| entries.get(&number).map(|entry| entry.parent), number)
}

fn count(stay: &mut OfTree, before: &OfTree, gathered: &Gathered, repairs: &mut Repairs) {
    let mut found: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for inode in gathered.inodes.iter().filter(|inode| inode.keep && inode.new_limit != 0) {
        let sum = found.entry(inode.new_limit).or_default();
        *sum = (sum.0.saturating_add(inode.kept_blocks), sum.1 + 1);
    }
    let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (number, (blocks, inodes)) in found {
        for number in way_of(stay, number) {
            let sum = sums.entry(number).or_default();
            *sum = (sum.0.saturating_add(blocks), sum.1 + inodes);
        }
    }
    for (number, entry) in stay.iter_mut() {
        (entry.blocks, entry.inodes) = sums.get(number).copied().unwrap_or_default();
        let was = before.get(number).map_or((0, 0), |entry| (entry.blocks, entry.inodes));
        if was != (entry.blocks, entry.inodes) {
            repairs.add(RepairKind::LimitCorrected, At::ino(entry.dir.0), || {
                format!(
                    "limit {number}: {} blocks → {}, {} inodes → {}",
                    was.0, entry.blocks, was.1, entry.inodes
                )
            });
        }
    }
}

/// The limits of one tree.
pub(crate) fn of_tree(all: &Entries, tree: u32) -> OfTree {
    all.range((tree, 0)..(tree + 1, 0)).map(|((_, number), entry)| (*number, *entry)).collect()
}
