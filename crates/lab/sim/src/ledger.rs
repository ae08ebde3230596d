//! A ledger of files whose bytes identify their writes, for devices that fail: what was written,
//! what was answered, what was acknowledged as durable.
//!
//! Every eight bytes name the file, the write and the place, so that
//! - each byte that is found is checked by itself: it must come from a write that may be there;
//! - a failed request of the device shows whose data it carried ([`owners`]).
//!
//! Unlike the oracle of [`crate::crash`] the ledger has no order between files, and it goes on
//! after a failed call: a write that was answered with an error may be there in part, for ever,
//! until something else covers it.
//!
//! The rules for one file after a crash, with the steps in the order in which they were begun (one
//! at a time):
//! 1. A step is *settled* if it was answered with success before the call of an fsync (fdatasync,
//!    sync) of the file that was answered with success.
//! 2. Each eight bytes hold what the last settled step left there, or what a later or a failed step
//!    wrote.
//! 3. The size is one that settled steps leave, or lies between that and what the others would make
//!    of it.

use std::collections::BTreeSet;

/// Writes begin and end at multiples of this.
pub const WORD: u64 = 8;
/// The first byte of each word.
const TAG: u64 = 0xa5;
/// Files are numbered from 0 to below this.
pub const FILES_MAX: usize = 256;
const STEPS_MAX: u64 = 1 << 20;
/// A word's place, in words: a file has at most so many, 64 MiB.
const PLACES: u64 = 1 << 23;

/// The word that write number `step` (from 1) leaves at `offset`.
fn word(file: usize, step: u64, offset: u64) -> u64 {
    assert!(file < FILES_MAX && step < STEPS_MAX && offset / WORD < PLACES, "the ledger has no such word");
    // Tag 8 bits, file 8, step 20, place 23, and five bits that are never zero.
    TAG << 56 | (file as u64) << 48 | step << 28 | (offset / WORD) << 5 | 0x15
}

/// The file whose word this is.
fn owner(word: u64) -> Option<usize> {
    (word >> 56 == TAG && word & 0x1f == 0x15).then_some((word >> 48) as usize & 0xff)
}

/// Files whose data these bytes hold.
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
    /// Answered with success.
    done: bool,
}

/// The operations on one file.
#[derive(Clone, Debug)]
pub struct File {
    number: usize,
    steps: Vec<Step>,
    /// Steps before this one are settled, if they were answered with success.
    settled: usize,
}

impl File {
    /// An empty file, durable.
    pub fn new(number: usize) -> File {
        assert!(number < FILES_MAX, "the tag has eight bits for the file");
        File { number, steps: Vec::new(), settled: 0 }
    }

    /// Begins a write; answers its bytes. It counts as failed until [`File::wrote`].
    pub fn begin_write(&mut self, from: u64, len: u64) -> Vec<u8> {
        assert!((from | len).is_multiple_of(WORD), "whole words");
        self.steps.push(Step { what: What::Write { from, to: from + len }, done: false });
        let step = self.steps.len() as u64;
        (from..from + len).step_by(8).flat_map(|at| word(self.number, step, at).to_le_bytes()).collect()
    }

    /// The last step was answered: so many bytes are written. A short answer takes the rest back,
    /// which is not there.
    pub fn wrote(&mut self, bytes: u64) {
        let Some(Step { what: What::Write { from, to }, done }) = self.steps.last_mut() else {
            panic!("no write was begun");
        };
        assert!(bytes <= *to - *from, "more than asked for");
        // A short answer may end inside a word, which is then neither the one nor the other; so it
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

    /// What an fsync that is called now covers.
    pub fn mark(&self) -> usize {
        // The last step may be under way on another thread.
        self.steps.iter().rposition(|step| !step.done).map_or(self.steps.len(), |last| {
            if last + 1 == self.steps.len() { last } else { self.steps.len() }
        })
    }

    /// An fsync (fdatasync, sync) that was called at `mark` was answered with success.
    pub fn synced(&mut self, mark: usize) {
        self.settled = self.settled.max(mark);
    }

    /// A sync was answered with an error by a cache that takes pages for clean which it could not
    /// pass on. What was written since the last success may be lost for good, though each write was
    /// answered with success and a later sync may be, too.
    pub fn disowned(&mut self) {
        for step in &mut self.steps[self.settled..] {
            step.done = false;
        }
    }

    /// The later record of the same file, with what was settled in this one.
    pub fn settled_of(&self, later: &File) -> File {
        File { settled: self.settled, ..later.clone() }
    }

    /// As if all that was answered with success had been synced.
    pub fn all_settled(&self) -> File {
        File { settled: self.steps.len(), ..self.clone() }
    }

    /// The size if every step that was answered is there.
    pub fn size(&self) -> u64 {
        self.sizes(self.steps.len()).1
    }

    /// Least and largest size.
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

    /// Places where what may be there changes.
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

    /// Numbers of the writes whose bytes may be at `at`; 0 is none, so zeros.
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

    /// Whether these may be the file's bytes after a crash.
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
