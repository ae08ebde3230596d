//! Shared by the test programs: seeds, and the report of a failing list of operations.
#![allow(dead_code)]

use kedge_base::HANG;
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::ops::{Op, print_ops};
use kedge_sim::rig::{Rig, Setup, run_ops, seed_from_env, within};
use kedge_sim::shrink::shrink;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Factor by which a long run (`cargo xtask test --long`) exceeds an ordinary one.
const LONG: u64 = 10;

/// Returns the seeds to run: `count` fixed ones (ten times as many with `KEDGE_LONG=1`), or only
/// `KEDGE_SEED`, or `KEDGE_RUNS` seeds from there on.
pub fn seeds(count: u64) -> Vec<u64> {
    let count = if std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1") { LONG * count } else { count };
    let runs = std::env::var("KEDGE_RUNS").ok().map(|text| text.parse().expect("KEDGE_RUNS is a number"));
    match (seed_from_env(), runs) {
        (None, runs) => (1..=runs.unwrap_or(count)).collect(),
        (Some(seed), runs) => (seed..seed + runs.unwrap_or(1u64)).collect(),
    }
}

/// Runs random operations that depend on the model's state. The error contains the operations so
/// far.
pub fn run_random(
    setup: &Setup,
    profile: Profile,
    seed: u64,
    count: usize,
) -> Result<usize, (String, Vec<Op>)> {
    let mut ops: Vec<Op> = Vec::new();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut generator = Generator::new(seed, profile);
        let mut rig = Rig::new(setup.clone())?;
        let mut done = 0;
        while ops.len() < count {
            let op = generator.next(&rig.model);
            ops.push(op.clone());
            done += usize::from(rig.step(&op)?.is_some_and(|outcome| outcome.is_ok()));
        }
        rig.step(&Op::Remount)?;
        rig.empty()?;
        rig.step(&Op::Remount)?;
        Ok(done)
    }));
    match result {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err((e, ops)),
        Err(panic) => Err((format!("panic: {}", kedge_sim::rig::panic_text(&*panic)), ops)),
    }
}

/// Like [`run_random`]; a failure is shortened, printed with its seed, and panics.
pub fn check_random(setup: &Setup, profile: Profile, seed: u64, count: usize) -> usize {
    let (inner, what) = (setup.clone(), format!("seed {seed}"));
    let result = within(HANG, &what, move || run_random(&inner, profile, seed, count));
    let (error, ops) = match result {
        Ok(done) => return done,
        Err(failure) => failure,
    };
    let inner = setup.clone();
    let total = ops.len();
    let short = within(4 * HANG, "shrinking", move || {
        if run_ops(&inner, &ops).is_ok() {
            return ops;
        }
        shrink(ops, 3000, |ops| run_ops(&inner, ops).is_err())
    });
    let again =
        run_ops(setup, &short).err().unwrap_or_else(|| "the operations alone do not fail again".to_owned());
    panic!(
        "KEDGE_SEED={seed}: {error}\nshrunk from {total} to {} operations, {setup:?}:\n{}=> {again}",
        short.len(),
        print_ops(&short)
    );
}
