//! `crash-programs --order`: how many crash states each order of the search tries up to the first
//! failure, which is included. Each search first judges the complete state, in which a crash lost
//! nothing. That state tests the check itself and is not counted.
//!
//! Only rows that fail are compared. One checker runs at a time, so that the count does not depend
//! on the machine. Both orders search the same recording.

use super::Suite;
use super::rows::{Expect, Row};
use anyhow::{Context, Result};

pub const HEAD: &str = "| program | model | turns | updates | state |\n|---|---|---|---|---|";
/// The orders of the search, the older one first.
const ORDERS: [&str; 2] = ["turns", "updates"];

/// Number of states in a report that this comparison does not count.
const COMPLETE: u64 = 1;
/// The smallest number of states that an order can need.
const LEAST: u64 = 1;

#[derive(Default)]
pub struct Tally {
    /// Crash states to the first failure in each order.
    rows: Vec<[u64; 2]>,
}

impl Tally {
    pub fn print(&self) {
        if self.rows.is_empty() {
            return;
        }
        let median = |mut numbers: Vec<f64>| {
            numbers.sort_by(f64::total_cmp);
            let middle = numbers.len() / 2;
            if numbers.len() % 2 == 1 {
                numbers[middle]
            } else {
                f64::midpoint(numbers[middle - 1], numbers[middle])
            }
        };
        let print = |what: &str, rows: &[&[u64; 2]]| {
            if rows.is_empty() {
                return;
            }
            let of = |order: usize| median(rows.iter().map(|row| row[order] as f64).collect());
            let share = median(rows.iter().map(|row| row[1] as f64 / row[0] as f64).collect());
            let (old, new) = (of(0), of(1));
            println!(
                "{} {what}: median {old} in turns, {new} by updates; median share {share:.2}",
                rows.len()
            );
        };
        println!();
        let all: Vec<&[u64; 2]> = self.rows.iter().collect();
        let slow: Vec<&[u64; 2]> = self.rows.iter().filter(|row| row[0] > LEAST).collect();
        print("rows", &all);
        print("rows in which the older order does not fail with the first crash state", &slow);
        println!("later than before in {} rows", self.rows.iter().filter(|row| row[1] > row[0]).count());
    }
}

impl Suite {
    pub fn compare_orders(&mut self, row: &Row, tally: &mut Tally) -> Result<()> {
        let is_compared = |expect: &Expect| !matches!(expect, Expect::Pass);
        if !row.expect.iter().any(|(_, expect)| is_compared(expect)) || !self.is_available(row) {
            return Ok(());
        }
        self.prepare_and_record(row)?;
        let check = row.check.replace("$PROGRAMS", &self.dir.to_string_lossy());
        for (model, _) in row.expect.iter().filter(|(_, expect)| is_compared(expect)) {
            let (mut counts, mut state) = ([0; 2], String::new());
            for (count, order) in counts.iter_mut().zip(ORDERS) {
                let explored = self
                    .command(&self.kedge)
                    .args(["crash", "explore", "--quiet", "--timeout", "2m", "--explain", "0", "--jobs", "1"])
                    .args(["--max-failures", "1", "--budget", "10000", "--order", order])
                    .args(["--model", model, "--check", &check])
                    .arg(self.temp.join("run.kcr"))
                    .output()?;
                let report = super::text(&explored);
                let found = report.split_once(" distinct").and_then(|(before, _)| before.rsplit(' ').next());
                let found = found.filter(|_| matches!(explored.status.code(), Some(1 | 4)));
                *count = found
                    .and_then(|found| found.parse::<u64>().ok()?.checked_sub(COMPLETE))
                    .with_context(|| format!("{order} under {model} finds no failure: {report}"))?;
                let name = report.split_once("failing state is ").map_or("", |(_, rest)| rest);
                state = name.split_whitespace().next().unwrap_or_default().to_owned();
            }
            println!("| {} | {model} | {} | {} | {state} |", row.name, counts[0], counts[1]);
            tally.rows.push(counts);
        }
        Ok(())
    }
}
