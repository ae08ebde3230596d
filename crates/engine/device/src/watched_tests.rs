use super::*;
use crate::sim::VolatileDevice;
use crate::{Io, MemDevice, Op, conformance, run_apart, run_batch, testing};
use kedge_base::{BLOCK_SIZE, ManualClock, SystemClock, spawn_named};
use parking_lot::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const B: u64 = BLOCK_SIZE as u64;

#[test]
fn the_contract_is_kept() {
    conformance::conform(&|size| {
        let clock = Arc::new(SystemClock::default());
        Arc::new(WatchedDevice::new(Arc::new(MemDevice::new(size)), clock))
    });
}

#[test]
fn flushes_and_fua_reach_the_device() {
    let medium = Arc::new(MemDevice::new(testing::SIZE));
    let volatile = || -> Arc<dyn Device> { Arc::new(VolatileDevice::new(medium.clone())) };
    let make =
        |_| -> Arc<dyn Device> { Arc::new(WatchedDevice::new(volatile(), Arc::new(SystemClock::default()))) };
    conformance::durable(&make, &|_| volatile());
}

type Batch = (Vec<Request>, Arc<dyn CompletionSink>);

/// A device that completes requests when the test releases them.
struct Hangs {
    inner: MemDevice,
    held: Mutex<bool>,
    released: Condvar,
    /// Number of requests that wait for their release.
    waiting: AtomicUsize,
    kept: Mutex<Vec<Batch>>,
}

impl Hangs {
    fn new() -> Arc<Hangs> {
        Arc::new(Hangs {
            inner: MemDevice::new(64 * B),
            held: Mutex::new(true),
            released: Condvar::new(),
            waiting: AtomicUsize::new(0),
            kept: Mutex::default(),
        })
    }

    fn wait(&self) {
        let mut held = self.held.lock();
        self.waiting.fetch_add(1, SeqCst);
        while *held {
            self.released.wait(&mut held);
        }
    }

    fn release(&self) {
        *self.held.lock() = false;
        self.released.notify_all();
        for (batch, sink) in std::mem::take(&mut *self.kept.lock()) {
            self.inner.submit(batch, sink);
        }
    }
}

impl Device for Hangs {
    crate::delegate!(inner: geometry, stats);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.waiting.fetch_add(batch.len(), SeqCst);
        self.kept.lock().push((batch, sink));
    }
    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.wait();
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.wait();
        self.inner.write(offset, buf, fua)
    }
    fn flush(&self) -> Result<()> {
        self.wait();
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.wait();
        self.inner.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.wait();
        self.inner.write_zeroes(offset, len)
    }
    fn name(&self) -> &str {
        "hangs"
    }
}

/// Tests both interfaces, while the device completes nothing and after it completes the requests at
/// last.
#[test]
fn what_hangs_is_told_and_forgotten_when_it_is_answered() {
    let (hangs, clock) = (Hangs::new(), Arc::new(ManualClock::default()));
    let device = Arc::new(WatchedDevice::new(hangs.clone(), clock.clone()));
    assert_eq!(device.pending(), Pending::default());
    let start = |name: &str, body: fn(&WatchedDevice)| {
        let device = device.clone();
        spawn_named(name, move || body(&device)).unwrap()
    };
    let mut threads = vec![start("flush", |device| device.flush().unwrap())];
    until(|| hangs.waiting.load(SeqCst) == 1);
    let before = clock.now().sec;
    let seen = device.pending();
    assert_eq!((seen.outstanding, seen.late), (1, 0), "{seen:?}");
    clock.advance(LATE);
    let seen = device.pending();
    assert_eq!((seen.outstanding, seen.late), (1, 1), "{seen:?}");
    threads.push(start("one", |device| device.write(0, &IoBuf::zeroed(1), true).unwrap()));
    threads.push(start("batch", |device| {
        let ios = (0..3).map(|i| Io { offset: i * B, op: Op::Read(IoBuf::zeroed(1)) }).collect();
        let done = run_batch(device, ios);
        assert_eq!(done.iter().map(|done| done.tag).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
    }));
    until(|| hangs.waiting.load(SeqCst) == 5);
    let seen = device.pending();
    assert_eq!((seen.outstanding, seen.late, seen.answered_late), (5, 1, 0), "{seen:?}");
    let oldest = seen.oldest.unwrap();
    assert_eq!((oldest.op, oldest.since), ("flush", before));
    assert!(oldest.age >= LATE, "{oldest:?}");
    hangs.release();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(device.pending(), Pending { answered_late: 1, ..Pending::default() });
}

/// Requests in flight complete first. Later requests, of each kind, never reach the device.
#[test]
fn a_retired_device_gets_no_request() {
    let hangs = Hangs::new();
    let device = Arc::new(WatchedDevice::new(hangs.clone(), Arc::new(SystemClock::default())));
    let start = |name: &str, body: fn(&WatchedDevice)| {
        let device = device.clone();
        spawn_named(name, move || body(&device)).unwrap()
    };
    let writes = start("writes", |device| device.write(0, &IoBuf::zeroed(1), true).unwrap());
    until(|| hangs.waiting.load(SeqCst) == 1);
    let retires = start("retires", WatchedDevice::retire);
    until(|| device.notes.list.lock().retired);
    let begun = Arc::new(AtomicUsize::new(0));
    // These threads sleep until the test process ends.
    let late: [fn(&WatchedDevice); 3] = [
        |device| device.flush().unwrap(),
        |device| drop(run_batch(device, vec![Io { offset: 0, op: Op::Flush }])),
        |device| device.grow(65 * B).unwrap(),
    ];
    for body in late {
        let (device, begun) = (device.clone(), begun.clone());
        let begins = move || {
            begun.fetch_add(1, SeqCst);
            body(&device);
            begun.fetch_add(1, SeqCst);
        };
        drop(spawn_named("late", begins).unwrap());
    }
    until(|| begun.load(SeqCst) == 3);
    assert!(!retires.is_finished(), "a write is in flight");
    hangs.release();
    writes.join().unwrap();
    retires.join().unwrap();
    kedge_base::pause(Duration::from_millis(20));
    assert_eq!((hangs.waiting.load(SeqCst), begun.load(SeqCst)), (1, 3));
}

fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

/// Completions have the caller's tags, whatever their values.
#[test]
fn tags_come_back_as_they_were() {
    struct Tags(Mutex<Vec<u64>>);
    impl CompletionSink for Tags {
        fn complete(&self, completion: Completion) {
            self.0.lock().push(completion.tag);
        }
    }
    let device = WatchedDevice::new(Arc::new(MemDevice::new(8 * B)), Arc::new(ManualClock::default()));
    let sink = Arc::new(Tags(Mutex::default()));
    let batch = [7, 7, u64::MAX, 0].map(|tag| Request { tag, offset: 0, op: Op::Flush });
    device.submit(batch.into(), sink.clone());
    assert_eq!(*sink.0.lock(), [7, 7, u64::MAX, 0]);
    assert_eq!(device.pending(), Pending::default());
}

/// A request during which the device panicked does not count as hanging.
#[test]
fn a_panic_is_no_wait() {
    struct Panics;
    impl CompletionSink for Panics {
        fn complete(&self, _: Completion) {
            panic!("a completion that panics, on purpose");
        }
    }
    let device = WatchedDevice::new(Arc::new(MemDevice::new(8 * B)), Arc::new(ManualClock::default()));
    let batch = || [0, 1].map(|tag| Request { tag, offset: 0, op: Op::Flush });
    let submit = || device.submit(batch().into(), Arc::new(Panics));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit)).is_err());
    assert_eq!(device.pending(), Pending::default());
}

/// A device whose requests take time on the test's clock.
struct Slow {
    inner: MemDevice,
    clock: Arc<ManualClock>,
    fails: AtomicUsize,
    /// Number of batches submitted through [`Device::submit_apart`].
    apart: AtomicUsize,
}

impl Slow {
    fn new(inner: MemDevice, clock: Arc<ManualClock>) -> Arc<Slow> {
        Arc::new(Slow { inner, clock, fails: AtomicUsize::new(0), apart: AtomicUsize::new(0) })
    }

    fn serve<T>(&self, millis: u64, serve: impl FnOnce(&MemDevice) -> Result<T>) -> Result<T> {
        self.clock.advance(Duration::from_millis(millis));
        let result = serve(&self.inner);
        match self.fails.load(SeqCst) {
            0 => result,
            _ => Err(kedge_base::Error::NoSpace),
        }
    }
}

impl Device for Slow {
    crate::delegate!(inner: geometry, stats);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        crate::batch::submit_inline(self, batch, &*sink);
    }

    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.apart.fetch_add(1, SeqCst);
        self.submit(batch, sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.serve(3, |inner| inner.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.serve(if fua { 7 } else { 5 }, |inner| inner.write(offset, buf, fua))
    }

    fn flush(&self) -> Result<()> {
        self.serve(11, |inner| inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.serve(1, |inner| inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.serve(1, |inner| inner.write_zeroes(offset, len))
    }

    fn name(&self) -> &str {
        "slow"
    }
}

/// A device on which all requests of a batch together take the time of one read.
struct Together(Arc<Slow>);

impl Device for Together {
    crate::delegate!(0: geometry, read, write, flush, discard, write_zeroes, stats);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.0
            .serve(3, |inner| {
                inner.submit(batch, sink);
                Ok(())
            })
            .unwrap();
    }

    fn name(&self) -> &str {
        "together"
    }
}

#[test]
fn small_requests_that_succeed_are_timed_by_kind() {
    use LatencyKind::*;
    let clock = Arc::new(ManualClock::default());
    let slow = Slow::new(MemDevice::new(64 * B), clock.clone());
    slow.fails.store(1, SeqCst);
    let watched = WatchedDevice::new(slow.clone(), clock);
    let typical = |kind| watched.latency().typical(kind).map(|took| took.as_millis());
    let (small, large) = (|| IoBuf::zeroed(1), || IoBuf::zeroed(32));
    watched.write(0, &small(), false).unwrap_err();
    assert_eq!(typical(Write), None, "a failed request is not sampled");
    slow.fails.store(0, SeqCst);
    watched.read(0, &mut large()).unwrap();
    assert_eq!(typical(Read), None, "a large request is not sampled");
    watched.read(0, &mut small()).unwrap();
    watched.write(0, &small(), false).unwrap();
    watched.write(0, &small(), true).unwrap();
    watched.flush().unwrap();
    assert_eq!([Read, Write, DurableWrite, Flush].map(typical), [Some(3), Some(5), Some(7), Some(11)]);
    // All requests of a batch are timed from the start of the batch. The device serves these two
    // one after another.
    let read = |block: u64| Io { offset: block * B, op: Op::Read(small()) };
    let device = Arc::new(MemDevice::new(64 * B));
    let clock = Arc::new(ManualClock::default());
    let watched = WatchedDevice::new(Slow::new(device.fork(), clock.clone()), clock);
    run_batch(&watched, vec![read(0), read(1)]).into_iter().for_each(|done| done.result.unwrap());
    // The first request gives the latency. The second had to wait for the first.
    let typical = watched.latency().typical(Read).unwrap();
    assert_eq!(typical.as_millis(), 3);
    assert_eq!(watched.latency().at_once(Read), Some(1), "a device that serves one after another");
    // This device serves both requests at the same time.
    let clock = Arc::new(ManualClock::default());
    let distant = Slow::new(device.fork(), clock.clone());
    let watched = WatchedDevice::new(Arc::new(Together(distant)), clock);
    assert_eq!(watched.latency().at_once(Read), None);
    run_batch(&watched, (0..8).map(read).collect()).into_iter().for_each(|done| done.result.unwrap());
    assert_eq!(watched.latency().typical(Read).unwrap().as_millis(), 3);
    assert!(watched.latency().at_once(Read).unwrap() > 100);
}

/// A batch that stays apart reaches the device as one batch. It waits for earlier batches, so its
/// time does not measure the latency: a disk would appear slower and distant.
#[test]
fn batches_that_stay_apart_do_so_below_and_are_not_timed() {
    let clock = Arc::new(ManualClock::default());
    let slow = Slow::new(MemDevice::new(64 * B), clock.clone());
    let watched = WatchedDevice::new(slow.clone(), clock);
    let write = |block: u64| Io { offset: block * B, op: Op::Write { buf: IoBuf::zeroed(1), fua: false } };
    let groups = (0..8).map(|block| vec![write(2 * block), write(2 * block + 1)]).collect();
    let done = run_apart(&watched, groups);
    assert_eq!(done.iter().filter(|done| done.result.is_ok()).count(), 16);
    assert_eq!(slow.apart.load(SeqCst), 8);
    assert_eq!(watched.latency().typical(LatencyKind::Write), None);
    assert_eq!(watched.pending(), Pending::default());
    run_batch(&watched, vec![write(0), write(1)]).into_iter().for_each(|done| done.result.unwrap());
    assert_eq!(watched.latency().typical(LatencyKind::Write).unwrap().as_millis(), 5);
}
