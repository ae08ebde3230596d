//! The report of an experiment, as text, as Markdown and as JSON.

use crate::bars::{Bar, change};
use crate::contest::{Better, Goal, Outcome, Published};
use crate::place::Machine;
use crate::sample::number;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write;

/// The report remarks on rounds that differ from their median by more than this fraction.
pub(crate) const SPREAD_NOTED: f64 = 0.2;
/// The report remarks on durable writes whose times before and after differ by more than this
/// factor.
const DISK_NOTED: f64 = 3.0;

#[derive(Serialize)]
pub struct Report {
    pub experiment: &'static str,
    pub version: &'static str,
    pub machine: Machine,
    pub rounds: usize,
    pub sections: Vec<Section>,
    /// The goals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bars: Vec<Bar>,
    /// What was not measured, and caveats.
    pub notes: Vec<String>,
    /// Failures that happened outside of rounds.
    pub failures: Vec<String>,
}

#[derive(Serialize)]
pub struct Section {
    pub title: Cow<'static, str>,
    /// The commands that made and mounted the contestants, exactly as they ran.
    pub setup: Vec<String>,
    pub outcomes: Vec<Outcome>,
    pub reading: Reading,
}

/// How tables compare the first two contestants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading {
    /// Ratio of the first to the second.
    Ratio,
    /// Change from the first to the second in percent, beside the published change.
    Change,
}

/// The cells of a table by row. The first row is the head.
type Grid = Vec<Vec<String>>;

impl Report {
    /// Whether a contestant failed.
    pub fn failed(&self) -> bool {
        !self.failures.is_empty() || self.outcomes().any(|o| o.sides.iter().any(|s| s.failed.is_some()))
    }

    /// The bars that `--check` reports as missed, one in each line.
    pub fn missed(&self) -> Vec<String> {
        self.bars.iter().filter(|b| !b.met).map(Bar::complaint).collect()
    }

    fn bar_grid(&self) -> Grid {
        let head = ["bar", "wanted", "reached", "verdict"].map(str::to_owned).to_vec();
        [head].into_iter().chain(self.bars.iter().map(Bar::row)).collect()
    }

    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    pub fn text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.title(), self.machine_line());
        for section in &self.sections {
            writeln!(out, "\n{}", section.title).expect("a String takes all");
            for line in section.commands() {
                writeln!(out, "  {line}").expect("a String takes all");
            }
            out.push('\n');
            out.push_str(&aligned(&section.grid()));
        }
        if !self.bars.is_empty() {
            writeln!(out, "\nBars\n\n{}", aligned(&self.bar_grid()).trim_end()).expect("a String takes all");
        }
        out.push('\n');
        for remark in self.remarks() {
            writeln!(out, "{remark}").expect("a String takes all");
        }
        out
    }

    pub fn markdown(&self) -> String {
        let mut out = format!("{}: {}.\n", self.title(), self.machine_line());
        for section in &self.sections {
            writeln!(out, "\n### {}\n\n{}", section.title, piped(&section.grid()))
                .expect("a String takes all");
            writeln!(out, "```\n{}\n```", section.commands().join("\n")).expect("a String takes all");
        }
        if !self.bars.is_empty() {
            writeln!(out, "\n### Bars\n\n{}", piped(&self.bar_grid()).trim_end())
                .expect("a String takes all");
        }
        let remarks = self.remarks();
        if !remarks.is_empty() {
            writeln!(out, "\n### Remarks\n").expect("a String takes all");
        }
        for remark in remarks {
            writeln!(out, "- {remark}").expect("a String takes all");
        }
        out
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.sections.iter().flat_map(|s| &s.outcomes)
    }

    fn title(&self) -> String {
        format!("KedgeFS {}, {}, median of {} alternating rounds", self.version, self.experiment, self.rounds)
    }

    pub(crate) fn machine_line(&self) -> String {
        let m = &self.machine;
        let writes: Vec<String> = m.durable_write.iter().map(|us| number(*us)).collect();
        format!(
            "{} cores, {} GiB of memory, Linux {}, images on {}, load {:.1} before, a durable write of 4 KiB takes {} µs",
            m.cores,
            (m.memory_mib + 512) / 1024,
            m.kernel,
            m.host,
            m.load,
            writes.join(" (afterwards ") + if writes.len() > 1 { ")" } else { "" }
        )
    }

    /// Returns one line for each reason, since a file system that could not be made fails in all
    /// contests of a section.
    fn failed_sides(&self) -> Vec<String> {
        let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
        for outcome in self.outcomes() {
            for side in &outcome.sides {
                let Some(why) = side.failed.as_deref() else { continue };
                match reasons.iter_mut().find(|r| (r.0, r.1) == (side.name, why)) {
                    Some(known) => known.2.push(&outcome.title),
                    None => reasons.push((side.name, why, vec![&outcome.title])),
                }
            }
        }
        reasons
            .iter()
            .map(|(name, why, titles)| format!("FAILED: {name} in {}: {why}", titles.join("; ")))
            .collect()
    }

    /// Remarks that the tables do not show.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.failures.iter().map(|f| format!("FAILED: {f}")).collect();
        remarks.extend(self.failed_sides());
        remarks.extend(self.outcomes().filter_map(below));
        remarks.extend(self.notes.iter().cloned());
        if self.machine.load > self.machine.cores as f64 / 2.0 {
            remarks.push(format!(
                "The machine was busy before (load {:.1}): repeat when it is idle.",
                self.machine.load
            ));
        }
        let writes = &self.machine.durable_write;
        let (least, most) =
            writes.iter().fold((f64::INFINITY, 0.0f64), |(l, m), us| (l.min(*us), m.max(*us)));
        if most > least * DISK_NOTED {
            remarks.push(format!(
                "The disk had other work: a durable write took {} to {} µs. Latencies mean little.",
                number(least),
                number(most)
            ));
        }
        let noisy: Vec<String> = self.outcomes().filter_map(noise).collect();
        if !noisy.is_empty() {
            remarks.push(format!("Rounds differ much: {}.", noisy.join("; ")));
        }
        if cfg!(debug_assertions) {
            remarks.push("This is a debug build: its figures mean nothing.".into());
        }
        remarks
    }
}

/// Describes a missed goal.
fn below(outcome: &Outcome) -> Option<String> {
    if outcome.meets_goal()? {
        return None;
    }
    let (first, title) = (outcome.sides.first()?.name, &outcome.title);
    let reached = number(outcome.reached()?);
    Some(match outcome.goal? {
        Goal::Ratio(want) => {
            let second = outcome.sides.get(1)?.name;
            format!(
                "Below the expectation: {title}: {first} reaches {reached} times {second}'s figure, expected is at least {want}."
            )
        }
        Goal::Value(want) => {
            let unit = outcome.metrics.first()?.unit;
            format!(
                "Below the expectation: {title}: {first} reaches {reached} {unit}, expected are at least {}.",
                number(want)
            )
        }
    })
}

/// Describes a rate with a large spread. The maximum of many latencies always has a large spread,
/// so it is left out.
fn noise(outcome: &Outcome) -> Option<String> {
    let noisy = |side: &crate::contest::Side| {
        let (sample, metric) = (side.samples.first()?, outcome.metrics.first()?);
        let far = metric.better == Better::Higher && sample.spread() > SPREAD_NOTED;
        far.then(|| format!("{} ±{:.0} %", side.name, sample.spread() * 100.0))
    };
    let sides: Vec<String> = outcome.sides.iter().filter_map(noisy).collect();
    (!sides.is_empty()).then(|| format!("{} ({})", outcome.title, sides.join(", ")))
}

impl Section {
    pub(crate) fn commands(&self) -> Vec<String> {
        let rounds = self.outcomes.iter().flat_map(|o| &o.sides).map(|s| s.command.clone());
        self.setup.iter().cloned().chain(rounds.filter(|c| !c.is_empty())).collect()
    }

    fn grid(&self) -> Grid {
        let widest = self.outcomes.iter().max_by_key(|o| o.sides.len());
        let names: Vec<&str> = widest.iter().flat_map(|o| &o.sides).map(|s| s.name).collect();
        let mut head = vec![String::new(), "unit".to_owned()];
        head.extend(names.iter().map(|n| n.to_string()));
        let mut published = 0;
        match self.reading {
            Reading::Ratio => {
                if let [a, b] = names[..] {
                    head.push(format!("{a} / {b}"));
                }
                head.push("expected".into());
            }
            Reading::Change => {
                head.push("change".into());
                let figures = self.outcomes.iter().flat_map(|o| &o.published).map(|p| p.figures.len());
                published = figures.max().unwrap_or(0).min(names.len());
                head.extend(names.iter().take(published).map(|n| format!("published: {n}")));
                head.extend((published > 1).then(|| "published change".to_owned()));
            }
        }
        let mut grid = vec![head];
        for outcome in &self.outcomes {
            grid.extend((0..outcome.metrics.len()).filter_map(|m| match self.reading {
                Reading::Ratio => Some(row(outcome, m, &names)),
                Reading::Change if is_silent(outcome, m) => None,
                Reading::Change => Some(change_row(outcome, m, &names, published)),
            }));
        }
        grid
    }
}

/// Whether a metric that only explains others has no value but zero.
fn is_silent(outcome: &Outcome, metric: usize) -> bool {
    let zero = |side: &crate::contest::Side| side.median(metric).is_none_or(|v| v == 0.0 || v.is_nan());
    outcome.metrics.get(metric).is_some_and(|m| m.better == Better::Neither) && outcome.sides.iter().all(zero)
}

/// The first cells of a row, for both kinds of tables.
fn cells(outcome: &Outcome, metric: usize, names: &[&str]) -> Vec<String> {
    let Some(m) = outcome.metrics.get(metric) else { return Vec::new() };
    let unit = match (m.better, &*m.name) {
        (Better::Lower, "") => format!("{}, lower is better", m.unit),
        (_, "") => m.unit.to_owned(),
        (_, name) => format!("{name}, {}", m.unit).trim_end_matches(", ").to_owned(),
    };
    let mut row = vec![outcome.title.clone(), unit];
    for name in names {
        let side = outcome.sides.iter().find(|s| s.name == *name);
        row.push(match side {
            None => "left out".into(),
            Some(side) if side.failed.is_some() => "FAILED".into(),
            Some(side) => match side.samples.get(metric) {
                // With a median of zero a spread in percent is meaningless.
                Some(s) if s.median() == 0.0 && s.spread() > 0.0 => {
                    format!("0.00, once {}", number(s.rounds().iter().copied().fold(0.0, f64::max)))
                }
                Some(s) if s.median().is_finite() => {
                    format!("{} ±{:.0} %", number(s.median()), s.spread() * 100.0)
                }
                _ => "-".into(),
            },
        });
    }
    row
}

fn percent(value: f64) -> String {
    if value.is_finite() { format!("{value:+.1} %") } else { "-".into() }
}

fn change_row(outcome: &Outcome, metric: usize, names: &[&str], published: usize) -> Vec<String> {
    let mut row = cells(outcome, metric, names);
    let Some(name) = outcome.metrics.get(metric).map(|m| &m.name) else { return row };
    row.push(percent(change(outcome.median(0, name), outcome.median(1, name))));
    let figures =
        outcome.published.iter().find(|p| p.metric == name).map_or(&[][..], |p: &Published| p.figures);
    let figure = |i: usize| figures.get(i).copied().unwrap_or(f64::NAN);
    row.extend((0..published).map(|i| number(figure(i))));
    row.extend((published > 1).then(|| percent(change(figure(0), figure(1)))));
    row
}

fn row(outcome: &Outcome, metric: usize, names: &[&str]) -> Vec<String> {
    let mut row = cells(outcome, metric, names);
    if names.len() == 2 {
        row.push(outcome.ratio(metric).map_or("-".into(), number));
    }
    let goal = outcome.goal.filter(|_| metric == 0).map(|goal| {
        let word = match outcome.meets_goal() {
            Some(true) => "met",
            Some(false) => "BELOW",
            None => "not measured",
        };
        match goal {
            Goal::Ratio(want) => format!("≥ {want}: {word}"),
            Goal::Value(want) => format!("≥ {}: {word}", number(want)),
        }
    });
    row.push(goal.unwrap_or_default());
    row
}

fn widths(grid: &Grid) -> Vec<usize> {
    let columns = grid.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| grid.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    (0..columns).map(width).collect()
}

fn padded(row: &[String], widths: &[usize]) -> Vec<String> {
    let pad = |(i, (cell, width)): (usize, (&String, &usize))| {
        let space = " ".repeat(width.saturating_sub(cell.chars().count()));
        // Words are aligned to the left, figures to the right.
        if i < 2 || i + 1 == widths.len() { format!("{cell}{space}") } else { format!("{space}{cell}") }
    };
    row.iter().zip(widths).enumerate().map(pad).collect()
}

fn aligned(grid: &Grid) -> String {
    let widths = widths(grid);
    grid.iter().map(|row| format!("  {}\n", padded(row, &widths).join("  ").trim_end())).collect()
}

fn piped(grid: &Grid) -> String {
    let widths = widths(grid);
    let mut lines: Vec<String> =
        grid.iter().map(|row| format!("| {} |\n", padded(row, &widths).join(" | "))).collect();
    let rule = |(i, w): (usize, &usize)| {
        let left = i < 2 || i + 1 == widths.len();
        if left { "-".repeat(w + 2) } else { format!("{}:", "-".repeat(w + 1)) }
    };
    lines.insert(1, format!("|{}|\n", widths.iter().enumerate().map(rule).collect::<Vec<_>>().join("|")));
    lines.concat()
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
