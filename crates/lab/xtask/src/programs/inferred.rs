//! `crash-programs --infer`: compares the verdicts of `explore --infer`, which needs no check, with
//! those of the written checks.
//!
//! `crash-programs` runs the written checks, and the rows contain their verdicts. If a row's check
//! judges only whether the store is intact, whatever it lost, the row is compared with
//! `--infer-older`.

use super::Suite;
use super::rows::{Expect, Row};
use anyhow::Result;
use std::time::Instant;

pub const HEAD: &str =
    "| program | model | written check | inferred | states | s |\n|---|---|---|---|---|---|";

#[derive(Default)]
pub struct Tally {
    agreed: u32,
    /// Rows in which the written check finds a fault and `--infer` does not.
    missed: Vec<String>,
    /// Rows of correct programs in which `--infer` finds a fault.
    false_alarms: Vec<String>,
    /// Rows of correct programs that fail only before the first promise, which the written checks
    /// do not judge.
    early: Vec<String>,
    /// Number of rows of correct programs.
    correct: u32,
    unjudged: Vec<String>,
}

impl Tally {
    pub fn print(&self) {
        let others = [&self.missed, &self.false_alarms, &self.early, &self.unjudged];
        let all = self.agreed as usize + others.iter().map(|rows| rows.len()).sum::<usize>();
        println!("\n{} of {all} rows have the same verdict", self.agreed);
        println!(
            "{} of {} correct ones accused, and {} before the first promise only",
            self.false_alarms.len(),
            self.correct,
            self.early.len()
        );
        for (what, rows) in
            [("false alarm", &self.false_alarms), ("missed", &self.missed), ("no verdict", &self.unjudged)]
        {
            rows.iter().for_each(|row| println!("{what}: {row}"));
        }
    }
}

impl Suite {
    #[allow(clippy::disallowed_methods)]
    pub fn infer(&mut self, row: &Row, tally: &mut Tally) -> Result<()> {
        if row.show.is_empty() || !self.is_available(row) {
            return Ok(());
        }
        self.prepare_and_record(row)?;
        let show = row.show.replace("$PROGRAMS", &self.dir.to_string_lossy());
        for (model, expect) in row.expect {
            let start = Instant::now();
            let explore = |failures: &str| {
                let mut command = self.command(&self.kedge);
                command
                    .args(["crash", "explore", "--quiet", "--timeout", "2m", "--explain", "0"])
                    .args(["--max-failures", failures, "--budget", &row.states.to_string()])
                    .args(["--model", model, "--infer", &show])
                    .arg(self.temp.join("run.kcr"));
                if row.name.ends_with(": sound") {
                    command.arg("--infer-older");
                }
                command.output()
            };
            let mut explored = explore("1")?;
            // Exit code 4: the first failure lies before the first promise. A second search looks
            // for later failures.
            if explored.status.code() == Some(4) {
                explored = explore(&row.states.to_string())?;
            }
            let report = super::text(&explored);
            let states = report.split_once(" distinct").and_then(|(before, _)| before.rsplit(' ').next());
            let is_correct = matches!(expect, Expect::Pass);
            tally.correct += u32::from(is_correct);
            let name = format!("{}, {model}", row.name);
            let told = report.lines().find_map(|line| line.trim_start().strip_prefix("checker: "));
            let told = told.unwrap_or(report.lines().next().unwrap_or_default());
            let found = match explored.status.code() {
                Some(0) => "passes",
                Some(1) => "fails",
                Some(4) => "fails early",
                _ => "no verdict",
            };
            match (is_correct, found) {
                (true, "passes") | (false, "fails" | "fails early") => tally.agreed += 1,
                (true, "fails early") => tally.early.push(format!("{name}: {told}")),
                (true, "fails") => tally.false_alarms.push(format!("{name}: {told}")),
                (false, "passes") => tally.missed.push(name),
                _ => tally.unjudged.push(format!("{name}: {told}")),
            }
            let written = if is_correct { "passes" } else { "fails" };
            let (states, seconds) = (states.unwrap_or("none"), start.elapsed().as_secs_f64());
            println!("| {} | {model} | {written} | {found} | {states} | {seconds:.1} |", row.name);
        }
        Ok(())
    }
}
