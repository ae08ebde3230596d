//! Counters of the log.

use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Counter, Histogram, Lsn};
use std::collections::VecDeque;
use std::time::Duration;

/// Why the log is forced.
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

    /// Whether the force is for durability that an operation requested, or for the commit interval.
    /// For these jbd2 commits a transaction.
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

/// The times of one log write's stages, on the log's clock.
#[derive(Clone, Copy, Debug)]
pub struct WriteTimes {
    /// This write and those before it have made everything below durable.
    pub end: Lsn,
    pub began: Duration,
    /// When the barrier returned.
    pub flushed: Duration,
    pub done: Duration,
}

/// Number of writes kept: more than complete while one fsync returns.
const RECENT: usize = 64;

/// The last writes, in order of completion.
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
        // The write that reached the target may be dropped from the list already. A later one would
        // be a wrong result.
        let known = oldest_end < target || recent.len() < RECENT;
        known.then(|| recent.iter().filter(|w| w.end >= target).min_by_key(|w| w.end).copied()).flatten()
    }
}

/// Counters since the log was opened. Times are nanoseconds.
#[derive(Debug, Default)]
pub struct LogStats {
    forces: [Counter; ForceCause::ALL.len()],
    /// Forces that found their target durable: no IO, no wait.
    pub forces_idle: Counter,
    pub writes: Counter,
    /// Wake-ups of writer threads.
    pub writer_wakes: Counter,
    /// Writes that an operation, a sync or the commit timer had requested before they began.
    pub commits: Counter,
    /// Of these, the writes that not only the timer requested.
    pub commits_requested: Counter,
    pub records: Counter,
    /// Bytes of records, without frames.
    pub bytes_appended: Counter,
    /// Bytes written to the device: headers, frames and padding included.
    pub bytes_written: Counter,
    /// Calls of [`crate::Barrier::barrier`].
    pub barriers: Counter,
    /// Records per write.
    pub group_records: Histogram,
    /// Forces per write whose target was in it.
    pub group_forces: Histogram,
    /// Barrier, sealing and device write together.
    pub write_latency: Histogram,
    /// Duration of forces that had to wait, IO included.
    pub force_latency: Histogram,
    /// Waits of reservations for log space.
    pub space_stalls: Histogram,
    /// Waits of reservations for sealed batches to reach the device.
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
