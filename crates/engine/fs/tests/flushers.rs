//! File systems of one process share their flusher threads. The device of one does not affect the
//! others.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "common/watched.rs"]
mod watched;

use kedge_base::HANG;
use kedge_device::sim::{Choice, SimDevice};
use kedge_device::{Device, MemDevice};
use kedgefs::*;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;
use watched::{Watch, Watched};

const COMMIT: Duration = Duration::from_millis(100);
const NAME: &str = "kedge-flusher";

/// Held by each test, because the tests count threads of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy, PartialEq, Debug)]
enum Writes {
    Work,
    Hang,
    /// A write of a flusher thread panics. Panics of other threads are not tested here.
    Panic,
}

/// A device whose writes may hang or panic.
struct Fickle {
    inner: SimDevice,
    writes: Mutex<Writes>,
    changed: Condvar,
    /// Number of flusher threads that hang in a write.
    hung: Mutex<usize>,
}

impl Fickle {
    fn new() -> Arc<Watched<Fickle>> {
        let mem = MemDevice::new(16 << 20);
        let options = FormatOptions { log_size: Some(1 << 20), ..Default::default() };
        let mem = Arc::new(mem);
        FileSystem::format(mem.clone(), clock(), &options).unwrap();
        let inner = SimDevice::new(mem.fork());
        inner.stop_recording();
        Arc::new(Watched(Fickle {
            inner,
            writes: Mutex::new(Writes::Work),
            changed: Condvar::new(),
            hung: Mutex::new(0),
        }))
    }

    fn set(&self, writes: Writes) {
        *self.writes.lock() = writes;
        self.changed.notify_all();
    }

    /// The contents of a file after a power failure that loses everything not durable. `None` if
    /// the file does not exist.
    fn durable(&self, name: &str) -> Option<Vec<u8>> {
        let medium = Arc::new(self.inner.crash_as(Choice::None));
        let options = MountOptions { read_only: true, ..Default::default() };
        let fs = FileSystem::open(medium, clock(), options).unwrap();
        let attr = fs.lookup(Ino::ROOT, name.as_bytes()).ok()?;
        let mut bytes = vec![0; attr.size as usize];
        let read = fs.read(attr.ino, 0, &mut bytes).unwrap();
        bytes.truncate(read);
        Some(bytes)
    }
}

fn mount(device: &Arc<Watched<Fickle>>) -> FileSystem {
    let options = MountOptions { commit: COMMIT, ..Default::default() };
    FileSystem::open(device.clone(), clock(), options).unwrap()
}

impl Watch for Fickle {
    fn device(&self) -> &dyn Device {
        &self.inner
    }

    fn before_write(&self, _: bool) {
        let flusher = std::thread::current().name() == Some(NAME);
        let mut writes = self.writes.lock();
        if *writes == Writes::Panic && flusher {
            drop(writes);
            panic!("a write on purpose");
        }
        if *writes == Writes::Hang {
            *self.hung.lock() += flusher as usize;
            while *writes == Writes::Hang {
                self.changed.wait(&mut writes);
            }
            *self.hung.lock() -= flusher as usize;
        }
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

#[track_caller]
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let clock = SystemClock::default();
    while !condition() {
        assert!(clock.monotonic() < HANG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(100_000).collect()
}

/// Writes a file without syncing it.
fn put(fs: &FileSystem, name: &str) -> Result<()> {
    let file = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default())?;
    fs.write(file.ino, 0, &content(name)).map(drop)
}

#[track_caller]
fn wait_durable(device: &Fickle, name: &str) {
    wait_for(name, || device.durable(name).is_some_and(|bytes| bytes == content(name)));
}

fn flusher_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread may have ended since it was listed; its name cannot be read then.
    let comm = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    comm.filter(|name| name.trim_end() == NAME).count()
}

#[test]
fn devices_that_hang_keep_no_other_file_system_from_being_durable() {
    let _alone = ONE_AT_A_TIME.lock();
    let devices: Vec<_> = (0..5).map(|_| Fickle::new()).collect();
    let open: Vec<_> = devices.iter().map(mount).collect();
    let (hanging, well) = (&devices[..4], &devices[4]);
    hanging.iter().for_each(|device| device.set(Writes::Hang));
    open[..4].iter().for_each(|fs| put(fs, "late").unwrap());
    wait_for("four hang", || hanging.iter().all(|device| *device.hung.lock() == 1));
    put(&open[4], "in time").unwrap();
    wait_durable(well, "in time");
    // A file system that is opened while four devices hang works too.
    let new = Fickle::new();
    let newly_open = mount(&new);
    put(&newly_open, "new").unwrap();
    wait_durable(&new, "new");
    assert!(flusher_threads() <= 4 + 3, "{} threads", flusher_threads());
    for device in hanging {
        assert_eq!(*device.hung.lock(), 1, "still, and no second thread");
        assert_eq!(device.durable("late"), None);
        device.set(Writes::Work);
    }
    hanging.iter().for_each(|device| wait_durable(device, "late"));
    wait_for("the threads end", || flusher_threads() <= 3);
    open.iter().chain([&newly_open]).for_each(|fs| fs.close().unwrap());
}

#[test]
fn many_file_systems_share_few_threads() {
    let _alone = ONE_AT_A_TIME.lock();
    let devices: Vec<_> = (0..16).map(|_| Fickle::new()).collect();
    let open: Vec<_> = devices.iter().map(mount).collect();
    let mut most = 0;
    for name in ["one", "two", "three"] {
        open.iter().for_each(|fs| put(fs, name).unwrap());
        for device in &devices {
            wait_for(name, || {
                most = most.max(flusher_threads());
                device.durable(name).is_some_and(|bytes| bytes == content(name))
            });
        }
    }
    // Three threads, or some more on a machine so busy that turns count as hanging.
    assert!((1..=8).contains(&most), "{most} threads");
    open.iter().for_each(|fs| fs.close().unwrap());
}

#[test]
fn closed_file_systems_leave_and_can_be_opened_again() {
    let _alone = ONE_AT_A_TIME.lock();
    let devices: Vec<_> = (0..3).map(|_| Fickle::new()).collect();
    for name in ["first", "second"] {
        let mut open: Vec<_> = devices.iter().map(mount).collect();
        open.iter().for_each(|fs| put(fs, name).unwrap());
        devices.iter().for_each(|device| wait_durable(device, name));
        // One file system is dropped as if the process had died, another stays open, and the rest
        // are closed.
        drop(open.remove(0));
        open.iter().for_each(|fs| fs.close().unwrap());
        drop(open.remove(0));
        for device in &devices[..2] {
            wait_for("the device is let go", || Arc::strong_count(device) == 1);
        }
        wait_for("the threads end", || flusher_threads() == 0);
    }
}

#[test]
fn a_panic_in_writeback_shuts_down_one_file_system() {
    let _alone = ONE_AT_A_TIME.lock();
    let (bad, good) = (Fickle::new(), Fickle::new());
    let (bad_fs, good_fs) = (mount(&bad), mount(&good));
    put(&bad_fs, "before").unwrap();
    wait_durable(&bad, "before");
    bad.set(Writes::Panic);
    put(&bad_fs, "lost").unwrap();
    let mut said = String::new();
    wait_for("the file system is shut down", || {
        let refused = bad_fs.mkdir(Ino::ROOT, b"refused", 0o755, Owner::default());
        let _ = bad_fs.rmdir(Ino::ROOT, b"refused");
        refused.is_err_and(|e| {
            said = e.to_string();
            true
        })
    });
    assert!(said.contains("panicked: a write on purpose"), "{said}");
    put(&good_fs, "after").unwrap();
    wait_durable(&good, "after");
    good_fs.close().unwrap();

    assert!(bad_fs.close().is_err());
    drop(bad_fs);
    wait_for("the device is let go", || Arc::strong_count(&bad) == 1);
    bad.set(Writes::Work);
    let again = mount(&bad);
    assert!(again.lookup(Ino::ROOT, b"before").is_ok());
    put(&again, "again").unwrap();
    wait_durable(&bad, "again");
    again.close().unwrap();
}

/// The overwrite is in no record: its time stamps came into the record of another change, which is
/// durable, and a writeback in the background has written its bytes.
#[test]
fn an_overwrite_without_a_record_is_durable_after_the_interval() {
    let _alone = ONE_AT_A_TIME.lock();
    let device = Fickle::new();
    let fs = mount(&device);
    put(&fs, "over").unwrap();
    let ino = fs.lookup(Ino::ROOT, b"over").unwrap().ino;
    fs.sync().unwrap();
    let new = vec![b'!'; content("over").len()];
    fs.write(ino, 0, &new).unwrap();
    fs.setattr(ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    let other = fs.create(Ino::ROOT, b"other", 0o644, Owner::default()).unwrap().ino;
    fs.fsync(other, false).unwrap();
    fs.write_back(&[ino]).unwrap();
    for _ in 0..100 {
        if device.durable("over").as_ref() == Some(&new) {
            break;
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    assert!(device.durable("over") == Some(new), "lost after 30 intervals");
    fs.close().unwrap();
}
