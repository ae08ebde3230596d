//! Makes the counts of shared blocks again from the marked extents that stay.

use super::done::{RepairKind, Repairs};
use crate::report::At;
use kedge_base::BlockNo;
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::counts::CountItem;
use kedge_format::item::ExtentItem;
use std::collections::BTreeMap;

/// Count items by first block.
pub(crate) type Items = BTreeMap<u64, CountItem>;

/// The marked extents and the count items of a tree.
#[derive(Default)]
pub(crate) struct Shares {
    /// Each start or end of a marked extent: the block, the change of the number of extents, and
    /// the birth.
    changes: Vec<(u64, i64, u32)>,
    items: Vec<(u64, CountItem)>,
}

/// A run of blocks with the same number of marked extents and the same birth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    from: u64,
    to: u64,
    count: u32,
    birth: u32,
}

impl Shares {
    pub fn extent(&mut self, item: &ExtentItem) {
        if item.counted {
            let extent = item.extent();
            self.changes.push((extent.start.0, 1, item.birth));
            self.changes.push((extent.end().0, -1, item.birth));
        }
    }

    pub fn item(&mut self, start: u64, item: CountItem) {
        self.items.push((start, item));
    }

    /// Compares the count items with the extents. Returns the correct items and the missing ones,
    /// by first block.
    pub fn settle(mut self, repairs: &mut Repairs) -> (Items, Items) {
        let runs = self.runs();
        let mut stay = Items::new();
        let mut rest = runs.as_slice();
        for (start, item) in &self.items {
            let end = start + u64::from(item.blocks);
            rest = &rest[rest.partition_point(|run| run.to <= *start)..];
            // Adjacent runs differ, so a correct item is inside one run.
            let right = rest.first().is_some_and(|run| {
                run.from <= *start && end <= run.to && (run.count, run.birth) == (item.count, item.birth)
            });
            if right {
                stay.insert(*start, *item);
            } else {
                repairs.add(RepairKind::SharesRecounted, At::block(BlockNo(*start)), || {
                    let CountItem { blocks, count, birth } = item;
                    format!("a count of {count} for {blocks} blocks of birth {birth} was wrong")
                });
            }
        }
        let mut added = Items::new();
        let mut kept = stay.iter().peekable();
        for run in runs {
            let mut at = run.from;
            while at < run.to {
                // A correct item ends inside the run in which it begins.
                if let Some((_, item)) = kept.next_if(|(start, _)| **start == at) {
                    at += u64::from(item.blocks);
                    continue;
                }
                let next = kept.peek().map_or(run.to, |(start, _)| **start);
                let end = run.to.min(next).min((at / GROUP_BLOCKS + 1) * GROUP_BLOCKS);
                let blocks = u32::try_from(end - at).expect("at most a group");
                let item = CountItem { blocks, count: run.count, birth: run.birth };
                repairs.add(RepairKind::SharesRecounted, At::block(BlockNo(at)), || {
                    format!("{blocks} blocks of birth {} have {} extents", run.birth, run.count)
                });
                added.insert(at, item);
                at = end;
            }
        }
        (stay, added)
    }

    /// Returns the runs in ascending order. Adjacent runs with equal values are joined.
    fn runs(&mut self) -> Vec<Run> {
        self.changes.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        let (mut count, mut birth, mut from) = (0i64, 0, 0);
        for (at, by, of) in std::mem::take(&mut self.changes) {
            if at > from {
                let run = Run { from, to: at, count: u32::try_from(count).unwrap_or(u32::MAX), birth };
                match runs
                    .last_mut()
                    .filter(|last| (last.to, last.count, last.birth) == (from, run.count, birth))
                {
                    Some(last) => last.to = at,
                    None if count > 0 => runs.push(run),
                    None => {}
                }
                from = at;
            }
            count += by;
            // All extents of a block have the same birth, so any of them gives the run's birth.
            if by > 0 {
                birth = of;
            }
        }
        runs
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
