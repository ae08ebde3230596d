//! Freeze and thaw through the library: which calls wait, which continue, and what is on the
//! device.
#![allow(clippy::disallowed_methods)]

use crate::common::failing::{Failing, MARK, PAGE};
use crate::common::images::errno;
use kedge_base::errno::{EBUSY, EINVAL, EIO, ENOSPC};
use kedge_base::{HANG, Timespec, spawn_named};
use kedge_device::MemDevice;
use kedge_device::sim::{Choice, FaultPlan};
use kedge_format::Key;
use kedge_format::item::Orphan;
use kedge_format::record::{RecordBuilder, RecordOp};
use kedge_fsck::{CheckOptions, ReplayState, StoreReplay};
use kedge_store::{Class, Need, OpenOptions, Store};
use kedgefs::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// Normally long enough for a call that does not wait to return. A longer call fails no test.
const A_WHILE: Duration = Duration::from_millis(50);

fn check(medium: MemDevice) -> kedge_fsck::Report {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..Default::default() };
    kedge_fsck::check(Arc::new(medium), &options)
}

/// Checks that the durable state of the device is clean, and that no log needs to be replayed.
fn assert_clean(device: &Failing) {
    assert_eq!(device.sim.pending(), 0, "something waits for a flush");
    let report = check(device.sim.crash_as(Choice::None));
    assert!(report.is_clean() && report.warnings == 0, "{report}");
    assert!(matches!(report.replay, ReplayState::None) && device.is_clean(), "{report}");
}

/// Opens the durable state of the device read-only.
fn copy(device: &Failing) -> FileSystem {
    let medium = Arc::new(device.sim.crash_as(Choice::None));
    let options = MountOptions { read_only: true, ..Default::default() };
    FileSystem::open(medium, device.clock.clone(), options).unwrap()
}

fn read(fs: &FileSystem, name: &str) -> Vec<u8> {
    let attr = fs.lookup(Ino::ROOT, name.as_bytes()).unwrap();
    let mut bytes = vec![0; attr.size as usize];
    assert_eq!(fs.read(attr.ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn writes(device: &Failing) -> (u64, u64) {
    let counts = device.sim.op_counts();
    (counts.writes, counts.flushes)
}

fn discarded(device: &Failing, fs: &FileSystem) -> u64 {
    device.value(fs, &["data", "discarded_blocks"])
}

fn state(fs: &FileSystem) -> String {
    let info: serde_json::Value = serde_json::from_str(&fs.info_json()).unwrap();
    assert_eq!(info["frozen_since"].is_null(), fs.frozen_since().is_none());
    info["state"].as_str().unwrap().to_owned()
}

/// Runs work in another thread. The receiver gets the result.
fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (done, answer) = mpsc::channel();
    spawn_named("apart", move || done.send(work()).unwrap()).unwrap();
    answer
}

#[test]
fn a_frozen_image_is_clean_and_has_all_that_had_completed() {
    let device = Failing::new();
    let fs = device.open();
    let (large, small) = (vec![b'l'; 3 * 1024 * PAGE + 5], b"rides in the log".to_vec());
    let ino = device.create(&fs, b"large");
    assert_eq!(fs.write(ino, 0, &large).unwrap(), large.len());
    let ino = device.create(&fs, b"small");
    fs.write(ino, 0, &small).unwrap();
    fs.fsync(ino, false).unwrap();
    // This file is open and has no name. The next mount of the copy deletes it.
    let ino = device.create(&fs, b"open");
    fs.write(ino, 0, &large).unwrap();
    fs.pin(ino).unwrap();
    fs.unlink(Ino::ROOT, b"open").unwrap();
    assert_eq!((state(&fs).as_str(), device.is_clean()), ("mounted", false));
    fs.freeze().unwrap();
    assert_eq!(state(&fs), "frozen");
    assert_clean(&device);
    let copied = copy(&device);
    assert_eq!((read(&copied, "large"), read(&copied, "small")), (large.clone(), small.clone()));
    assert_eq!(read(&fs, "large"), large);
    fs.thaw().unwrap();
    // The removal of the clean mark is durable before the first change. Only the two copies of the
    // superblock are not durable yet.
    assert_eq!((state(&fs).as_str(), device.is_clean(), device.sim.pending()), ("mounted", false, 2));
    let ino = device.create(&fs, b"after");
    fs.fsync(ino, false).unwrap();
    let report = check(device.sim.crash_as(Choice::None));
    assert!(report.is_clean() && matches!(report.replay, ReplayState::Done(_)), "{report}");
    copy(&device).lookup(Ino::ROOT, b"after").unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn nothing_is_written_while_it_is_frozen() {
    let device = Failing::new();
    let fs = device.open_with(MountOptions {
        commit: Duration::from_millis(5),
        discard: true,
        ..Default::default()
    });
    let ino = device.file(&fs, b"a", 40);
    let sparse = device.create(&fs, b"sparse");
    fs.write(sparse, 10 * PAGE as u64, b"late").unwrap();
    let gone = device.file(&fs, b"gone", 100);
    fs.pin(gone).unwrap();
    fs.unlink(Ino::ROOT, b"gone").unwrap();
    let atime = fs.getattr(ino).unwrap().atime;
    device.clock.advance(Duration::from_secs(100_000));
    fs.freeze().unwrap();
    let before = (writes(&device), discarded(&device, &fs), atime);
    for ino in [ino, sparse, gone, Ino::ROOT] {
        fs.fsync(ino, false).unwrap();
        fs.fsync(ino, true).unwrap();
        let (done, answer) = mpsc::channel();
        fs.fsync_async(ino, false, Box::new(move |result| done.send(result).unwrap()));
        answer.recv_timeout(HANG).unwrap().unwrap();
    }
    fs.sync().unwrap();
    let (done, answer) = mpsc::channel();
    fs.sync_async(Box::new(move |result| done.send(result).unwrap()));
    answer.recv_timeout(HANG).unwrap().unwrap();
    fs.checkpoint().unwrap();
    assert_eq!(read(&fs, "a"), vec![b'0'; 40 * PAGE]);
    assert_eq!(fs.seek(sparse, 0, SeekKind::Data).unwrap(), 10 * PAGE as u64);
    assert_eq!(errno(fs.set_options("noatime")), EBUSY);
    fs.unpin(gone, 1);
    fs.getattr(gone).unwrap();
    std::thread::sleep(A_WHILE); // the flusher has turns meanwhile
    let atime = fs.getattr(ino).unwrap().atime;
    assert_eq!((writes(&device), discarded(&device, &fs), atime), before);
    assert_clean(&device);
    let freed = fs.statfs().blocks_free;
    fs.thaw().unwrap();
    // The deferred operations run now.
    assert!(matches!(fs.getattr(gone), Err(Error::NotFound)));
    assert!(fs.statfs().blocks_free >= freed + 100);
    read(&fs, "a");
    assert_ne!(fs.getattr(ino).unwrap().atime, atime);
    fs.set_options("noatime").unwrap();
}

/// Makes each kind of change in another thread.
#[test]
fn changes_wait_for_the_thaw() {
    type Change = fn(&FileSystem, Ino) -> Result<()>;
    const OWNER: Owner = Owner { uid: 0, gid: 0 };
    let changes: &[(&str, Change)] = &[
        ("create", |fs, _| fs.create(Ino::ROOT, b"c", 0o644, OWNER).map(drop)),
        ("mkdir", |fs, _| fs.mkdir(Ino::ROOT, b"d", 0o755, OWNER).map(drop)),
        ("mknod", |fs, _| fs.mknod(Ino::ROOT, b"n", 0o10644, 0, OWNER).map(drop)),
        ("symlink", |fs, _| fs.symlink(Ino::ROOT, b"s", b"t", OWNER).map(drop)),
        ("tmpfile", |fs, _| fs.tmpfile(Ino::ROOT, 0o644, OWNER).map(drop)),
        ("link", |fs, ino| fs.link(ino, Ino::ROOT, b"l").map(drop)),
        ("unlink", |fs, _| fs.unlink(Ino::ROOT, b"u")),
        ("rmdir", |fs, _| fs.rmdir(Ino::ROOT, b"r")),
        ("rename", |fs, _| fs.rename(Ino::ROOT, b"from", Ino::ROOT, b"to", RenameMode::Replace)),
        ("write", |fs, ino| fs.write(ino, 0, b"w").map(drop)),
        ("truncate", |fs, ino| {
            fs.setattr(ino, &SetAttr { size: Some(9999), ..SetAttr::default() }).map(drop)
        }),
        ("utimes", |fs, ino| {
            fs.setattr(ino, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).map(drop)
        }),
        ("fallocate", |fs, ino| fs.fallocate(ino, FallocateMode::PunchHole, 0, 10)),
        ("setxattr", |fs, ino| fs.setxattr(ino, b"user.x", b"y", XattrMode::Any)),
        ("removexattr", |fs, ino| fs.removexattr(ino, b"user.z")),
        ("chattr", |fs, ino| fs.set_flags(ino, FileFlags::NODUMP)),
        ("trim", |fs, _| fs.trim(0, u64::MAX, 0).map(drop)),
    ];
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"f");
    fs.setxattr(ino, b"user.z", b"z", XattrMode::Any).unwrap();
    for name in [&b"u"[..], b"from"] {
        device.create(&fs, name);
    }
    fs.mkdir(Ino::ROOT, b"r", 0o755, OWNER).unwrap();
    fs.freeze().unwrap();
    let before = writes(&device);
    let waiting: Vec<_> = changes
        .iter()
        .map(|(name, change)| {
            let fs = fs.clone();
            (name, apart(move || change(&fs, ino)))
        })
        .collect();
    std::thread::sleep(A_WHILE);
    for (name, answer) in &waiting {
        assert!(answer.try_recv().is_err(), "{name} did not wait");
    }
    assert_eq!(writes(&device), before);
    assert_clean(&device);
    fs.thaw().unwrap();
    for (name, answer) in &waiting {
        answer.recv_timeout(HANG).unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    fs.close().unwrap();
    assert_clean(&device);
}

/// Makes a frozen image with a file of 600 extents beyond its end, which an unfinished truncate
/// still has to remove. Its process has died.
fn frozen_within_a_truncate() -> (Failing, Ino) {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"cut");
    for i in 0..600 {
        fs.fallocate(ino, FallocateMode::Allocate { keep_size: true }, 2 * i * PAGE as u64, PAGE as u64)
            .unwrap();
    }
    fs.close().unwrap();
    let store = Store::open(device.sim.clone(), device.clock.clone(), &OpenOptions::default()).unwrap();
    let mut handle = store.begin(Need::record(Class::Normal).puts(1, Orphan::SIZE)).unwrap();
    let mut record = RecordBuilder::new(RecordOp::Truncate);
    record.put(Key::orphan(ino), &Orphan::Truncate.encode());
    handle.commit(record).unwrap();
    drop(handle);
    store.freeze().unwrap();
    drop(store);
    (device.fork(), ino)
}

/// Opens a frozen image like the next server of a mount with a keeper.
fn open_frozen(device: &Failing) -> FileSystem {
    let options = MountOptions { commit: Duration::from_millis(5), ..Default::default() };
    FileSystem::open_again(device.sim.clone(), device.clock.clone(), options, Some(1), |_| Ok(())).unwrap()
}

#[test]
fn the_next_server_of_a_frozen_image_leaves_a_truncate_unfinished() {
    let (device, ino) = frozen_within_a_truncate();
    let fs = open_frozen(&device);
    std::thread::sleep(A_WHILE); // the flusher has turns meanwhile
    assert_eq!(writes(&device), (0, 0));
    assert!(device.is_clean());
    assert_eq!(fs.getattr(ino).unwrap().blocks, 600 * 8);
    fs.thaw().unwrap();
    // The next change finishes the truncate first.
    fs.write(ino, 0, b"x").unwrap();
    fs.fsync(ino, false).unwrap();
    assert!(fs.getattr(ino).unwrap().blocks <= 8);
    fs.close().unwrap();
    assert_clean(&device);
}

/// From each request of that server's thaw on the device fails, and then power does. The image can
/// be mounted.
#[test]
fn a_thaw_within_a_truncate_may_end_anywhere() {
    let (base, ino) = frozen_within_a_truncate();
    for nth in 0.. {
        let device = base.fork();
        let fs = open_frozen(&device);
        device.sim.set_plan(FaultPlan::new(1).fail_from(nth, EIO));
        let thawed = fs.thaw();
        drop(fs);
        for choice in [Choice::None, Choice::All, Choice::Torn(nth)] {
            let medium = Arc::new(device.sim.crash_as(choice));
            let fs = FileSystem::open(medium.clone(), device.clock.clone(), MountOptions::default())
                .unwrap_or_else(|e| panic!("request {nth}, {choice:?}: {e}"));
            assert_eq!(fs.getattr(ino).unwrap().blocks, 0, "request {nth}, {choice:?}");
            fs.close().unwrap();
            let report = check(medium.fork());
            assert!(report.is_clean(), "request {nth}, {choice:?}: {report}");
        }
        if thawed.is_ok() {
            assert!(nth > 1, "the thaw writes maps and a slot");
            break;
        }
    }
}

#[test]
fn a_second_freeze_is_busy_and_a_thaw_without_one_is_invalid() {
    let device = Failing::new();
    let fs = device.open();
    assert_eq!(errno(fs.thaw()), EINVAL);
    for _ in 0..3 {
        fs.freeze().unwrap();
        assert_eq!(errno(fs.freeze()), EBUSY);
        assert_clean(&device);
        fs.thaw().unwrap();
        assert_eq!(errno(fs.thaw()), EINVAL);
    }
    fs.close().unwrap();
    assert_eq!((errno(fs.freeze()), errno(fs.thaw())), (EIO, EIO));
}

/// A freeze waits for a change that is inside the gate. Until then the file system is not frozen,
/// and a second freeze returns EBUSY.
#[test]
fn a_freeze_waits_for_changes_that_have_begun() {
    let device = Failing::new();
    let fs = device.open();
    let pass = fs.pass_or(|| panic!("not frozen")).unwrap();
    let freezing = fs.clone();
    let freeze = apart(move || freezing.freeze());
    // This thread is inside the gate and may always enter again. Another thread cannot enter once
    // the gate is closed.
    let open = || {
        let fs = fs.clone();
        apart(move || fs.pass_or(|| None).is_some()).recv_timeout(HANG).unwrap()
    };
    while open() {
        std::thread::yield_now();
    }
    assert_eq!(errno(fs.freeze()), EBUSY);
    // Makes the change for which the pass was taken.
    let ino = device.create(&fs, b"in time");
    fs.write(ino, 0, b"all of it").unwrap();
    assert!(freeze.try_recv().is_err() && fs.frozen_since().is_none());
    drop(pass);
    freeze.recv_timeout(HANG).unwrap().unwrap();
    assert_clean(&device);
    assert_eq!(read(&copy(&device), "in time"), b"all of it");
    let (called, later) = mpsc::channel();
    let send = move || -> Option<Thawed> { Some(Box::new(move || called.send(()).unwrap())) };
    assert!(fs.pass_or(send).is_none() && later.try_recv().is_err());
    fs.thaw().unwrap();
    later.try_recv().unwrap();
}

#[test]
fn a_read_only_file_system_freezes_and_writes_nothing() {
    let device = Failing::new();
    device.open().close().unwrap();
    device.sim.set_plan(FaultPlan::new(0));
    let fs = device.open_with(MountOptions { read_only: true, ..Default::default() });
    fs.freeze().unwrap();
    assert_eq!((errno(fs.freeze()), state(&fs).as_str()), (EBUSY, "frozen"));
    fs.thaw().unwrap();
    fs.freeze().unwrap();
    fs.close().unwrap();
    assert_eq!(writes(&device), (0, 0));
}

/// A close ends the freeze: the waiting calls fail, and the image is not written.
#[test]
fn a_frozen_file_system_is_closed_without_a_write() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.file(&fs, b"kept", 3);
    fs.freeze().unwrap();
    let before = writes(&device);
    let writer = fs.clone();
    let write = apart(move || writer.write(ino, 0, b"too late"));
    std::thread::sleep(A_WHILE);
    fs.close().unwrap();
    assert_eq!(errno(write.recv_timeout(HANG).unwrap()), EIO);
    assert_eq!(writes(&device), before);
    assert_clean(&device);
    assert_eq!(errno(fs.thaw()), EIO);
    let fs = device.open();
    assert!(fs.info_json().contains("\"clean\":true"), "{}", fs.info_json());
    assert_eq!(read(&fs, "kept"), vec![b'0'; 3 * PAGE]);
}

#[test]
fn a_shutdown_ends_the_freeze() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"a");
    fs.freeze().unwrap();
    let writer = fs.clone();
    let write = apart(move || writer.write(ino, 0, b"too late"));
    std::thread::sleep(A_WHILE);
    fs.shutdown(true).unwrap();
    assert_eq!(errno(write.recv_timeout(HANG).unwrap()), EIO);
    assert_eq!((state(&fs).as_str(), errno(fs.thaw()), errno(fs.freeze())), ("shut down", EIO, EIO));
    assert_clean(&device);
}

/// From each request of a freeze or a thaw on, the device fails and does not recover. No thread
/// waits forever, and the file system is not frozen.
#[test]
fn a_device_that_fails_ends_freeze_and_thaw() {
    let (mut in_freeze, mut in_thaw, mut nth) = (0, 0, 0);
    loop {
        let device = Failing::new();
        let fs = device.open();
        let ino = device.create(&fs, b"a");
        fs.write(ino, 0, b"rides in the log").unwrap();
        fs.fsync(ino, false).unwrap();
        fs.write(ino, 0, &vec![b'x'; 50 * PAGE]).unwrap();
        device.sim.set_plan(FaultPlan::new(1).fail_from(nth, EIO));
        let frozen = fs.freeze();
        let thawed = frozen.is_ok().then(|| fs.thaw());
        in_freeze += frozen.is_err() as u32;
        in_thaw += thawed.as_ref().is_some_and(|thawed| thawed.is_err()) as u32;
        assert!(fs.frozen_since().is_none());
        let writer = fs.clone();
        let write = apart(move || writer.create(Ino::ROOT, b"b", 0o644, Owner::default()).map(drop));
        let written = write.recv_timeout(HANG).unwrap();
        if matches!(thawed, Some(Ok(()))) {
            written.unwrap();
            break;
        }
        // After a failed data write the data may be written to another block. A failed write of log
        // or checkpoint shuts the file system down.
        let shut_down = state(&fs) == "shut down";
        assert_eq!(written.is_err(), shut_down, "request {nth}");
        device.sim.heal();
        let report = check(device.sim.crash_as(Choice::None));
        assert!(report.is_clean(), "request {nth}: {report}");
        nth += 1;
    }
    println!("failed: {in_freeze} freezes, {in_thaw} thaws");
    assert!(in_freeze > 5 && in_thaw > 1, "{in_freeze} {in_thaw}");
}

#[test]
fn data_that_no_place_takes_refuses_the_freeze() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"nowhere");
    fs.write(ino, 0, MARK).unwrap();
    fs.write(ino, PAGE as u64, &vec![b'x'; 20 * PAGE]).unwrap();
    device.refuse_marked(true);
    assert_eq!(errno(fs.freeze()), EIO);
    // The file system is neither frozen nor shut down.
    assert_eq!(state(&fs), "mounted");
    device.create(&fs, b"goes on");
    device.refuse_marked(false);
    fs.freeze().unwrap();
    assert_clean(&device);
}

/// Small data is durable only in the log, and writes of it in place fail. A sync succeeds, but the
/// image could not be clean.
#[test]
fn logged_data_that_no_place_takes_refuses_the_freeze() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"small");
    fs.write(ino, 0, MARK).unwrap();
    fs.fsync(ino, false).unwrap();
    device.refuse_marked(true);
    fs.sync().unwrap();
    assert_eq!(errno(fs.freeze()), EIO);
    assert!(!device.is_clean() && state(&fs) == "mounted");
    let report = check(device.sim.crash_as(Choice::None));
    assert!(report.is_clean(), "{report}");
    device.create(&fs, b"goes on");
    device.refuse_marked(false);
    fs.freeze().unwrap();
    assert_clean(&device);
    assert_eq!(read(&copy(&device), "small"), MARK);
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// A clock that does not sleep, and that calls a hook whenever it is read.
#[derive(Default)]
struct Hooked {
    clock: ManualClock,
    on_now: OnceLock<Hook>,
    on_monotonic: OnceLock<Hook>,
}

impl Clock for Hooked {
    fn now(&self) -> Timespec {
        self.on_now.get().into_iter().for_each(|call| call());
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.on_monotonic.get().into_iter().for_each(|call| call());
        self.clock.monotonic()
    }

    fn sleep(&self, time: Duration) {
        self.clock.advance(time);
        std::thread::yield_now();
    }
}

fn open_hooked(device: &Failing) -> (FileSystem, Arc<Hooked>) {
    let clock = Arc::new(Hooked::default());
    let options = MountOptions { commit: Duration::from_secs(3600), ..Default::default() };
    (device.open_by(clock.clone(), options), clock)
}

/// On a full host a freeze fails without an effect, and a failed thaw leaves the file system
/// frozen.
#[test]
fn a_full_host_fails_freeze_and_thaw_and_nothing_else() {
    let device = Failing::new();
    let (fs, _) = open_hooked(&device);
    device.create(&fs, b"before");
    device.host_full(true);
    for name in [&b"a"[..], b"b"] {
        assert_eq!((errno(fs.freeze()), state(&fs).as_str()), (ENOSPC, "mounted"));
        let ino = device.create(&fs, name);
        fs.fsync(ino, false).unwrap();
    }
    device.host_full(false);
    fs.freeze().unwrap();
    assert_clean(&device);
    device.host_full(true);
    let writer = fs.clone();
    let write = apart(move || writer.create(Ino::ROOT, b"c", 0o644, Owner::default()).map(drop));
    for _ in 0..2 {
        assert_eq!((errno(fs.thaw()), state(&fs).as_str()), (ENOSPC, "frozen"));
        assert!(device.is_clean() && write.try_recv().is_err());
    }
    device.host_full(false);
    fs.thaw().unwrap();
    write.recv_timeout(HANG).unwrap().unwrap();
    // The file system is closed after a thaw that failed.
    fs.freeze().unwrap();
    device.host_full(true);
    fs.thaw().unwrap_err();
    fs.close().unwrap();
    let report = check(device.sim.view());
    assert!(report.is_clean() && device.is_clean(), "{report}");
    let fs = device.open_with(MountOptions { read_only: true, ..Default::default() });
    for name in [&b"before"[..], b"a", b"b", b"c"] {
        fs.lookup(Ino::ROOT, name).unwrap();
    }
}

/// The shutdown comes between the freeze's last check of the store and its end. Even then no thread
/// waits for a thaw.
#[test]
fn a_shutdown_while_a_freeze_completes_ends_it() {
    let device = Arc::new(Failing::new());
    let (fs, clock) = open_hooked(&device);
    device.create(&fs, b"a");
    fs.sync().unwrap();
    let (of_hook, dying, done) = (device.clone(), fs.clone(), AtomicBool::new(false));
    let hook = move || {
        // A freeze writes the clean mark last.
        if of_hook.is_clean() && !done.swap(true, SeqCst) {
            dying.shutdown(false).unwrap();
        }
    };
    assert!(!device.is_clean() && clock.on_now.set(Box::new(hook)).is_ok());
    assert_eq!(errno(fs.freeze()), EIO);
    assert!(fs.frozen_since().is_none());
    let writer = fs.clone();
    let write = apart(move || writer.create(Ino::ROOT, b"b", 0o644, Owner::default()).map(drop));
    assert_eq!(errno(write.recv_timeout(HANG).unwrap()), EIO);
}

/// An fsync of a frozen file system returns at once. It must not do work after the thaw: the next
/// freeze would not wait for that work.
#[test]
fn an_fsync_of_a_frozen_file_does_no_work_after_the_thaw() {
    for is_async in [false, true] {
        let device = Arc::new(Failing::new());
        let (fs, clock) = open_hooked(&device);
        let ino = device.file(&fs, b"a", 50);
        fs.freeze().unwrap();
        let caller = std::thread::current().id();
        let (readings, after) = (AtomicU64::new(0), Arc::new(OnceLock::new()));
        let (of_hook, thawing, seen) = (device.clone(), fs.clone(), after.clone());
        let hook = move || {
            // The first reading is before the fsync passes the gate.
            if std::thread::current().id() == caller && readings.fetch_add(1, SeqCst) == 1 {
                thawing.thaw().unwrap();
                thawing.write(ino, 0, &vec![b'1'; 50 * PAGE]).unwrap();
                seen.set(writes(&of_hook)).unwrap();
            }
        };
        assert!(clock.on_monotonic.set(Box::new(hook)).is_ok());
        if is_async {
            let (done, answer) = mpsc::channel();
            fs.fsync_async(ino, false, Box::new(move |result| done.send(result).unwrap()));
            answer.recv_timeout(HANG).unwrap().unwrap();
        } else {
            fs.fsync(ino, false).unwrap();
        }
        assert_eq!(*after.get().unwrap(), writes(&device), "async: {is_async}");
        assert!(fs.frozen_since().is_none());
    }
}

#[test]
fn a_frozen_file_system_that_is_shut_down_or_closed_syncs_no_more() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"a");
    fs.freeze().unwrap();
    fs.fsync(ino, false).unwrap();
    fs.sync().unwrap();
    assert!(matches!(fs.fsync(Ino(4242), false), Err(Error::NotFound)));
    fs.close().unwrap();
    assert_eq!((errno(fs.fsync(ino, false)), errno(fs.sync())), (EIO, EIO));
}

/// A freeze can start between two batches of a trim. On a mount that ends the trim, because its
/// worker must not wait.
#[test]
fn a_freeze_does_not_wait_for_the_whole_of_a_trim() {
    for on_a_mount in [false, true] {
        let device = Failing::new();
        let fs = device.open();
        let name = |i: usize| format!("{i}").into_bytes();
        for i in 0..1200 {
            let ino = device.create(&fs, &name(i));
            fs.write(ino, 0, &[1; PAGE]).unwrap();
        }
        fs.sync().unwrap();
        for i in (0..1200).step_by(2) {
            fs.unlink(Ino::ROOT, &name(i)).unwrap();
        }
        let (froze, frozen) = mpsc::channel();
        let (begun, freezing) = (AtomicBool::new(false), fs.clone());
        device.on_discard(move || {
            if begun.swap(true, SeqCst) {
                return;
            }
            let (fs, froze) = (freezing.clone(), froze.clone());
            spawn_named("freeze", move || froze.send(fs.freeze()).unwrap()).unwrap();
            let open = || {
                let fs = freezing.clone();
                apart(move || fs.pass_or(|| None).is_some()).recv_timeout(HANG).unwrap()
            };
            while open() {
                std::thread::yield_now();
            }
        });
        let trimming = fs.clone();
        let trim = apart(move || {
            let _pass = on_a_mount.then(|| trimming.pass_or(|| None).unwrap());
            trimming.trim(0, u64::MAX, 0)
        });
        frozen.recv_timeout(HANG).unwrap().unwrap();
        let before = discarded(&device, &fs);
        assert_clean(&device);
        if on_a_mount {
            assert_eq!(trim.recv_timeout(HANG).unwrap().unwrap(), before * PAGE as u64);
            fs.thaw().unwrap();
            let whole = fs.trim(0, u64::MAX, 0).unwrap();
            assert!(whole >= 2 * before * PAGE as u64, "{whole}");
        } else {
            fs.thaw().unwrap();
            let bytes = trim.recv_timeout(HANG).unwrap().unwrap();
            assert_eq!(bytes, discarded(&device, &fs) * PAGE as u64);
            assert!(bytes >= 2 * before * PAGE as u64, "{bytes}");
        }
    }
}

/// Threads write, rename, fsync and read all the time, and the commit timer runs. Each frozen image
/// is clean, does not change, and has everything that had completed before the freeze.
#[test]
fn copies_under_load_are_clean_and_complete() {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 12;
    let device = Failing::with(&FormatOptions { log_size: Some(1 << 20), ..Default::default() });
    let fs = device.open_with(MountOptions {
        commit: Duration::from_millis(3),
        cache_size: 4 << 20,
        discard: true,
        ..Default::default()
    });
    let stop = Arc::new(AtomicBool::new(false));
    let done: Arc<[AtomicU64; WRITERS]> = Arc::default();
    let threads: Vec<_> = (0..WRITERS)
        .map(|i| {
            let ino = device.create(&fs, format!("w{i}").as_bytes());
            fs.write(ino, 0, &0u64.to_le_bytes()).unwrap();
            let (fs, stop, done) = (fs.clone(), stop.clone(), done.clone());
            apart(move || write_numbers(&fs, i, ino, &stop, &done[i]))
        })
        .collect();
    for _ in 0..ROUNDS {
        let completed: Vec<u64> = done.iter().map(|n| n.load(SeqCst)).collect();
        fs.freeze().unwrap();
        let before = writes(&device);
        assert_clean(&device);
        let copied = copy(&device);
        for (i, completed) in completed.iter().enumerate() {
            let name = format!("w{i}");
            let number = |fs: &FileSystem| u64::from_le_bytes(read(fs, &name)[..8].try_into().unwrap());
            assert!(number(&copied) >= *completed, "{name}: {} of {completed}", number(&copied));
            assert_eq!(number(&copied), number(&fs), "{name}");
        }
        let names = |fs: &FileSystem| {
            let mut names = Vec::new();
            fs.readdir(Ino::ROOT, 0, &mut |e| {
                names.push(e.name.to_vec());
                true
            })
            .unwrap();
            names.sort();
            names
        };
        assert_eq!(names(&copied), names(&fs));
        assert_eq!(writes(&device), before);
        fs.thaw().unwrap();
        // Waits until at least one thread has made progress since the last freeze.
        let moved = || done.iter().zip(&completed).any(|(n, before)| n.load(SeqCst) > *before);
        while !moved() {
            let ended = threads.iter().find_map(|thread| thread.try_recv().ok());
            assert!(ended.is_none(), "a writer ended: {ended:?}");
            std::thread::yield_now();
        }
    }
    stop.store(true, SeqCst);
    threads.iter().for_each(|thread| thread.recv_timeout(HANG).unwrap().unwrap());
    fs.close().unwrap();
    assert_clean(&device);
}

fn write_numbers(fs: &FileSystem, i: usize, ino: Ino, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    for n in 1u64.. {
        if stop.load(SeqCst) {
            break;
        }
        fs.write(ino, 0, &n.to_le_bytes())?;
        done.store(n, SeqCst);
        let (a, b) = (format!("t{i}"), format!("u{i}"));
        let other = fs.create(Ino::ROOT, a.as_bytes(), 0o644, Owner::default())?.ino;
        fs.write(other, 0, &vec![b'x'; (n as usize % 5) * 3000])?;
        match n % 4 {
            0 => fs.fsync(ino, false)?,
            1 => fs.fsync(other, true)?,
            2 => drop(fs.read(ino, 0, &mut [0; 8])?),
            _ => assert!(fs.seek(ino, 0, SeekKind::Hole)? >= 8),
        }
        fs.rename(Ino::ROOT, a.as_bytes(), Ino::ROOT, b.as_bytes(), RenameMode::Replace)?;
        fs.unlink(Ino::ROOT, b.as_bytes())?;
    }
    Ok(())
}
