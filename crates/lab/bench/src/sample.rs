//! Medians and spread, and the format of numbers.

use serde::{Serialize, Serializer};

/// The values of one metric, by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn rounds(&self) -> &[f64] {
        &self.0
    }

    /// The median; with an even number of rounds the mean of the middle two; NaN without any.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        }
    }

    /// The largest distance of a value from the median, relative to the median. For a handful of
    /// rounds a standard deviation would promise too much precision.
    pub fn spread(&self) -> f64 {
        let median = self.median();
        let distance = self.0.iter().map(|v| (v - median).abs()).fold(0.0, f64::max);
        if distance == 0.0 { 0.0 } else { distance / median }
    }
}

impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Form<'a> {
            median: f64,
            spread: f64,
            rounds: &'a [f64],
        }
        Form { median: self.median(), spread: self.spread(), rounds: &self.0 }.serialize(to)
    }
}

/// Formats a number with three significant digits, and commas: `0.85`, `12.3`, `1,234,567`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.0995 || v == 0.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut out = String::new();
    for (i, c) in text.char_indices() {
        let left = whole.saturating_sub(i);
        if i > 0 && left > 0 && left.is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
