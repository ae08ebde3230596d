//! For each block, the number of log records that allocate it and that replay has yet to apply. A
//! block that the log allocates, frees and allocates again is held until the last of these records
//! is applied, and no longer. The rejected alternative is a set without counts. It would hold
//! blocks until the end of replay that the log has freed for good, and on a full image the tree
//! would find no slots for the nodes that replay copies.

use std::collections::BTreeMap;

/// Counts of blocks, stored as runs of blocks with equal counts. There are few runs, because a log
/// often allocates the same extents repeatedly (when a file is rewritten, or an image is filled and
/// emptied).
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// Maps the start of each run to its end and count. Runs do not overlap; counts are at least 1.
    runs: BTreeMap<u32, (u32, u32)>,
}

impl Held {
    /// Adds 1 to the count of each block.
    pub(crate) fn add(&mut self, start: u32, len: u32) {
        let end = start + len;
        self.split(start);
        self.split(end);
        let mut at = start;
        let mut gaps = Vec::new();
        for (&from, run) in self.runs.range_mut(start..end) {
            if at < from {
                gaps.push((at, from));
            }
            run.1 += 1;
            at = run.0;
        }
        if at < end {
            gaps.push((at, end));
        }
        self.runs.extend(gaps.into_iter().map(|(from, to)| (from, (to, 1))));
        self.join(start, end);
    }

    /// Subtracts 1 from the count of each block, because a record was applied. Blocks that are not
    /// held stay so.
    pub(crate) fn sub(&mut self, start: u32, len: u32) {
        let end = start + len;
        self.split(start);
        self.split(end);
        let inside: Vec<u32> = self.runs.range(start..end).map(|(&from, _)| from).collect();
        for from in inside {
            let run = self.runs.get_mut(&from).expect("just listed");
            run.1 -= 1;
            if run.1 == 0 {
                self.runs.remove(&from);
            }
        }
        self.join(start, end);
    }

    /// Returns the first run of held blocks in `[from, end)` as (start, end), or (`end`, `end`).
    pub(crate) fn next(&self, from: u32, end: u32) -> (u32, u32) {
        let before = self.runs.range(..=from).next_back().filter(|(_, run)| run.0 > from);
        let run = before.or_else(|| self.runs.range(from..end).next());
        run.map_or((end, end), |(&start, run)| (start.max(from), run.0.min(end)))
    }

    /// Splits the run that contains `at`, so that a run starts at `at`.
    fn split(&mut self, at: u32) {
        if let Some((_, run)) = self.runs.range_mut(..at).next_back()
            && run.0 > at
        {
            let tail = (run.0, run.1);
            run.0 = at;
            self.runs.insert(at, tail);
        }
    }

    /// Joins adjacent runs with equal counts around and inside `[start, end]`.
    fn join(&mut self, start: u32, end: u32) {
        let first = self.runs.range(..start).next_back().map_or(start, |(&from, _)| from);
        let starts: Vec<u32> = self.runs.range(first..=end).map(|(&from, _)| from).collect();
        let mut last: Option<u32> = None;
        for from in starts {
            let (to, count) = self.runs[&from];
            if let Some(run) = last.and_then(|l| self.runs.get_mut(&l))
                && *run == (from, count)
            {
                run.0 = to;
                self.runs.remove(&from);
            } else {
                last = Some(from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Held;
    use proptest::prelude::*;

    proptest! {
        /// Compares the runs with one counter for each block, and checks that there are no more
        /// runs than necessary.
        #[test]
        fn counts_like_one_counter_per_block(steps in prop::collection::vec((any::<bool>(), 0..60u32, 1..20u32), 1..60)) {
            let (mut held, mut model) = (Held::default(), [0u32; 80]);
            for (add, start, len) in steps {
                let blocks = &mut model[start as usize..(start + len) as usize];
                if add {
                    held.add(start, len);
                    blocks.iter_mut().for_each(|n| *n += 1);
                } else {
                    held.sub(start, len);
                    blocks.iter_mut().for_each(|n| *n = n.saturating_sub(1));
                }
                for at in 0..80u32 {
                    let run = held.runs.range(..=at).next_back().filter(|(_, run)| run.0 > at);
                    assert_eq!(run.map_or(0, |(_, run)| run.1), model[at as usize], "block {at}");
                    let next = (at..80).find(|&b| model[b as usize] > 0).unwrap_or(80);
                    assert_eq!(held.next(at, 80).0, next, "from {at}");
                }
                let runs: Vec<_> = held.runs.iter().collect();
                for pair in runs.windows(2) {
                    let ((_, left), (start, right)) = (pair[0], pair[1]);
                    assert!(left.0 < *start || (left.0 == *start && left.1 != right.1), "{runs:?}");
                }
            }
        }
    }
}
