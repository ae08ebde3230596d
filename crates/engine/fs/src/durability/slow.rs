//! The slowest fsyncs since the mount, with the time of each phase.
//!
//! Only an fsync that enters the list takes the list's lock. All others read one atomic number.

use kedge_base::atomic::{AtomicU64, Ordering};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Ino, Lsn};
use kedge_store::Store;
use serde::Serialize;
use std::time::Duration;

/// Number of fsyncs in the list.
const SLOWEST: usize = 16;

/// One fsync or fdatasync. Times are in nanoseconds; a phase that did not occur is 0.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SlowFsync {
    pub ino: u64,
    pub datasync: bool,
    /// Start of the call, since the start of the clock.
    pub at_ns: u64,
    pub total_ns: u64,
    /// Logging the data or writing it in place, including waits for space and for other writeback
    /// of the inode.
    pub data_ns: u64,
    /// Wait until the log write that covers the call began (group commit).
    pub queue_ns: u64,
    /// The device flush of data before that log write.
    pub barrier_ns: u64,
    /// The log write.
    pub write_ns: u64,
    /// From the completion of the log write to the return: waiting for earlier log writes, and the
    /// wake-up.
    pub wake_ns: u64,
    /// A device flush of data after the force, or without one.
    pub flush_ns: u64,
}

pub(crate) struct SlowFsyncs {
    /// Duration of the shortest fsync in a full list; 0 if the list is not full.
    bar: AtomicU64,
    list: Mutex<Vec<SlowFsync>>,
}

/// The times of a running fsync.
#[derive(Clone, Copy)]
pub(crate) struct Trace {
    pub ino: Ino,
    pub datasync: bool,
    pub start: Duration,
    /// [`Store::checkpoint_turn`] at the start of the call.
    pub turn: u64,
    /// Time at which the data was logged or written.
    pub data: Duration,
    /// Time at which the force returned, and the LSN that it made durable; `None` if there was no
    /// force.
    pub force: Option<(Duration, Lsn)>,
}

impl Default for SlowFsyncs {
    fn default() -> SlowFsyncs {
        SlowFsyncs { bar: AtomicU64::new(0), list: Mutex::new(Rank::Leaf, Vec::new()) }
    }
}

impl SlowFsyncs {
    pub(crate) fn record(&self, store: &Store, trace: &Trace, end: Duration) {
        let ns = |from: Duration, to: Duration| to.saturating_sub(from).as_nanos() as u64;
        let total_ns = ns(trace.start, end);
        if total_ns <= self.bar.load(Ordering::Relaxed) {
            return;
        }
        let forced = trace.force.map_or(trace.data, |(at, _)| at);
        let mut slow = SlowFsync {
            ino: trace.ino.0,
            datasync: trace.datasync,
            at_ns: trace.start.as_nanos() as u64,
            total_ns,
            data_ns: ns(trace.start, trace.data),
            queue_ns: 0,
            barrier_ns: 0,
            write_ns: 0,
            wake_ns: 0,
            flush_ns: ns(forced, end),
        };
        if let Some((answered, target)) = trace.force {
            match store.log().write_of(target) {
                Some(w) => {
                    // If the log write had begun before the force, it counts from the start of the
                    // force.
                    let (began, flushed) = (w.began.max(trace.data), w.flushed.max(trace.data));
                    slow.queue_ns = ns(trace.data, began);
                    slow.barrier_ns = ns(began, flushed);
                    slow.write_ns = ns(flushed, w.done);
                    slow.wake_ns = ns(w.done, answered);
                }
                // The log no longer knows the write, because many later ones followed. Only the
                // total wait is known.
                None => slow.wake_ns = ns(trace.data, answered),
            }
        }
        let mut list = self.list.lock();
        let at = list.partition_point(|other| other.total_ns >= total_ns);
        list.insert(at, slow);
        list.truncate(SLOWEST);
        if list.len() == SLOWEST {
            self.bar.store(list[SLOWEST - 1].total_ns, Ordering::Relaxed);
        }
    }

    /// The listed fsyncs, slowest first.
    pub(crate) fn list(&self) -> Vec<SlowFsync> {
        self.list.lock().clone()
    }
}
