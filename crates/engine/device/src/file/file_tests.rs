use super::*;
use crate::testing::{self, SIZE, run};
use crate::{FuaKind, Io, Op, conformance, run_batch};
use kedge_base::BLOCK_SIZE;
use parking_lot::Mutex;
use std::sync::mpsc;
use tempfile::TempDir;

const B: u64 = BLOCK_SIZE as u64;

/// All combinations in which an image is served: direct or buffered, through io_uring or threads.
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

#[test]
fn the_contract_is_kept() {
    for options in ways() {
        let dirs = Mutex::new(Vec::new());
        conformance::conform(&|size| {
            let (dir, device) = image(size, options);
            dirs.lock().push(dir);
            device
        });
    }
}

#[test]
fn the_lock_keeps_others_out() {
    let (dir, device) = image(SIZE, OpenOptions::default());
    drop(device);
    conformance::one_writer(&|options| Ok(FileDevice::open(dir.path().join("image"), options)?));
}

#[test]
fn reading_behind_a_truncated_end_is_an_error() {
    for options in ways() {
        let (dir, device) = image(64 * B, options);
        device.write(0, &IoBuf::from_bytes(&testing::pattern(0, 64, 9)), false).unwrap();
        // The file ends in the middle of block 40.
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

/// The fallbacks behave like the calls that a kernel or a file system may refuse.
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
    assert!(matches!(t.advance(512), raw::Step::More), "one call without progress is allowed");
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

#[test]
fn a_device_that_a_completion_dropped_gives_its_lock_up() {
    for options in ways().into_iter().filter(|way| way.io_uring || way.direct) {
        let (dir, device) = image(SIZE, options);
        conformance::completions_may_submit_and_drop_the_device(device);
        // The thread that drops the device also closes the file.
        let path = dir.path().join("image");
        let reopened = (0..500).any(|_| {
            kedge_base::pause(std::time::Duration::from_millis(2));
            FileDevice::open(&path, OpenOptions::default()).is_ok()
        });
        assert!(reopened, "the lock is given up ({options:?})");
    }
}

/// Puts /dev/null in the place of an open image while this value lives: bytes are lost, and a flush
/// fails with EINVAL, as if the kernel had dropped the bytes. Later flushes of the image itself
/// succeed.
#[cfg(target_os = "linux")]
struct Loses<'a>(&'a FileDevice, rustix::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Loses<'_> {
    fn new(device: &FileDevice) -> Loses<'_> {
        let kept = device.file.fd.try_clone().unwrap();
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        Loses::replace(device, &null.into());
        Loses(device, kept)
    }

    #[allow(unsafe_code)]
    fn replace(device: &FileDevice, by: &rustix::fd::OwnedFd) {
        use rustix::fd::AsRawFd;
        // SAFETY: both descriptors are open, and the device's number stays an open descriptor that
        // the device owns.
        let rc = unsafe { libc::dup3(by.as_raw_fd(), device.file.fd.as_raw_fd(), libc::O_CLOEXEC) };
        assert!(rc >= 0);
    }
}

#[cfg(target_os = "linux")]
impl Drop for Loses<'_> {
    fn drop(&mut self) {
        Loses::replace(self.0, &self.1);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_failed_flush_is_final_for_flushes_and_durable_writes() {
    let is_lost =
        |result: &Result<()>| matches!(result, Err(Error::Io { op: "flush", errno: libc::EINVAL, .. }));
    let block = || IoBuf::zeroed(1);
    let batch = |device: &FileDevice, op: fn() -> Op| -> Result<()> {
        // A batch of one request would use the synchronous interface.
        let done = run_batch(device, vec![Io { offset: 0, op: op() }, Io { offset: B, op: op() }]);
        assert_eq!(done[0].result.is_ok(), done[1].result.is_ok());
        done[0].result.clone()
    };
    let fua = || Op::Write { buf: IoBuf::zeroed(1), fua: true };
    for options in ways() {
        for first in 0..4 {
            let (dir, device) = image(SIZE, options);
            device.write(0, &block(), false).unwrap();
            let loses = Loses::new(&device);
            let failed = match first {
                0 => device.flush(),
                1 => batch(&device, || Op::Flush),
                // Through the page cache the flush of a durable write fails. With direct IO this
                // file accepts RWF_DSYNC.
                2 if !device.is_direct() => device.write(0, &block(), true),
                3 if !device.is_direct() => batch(&device, fua),
                _ => continue,
            };
            drop(loses);
            let case = format!("{options:?} {first}");
            assert!(is_lost(&failed), "{case}: {failed:?}");
            assert!(is_lost(&device.flush()), "{case}");
            assert!(is_lost(&device.write(0, &block(), true)), "{case}");
            assert!(is_lost(&batch(&device, || Op::Flush)), "{case}");
            assert!(is_lost(&batch(&device, fua)), "{case}");
            assert!(is_lost(&device.grow(2 * SIZE)), "{case}");
            assert!(is_lost(&device.cut(SIZE / 2)), "{case}");
            // What needs no durability goes on, and so does another owner of the file.
            device.write(0, &block(), false).unwrap();
            device.read(0, &mut block()).unwrap();
            drop(device);
            FileDevice::open(dir.path().join("image"), options).unwrap().flush().unwrap();
        }
    }
}

/// A failed write has lost no bytes but its own. A full host is waited for, so it must not end the
/// use of the device.
#[cfg(target_os = "linux")]
#[test]
fn a_failed_durable_write_is_not_a_failed_flush() {
    for options in ways() {
        let (_dir, device) = image(SIZE, options);
        let block = IoBuf::zeroed(1);
        let kept = device.file.fd.try_clone().unwrap();
        let full = std::fs::OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        Loses::replace(&device, &full.into());
        let failed = device.write(0, &block, true);
        Loses::replace(&device, &kept);
        assert!(matches!(failed, Err(Error::Io { op: "write", errno: libc::ENOSPC, .. })), "{failed:?}");
        device.write(0, &block, true).unwrap();
        device.flush().unwrap();
    }
}

/// A sink that takes any number of completions.
struct Answered(mpsc::Sender<bool>);

impl CompletionSink for Answered {
    fn complete(&self, completion: Completion) {
        self.0.send(completion.result.is_ok()).unwrap();
    }
}

/// A sink that blocks the completing thread until the test lets it continue.
struct Holds {
    held: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl CompletionSink for Holds {
    fn complete(&self, _: Completion) {
        self.held.send(()).unwrap();
        self.go_on.lock().recv().unwrap();
    }
}

/// The kernel merges the requests of one call. The test holds the ring's thread until all batches
/// are queued, as may happen when the ring is slower than its submitters.
#[test]
#[cfg(target_os = "linux")]
fn the_ring_makes_a_call_for_each_batch_that_is_to_stay_apart() {
    const BATCHES: u64 = 16;
    let (_dir, device) = image(SIZE, OpenOptions::default());
    if !device.uses_io_uring() {
        kedge_base::skip::note("io_uring is not available: what one call of the ring hands over");
        return;
    }
    let write = |tag: u64| {
        let op = Op::Write { buf: IoBuf::from_bytes(&testing::pattern(tag, 1, 7)), fua: false };
        Request { tag, offset: 2 * tag * B, op }
    };
    let calls = |submit: fn(&FileDevice, Vec<Request>, Arc<dyn CompletionSink>)| {
        let ((held, is_held), (release, go_on)) = (mpsc::channel(), mpsc::channel());
        device.submit(vec![write(0)], Arc::new(Holds { held, go_on: Mutex::new(go_on) }));
        is_held.recv().unwrap();
        let (send, answers) = mpsc::channel();
        let sink: Arc<dyn CompletionSink> = Arc::new(Answered(send));
        for batch in 0..BATCHES {
            submit(&device, vec![write(2 * batch), write(2 * batch + 1)], sink.clone());
        }
        drop(sink);
        let made = || device.engine().unwrap().queue.calls.load(std::sync::atomic::Ordering::Relaxed);
        let before = made();
        release.send(()).unwrap();
        assert_eq!(answers.iter().filter(|written| *written).count() as u64, 2 * BATCHES);
        made() - before
    };
    let together = calls(|device, batch, sink| device.submit(batch, sink));
    let apart = calls(|device, batch, sink| device.submit_apart(batch, sink));
    assert!(together < BATCHES / 2, "{together} calls for all batches");
    assert!((BATCHES..2 * BATCHES).contains(&apart), "{apart} calls for {BATCHES} batches of two");
}

/// A reserved range does not count as a hole, although it reads as zeros.
#[test]
fn a_hole_is_what_the_host_has_no_place_for() {
    let (_dir, device) = image(64 * B, OpenOptions::default());
    assert_eq!(device.first_hole(8 * B, 16 * B), Some(8 * B));
    device.write(8 * B, &IoBuf::zeroed(4), false).unwrap();
    device.flush().unwrap();
    assert_eq!(device.first_hole(8 * B, 16 * B), Some(12 * B));
    assert_eq!(device.first_hole(8 * B, 4 * B), None);
    device.write(12 * B, &IoBuf::zeroed(52), false).unwrap();
    assert_eq!(device.first_hole(8 * B, 56 * B), None);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("reserved");
    let file = std::fs::File::create(&path).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 64 * B).unwrap();
    let reserved = FileDevice::open(&path, OpenOptions::default()).unwrap();
    assert_eq!(reserved.first_hole(0, 64 * B), None);
}

/// Detaches its loop device when dropped.
#[cfg(target_os = "linux")]
struct Loop(String);

#[cfg(target_os = "linux")]
impl Drop for Loop {
    fn drop(&mut self) {
        let detached = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays attached", self.0);
    }
}

#[cfg(target_os = "linux")]
impl Loop {
    fn attach(file: &Path) -> Loop {
        let output =
            std::process::Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }

    /// The flushes of the device, as the kernel counts them.
    fn flushes(&self) -> u64 {
        let name = self.0.rsplit('/').next().unwrap();
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        stat.split_whitespace().nth(15).unwrap().parse().unwrap()
    }
}

/// A loop device has no FUA.
#[cfg(target_os = "linux")]
#[test]
fn a_durable_write_to_a_block_device_is_one_flush() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        kedge_base::skip::note("needs root and loop devices");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("image");
    std::fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
    let attached = Loop::attach(&file);
    let kind = |device: Arc<FileDevice>| device.geometry().fua;
    assert_eq!(kind(FileDevice::open(&attached.0, OpenOptions::default()).unwrap()), FuaKind::Emulated);
    for io_uring in [true, false] {
        let device = FileDevice::open(&attached.0, OpenOptions { io_uring, ..Default::default() }).unwrap();
        let buf = || IoBuf::from_bytes(&testing::pattern(1, 1, 7));
        let before = attached.flushes();
        device.write(B, &buf(), true).unwrap();
        assert_eq!(attached.flushes() - before, 1, "io_uring {io_uring}");
        device.write(2 * B, &buf(), false).unwrap();
        assert_eq!(attached.flushes() - before, 1, "io_uring {io_uring}: a plain write");
        let io = Io { offset: 3 * B, op: Op::Write { buf: buf(), fua: true } };
        run_batch(&*device, vec![io]).into_iter().for_each(|done| done.result.unwrap());
        assert_eq!(attached.flushes() - before, 2, "io_uring {io_uring}: a batch");
    }
}
