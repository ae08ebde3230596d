//! The goals (*bars*) of an experiment, and whether they were reached.
//!
//! The medians of the rounds decide. Each round is also judged by itself: if rounds disagree, the
//! machine was too noisy to decide, and the verdict says so.

use crate::contest::Outcome;
use crate::sample::number;
use serde::Serialize;

/// If a smaller fraction of the rounds agrees with the verdict of the medians, the rounds disagree.
const AGREE: f64 = 0.8;

#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    AtLeast(f64),
    AtMost(f64),
}

impl Want {
    fn holds(self, value: f64) -> bool {
        match self {
            Want::AtLeast(limit) => value >= limit,
            Want::AtMost(limit) => value <= limit,
        }
    }

    fn words(self, unit: &str) -> String {
        let (sign, limit) = match self {
            Want::AtLeast(limit) => ("≥", limit),
            Want::AtMost(limit) => ("≤", limit),
        };
        format!("{sign} {} {unit}", figure(limit)).trim_end().to_owned()
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    pub what: String,
    pub unit: &'static str,
    pub want: Want,
    /// The value reached. `None` if it was not measured: the bar is then not met.
    pub reached: Option<f64>,
    pub met: bool,
    /// Fraction of the rounds whose own verdict is that of the medians.
    pub agreeing: f64,
    /// Why the figure may be misleading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

/// Computes the number that a bar judges. It gets the value for each pair of side and metric.
pub trait Figure: Fn(&dyn Fn(usize, &str) -> f64) -> f64 {}
impl<F: Fn(&dyn Fn(usize, &str) -> f64) -> f64> Figure for F {}

impl Bar {
    pub fn new(outcome: &Outcome, what: &str, unit: &'static str, want: Want, figure: impl Figure) -> Bar {
        let value = figure(&|side, metric| outcome.median(side, metric));
        let rounds =
            outcome.sides.iter().flat_map(|s| &s.samples).map(|s| s.rounds().len()).max().unwrap_or(0);
        let met = want.holds(value);
        let alike =
            |round: &usize| want.holds(figure(&|side, metric| outcome.round(side, metric, *round))) == met;
        let agreeing = (0..rounds).filter(alike).count() as f64 / rounds.max(1) as f64;
        Bar {
            what: format!("{}: {what}", outcome.title),
            unit,
            want,
            reached: value.is_finite().then_some(value),
            met,
            agreeing,
            doubt: None,
        }
    }

    /// The change from the first to the second contestant, in percent.
    pub fn change(outcome: &Outcome, metric: &str, want: Want) -> Bar {
        Bar::new(outcome, metric, "%", want, |at| change(at(0, metric), at(1, metric)))
    }

    pub fn is_noisy(&self) -> bool {
        self.reached.is_some() && self.agreeing < AGREE
    }

    fn reached_words(&self) -> String {
        self.reached
            .map_or("not measured".into(), |v| format!("{} {}", figure(v), self.unit).trim_end().to_owned())
    }

    fn verdict(&self) -> String {
        let mut words = String::from(if self.met { "met" } else { "MISSED" });
        if self.is_noisy() {
            let agreeing = self.agreeing * 100.0;
            words.push_str(&format!(", but too noisy to be sure: {agreeing:.0} % of the rounds agree"));
        }
        if let Some(doubt) = &self.doubt {
            words.push_str(", but ");
            words.push_str(doubt);
        }
        words
    }

    pub fn row(&self) -> Vec<String> {
        vec![self.what.clone(), self.want.words(self.unit), self.reached_words(), self.verdict()]
    }

    pub fn complaint(&self) -> String {
        let noise = if self.is_noisy() { " (too noisy to be sure)" } else { "" };
        format!("{}: {}, wanted {}{noise}", self.what, self.reached_words(), self.want.words(self.unit))
    }
}

fn figure(value: f64) -> String {
    if value == value.trunc() { format!("{value:.0}") } else { number(value) }
}

/// The change from `old` to `new` in percent; zero if both are zero.
pub fn change(old: f64, new: f64) -> f64 {
    match (old, new) {
        (0.0, 0.0) => 0.0,
        (0.0, _) => f64::NAN,
        _ => (new / old - 1.0) * 100.0,
    }
}

#[cfg(test)]
#[path = "bars_tests.rs"]
mod tests;
