//! The end of the log as one atomic number: an append gets its range with a compare-and-swap.
//!
//! # Rules
//! 1. The number is the end of the last record, with the bit [`EMPTY`] if the open batch has no
//!    record yet. Only appends add record lengths to it, so records are in the order of the log and
//!    without gaps.
//! 2. Only a thread that holds the log's mutex closes a batch. It first sets the bit [`CLOSING`],
//!    so that no append succeeds, then stores the start of the next batch, then the new number.
//! 3. The number never has the same value twice: it grows with each append, and closing a batch
//!    sets `EMPTY` even if the batch needs no padding. So an append whose compare-and-swap succeeds
//!    has read the start of the same batch to which the number belongs.
//!
//! The upper bits are free for these marks: an LSN is below 2^62, because an image whose LSN
//! exceeds 2^61 is not opened.

use crate::room::Line;
use kedge_base::atomic::AtomicU64;
use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::{BLOCK_SIZE, Lsn};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE};

const CLOSING: u64 = 1 << 63;
const EMPTY: u64 = 1 << 62;
const LSN: u64 = EMPTY - 1;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The end of the log; see the head of the module.
pub(crate) struct Tip {
    head: Line,
    /// Start of the open batch. Appends read it; only closing a batch changes it.
    base: Line,
    batch_bytes_max: u64,
}

/// The range of the log that was assigned to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    /// Start of the record's batch.
    pub base: Lsn,
    /// Start of the record's frame, and end of its bytes.
    pub start: Lsn,
    pub end: Lsn,
    /// Number of bytes by which the padded log has grown.
    pub grown: u64,
}

impl Placed {
    /// Returns where the next batch starts if this record is the last of its batch.
    pub(crate) fn padded_end(&self) -> Lsn {
        Lsn(self.end.0.next_multiple_of(BLOCK))
    }
}

impl Tip {
    pub(crate) fn new(head: Lsn, batch_bytes_max: u64) -> Tip {
        Tip {
            head: Line(AtomicU64::new(head.0 | EMPTY)),
            base: Line(AtomicU64::new(head.0)),
            batch_bytes_max,
        }
    }

    /// Returns the end of the last record, or of the padding after it if its batch is closed.
    pub(crate) fn head(&self) -> Lsn {
        Lsn(self.head.0.load(SeqCst) & LSN)
    }

    /// Returns where the next batch starts if the open batch is closed now.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.head().0.next_multiple_of(BLOCK))
    }

    /// Returns the start of the open batch. The caller holds the log's mutex.
    pub(crate) fn base(&self) -> Lsn {
        Lsn(self.base.0.load(SeqCst))
    }

    /// Assigns a record of `record` bytes its range in the open batch. Returns `None` if the record
    /// does not fit or the batch is being closed.
    pub(crate) fn place(&self, record: usize) -> Option<Placed> {
        let mut seen = self.head.0.load(SeqCst);
        loop {
            if seen & CLOSING != 0 {
                return None;
            }
            let head = seen & LSN;
            let (base, start) = match seen & EMPTY {
                0 => (self.base.0.load(SeqCst), head),
                _ => (head, head + HEADER_SIZE as u64),
            };
            let end = start + (FRAME_SIZE + record) as u64;
            // If the batch was closed since then, `base` belongs to the next batch, and the
            // exchange fails.
            if end > base + self.batch_bytes_max {
                return None;
            }
            match self.head.0.compare_exchange_weak(seen, end, SeqCst, SeqCst) {
                Ok(_) => {
                    let grown = end.next_multiple_of(BLOCK) - head.next_multiple_of(BLOCK);
                    return Some(Placed { base: Lsn(base), start: Lsn(start), end: Lsn(end), grown });
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Closes the open batch if it has records. Returns its start and the end of its last record.
    /// The caller holds the log's mutex.
    pub(crate) fn close(&self) -> Option<(Lsn, Lsn)> {
        if self.head.0.load(SeqCst) & EMPTY != 0 {
            return None;
        }
        let (base, head) = (self.base(), self.mark());
        self.open_next(head);
        Some((base, head))
    }

    /// Sets [`CLOSING`], so that no append succeeds from now on. Returns the end of the last
    /// record.
    fn mark(&self) -> Lsn {
        Lsn(self.head.0.fetch_or(CLOSING, SeqCst))
    }

    /// Starts the next batch, so that appends succeed again.
    fn open_next(&self, head: Lsn) {
        let next = head.0.next_multiple_of(BLOCK);
        self.base.0.store(next, SeqCst);
        self.head.0.store(next | EMPTY, SeqCst);
    }
}

#[cfg(test)]
#[path = "tip_tests.rs"]
mod tests;
