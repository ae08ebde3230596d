//! Tests of the crate's contract, which every device must pass, whatever its medium.
//!
//! [`conform`] needs a function that makes a device of zeros. [`durable`] needs a device whose
//! power can be cut, and [`one_writer`] a device that is opened by name.

use crate::testing::{self, SIZE, expect, pattern, refuses_bad_ranges, run, steps};
use crate::{Completion, CompletionSink, Device, Io, Op, OpenOptions, Request, run_batch};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result, spawn_named};
use parking_lot::{Condvar, Mutex};
use proptest::test_runner::{Config, TestRunner};
use std::sync::Arc;

const B: u64 = BLOCK_SIZE as u64;
/// Number of random histories that run on each device.
const HISTORIES: u32 = 8;

/// Makes a device of the given size in bytes, filled with zeros.
pub type Make<'a> = &'a dyn Fn(u64) -> Arc<dyn Device>;

/// Runs all tests that need nothing but a device.
pub fn conform(make: Make<'_>) {
    let config = Config { cases: HISTORIES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&steps(), |steps| {
        run(&*make(SIZE), &mut vec![0; SIZE as usize], &steps);
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
    refuses_bad_ranges(&*make(SIZE));
    doors_agree(&*make(SIZE));
    the_size_is_true(&*make(SIZE));
    zeroes_and_discards_keep_to_their_range(&*make(SIZE));
    a_big_batch_is_served_whole(make);
    many_threads_at_once(make);
    completions_may_submit_and_drop_the_device(make(SIZE));
    a_panicking_completion_hangs_nobody(make(SIZE));
}

/// The synchronous and the asynchronous interface read and write the same bytes and count them in
/// the same way. Empty requests are valid.
fn doors_agree(device: &dyn Device) {
    device.write(0, &IoBuf::from_bytes(&pattern(0, 3, 1)), false).unwrap();
    let ios = vec![
        Io { offset: 3 * B, op: Op::Write { buf: IoBuf::from_bytes(&pattern(3, 3, 2)), fua: false } },
        Io { offset: 6 * B, op: Op::Write { buf: IoBuf::from_bytes(&pattern(6, 3, 3)), fua: true } },
        Io { offset: 0, op: Op::Flush },
        Io { offset: 9 * B, op: Op::Write { buf: IoBuf::default(), fua: true } },
        Io { offset: SIZE, op: Op::Read(IoBuf::default()) },
        Io { offset: 0, op: Op::WriteZeroes { len: 0 } },
    ];
    let done = run_batch(device, ios);
    assert_eq!(done.len(), 6);
    for (i, one) in done.iter().enumerate() {
        assert!(one.result.is_ok(), "{one:?}");
        assert_eq!(one.tag, i as u64, "completions stand in the order of the requests");
    }
    assert!(matches!(&done[0].op, Op::Write { buf, .. } if buf.as_bytes() == pattern(3, 3, 2)));
    let mut model = vec![0; SIZE as usize];
    for (at, fill) in [(0, 1), (3, 2), (6, 3)] {
        model[(at * B) as usize..][..3 * BLOCK_SIZE].copy_from_slice(&pattern(at, 3, fill));
    }
    expect(device, &model, 0, 9);
    let s = device.stats();
    assert_eq!((s.writes.get(), s.fua_writes.get(), s.flushes.get()), (4, 2, 1));
    assert_eq!((s.write_bytes.get(), s.reads.get(), s.read_bytes.get()), (9 * B, 2, 9 * B));
}

/// The last block can be used, and a request beyond it is refused.
fn the_size_is_true(device: &dyn Device) {
    let size = device.geometry().size;
    assert_eq!(size, SIZE);
    assert!(device.geometry().optimal_io >= BLOCK_SIZE as u32);
    device.write(size - B, &IoBuf::from_bytes(&pattern(7, 1, 7)), true).unwrap();
    let mut buf = IoBuf::zeroed(1);
    device.read(size - B, &mut buf).unwrap();
    assert!(buf.as_bytes() == pattern(7, 1, 7));
}

/// Tests ranges down to one block: a server that works in larger units must not lose or add a byte.
fn zeroes_and_discards_keep_to_their_range(device: &dyn Device) {
    let blocks = SIZE / B;
    let mut model = pattern(0, blocks, 5);
    device.write(0, &IoBuf::from_bytes(&model), false).unwrap();
    for (at, len) in [(1, 1), (5, 15), (33, 16), (blocks - 1, 1)] {
        device.write_zeroes(at * B, len * B).unwrap();
        model[(at * B) as usize..][..(len * B) as usize].fill(0);
    }
    expect(device, &model, 0, blocks);
    let geometry = device.geometry();
    if geometry.discard_granularity == 0 {
        return;
    }
    for (at, len) in [(3, 1), (60, 7)] {
        device.discard(at * B, len * B).unwrap();
        let range = (at * B) as usize..((at + len) * B) as usize;
        if geometry.discard_zeroes {
            model[range].fill(0);
        } else {
            // A discarded range may read as anything, but can be written again.
            model[range.clone()].copy_from_slice(&pattern(at, len, 9));
            device.write(at * B, &IoBuf::from_bytes(&model[range]), false).unwrap();
        }
    }
    expect(device, &model, 0, blocks);
}

/// Submits far more requests than can be in flight at a time, of mixed sizes.
fn a_big_batch_is_served_whole(make: Make<'_>) {
    const COUNT: u64 = 3000;
    let device = make(COUNT * 4 * B);
    let len = |i: u64| 1 + i % 4;
    let writes = (0..COUNT).map(|i| {
        let buf = IoBuf::from_bytes(&testing::pattern(i, len(i), (i % 250) as u8 + 1));
        Io { offset: i * 4 * B, op: Op::Write { buf, fua: i % 500 == 0 } }
    });
    run_batch(&*device, writes.collect()).into_iter().for_each(|done| done.result.unwrap());
    let reads = (0..COUNT).map(|i| Io { offset: i * 4 * B, op: Op::Read(IoBuf::zeroed(4)) });
    for (i, done) in (0..COUNT).zip(run_batch(&*device, reads.collect())) {
        done.result.unwrap();
        assert_eq!(done.tag, i);
        let Op::Read(buf) = done.op else { panic!("a read completes as a read") };
        let mut want = testing::pattern(i, len(i), (i % 250) as u8 + 1);
        want.resize(4 * BLOCK_SIZE, 0);
        assert!(buf.as_bytes() == want, "request {i}");
    }
    let s = device.stats();
    assert_eq!((s.writes.get(), s.fua_writes.get(), s.reads.get()), (COUNT, 6, COUNT));
}

/// Every later read sees a completed write, through either interface.
fn many_threads_at_once(make: Make<'_>) {
    let device = make(8 * 64 * B);
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            let device = device.clone();
            let body = move || {
                for round in 1..12u8 {
                    let at = t * 64;
                    let write = |i| {
                        let buf = IoBuf::from_bytes(&testing::pattern(at + i, 1, round));
                        Io { offset: (at + i) * B, op: Op::Write { buf, fua: false } }
                    };
                    let done = run_batch(&*device, (0..64).map(write).collect());
                    assert!(done.iter().all(|done| done.result.is_ok()));
                    let mut buf = IoBuf::zeroed(64);
                    device.read(at * B, &mut buf).unwrap();
                    for (i, block) in (0..64).zip(buf.as_bytes().chunks(BLOCK_SIZE)) {
                        assert!(block == testing::pattern(at + i, 1, round));
                    }
                }
            };
            spawn_named(&format!("writer-{t}"), body).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A sink that submits a request from each completion, and finally drops the device on the
/// completing thread.
struct Chain {
    device: Mutex<Option<Arc<dyn Device>>>,
    left: Mutex<u32>,
    ended: Condvar,
    this: std::sync::Weak<Chain>,
}

impl CompletionSink for Chain {
    fn complete(&self, completion: Completion) {
        completion.result.unwrap();
        let mut left = self.left.lock();
        *left -= 1;
        if *left == 0 {
            drop(left);
            drop(self.device.lock().take());
            *self.left.lock() = u32::MAX;
            self.ended.notify_all();
        } else if (*left).is_multiple_of(50) {
            drop(left);
            let device = self.device.lock().clone().expect("there until the last completion");
            let batch = (0..50).map(|i| Request { tag: i, offset: i * B, op: Op::Read(IoBuf::zeroed(1)) });
            device.submit(batch.collect(), self.this.upgrade().unwrap());
        }
    }
}

/// When this function returns, the last completion has dropped the device or is about to drop it.
pub fn completions_may_submit_and_drop_the_device(device: Arc<dyn Device>) {
    let chain = Arc::new_cyclic(|this| Chain {
        device: Mutex::new(Some(device.clone())),
        left: Mutex::new(1001),
        ended: Condvar::new(),
        this: this.clone(),
    });
    device.submit(vec![Request { tag: 0, offset: 0, op: Op::Flush }], chain.clone());
    drop(device);
    let mut left = chain.left.lock();
    while *left != u32::MAX {
        chain.ended.wait(&mut left);
    }
}

struct Panics;

impl CompletionSink for Panics {
    fn complete(&self, _: Completion) {
        panic!("a completion that panics, on purpose");
    }
}

/// A panic in a completion must not make other threads wait forever. A device that completes
/// requests in the calling thread passes the panic to the caller and stays usable.
fn a_panicking_completion_hangs_nobody(device: Arc<dyn Device>) {
    let submit = || device.submit(vec![Request { tag: 0, offset: 0, op: Op::Flush }], Arc::new(Panics));
    let inline = std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit)).is_err();
    let dead = (0..500).any(|_| {
        kedge_base::pause(std::time::Duration::from_millis(2));
        let ios = (0..10).map(|i| Io { offset: i * B, op: Op::Read(IoBuf::zeroed(1)) }).collect();
        let done = run_batch(&*device, ios);
        inline || done.iter().any(|done| matches!(done.result, Err(Error::OutcomeUnknown)))
    });
    assert!(dead);
}

/// Whatever was flushed, or written with FUA, survives a power failure. Any part of the other
/// writes may survive: each sector of 512 bytes is either old or new. `make` makes a device; `cut`
/// cuts its power and opens it again.
pub fn durable(make: Make<'_>, cut: &dyn Fn(Arc<dyn Device>) -> Arc<dyn Device>) {
    let device = make(SIZE);
    let write = |at, fill, fua| {
        device.write(at * B, &IoBuf::from_bytes(&pattern(at, 4, fill)), fua).unwrap();
    };
    write(0, 1, false);
    write(8, 1, false);
    device.write_zeroes(2 * B, B).unwrap();
    device.flush().unwrap();
    // Tests the asynchronous interface, with a flush submitted after the write has completed.
    let ios = [16u64, 20].map(|at| {
        let buf = IoBuf::from_bytes(&pattern(at, 4, 2));
        Io { offset: at * B, op: Op::Write { buf, fua: at == 20 } }
    });
    run_batch(&*device, ios.into()).into_iter().for_each(|done| done.result.unwrap());
    write(24, 2, true);
    write(0, 3, false);
    let device = cut(device);
    let mut model = vec![0; SIZE as usize];
    for (at, fill) in [(8, 1), (20, 2), (24, 2)] {
        model[(at * B) as usize..][..4 * BLOCK_SIZE].copy_from_slice(&pattern(at, 4, fill));
        expect(&*device, &model, at, 4);
    }
    let mut old = pattern(0, 4, 1);
    old[2 * BLOCK_SIZE..3 * BLOCK_SIZE].fill(0);
    for (at, old, new) in [(0, old, pattern(0, 4, 3)), (16, pattern(16, 4, 0), pattern(16, 4, 2))] {
        let mut buf = IoBuf::zeroed(4);
        device.read(at * B, &mut buf).unwrap();
        for (i, sector) in buf.as_bytes().chunks(512).enumerate() {
            let range = i * 512..(i + 1) * 512;
            assert!(sector == &old[range.clone()] || sector == &new[range], "sector {i} of block {at}");
        }
    }
}

/// A writer excludes every other owner. A reader that takes no lock may read.
pub fn one_writer(open: &dyn Fn(OpenOptions) -> Result<Arc<dyn Device>>) {
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let writer = open(OpenOptions::default()).unwrap();
    for second in [open(OpenOptions::default()), open(read_only)] {
        assert!(matches!(second.map(|d| d.name().to_owned()), Err(Error::Busy(_))));
    }
    let looker = open(OpenOptions { lock: false, ..read_only }).unwrap();
    looker.read(0, &mut IoBuf::zeroed(1)).unwrap();
    assert!(matches!(looker.write(0, &IoBuf::zeroed(1), false), Err(Error::ReadOnly)));
    assert!(matches!(looker.write_zeroes(0, B), Err(Error::ReadOnly)));
    assert!(matches!(looker.discard(0, B), Err(Error::ReadOnly)));
    looker.flush().unwrap();
    let refused = run_batch(
        &*looker,
        vec![
            Io { offset: 0, op: Op::Write { buf: IoBuf::zeroed(1), fua: false } },
            Io { offset: 0, op: Op::Flush },
        ],
    );
    assert!(matches!(refused[0].result, Err(Error::ReadOnly)), "{:?}", refused[0]);
    assert!(refused[1].result.is_ok(), "{:?}", refused[1]);
    drop((writer, looker));
    let next = open(OpenOptions { lock_wait: std::time::Duration::from_secs(60), ..OpenOptions::default() });
    next.unwrap().write(0, &IoBuf::zeroed(1), true).unwrap();
}
