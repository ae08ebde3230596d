use super::*;
use crate::testing::{self, SIZE, refuses_bad_ranges, run, steps};
use crate::{Io, Op, run_batch};
use kedge_base::BLOCK_SIZE;
use parking_lot::{Condvar, Mutex};
use proptest::prelude::*;
use tempfile::TempDir;

const B: u64 = BLOCK_SIZE as u64;

/// All ways to serve an image: direct or buffered, through io_uring or threads.
fn ways() -> Vec<OpenOptions> {
    let all = [(true, true), (true, false), (false, true), (false, false)];
    all.map(|(direct, io_uring)| OpenOptions { direct, io_uring, ..Default::default() }).to_vec()
}

fn image(size: u64, options: OpenOptions) -> (TempDir, Arc<FileDevice>) {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::create(dir.path().join("image"), size, options).unwrap();
    if !options.io_uring {
        assert!(!device.uses_io_uring());
    }
    (dir, device)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn behaves_like_a_vector(steps in steps()) {
        for options in ways() {
            let (_dir, device) = image(SIZE, options);
            run(&*device, &mut vec![0; SIZE as usize], &steps);
        }
    }
}

#[test]
fn bad_ranges_are_refused() {
    for options in ways() {
        refuses_bad_ranges(&*image(SIZE, options).1);
    }
}

/// Far more requests than the ring takes, of mixed sizes.
#[test]
fn a_big_batch_is_served_whole() {
    const COUNT: u64 = 3000;
    for options in ways() {
        let (_dir, device) = image(COUNT * 4 * B, options);
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
            let Op::Read(buf) = done.op else { panic!("a read comes back as a read") };
            let mut want = testing::pattern(i, len(i), (i % 250) as u8 + 1);
            want.resize(4 * BLOCK_SIZE, 0);
            assert!(buf.as_bytes() == want, "request {i}, {options:?}");
        }
        let s = device.stats();
        assert_eq!((s.writes.get(), s.fua_writes.get(), s.reads.get()), (COUNT, 6, COUNT));
    }
}

#[test]
fn reading_behind_a_truncated_end_is_an_error() {
    for options in ways() {
        let (dir, device) = image(64 * B, options);
        device.write(0, &IoBuf::from_bytes(&testing::pattern(0, 64, 9)), false).unwrap();
        // In the middle of block 40.
        std::fs::OpenOptions::new()
            .write(true)
            .open(dir.path().join("image"))
            .and_then(|file| file.set_len(40 * B + 1000))
            .unwrap();
        let mut buf = IoBuf::zeroed(8);
        device.read(32 * B, &mut buf).unwrap();
        let is_eio_at = |e: &Error, range: std::ops::Range<u64>| matches!(e, Error::Io { op: "read", offset, errno: libc::EIO, .. } if range.contains(offset));
        for (block, fails_in) in [(40, 40 * B..41 * B), (36, 40 * B..41 * B), (50, 50 * B..51 * B)] {
            let e = device.read(block * B, &mut buf).unwrap_err();
            assert!(is_eio_at(&e, fails_in.clone()), "{e} ({options:?})");
            let good = Io { offset: 0, op: Op::Read(IoBuf::zeroed(8)) };
            let bad = Io { offset: block * B, op: Op::Read(IoBuf::zeroed(8)) };
            let done = run_batch(&*device, vec![bad, good]);
            let e = done[0].result.as_ref().unwrap_err();
            assert!(is_eio_at(e, fails_in), "{e} ({options:?})");
            assert!(
                matches!(&done[0].op, Op::Read(buf) if buf.blocks() == 8),
                "buffers come back with errors"
            );
            assert!(done[1].result.is_ok());
        }
    }
}

#[test]
fn a_discarded_range_gives_its_space_back() {
    use std::os::unix::fs::MetadataExt;
    let (dir, device) = image(256 * B, OpenOptions::default());
    let used = || std::fs::metadata(dir.path().join("image")).unwrap().blocks() * 512;
    device.write(0, &IoBuf::from_bytes(&vec![1; 256 * BLOCK_SIZE]), true).unwrap();
    let full = used();
    if device.geometry().discard_granularity == 0 {
        return;
    }
    device.discard(0, 128 * B).unwrap();
    device.flush().unwrap();
    assert!(used() <= full - 100 * B, "{} of {full} bytes still used", used());
}

/// The fallbacks for what a kernel or file system may refuse.
#[test]
fn substitutes_do_the_same() {
    for options in ways() {
        let (_dir, device) = image(SIZE, options);
        device.file.no_dsync.store(true, std::sync::atomic::Ordering::Relaxed);
        device.file.no_zero_range.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut model = vec![0; SIZE as usize];
        use testing::Step::*;
        let steps = [
            Write { at: 0, len: 90, fill: 3, fua: true },
            Zero { at: 5, len: 50 },
            Batch { blocks: (10..80).collect(), fill: 4 },
        ];
        run(&*device, &mut model, &steps);
    }
}

#[test]
fn transfers_continue_and_give_up() {
    let mut t = raw::Transfer::new(3 * BLOCK_SIZE, true);
    assert!(matches!(t.advance(BLOCK_SIZE + 512), raw::Step::More));
    assert_eq!((t.done, t.remaining()), (BLOCK_SIZE, 2 * BLOCK_SIZE));
    assert!(matches!(t.advance(512), raw::Step::More), "one call may end where the next must begin again");
    assert!(matches!(t.advance(BLOCK_SIZE), raw::Step::More));
    assert!(matches!(t.advance(512), raw::Step::More));
    assert!(matches!(t.advance(512), raw::Step::Stuck));

    let mut t = raw::Transfer::new(BLOCK_SIZE, false);
    for _ in 0..BLOCK_SIZE - 1 {
        assert!(matches!(t.advance(1), raw::Step::More));
    }
    assert!(matches!(t.advance(0), raw::Step::Stuck));
    assert!(matches!(t.advance(1), raw::Step::Done));
}

/// Submits again from each completion, and at last drops the device on its own thread.
struct Chain {
    device: Mutex<Option<Arc<FileDevice>>>,
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

#[test]
fn completions_may_submit_and_drop_the_device() {
    for options in ways().into_iter().filter(|way| way.io_uring || way.direct) {
        let (dir, device) = image(SIZE, options);
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
        drop(left);
        // The thread that dropped the device closes the file on its way out.
        let path = dir.path().join("image");
        let reopened = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            FileDevice::open(&path, OpenOptions::default()).is_ok()
        });
        assert!(reopened, "the lock is given up ({options:?})");
    }
}

struct Panics;

impl CompletionSink for Panics {
    fn complete(&self, _: Completion) {
        panic!("a completion that panics, on purpose");
    }
}

/// No request may wait for ever for a thread that died.
#[test]
fn a_panicking_completion_kills_the_device_and_hangs_nobody() {
    for options in ways() {
        let (_dir, device) = image(SIZE, options);
        device.submit(vec![Request { tag: 0, offset: 0, op: Op::Flush }], Arc::new(Panics));
        let dead = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            let ios = (0..10).map(|i| Io { offset: i * B, op: Op::Read(IoBuf::zeroed(1)) }).collect();
            run_batch(&*device, ios).iter().any(|done| matches!(done.result, Err(Error::OutcomeUnknown)))
        });
        assert!(dead, "{options:?}");
    }
}

#[test]
fn many_threads_at_once() {
    for options in ways() {
        let (_dir, device) = image(8 * 64 * B, options);
        let threads: Vec<_> = (0..8u64)
            .map(|t| {
                let device = device.clone();
                let body = move || {
                    for round in 1..20u8 {
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
}
