//! A ledger of files whose bytes identify their writes, for failing devices: it records what was
//! written, which results were returned, and what was acknowledged as durable.
//!
//! Every eight bytes encode the file, the write and the offset, so that
//! - each word found is checked by itself: it must come from a write that the file may contain;
//! - a failed request of the device identifies the files whose data it carried ([`owners`]).
//!
//! Unlike the oracle of [`crate::crash`], the ledger has no order between files, and it continues
//! after a failed call: the file may contain a part of a write that returned an error, until a
//! later write covers it.
//!
//! The rules for one file after a crash, with steps in the order in which they began (one at a
//! time):
//! 1. A step is *settled* if it succeeded before the call of a successful fsync (fdatasync, sync)
//!    of the file.
//! 2. Each word has the content that the last settled step left, or the content of a later or
//!    failed step.
//! 3. The size is the one that settled steps leave, or lies between that and the size that the
//!    other steps would make.

use std::collections::BTreeSet;

/// Writes begin and end at multiples of this.
pub const WORD: u64 = 8;
/// The first byte of each word.
const TAG: u64 = 0xa5;
/// Files are numbered from 0 to below this number.
pub const FILES_MAX: usize = 256;
const STEPS_MAX: u64 = 1 << 20;
/// Limit of a word's offset, in words: a file has at most 64 MiB.
const PLACES: u64 = 1 << 23;

/// The word that write number `step` (from 1) puts at `offset`.
fn word(file: usize, step: u64, offset: u64) -> u64 {
    assert!(file < FILES_MAX && step < STEPS_MAX && offset / WORD < PLACES, "the ledger has no such word");
    // Tag 8 bits, file 8, step 20, place 23, and five bits that are never zero.
    TAG << 56 | (file as u64) << 48 | step << 28 | (offset / WORD) << 5 | 0x15
}

/// The file whose word this is.
fn owner(word: u64) -> Option<usize> {
    (word >> 56 == TAG && word & 0x1f == 0x15).then_some((word >> 48) as usize & 0xff)
}

/// Files whose data is in these bytes.
pub fn owners(bytes: &[u8]) -> BTreeSet<usize> {
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    words.filter_map(owner).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Write { from: u64, to: u64 },
    Truncate { size: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    what: What,
    /// Whether the step succeeded.
    done: bool,
}

/// The operations on one file.
#[derive(Clone, Debug)]
pub struct File {
    number: usize,
    steps: Vec<Step>,
    /// Steps with lower indexes are settled if they succeeded.
    settled: usize,
}

impl File {
    /// The record of an empty durable file.
    pub fn new(number: usize) -> File {
        assert!(number < FILES_MAX, "the tag has eight bits for the file");
        File { number, steps: Vec::new(), settled: 0 }
    }

    /// Begins a write and returns its bytes. The write counts as failed until [`File::wrote`].
    pub fn begin_write(&mut self, from: u64, len: u64) -> Vec<u8> {
        assert!((from | len).is_multiple_of(WORD), "whole words");
        self.steps.push(Step { what: What::Write { from, to: from + len }, done: false });
        let step = self.steps.len() as u64;
        (from..from + len).step_by(8).flat_map(|at| word(self.number, step, at).to_le_bytes()).collect()
    }

    /// Notes that the last write returned `bytes`. After a short write the rest is removed from the
    /// step.
    pub fn wrote(&mut self, bytes: u64) {
        let Some(Step { what: What::Write { from, to }, done }) = self.steps.last_mut() else {
            panic!("no write was begun");
        };
        assert!(bytes <= *to - *from, "more than asked for");
        // A short write may end inside a word. The word then belongs to neither step, so the step
        // counts as failed.
        *done = bytes.is_multiple_of(WORD);
        if *done {
            *to = *from + bytes;
        }
    }

    pub fn begin_truncate(&mut self, size: u64) {
        assert!(size.is_multiple_of(WORD), "whole words");
        self.steps.push(Step { what: What::Truncate { size }, done: false });
    }

    pub fn truncated(&mut self) {
        self.steps.last_mut().expect("a truncate was begun").done = true;
    }

    /// Returns the mark for [`File::synced`]: the steps that an fsync called now covers.
    pub fn mark(&self) -> usize {
        // The last step may be in progress on another thread.
        self.steps.iter().rposition(|step| !step.done).map_or(self.steps.len(), |last| {
            if last + 1 == self.steps.len() { last } else { self.steps.len() }
        })
    }

    /// Notes that an fsync (fdatasync, sync) called at `mark` succeeded.
    pub fn synced(&mut self, mark: usize) {
        self.settled = self.settled.max(mark);
    }

    /// A sync failed, and a cache marked pages clean that it could not write. What was written
    /// since the last success may be lost permanently, although each write succeeded and a later
    /// sync may succeed, too.
    pub fn disowned(&mut self) {
        for step in &mut self.steps[self.settled..] {
            step.done = false;
        }
    }

    /// Returns a later record of the same file with the settled steps of this record.
    pub fn settled_of(&self, later: &File) -> File {
        File { settled: self.settled, ..later.clone() }
    }

    /// Returns the record as if every step that succeeded had been synced.
    pub fn all_settled(&self) -> File {
        File { settled: self.steps.len(), ..self.clone() }
    }

    /// The size if every successful step survives.
    pub fn size(&self) -> u64 {
        self.sizes(self.steps.len()).1
    }

    /// Smallest and largest allowed size.
    fn sizes(&self, settled: usize) -> (u64, u64) {
        let (mut least, mut most) = (0, 0);
        for (i, step) in self.steps.iter().enumerate() {
            let sure = step.done && i < settled;
            match step.what {
                What::Write { from, to } if to > from => {
                    most = most.max(to);
                    least = if sure { least.max(to) } else { least };
                }
                What::Write { .. } => {}
                What::Truncate { size } if sure => (least, most) = (size, size),
                What::Truncate { size } => (least, most) = (least.min(size), most.max(size)),
            }
        }
        (least, most)
    }

    /// Offsets at which the set of allowed words changes.
    fn borders(&self, size: u64) -> Vec<u64> {
        let mut borders = BTreeSet::from([0, size]);
        for step in &self.steps {
            match step.what {
                What::Write { from, to } => borders.extend([from, to]),
                What::Truncate { size } => _ = borders.insert(size),
            }
        }
        borders.into_iter().filter(|at| *at <= size).collect()
    }

    /// Numbers of the writes whose bytes the file may contain at `at`; 0 stands for zeros.
    fn fair(&self, at: u64) -> BTreeSet<u64> {
        let mut fair = BTreeSet::from([0]);
        for (i, step) in self.steps.iter().enumerate() {
            let leaves = match step.what {
                What::Write { from, to } if (from..to).contains(&at) => i as u64 + 1,
                What::Truncate { size } if at >= size => 0,
                _ => continue,
            };
            if step.done && i < self.settled {
                fair.clear();
            }
            fair.insert(leaves);
        }
        fair
    }

    /// Checks that the file may contain these bytes after a crash.
    pub fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let (least, most) = self.sizes(self.settled);
        let size = bytes.len() as u64;
        if !(least..=most).contains(&size) {
            return Err(format!(
                "file {}: size {size}, allowed are {least} to {most}{}",
                self.number,
                self.tell()
            ));
        }
        for piece in self.borders(size).windows(2) {
            let fair = self.fair(piece[0]);
            for at in (piece[0]..piece[1]).step_by(8) {
                let rest = &bytes[at as usize..size.min(at + 8) as usize];
                let fits = |step: &u64| {
                    let expected = if *step == 0 { 0 } else { word(self.number, *step, at) };
                    expected.to_le_bytes()[..rest.len()] == *rest
                };
                if !fair.iter().any(fits) {
                    return Err(format!(
                        "file {}: {rest:02x?} at {at} of {size}, allowed are writes {fair:?}{}",
                        self.number,
                        self.tell()
                    ));
                }
            }
        }
        Ok(())
    }

    fn tell(&self) -> String {
        let from = self.steps.len().saturating_sub(12);
        let steps = self.steps.iter().enumerate().skip(from);
        let lines = steps
            .map(|(i, s)| format!("\n  {}: {:?}{}", i + 1, s.what, if s.done { "" } else { " not done" }));
        format!(" ({} of {} steps settled){}", self.settled, self.steps.len(), lines.collect::<String>())
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
