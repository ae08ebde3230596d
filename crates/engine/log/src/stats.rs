//! Counters of the log.

use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Counter, Histogram, Lsn};
use std::collections::VecDeque;
use std::time::Duration;

/// Why a thread forces the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ForceCause {
    Fsync,
    Fdatasync,
    Sync,
    CommitTimer,
    Rename,
    Fallocate,
    Space,
    Checkpoint,
    Close,
}

impl ForceCause {
    pub const ALL: [ForceCause; 9] = [
        ForceCause::Fsync,
        ForceCause::Fdatasync,
        ForceCause::Sync,
        ForceCause::CommitTimer,
        ForceCause::Rename,
        ForceCause::Fallocate,
        ForceCause::Space,
        ForceCause::Checkpoint,
        ForceCause::Close,
    ];

    /// Returns whether the force is for durability that an operation requested, or for the commit
    /// interval. In these cases jbd2 commits a transaction.
    pub(crate) const fn is_commit(self) -> bool {
        !matches!(self, ForceCause::Space | ForceCause::Checkpoint)
    }

    pub const fn name(self) -> &'static str {
        match self {
            ForceCause::Fsync => "fsync",
            ForceCause::Fdatasync => "fdatasync",
            ForceCause::Sync => "sync",
            ForceCause::CommitTimer => "commit timer",
            ForceCause::Rename => "rename",
            ForceCause::Fallocate => "fallocate",
            ForceCause::Space => "space",
            ForceCause::Checkpoint => "checkpoint",
            ForceCause::Close => "close",
        }
    }
}

/// The times at which one log write passed its stages, on the log's clock.
#[derive(Clone, Copy, Debug)]
pub struct WriteTimes {
    /// Everything below this LSN is durable once this write and all earlier ones have completed.
    pub end: Lsn,
    pub began: Duration,
    /// Time at which the barrier returned.
    pub flushed: Duration,
    pub done: Duration,
}

/// Number of writes whose times are kept: more than can complete while one fsync returns.
const RECENT: usize = 64;

/// The times of the most recent writes, in order of completion.
#[derive(Debug)]
pub(crate) struct Recent(Mutex<VecDeque<WriteTimes>>);

impl Default for Recent {
    fn default() -> Recent {
        Recent(Mutex::new(Rank::Leaf, VecDeque::with_capacity(RECENT)))
    }
}

impl Recent {
    pub(crate) fn push(&self, times: WriteTimes) {
        let mut recent = self.0.lock();
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(times);
    }

    pub(crate) fn covering(&self, target: Lsn) -> Option<WriteTimes> {
        let recent = self.0.lock();
        let oldest_end = recent.iter().map(|w| w.end).min()?;
        // The write that reached the target may have left the list already. A later write would be
        // a wrong result.
        let known = oldest_end < target || recent.len() < RECENT;
        known.then(|| recent.iter().filter(|w| w.end >= target).min_by_key(|w| w.end).copied()).flatten()
    }
}

/// Counters since the log was opened. Times are in nanoseconds.
#[derive(Debug, Default)]
pub struct LogStats {
    forces: [Counter; ForceCause::ALL.len()],
    /// Forces whose target was already durable, without IO or waiting.
    pub forces_idle: Counter,
    pub writes: Counter,
    /// Number of wake-ups of writer threads.
    pub writer_wakes: Counter,
    /// Writes that an operation, a sync or the commit timer had requested before the write began.
    pub commits: Counter,
    /// The number of `commits` that were requested by more than the commit timer.
    pub commits_requested: Counter,
    pub records: Counter,
    /// Bytes of appended records, without frames.
    pub bytes_appended: Counter,
    /// Bytes written to the device, including headers, frames and padding.
    pub bytes_written: Counter,
    /// Number of calls of [`crate::Barrier::barrier`] and [`crate::Barrier::settle`].
    pub barriers: Counter,
    /// Number of log writes that shared one flush with data.
    pub flushes_shared: Counter,
    /// Number of records in each write.
    pub group_records: Histogram,
    /// Number of forces in each write whose target was in the write.
    pub group_forces: Histogram,
    /// Duration of a whole log write: sealing, barrier, device write, and the flush after it.
    pub write_latency: Histogram,
    /// Duration of forces that had to wait, including IO.
    pub force_latency: Histogram,
    /// Duration of the waits of reservations for log space.
    pub space_stalls: Histogram,
    /// Duration of the waits of reservations until sealed batches reached the device.
    pub staged_stalls: Histogram,
}

impl LogStats {
    pub(crate) fn count_force(&self, cause: ForceCause) {
        self.forces[cause as usize].inc();
    }

    pub fn forces(&self, cause: ForceCause) -> u64 {
        self.forces[cause as usize].get()
    }

    pub fn forces_total(&self) -> u64 {
        self.forces.iter().map(Counter::get).sum()
    }
}
