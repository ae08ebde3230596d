//! Enumerated workloads with forks, deletions and replacements of trees, growth and limits.
//!
//! A run explores workloads of one operation, and a sample of those of two and three. With
//! `KEDGE_LONG=1` it explores all of one and of two.

use kedge_sim::explore::{Explorer, Plan, Tally, base_image};
use kedge_sim::workload::Catalogue;

/// Explores workloads of `skeletons` that contain such an operation: one in `one_in` variants.
fn explore(seq: u8, seed: u64, skeletons: impl Iterator<Item = u64>, one_in: u64, plan: Plan) -> Tally {
    let catalogue = Catalogue::new(seq, seed);
    let mut explorer = Explorer::new(&base_image(false).unwrap(), plan);
    for skeleton in skeletons.filter(|skeleton| catalogue.has_trees(*skeleton)) {
        for workload in catalogue.variants(skeleton) {
            if !workload.id.mixed().is_multiple_of(one_in) {
                continue;
            }
            if let Some(failure) = explorer.explore(&workload, None) {
                panic!("{failure}");
            }
        }
    }
    explorer.tally
}

fn is_long() -> bool {
    std::env::var_os("KEDGE_LONG").is_some_and(|value| value == "1")
}

#[test]
fn every_workload_of_one_operation_survives() {
    let len = Catalogue::new(1, 0).len();
    let one_in = if is_long() { 1 } else { 6 };
    let tally = explore(1, 0, 0..len, one_in, Plan::quick(1));
    println!("{tally:?}");
    assert!(tally.workloads > 20 && tally.states > 1000, "{tally:?}");
}

#[test]
fn workloads_of_two_operations_survive() {
    let len = Catalogue::new(2, 0).len();
    let one_in = if is_long() { 1 } else { 12_000 };
    let tally = explore(2, 0, 0..len, one_in, Plan::quick(2));
    println!("{tally:?}");
    assert!(tally.workloads > 5 && tally.states > 300, "{tally:?}");
}

#[test]
fn sampled_workloads_of_three_operations_survive() {
    let count = if is_long() { 2000 } else { 12 };
    let tally = explore(3, 11, 0..count, 1, Plan::quick(3));
    println!("{tally:?}");
    assert!(tally.workloads > 5 && tally.states > 300, "{tally:?}");
}
