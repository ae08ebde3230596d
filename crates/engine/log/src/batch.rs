//! A closed batch: one log write, from the moment at which its last record has a place until it is
//! on the device.

use crate::stage::Stage;
use crate::stats::ForceCause;
use kedge_base::{BLOCK_SIZE, Epoch, IoBuf, Lsn};
use kedge_format::logwrite::{HEADER_SIZE, LogKey, WriteHeader};

/// Records between two block-aligned positions. None is empty.
pub(crate) struct Batch {
    /// Position of the header.
    pub base: Lsn,
    /// End of the last record.
    pub head: Lsn,
    pub wanted: Wanted,
}

/// What is known of the forces whose target is in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub forces: u32,
    pub asked: Asked,
}

/// Why a batch is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Asked {
    /// It is full, or a checkpoint or a search for space needs it.
    No,
    ByTimer,
    ByOperation,
}

impl Wanted {
    pub(crate) const NOT: Wanted = Wanted { forces: 0, asked: Asked::No };
}

impl Asked {
    pub(crate) fn by(cause: ForceCause) -> Asked {
        match cause {
            ForceCause::CommitTimer => Asked::ByTimer,
            cause if cause.is_commit() => Asked::ByOperation,
            _ => Asked::No,
        }
    }
}

impl Batch {
    /// Bytes on the device.
    pub(crate) fn padded(&self) -> u64 {
        (self.head.0 - self.base.0).next_multiple_of(BLOCK_SIZE as u64)
    }

    /// Where the next batch starts.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.base.0 + self.padded())
    }

    /// The log write, except for its records, which [`Write::fill`] adds without the log's mutex.
    pub(crate) fn into_write(self, buf: IoBuf, epoch: Epoch, tail_lsn: Lsn, durable_lsn: Lsn) -> Write {
        let header = WriteHeader {
            epoch,
            lsn: self.base,
            blocks: (self.padded() / BLOCK_SIZE as u64) as u32,
            tail_lsn,
            durable_lsn,
            payload_bytes: (self.head.0 - self.base.0) as u32 - HEADER_SIZE as u32,
            records: 0,
        };
        Write { header, head: self.head, buf, wanted: self.wanted }
    }
}

/// A batch that a leader has taken to write it.
pub(crate) struct Write {
    pub header: WriteHeader,
    head: Lsn,
    pub buf: IoBuf,
    pub wanted: Wanted,
}

impl Write {
    /// Adds the records, and the header that seals them.
    pub(crate) fn fill(&mut self, stage: &Stage, key: &LogKey) {
        // Padding and gaps are zero.
        self.buf.resize(0);
        self.buf.resize(self.header.blocks as usize);
        self.header.records = stage.fill(self.header.lsn, self.head, &mut self.buf);
        self.header.seal(key, self.buf.as_mut_bytes());
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
