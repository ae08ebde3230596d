//! Atomic writes, with power failures at any event.

use kedge_device::sim::StatePlan;
use kedge_sim::atomic::{check, check_beside};

fn run(seeds: std::ops::Range<u64>, checksums: bool) -> usize {
    let plan = StatePlan { subsets: 4, samples: 6, torn: 2, ..StatePlan::default() };
    seeds.map(|seed| check(seed, 80, checksums, plan).unwrap_or_else(|e| panic!("{e}"))).sum()
}

#[test]
fn a_crash_leaves_an_atomic_write_whole_or_not_at_all() {
    let states = run(0..10, false);
    println!("{states} states");
    assert!(states > 3000, "{states} states");
}

#[test]
fn also_where_data_has_checksums() {
    let states = run(100..105, true);
    println!("{states} states");
    assert!(states > 1000, "{states} states");
}

#[test]
fn also_beside_writers_fsyncs_and_checkpoints() {
    let plan = StatePlan { subsets: 3, samples: 3, torn: 1, ..StatePlan::default() };
    let states: usize =
        (0..3).map(|seed| check_beside(seed, 30, plan).unwrap_or_else(|e| panic!("{e}"))).sum();
    println!("{states} states");
    assert!(states > 500, "{states} states");
}
