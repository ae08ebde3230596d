//! The former rules that the switches select have their documented costs; the present rules do not.

use crate::common::watched::{Watch, Watched};
use kedge_base::{HANG, spawn_named};
use kedge_device::{Device, MemDevice};
use kedgefs::*;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn open(options: MountOptions) -> FileSystem {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    FileSystem::open(device, clock, options).unwrap()
}

fn forces(fs: &FileSystem, cause: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    stats["log"]["forces"][cause].as_u64().unwrap()
}

fn count(fs: &FileSystem, what: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    what.split('.').fold(&stats, |v, key| &v[key]).as_u64().unwrap_or_else(|| panic!("no counter {what}"))
}

fn rename(fs: &FileSystem, from: &str, to: &str) {
    fs.rename(Ino::ROOT, from.as_bytes(), Ino::ROOT, to.as_bytes(), RenameMode::Replace).unwrap();
}

#[test]
fn only_new_name_sync_forces_for_a_name_and_only_of_what_was_fsynced() {
    let fs = open(MountOptions::default());
    let make = |fs: &FileSystem, name: &str| {
        fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default()).unwrap().ino
    };
    let a = make(&fs, "a");
    fs.fsync(a, false).unwrap();
    let forced = count(&fs, "log.writes");
    rename(&fs, "a", "b");
    fs.link(a, Ino::ROOT, b"c").unwrap();
    assert_eq!((forces(&fs, "rename"), count(&fs, "log.writes")), (0, forced), "lazy: no log write");

    fs.set_options("new_name=sync").unwrap();
    rename(&fs, "b", "a");
    assert_eq!(forces(&fs, "rename"), 1, "fsynced before the remount");
    fs.checkpoint().unwrap();
    fs.write(a, 0, b"changed").unwrap();
    fs.fsync(a, false).unwrap();
    let other = make(&fs, "other");
    rename(&fs, "other", "moved");
    assert_eq!(forces(&fs, "rename"), 1, "it was never fsynced, nor was its directory");
    fs.link(a, Ino::ROOT, b"d").unwrap();
    assert_eq!(forces(&fs, "rename"), 2);
    assert_eq!(count(&fs, "log.durable_lsn"), count(&fs, "log.head_lsn"), "they return durable");
    fs.checkpoint().unwrap();
    rename(&fs, "a", "b");
    assert_eq!(forces(&fs, "rename"), 2, "not since the last checkpoint");
    fs.fsync(Ino::ROOT, false).unwrap();
    rename(&fs, "moved", "other");
    assert_eq!(forces(&fs, "rename"), 3, "the directory that it leaves was fsynced");
    assert_eq!(fs.getattr(other).unwrap().nlink, 1);
}

#[test]
fn an_overwrite_and_fdatasync_force_no_log_by_default() {
    let fs = open(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    fs.write(f, 0, &[1; 256 << 10]).unwrap();
    fs.fsync(f, false).unwrap();
    let counts = || ["log.writes", "device.flushes", "device.fua_writes"].map(|name| count(&fs, name));
    let before = counts();
    for i in 0..8 {
        fs.write(f, i * 8192, &[2; 4096]).unwrap();
        fs.fsync(f, true).unwrap();
    }
    let one = counts();
    assert_eq!(one, [before[0], before[1], before[2] + 8], "seq: no log force, and one durable write each");
    for i in 0..8 {
        fs.write(f, i * 8192, &[2; 4096]).unwrap();
        fs.write(f, i * 8192 + 131072, &[2; 4096]).unwrap();
        fs.fsync(f, true).unwrap();
    }
    assert_eq!(
        counts(),
        [one[0], one[1] + 8, one[2]],
        "two writes and one flush are cheaper than two durable ones"
    );
}

/// A coarse clock, which advances only when the test makes it.
#[derive(Default)]
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Timespec {
        Timespec { sec: 1_000_000_000 + self.0.load(Ordering::Relaxed) as i64, nsec: 0 }
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// The rules of XFS before and after its change: see `durability::rules`.
#[test]
fn only_relog_forces_for_time_stamps_and_once_a_tick() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let ticks = Arc::new(Ticks::default());
    FileSystem::format(device.clone(), ticks.clone(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, ticks.clone(), MountOptions::default()).unwrap();
    let f = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    fs.write(f, 0, &[1; 256 << 10]).unwrap();
    fs.fsync(f, false).unwrap();
    // Returns the number of records of time stamps that a write makes, in a new clock tick or in
    // the same one, and the number of forces of the fdatasync that follows.
    let stamps = || count(&fs, "log.records_by_operation.times");
    let step = |moves: bool| {
        ticks.0.fetch_add(moves as u64, Ordering::Relaxed);
        let before = (stamps(), forces(&fs, "fdatasync"), count(&fs, "log.writes"));
        fs.write(f, 8192, &[2; 4096]).unwrap();
        let written = stamps();
        fs.fsync(f, true).unwrap();
        assert_eq!(stamps(), written, "fdatasync itself logs no stamps");
        let forced = (forces(&fs, "fdatasync") - before.1, count(&fs, "log.writes") - before.2);
        assert_eq!(forced.0, forced.1, "a force is a log write here");
        (written - before.0, forced.0)
    };
    for (rule, new, same) in [("seq", (0, 0), (0, 0)), ("fields", (1, 0), (0, 0)), ("relog", (1, 1), (0, 0))]
    {
        fs.set_options(&format!("fdatasync={rule}")).unwrap();
        fs.fsync(f, false).unwrap();
        assert_eq!([step(true), step(false), step(true)], [new, same, new], "{rule}");
    }
    // What another call has forced need not be forced again.
    ticks.0.fetch_add(1, Ordering::Relaxed);
    fs.write(f, 8192, &[3; 4096]).unwrap();
    fs.sync().unwrap();
    let forced = forces(&fs, "fdatasync");
    fs.fsync(f, true).unwrap();
    assert_eq!(forces(&fs, "fdatasync"), forced, "relog: nothing of it is left to force");
    // The stamps are those of the write. Under every rule fdatasync forces a change of size.
    assert_eq!(fs.getattr(f).unwrap().mtime, ticks.now());
    for rule in ["fields", "seq"] {
        fs.set_options(&format!("fdatasync={rule}")).unwrap();
        let (forced, size) = (forces(&fs, "fdatasync"), fs.getattr(f).unwrap().size);
        fs.write(f, size, &[4; 4096]).unwrap();
        fs.fsync(f, true).unwrap();
        assert_eq!(forces(&fs, "fdatasync"), forced + 1, "{rule}");
    }
}

/// A clock of which no two readings are equal, as the clock of an image that NFS clients use.
#[derive(Default)]
struct Distinct(AtomicU64);

impl Clock for Distinct {
    fn now(&self) -> Timespec {
        Timespec { sec: 1_000_000_000, nsec: self.0.fetch_add(1, Ordering::Relaxed) as u32 }
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// A device that notes a file's ctime before each of its reads.
struct Looking {
    inner: MemDevice,
    file: Mutex<Option<(FileSystem, Ino)>>,
    seen: Mutex<Vec<Timespec>>,
}

impl Watch for Looking {
    fn device(&self) -> &dyn Device {
        &self.inner
    }

    /// Gets the attributes in another thread, because the reading thread may be inside the gate.
    fn before_read(&self, _offset: u64) {
        // Taken, because the other thread may read, too.
        let Some((fs, ino)) = self.file.lock().take() else { return };
        let (look, (send, found)) = (fs.clone(), mpsc::channel());
        let thread = spawn_named("look", move || send.send(look.getattr(ino).unwrap().ctime).unwrap());
        self.seen.lock().push(found.recv_timeout(HANG).expect("attributes wait for no write"));
        thread.unwrap().join().unwrap();
        *self.file.lock() = Some((fs, ino));
    }
}

/// A reader of another door that finds the stamps of a write finds its bytes, too. Otherwise it
/// would take the old bytes for those of the new stamps, and keep them.
#[test]
fn the_stamps_of_a_write_are_not_visible_before_its_bytes() {
    for rule in ["seq", "fields", "relog"] {
        let (file, seen) = (Mutex::new(None), Mutex::default());
        let device = Arc::new(Watched(Looking { inner: MemDevice::new(64 << 20), file, seen }));
        let clock = Arc::new(Distinct::default());
        FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
        let open = || FileSystem::open(device.clone(), clock.clone(), MountOptions::default()).unwrap();
        let fs = open();
        let f = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
        fs.write(f, 0, &[1; 256 << 10]).unwrap();
        fs.close().unwrap();
        let fs = open();
        fs.set_options(&format!("fdatasync={rule}")).unwrap();
        let before = fs.getattr(f).unwrap().ctime;
        *device.file.lock() = Some((fs.clone(), f));
        // The rest of the block is read before the byte is stored.
        fs.write(f, 8192, &[2]).unwrap();
        device.file.lock().take();
        let (seen, after) = (std::mem::take(&mut *device.seen.lock()), fs.getattr(f).unwrap().ctime);
        assert!(!seen.is_empty(), "{rule}: nothing was read");
        assert!(seen.iter().all(|time| *time == before), "{rule}: {seen:?}, {before:?} before");
        assert!(after > before, "{rule}");
        fs.close().unwrap();
    }
}

#[test]
fn a_remount_changes_what_it_names_or_nothing() {
    let fs = open(MountOptions::default());
    fs.set_options("noasync_checkpoint,commit=9").unwrap();
    let options = fs.options();
    assert_eq!((options.async_checkpoint, options.commit.as_secs()), (None, 9));
    for wrong in ["async_checkpoint=0", "fdatasync=seq,new_name=later", "async_checkpoint=30,ro"] {
        assert!(fs.set_options(wrong).is_err(), "{wrong}");
        assert_eq!(fs.options().async_checkpoint, None);
        assert_eq!(fs.options().fdatasync, FdatasyncRule::Seq);
    }
    fs.set_options("async_checkpoint=30").unwrap();
    let info: serde_json::Value = serde_json::from_str(&fs.info_json()).unwrap();
    assert_eq!(info["options"]["async_checkpoint"], 30);
    assert_eq!(info["options"]["new_name"], "lazy");
}

/// An unlinked file cannot get a name again; a file created without a name can.
#[test]
fn only_a_tmpfile_can_be_linked_back() {
    let fs = open(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    fs.pin(f).unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    assert!(matches!(fs.link(f, Ino::ROOT, b"g"), Err(Error::NotFound)));
    let t = fs.tmpfile(Ino::ROOT, 0o644, Owner::default()).unwrap().ino;
    assert_eq!(fs.link(t, Ino::ROOT, b"t").unwrap().nlink, 1);
}

#[test]
fn the_slowest_fsyncs_are_kept_slowest_first() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    for i in 0..40 {
        let f = fs.create(Ino::ROOT, format!("{i}").as_bytes(), 0o644, Owner::default()).unwrap().ino;
        fs.fsync(f, i % 2 == 0).unwrap();
    }
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    let slow = stats["slow_fsyncs"].as_array().unwrap();
    assert_eq!(slow.len(), 16);
    let field = |s: &serde_json::Value, name: &str| s[name].as_u64().unwrap();
    assert!(slow.windows(2).all(|w| field(&w[0], "total_ns") >= field(&w[1], "total_ns")));
    for s in slow {
        let parts = ["data_ns", "queue_ns", "barrier_ns", "write_ns", "wake_ns", "flush_ns"];
        let sum: u64 = parts.iter().map(|p| field(s, p)).sum();
        assert_eq!(sum, field(s, "total_ns"), "the phases make up the whole: {s}");
        assert!(field(s, "write_ns") > 0, "{s}");
    }
}

/// The former rule of ext4: no checkpoint runs while the log has space. The operation that finds
/// none runs the checkpoint and waits for it.
#[test]
fn without_async_checkpoint_only_a_full_log_starts_one() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let format = FormatOptions { log_size: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &format).unwrap();
    let options = MountOptions { async_checkpoint: None, ..MountOptions::default() };
    let fs = FileSystem::open(device, clock, options).unwrap();
    fs.checkpoint().unwrap();
    let checkpoints = || count(&fs, "transactions.checkpoints");
    let stalled = || count(&fs, "transactions.log_space_stall_ns");
    let (before, mut most) = (checkpoints(), 0);
    for i in 0..100_000 {
        most = most.max(count(&fs, "log.used_bytes"));
        assert_eq!(stalled(), 0, "nobody waits while there is room");
        fs.create(Ino::ROOT, format!("{i}").as_bytes(), 0o644, Owner::default()).unwrap();
        if checkpoints() != before {
            break;
        }
    }
    assert_eq!(checkpoints(), before + 1, "the operation ran it");
    assert!(stalled() > 0, "and waited for it");
    let ring = count(&fs, "log.ring_bytes");
    assert!(most > ring / 2, "it was full but for what is reserved: {most} of {ring} bytes");
}

/// With a bound on its use, a large log behaves like a small one: operations find it full, and a
/// recovery reads only the used part.
#[test]
fn a_log_of_which_a_part_is_used_is_full_when_that_part_is() {
    const USED_MAX: u64 = 1 << 20;
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let format = FormatOptions { log_size: Some(16 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &format).unwrap();
    let options = MountOptions { log_use_max: Some(USED_MAX), ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), clock.clone(), options.clone()).unwrap();
    let mut appended = 0;
    for i in 0.. {
        fs.create(Ino::ROOT, format!("{i}").as_bytes(), 0o644, Owner::default()).unwrap();
        if i % 64 != 0 {
            continue;
        }
        let used = count(&fs, "log.used_bytes");
        assert!(used <= USED_MAX, "{used}");
        appended = count(&fs, "log.head_lsn");
        if appended > 3 * USED_MAX && used > USED_MAX / 4 {
            break;
        }
    }
    fs.sync().unwrap();
    assert!(count(&fs, "log.ring_bytes") > appended, "the log had more room");
    let again = FileSystem::open(Arc::new(device.fork()), clock, options).unwrap();
    let info: serde_json::Value = serde_json::from_str(&again.info_json()).unwrap();
    let read = info["recovery"]["bytes"].as_u64().unwrap();
    assert!((1..=USED_MAX).contains(&read), "{read}");
}

/// Files of 4 KiB are written by the timer or by sync. Without `async_checkpoint`, and with one
/// file that is overwritten, the fsyncs find the log full and run the checkpoints.
#[test]
fn fsyncs_beside_a_checkpoint_are_counted_by_themselves() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let format = FormatOptions { log_size: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &format).unwrap();
    let options = MountOptions { async_checkpoint: None, ..MountOptions::default() };
    let fs = FileSystem::open(device, clock, options).unwrap();
    let meanwhile = || count(&fs, "checkpoint.fsync_meanwhile_ns.count");
    let checkpoints = || count(&fs, "transactions.checkpoints");
    let file = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    fs.checkpoint().unwrap();
    let before = checkpoints();
    let grow = |i: u64, sync: &dyn Fn(bool)| {
        fs.write(file, i * 4096, &[7; 4096]).unwrap();
        sync(i.is_multiple_of(2));
    };
    let at_once = |datasync| fs.fsync(file, datasync).unwrap();
    let answered = |datasync| {
        let (send, receive) = std::sync::mpsc::channel();
        fs.fsync_async(file, datasync, Box::new(move |result| send.send(result).unwrap()));
        receive.recv().unwrap().unwrap();
    };
    grow(0, &at_once);
    grow(1, &answered);
    assert_eq!(meanwhile(), 0, "none ran, though one had");
    (2..500).for_each(|i| grow(i, &at_once));
    let first = checkpoints() - before;
    assert!(first >= 1);
    assert_eq!(meanwhile(), first);
    (500..1000).for_each(|i| grow(i, &answered));
    assert!(checkpoints() - before > first);
    assert_eq!(meanwhile(), checkpoints() - before);
    assert!(count(&fs, "operations.fsync.count") > 400, "most are not counted");
}

fn write_files(fs: &FileSystem, count: u32) {
    for i in 0..count {
        let f = fs.create(Ino::ROOT, format!("{i}").as_bytes(), 0o644, Owner::default()).unwrap().ino;
        fs.write(f, 0, &[i as u8; 4096]).unwrap();
    }
    fs.sync().unwrap();
    for i in 0..count {
        let f = fs.lookup(Ino::ROOT, format!("{i}").as_bytes()).unwrap().ino;
        let mut bytes = [0; 4096];
        assert_eq!(fs.read(f, 0, &mut bytes).unwrap(), 4096);
        assert!(bytes.iter().all(|b| *b == i as u8), "file {i}");
    }
}

#[test]
fn a_plug_merges_the_writes_of_many_files() {
    let writes = |options: &str| {
        let mut mount = MountOptions::default();
        options.parse::<Switches>().unwrap().apply(&mut mount);
        let fs = open(mount);
        write_files(&fs, 512);
        count(&fs, "data.writes")
    };
    let (plugged, alone) = (writes("plug"), writes("noplug"));
    assert_eq!(alone, 512, "noplug: a write for each file");
    assert!(plugged <= 512 / 64, "plug: {plugged} writes");
    assert!(writes("plug,writeback_order=location") <= 512 / 64);
}

/// A device that counts the submissions with writes other than FUA writes.
struct Submissions {
    inner: MemDevice,
    count: AtomicU64,
}

impl Watch for Submissions {
    fn device(&self) -> &dyn Device {
        &self.inner
    }

    fn before_write(&self, fua: bool) {
        self.count.fetch_add(!fua as u64, Ordering::Relaxed);
    }
}

/// The kernel merges the requests of one submission, so with `noplug` each inode needs a submission
/// of its own.
#[test]
fn noplug_submits_the_writes_of_each_inode_apart_from_those_of_others() {
    const FILES: u64 = 200;
    let submissions = |options: &str| {
        let device = Arc::new(Watched(Submissions { inner: MemDevice::new(64 << 20), count: 0.into() }));
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
        FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
        let mut mount = MountOptions::default();
        options.parse::<Switches>().unwrap().apply(&mut mount);
        let fs = FileSystem::open(device.clone(), clock, mount).unwrap();
        let files: Vec<Ino> = (0..FILES)
            .map(|i| fs.create(Ino::ROOT, format!("{i}").as_bytes(), 0o644, Owner::default()).unwrap().ino)
            .collect();
        let write_all = |offset, len, fill| {
            files.iter().for_each(|f| assert_eq!(fs.write(*f, offset, &vec![fill; len]).unwrap(), len));
        };
        write_all(0, 8 * 4096, 1);
        fs.sync().unwrap();
        // Two writes for each file, with an unchanged page between them.
        write_all(0, 4096, 2);
        write_all(2 * 4096, 4096, 3);
        let before = (device.count.load(Ordering::Relaxed), count(&fs, "data.writes"));
        fs.sync().unwrap();
        let submitted = device.count.load(Ordering::Relaxed) - before.0;
        assert_eq!(count(&fs, "data.writes") - before.1, 2 * FILES, "{options}");
        for f in &files {
            let mut bytes = [0; 3 * 4096];
            assert_eq!(fs.read(*f, 0, &mut bytes).unwrap(), bytes.len());
            assert!((0..3).all(|page| bytes[page * 4096] == [2, 1, 3][page]));
        }
        submitted
    };
    let (plugged, apart) = (submissions("plug"), submissions("noplug"));
    assert!(plugged < FILES / 8, "plug: {plugged} submissions");
    // Both counts include the log's writes, which are not data.
    assert!((FILES..FILES + plugged).contains(&apart), "noplug: {apart}, plug: {plugged}");
}

/// As in Linux, where sync(2) visited each file system and walked all of its cached inodes.
#[test]
fn a_sync_with_shared_tracking_walks_every_cached_inode_of_its_file_system() {
    let walked = |fs: &FileSystem| {
        let before = count(fs, "cache.sync_walked_inodes");
        fs.sync().unwrap();
        count(fs, "cache.sync_walked_inodes") - before
    };
    for (tracking, shared) in [(DirtyTracking::Shared, 1), (DirtyTracking::PerSb, 0)] {
        let options = MountOptions { dirty_tracking: tracking, ..MountOptions::default() };
        let (a, b) = (open(options.clone()), open(options));
        write_files(&a, 50);
        write_files(&b, 3);
        a.sync().unwrap();
        b.sync().unwrap();
        let (in_a, in_b) = (count(&a, "cache.inodes"), count(&b, "cache.inodes"));
        assert!(in_a > 50 && (3..50).contains(&in_b), "{in_a} and {in_b} cached inodes");
        assert_eq!((walked(&a), walked(&b)), (shared * in_a, shared * in_b), "{tracking}");
        a.unlink(Ino::ROOT, b"1").unwrap();
        a.sync().unwrap();
        assert_eq!(count(&a, "cache.inodes"), in_a - 1);
        assert_eq!(walked(&a), shared * (in_a - 1), "{tracking}: what left the cache is not walked");
    }
}

#[test]
fn file_systems_with_shared_tracking_write_only_their_own() {
    let shared = || open(MountOptions { dirty_tracking: DirtyTracking::Shared, ..MountOptions::default() });
    let (a, b) = (shared(), shared());
    for fs in [&a, &b] {
        let f = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
        fs.write(f, 0, &[7; 4096]).unwrap();
    }
    a.sync().unwrap();
    let dirty = |fs: &FileSystem| (count(fs, "cache.dirty_inodes"), count(fs, "cache.dirty_pages"));
    assert_eq!((dirty(&a), dirty(&b)), ((0, 0), (1, 1)));
    drop(b);
    write_files(&a, 20);
    a.sync().unwrap(); // the reads changed time stamps
    assert_eq!(dirty(&a), (0, 0));
    a.close().unwrap();
}

#[derive(Debug)]
struct LastFirst;

impl WritebackOrder for LastFirst {
    fn name(&self) -> &'static str {
        "last first"
    }

    fn sort(&self, inodes: &mut [DirtyInode]) {
        inodes.sort_by_key(|i| std::cmp::Reverse(i.ino));
    }
}

#[test]
fn a_program_may_bring_its_own_order() {
    let fs = open(MountOptions { writeback_order: Arc::new(LastFirst), ..MountOptions::default() });
    write_files(&fs, 300);
    let info: serde_json::Value = serde_json::from_str(&fs.info_json()).unwrap();
    assert_eq!(info["options"]["writeback_order"], "last first");
}

/// The reservations of 32 concurrent threads must leave room for records in a small log.
#[test]
fn an_fsync_in_place_reserves_log_for_the_pages_that_it_writes() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let format = FormatOptions { log_size: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &format).unwrap();
    let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    let file = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    fs.write(file, 0, &[7; 20 * 4096]).unwrap(); // too much for the log, so written in place
    fs.fsync(file, false).unwrap();
    let most = count(&fs, "log.reserved_bytes_max");
    assert!((4096..16 << 10).contains(&most), "{most} bytes");
    // Even pages that are far apart are written in one pass.
    (0..40).for_each(|i| assert_eq!(fs.write(file, i << 20, &[8; 4096]).unwrap(), 4096));
    let records = count(&fs, "log.records_by_operation.writeback");
    fs.fsync(file, false).unwrap();
    assert_eq!(count(&fs, "log.records_by_operation.writeback"), records + 1);
}
