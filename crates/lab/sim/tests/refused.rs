//! Every reservation of space is refused once. The operation then fails with ENOSPC and changes
//! nothing, or succeeds without the reservation. All other operations behave as if it had never
//! been tried, even after a crash.
//!
//! There is a single test, since the counter is global. `KEDGE_SEED` repeats one workload.

mod common;

use common::seeds;
use kedge_base::broken::refusal;
use kedge_base::{HANG, ManualClock};
use kedge_device::sim::{Choice, SimDevice};
use kedge_sim::crash::{History, check_state};
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::model::{Effect, Model};
use kedge_sim::ops::{Executor, Op, Outcome, errno};
use kedge_sim::rig::{self, Setup, within};
use kedge_sim::view::compare_with_handles;
use std::sync::Arc;

const WORKLOADS: u64 = 24;
const OPERATIONS: usize = 40;

#[derive(Default, Debug)]
struct Tally {
    reservations: u64,
    refused: u64,
    done_without: u64,
}

/// Returns random operations that the model alone chooses.
fn workload(seed: u64) -> Vec<Op> {
    let profile = Profile {
        remounts: 0,
        offset_max: 64 << 10,
        write_max: 20 << 10,
        persists: 150,
        shifts: 100,
        extremes: 0,
        ..Profile::default()
    };
    let (mut generator, mut model, mut ops) = (Generator::new(seed, profile), Model::new(), Vec::new());
    while ops.len() < OPERATIONS {
        let op = generator.next(&model);
        if model.apply(&op).is_some() {
            ops.push(op);
        }
    }
    ops
}

/// Runs the workload and refuses the reservation with the number `at`. Returns the number of
/// reservations, and whether the refusal made an operation fail.
fn run(setup: &Setup, ops: &[Op], at: Option<u64>) -> Result<(u64, bool), String> {
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    device.stop_recording();
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup)?;
    let (mut exec, mut model) = (Executor::new(fs), Model::new());
    let mut history = History::new(model.clone(), setup.promise);
    let mut failed = false;
    refusal::start(at);
    for op in ops {
        let before = model.clone();
        let Some(expected) = model.apply(op) else { continue };
        let asked = refusal::asked();
        let outcome = exec.apply(op);
        let hit = at.is_some_and(|at| (asked..refusal::asked()).contains(&at));
        if hit && outcome == Outcome::Failed(errno::ENOSPC) {
            failed = true;
            model = before;
            history.push(op.clone(), outcome, Effect::default(), model.clone());
            compare_with_handles(&exec, &model).map_err(|e| format!("{op:?} is refused: {e}"))?;
            model.forget_atimes();
            continue;
        }
        if !expected.allows(&outcome) {
            return Err(format!("{op:?} answers {outcome:?}, expected {:?}", expected.outcome));
        }
        history.push(op.clone(), outcome, expected.effect, model.clone());
    }
    let asked = refusal::asked();
    refusal::start(None);
    let done = history.len();
    compare_with_handles(&exec, &model).map_err(|e| format!("at the end: {e}"))?;
    // This power failure loses everything unflushed. What was made durable must survive.
    let medium = device.crash_as(Choice::None);
    let _ = exec.fs.shutdown(false);
    rig::fsck(medium.fork())?;
    let fs = rig::open(&Arc::new(SimDevice::new(medium)), &Arc::new(ManualClock::default()), setup)?;
    check_state(&fs, &history, done, &history.persists_before(done)).map_err(|v| v.to_string())?;
    let _ = fs.shutdown(false);
    Ok((asked, failed))
}

fn refuse_each(seed: u64) -> Result<Tally, String> {
    let (setup, ops) = (Setup { image: 32 << 20, log: 2 << 20, ..Setup::default() }, workload(seed));
    let (count, _) = run(&setup, &ops, None)?;
    let mut tally = Tally { reservations: count, ..Tally::default() };
    for at in 0..count {
        let (_, failed) =
            run(&setup, &ops, Some(at)).map_err(|e| format!("reservation {at} of {count}: {e}"))?;
        if failed {
            tally.refused += 1;
        } else {
            tally.done_without += 1;
        }
    }
    Ok(tally)
}

#[test]
fn each_refused_reservation_fails_its_operation_and_nothing_else() {
    let mut total = Tally::default();
    for seed in seeds(WORKLOADS) {
        let what = format!("KEDGE_SEED={seed}");
        match within(HANG, &what, move || refuse_each(seed)) {
            Ok(tally) => {
                total.reservations += tally.reservations;
                total.refused += tally.refused;
                total.done_without += tally.done_without;
            }
            Err(e) => panic!("{what}: {e}"),
        }
    }
    println!("{total:?}");
    assert!(total.refused > total.reservations / 2, "{total:?}");
}
