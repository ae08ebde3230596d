//! Contests: contestants do the same work in turns.

use crate::Interrupt;
use crate::sample::{Sample, number};
use anyhow::Result;
use serde::Serialize;
use std::borrow::Cow;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
    /// No value is better: the metric explains others.
    Neither,
}

/// One of the numbers that a round measures.
#[derive(Clone, Debug, Serialize)]
pub struct Metric {
    /// Empty if the contest's title gives the name.
    pub name: Cow<'static, str>,
    pub unit: &'static str,
    pub better: Better,
}

/// The goal of the first contestant in the first metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// At least this multiple of the second contestant's value.
    Ratio(f64),
    /// At least this value.
    Value(f64),
}

/// The amount of work in a round.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    Fixed(u64),
    /// The first round, which does not count, does less.
    Warmed {
        pilot: u64,
        amount: u64,
    },
    /// As much as the slowest contestant does in `seconds`, estimated from a first round of `pilot`
    /// items. The first metric must be a rate of items per second.
    Scaled {
        pilot: u64,
        max: u64,
        seconds: f64,
    },
}

/// The result of one round.
pub struct Round {
    /// One value for each metric.
    pub values: Vec<f64>,
    /// What was done, so that a reader can repeat it.
    pub command: String,
}

/// Number of metrics that progress messages show.
const SHOWN: usize = 3;

/// Runs a round of this amount of work.
type Body<'a> = Box<dyn FnMut(u64) -> Result<Round> + 'a>;

pub struct Contestant<'a> {
    pub name: &'static str,
    body: Body<'a>,
}

impl<'a> Contestant<'a> {
    pub fn new(name: &'static str, body: impl FnMut(u64) -> Result<Round> + 'a) -> Contestant<'a> {
        Contestant { name, body: Box::new(body) }
    }
}

pub struct Contest<'a> {
    pub title: String,
    pub metrics: Vec<Metric>,
    pub amount: Amount,
    pub goal: Option<Goal>,
    /// The contestants, in the order of their turns.
    pub contestants: Vec<Contestant<'a>>,
}

impl Metric {
    pub fn new(name: impl Into<Cow<'static, str>>, unit: &'static str, better: Better) -> Metric {
        Metric { name: name.into(), unit, better }
    }
}

/// The result of a contest.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub title: String,
    pub metrics: Vec<Metric>,
    pub goal: Option<Goal>,
    pub sides: Vec<Side>,
    /// Published figures of the same measure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Published {
    /// The name of the published metric.
    pub metric: &'static str,
    /// The figures by side: those that were published.
    pub figures: &'static [f64],
}

#[derive(Debug, Serialize)]
pub struct Side {
    pub name: &'static str,
    pub command: String,
    /// The samples by metric.
    pub samples: Vec<Sample>,
    /// Why the contestant left the contest.
    pub failed: Option<String>,
}

/// The number of rounds, and how to interrupt contests and report their progress.
pub struct Plan<'a> {
    pub rounds: usize,
    pub interrupt: &'a Interrupt,
    pub progress: fn(&str),
}

impl Plan<'_> {
    /// Holds a contest. A contestant that fails leaves it. An interrupt ends it with an error.
    pub fn hold(&self, mut contest: Contest<'_>) -> Result<Outcome> {
        let title = &contest.title;
        let width = contest.metrics.len();
        let side = |c: &Contestant<'_>| Side {
            name: c.name,
            command: String::new(),
            samples: vec![Sample::default(); width],
            failed: None,
        };
        let mut sides: Vec<Side> = contest.contestants.iter().map(side).collect();
        let turn =
            |amount, what: &str, side: &mut Side, c: &mut Contestant<'_>| -> Result<Option<Vec<f64>>> {
                self.interrupt.check()?;
                if side.failed.is_some() {
                    return Ok(None);
                }
                match (c.body)(amount) {
                    Ok(round) => {
                        assert_eq!(round.values.len(), width, "a value for each metric");
                        let shown: Vec<String> = round
                            .values
                            .iter()
                            .zip(&contest.metrics)
                            .take(SHOWN)
                            .map(|(value, m)| format!("{} {}", number(*value), m.unit))
                            .collect();
                        (self.progress)(&format!("{title}, {what}: {} {}", side.name, shown.join(", ")));
                        side.command = round.command;
                        Ok(Some(round.values))
                    }
                    Err(e) => {
                        // A command that an interrupt has ended counts as interrupted, not as
                        // failed.
                        self.interrupt.check()?;
                        (self.progress)(&format!("{title}, {what}: {} FAILED: {e:#}", side.name));
                        side.failed = Some(format!("{e:#}"));
                        Ok(None)
                    }
                }
            };

        let pilot = match contest.amount {
            Amount::Fixed(n) => n,
            Amount::Scaled { pilot, .. } | Amount::Warmed { pilot, .. } => pilot,
        };
        let mut rates = Vec::new();
        for (c, side) in contest.contestants.iter_mut().zip(&mut sides) {
            rates.extend(turn(pilot, "warm-up", side, c)?.and_then(|values| values.first().copied()));
        }
        let amount = contest.amount.after(&rates);
        for round in 1..=self.rounds {
            for (c, side) in contest.contestants.iter_mut().zip(&mut sides) {
                let values = turn(amount, &format!("round {round} of {}", self.rounds), side, c)?;
                side.samples.iter_mut().zip(values.unwrap_or_default()).for_each(|(s, v)| s.push(v));
            }
        }
        Ok(Outcome {
            title: contest.title,
            metrics: contest.metrics,
            goal: contest.goal,
            sides,
            published: vec![],
        })
    }
}

impl Amount {
    /// Returns the amount of a counted round, given the contestants' rates in the first round.
    fn after(self, rates: &[f64]) -> u64 {
        match self {
            Amount::Fixed(n) | Amount::Warmed { amount: n, .. } => n,
            Amount::Scaled { pilot, max, seconds } => {
                let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
                if slowest.is_finite() { ((slowest * seconds) as u64).clamp(1, max) } else { pilot }
            }
        }
    }
}

impl Outcome {
    /// The median of a metric of a side. NaN stands for an unknown value, which reaches no goal.
    pub fn median(&self, side: usize, metric: &str) -> f64 {
        self.sample(side, metric).map_or(f64::NAN, Sample::median)
    }

    pub fn round(&self, side: usize, metric: &str, round: usize) -> f64 {
        self.sample(side, metric).and_then(|s| s.rounds().get(round).copied()).unwrap_or(f64::NAN)
    }

    fn sample(&self, side: usize, metric: &str) -> Option<&Sample> {
        let index = self.metrics.iter().position(|m| m.name == metric)?;
        self.sides.get(side)?.sample(index)
    }

    /// Ratio of the first to the second contestant, in one metric.
    pub fn ratio(&self, metric: usize) -> Option<f64> {
        let [a, b, ..] = self.sides.as_slice() else { return None };
        let (a, b) = (a.median(metric)?, b.median(metric)?);
        (b != 0.0).then(|| a / b)
    }

    /// The value that the goal judges.
    pub fn reached(&self) -> Option<f64> {
        match self.goal? {
            Goal::Ratio(_) => self.ratio(0),
            Goal::Value(_) => self.sides.first()?.median(0),
        }
    }

    /// Whether the goal is met; `None` if there is no goal or no value.
    pub fn meets_goal(&self) -> Option<bool> {
        let (Goal::Ratio(want) | Goal::Value(want)) = self.goal?;
        Some(self.reached()? >= want)
    }
}

impl Side {
    pub fn median(&self, metric: usize) -> Option<f64> {
        self.sample(metric).map(Sample::median)
    }

    fn sample(&self, metric: usize) -> Option<&Sample> {
        self.samples.get(metric).filter(|s| self.failed.is_none() && !s.is_empty())
    }
}

#[cfg(test)]
#[path = "contest_tests.rs"]
mod tests;
