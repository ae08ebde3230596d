//! Runs a scenario under many seeds.

use crate::run::Run;
use crate::scenarios::Scenario;
use crate::strategy::Plan;

/// The sums of a scenario's runs.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub runs: u64,
    pub steps: u64,
    pub switches: u64,
    /// The first run that failed.
    pub found: Option<Found>,
}

/// A run that failed.
#[derive(Clone, Debug)]
pub struct Found {
    pub seed: u64,
    pub plan: Plan,
    pub why: String,
    /// Number of runs up to and including this one.
    pub after: u64,
    pub run: Run,
}

/// Returns the plan of a seed: every third run is random, one in twelve stalls a thread, the others
/// have priorities with two to five changes. `length` is the number of choices of an earlier run.
pub fn plan_of(seed: u64, length: u64) -> Plan {
    match seed % 6 {
        _ if seed % 12 == 11 => Plan::Stall { depth: 2, length },
        0 | 3 => Plan::Random,
        1 => Plan::Pct { depth: 2, length },
        2 => Plan::Pct { depth: 3, length },
        4 => Plan::Pct { depth: 4, length },
        _ => Plan::Pct { depth: 5, length },
    }
}

/// Runs the seeds one after another, up to the first that fails.
pub fn campaign(scenario: &Scenario, seeds: impl Iterator<Item = u64>) -> Tally {
    let mut tally = Tally::default();
    let mut length = 5000;
    for seed in seeds {
        let plan = plan_of(seed, length);
        let run = (scenario.play)(seed, &plan);
        length = run.account.choices;
        tally.runs += 1;
        tally.steps += run.account.steps;
        tally.switches += run.account.switches;
        if let Err(why) = &run.result {
            let why = why.clone();
            tally.found = Some(Found { seed, plan, why, after: tally.runs, run });
            break;
        }
    }
    tally
}
