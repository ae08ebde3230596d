//! A device for the machine: its requests take virtual time, and batches complete on threads of
//! their own, as with a file.

use kedge_base::lock::{Condvar, Mutex, Rank, device_point};
use kedge_base::machine;
use kedge_base::{IoBuf, Result, pause, spawn_named};
use kedge_device::sim::SimDevice;
use kedge_device::{Completion, CompletionSink, Device, Op, Request, delegate};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Number of requests of batches that are served at the same time.
const DEPTH: usize = 2;
const NAME: &str = "disk";

type Queued = (Request, Arc<dyn CompletionSink>);

/// See the module. Its threads work until it is dropped.
pub struct Disk {
    shared: Arc<Shared>,
}

struct Shared {
    below: Arc<SimDevice>,
    /// The state of a random generator for latencies.
    random: AtomicU64,
    queue: Mutex<(VecDeque<Queued>, bool)>,
    changed: Condvar,
}

impl Disk {
    /// Must be called by a thread of the machine.
    pub fn new(below: Arc<SimDevice>, seed: u64) -> std::io::Result<Disk> {
        let shared = Arc::new(Shared {
            below,
            random: AtomicU64::new(seed | 1),
            // The queue's lock is last in the lock order, since a thread may submit with any lock
            // that may be held across IO.
            queue: Mutex::with_order(Rank::Leaf, u64::MAX - 1, Default::default()),
            changed: Condvar::new(),
        });
        for _ in 0..DEPTH {
            let served = shared.clone();
            spawn_named(NAME, move || served.serve())?;
        }
        Ok(Disk { shared })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shared.queue.lock().1 = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn serve(&self) {
        loop {
            let (Request { tag, offset, mut op }, sink) = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(request) = queue.0.pop_front() {
                        break request;
                    }
                    if queue.1 {
                        return;
                    }
                    self.changed.wait(&mut queue);
                }
            };
            let result = match &mut op {
                Op::Read(buf) => self.read(offset, buf),
                Op::Write { buf, fua } => self.write(offset, buf, *fua),
                Op::Flush => self.flush(),
                Op::Discard { len } => self.discard(offset, *len),
                Op::WriteZeroes { len } => self.write_zeroes(offset, *len),
            };
            sink.complete(Completion { tag, op, result });
        }
    }

    /// Lets virtual time pass, runs the request, and lets time pass again.
    fn timed(&self, reads: bool, run: impl FnOnce() -> Result<()>) -> Result<()> {
        device_point(reads);
        let mut random = self.random.load(Relaxed);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.store(random, Relaxed);
        pause(Duration::from_micros(random % 60));
        let result = run();
        machine::note(u64::from(result.is_ok()));
        pause(Duration::from_micros(random / 60 % 60));
        result
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.timed(true, || self.below.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        machine::note(offset);
        let words = buf.as_bytes().as_chunks::<8>().0;
        machine::note(words.iter().fold(0, |sum: u64, word| {
            (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x0100_0000_01b3).rotate_left(5)
        }));
        self.timed(false, || self.below.write(offset, buf, fua))
    }

    fn flush(&self) -> Result<()> {
        self.timed(false, || self.below.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.timed(false, || self.below.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.timed(false, || self.below.write_zeroes(offset, len))
    }
}

impl Device for Disk {
    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let mut queue = self.shared.queue.lock();
        queue.0.extend(batch.into_iter().map(|request| (request, sink.clone())));
        drop(queue);
        self.shared.changed.notify_all();
    }

    delegate!(shared.below: geometry, stats, grow, cut, room, host_free, first_hole, latency, name);
    delegate!(shared: read, write, flush, discard, write_zeroes);
}
