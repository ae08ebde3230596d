//! Engines in which a fix of their concurrency is reverted: the search finds each of them.
//!
//! There is a single test, since the switch applies to the whole process.

use kedge_base::broken::{self, Variant};
use kedge_sched::campaign::campaign;
use kedge_sched::scenarios;
use kedge_sched::shrink::shrink;

/// Limit of schedules within which the search must find each of them.
const SCHEDULES_MAX: u64 = 10_000;

/// The scenario that finds the variant, and the first seed. If a search from seed 0 would take
/// long, it begins shortly before the seed that finds the variant today: this test shows that the
/// check can fail, not how long a search takes. When the engine changes, another seed finds the
/// variant.
const FINDS: &[(Variant, &str, u64)] = &[
    (Variant::StaleMarks, "forks", 400),
    (Variant::EarlyRemoval, "truncated", 1100),
    (Variant::UnwokenFreeze, "freeze", 0),
    (Variant::CloseBesideChanges, "close", 0),
    (Variant::LookBetweenEdits, "extents", 2400),
    (Variant::StaleInode, "deleted", 100),
    (Variant::UngatedWriter, "freeze", 0),
    (Variant::AckBeforeForce, "programs", 0),
    (Variant::CutNotExact, "programs", 12200),
    (Variant::GroupedAckEarly, "fsyncs", 0),
    (Variant::WaitWithoutLook, "fsyncs", 340),
    (Variant::UngrantedReturn, "space", 160),
    (Variant::UnfilledBatch, "space", 0),
    (Variant::LateNumber, "roots", 5480),
    (Variant::StaleEnd, "punched", 0),
    (Variant::SyncJoinsRunning, "syncs", 0),
];

#[test]
fn each_mend_that_is_taken_back_is_found() {
    let only = std::env::var("KEDGE_VARIANT").ok();
    let mut missed = Vec::new();
    for (variant, name, first) in FINDS {
        if only.as_ref().is_some_and(|only| *only != format!("{variant:?}")) {
            continue;
        }
        let scenario = scenarios::named(name).expect("a scenario of this name");
        broken::set(Some(*variant));
        let tally = campaign(scenario, *first..first + SCHEDULES_MAX);
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
            "{variant:?}: found by {name} in schedule {} from seed {first} ({:?}), {} switches, shrunk to {}: {why}",
            found.after,
            found.plan,
            found.run.account.schedule.len(),
            schedule.len(),
        );
        // The same seed and plan with the correct engine.
        let run = (scenario.play)(found.seed, &found.plan);
        assert!(run.result.is_ok(), "{variant:?}: the engine as it is fails, too: {:?}", run.result);
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
