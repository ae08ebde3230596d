//! On simulated threads, in orders that seeds choose, the engine takes only steps that the model of
//! its protocol allows.
//!
//! `KEDGE_RUNS` chooses the number of schedules of each scenario, `KEDGE_SEED` the first.

use kedge_protocol::runs::{Failure, traced};
use kedge_protocol::trace::Counts;
use kedge_sched::campaign::plan_of;
use kedge_sched::scenarios;

/// Schedules of each scenario.
const USUAL: u64 = 20;
/// Approximate number of choices in a schedule.
const LENGTH: u64 = 5000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn schedules_follow_the_protocol() {
    let first = number("KEDGE_SEED").unwrap_or(0);
    let runs = number("KEDGE_RUNS").unwrap_or(USUAL);
    for scenario in scenarios::ALL {
        let mut counts = Counts::default();
        for seed in first..first + runs {
            let name = scenario.name;
            match traced(|| (scenario.play)(seed, &plan_of(seed, LENGTH)).result) {
                Ok(of_run) => counts += of_run,
                Err(Failure::Trace(violation)) => panic!("{name}, KEDGE_SEED={seed}: {violation}"),
                Err(Failure::Run(error)) => panic!("{name}, KEDGE_SEED={seed}: {error}"),
            }
        }
        println!("{}: {runs} schedules, {counts:?}", scenario.name);
        assert!(counts.records > 0, "{}: nothing was traced", scenario.name);
    }
}
