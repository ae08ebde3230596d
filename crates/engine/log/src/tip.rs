//! The end of the log as one atomic number: a record takes its place by a compare-and-swap.
//!
//! # Rules
//! 1. The number is the end of the last record, with the mark [`EMPTY`] if the open batch has no
//!    record yet. Only an append adds to it, so places have the order of the log and leave no gap.
//! 2. Only a thread that holds the log's mutex closes a batch. It first sets the mark [`CLOSING`],
//!    so that no append succeeds, then stores where the next batch starts, then the new number.
//! 3. No value of the number comes back: it grows with each append, and closing a batch adds
//!    `EMPTY` even where the batch needs no padding. So an append whose compare-and-swap succeeds
//!    has read the start of the batch to which the number belongs.
//!
//! An LSN is below 2^62: an image whose LSN exceeds 2^61 is not opened.

use crate::room::Line;
use kedge_base::atomic::AtomicU64;
use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::{BLOCK_SIZE, Lsn};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE};

const CLOSING: u64 = 1 << 63;
const EMPTY: u64 = 1 << 62;
const LSN: u64 = EMPTY - 1;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// See the module.
pub(crate) struct Tip {
    head: Line,
    /// Start of the open batch. Appends read it, and only closing a batch changes it.
    base: Line,
    batch_bytes_max: u64,
}

/// The place of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    /// Start of its batch.
    pub base: Lsn,
    /// Start and end of its frame and its bytes.
    pub start: Lsn,
    pub end: Lsn,
    /// By how much the padded log has grown.
    pub grown: u64,
}

impl Placed {
    /// Where the next batch starts if the record is the last of its own.
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

    /// End of the last record, or of the padding after it if its batch is closed.
    pub(crate) fn head(&self) -> Lsn {
        Lsn(self.head.0.load(SeqCst) & LSN)
    }

    /// Where the next batch starts if the open one is closed now.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.head().0.next_multiple_of(BLOCK))
    }

    /// Start of the open batch. The log's mutex is held.
    pub(crate) fn base(&self) -> Lsn {
        Lsn(self.base.0.load(SeqCst))
    }

    /// Gives a record of `record` bytes its place in the open batch. `None` if it does not fit, or
    /// if the batch is being closed.
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
            // If the batch was closed since, `base` is the next one's, and the exchange fails.
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

    /// Closes the open batch, if it has records. Returns its start and the end of its last record.
    /// The log's mutex is held.
    pub(crate) fn close(&self) -> Option<(Lsn, Lsn)> {
        if self.head.0.load(SeqCst) & EMPTY != 0 {
            return None;
        }
        let (base, head) = (self.base(), self.mark());
        self.open_next(head);
        Some((base, head))
    }

    /// From now on no append succeeds. Returns the end of the last record.
    fn mark(&self) -> Lsn {
        Lsn(self.head.0.fetch_or(CLOSING, SeqCst))
    }

    /// Appends succeed again, into the next batch.
    fn open_next(&self, head: Lsn) {
        let next = head.0.next_multiple_of(BLOCK);
        self.base.0.store(next, SeqCst);
        self.head.0.store(next | EMPTY, SeqCst);
    }
}

#[cfg(test)]
#[path = "tip_tests.rs"]
mod tests;
