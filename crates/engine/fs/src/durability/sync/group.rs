//! Groups of concurrent asynchronous fsyncs whose data is written in place. The calls of a group
//! share one pass, and hold no caller's thread while the device writes.
//!
//! Up to [`HELD_MAX`] calls write in their callers' threads. That is fastest, and leaves a mount
//! one worker that receives requests. A further call joins the *queue*, and its caller's thread
//! returns. A *group thread* takes the whole queue, writes the data of all its inodes in one pass,
//! and then finishes each call. Meanwhile further calls join the queue.
//!
//! With only one caller more than [`HELD_MAX`], a group has one call, and costs a switch of threads
//! for nothing. The number of callers is unknown, since callers whose threads wait make no calls.
//! So one in [`PROBE_EVERY`] of the calls that find exactly [`HELD_MAX`] others joins the queue as
//! a probe. If other calls arrive while it is written, all further calls join the queue, until
//! [`CROWD_LASTS`] of them have found no more than [`HELD_MAX`] others.
//!
//! A second group thread takes the queue only when the queue has at least as many calls as are
//! being written. Log writes start by the same rule (`kedge_log::force`), for the same reason. A
//! thread is started when it is needed, and ends after [`LINGER`] without work.
//!
//! # Crash argument
//! The shared pass completes no call. After the pass [`Syncer::go_on`] finishes each call, by the
//! same steps as for a single call: it writes data that is still dirty, reports a failure that the
//! pass has recorded in the inode, forces the log if the inode needs that, and flushes the device
//! if data of the inode has not been flushed. So a pass that fails, or that omits an inode, only
//! costs time, and no call returns before its data is durable. The broken variant `GroupedAckEarly`
//! returns before the pass.
//!
//! # Ends
//! A call keeps its right to work (`crate::gate`) until it returns, so a freeze waits for it. After
//! a close or a shutdown the steps of each call fail, and the call returns that error. A panic
//! shuts the file system down. If the panic drops a call, its callback is dropped too, and that
//! reports an error to the caller.

use super::{Arrival, Syncer};
use crate::cache::inode::Inode;
use crate::error::Done;
use kedge_base::atomic::{AtomicU32, Ordering};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{Histogram, spawn_named, without_panic};
use std::sync::Arc;
use std::time::Duration;

/// The most calls that write in their callers' threads at the same time: one less than the number
/// of workers with which a mount starts.
const HELD_MAX: u32 = 3;
const CROWD_LASTS: u32 = 64;
const PROBE_EVERY: u32 = 64;
/// The most group threads of a file system.
const THREADS_MAX: usize = 2;
/// How long a group thread without work stays.
const LINGER: Duration = Duration::from_secs(1);

/// An fsync that waits for a group.
pub(super) struct Queued {
    pub inode: Arc<Inode>,
    pub datasync: bool,
    pub arrival: Arrival,
    pub done: Done,
    /// Keeps the file system open until the call is finished.
    pub syncer: Arc<Syncer>,
}

#[derive(Default)]
struct State {
    queue: Vec<Queued>,
    /// Number of calls that group threads have taken and not finished.
    taken: usize,
    threads: usize,
    idle: usize,
}

impl State {
    fn may_take(&self) -> bool {
        !self.queue.is_empty() && self.queue.len() >= self.taken
    }
}

/// The queue and the threads of a file system; see the module's head.
pub(super) struct Group {
    state: Mutex<State>,
    /// Signalled when a group thread may take the queue.
    changed: Condvar,
    /// Number of calls in progress that write in place, including queued ones.
    calls: AtomicU32,
    /// Number of further calls that join the queue although they find only [`HELD_MAX`] others.
    crowd: AtomicU32,
    /// Number of calls that found exactly [`HELD_MAX`] others while `crowd` was 0.
    borderline: AtomicU32,
    /// Numbers of calls in the groups.
    pub sizes: Histogram,
}

/// Counts a call that writes in place, until dropped.
pub(super) struct Counted<'a>(&'a AtomicU32);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Group {
    pub(super) fn new() -> Arc<Group> {
        Arc::new(Group {
            state: Mutex::new(Rank::Leaf, State::default()),
            changed: Condvar::new(),
            calls: AtomicU32::new(0),
            crowd: AtomicU32::new(0),
            borderline: AtomicU32::new(0),
            sizes: Histogram::default(),
        })
    }

    /// Whether a call that would write in place joins the queue.
    pub(super) fn wants_call(&self) -> bool {
        let others = self.calls.load(Ordering::Relaxed);
        if others > HELD_MAX {
            self.crowd.store(CROWD_LASTS, Ordering::Relaxed);
            return true;
        }
        if others < HELD_MAX {
            return false;
        }
        let left = self.crowd.load(Ordering::Relaxed);
        if left > 0 {
            // If a concurrent update is lost, one more call joins the queue.
            self.crowd.store(left - 1, Ordering::Relaxed);
            return true;
        }
        self.borderline.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY)
    }

    /// Counts a call that writes in place in its own thread.
    pub(super) fn count(&self) -> Counted<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Counted(&self.calls)
    }

    pub(super) fn push(self: &Arc<Self>, mut call: Queued) {
        if broken::is(Variant::GroupedAckEarly) {
            // Broken on purpose: the call returns before its data is written.
            std::mem::replace(&mut call.done, Box::new(|_| {}))(Ok(()));
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.queue.push(call);
        if !state.may_take() {
            return;
        }
        if state.idle > 0 {
            drop(state);
            self.changed.notify_one();
        } else if state.threads < THREADS_MAX {
            let group = self.clone();
            match spawn_named("kedge-fsync", move || group.work()) {
                Ok(_detached) => state.threads += 1,
                // The running thread takes the queue when it has finished its group.
                Err(e) if state.threads > 0 => tracing::warn!("one thread less for fsyncs: {e}"),
                Err(e) => {
                    tracing::warn!("no thread for fsyncs, the callers' do the work: {e}");
                    let calls = std::mem::take(&mut state.queue);
                    drop(state);
                    self.finish(calls);
                }
            }
        }
    }

    /// Body of a group thread.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if state.may_take() {
                let calls = std::mem::take(&mut state.queue);
                let count = calls.len();
                state.taken += count;
                drop(state);
                self.finish(calls);
                state = self.state.lock();
                state.taken -= count;
                continue;
            }
            state.idle += 1;
            let over = self.changed.wait_for(&mut state, LINGER);
            state.idle -= 1;
            // If the queue is not empty but may not be taken, the thread that is finishing a group
            // will take it.
            if over && !state.may_take() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn finish(&self, calls: Vec<Queued>) {
        let (count, syncer) = (calls.len() as u32, calls[0].syncer.clone());
        self.sizes.record(count.into());
        let finished = without_panic("a group of fsyncs", || {
            syncer.write_group(&calls);
            for call in calls {
                call.syncer.go_on(call.inode.ino, call.datasync, call.arrival, call.done);
            }
            Ok(())
        });
        self.calls.fetch_sub(count, Ordering::Relaxed);
        if let Err(panic) = finished {
            tracing::error!("{panic}");
            syncer.engine.store().shutdown(&panic);
        }
    }
}

impl Syncer {
    /// Writes the data of a group in place. An error need not be returned: finishing each call
    /// finds and reports it.
    fn write_group(&self, calls: &[Queued]) {
        let mut inodes: Vec<_> = calls.iter().map(|call| call.inode.clone()).collect();
        inodes.sort_by_key(|inode| inode.ino);
        inodes.dedup_by_key(|inode| inode.ino);
        if let Err(e) = self.writeback.write_group(&inodes) {
            tracing::debug!("data of {} fsyncs is written by each for itself: {e}", calls.len());
        }
    }
}
