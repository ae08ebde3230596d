//! Trees are forked, changed, renamed and deleted, with power failures at any event.

use crate::common::seeds;
use kedge_device::sim::StatePlan;
use kedge_sim::forks::{Steps, check};

fn run(kind: Steps, count: u64, steps: usize, plan: StatePlan) -> usize {
    let checked =
        seeds(count).into_iter().map(|seed| check(kind, seed, steps, plan).unwrap_or_else(|e| panic!("{e}")));
    checked.sum()
}

#[test]
fn a_crash_leaves_each_tree_as_it_was_or_as_it_became() {
    let plan = StatePlan { subsets: 4, samples: 6, torn: 1, ..StatePlan::default() };
    let states = run(Steps::Forks, 3, 70, plan);
    println!("{states} states");
    assert!(states > 1000, "{states} states");
}

#[test]
fn a_crash_leaves_each_file_the_bytes_of_a_copy() {
    let plan = StatePlan { subsets: 4, samples: 6, torn: 1, ..StatePlan::default() };
    let states = run(Steps::Clones, 4, 70, plan);
    println!("{states} states");
    assert!(states > 1000, "{states} states");
}

#[test]
fn a_crash_leaves_each_tree_whole_while_the_image_changes_its_size() {
    let plan = StatePlan { subsets: 2, samples: 2, torn: 1, ..StatePlan::default() };
    let states = run(Steps::Sizes, 2, 60, plan);
    println!("{states} states");
    assert!(states > 500, "{states} states");
}

#[test]
fn blocks_of_a_deleted_fork_are_used_again_once_that_is_durable() {
    let plan = StatePlan { subsets: 3, samples: 2, torn: 0, ..StatePlan::default() };
    let states = kedge_sim::forks::check_reuse(plan).unwrap_or_else(|e| panic!("{e}"));
    println!("{states} states");
    assert!(states > 300, "{states} states");
}

#[test]
fn the_first_tree_is_replaced_with_the_names_in_it_or_not_at_all() {
    let plan = StatePlan { subsets: 64, samples: 16, torn: 2, ..StatePlan::default() };
    let states = kedge_sim::forks::check_root(plan).unwrap_or_else(|e| panic!("{e}"));
    println!("{states} states");
    assert!(states > 50, "{states} states");
}
