//! Decides which bytes of each write are redone.
//!
//! A byte is redone only with its last value. If all writes were redone, a byte would temporarily
//! have an older value. A machine failure at that time would lose bytes that an fsync had made
//! durable. So a write is redone without the bytes that a later entry of the journal writes, cuts
//! off or clears. The file's size is still right: the byte that extended the file either gets its
//! last value, or was cut off. The exception is a write whose last byte was later cleared, which
//! keeps the size: that byte is written as the zero that it is.

use crate::abi::{self, fattr, op};
use crate::args::Args;
use crate::keep::journal::{DONE, Entry};
use crate::keep::steps::{self, Broken};
use std::collections::BTreeMap;
use std::ops::Range;

/// The part of a write that must be redone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub pieces: Vec<Range<u64>>,
    /// The offset of a zero to be written to keep the file's size.
    pub zero: Option<u64>,
}

/// Disjoint ranges: the end of each by its start.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if start >= end {
            return;
        }
        while let Some((at, to)) = self.0.range(..=end).next_back().map(|(at, to)| (*at, *to)) {
            if to < start {
                break;
            }
            (start, end) = (start.min(at), end.max(to));
            self.0.remove(&at);
        }
        self.0.insert(start, end);
    }

    fn has(&self, at: u64) -> bool {
        self.0.range(..=at).next_back().is_some_and(|(_, to)| at < *to)
    }

    /// The parts of `range` that overlap none of these ranges.
    fn without(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut left = Vec::new();
        let mut at = match self.0.range(..=range.start).next_back() {
            Some((_, to)) => range.start.max(*to),
            None => range.start,
        };
        for (start, end) in self.0.range(range.start.saturating_add(1)..) {
            if *start >= range.end {
                break;
            }
            if at < *start {
                left.push(at..*start);
            }
            at = at.max(*end);
        }
        if at < range.end {
            left.push(at..range.end);
        }
        left
    }
}

/// The effects of later entries on the bytes of one file.
#[derive(Default)]
struct Later {
    /// Bytes that later entries write or cut off.
    settled: Ranges,
    cleared: Ranges,
}

impl Later {
    fn left_of(&self, range: Range<u64>) -> Left {
        let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) else {
            return Left::default();
        };
        let unsettled = self.settled.without(range).into_iter();
        let pieces = unsettled.flat_map(|piece| self.cleared.without(piece)).collect();
        let zero = (self.cleared.has(last) && !self.settled.has(last)).then_some(last);
        Left { pieces, zero }
    }
}

/// The part of each write that must be redone, by the entry's number. `entries` must be in order.
pub(super) fn left(entries: &[Entry]) -> BTreeMap<u64, Left> {
    let mut files: BTreeMap<u64, Later> = BTreeMap::new();
    let mut left = BTreeMap::new();
    for entry in entries.iter().rev().filter(|entry| entry.head.outcome.state == DONE) {
        let mut args = Args::new(&entry.arguments);
        let file = files.entry(entry.head.node).or_default();
        match entry.head.opcode {
            op::WRITE => {
                let Ok(asked) = args.take::<abi::WriteIn>() else { continue };
                let len = asked.size.min(entry.head.outcome.result);
                let range = asked.offset..asked.offset.saturating_add(len.into());
                let all = steps::is_broken(Broken::OlderValueAgain);
                let parts = match all {
                    true => Left { pieces: vec![range.clone()], zero: None },
                    false => file.left_of(range.clone()),
                };
                left.insert(entry.head.seq, parts);
                file.settled.add(range);
            }
            op::SETATTR => {
                let Ok(asked) = args.take::<abi::SetattrIn>() else { continue };
                if asked.valid & fattr::SIZE != 0 {
                    file.settled.add(asked.size..u64::MAX);
                }
            }
            op::FALLOCATE => {
                let Ok(asked) = args.take::<abi::FallocateIn>() else { continue };
                if asked.mode & (FALLOC_PUNCH | FALLOC_ZERO) != 0 {
                    file.cleared.add(asked.offset..asked.offset.saturating_add(asked.length));
                }
            }
            _ => {}
        }
    }
    left
}

const FALLOC_PUNCH: u32 = 0x02;
const FALLOC_ZERO: u32 = 0x10;

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;
