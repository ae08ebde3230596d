//! The check of limits: see [`kedge_format::limits`].
//!
//! While the items of a tree are read, the blocks and inodes that count for each limit are added
//! up. The sums of a limit are then added to those of the limits that contain it. The entry in the
//! table must have the same sums.

use crate::kinds::FindingKind;
use crate::report::{At, Findings};
use kedge_format::InodeCore;
use kedge_format::limits::{DEPTH_MAX, LimitEntry};
use kedge_format::trees::{TreeEntry, TreeKind};
use std::collections::BTreeMap;

/// Limits by tree and number.
pub(crate) type Entries = BTreeMap<(u32, u32), LimitEntry>;

/// The blocks and inodes of one tree that count for each limit directly, without those that count
/// for a limit inside it.
#[derive(Default)]
pub(crate) struct Tally(BTreeMap<u32, (u64, u64)>);

impl Tally {
    pub(crate) fn add(&mut self, core: &InodeCore) {
        if core.limit != 0 {
            let (blocks, inodes) = self.0.entry(core.limit).or_default();
            *blocks = blocks.saturating_add(core.blocks);
            *inodes += 1;
        }
    }
}

/// Checks how entries refer to each other and to trees.
pub(crate) fn check_entries(
    limits: &Entries,
    trees: &BTreeMap<u32, TreeEntry>,
    at: At,
    findings: &mut Findings,
) {
    let mut bad = |(tree, number): &(u32, u32), what: String| {
        findings.add(FindingKind::LimitBad, at, || format!("limit {number} of tree {tree} {what}"));
    };
    let mut dirs = BTreeMap::new();
    for (id, entry) in limits {
        if trees.get(&id.0).is_none_or(|tree| tree.kind != TreeKind::Head) {
            bad(id, "is of a tree that does not exist".into());
        }
        if let Some(other) = dirs.insert((id.0, entry.dir), id.1) {
            bad(id, format!("is of the directory of limit {other}"));
        }
        if entry.parent != 0 && !limits.contains_key(&(id.0, entry.parent)) {
            bad(id, format!("is in limit {}, which does not exist", entry.parent));
        }
        if way_of(limits, *id).len() > DEPTH_MAX {
            bad(id, "is in a circle of limits, or too deep".into());
        }
    }
}

/// The limit and the limits that contain it, at most one more than the format allows. `parent`
/// returns the parent of a limit that exists.
pub(crate) fn way(parent: impl Fn(u32) -> Option<u32>, number: u32) -> Vec<u32> {
    let mut way = Vec::new();
    let mut number = number;
    while way.len() <= DEPTH_MAX
        && let Some(next) = parent(number)
    {
        way.push(number);
        number = next;
    }
    way
}

fn way_of(limits: &Entries, (tree, number): (u32, u32)) -> Vec<u32> {
    way(|number| limits.get(&(tree, number)).map(|entry| entry.parent), number)
}

/// Compares the counts of a tree's limits with the sums over its inodes.
pub(crate) fn compare(limits: &Entries, tree: u32, tally: &Tally, at: At, findings: &mut Findings) {
    let mut found: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (number, (blocks, inodes)) in &tally.0 {
        if !limits.contains_key(&(tree, *number)) {
            findings.add(FindingKind::LimitBad, at, || {
                format!("{inodes} inodes count for limit {number}, which does not exist")
            });
        }
        for number in way_of(limits, (tree, *number)) {
            let sum = found.entry(number).or_default();
            *sum = (sum.0.saturating_add(*blocks), sum.1 + inodes);
        }
    }
    for ((_, number), entry) in limits.range((tree, 0)..(tree + 1, 0)) {
        let (blocks, inodes) = found.get(number).copied().unwrap_or_default();
        if (entry.blocks, entry.inodes) != (blocks, inodes) {
            findings.add(FindingKind::LimitWrong, at, || {
                format!(
                    "limit {number} counts {} blocks and {} inodes, the inodes below directory {} have {blocks} \
                     and are {inodes}",
                    entry.blocks, entry.inodes, entry.dir
                )
            });
        }
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
