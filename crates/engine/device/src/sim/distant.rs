//! A distant device: each request takes the same latency, independent of others in flight. The
//! device counts the round trips that its user had to wait for one after another.
//!
//! # Rounds
//! A request that is submitted after completions have been delivered belongs to the round after the
//! latest of these; requests that are submitted without a completion in between share a round. So
//! the number of rounds is the length of the longest chain of requests in which each may have
//! waited for the one before. Multiplied by the latency, this is the time that a user waits. With a
//! latency of zero the number does not depend on the clock: requests then complete before `submit`
//! returns, each batch as a whole.
//!
//! With a latency above zero, a thread completes each request when it has been in flight for that
//! time. Requests overlap without limit, as on a distant server that is not busy. Lock: one leaf,
//! not held while a request is served.

use crate::batch::perform;
use crate::{Completion, CompletionSink, Device, Request};
use kedge_base::JoinHandle;
use kedge_base::{Clock, IoBuf, Result, SystemClock, spawn_named};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub struct DistantDevice {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    inner: Arc<dyn Device>,
    latency: Duration,
    clock: SystemClock,
    state: Mutex<State>,
    /// Notified when the thread has work, and when the device closes.
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// The requests in flight, in the order in which they complete.
    under_way: VecDeque<UnderWay>,
    closed: bool,
    /// The latest round with a completed request.
    answered: u64,
    rounds: u64,
    requests: u64,
    in_flight: usize,
    in_flight_max: usize,
}

struct UnderWay {
    due: Duration,
    round: u64,
    request: Request,
    sink: Arc<dyn CompletionSink>,
}

impl DistantDevice {
    pub fn new(inner: Arc<dyn Device>, latency: Duration) -> DistantDevice {
        let (clock, state, work) = (SystemClock::default(), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { inner, latency, clock, state, work });
        let thread = (!latency.is_zero()).then(|| {
            let shared = shared.clone();
            spawn_named("distant-device", move || shared.serve()).expect("a thread can be started")
        });
        DistantDevice { shared, thread }
    }

    /// Returns the number of sequential round trips; see the module.
    pub fn rounds(&self) -> u64 {
        self.shared.state.lock().rounds
    }

    pub fn requests(&self) -> u64 {
        self.shared.state.lock().requests
    }

    /// Returns the maximum number of requests that were in flight at once.
    pub fn in_flight_max(&self) -> usize {
        self.shared.state.lock().in_flight_max
    }

    /// Resets the counts to zero.
    pub fn reset(&self) {
        let mut state = self.shared.state.lock();
        (state.answered, state.rounds, state.requests) = (0, 0, 0);
        state.in_flight_max = state.in_flight;
    }

    /// Serves a request of the synchronous interface.
    fn alone<T>(&self, serve: impl FnOnce(&dyn Device) -> T) -> T {
        let round = self.shared.begin(1);
        if !self.shared.latency.is_zero() {
            self.shared.clock.sleep(self.shared.latency);
        }
        let result = serve(&*self.shared.inner);
        self.shared.end(round);
        result
    }
}

impl Shared {
    fn begin(&self, requests: usize) -> u64 {
        let mut state = self.state.lock();
        let round = state.answered + 1;
        state.rounds = state.rounds.max(round);
        state.requests += requests as u64;
        state.in_flight += requests;
        state.in_flight_max = state.in_flight_max.max(state.in_flight);
        round
    }

    fn end(&self, round: u64) {
        let mut state = self.state.lock();
        state.answered = state.answered.max(round);
        state.in_flight -= 1;
    }

    fn answer(&self, round: u64, request: Request, sink: &dyn CompletionSink) {
        let Request { tag, offset, mut op } = request;
        let result = perform(&*self.inner, offset, &mut op);
        self.end(round);
        sink.complete(Completion { tag, op, result });
    }

    /// The body of the thread. Completes everything that was submitted before it ends.
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            let now = self.clock.monotonic();
            match state.under_way.front() {
                None if state.closed => return,
                None => self.work.wait(&mut state),
                Some(first) if first.due > now => {
                    let left = first.due.saturating_sub(now);
                    self.work.wait_for(&mut state, left);
                }
                Some(_) => {
                    let Some(first) = state.under_way.pop_front() else { continue };
                    drop(state);
                    self.answer(first.round, first.request, &*first.sink);
                    state = self.state.lock();
                }
            }
        }
    }
}

impl Drop for DistantDevice {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
        // A completion may drop the last reference on the device's own thread. That thread cannot
        // join itself; it ends by itself.
        let Some(thread) = self.thread.take() else { return };
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("a device thread panicked");
        }
    }
}

impl Device for DistantDevice {
    crate::delegate!(shared.inner: geometry, grow, cut, release, room, host_free, first_hole, stats, name);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let round = self.shared.begin(batch.len());
        if self.thread.is_none() {
            for request in batch {
                self.shared.answer(round, request, &*sink);
            }
            return;
        }
        let mut state = self.shared.state.lock();
        let due = self.shared.clock.monotonic() + self.shared.latency;
        state.under_way.extend(batch.into_iter().map(|request| UnderWay {
            due,
            round,
            request,
            sink: sink.clone(),
        }));
        drop(state);
        self.shared.work.notify_all();
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.alone(|device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.alone(|device| device.write(offset, buf, fua))
    }

    fn flush(&self) -> Result<()> {
        self.alone(|device| device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.alone(|device| device.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.alone(|device| device.write_zeroes(offset, len))
    }
}
