//! In simulated runs the engine takes only steps that the model of its protocol allows.
//!
//! `KEDGE_RUNS` and `KEDGE_SEED` choose the runs; `KEDGE_RUNS=10000` is the full number.

use kedge_protocol::runs::{Failure, history, traced, writers};
use kedge_protocol::trace::Counts;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn all(what: &str, usual: u64, run: fn(u64) -> Result<(), String>) -> Counts {
    let first = number("KEDGE_SEED").unwrap_or(0);
    let runs = number("KEDGE_RUNS").unwrap_or(usual);
    let mut counts = Counts::default();
    for seed in first..first + runs {
        match traced(|| run(seed)) {
            Ok(of_run) => counts += of_run,
            Err(Failure::Trace(violation)) => panic!("{what}, KEDGE_SEED={seed}: {violation}"),
            Err(Failure::Run(error)) => panic!("{what}, KEDGE_SEED={seed}: {error}"),
        }
    }
    println!("{what}: {runs} runs, {counts:?}");
    counts
}

#[test]
fn histories_of_one_thread_follow_the_protocol() {
    let counts = all("histories", 300, history);
    assert!(counts.records > 0 && counts.acks > 0 && counts.checkpoints > 0, "{counts:?}");
}

#[test]
fn threads_beside_checkpoints_follow_the_protocol() {
    let counts = all("writers", 20, writers);
    assert!(counts.records > 0 && counts.checkpoints > 0, "{counts:?}");
}
