//! Devices that fail by plan under a real mount: data acknowledged as durable is on the media.
//!
//! The server runs in this process, on a device in memory that fails and loses power. Its client is
//! a thread that writes, truncates and syncs files through every interface that programs have, and
//! keeps a ledger ([`kedge_sim::ledger`]) of the results. Then the power fails; the remaining image
//! is opened as a library, compared with the ledger and checked by fsck. At the end the file system
//! is unmounted: if that succeeds, all written data is there.
//!
//! With a writeback cache a failed sync drops the earlier writes, because the kernel considers the
//! pages clean. There the kernel also does not report data that it could not write during an
//! unmount, so only the syncs are checked.

use crate::common::mapping::Mapping;
use crate::common::no_fuse;
use kedge_base::errno::EIO;
use kedge_base::{HANG, IoBuf};
use kedge_device::sim::{FaultPlan, OpKind, SimDevice};
use kedge_device::{Device, MemDevice};
use kedge_fsck::{CheckOptions, StoreReplay};
use kedge_fuse::{FuseOptions, MountPoint};
use kedge_sim::ledger;
use kedge_sim::rig::{seed_from_env, within};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, SystemClock};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const SIZE: u64 = 24 << 20;
const FILES: usize = 4;
/// The largest size of a file in bytes.
const REACH: u64 = 400 << 10;
const STEPS: usize = 60;
/// The number of steps before the device begins to fail.
const GOOD_STEPS: usize = 8;
const CASES: u64 = 200;
const CASES_FULL: u64 = 2000;

struct Mount {
    sim: Arc<SimDevice>,
    point: MountPoint,
    server: Option<JoinHandle<io::Result<kedgefs::Result<()>>>>,
    // This field is dropped last, because the mount point is in this directory.
    temp: tempfile::TempDir,
}

impl Mount {
    fn new(writeback_cache: bool) -> Mount {
        let sim = Arc::new(SimDevice::new(MemDevice::new(SIZE)));
        let clock = Arc::new(SystemClock::default());
        FileSystem::format(sim.clone(), clock.clone(), &FormatOptions::default()).unwrap();
        sim.stop_recording();
        let options = MountOptions {
            cache_size: 2 << 20,
            commit: Duration::from_millis(50),
            ..MountOptions::default()
        };
        let fs = FileSystem::open(sim.clone(), clock, options).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let (image, dir) = (temp.path().join("image"), temp.path().join("mnt"));
        File::create(&image).unwrap().set_len(1 << 20).unwrap();
        std::fs::create_dir(&dir).unwrap();
        let options = FuseOptions { writeback_cache, ..FuseOptions::default() };
        let session = kedge_fuse::mount(&image, &dir, &options).unwrap();
        let point = session.mount_point().clone();
        let to_close = fs.clone();
        let serve = move || session.run_and_close(fs, move || to_close.close());
        let server = kedge_base::spawn_named("sweep-server", serve).unwrap();
        Mount { sim, point, server: Some(server), temp }
    }

    /// Unmounts. Returns the result of closing the file system.
    fn end(mut self) -> kedgefs::Result<()> {
        crate::common::until("the mount is not in use", || self.point.request_unmount().is_ok());
        self.server.take().unwrap().join().unwrap().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.server.is_some()
            && let Err(e) = kedge_fuse::unmount(&self.point.dir, true)
        {
            eprintln!("{} in {}: {e}", self.point.dir.display(), self.temp.path().display());
        }
    }
}

/// The failures of the device in the case of a seed.
fn plan(rng: &mut SmallRng, seed: u64) -> (String, FaultPlan) {
    let kind = [OpKind::Write, OpKind::Write, OpKind::Flush, OpKind::Read][rng.random_range(0..4)];
    let nth = rng.random_range(0..30);
    let from = rng.random_range(0..SIZE / 4096) * 4096;
    let range = from..(from + (1 << rng.random_range(12..22))).min(SIZE);
    let plan = FaultPlan::new(seed);
    match rng.random_range(0..10) {
        0 => (format!("{kind:?} {nth} fails"), plan.fail(kind, nth, EIO)),
        1 => (format!("write {nth} is torn"), plan.torn_write(nth, EIO)),
        2 => (format!("block under {kind:?} {nth} is bad"), plan.bad_block(OpKind::Write, nth, EIO)),
        3 => (format!("writes to {range:?} fail"), plan.bad_range(OpKind::Write, range, EIO)),
        4 => (format!("reads of {range:?} fail"), plan.bad_range(OpKind::Read, range, EIO)),
        5 => (format!("each {kind:?} fails from {nth} on"), plan.fail_kind_from(kind, nth, EIO)),
        6 => (format!("{kind:?} fails sometimes"), plan.sometimes(kind, 8, EIO)),
        7 => (format!("the host is full from write {nth} on"), plan.host_full(nth)),
        8 => (format!("flush {nth} fails and forgets"), plan.lose_flush(nth.min(6), EIO)),
        _ => (format!("all fails from {nth} on"), plan.fail_from(nth, EIO)),
    }
}

/// The client: its files and its ledgers.
struct Client {
    cached: bool,
    files: Vec<(File, File)>,
    /// Opened before any failure, because syncfs reports failures since the open.
    root: File,
    ledgers: Vec<ledger::File>,
    calls: u64,
    refused: u64,
}

impl Client {
    fn new(mount: &Mount, cached: bool) -> Client {
        let root = File::open(&mount.point.dir).unwrap();
        let open = |i: usize, flags: i32| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
            options.open(mount.point.dir.join(i.to_string())).unwrap()
        };
        let files: Vec<_> = (0..FILES).map(|i| (open(i, 0), open(i, libc::O_DIRECT))).collect();
        files.iter().for_each(|(file, _)| file.sync_all().unwrap());
        let ledgers = (0..FILES).map(ledger::File::new).collect();
        Client { cached, files, root, ledgers, calls: 0, refused: 0 }
    }

    fn step(&mut self, rng: &mut SmallRng) {
        self.calls += 1;
        let i = rng.random_range(0..FILES);
        let from = rng.random_range(0..REACH / 8) * 8;
        let len = (1 << rng.random_range(3..17)).min(REACH - from);
        match rng.random_range(0..16) {
            0..7 => self.write(i, from, len),
            7 | 8 => self.write_direct(i, from / 4096 * 4096, len.next_multiple_of(4096)),
            9 => self.store(i, from, len),
            10 => self.truncate(i, from),
            11 | 12 => self.sync(&[i], |client| client.files[i].0.sync_all()),
            13 => self.sync(&[i], |client| client.files[i].0.sync_data()),
            14 => self.sync(&[0, 1, 2, 3], |client| Ok(rustix::fs::syncfs(&client.root)?)),
            _ => self.read(i, from, len),
        }
    }

    fn write(&mut self, i: usize, from: u64, len: u64) {
        let bytes = self.ledgers[i].begin_write(from, len);
        match self.files[i].0.write_at(&bytes, from) {
            Ok(n) => self.ledgers[i].wrote(n as u64),
            Err(_) => self.refused += 1,
        }
    }

    fn write_direct(&mut self, i: usize, from: u64, len: u64) {
        let mut buf = IoBuf::zeroed((len / 4096) as usize);
        buf.as_mut_bytes().copy_from_slice(&self.ledgers[i].begin_write(from, len));
        match self.files[i].1.write_at(buf.as_bytes(), from) {
            Ok(n) => self.ledgers[i].wrote(n as u64),
            Err(_) => self.refused += 1,
        }
    }

    /// Stores through a mapping and syncs it. The first access reads the page, and a failed read
    /// would raise SIGBUS, so the page is read before.
    fn store(&mut self, i: usize, from: u64, len: u64) {
        let file = &self.files[i].0;
        let size = file.metadata().unwrap().len();
        let len = len.min(size.saturating_sub(from)) / 8 * 8;
        let mut pages = vec![0; (len as usize).next_multiple_of(4096) + 8192];
        if len == 0 || file.read_at(&mut pages, from / 4096 * 4096).is_err() {
            return;
        }
        let mark = self.ledgers[i].mark();
        let bytes = self.ledgers[i].begin_write(from, len);
        let mut map = Mapping::of(file).unwrap();
        map.store(from as usize, &bytes);
        match map.sync() {
            Ok(()) => {
                self.ledgers[i].wrote(len);
                self.ledgers[i].synced(mark + 1);
            }
            Err(_) => {
                self.refused += 1;
                self.ledgers[i].disowned();
            }
        }
    }

    fn truncate(&mut self, i: usize, size: u64) {
        self.ledgers[i].begin_truncate(size);
        match self.files[i].0.set_len(size) {
            Ok(()) => self.ledgers[i].truncated(),
            Err(_) => self.refused += 1,
        }
    }

    fn sync(&mut self, covered: &[usize], call: impl Fn(&Client) -> io::Result<()>) {
        let marks: Vec<_> = covered.iter().map(|i| self.ledgers[*i].mark()).collect();
        let synced = call(self);
        self.refused += u64::from(synced.is_err());
        for (i, mark) in covered.iter().zip(marks) {
            match &synced {
                Ok(()) => self.ledgers[*i].synced(mark),
                Err(_) if self.cached => self.ledgers[*i].disowned(),
                Err(_) => {}
            }
        }
    }

    fn read(&mut self, i: usize, from: u64, len: u64) {
        let read = self.files[i].0.read_at(&mut vec![0; len as usize], from);
        self.refused += u64::from(read.is_err());
    }
}

/// Checks the image after a power failure: fsck finds no error, and the ledger of each file allows
/// its contents.
fn judge(media: MemDevice, ledgers: &[ledger::File]) -> Result<(), String> {
    let media: Arc<dyn Device> = Arc::new(media);
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(media.clone(), &options);
    if report.exit_code() as u8 != 0 {
        return Err(format!("fsck: {report}"));
    }
    let fs = FileSystem::open(media, Arc::new(SystemClock::default()), MountOptions::default())
        .map_err(|e| format!("open: {e}"))?;
    for (i, ledger) in ledgers.iter().enumerate() {
        let attr = fs.lookup(Ino::ROOT, i.to_string().as_bytes()).map_err(|e| format!("file {i}: {e}"))?;
        let mut bytes = vec![0; attr.size as usize];
        let read = fs.read(attr.ino, 0, &mut bytes).map_err(|e| format!("read {i}: {e}"))?;
        assert_eq!(read, bytes.len());
        ledger.check(&bytes)?;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Counts {
    cases: u64,
    /// The number of cases in which the device failed a request.
    struck: u64,
    requests: u64,
    calls: u64,
    refused: u64,
    judged: u64,
    clean_ends: u64,
}

fn case(cached: bool, seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mount = Mount::new(cached);
    let mut client = Client::new(&mount, cached);
    (0..GOOD_STEPS).for_each(|_| client.step(&mut rng));
    let (what, plan) = plan(&mut rng, seed);
    mount.sim.set_plan(plan);
    (GOOD_STEPS..STEPS).for_each(|_| client.step(&mut rng));
    let context = |e: String| format!("KEDGE_SEED={seed} writeback_cache={cached}, {what}: {e}");
    // The power fails: the seed decides which unflushed writes are kept.
    let media = mount.sim.crash(seed);
    counts.cases += 1;
    counts.struck += u64::from(mount.sim.struck() > 0);
    counts.requests += mount.sim.struck();
    counts.calls += client.calls;
    counts.refused += client.refused;
    judge(media, &client.ledgers).map_err(&context)?;
    counts.judged += 1;
    let Client { files, root, ledgers, .. } = client;
    drop((files, root));
    let sim = mount.sim.clone();
    if mount.end().is_ok() && !cached {
        let all: Vec<_> = ledgers.iter().map(ledger::File::all_settled).collect();
        judge(sim.crash(seed + 1), &all)
            .map_err(|e| context(format!("after an unmount that succeeded: {e}")))?;
        counts.clean_ends += 1;
    }
    Ok(())
}

fn sweep(cached: bool) {
    let cases = if crate::common::full() { CASES_FULL } else { CASES };
    let seeds = seed_from_env().map_or_else(|| (1..=cases).collect::<Vec<_>>(), |seed| vec![seed]);
    let alone = seeds.len() == 1;
    let (failures, counts) = within(HANG, "the sweep", move || {
        let mut counts = Counts::default();
        let failed = seeds.into_iter().filter_map(|seed| case(cached, seed, &mut counts).err());
        (failed.collect::<Vec<_>>(), counts)
    });
    println!("writeback_cache={cached}: {counts:?}");
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), counts.cases, failures.join("\n\n"));
    assert!(alone || counts.struck > counts.cases / 2, "too few requests failed: {counts:?}");
    assert!(alone || counts.refused > 0, "no failure was reported: {counts:?}");
    assert!(alone || cached || counts.clean_ends > 0, "no unmount succeeded: {counts:?}");
}

#[test]
fn failing_devices_below_a_mount() {
    if !no_fuse() {
        sweep(false);
    }
}

#[test]
fn failing_devices_below_a_mount_with_a_writeback_cache() {
    if !no_fuse() {
        sweep(true);
    }
}
