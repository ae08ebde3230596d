//! Runs steps, prints their times, and sums up.

use anyhow::Result;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Steps {
    done: Vec<(&'static str, Duration, Outcome)>,
    closing: String,
}

enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

/// The time that has passed for the user. This is the only clock of this crate; no file system uses
/// it.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

impl Steps {
    pub fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        println!("==== {name}");
        let start = now();
        let outcome = match step() {
            Ok(()) => Outcome::Passed,
            Err(e) => {
                eprintln!("{name}: {e:#}");
                Outcome::Failed(format!("{e:#}"))
            }
        };
        let took = start.elapsed();
        println!("---- {name}: {:.1} s", took.as_secs_f64());
        self.done.push((name, took, outcome));
    }

    /// Runs the step if `cargo <probe>` succeeds; otherwise reports that it was skipped.
    pub fn run_if_installed(
        &mut self,
        name: &'static str,
        probe: &[&str],
        step: impl FnOnce() -> Result<()>,
    ) {
        let missing =
            (!crate::tools::cargo_quiet(probe)).then(|| format!("cargo {} is not installed", probe[0]));
        self.run_unless(name, missing, step);
    }

    /// Runs the step, or reports it as skipped if a reason is given.
    pub fn run_unless(&mut self, name: &'static str, why: Option<String>, step: impl FnOnce() -> Result<()>) {
        let Some(why) = why else { return self.run(name, step) };
        println!("==== {name}: left out, {why}");
        self.done.push((name, Duration::ZERO, Outcome::Skipped(why)));
    }

    /// Sets the last lines of the summary.
    pub fn close_with(&mut self, text: String) {
        self.closing = text;
    }

    pub fn summary(self) -> ExitCode {
        println!("==== summary");
        let mut failed = false;
        for (name, took, outcome) in &self.done {
            let word = match outcome {
                Outcome::Passed => "ok".to_owned(),
                Outcome::Skipped(why) => format!("left out: {why}"),
                Outcome::Failed(why) => {
                    failed = true;
                    format!("FAILED: {}", why.lines().next().unwrap_or_default())
                }
            };
            println!("{:>7.1} s  {name}: {word}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        println!("{:>7.1} s  in all", total.as_secs_f64());
        print!("{}", self.closing);
        if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
