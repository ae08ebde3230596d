//! The bytes of records from their append until their batch is written.
//!
//! Each stripe of threads has a *lane* with a lock of its own. An append holds the lane's lock from
//! before its record has a place ([`crate::tip`]) until the record is in the lane. So appends of
//! different stripes copy at the same time, and one thread's records become one run of bytes.
//!
//! # No batch is written without one of its records
//! The leader that writes a batch closes it first and then takes the lock of each lane. A record of
//! the batch got its place before the batch was closed, so its append held its lane's lock by then;
//! the leader has the lock after it, and finds the record. [`Stage::fill`] asserts that the records
//! fill the batch.
//!
//! After a shutdown the lanes keep what no write has taken until the log is dropped. Reservations
//! have bounded that.
//!
//! The alternative is one buffer for each batch that all threads fill. Safe code needs atomic words
//! for that, and a count of the bytes that are filled, for which the leader waits by spinning.

use crate::tip::Placed;
use kedge_base::lock::{Mutex, MutexGuard, Rank};
use kedge_base::{BLOCK_SIZE, IoBuf, Lsn, STRIPES, stripe};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE};
use std::collections::VecDeque;

/// A lane keeps a buffer of this size for its next batch.
const SPARE_MAX: usize = 64 * BLOCK_SIZE;

/// Records of one batch that one lane has.
#[derive(Default)]
struct Part {
    base: Lsn,
    records: u32,
    /// Frames and records, run after run.
    bytes: Vec<u8>,
    /// Where each run of adjacent records starts, and its length.
    runs: Vec<(Lsn, usize)>,
}

#[derive(Default)]
pub(crate) struct Lane {
    /// In the order of their batches.
    parts: VecDeque<Part>,
    spare: Option<Part>,
}

/// See the module.
pub(crate) struct Stage([Aligned; STRIPES]);

/// A lane on cache lines of its own.
#[repr(align(128))]
struct Aligned(Mutex<Lane>);

impl Lane {
    /// Adds a record at its place. The lane has been locked since before the record had it.
    pub(crate) fn add(&mut self, placed: &Placed, record: &[u8]) {
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
    }

    fn recycle(&mut self, mut part: Part) {
        if part.bytes.capacity() <= SPARE_MAX {
            part.bytes.clear();
            part.runs.clear();
            self.spare = Some(Part { records: 0, ..part });
        }
    }
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage(std::array::from_fn(|i| Aligned(Mutex::with_order(Rank::LogLane, i as u64, Lane::default()))))
    }

    /// The lane of the calling thread.
    pub(crate) fn lane(&self) -> MutexGuard<'_, Lane> {
        self.0[stripe()].0.lock()
    }

    /// Moves the records of the closed batch from `base` to `head` into the buffer, which has its
    /// blocks and is zero. Returns their number.
    ///
    /// # Panics
    /// If a record is missing, because its append panicked. The log is shut down then.
    pub(crate) fn fill(&self, base: Lsn, head: Lsn, buf: &mut IoBuf) -> u32 {
        let (mut records, mut filled) = (0, HEADER_SIZE as u64);
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
            filled += part.bytes.len() as u64;
            lane.lock().recycle(part);
        }
        assert_eq!(filled, head.0 - base.0, "the batch at {base} has all of its records");
        records
    }
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
