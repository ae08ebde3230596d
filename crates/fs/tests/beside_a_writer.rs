//! fsync and sync while somebody writes to the same files all the time: what was there before the
//! call is durable after it.
#![allow(clippy::unwrap_used)]

#[path = "common/watched.rs"]
mod watched;

use kedge_base::spawn_named;
use kedge_device::sim::{Choice, SimDevice};
use kedge_device::{Device, MemDevice};
use kedgefs::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use watched::{Watch, Watched};

const PAGE: usize = 4096;
/// More than one pass of writeback takes.
const PAGES: usize = 3000;
/// As many as one pass takes, and some.
const REWRITTEN: usize = 1100;

type Work = Arc<dyn Fn() + Send + Sync>;

/// A device beside each of whose writes work is done, durable ones aside.
struct Beside {
    inner: SimDevice,
    work: Mutex<Option<Work>>,
}

impl Beside {
    fn new() -> Arc<Watched<Beside>> {
        let mem = Arc::new(MemDevice::new(64 << 20));
        FileSystem::format(mem.clone(), clock(), &FormatOptions::default()).unwrap();
        let inner = SimDevice::new(mem.fork());
        inner.stop_recording();
        Arc::new(Watched(Beside { inner, work: Mutex::new(None) }))
    }

    /// If the power failed now and took everything that is not durable.
    fn durable(&self, name: &[u8]) -> Vec<u8> {
        let medium = Arc::new(self.inner.crash_as(Choice::None));
        let options = MountOptions { read_only: true, ..Default::default() };
        let fs = FileSystem::open(medium, clock(), options).unwrap();
        let attr = fs.lookup(Ino::ROOT, name).unwrap();
        let mut bytes = vec![0; attr.size as usize];
        assert_eq!(fs.read(attr.ino, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }
}

impl Watch for Beside {
    fn device(&self) -> &dyn Device {
        &self.inner
    }

    /// In a thread of its own: the one that writes back holds locks.
    fn before_write(&self, fua: bool) {
        let work = if fua { None } else { self.work.lock().clone() };
        if let Some(work) = work {
            spawn_named("writer", move || work()).unwrap().join().unwrap();
        }
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::default())
}

fn open(device: &Arc<Watched<Beside>>) -> FileSystem {
    let options = MountOptions { commit: Duration::from_secs(3600), ..Default::default() };
    FileSystem::open(device.clone(), clock(), options).unwrap()
}

fn make(fs: &FileSystem, name: &[u8], pages: usize) -> Ino {
    let ino = fs.create(Ino::ROOT, name, 0o644, Owner::default()).unwrap().ino;
    fs.write(ino, 0, &vec![b'0'; pages * PAGE]).unwrap();
    fs.fsync(ino, false).unwrap();
    ino
}

/// Until the returned flag says how often it was done.
fn rewrite_beside(device: &Beside, fs: &FileSystem, ino: Ino) -> Arc<Mutex<u32>> {
    let count = Arc::new(Mutex::new(0));
    let (fs, counter) = (fs.clone(), count.clone());
    *device.work.lock() = Some(Arc::new(move || {
        fs.write(ino, 0, &vec![b'2'; REWRITTEN * PAGE]).unwrap();
        *counter.lock() += 1;
    }));
    count
}

#[test]
fn fsync_reaches_the_end_of_a_file_whose_start_is_written_again_and_again() {
    let device = Beside::new();
    let fs = open(&device);
    let ino = make(&fs, b"f", PAGES);
    fs.write(ino, 0, &vec![b'1'; PAGES * PAGE]).unwrap();
    let rewrites = rewrite_beside(&device, &fs, ino);
    fs.fsync(ino, false).unwrap();
    *device.work.lock() = None;
    assert!((3..20).contains(&*rewrites.lock()), "{} passes", rewrites.lock());
    let bytes = device.durable(b"f");
    assert!(bytes[..REWRITTEN * PAGE].iter().all(|b| matches!(b, b'1' | b'2')));
    let old = bytes[REWRITTEN * PAGE..].iter().filter(|b| **b != b'1').count();
    assert_eq!(old, 0, "bytes that fsync confirmed are lost");
}

#[test]
fn sync_reaches_a_file_beside_one_that_is_written_again_and_again() {
    let device = Beside::new();
    let fs = open(&device);
    let busy = make(&fs, b"busy", REWRITTEN);
    let quiet = make(&fs, b"quiet", 3);
    assert!(busy < quiet, "or the busy one does not go first");
    fs.write(busy, 0, &vec![b'1'; REWRITTEN * PAGE]).unwrap();
    fs.write(quiet, 0, &vec![b'1'; 3 * PAGE]).unwrap();
    let rewrites = rewrite_beside(&device, &fs, busy);
    fs.sync().unwrap();
    *device.work.lock() = None;
    assert!((1..20).contains(&*rewrites.lock()), "{} passes", rewrites.lock());
    assert!(device.durable(b"quiet").iter().all(|b| *b == b'1'), "bytes that sync confirmed are lost");
    assert!(device.durable(b"busy").iter().all(|b| matches!(b, b'1' | b'2')));
}
