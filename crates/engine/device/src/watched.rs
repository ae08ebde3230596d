//! A device that records its requests in flight, so that a hang is visible, measures the latency of
//! completed requests ([`Latency`]), and counts failed requests.
//!
//! A request is recorded when it begins and removed when it completes. The records are read even
//! while the device hangs, so their lock is a leaf and held neither during a request nor during a
//! completion. Memory is bounded by the number of requests that the device accepts at a time.
//!
//! A process that hands its device over to another process ends its own use of it here
//! ([`WatchedDevice::retire`]).
//!
//! Late requests are only reported. The device itself (a remote device has a time limit) and
//! administrators act on them.

use crate::latency::SMALL;
use crate::{Completion, CompletionSink, Device, DeviceErrors, Latency, LatencyKind, Request};
use kedge_base::{Clock, IoBuf, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Time in flight after which a request is *late*. A healthy disk completes a request within a
/// second or two even when it is busy.
pub const LATE: Duration = Duration::from_secs(5);

/// How long a release waits for requests in flight: a device that hangs must not delay it forever.
const RELEASE_WAIT: Duration = Duration::from_secs(1);

pub struct WatchedDevice {
    inner: Arc<dyn Device>,
    notes: Arc<Notes>,
}

/// The requests that a device has not completed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// Number of requests in flight.
    pub outstanding: usize,
    /// Number of requests in flight that are late.
    pub late: usize,
    pub oldest: Option<Oldest>,
    /// Number of requests that have completed late.
    pub answered_late: u64,
}

/// The request that has been in flight the longest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Oldest {
    /// The request's name in error messages.
    pub op: &'static str,
    pub age: Duration,
    /// Time at which the request began, in seconds since 1970.
    pub since: i64,
}

struct Notes {
    clock: Arc<dyn Clock>,
    errors: DeviceErrors,
    list: Mutex<List>,
    /// Notified when no request is in flight.
    idle: Condvar,
}

#[derive(Default)]
struct List {
    /// Whether the device is retired, so that no request may begin.
    retired: bool,
    next: u64,
    /// The requests in flight, in the order in which they began.
    begun: BTreeMap<u64, Begun>,
    answered_late: u64,
}

struct Begun {
    op: &'static str,
    at: Duration,
    since: i64,
}

impl WatchedDevice {
    pub fn new(inner: Arc<dyn Device>, clock: Arc<dyn Clock>) -> WatchedDevice {
        WatchedDevice {
            inner,
            notes: Arc::new(Notes {
                clock,
                errors: DeviceErrors::default(),
                list: Mutex::default(),
                idle: Condvar::new(),
            }),
        }
    }

    /// Ends the use of the device by this process, permanently. Returns when no request is in
    /// flight. A thread that begins a request later sleeps until the process ends: an error would
    /// look to users like a fault of the device.
    pub fn retire(&self) {
        let mut list = self.notes.list.lock();
        list.retired = true;
        self.notes.idle.wait_while(&mut list, |list| !list.begun.is_empty());
    }

    /// Returns the requests in flight now. Does not wait for the device.
    pub fn pending(&self) -> Pending {
        let now = self.notes.clock.monotonic();
        let list = self.notes.list.lock();
        let age = |begun: &Begun| now.saturating_sub(begun.at);
        Pending {
            outstanding: list.begun.len(),
            late: list.begun.values().take_while(|begun| age(begun) >= LATE).count(),
            oldest: list.begun.values().next().map(|begun| Oldest {
                op: begun.op,
                age: age(begun),
                since: begun.since,
            }),
            answered_late: list.answered_late,
        }
    }

    /// Runs a change of size. Its errors do not count as errors of requests.
    fn resize(&self, op: &'static str, f: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        let _noted = Noted { number: Some(self.notes.begin(&[op])), notes: &self.notes };
        f(&*self.inner)
    }

    /// Runs a request. `kind` is the kind under which its latency is sampled.
    fn call(
        &self,
        op: &'static str,
        kind: Option<LatencyKind>,
        f: impl FnOnce(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let noted = Noted { number: Some(self.notes.begin(&[op])), notes: &self.notes };
        let result = f(&*self.inner);
        let took = noted.end();
        match (&result, kind) {
            (Err(_), _) => self.notes.errors.count(op),
            (Ok(()), Some(kind)) => self.latency().record(kind, took),
            (Ok(()), None) => {}
        }
        result
    }
}

impl Notes {
    /// Records requests unless the device is retired. Returns the number of the first; the others
    /// have consecutive numbers.
    fn begin(&self, ops: &[&'static str]) -> u64 {
        let (at, since) = (self.clock.monotonic(), self.clock.now().sec);
        let mut list = self.list.lock();
        while list.retired {
            self.idle.wait(&mut list);
        }
        let first = list.next;
        list.next += ops.len() as u64;
        list.begun.extend((first..).zip(ops.iter().map(|op| Begun { op, at, since })));
        first
    }

    /// Removes a request. Returns its duration.
    fn end(&self, number: u64) -> Duration {
        let now = self.clock.monotonic();
        let mut list = self.list.lock();
        let begun = list.begun.remove(&number);
        if list.begun.is_empty() {
            self.idle.notify_all();
        }
        let took = begun.map_or(Duration::ZERO, |begun| now.saturating_sub(begun.at));
        if took >= LATE {
            list.answered_late += 1;
        }
        took
    }
}

/// A recorded call of the synchronous interface. Dropping it removes the record, even if the device
/// panics.
struct Noted<'a> {
    /// Number of the recorded request; `None` after its removal.
    number: Option<u64>,
    notes: &'a Notes,
}

impl Noted<'_> {
    fn end(mut self) -> Duration {
        self.number.take().map_or(Duration::ZERO, |number| self.notes.end(number))
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            self.notes.end(number);
        }
    }
}

/// The sink that a batch has at the device below. It forwards to the caller's sink. At the device
/// below, the tag of a request is its index in the batch.
struct WatchedSink {
    sink: Arc<dyn CompletionSink>,
    notes: Arc<Notes>,
    /// Where times are sampled; `None` for a batch that is not sampled.
    latency: Option<Arc<Latency>>,
    first: u64,
    tags: Vec<u64>,
    unanswered: AtomicUsize,
    times: Mutex<Times>,
}

/// The requests of a batch that are sampled together: small, successful, and of the kind of the
/// first to complete.
#[derive(Default)]
struct Times {
    kind: Option<LatencyKind>,
    first: Duration,
    last: Duration,
    count: u32,
}

impl Times {
    fn note(&mut self, completion: &Completion, took: Duration) {
        let kind = LatencyKind::of(&completion.op);
        if completion.result.is_err() || kind.is_none() || (self.kind.is_some() && self.kind != kind) {
            return;
        }
        if self.count == 0 {
            (self.kind, self.first) = (kind, took);
        }
        self.last = self.last.max(took);
        self.count += 1;
    }

    fn tell(&self, latency: &Latency) {
        let Some(kind) = self.kind else { return };
        latency.record(kind, self.first);
        if self.count > 1 {
            latency.record_interval(kind, self.last.saturating_sub(self.first) / (self.count - 1));
        }
    }
}

impl CompletionSink for WatchedSink {
    fn complete(&self, completion: Completion) {
        let place = completion.tag;
        let took = self.notes.end(self.first + place);
        if completion.result.is_err() {
            self.notes.errors.count(completion.op.name());
        }
        let mut times = self.times.lock();
        times.note(&completion, took);
        if self.unanswered.fetch_sub(1, Relaxed) == 1
            && let Some(latency) = &self.latency
        {
            times.tell(latency);
        }
        drop(times);
        self.sink.complete(Completion { tag: self.tags[place as usize], ..completion });
    }
}

impl Drop for WatchedSink {
    /// Removes the requests that never complete because the device panicked in the middle of a
    /// batch.
    fn drop(&mut self) {
        if *self.unanswered.get_mut() > 0 {
            (self.first..).zip(&self.tags).for_each(|(number, _)| {
                self.notes.end(number);
            });
        }
    }
}

impl WatchedDevice {
    /// Records the requests of a batch, and returns the sink that removes them.
    fn noted(
        &self,
        mut batch: Vec<Request>,
        sink: Arc<dyn CompletionSink>,
        latency: Option<Arc<Latency>>,
    ) -> (Vec<Request>, Arc<dyn CompletionSink>) {
        let ops: Vec<&'static str> = batch.iter().map(|request| request.op.name()).collect();
        let tags = batch.iter().map(|request| request.tag).collect();
        for (place, request) in (0..).zip(&mut batch) {
            request.tag = place;
        }
        let unanswered = AtomicUsize::new(batch.len());
        let first = self.notes.begin(&ops);
        let notes = self.notes.clone();
        let answers = WatchedSink { sink, notes, latency, first, tags, unanswered, times: Mutex::default() };
        (batch, Arc::new(answers))
    }
}

impl Device for WatchedDevice {
    crate::delegate!(inner: geometry, room, host_free, first_hole, stats, latency, name);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let (batch, answers) = self.noted(batch, sink, Some(self.latency().clone()));
        self.inner.submit(batch, answers);
    }

    /// The latency of these batches is not sampled. Batches that stay apart are submitted together,
    /// so all except one wait for others, but each would be sampled as a lone request.
    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let (batch, answers) = self.noted(batch, sink, None);
        self.inner.submit_apart(batch, answers);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        let kind = (buf.len() as u64 <= SMALL).then_some(LatencyKind::Read);
        self.call("read", kind, |device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        let kind = (buf.len() as u64 <= SMALL).then_some(LatencyKind::of_write(fua));
        self.call("write", kind, |device| device.write(offset, buf, fua))
    }

    fn flush(&self) -> Result<()> {
        self.call("flush", Some(LatencyKind::Flush), |device| device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.call("discard", None, |device| device.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.call("write_zeroes", None, |device| device.write_zeroes(offset, len))
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.resize("grow", |device| device.grow(size))
    }

    fn cut(&self, size: u64) -> Result<()> {
        self.resize("cut", |device| device.cut(size))
    }

    /// Waits up to `RELEASE_WAIT` for the requests in flight, which keep the device in use.
    fn release(&self) -> Result<()> {
        let mut list = self.notes.list.lock();
        self.notes.idle.wait_while_for(&mut list, |list| !list.begun.is_empty(), RELEASE_WAIT);
        drop(list);
        self.inner.release()
    }

    fn errors(&self) -> Option<&DeviceErrors> {
        Some(&self.notes.errors)
    }
}

#[cfg(test)]
#[path = "watched_tests.rs"]
mod tests;
