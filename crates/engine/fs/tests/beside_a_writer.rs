//! fsync and sync while another thread keeps writing to the same files: data that was written
//! before the call is durable after it.

use crate::common::watched::{Watch, Watched};
use kedge_base::{IoBuf, Result, spawn_named};
use kedge_device::sim::{Choice, SimDevice};
use kedge_device::{CompletionSink, Device, DeviceStats, Geometry, MemDevice, Request};
use kedgefs::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 4096;
/// Pages of a file, more than one pass of writeback takes.
const PAGES: usize = 3000;
/// Pages that are rewritten, somewhat more than one pass takes.
const REWRITTEN: usize = 1100;
/// Writers stop after this many turns. So a call that waits for them to stop returns, and the test
/// fails instead of hanging.
const TURNS_MAX: u32 = 100;

type Work = Arc<dyn Fn() + Send + Sync>;

/// A device that runs some work before each of its writes, except durable writes.
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

    /// The contents of a file after a power failure that loses everything not durable.
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

    /// Runs the work in another thread, because the thread that writes back holds locks.
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

/// Work that does something only in its first [`TURNS_MAX`] turns, and a counter of the turns.
fn turns(work: impl Fn() + Send + Sync + 'static) -> (Work, Arc<Mutex<u32>>) {
    let count = Arc::new(Mutex::new(0));
    let counter = count.clone();
    let turn = move || {
        *counter.lock() += 1;
        if *counter.lock() <= TURNS_MAX {
            work();
        }
    };
    (Arc::new(turn), count)
}

/// Has each write of the device rewrite the start of the file. Returns the counter of the turns.
fn rewrite_beside(device: &Beside, fs: &FileSystem, ino: Ino) -> Arc<Mutex<u32>> {
    let fs = fs.clone();
    let (work, count) = turns(move || {
        fs.write(ino, 0, &vec![b'2'; REWRITTEN * PAGE]).unwrap();
    });
    *device.work.lock() = Some(work);
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

/// One half of a device, like a partition.
struct Half {
    whole: Arc<dyn Device>,
    geometry: Geometry,
    from: u64,
}

impl Half {
    fn of(whole: Arc<dyn Device>, half: u64) -> Arc<Half> {
        let mut geometry = whole.geometry().clone();
        geometry.size /= 2;
        let from = half * geometry.size;
        Arc::new(Half { whole, geometry, from })
    }
}

impl Device for Half {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, mut batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        batch.iter_mut().for_each(|request| request.offset += self.from);
        self.whole.submit(batch, sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.whole.read(self.from + offset, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.whole.write(self.from + offset, buf, fua)
    }

    fn flush(&self) -> Result<()> {
        self.whole.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.whole.discard(self.from + offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.whole.write_zeroes(self.from + offset, len)
    }

    fn stats(&self) -> &DeviceStats {
        self.whole.stats()
    }

    fn name(&self) -> &str {
        "half"
    }
}

fn count(fs: &FileSystem, what: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    what.split('.').fold(&stats, |v, key| &v[key]).as_u64().unwrap_or_else(|| panic!("no counter {what}"))
}

/// Like sync(2) while each file system has writers that never stop. The writers run during each
/// write of a device, so a sync that tried to catch up with them would never end.
#[test]
fn a_sync_of_four_file_systems_on_two_devices_ends_beside_writers_on_all_of_them() {
    const BUSY_PAGES: usize = 64;
    const QUIET_FILES: u8 = 40;
    let sims: Vec<_> = (0..2)
        .map(|_| {
            let inner = SimDevice::new(Arc::new(MemDevice::new(128 << 20)).fork());
            inner.stop_recording();
            Arc::new(Watched(Beside { inner, work: Mutex::new(None) }))
        })
        .collect();
    let parts: Vec<_> = (0..4).map(|i| Half::of(sims[i / 2].clone(), i as u64 % 2)).collect();
    let options = MountOptions { commit: Duration::from_secs(3600), ..Default::default() };
    let all: Vec<FileSystem> = parts
        .iter()
        .map(|part| {
            FileSystem::format(part.clone(), clock(), &FormatOptions::default()).unwrap();
            FileSystem::open(part.clone(), clock(), options.clone()).unwrap()
        })
        .collect();
    let busy: Vec<Ino> = all.iter().map(|fs| make(fs, b"busy", BUSY_PAGES)).collect();
    for (fs, busy) in all.iter().zip(&busy) {
        fs.write(*busy, 0, &vec![b'1'; BUSY_PAGES * PAGE]).unwrap();
        for i in 0..QUIET_FILES {
            let f = fs.create(Ino::ROOT, &[b'q', i + 1], 0o644, Owner::default()).unwrap().ino;
            fs.write(f, 0, &vec![i + 1; 3 * PAGE]).unwrap();
        }
    }
    let writers: Vec<(FileSystem, Ino)> = all.iter().cloned().zip(busy).collect();
    let (work, rewrites) = turns(move || {
        for (fs, busy) in &writers {
            fs.write(*busy, 0, &vec![b'2'; BUSY_PAGES * PAGE]).unwrap();
        }
    });
    let dirty = |fs: &FileSystem| count(fs, "cache.dirty_pages");
    let dirty_before: Vec<u64> = all.iter().map(dirty).collect();
    let written = |fs: &FileSystem| count(fs, "data.write_bytes");
    let written_before: Vec<u64> = all.iter().map(written).collect();
    sims.iter().for_each(|sim| *sim.work.lock() = Some(work.clone()));
    all.iter().for_each(|fs| fs.sync().unwrap());
    sims.iter().for_each(|sim| *sim.work.lock() = None);

    assert!((4..40).contains(&*rewrites.lock()), "{} writes of the devices", rewrites.lock());
    for (i, fs) in all.iter().enumerate() {
        let bytes = written(fs) - written_before[i];
        let most = dirty_before[i] * PAGE as u64;
        assert!((1..=most).contains(&bytes), "{bytes} bytes written for {most} that were dirty");
        assert_eq!(dirty(fs), BUSY_PAGES as u64, "the writers went on");
    }
    // A power failure that loses everything not durable.
    let images: Vec<_> = sims.iter().map(|sim| Arc::new(sim.inner.crash_as(Choice::None))).collect();
    for i in 0..4 {
        let part = Half::of(images[i / 2].clone(), i as u64 % 2);
        let options = MountOptions { read_only: true, ..Default::default() };
        let fs = FileSystem::open(part, clock(), options).unwrap();
        let read = |name: &[u8]| {
            let attr = fs.lookup(Ino::ROOT, name).unwrap();
            let mut bytes = vec![0; attr.size as usize];
            assert_eq!(fs.read(attr.ino, 0, &mut bytes).unwrap(), bytes.len());
            bytes
        };
        let bytes = read(b"busy");
        assert_eq!(bytes.len(), BUSY_PAGES * PAGE);
        assert!(bytes.iter().all(|b| matches!(b, b'1' | b'2')), "bytes that sync confirmed are lost");
        for q in 1..=QUIET_FILES {
            assert_eq!(read(&[b'q', q]), vec![q; 3 * PAGE], "bytes that sync confirmed are lost");
        }
    }
}
