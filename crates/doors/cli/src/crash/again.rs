//! Records the recoveries of crash states, for `explore --again` and for the replay of a state in a
//! recovery.

use super::judge::{Built, Judge};
use super::usage;
use anyhow::Result;
use kedge_crash::again::Recorder;
use kedge_crash::{Call, Case, Checker, Event, Recipe, Trace, Verdict};
use kedge_crash_record::record_recovery;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs the check on a crash state and records the calls that it makes, on a mount of its own.
pub struct Recoveries<'a> {
    checker: &'a Built,
    timeout: Duration,
    stop: &'a AtomicBool,
}

impl<'a> Recoveries<'a> {
    /// Fails if the checker runs no command: such a checker only reads, so there is no recovery to
    /// crash.
    pub fn new(checker: &'a Built, judge: &Judge, stop: &'a AtomicBool) -> Result<Recoveries<'a>> {
        if !judge.runs_a_command() {
            return Err(usage(&format!("{} recovers nothing that could be crashed again", judge.name())));
        }
        Ok(Recoveries { checker, timeout: judge.timeout, stop })
    }
}

impl Recorder<Trace> for Recoveries<'_> {
    fn record(&self, case: &Case<'_>) -> Result<Trace, String> {
        // Without a file to judge in this state, the shipped checker runs no command.
        if let Built::Shipped(checker) = self.checker
            && checker.command_in(case, Path::new(""), Path::new("")).is_none()
        {
            return Ok(of_nothing(i32::from(self.checker.check(case) != Verdict::Good)));
        }
        let make = |dir: &Path, root: &Path| match self.checker {
            Built::Command(checker) => checker.command_in(case, dir, root, &[]),
            Built::Infer(checker) => checker.runner().command_in(case, dir, root, &[]),
            Built::Shipped(checker) => checker
                .command_in(case, dir, root)
                .unwrap_or_else(|| Err(std::io::Error::other("there is nothing to judge"))),
            Built::Files(_) => Err(std::io::Error::other("it runs no command")),
        };
        record_recovery(case.state, make, self.timeout, self.stop).map_err(|e| e.to_string())
    }
}

/// The recording of a check that makes no calls.
fn of_nothing(code: i32) -> Trace {
    let event = |call| Event { time: 0, pid: 0, tid: 0, errno: 0, call, stack: Vec::new() };
    Trace { events: vec![event(Call::Baseline), event(Call::End { code })] }
}

/// The name of a state in a recovery: the names of the crash states that led to it and then its
/// own, separated by `/`.
#[derive(Clone, Debug)]
pub struct StateName {
    pub before: Vec<Recipe>,
    pub last: Recipe,
}

impl FromStr for StateName {
    type Err = <Recipe as FromStr>::Err;

    fn from_str(name: &str) -> Result<StateName, Self::Err> {
        let (before, last) = match name.rsplit_once('/') {
            Some((before, last)) => {
                (before.split('/').map(Recipe::from_str).collect::<Result<_, _>>()?, last)
            }
            None => (Vec::new(), name),
        };
        Ok(StateName { before, last: last.parse()? })
    }
}
