//! The walk through all trees, in which each point comes before the trees below it, and the blocks
//! and nodes that the nearest point above the present tree has.
//!
//! Memory holds only the differences between the points on the path to the present tree.

use crate::owned::Owned;
use crate::runs::Runs;
use kedge_base::{BlockNo, Extent};
use kedge_format::trees::{TreeEntry, TreeKind};
use std::collections::{BTreeMap, BTreeSet};

/// A step of the walk through all trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Enter(u32),
    Leave(u32),
}

impl Step {
    pub fn tree(self) -> u32 {
        match self {
            Step::Enter(number) | Step::Leave(number) => number,
        }
    }
}

pub(crate) fn is_head(entry: &TreeEntry) -> bool {
    entry.kind == TreeKind::Head
}

/// The point above a tree. 0 if it has none, or if its entry names a tree in use or an entry that
/// does not exist.
pub(crate) fn point_of(entries: &BTreeMap<u32, TreeEntry>, entry: &TreeEntry) -> u32 {
    let point = entries.get(&entry.point).filter(|point| !is_head(point));
    point.map_or(0, |_| entry.point)
}

/// The walk: each tree between the steps of its points. Trees below a circle of points are left
/// out.
pub(crate) fn steps(entries: &BTreeMap<u32, TreeEntry>) -> Vec<Step> {
    let mut below: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (number, entry) in entries {
        below.entry(point_of(entries, entry)).or_default().push(*number);
    }
    let mut todo: Vec<Step> = Vec::new();
    let enter = |numbers: Option<Vec<u32>>, todo: &mut Vec<Step>| {
        // Points first: entries in use have no trees below them.
        let mut numbers = numbers.unwrap_or_default();
        numbers.sort_by_key(|number| (is_head(&entries[number]), *number));
        todo.extend(numbers.into_iter().rev().map(Step::Enter));
    };
    enter(below.remove(&0), &mut todo);
    let mut steps = Vec::new();
    while let Some(step) = todo.pop() {
        steps.push(step);
        if let Step::Enter(number) = step {
            todo.push(Step::Leave(number));
            if number != 0 {
                enter(below.remove(&number), &mut todo);
            }
        }
    }
    steps
}

pub(crate) struct Way {
    /// The data blocks of the nearest point, with their births.
    pub data: Runs<u32>,
    /// The blocks of `data`.
    pub owned: Owned,
    /// The first blocks of the nearest point's nodes.
    pub nodes: BTreeSet<u64>,
    undo: Vec<Undo>,
}

/// The changes that the last `enter` made, for `leave`.
struct Undo {
    added: Vec<(u64, u64)>,
    removed: Vec<(u64, u64, u32)>,
    nodes_added: Vec<u64>,
    nodes_removed: Vec<u64>,
}

impl Way {
    /// A path without points.
    pub fn new(groups: u64) -> Way {
        Way { data: Runs::default(), owned: Owned::new(groups), nodes: BTreeSet::new(), undo: Vec::new() }
    }

    /// Enters a point with this data and these nodes. If runs of data overlap, the first one
    /// counts.
    pub fn enter(&mut self, data: impl Iterator<Item = (Extent, u32)>, nodes: BTreeSet<u64>) {
        let mut now: BTreeMap<u64, (u64, u32)> =
            data.map(|(extent, birth)| (extent.start.0, (extent.end().0, birth))).collect();
        let removed: Vec<(u64, u64, u32)> =
            self.data.iter().filter(|(start, end, birth)| now.get(start) != Some(&(*end, *birth))).collect();
        for (start, end, _) in &removed {
            self.remove(*start, *end);
        }
        now.retain(|start, _| self.data.at(*start).is_none());
        let mut added = Vec::new();
        for (start, (end, birth)) in now {
            if self.data.insert(start, end, birth) {
                self.owned.claim(BlockNo(start), end - start);
                added.push((start, end));
            }
        }
        let nodes_removed = self.nodes.difference(&nodes).copied().collect();
        let nodes_added = nodes.difference(&self.nodes).copied().collect();
        self.nodes = nodes;
        self.undo.push(Undo { added, removed, nodes_added, nodes_removed });
    }

    /// Leaves the point that was entered last.
    pub fn leave(&mut self) {
        let Some(undo) = self.undo.pop() else { return };
        for (start, end) in undo.added {
            self.remove(start, end);
        }
        for (start, end, birth) in undo.removed {
            self.data.insert(start, end, birth);
            self.owned.claim(BlockNo(start), end - start);
        }
        self.nodes.retain(|node| !undo.nodes_added.contains(node));
        self.nodes.extend(undo.nodes_removed);
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.data.remove(start);
        self.owned.release(BlockNo(start), end - start);
    }

    /// Whether the nearest point has all blocks of an extent.
    pub fn covers(&self, extent: Extent) -> bool {
        self.owned.taken(extent.start, extent.blocks) == [(extent.start, extent.blocks)]
    }
}

#[cfg(test)]
mod tests {
    use super::Way;
    use kedge_base::{BlockNo, Extent};
    use std::collections::BTreeSet;

    fn enter(way: &mut Way, data: &[(u64, u64, u32)], nodes: &[u64]) {
        let data = data.iter().map(|(start, blocks, birth)| (Extent::new(BlockNo(*start), *blocks), *birth));
        way.enter(data, nodes.iter().copied().collect());
    }

    #[test]
    fn each_point_on_the_way_has_what_it_had_after_the_way_back() {
        let mut way = Way::new(1);
        let covers = |way: &Way, start, blocks| way.covers(Extent::new(BlockNo(start), blocks));
        enter(&mut way, &[(10, 10, 0), (30, 5, 0)], &[100, 104]);
        enter(&mut way, &[(10, 5, 0), (17, 3, 0), (40, 1, 1), (30, 5, 0)], &[104, 200]);
        assert!(covers(&way, 10, 5) && covers(&way, 17, 3) && covers(&way, 40, 1) && covers(&way, 30, 5));
        assert!(!covers(&way, 10, 10));
        assert_eq!((way.data.at(40), way.nodes.clone()), (Some((41, 1)), BTreeSet::from([104, 200])));
        way.leave();
        assert!(covers(&way, 10, 10) && covers(&way, 30, 5) && !covers(&way, 40, 1));
        assert_eq!(way.nodes, BTreeSet::from([100, 104]));
        way.leave();
        assert!(!covers(&way, 10, 1) && way.nodes.is_empty() && way.owned.used() == 0);
    }

    #[test]
    fn data_that_overlaps_counts_once() {
        let mut way = Way::new(1);
        enter(&mut way, &[(10, 10, 0), (15, 10, 0)], &[]);
        assert!(way.covers(Extent::new(BlockNo(10), 10)) && way.data.at(20).is_none());
        way.leave();
        assert_eq!(way.owned.used(), 0);
    }
}
