//! Values of disjoint ranges of numbers.

use std::collections::BTreeMap;
use std::ops::Range;

/// A value for each number of some ranges, and none for all others.
#[derive(Debug, Default)]
pub(crate) struct Spans<T> {
    /// For the first number of each range, the number after its last one, and the value.
    spans: BTreeMap<u64, (u64, T)>,
}

impl<T: Copy> Spans<T> {
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The value of a number.
    pub fn at(&self, number: u64) -> Option<T> {
        let (_, (end, value)) = self.spans.range(..=number).next_back()?;
        (number < *end).then_some(*value)
    }

    /// The ranges that have a value, cut to `range`. Those with the lowest numbers come last.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let Range { start: from, end: to } = range;
        let touching = self.spans.range(..to).rev().take_while(move |(_, (end, _))| *end > from);
        let parts = touching.map(move |(start, (end, _))| (*start).max(from)..(*end).min(to));
        parts.filter(|part| !part.is_empty())
    }

    /// Gives a value to all numbers of a range.
    pub fn set(&mut self, range: Range<u64>, value: T) {
        if !range.is_empty() {
            self.clear(range.clone());
            self.spans.insert(range.start, (range.end, value));
        }
    }

    /// Takes the values of all numbers of a range away.
    pub fn clear(&mut self, range: Range<u64>) {
        if range.is_empty() || self.spans.is_empty() {
            return;
        }
        let touching = self.spans.range(..range.end).rev().take_while(|(_, (end, _))| *end > range.start);
        let touching: Vec<(u64, u64, T)> =
            touching.map(|(start, (end, value))| (*start, *end, *value)).collect();
        for (start, end, value) in touching {
            self.spans.remove(&start);
            if start < range.start {
                self.spans.insert(start, (range.start, value));
            }
            if end > range.end {
                self.spans.insert(range.end, (end, value));
            }
        }
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
