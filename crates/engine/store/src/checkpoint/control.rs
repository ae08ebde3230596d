//! The state of checkpoints, as a part of the store: the lock that admits one at a time, and what
//! is shared by the threads that request, run, pace or await a checkpoint.

use super::cause::CheckpointCause;
use super::cut::Cut;
use kedge_base::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use kedge_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use kedge_base::{Error, Result};
use std::time::Duration;

/// What a checkpoint needs from the file system above the store.
pub trait CheckpointClient: Send + Sync {
    /// Writes log-resident data in place, oldest first, so that the tail can move. Runs
    /// concurrently with operations; of the store's locks only the one that admits one checkpoint
    /// at a time is held. An error is the reason why some data stays in the log; all other data has
    /// been written.
    ///
    /// Calls `wrote` after each batch with the number of log-resident pieces in that batch. `wrote`
    /// may pause, so the client must not hold a lock that an operation needs.
    fn prepare_checkpoint(&self, wrote: &dyn Fn(usize)) -> Result<()>;
}

/// The cut of a deferred checkpoint, which the next checkpoint writes first.
pub(crate) type Unwritten = Option<Cut>;

/// The state of checkpoints, and the lock that admits one at a time.
pub(crate) struct Control {
    single: Mutex<Unwritten>,
    /// Incremented when a checkpoint starts and when it ends, also by an error or a panic. So it is
    /// odd while a checkpoint runs.
    turn: AtomicU64,
    /// Number of the last checkpoint that completed. Checkpoints are numbered from 1 in the order
    /// in which they start.
    completed: AtomicU64,
    /// Start of the last checkpoint, in nanoseconds, and the head of the log at that time. The rate
    /// at which the log fills is computed from both.
    pub began_at: AtomicU64,
    pub began_lsn: AtomicU64,
    /// Duration of the last checkpoint without its pauses, in nanoseconds.
    pub took: AtomicU64,
    /// Time of the last cut, in nanoseconds.
    pub cut_at: AtomicU64,
    /// The LSN of the last durable cut; 0 if there was no checkpoint since the image was opened.
    pub durable_lsn: AtomicU64,
    /// Percentage of free log below which the background thread checkpoints; 0 with
    /// `noasync_checkpoint`.
    pub async_percent: AtomicU32,
    /// Why the last checkpoint could not write some log-resident data in place.
    pub unwritable: Mutex<Option<Error>>,
    pub retry: Mutex<Retry>,
    /// Number of threads that wait for `single`: with the cause of an operation or of the
    /// background thread, and (`queued_requests`) with a requested cause.
    queued: AtomicU32,
    queued_requests: AtomicU32,
    /// Whether the file system is being closed. Requested checkpoints then do not wait for space on
    /// the image's host.
    closing: AtomicBool,
    /// Ends the pauses of the running checkpoint.
    pub hurry: Hurry,
    /// Whether the image is frozen: it is clean, and no checkpoint is made. Changed with `single`
    /// held.
    frozen: AtomicBool,
    /// Whether the cut of a deferred checkpoint is not durable yet, and (`stops_records`) whether
    /// no record may follow it. Changed with `single` held.
    deferred: AtomicBool,
    stops_records: AtomicBool,
}

impl Control {
    pub(crate) fn new(async_percent: u32) -> Control {
        Control {
            single: Mutex::new(Rank::Checkpoint, None),
            turn: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            began_at: AtomicU64::new(0),
            began_lsn: AtomicU64::new(0),
            took: AtomicU64::new(0),
            cut_at: AtomicU64::new(0),
            durable_lsn: AtomicU64::new(0),
            async_percent: AtomicU32::new(async_percent),
            unwritable: Mutex::new(Rank::Leaf, None),
            retry: Mutex::new(Rank::Leaf, Retry::default()),
            queued: AtomicU32::new(0),
            queued_requests: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            hurry: Hurry::new(),
            frozen: AtomicBool::new(false),
            deferred: AtomicBool::new(false),
            stops_records: AtomicBool::new(false),
        }
    }

    /// Whether the cut of a deferred checkpoint is not durable yet.
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred.load(Ordering::Acquire)
    }

    /// Whether such a cut changes the table of trees in a way that later records rely on: see
    /// [`super::table`].
    pub(crate) fn stops_records(&self) -> bool {
        self.stops_records.load(Ordering::Acquire)
    }

    /// Records that this cut is deferred, or with `None` that no cut is. The caller holds `single`.
    pub(crate) fn set_deferred(&self, cut: Option<&Cut>) {
        self.stops_records.store(cut.is_some_and(|cut| cut.stops_records), Ordering::Release);
        self.deferred.store(cut.is_some(), Ordering::Release);
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// The caller holds `single`.
    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::Release);
    }

    /// From now on requested checkpoints do not wait for space on the image's host.
    pub(crate) fn set_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// A number that is odd while a checkpoint runs.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Acquire)
    }

    /// The number of the next checkpoint to start.
    pub(crate) fn next(&self) -> u64 {
        self.turn().div_ceil(2) + 1
    }

    /// Whether the checkpoint `number` or a later one has completed.
    pub(crate) fn covers(&self, number: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= number
    }

    /// Waits until no checkpoint runs, and excludes others. A checkpoint that pauses ends its
    /// pause.
    pub(crate) fn alone(&self, cause: CheckpointCause) -> MutexGuard<'_, Unwritten> {
        let queued = if cause.is_requested() { &self.queued_requests } else { &self.queued };
        queued.fetch_add(1, Ordering::AcqRel);
        self.hurry.call();
        let single = self.single.lock();
        queued.fetch_sub(1, Ordering::AcqRel);
        single
    }

    /// Whether an operation or the background thread waits for the running checkpoint.
    pub(crate) fn operations_wait(&self) -> bool {
        self.queued.load(Ordering::Acquire) > 0
    }

    /// Whether any thread waits for the running checkpoint.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.queued.load(Ordering::Acquire) + self.queued_requests.load(Ordering::Acquire) > 0
    }

    /// Marks the start of a checkpoint. The caller holds `single`.
    pub(crate) fn start(&self) -> Running<'_> {
        let number = self.next();
        self.turn.fetch_add(1, Ordering::AcqRel);
        Running { control: self, number }
    }
}

/// A running checkpoint. Dropping it marks the end.
pub(crate) struct Running<'a> {
    control: &'a Control,
    number: u64,
}

impl Running<'_> {
    pub(crate) fn completed(&self) {
        self.control.completed.store(self.number, Ordering::Release);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.control.turn.fetch_add(1, Ordering::AcqRel);
    }
}

/// How checkpoints are retried that free nothing, or find no space on the image's host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    /// Pause after the first such checkpoint. It doubles with each further one.
    pub first: Duration,
    /// Longest pause.
    pub longest: Duration,
    /// Number of such checkpoints, with an operation waiting during each, before the error.
    pub tries: u32,
}

impl Default for Retry {
    /// Waits of some eight seconds in all.
    fn default() -> Retry {
        Retry { first: Duration::from_millis(1), longest: Duration::from_millis(250), tries: 40 }
    }
}

/// Wakes a checkpoint from its pause.
pub(crate) struct Hurry {
    /// Number of calls so far.
    calls: Mutex<u64>,
    called: Condvar,
}

impl Hurry {
    pub(crate) fn new() -> Hurry {
        Hurry { calls: Mutex::new(Rank::Leaf, 0), called: Condvar::new() }
    }

    /// Makes a running checkpoint check at once whether it may continue its pause.
    pub(crate) fn call(&self) {
        *self.calls.lock() += 1;
        self.called.notify_all();
    }

    pub(crate) fn calls(&self) -> u64 {
        *self.calls.lock()
    }

    /// Waits until the number of calls exceeds `seen`, for at most `at_most`. Returns whether it
    /// does.
    pub(crate) fn wait_beyond(&self, seen: u64, at_most: Duration) -> bool {
        let mut calls = self.calls.lock();
        if *calls == seen {
            self.called.wait_for(&mut calls, at_most);
        }
        *calls != seen
    }
}
