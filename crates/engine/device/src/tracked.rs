//! A device that finds out whether a failed flush or a failed FUA write may have lost other writes,
//! and from then on acknowledges no write as durable.
//!
//! A device that fails a flush may drop its cache. It reports that once, and the next flush may
//! succeed. A FUA write may be a write and a flush, made by this process, by the kernel or by a
//! server, and its error need not show which of the two failed. So a failed FUA write counts as a
//! failed flush if its error names the flush, or if any other write may have been in the cache: a
//! write that was not flushed when the FUA write began, or one that began before the FUA write
//! ended. Other FUA writes in flight count, too, because each may still wait for its own flush. If
//! there was no other write, only the FUA write's own bytes are lost.
//!
//! All plain writes count, whatever the engine writes with them: file data, tree nodes, bitmaps,
//! log writes, copies of blocks, zeros. So no caller has to list the kinds of writes that a flush
//! may lose. A plain write that failed does not count, because no caller relies on its bytes.
//! Discards do not count either: a lost discard loses no bytes.
//!
//! # Two requests at once
//! One flush may succeed while another one, or a FUA write, fails and has already lost what the
//! first one should have made durable. [`TrackedDevice::confirm`] waits for all flushes and FUA
//! writes in flight and fails if any of them may have lost writes. A checkpoint calls it after its
//! flush and after its slot, because the space that only the previous checkpoint needs is reused
//! next. An fsync does not wait for the requests of other callers: if such a failure is reported
//! after the flush of the fsync has succeeded, the fsync may return success for lost bytes, and the
//! file system shuts down immediately after it.
//!
//! Locks: two leaves, never held during a request or a completion of the caller.

use crate::{Completion, CompletionSink, Device, DeviceErrors, Op, Request};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Condvar, Mutex as RankedMutex, Rank};
use kedge_base::{Error, IoBuf, Result, errno};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct TrackedDevice {
    inner: Arc<dyn Device>,
    cache: Arc<Cache>,
}

struct Cache {
    state: Mutex<State>,
    /// Taken by threads in [`TrackedDevice::confirm`], and before they are notified.
    confirms: RankedMutex<()>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of plain writes that are in flight or have succeeded.
    plain: u64,
    /// Number of plain writes that have succeeded.
    written: u64,
    /// Number of successful plain writes that a flush has made durable.
    flushed: u64,
    /// Number of FUA writes that have begun, and of those that are in flight.
    fua: u64,
    fua_in_flight: u64,
    /// Number of the next flush or FUA write, and the numbers of those in flight.
    next: u64,
    in_flight: BTreeSet<u64>,
    /// Whether a failed request may have lost other writes.
    lost: bool,
    /// Whether a thread has waited in [`TrackedDevice::confirm`].
    waited_for: bool,
}

/// A request in flight.
enum Begun {
    /// A read or a discard.
    Other,
    Plain,
    /// `alone`: the numbers of plain writes and FUA writes that had begun, if no other write was in
    /// flight or waited for a flush.
    Fua {
        number: u64,
        alone: Option<(u64, u64)>,
    },
    /// `covers`: number of plain writes that had succeeded.
    Flush {
        number: u64,
        covers: u64,
    },
}

/// The kinds of requests that differ here.
#[derive(Clone, Copy)]
enum Kind {
    Other,
    Plain,
    Fua,
    Flush,
}

impl Kind {
    fn of(op: &Op) -> Kind {
        match op {
            Op::Read(_) | Op::Discard { .. } => Kind::Other,
            Op::Write { fua: true, .. } => Kind::Fua,
            Op::Write { .. } | Op::WriteZeroes { .. } => Kind::Plain,
            Op::Flush => Kind::Flush,
        }
    }
}

fn lost() -> Error {
    Error::Io { op: "flush", offset: 0, len: 0, errno: errno::EIO }
}

impl State {
    fn begin(&mut self, kind: Kind) -> Begun {
        match kind {
            Kind::Other => Begun::Other,
            Kind::Plain => {
                self.plain += 1;
                Begun::Plain
            }
            Kind::Fua => {
                let alone = self.flushed == self.plain && self.fua_in_flight == 0;
                self.fua += 1;
                self.fua_in_flight += 1;
                Begun::Fua { number: self.number(), alone: alone.then_some((self.plain, self.fua)) }
            }
            Kind::Flush => Begun::Flush { covers: self.written, number: self.number() },
        }
    }

    fn number(&mut self) -> u64 {
        self.in_flight.insert(self.next);
        self.next += 1;
        self.next - 1
    }

    /// Records the end of a request. Returns its result: success only if no writes may be lost.
    fn end(&mut self, begun: &Begun, result: Result<()>) -> Result<()> {
        match (begun, &result) {
            (Begun::Other, _) => return result,
            (Begun::Plain, Ok(())) => {
                self.written += 1;
                return result;
            }
            (Begun::Plain, Err(_)) => {
                self.plain -= 1;
                return result;
            }
            (Begun::Fua { number, alone }, _) => {
                self.in_flight.remove(number);
                self.fua_in_flight -= 1;
                // Broken on purpose: the flush of a durable write loses nothing.
                if let Err(e) = &result
                    && (e.is_failed_flush() || *alone != Some((self.plain, self.fua)))
                    && !broken::is(Variant::LostByDurableWrite)
                {
                    self.lost = true;
                }
            }
            (Begun::Flush { number, covers }, _) => {
                self.in_flight.remove(number);
                match &result {
                    Ok(()) => self.flushed = self.flushed.max(*covers),
                    Err(_) => self.lost = true,
                }
            }
        }
        result.and_then(|()| self.check())
    }

    fn check(&self) -> Result<()> {
        if self.lost { Err(lost()) } else { Ok(()) }
    }
}

impl Cache {
    fn begin(&self, kind: Kind) -> Begun {
        self.state.lock().begin(kind)
    }

    fn end(&self, begun: &Begun, result: Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let result = state.end(begun, result);
        let notify = state.waited_for && matches!(begun, Begun::Fua { .. } | Begun::Flush { .. });
        drop(state);
        if notify {
            // A thread in `confirm` holds this lock except while it waits. So it either has seen
            // this request end, or waits for the notification.
            drop(self.confirms.lock());
            self.ended.notify_all();
        }
        result
    }

    /// Records a failed change of size, whose flush may be what failed.
    fn note_resize(&self, e: &Error) {
        self.state.lock().lost |= e.is_failed_flush();
    }
}

impl TrackedDevice {
    pub fn new(inner: Arc<dyn Device>) -> TrackedDevice {
        let confirms = RankedMutex::with_order(Rank::Leaf, u64::MAX, ());
        let cache = Cache { state: Mutex::default(), confirms, ended: Condvar::new() };
        TrackedDevice { inner, cache: Arc::new(cache) }
    }

    /// The device below. Writes that are made there may be lost without notice.
    pub fn untracked(&self) -> &dyn Device {
        &*self.inner
    }

    /// Whether a failed flush or FUA write may have lost other writes. From then on no flush and no
    /// FUA write succeeds.
    pub fn has_lost_writes(&self) -> bool {
        self.cache.state.lock().lost
    }

    /// Waits for the flushes and FUA writes that are in flight. Fails if writes may have been lost.
    pub fn confirm(&self) -> Result<()> {
        let state = self.cache.state.lock();
        if state.in_flight.is_empty() {
            return state.check();
        }
        let upto = state.next;
        drop(state);
        let mut confirms = self.cache.confirms.lock();
        loop {
            let mut state = self.cache.state.lock();
            state.check()?;
            if state.in_flight.first().is_none_or(|oldest| *oldest >= upto) {
                return Ok(());
            }
            state.waited_for = true;
            drop(state);
            self.cache.ended.wait(&mut confirms);
        }
    }

    fn call(&self, kind: Kind, request: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        let begun = self.cache.begin(kind);
        let mut unended = Unended { cache: &self.cache, begun: Some(begun) };
        let result = request(&*self.inner);
        match unended.begun.take() {
            Some(begun) => self.cache.end(&begun, result),
            None => result,
        }
    }

    fn tracked(
        &self,
        mut batch: Vec<Request>,
        sink: Arc<dyn CompletionSink>,
    ) -> (Vec<Request>, Arc<dyn CompletionSink>) {
        let kinds: Vec<Kind> = batch.iter().map(|request| Kind::of(&request.op)).collect();
        if kinds.iter().all(|kind| matches!(kind, Kind::Other)) {
            return (batch, sink);
        }
        let mut state = self.cache.state.lock();
        let begun = kinds.into_iter().map(|kind| Some(state.begin(kind))).collect();
        drop(state);
        let tags = batch.iter().map(|request| request.tag).collect();
        for (place, request) in (0..).zip(&mut batch) {
            request.tag = place;
        }
        let sink = TrackedSink { sink, cache: self.cache.clone(), tags, begun: Mutex::new(begun) };
        (batch, Arc::new(sink))
    }
}

/// A call of the synchronous interface. If the device panics, the request ends as failed.
struct Unended<'a> {
    cache: &'a Cache,
    begun: Option<Begun>,
}

impl Drop for Unended<'_> {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            // The panic is what the caller gets.
            let _ = self.cache.end(&begun, Err(lost()));
        }
    }
}

/// The sink that a batch has at the device below. There, the tag of a request is its index in the
/// batch.
struct TrackedSink {
    sink: Arc<dyn CompletionSink>,
    cache: Arc<Cache>,
    tags: Vec<u64>,
    /// The requests in flight; `None` for one that has completed.
    begun: Mutex<Vec<Option<Begun>>>,
}

impl CompletionSink for TrackedSink {
    fn complete(&self, completion: Completion) {
        let place = completion.tag as usize;
        let begun = self.begun.lock()[place].take().expect("a request completes once");
        let result = self.cache.end(&begun, completion.result);
        self.sink.complete(Completion { tag: self.tags[place], op: completion.op, result });
    }
}

impl Drop for TrackedSink {
    /// Ends the requests that never complete because the device panicked in the middle of a batch.
    fn drop(&mut self) {
        for begun in self.begun.get_mut().drain(..).flatten() {
            // There is no caller that could get the error.
            let _ = self.cache.end(&begun, Err(lost()));
        }
    }
}

impl Device for TrackedDevice {
    crate::delegate!(inner: geometry, read, discard, release, room, host_free, first_hole);
    crate::delegate!(inner: stats, latency, name);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let (batch, sink) = self.tracked(batch, sink);
        self.inner.submit(batch, sink);
    }

    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let (batch, sink) = self.tracked(batch, sink);
        self.inner.submit_apart(batch, sink);
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        let kind = if fua { Kind::Fua } else { Kind::Plain };
        self.call(kind, |device| device.write(offset, buf, fua))
    }

    fn flush(&self) -> Result<()> {
        self.call(Kind::Flush, |device| device.flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.call(Kind::Plain, |device| device.write_zeroes(offset, len))
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.inner.grow(size).inspect_err(|e| self.cache.note_resize(e))
    }

    fn cut(&self, size: u64) -> Result<()> {
        self.inner.cut(size).inspect_err(|e| self.cache.note_resize(e))
    }

    fn errors(&self) -> Option<&DeviceErrors> {
        self.inner.errors()
    }
}

#[cfg(test)]
#[path = "tracked_tests.rs"]
mod tests;
