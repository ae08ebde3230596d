//! Notes what a device has not answered, so that somebody can see that it hangs, and how long what
//! it has answered took ([`Latency`]). Counts the requests that failed.
//!
//! Each request is noted when it begins and struck out when it is answered. The notes are read
//! while the device hangs: their lock is a leaf, held for neither a request nor a completion.
//! Memory is bounded by the requests that the device takes at a time.
//!
//! Nothing is done about a request that is late: that is for the device (a server of another
//! machine has a time limit) and for people.

use crate::latency::SMALL;
use crate::{
    Completion, CompletionSink, Device, DeviceErrors, DeviceStats, Geometry, Latency, LatencyKind, Request,
};
use kedge_base::{Clock, IoBuf, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A request without an answer for longer is *late*. A disk that is healthy answers within a second
/// or two even when it is busy.
pub const LATE: Duration = Duration::from_secs(5);

pub struct WatchedDevice {
    inner: Arc<dyn Device>,
    notes: Arc<Notes>,
}

/// What a device owes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// Requests without an answer.
    pub outstanding: usize,
    /// Those of them that are late.
    pub late: usize,
    pub oldest: Option<Oldest>,
    /// Requests that were answered in the end, but late.
    pub answered_late: u64,
}

/// The request that waits the longest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Oldest {
    /// Its name in errors.
    pub op: &'static str,
    pub age: Duration,
    /// When it began, in seconds since 1970.
    pub since: i64,
}

struct Notes {
    clock: Arc<dyn Clock>,
    errors: DeviceErrors,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    next: u64,
    /// In the order in which they began.
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
            notes: Arc::new(Notes { clock, errors: DeviceErrors::default(), list: Mutex::default() }),
        }
    }

    /// What has no answer at this moment. Does not wait for the device.
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

    /// `kind`: what its time counts as.
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
    /// Notes requests, and answers the number of the first. The others follow it.
    fn begin(&self, ops: &[&'static str]) -> u64 {
        let (at, since) = (self.clock.monotonic(), self.clock.now().sec);
        let mut list = self.list.lock();
        let first = list.next;
        list.next += ops.len() as u64;
        list.begun.extend((first..).zip(ops.iter().map(|op| Begun { op, at, since })));
        first
    }

    /// Strikes a request out. Answers how long it took.
    fn end(&self, number: u64) -> Duration {
        let now = self.clock.monotonic();
        let mut list = self.list.lock();
        let begun = list.begun.remove(&number);
        let took = begun.map_or(Duration::ZERO, |begun| now.saturating_sub(begun.at));
        if took >= LATE {
            list.answered_late += 1;
        }
        took
    }
}

/// A call of the synchronous interface. It ends also when the device panics.
struct Noted<'a> {
    /// `None`: it is struck out.
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

/// Stands before the sink of a batch. Towards the device a request's tag is its place in the batch.
struct Answers {
    sink: Arc<dyn CompletionSink>,
    notes: Arc<Notes>,
    /// Where its times go. `None`: they say nothing.
    latency: Option<Arc<Latency>>,
    first: u64,
    tags: Vec<u64>,
    unanswered: AtomicUsize,
    times: Mutex<Times>,
}

/// The requests of a batch that are like the one that was answered first: small, of its kind, and
/// successful.
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

impl CompletionSink for Answers {
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

impl Drop for Answers {
    /// A device that panics in the middle of a batch leaves requests that nobody will answer.
    fn drop(&mut self) {
        if *self.unanswered.get_mut() > 0 {
            (self.first..).zip(&self.tags).for_each(|(number, _)| {
                self.notes.end(number);
            });
        }
    }
}

impl WatchedDevice {
    /// Notes that the requests of a batch begin, and who is told when they end.
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
        let answers = Answers { sink, notes, latency, first, tags, unanswered, times: Mutex::default() };
        (batch, Arc::new(answers))
    }
}

impl Device for WatchedDevice {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let (batch, answers) = self.noted(batch, sink, Some(self.latency().clone()));
        self.inner.submit(batch, answers);
    }

    /// Not timed: batches that stay apart are submitted at once, so all but one of them wait for
    /// others as the requests of one batch do. Each would count as a request alone.
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

    fn host_free(&self) -> Option<u64> {
        self.inner.host_free()
    }

    fn first_hole(&self, offset: u64, len: u64) -> Option<u64> {
        self.inner.first_hole(offset, len)
    }

    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }

    fn latency(&self) -> &Arc<Latency> {
        self.inner.latency()
    }

    fn errors(&self) -> Option<&DeviceErrors> {
        Some(&self.notes.errors)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }
}

#[cfg(test)]
#[path = "watched_tests.rs"]
mod tests;
