//! Notes what a device has not answered, so that somebody can see that it hangs.
//!
//! Each request is noted when it begins and struck out when it is answered. The notes are read
//! while the device hangs: their lock is a leaf, held for neither a request nor a completion.
//! Memory is bounded by the requests that the device takes at a time.
//!
//! Nothing is done about a request that is late: that is for the device (a server of another
//! machine has a time limit) and for people.

use crate::{Completion, CompletionSink, Device, DeviceStats, Geometry, Request};
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
        WatchedDevice { inner, notes: Arc::new(Notes { clock, list: Mutex::default() }) }
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

    fn call<T>(&self, op: &'static str, f: impl FnOnce(&dyn Device) -> T) -> T {
        let _struck_out_at_the_end = Noted { first: self.notes.begin(&[op]), notes: &self.notes };
        f(&*self.inner)
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

    fn end(&self, number: u64) {
        let now = self.clock.monotonic();
        let mut list = self.list.lock();
        if list.begun.remove(&number).is_some_and(|begun| now.saturating_sub(begun.at) >= LATE) {
            list.answered_late += 1;
        }
    }
}

/// A call of the synchronous interface. It ends also when the device panics.
struct Noted<'a> {
    first: u64,
    notes: &'a Notes,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.notes.end(self.first);
    }
}

/// Stands before the sink of a batch. Towards the device a request's tag is its place in the batch.
struct Answers {
    sink: Arc<dyn CompletionSink>,
    notes: Arc<Notes>,
    first: u64,
    tags: Vec<u64>,
    unanswered: AtomicUsize,
}

impl CompletionSink for Answers {
    fn complete(&self, completion: Completion) {
        let place = completion.tag;
        self.notes.end(self.first + place);
        self.unanswered.fetch_sub(1, Relaxed);
        self.sink.complete(Completion { tag: self.tags[place as usize], ..completion });
    }
}

impl Drop for Answers {
    /// A device that panics in the middle of a batch leaves requests that nobody will answer.
    fn drop(&mut self) {
        if *self.unanswered.get_mut() > 0 {
            (self.first..).zip(&self.tags).for_each(|(number, _)| self.notes.end(number));
        }
    }
}

impl Device for WatchedDevice {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn submit(&self, mut batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let ops: Vec<&'static str> = batch.iter().map(|request| request.op.name()).collect();
        let tags = batch.iter().map(|request| request.tag).collect();
        for (place, request) in (0..).zip(&mut batch) {
            request.tag = place;
        }
        let unanswered = AtomicUsize::new(batch.len());
        let first = self.notes.begin(&ops);
        let answers = Answers { sink, notes: self.notes.clone(), first, tags, unanswered };
        self.inner.submit(batch, Arc::new(answers));
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.call("read", |device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.call("write", |device| device.write(offset, buf, fua))
    }

    fn flush(&self) -> Result<()> {
        self.call("flush", |device| device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.call("discard", |device| device.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.call("write_zeroes", |device| device.write_zeroes(offset, len))
    }

    fn host_free(&self) -> Option<u64> {
        self.inner.host_free()
    }

    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }
}

#[cfg(test)]
#[path = "watched_tests.rs"]
mod tests;
