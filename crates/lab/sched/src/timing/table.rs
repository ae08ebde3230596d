//! What computing between two points of the source code costs, learnt in a run in which no thread
//! is interrupted at every point. In a run with many processors the turn changes at nearly every
//! point, and each switch of threads empties the caches of the real processor. Costs measured in
//! such a run would be several times too high.

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::HashMap;
use std::panic::Location;

/// A point: its place in the source code, and what the thread does there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Point {
    pub site: Option<&'static Location<'static>>,
    pub what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum What {
    Begin,
    Step,
    Lock,
    Release,
    Wait,
    Wake,
    Clock,
    End,
}

const BUCKETS: usize = 40;

/// Measured costs in nanoseconds: count and exact sum for each power of two.
#[derive(Clone, Debug)]
struct Costs {
    buckets: [(u32, u64); BUCKETS],
    count: u64,
    sum: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs { buckets: [(0, 0); BUCKETS], count: 0, sum: 0 }
    }
}

impl Costs {
    fn add(&mut self, nanos: u64) {
        let bucket = &mut self.buckets[(64 - nanos.leading_zeros() as usize).min(BUCKETS - 1)];
        bucket.0 += 1;
        bucket.1 += nanos;
        self.count += 1;
        self.sum += nanos;
    }

    /// Returns the mean of a bucket, which is chosen at random in proportion to its count. So the
    /// distribution and the mean are the measured ones.
    fn draw(&self, rng: &mut SmallRng) -> u64 {
        let mut left = rng.random_range(0..self.count);
        for (count, sum) in self.buckets {
            if left < u64::from(count) {
                return sum / u64::from(count);
            }
            left -= u64::from(count);
        }
        self.sum / self.count
    }
}

#[derive(Default, Debug)]
struct Inner {
    pairs: HashMap<(Point, Point), Costs>,
    /// Costs by the second point alone, for pairs that were not learnt.
    ends: HashMap<Point, Costs>,
    all: Costs,
}

/// See the module.
#[derive(Default, Debug)]
pub struct Table(Mutex<Inner>);

impl Table {
    /// Number of pairs of points that were learnt.
    pub fn pairs(&self) -> usize {
        self.0.lock().pairs.len()
    }

    pub(super) fn learn(&self, from: Point, to: Point, nanos: u64) {
        let mut inner = self.0.lock();
        inner.pairs.entry((from, to)).or_default().add(nanos);
        inner.ends.entry(to).or_default().add(nanos);
        inner.all.add(nanos);
    }

    /// Returns the cost, and whether this pair of points was learnt.
    pub(super) fn cost(&self, from: Point, to: Point, rng: &mut SmallRng) -> (u64, bool) {
        let inner = self.0.lock();
        let pair = inner.pairs.get(&(from, to));
        let known = pair.is_some();
        let costs = pair.or_else(|| inner.ends.get(&to)).unwrap_or(&inner.all);
        (if costs.count == 0 { 0 } else { costs.draw(rng) }, known)
    }
}
