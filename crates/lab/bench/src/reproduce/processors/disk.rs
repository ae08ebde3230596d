//! A device in memory whose requests take time, on real threads as on simulated ones.
//!
//! A request waits for one of `depth` channels, gets its share of the bandwidth, and then takes the
//! latency. Flushes and FUA writes take longer. The bytes are changed at once, and the request
//! completes later, as with a real device.

use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{Clock, IoBuf, JoinHandle, Result, SystemClock, pause, spawn_named};
use kedge_device::{Completion, CompletionSink, Device, MemDevice, Op, Request, delegate};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The times that requests take.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub latency: Duration,
    /// Number of requests that are served at a time.
    pub depth: usize,
    pub bytes_per_second: u64,
    /// The additional time of a flush or a FUA write.
    pub flush: Duration,
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device: latency {} µs, {} requests at a time, {} MB/s, a flush or FUA write {} µs more",
            self.latency.as_micros(),
            self.depth,
            self.bytes_per_second / 1_000_000,
            self.flush.as_micros()
        )
    }
}

/// Order of the queue's lock: the last that a thread takes. There is only one such device.
const LAST: u64 = u64::MAX - 1;

type Done = (Completion, Arc<dyn CompletionSink>);

#[derive(Default)]
struct Queue {
    /// By the time of completion and the order of submission.
    done: BTreeMap<(Duration, u64), Done>,
    submitted: u64,
    /// The time at which each channel becomes free.
    channels: Vec<Duration>,
    /// The time at which the last byte is transferred.
    link: Duration,
    closed: bool,
}

struct Shared {
    below: MemDevice,
    speed: Speed,
    clock: SystemClock,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// See the module.
pub struct TimedDisk {
    shared: Arc<Shared>,
    /// `None` only during drop.
    completer: Option<JoinHandle<()>>,
}

impl TimedDisk {
    pub fn new(size: u64, speed: Speed) -> std::io::Result<TimedDisk> {
        let queue = Queue { channels: vec![Duration::ZERO; speed.depth], ..Queue::default() };
        let shared = Arc::new(Shared {
            below: MemDevice::new(size),
            speed,
            clock: SystemClock::default(),
            queue: Mutex::with_order(Rank::Leaf, LAST, queue),
            changed: Condvar::new(),
        });
        let served = shared.clone();
        let completer = Some(spawn_named("disk", move || served.complete())?);
        Ok(TimedDisk { shared, completer })
    }
}

impl Drop for TimedDisk {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(completer) = self.completer.take() {
            // A panic of the thread was printed already, and drop cannot return it.
            let _ = completer.join();
        }
    }
}

impl Shared {
    /// The time at which a request completes that is submitted now.
    fn ends(&self, queue: &mut Queue, bytes: usize, flushes: bool) -> Duration {
        let now = self.clock.monotonic();
        let channel = queue.channels.iter_mut().min().expect("at least one channel");
        let transfer = bytes as u64 * 1_000_000_000 / self.speed.bytes_per_second;
        queue.link = queue.link.max(now).max(*channel) + Duration::from_nanos(transfer);
        let flush = if flushes { self.speed.flush } else { Duration::ZERO };
        *channel = queue.link + self.speed.latency + flush;
        *channel
    }

    fn wait(&self, bytes: usize, flushes: bool) {
        let ends = self.ends(&mut self.queue.lock(), bytes, flushes);
        pause(ends.saturating_sub(self.clock.monotonic()));
    }

    fn perform(&self, offset: u64, op: &mut Op) -> Result<()> {
        match op {
            Op::Read(buf) => self.below.read(offset, buf),
            Op::Write { buf, fua } => self.below.write(offset, buf, *fua),
            Op::Flush => self.below.flush(),
            Op::Discard { len } => self.below.discard(offset, *len),
            Op::WriteZeroes { len } => self.below.write_zeroes(offset, *len),
        }
    }

    fn complete(&self) {
        let mut queue = self.queue.lock();
        loop {
            let next = queue.done.first_key_value().map(|((at, _), _)| *at);
            let now = self.clock.monotonic();
            match next {
                Some(at) if at <= now => {
                    let (_, (completion, sink)) = queue.done.pop_first().expect("there is one");
                    drop(queue);
                    sink.complete(completion);
                    queue = self.queue.lock();
                }
                Some(at) => _ = self.changed.wait_for(&mut queue, at.saturating_sub(now)),
                None if queue.closed => return,
                None => self.changed.wait(&mut queue),
            }
        }
    }
}

fn cost(op: &Op) -> (usize, bool) {
    match op {
        Op::Read(buf) => (buf.len(), false),
        Op::Write { buf, fua } => (buf.len(), *fua),
        Op::Flush => (0, true),
        Op::Discard { .. } | Op::WriteZeroes { .. } => (0, false),
    }
}

impl Device for TimedDisk {
    delegate!(shared.below: geometry, stats);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let shared = &self.shared;
        for Request { tag, offset, mut op } in batch {
            let (bytes, flushes) = cost(&op);
            let result = shared.perform(offset, &mut op);
            let mut queue = shared.queue.lock();
            let at = shared.ends(&mut queue, bytes, flushes);
            let first = queue.done.first_key_value().is_none_or(|((next, _), _)| at < *next);
            queue.submitted += 1;
            let place = (at, queue.submitted);
            queue.done.insert(place, (Completion { tag, op, result }, sink.clone()));
            drop(queue);
            if first {
                shared.changed.notify_all();
            }
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.shared.wait(buf.len(), false);
        self.shared.below.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.shared.wait(buf.len(), fua);
        self.shared.below.write(offset, buf, fua)
    }

    fn flush(&self) -> Result<()> {
        self.shared.wait(0, true);
        self.shared.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.shared.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.shared.below.write_zeroes(offset, len)
    }

    fn name(&self) -> &str {
        "a device in memory"
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
