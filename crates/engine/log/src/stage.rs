//! The bytes of records between their append and the write of their batch.
//!
//! Each stripe of threads has a *lane* with its own lock. An append holds the lock of its lane from
//! before the record gets its range of the log ([`crate::tip`]) until the record's bytes are in the
//! lane. So appends of different stripes copy concurrently, and adjacent records of one thread form
//! one run of bytes.
//!
//! # No batch is written without one of its records
//! The leader that writes a batch closes the batch first and then takes the lock of each lane. A
//! record of the batch got its range before the batch was closed, so its append held the lane's
//! lock at that time. The leader gets the lock after the append and finds the record.
//! [`Stage::fill`] asserts that the records fill the batch.
//!
//! After a shutdown the lanes keep the records that no write has taken until the log is dropped.
//! Reservations bound their size.
//!
//! The rejected alternative is one buffer for each batch that all threads fill. In safe code it
//! needs atomic words, and a count of the filled bytes for which the leader waits by spinning.

use crate::tip::Placed;
use kedge_base::lock::{Mutex, MutexGuard, Rank};
use kedge_base::{BLOCK_SIZE, IoBuf, Lsn, STRIPES, stripe};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE};
use std::collections::VecDeque;

/// Largest capacity in bytes of a buffer that a lane keeps for its next batch.
const SPARE_MAX: usize = 64 * BLOCK_SIZE;

/// The records of one batch that are in one lane.
#[derive(Default)]
struct Part {
    base: Lsn,
    records: u32,
    /// Whether a record may refer to data in place.
    refers: bool,
    /// Frame headers and records of all runs.
    bytes: Vec<u8>,
    /// LSN of the start and length in bytes of each run of adjacent records.
    runs: Vec<(Lsn, usize)>,
}

#[derive(Default)]
pub(crate) struct Lane {
    /// One part for each batch, in the order of the batches.
    parts: VecDeque<Part>,
    spare: Option<Part>,
}

/// One lane for each stripe of threads; see the head of the module.
pub(crate) struct Stage([Aligned; STRIPES]);

/// A lane on cache lines of its own.
#[repr(align(128))]
struct Aligned(Mutex<Lane>);

impl Lane {
    /// Adds a record at the range `placed`, which may refer to data in place if `refers`. The
    /// caller locked the lane before the record got that range.
    pub(crate) fn add(&mut self, placed: &Placed, record: &[u8], refers: bool) {
        if self.parts.back().is_none_or(|part| part.base != placed.base) {
            let part = self.spare.take().unwrap_or_default();
            self.parts.push_back(Part { base: placed.base, ..part });
        }
        let part = self.parts.back_mut().expect("just added if there was none");
        let bytes = FRAME_SIZE + record.len();
        match part.runs.last_mut().filter(|(start, len)| start.0 + *len as u64 == placed.start.0) {
            Some((_, len)) => *len += bytes,
            None => part.runs.push((placed.start, bytes)),
        }
        part.bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
        part.bytes.extend_from_slice(record);
        part.records += 1;
        part.refers |= refers;
    }

    fn recycle(&mut self, mut part: Part) {
        if part.bytes.capacity() <= SPARE_MAX {
            part.bytes.clear();
            part.runs.clear();
            self.spare = Some(Part { records: 0, refers: false, ..part });
        }
    }
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage(std::array::from_fn(|i| Aligned(Mutex::with_order(Rank::LogLane, i as u64, Lane::default()))))
    }

    /// Locks and returns the lane of the calling thread.
    pub(crate) fn lane(&self) -> MutexGuard<'_, Lane> {
        self.0[stripe()].0.lock()
    }

    /// Moves the records of the closed batch from `base` to `head` into `buf`, which has the
    /// batch's length and is zero. Returns the number of records, and whether one of them may refer
    /// to data in place.
    ///
    /// # Panics
    /// If a record is missing because its append panicked. The log is then shut down.
    pub(crate) fn fill(&self, base: Lsn, head: Lsn, buf: &mut IoBuf) -> (u32, bool) {
        let (mut records, mut refers, mut filled) = (0, false, HEADER_SIZE as u64);
        for Aligned(lane) in &self.0 {
            let mut locked = lane.lock();
            let Some(at) = locked.parts.iter().position(|part| part.base == base) else { continue };
            let part = locked.parts.remove(at).expect("just found");
            drop(locked);
            let mut rest = &part.bytes[..];
            for (start, len) in &part.runs {
                let (run, after) = rest.split_at(*len);
                let at = (start.0 - base.0) as usize;
                buf.as_mut_bytes()[at..at + len].copy_from_slice(run);
                rest = after;
            }
            records += part.records;
            refers |= part.refers;
            filled += part.bytes.len() as u64;
            lane.lock().recycle(part);
        }
        assert_eq!(filled, head.0 - base.0, "the batch at {base} has all of its records");
        (records, refers)
    }
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
