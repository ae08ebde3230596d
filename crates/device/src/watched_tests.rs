use super::*;
use crate::sim::VolatileDevice;
use crate::{Io, MemDevice, Op, conformance, run_batch, testing};
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

/// A device that answers when it is told to.
struct Hangs {
    inner: MemDevice,
    held: Mutex<bool>,
    released: Condvar,
    /// Requests that wait here.
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
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }
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
    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
    fn name(&self) -> &str {
        "hangs"
    }
}

/// Both doors, while the device answers nothing and when it answers at last.
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

fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

/// Tags are the caller's, whatever they are.
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

/// A request whose device panics is not one that hangs.
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
