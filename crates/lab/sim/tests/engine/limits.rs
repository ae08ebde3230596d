//! Limits are set, changed and removed between writes, with power failures at any event.

use kedge_device::sim::StatePlan;
use kedge_sim::limits::check;

#[test]
fn a_crash_leaves_limits_that_count_exactly_and_are_not_passed() {
    let plan = StatePlan { subsets: 4, samples: 6, torn: 1, ..StatePlan::default() };
    let checked = (0..8).map(|seed| check(seed, 80, plan).unwrap_or_else(|e| panic!("{e}")));
    let states: usize = checked.sum();
    println!("{states} states");
    assert!(states > 1000, "{states} states");
}
