//! An image changes its size, with power failures at any event.

use kedge_device::sim::StatePlan;
use kedge_sim::resize::{Course, GROWTH, SHRINK, check};

fn old_size_or_new(course: &Course) {
    let plan = StatePlan { subsets: 6, samples: 12, torn: 2, ..StatePlan::default() };
    let (states, of_size) = check(course, plan).unwrap();
    println!("{states} states, by size {of_size:?}");
    assert!(states > 100, "{states} states");
    assert!(of_size.iter().all(|n| *n > 0), "{of_size:?}");
}

#[test]
fn a_crash_during_a_growth_leaves_the_old_size_or_the_new_one() {
    old_size_or_new(&GROWTH);
}

#[test]
fn a_crash_during_a_shrink_leaves_the_old_size_or_the_new_one() {
    old_size_or_new(&SHRINK);
}
