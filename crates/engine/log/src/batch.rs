//! A closed batch, which becomes one log write. It exists from the time when it accepts no more
//! records until it is on the device.

use crate::stage::Stage;
use crate::stats::ForceCause;
use kedge_base::{BLOCK_SIZE, Epoch, IoBuf, Lsn};
use kedge_format::logwrite::{HEADER_SIZE, LogKey, WriteHeader};

/// The records between two block-aligned LSNs. A batch has at least one record.
pub(crate) struct Batch {
    /// LSN of the header of the log write.
    pub base: Lsn,
    /// End of the last record.
    pub head: Lsn,
    pub wanted: Wanted,
}

/// The forces whose target is in a batch: their number, and the strongest reason for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub forces: u32,
    pub asked: Asked,
}

/// Why a batch is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Asked {
    /// No force for durability: the batch is full, or a checkpoint or a search for space needs it.
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
    /// Returns the length of the log write in bytes.
    pub(crate) fn padded(&self) -> u64 {
        (self.head.0 - self.base.0).next_multiple_of(BLOCK_SIZE as u64)
    }

    /// Returns the LSN at which the next batch starts.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.base.0 + self.padded())
    }

    /// Makes the log write without its records. [`Write::fill`] adds them later, without the mutex.
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

/// A batch that a leader has taken and will write.
pub(crate) struct Write {
    pub header: WriteHeader,
    head: Lsn,
    pub buf: IoBuf,
    pub wanted: Wanted,
}

impl Write {
    /// Adds the records. Returns whether one of them may refer to data in place.
    pub(crate) fn fill(&mut self, stage: &Stage, key: &LogKey) -> bool {
        // Clears the buffer, because padding and gaps must be zero.
        self.buf.resize(0);
        self.buf.resize(self.header.blocks as usize);
        let (records, refers) = stage.fill(self.header.lsn, self.head, &mut self.buf);
        self.header.records = records;
        self.header.seal(key, self.buf.as_mut_bytes());
        refers
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
