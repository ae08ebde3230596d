//! The queue between threads that submit batches and threads that serve them.
//!
//! Lock: one leaf, never held across IO or a completion.
//!
//! Bound: a submitter waits while [`QUEUED_MAX`] jobs are queued; then its whole batch is added. A
//! serving thread whose completion submits more requests never waits here, because it would wait
//! for itself.

use super::raw::RawFile;
use super::sys::Bell;
use crate::{Completion, CompletionSink, Request};
use kedge_base::Result;
use kedge_base::wait::about_to_wait;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const QUEUED_MAX: usize = 4096;

pub(super) struct Job {
    pub request: Request,
    pub sink: Arc<dyn CompletionSink>,
    /// Whether the ring must submit all earlier jobs to the kernel before this one, because the
    /// kernel merges the requests of one call. The threads of a pool make one call for each job, so
    /// they ignore the flag.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    pub apart: bool,
}

impl Job {
    pub fn complete(self, result: Result<()>) {
        let Request { tag, op, .. } = self.request;
        self.sink.complete(Completion { tag, op, result });
    }

    /// Performs the job in the calling thread.
    pub fn perform(mut self, file: &RawFile) {
        let result = file.perform(self.request.offset, &mut self.request.op);
        self.complete(result);
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
    /// Whether the ring thread waits in the kernel, so that it must be woken through `bell`.
    asleep: bool,
}

pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
    pub bell: Bell,
    /// Number of calls by which the ring submitted at least one request to the kernel.
    pub calls: AtomicU64,
}

thread_local! {
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

/// The result of [`Queue::take`].
#[cfg(target_os = "linux")]
pub(super) enum Taken {
    Jobs(Vec<Job>),
    /// Nothing is queued now; the next push will ring the bell.
    Nothing,
    /// The queue is closed and empty.
    Closed,
}

impl Queue {
    pub fn new() -> std::io::Result<Queue> {
        let (state, work, room) = (Mutex::default(), Condvar::new(), Condvar::new());
        Ok(Queue { state, work, room, bell: Bell::new()?, calls: AtomicU64::new(0) })
    }

    /// Marks the calling thread as a thread that serves a queue, of any device.
    pub fn serve_here() {
        SERVING.set(true);
    }

    /// Queues jobs. Returns the jobs if no thread serves the queue any more.
    pub fn push(&self, jobs: Vec<Job>) -> Result<(), Vec<Job>> {
        let mut state = self.state.lock();
        while state.jobs.len() >= QUEUED_MAX && !state.closed && !SERVING.get() {
            about_to_wait();
            self.room.wait(&mut state);
        }
        if state.closed {
            return Err(jobs);
        }
        let count = jobs.len();
        state.jobs.extend(jobs);
        let ring = std::mem::take(&mut state.asleep);
        drop(state);
        if ring {
            self.bell.ring();
        } else if count == 1 {
            self.work.notify_one();
        } else {
            self.work.notify_all();
        }
        Ok(())
    }

    /// Waits for a job, for pool threads. Returns `None` once the queue is closed and empty.
    pub fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                self.give_room(&state);
                return Some(job);
            }
            if state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    /// Takes up to `max` jobs without waiting, for the ring thread. After [`Taken::Nothing`] the
    /// next push rings the bell.
    #[cfg(target_os = "linux")]
    pub fn take(&self, max: usize) -> Taken {
        let mut state = self.state.lock();
        if state.jobs.is_empty() {
            if state.closed {
                return Taken::Closed;
            }
            state.asleep = true;
            return Taken::Nothing;
        }
        let count = max.min(state.jobs.len());
        let jobs = state.jobs.drain(..count).collect();
        self.give_room(&state);
        Taken::Jobs(jobs)
    }

    fn give_room(&self, state: &State) {
        if state.jobs.len() < QUEUED_MAX {
            self.room.notify_all();
        }
    }

    /// Closes the queue: nothing more can be pushed, but queued jobs are still served.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
        self.room.notify_all();
        self.bell.ring();
    }

    /// Closes the queue and returns the queued jobs, which no thread will serve.
    pub fn abandon(&self) -> Vec<Job> {
        self.close();
        self.state.lock().jobs.drain(..).collect()
    }
}
