//! The sizes of the open trees as of the last cut. A cut updates only the trees that changed, and
//! then finds the largest without a walk over all trees.

use kedge_btree::{Totals, Tree};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Sizes {
    /// Height and number of nodes, by the number of the tree.
    of: BTreeMap<u32, (u32, u64)>,
    heights: BTreeSet<(u32, u32)>,
    nodes: BTreeSet<(u64, u32)>,
}

impl Sizes {
    pub(super) fn set(&mut self, number: u32, tree: &Tree) {
        self.insert(number, (tree.height(), tree.node_count()));
    }

    fn insert(&mut self, number: u32, (height, nodes): (u32, u64)) {
        self.remove(number);
        self.of.insert(number, (height, nodes));
        self.heights.insert((height, number));
        self.nodes.insert((nodes, number));
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some((height, nodes)) = self.of.remove(&number) {
            self.heights.remove(&(height, number));
            self.nodes.remove(&(nodes, number));
        }
    }

    /// The greatest height and the greatest number of nodes.
    fn largest(&self) -> (u32, u64) {
        let height = self.heights.last().map_or(0, |(height, _)| *height);
        (height, self.nodes.last().map_or(0, |(nodes, _)| *nodes))
    }

    /// Sets the largest sizes in `totals`. Between two cuts these only grow, so they may be too
    /// large. No tree changes meanwhile.
    pub(super) fn set_largest(&self, totals: &Totals) {
        let (height, nodes) = self.largest();
        totals.set_largest(height, nodes);
    }
}

#[cfg(test)]
mod tests {
    use super::Sizes;

    #[test]
    fn the_largest_is_found_after_the_largest_has_shrunk_or_gone() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.largest(), (0, 0));
        for (number, size) in [(0, (1, 1)), (1, (3, 70)), (2, (2, 90)), (3, (2, 90))] {
            sizes.insert(number, size);
        }
        assert_eq!(sizes.largest(), (3, 90));
        sizes.insert(2, (1, 4));
        assert_eq!(sizes.largest(), (3, 90));
        sizes.remove(3);
        assert_eq!(sizes.largest(), (3, 70));
        sizes.remove(1);
        sizes.remove(1);
        assert_eq!(sizes.largest(), (1, 4));
    }
}
