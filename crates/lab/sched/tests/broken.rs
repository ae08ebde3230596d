//! Engines in which a mend of their concurrency is taken back: the search finds each of them.
//!
//! A single test, since the switch applies to the whole process.

use kedge_base::broken::{self, Variant};
use kedge_sched::campaign::campaign;
use kedge_sched::scenarios;
use kedge_sched::shrink::shrink;

/// Each of them is found within this many schedules.
const SCHEDULES_MAX: u64 = 10_000;

/// The scenario that finds the variant.
const FINDS: &[(Variant, &str)] = &[
    (Variant::StaleMarks, "forks"),
    (Variant::EarlyRemoval, "truncated"),
    (Variant::UnwokenFreeze, "freeze"),
    (Variant::CloseBesideChanges, "close"),
    (Variant::LookBetweenEdits, "extents"),
    (Variant::StaleInode, "deleted"),
    (Variant::UngatedWriter, "freeze"),
    (Variant::AckBeforeForce, "programs"),
    (Variant::CutNotExact, "programs"),
    (Variant::GroupedAckEarly, "fsyncs"),
    (Variant::WaitWithoutLook, "fsyncs"),
    (Variant::UngrantedReturn, "space"),
];

#[test]
fn each_mend_that_is_taken_back_is_found() {
    let only = std::env::var("KEDGE_VARIANT").ok();
    let mut missed = Vec::new();
    for (variant, name) in FINDS {
        if only.as_ref().is_some_and(|only| *only != format!("{variant:?}")) {
            continue;
        }
        let scenario = scenarios::named(name).expect("a scenario of this name");
        broken::set(Some(*variant));
        let tally = campaign(scenario, 0..SCHEDULES_MAX);
        let Some(found) = tally.found else {
            broken::set(None);
            println!("{variant:?}: not found in {} schedules of {name}", tally.runs);
            missed.push(*variant);
            continue;
        };
        let (last, schedule) = shrink(scenario, found.seed, found.run.clone(), 60);
        broken::set(None);
        let why = last.result.expect_err("a run that failed");
        let why = why.lines().next().unwrap_or_default();
        println!(
            "{variant:?}: found by {name} in schedule {} ({:?}), {} switches, shrunk to {}: {why}",
            found.after,
            found.plan,
            found.run.account.schedule.len(),
            schedule.len(),
        );
        // The same seed and plan on the engine as it is.
        let run = (scenario.play)(found.seed, &found.plan);
        assert!(run.result.is_ok(), "{variant:?}: the engine as it is fails, too: {:?}", run.result);
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
