//! The scenarios under many seeds. `KEDGE_SEED` and `KEDGE_RUNS` choose the seeds, `KEDGE_SCENARIO`
//! the scenario.

use kedge_base::{Clock, SystemClock};
use kedge_sched::campaign::campaign;
use kedge_sched::scenarios::{self, Scenario};
use kedge_sched::shrink::shrink;

/// Limit of runs for shrinking a schedule.
const TRIES: usize = 100;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn holds(scenario: &Scenario, usual: u64) {
    if std::env::var("KEDGE_SCENARIO").is_ok_and(|only| only != scenario.name) {
        return;
    }
    let first = number("KEDGE_SEED").unwrap_or(0);
    let long = if std::env::var_os("KEDGE_LONG").is_some() { 40 } else { 1 };
    let runs = number("KEDGE_RUNS").unwrap_or(usual * long);
    let clock = SystemClock::default();
    let tally = campaign(scenario, first..first + runs);
    println!(
        "{}: {} schedules, {} steps, {} switches, {:.1} s",
        scenario.name,
        tally.runs,
        tally.steps,
        tally.switches,
        clock.monotonic().as_secs_f64()
    );
    if let Some(found) = tally.found {
        let (last, schedule) = shrink(scenario, found.seed, found.run, TRIES);
        let why = last.result.expect_err("a run that failed");
        panic!(
            "{}, seed {}, {:?}: {}\nwith the switches {schedule:?}: {why}",
            scenario.name, found.seed, found.plan, found.why
        );
    }
}

fn scenario(name: &str) -> &'static Scenario {
    scenarios::named(name).expect("a scenario of this name")
}

#[test]
fn small_programs_are_linearizable_and_survive_power_failures() {
    holds(scenario("programs"), 300);
}

#[test]
fn a_close_beside_writers_keeps_what_they_wrote() {
    holds(scenario("close"), 300);
}

#[test]
fn a_fork_beside_changes_is_one_moment_and_stays() {
    holds(scenario("forks"), 300);
}

#[test]
fn a_frozen_image_holds_what_was_accepted() {
    holds(scenario("freeze"), 300);
}

#[test]
fn an_fsync_that_succeeds_says_the_truth() {
    holds(scenario("fsyncs"), 200);
}

#[test]
fn a_sync_that_shares_a_round_says_the_truth() {
    holds(scenario("syncs"), 200);
}

#[test]
fn each_reservation_of_log_space_is_granted_in_the_end() {
    holds(scenario("space"), 1000);
}

#[test]
fn a_number_names_its_file_while_the_first_tree_is_replaced() {
    holds(scenario("roots"), 300);
}

#[test]
fn an_inode_deleted_while_it_is_read_stays_deleted() {
    holds(scenario("deleted"), 500);
}

#[test]
fn a_name_taken_beside_the_steps_of_a_truncate_harms_neither() {
    holds(scenario("truncated"), 300);
}

#[test]
fn a_file_without_holes_shows_none_to_a_reader() {
    holds(scenario("extents"), 300);
}

#[test]
fn a_punch_beside_a_write_is_before_or_after_it() {
    holds(scenario("punched"), 300);
}

#[test]
fn each_scenario_is_run() {
    assert_eq!(scenarios::ALL.len(), 12, "add a test for a new scenario");
}
