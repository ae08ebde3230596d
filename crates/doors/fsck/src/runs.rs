//! Disjoint runs of blocks, each of which has a value.

use std::collections::BTreeMap;

#[derive(Clone)]
pub(crate) struct Runs<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs(BTreeMap::new())
    }
}

impl<T: Copy> Runs<T> {
    /// Returns the end of the run that contains a block, and its value.
    pub fn at(&self, block: u64) -> Option<(u64, T)> {
        let (_, (end, value)) = self.0.range(..=block).next_back()?;
        (block < *end).then_some((*end, *value))
    }

    /// Returns the first block after `block` that is outside its run, and the run's value. Without
    /// a run, the start of the next run and `None`.
    pub fn run_at(&self, block: u64) -> (u64, Option<T>) {
        match self.at(block) {
            Some((end, value)) => (end, Some(value)),
            None => (self.0.range(block..).next().map_or(u64::MAX, |(start, _)| *start), None),
        }
    }

    /// Adds a run. Returns false, and adds nothing, if the run is empty or overlaps another.
    pub fn insert(&mut self, start: u64, end: u64, value: T) -> bool {
        let before = self.0.range(..end).next_back();
        let free = start < end && before.is_none_or(|(_, (stop, _))| *stop <= start);
        if free {
            self.0.insert(start, (end, value));
        }
        free
    }

    /// Removes the run that begins at a block.
    pub fn remove(&mut self, start: u64) {
        self.0.remove(&start);
    }

    /// The runs, as first block, end and value.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        self.0.iter().map(|(start, (end, value))| (*start, *end, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::Runs;

    #[test]
    fn runs_do_not_overlap() {
        let mut runs = Runs::default();
        assert!(runs.insert(10, 20, 'a') && runs.insert(20, 21, 'b'));
        assert!(!runs.insert(5, 11, 'c') && !runs.insert(12, 13, 'c') && !runs.insert(20, 30, 'c'));
        assert!(!runs.insert(7, 7, 'c'), "an empty run");
        assert_eq!(
            (runs.at(9), runs.at(10), runs.at(20), runs.at(21)),
            (None, Some((20, 'a')), Some((21, 'b')), None)
        );
        assert_eq!(
            (runs.run_at(9), runs.run_at(12), runs.run_at(21)),
            ((10, None), (20, Some('a')), (u64::MAX, None))
        );
        runs.remove(10);
        assert_eq!((runs.at(10), runs.at(20)), (None, Some((21, 'b'))));
    }
}
