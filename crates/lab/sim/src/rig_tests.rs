use super::*;
use std::collections::BTreeSet;

/// Tests with random operations run a hundred seeds. These cover, for any two switches, each pair
/// of their positions.
#[test]
fn a_hundred_seeds_reach_all_pairs_of_positions() {
    let positions = |seed| {
        let Setup { mount, far, .. } = Setup::default().switched(seed);
        [
            mount.new_name.to_string(),
            mount.fdatasync.to_string(),
            format!("{:?}", mount.async_checkpoint),
            mount.plug.to_string(),
            format!("{:?}", mount.writeback_order),
            mount.tree_lock.to_string(),
            mount.dirty_tracking.to_string(),
            far.to_string(),
            mount.dirty_set.is_some().to_string(),
        ]
    };
    let counts = [2, 3, 2, 2, 2, TreeLock::ALL.len(), 2, 2, 2];
    let all: Vec<_> = (1..=100).map(positions).collect();
    for a in 0..counts.len() {
        for b in 0..a {
            let pairs: BTreeSet<_> = all.iter().map(|p| (&p[a], &p[b])).collect();
            assert_eq!(pairs.len(), counts[a] * counts[b], "{pairs:?}");
        }
    }
}
