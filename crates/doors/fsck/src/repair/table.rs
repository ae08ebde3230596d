//! The entries of the table of trees that a repaired image has, and the order in which its trees
//! are repaired.
//!
//! # Decisions
//! 1. An entry that cannot be decoded is left out, and so is its tree.
//! 2. If an entry names a point that does not exist or is of another kind, the point is made: an
//!    empty tree. It owns the blocks that the trees below it share. A reference to a tree in use is
//!    removed instead.
//! 3. Circles of points are cut.
//! 4. Trees that are being deleted, and points without a tree below them, are left out, which frees
//!    their space.
//! 5. A tree without a valid name, or with the name of another tree, or whose directory is lost,
//!    gets a name in the lost+found of the first tree or in its root directory.

use super::done::{RepairKind, Repairs};
use crate::report::At;
pub(crate) use crate::way::is_head;
use crate::way::{Step, steps};
use kedge_base::{BlockNo, Generation, Ino};
use kedge_format::Key;
use kedge_format::item::BIRTH_MAX;
use kedge_format::superblock::Superblock;
use kedge_format::trees::{TREES_MAX, TreeEntry, TreeKind};
use std::collections::{BTreeMap, BTreeSet};

/// The highest birth that an item may keep. The births above it suffice for the marks of all trees.
const BIRTH_HIGHEST: u32 = BIRTH_MAX - TREES_MAX;

pub(crate) struct Table {
    pub entries: BTreeMap<u32, TreeEntry>,
    /// Points whose entries are lost, so that none of their nodes can be found.
    pub lost: BTreeSet<u32>,
    /// The birth of extents that are made after this repair.
    pub birth: u32,
    /// Trees that need another name.
    pub homeless: BTreeSet<u32>,
}

impl Table {
    pub fn settle(entries: BTreeMap<u32, TreeEntry>, sb: &Superblock, repairs: &mut Repairs) -> Table {
        let birth = sb.checkpoint.trees.map_or(0, |trees| trees.birth).min(BIRTH_HIGHEST);
        let mut table = Table { entries, lost: BTreeSet::new(), birth, homeless: BTreeSet::new() };
        table.first(repairs);
        table.points(repairs);
        table.cut_circles(repairs);
        table.leave_out(repairs);
        for (number, entry) in table.entries.iter_mut().filter(|(_, entry)| entry.freed_below != Key::MIN) {
            repairs.add(RepairKind::TreeCorrected, At::default(), || {
                format!("tree {number} is not being freed")
            });
            entry.freed_below = Key::MIN;
        }
        table.names();
        table
    }

    fn first(&mut self, repairs: &mut Repairs) {
        let first = self.entries.entry(0).or_insert_with(|| {
            repairs.add(RepairKind::TreeCorrected, At::default(), || "the first tree has no entry".into());
            empty(TreeKind::Head)
        });
        let plain = TreeEntry {
            kind: TreeKind::Head,
            read_only: false,
            dir: Ino(0),
            name: Vec::new(),
            ..first.clone()
        };
        if *first != plain {
            repairs.add(RepairKind::TreeCorrected, At::default(), || "the entry of the first tree".into());
            *first = plain;
        }
    }

    /// Makes missing points.
    fn points(&mut self, repairs: &mut Repairs) {
        let named: BTreeSet<u32> =
            self.entries.values().map(|entry| entry.point).filter(|p| *p != 0).collect();
        for number in named {
            match self.entries.get_mut(&number) {
                Some(entry) if entry.kind == TreeKind::Head => {
                    let below = self.entries.iter_mut().filter(|(_, entry)| entry.point == number);
                    for (child, entry) in below {
                        repairs.add(RepairKind::TreeCorrected, At::default(), || {
                            format!("tree {child}: its point {number} is a tree in use")
                        });
                        entry.point = 0;
                    }
                }
                Some(entry) => entry.kind = TreeKind::Point,
                None => {
                    repairs.add(RepairKind::TreeCorrected, At::default(), || {
                        format!("point {number} is lost: what the trees below it share is kept for them")
                    });
                    self.entries.insert(number, empty(TreeKind::Point));
                    self.lost.insert(number);
                }
            }
        }
    }

    fn cut_circles(&mut self, repairs: &mut Repairs) {
        let mut ends = BTreeSet::new();
        let numbers: Vec<u32> = self.entries.keys().copied().collect();
        for start in numbers {
            let (mut way, mut at) = (BTreeSet::new(), start);
            while !ends.contains(&at) && way.insert(at) {
                let next = self.entries.get(&at).map_or(0, |entry| entry.point);
                if next == 0 {
                    break;
                }
                if way.contains(&next)
                    && let Some(entry) = self.entries.get_mut(&at)
                {
                    repairs.add(RepairKind::TreeCorrected, At::default(), || {
                        format!("the points of tree {at} form a circle")
                    });
                    entry.point = 0;
                    break;
                }
                at = next;
            }
            ends.extend(way);
        }
    }

    /// Leaves out trees that are being deleted, and points without a tree below them.
    fn leave_out(&mut self, repairs: &mut Repairs) {
        loop {
            let used: BTreeSet<u32> = self.entries.values().map(|entry| entry.point).collect();
            let gone = |(number, entry): (&u32, &TreeEntry)| {
                (entry.kind != TreeKind::Head && !used.contains(number)).then_some(*number)
            };
            let gone: Vec<u32> = self.entries.iter().filter_map(gone).collect();
            if gone.is_empty() {
                return;
            }
            for number in gone {
                self.entries.remove(&number);
                repairs.add(RepairKind::SpaceRebuilt, At::default(), || {
                    format!("tree {number} was being deleted, or no tree needs it: its space is free")
                });
            }
        }
    }

    fn names(&mut self) {
        let mut names = BTreeSet::new();
        for (number, entry) in self.entries.iter().filter(|(number, entry)| **number != 0 && is_head(entry)) {
            let above = entry.dir.tree();
            let found = above == 0
                || self.entries.get(&above).is_some_and(|above| is_head(above) && above.dir.0 != 0);
            if entry.dir.0 == 0 || !found || !names.insert((entry.dir, entry.name.clone())) {
                self.homeless.insert(*number);
            }
        }
        // Also trees from which the directories above do not lead to the first tree.
        let numbers: Vec<u32> = self.entries.keys().copied().collect();
        let mut ends = BTreeSet::new();
        for start in numbers {
            let (mut way, mut at) = (BTreeSet::new(), start);
            while at != 0 && !self.homeless.contains(&at) && !ends.contains(&at) {
                if !way.insert(at) {
                    self.homeless.insert(at);
                    break;
                }
                at = self.entries.get(&at).map_or(0, |entry| entry.dir.tree());
            }
            ends.extend(way);
        }
    }

    /// The trees directly below a point. With 0, those without a point.
    pub fn below(&self, point: u32) -> Vec<u32> {
        let of = |(number, entry): (&u32, &TreeEntry)| (entry.point == point).then_some(*number);
        self.entries.iter().filter_map(of).collect()
    }

    /// The walk through all trees: each tree between the steps of its points.
    pub fn steps(&self) -> Vec<Step> {
        steps(&self.entries)
    }

    /// The points above a tree, up to the point that owns blocks of this birth.
    pub fn points_up_to(&self, number: u32, birth: u32) -> Vec<u32> {
        let mut points = Vec::new();
        let mut at = self.entries.get(&number);
        while let Some(point) = at.map(|entry| entry.point).filter(|point| *point != 0) {
            points.push(point);
            at = self.entries.get(&point).filter(|entry| birth < entry.births_below);
        }
        points
    }

    /// Sets the marks of the trees directly below a point, to the same values for all. `births` and
    /// `nodes` are the lowest values above everything that the point has.
    pub fn set_marks(
        &mut self,
        point: u32,
        (births, nodes): (u32, Generation),
        next: Generation,
        repairs: &mut Repairs,
    ) {
        let below = self.below(point);
        let mut votes: BTreeMap<(u32, Generation), usize> = BTreeMap::new();
        for entry in below.iter().map(|number| &self.entries[number]) {
            let fits = (births..=self.birth).contains(&entry.births_below)
                && (nodes..=next).contains(&entry.nodes_below);
            if fits {
                *votes.entry((entry.births_below, entry.nodes_below)).or_default() += 1;
            }
        }
        // The most frequent marks win; among equally frequent ones, the lowest.
        let most = votes.values().copied().max();
        let chosen = votes.iter().find(|(_, count)| Some(**count) == most);
        let (births, nodes) = chosen.map_or((births, nodes), |(marks, _)| *marks);
        self.birth = self.birth.max(births);
        for number in below {
            let entry = self.entries.get_mut(&number).expect("just listed");
            mark(number, entry, (births, nodes), repairs);
        }
    }

    /// Sets the marks of the trees without a point.
    pub fn set_first_marks(&mut self, repairs: &mut Repairs) {
        for (number, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.point == 0) {
            mark(*number, entry, (0, Generation(0)), repairs);
        }
    }
}

fn mark(number: u32, entry: &mut TreeEntry, (births, nodes): (u32, Generation), repairs: &mut Repairs) {
    if (entry.births_below, entry.nodes_below) != (births, nodes) {
        repairs.add(RepairKind::TreeCorrected, At::default(), || {
            format!(
                "tree {number}: marks of birth {} → {births}, generation {} → {nodes}",
                entry.births_below, entry.nodes_below
            )
        });
        (entry.births_below, entry.nodes_below) = (births, nodes);
    }
}

fn empty(kind: TreeKind) -> TreeEntry {
    TreeEntry {
        kind,
        read_only: kind == TreeKind::Point,
        root: BlockNo(0),
        root_generation: Generation(0),
        root_level: 0,
        nodes: 0,
        next_ino: 0,
        inodes: 0,
        orphans: 0,
        point: 0,
        births_below: 0,
        nodes_below: Generation(0),
        dir: Ino(0),
        created: 0,
        freed_below: Key::MIN,
        name: Vec::new(),
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
