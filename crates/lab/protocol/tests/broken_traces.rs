//! Broken engines that are detected by their trace alone: an event violates a rule of the protocol,
//! whatever a crash would have left.
//!
//! There is a single test, since the switch applies to the whole process. `KEDGE_VARIANT` chooses
//! one variant.

use kedge_base::broken::{self, Variant};
use kedge_device::sim::StatePlan;
use kedge_protocol::counterparts::{Counterpart, counterpart};
use kedge_protocol::runs::{Failure, history, traced, writers};
use kedge_sim::discard::Giver;
use kedge_sim::ops::{Fill, Op, Target};
use kedge_sim::rig::Rig;

/// Limit of runs for each variant.
const RUNS: u64 = 200;

fn atomic(seed: u64) -> Result<(), String> {
    let plan = StatePlan { subsets: 1, samples: 1, torn: 0, ..StatePlan::default() };
    kedge_sim::atomic::check(seed, 20, false, plan).map(drop)
}

fn discards(_: u64) -> Result<(), String> {
    let plan = StatePlan { subsets: 1, samples: 1, torn: 0, ..StatePlan::default() };
    kedge_sim::discard::check(Giver::Trim, plan).map(drop)
}

/// An fdatasync after overwrites at two offsets. One FUA write cannot cover both, so it needs a
/// flush.
fn overwrites(_: u64) -> Result<(), String> {
    let mut rig = Rig::new(kedge_sim::explore::setup())?;
    let on = || Target::Path("a".to_owned());
    let write = |offset, len, seed| Op::Write { on: on(), offset, len, fill: Fill::Seed(seed) };
    let create = Op::Create { path: "a".to_owned(), mode: 0o644 };
    let ops = [create, write(0, 90_000, 1), Op::Sync, write(0, 5000, 2), write(50_000, 5000, 3)];
    for op in ops.into_iter().chain([Op::Fdatasync { on: on() }]) {
        rig.step(&op)?;
    }
    rig.exec.fs.close().map_err(|e| e.to_string())
}

type Body = fn(u64) -> Result<(), String>;

/// The run that detects each variant.
const CAUGHT: &[(Variant, Body)] = &[
    (Variant::SkipDataFlush, history),
    (Variant::SharedFlush, history),
    (Variant::AckBeforeForce, history),
    (Variant::FdatasyncSkipsFlush, overwrites),
    (Variant::ReuseFreedBlock, history),
    (Variant::ReuseReplacedNode, history),
    (Variant::SlotBeforeNodes, history),
    (Variant::CopyBeforeSlot, history),
    (Variant::TailPastResidents, writers),
    (Variant::ReplayOldData, history),
    (Variant::ExtentBeforeData, history),
    (Variant::KeepEpoch, history),
    (Variant::TailBeforeSlot, history),
    (Variant::CutNotExact, writers),
    (Variant::AckOutOfOrder, writers),
    (Variant::DiscardEarly, discards),
    (Variant::AtomicInParts, atomic),
    (Variant::AtomicWrittenEarly, atomic),
];

/// The violation in the first run that has one, and the number of runs until then.
fn caught(body: Body) -> Option<(Box<kedge_protocol::trace::Violation>, u64)> {
    (0..RUNS).find_map(|seed| match traced(|| body(seed)) {
        Err(Failure::Trace(violation)) => Some((violation, seed + 1)),
        // Another check may fail first, since a broken engine may do anything.
        Err(Failure::Run(_)) | Ok(_) => None,
    })
}

#[test]
fn traces_give_broken_engines_away() {
    let only = std::env::var("KEDGE_VARIANT").ok();
    let mut missed = Vec::new();
    for (variant, body) in CAUGHT {
        if only.as_ref().is_some_and(|only| *only != format!("{variant:?}")) {
            continue;
        }
        assert!(!matches!(traced(|| body(0)), Err(Failure::Trace(_))), "{variant:?}: the engine as it is");
        broken::set(Some(*variant));
        let found = caught(*body);
        broken::set(None);
        let Some((violation, runs)) = found else {
            missed.push(*variant);
            continue;
        };
        println!("{variant:?}: run {runs} is against {:?}, event {}", violation.rule, violation.at);
        if counterpart(*variant) != Counterpart::Without(violation.rule) {
            println!("{violation}");
            missed.push(*variant);
        }
    }
    assert!(missed.is_empty(), "not given away by the rule of its counterpart: {missed:?}");
}
