//! Removes the switches that a failure does not need.

use crate::run::Run;
use crate::scenarios::Scenario;
use crate::strategy::{Choice, Plan};

/// Removes choices from the schedule of a run that failed, as long as a run with the remaining
/// choices fails, too. Makes at most `tries` runs. Returns the last one that failed and its
/// schedule.
pub fn shrink(scenario: &Scenario, seed: u64, failed: Run, tries: usize) -> (Run, Vec<(u64, Choice)>) {
    let mut schedule = failed.account.schedule.clone();
    let mut best = failed;
    let mut left = tries;
    let mut part = schedule.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < schedule.len() && left > 0 {
            left -= 1;
            let mut less = schedule.clone();
            less.drain(at..(at + part).min(less.len()));
            let run = (scenario.play)(seed, &Plan::Replay(less.clone()));
            if run.result.is_err() {
                (schedule, best) = (less, run);
            } else {
                at += part;
            }
        }
        part = if part == 1 || left == 0 { 0 } else { part.div_ceil(2) };
    }
    (best, schedule)
}
