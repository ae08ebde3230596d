//! The check of reference counts ([`kedge_format::counts`]): counts again how many marked extents
//! of a tree refer to each block.

use crate::kinds::FindingKind;
use crate::report::{At, Findings};
use kedge_base::{BlockNo, Extent};
use kedge_format::counts::CountItem;
use kedge_format::item::ExtentItem;

/// The extents and count items that refer to shared blocks.
#[derive(Default)]
pub(crate) struct Counts {
    changes: Vec<Change>,
}

/// The change of the sums from one block to the next.
#[derive(Clone, Copy)]
struct Change {
    at: u64,
    by: Sums,
}

/// Sums over the extents and count items that cover a block. Count items enter with a negative
/// sign. If the sum of the births and the sum of their squares are both zero, all extents have the
/// item's birth.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Sums {
    extents: i64,
    counted: i64,
    births: i128,
    squares: i128,
}

impl Sums {
    fn plus(self, other: Sums, sign: i64) -> Sums {
        Sums {
            extents: self.extents + sign * other.extents,
            counted: self.counted + sign * other.counted,
            births: self.births + i128::from(sign) * other.births,
            squares: self.squares + i128::from(sign) * other.squares,
        }
    }
}

impl Counts {
    fn add(&mut self, extent: Extent, by: Sums) {
        self.changes.push(Change { at: extent.start.0, by });
        self.changes.push(Change { at: extent.end().0, by: Sums::default().plus(by, -1) });
    }

    /// Adds a marked extent.
    pub(crate) fn extent(&mut self, item: &ExtentItem) {
        let birth = i128::from(item.birth);
        self.add(item.extent(), Sums { extents: 1, counted: 0, births: birth, squares: birth * birth });
    }

    /// Adds a count item.
    pub(crate) fn item(&mut self, extent: Extent, item: &CountItem) {
        let (count, birth) = (i128::from(item.count), i128::from(item.birth));
        let (births, squares) = (-count * birth, -count * birth * birth);
        self.add(extent, Sums { extents: 0, counted: item.count.into(), births, squares });
    }

    /// Reports runs of blocks whose extents contradict their count item in number or birth.
    pub(crate) fn judge(mut self, findings: &mut Findings) {
        self.changes.sort_unstable_by_key(|change| change.at);
        let mut now = Sums::default();
        let mut wrong: Option<(u64, Sums)> = None;
        let mut changes = self.changes.into_iter().peekable();
        while let Some(Change { at, by }) = changes.next() {
            now = now.plus(by, 1);
            if changes.peek().is_some_and(|next| next.at == at) {
                continue;
            }
            if let Some((from, sums)) = wrong.filter(|(_, sums)| *sums != now) {
                report(findings, from, at - from, sums);
                wrong = None;
            }
            if now.extents != now.counted || (now.births, now.squares) != (0, 0) {
                wrong.get_or_insert((at, now));
            }
        }
    }
}

fn report(findings: &mut Findings, from: u64, blocks: u64, sums: Sums) {
    findings.add(FindingKind::CountWrong, At::block(BlockNo(from)), || match sums {
        Sums { extents, counted, .. } if extents != counted => {
            format!("{blocks} blocks have a count of {counted} and {extents} extents")
        }
        _ => format!("{blocks} blocks have another birth than their extents"),
    });
}

#[cfg(test)]
#[path = "counts_tests.rs"]
mod tests;
