//! If the data of an fsync is a single write, that write is made durable with FUA instead of a
//! flush.

use kedge_base::{HANG, ManualClock, spawn_named};
use kedge_device::sim::{Choice, FaultPlan, OpKind, SimDevice};
use kedge_sim::ops::{OWNER, errno};
use kedge_sim::rig;
use kedgefs::{FileSystem, Ino, SeekKind};
use std::sync::Arc;
use std::time::Duration;

const FILE: usize = 256 << 10;
const PAGE: usize = 4096;
/// Latency of a write: so long that several calls run at once.
const LATENCY: Duration = Duration::from_millis(50);

struct Two {
    device: Arc<SimDevice>,
    fs: FileSystem,
    a: Ino,
    b: Ino,
}

/// Two files whose data was written in place and is durable.
fn two_files() -> Two {
    let setup = kedge_sim::explore::setup();
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log).unwrap()));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup).unwrap();
    let [a, b] = [b"a", b"b"].map(|name| {
        let ino = fs.create(Ino::ROOT, name, 0o644, OWNER).unwrap().ino;
        fs.write(ino, 0, &[1; FILE]).unwrap();
        ino
    });
    fs.sync().unwrap();
    Two { device, fs, a, b }
}

impl Two {
    fn overwrite(&self, ino: Ino, byte: u8) {
        self.fs.write(ino, 8 * PAGE as u64, &[byte; PAGE]).unwrap();
    }

    /// The overwritten byte after a power failure that loses everything unflushed.
    fn after_power_loss(&self, ino: Ino) -> u8 {
        let device = Arc::new(SimDevice::new(self.device.crash_as(Choice::None)));
        let setup = kedge_sim::explore::setup();
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup).unwrap();
        let mut byte = [0];
        assert_eq!(fs.read(ino, 9 * PAGE as u64 - 1, &mut byte).unwrap(), 1);
        byte[0]
    }

    /// The next durable write fails in its flush, which loses the cache of the device.
    fn loses_next_write(&self, names_flush: bool) {
        self.device.set_plan(FaultPlan::new(0).lose_fua(0, names_flush, errno::EIO));
    }

    fn until_held(&self) {
        while self.device.held_up() == 0 {
            std::thread::yield_now();
        }
    }

    fn fails_next_write(&self) {
        self.device.set_plan(FaultPlan::new(0).fail(OpKind::Write, 0, errno::EIO));
    }
}

#[test]
fn one_overwrite_is_durable_without_a_flush() {
    let two = two_files();
    two.device.set_plan(FaultPlan::default());
    two.overwrite(two.a, 2);
    two.overwrite(two.b, 2);
    two.fs.fsync(two.a, true).unwrap();
    let counts = two.device.op_counts();
    assert_eq!((counts.writes, counts.flushes), (1, 0));
    assert_eq!((two.after_power_loss(two.a), two.after_power_loss(two.b)), (2, 1), "only what was asked for");
}

#[test]
fn a_durable_write_does_not_answer_for_what_was_written_before() {
    let two = two_files();
    two.overwrite(two.a, 2);
    // The seek writes the data back, without a flush.
    two.fs.seek(two.a, 0, SeekKind::Data).unwrap();
    assert_eq!(two.after_power_loss(two.a), 1, "the test's own assumption: it is not durable yet");
    two.device.set_plan(FaultPlan::default());
    two.fs.write(two.a, 0, &[2; PAGE]).unwrap();
    two.fs.fsync(two.a, true).unwrap();
    assert_eq!(two.device.op_counts().flushes, 1);
    assert_eq!(two.after_power_loss(two.a), 2);
}

#[test]
fn a_failed_one_is_told_once_and_tried_again() {
    let two = two_files();
    two.overwrite(two.a, 2);
    two.fails_next_write();
    assert_eq!(two.fs.fsync(two.a, true).unwrap_err().errno(), errno::EIO);
    assert_eq!(two.after_power_loss(two.a), 1);
    two.fs.fsync(two.a, true).unwrap();
    assert_eq!(two.after_power_loss(two.a), 2);
}

/// On a device without FUA, the flush that emulates FUA may have failed. Then writes of other
/// threads are lost, and a later flush would not report that.
#[test]
fn a_failed_one_shuts_down_if_others_wait_for_a_flush() {
    let two = two_files();
    two.overwrite(two.b, 2);
    two.fs.seek(two.b, 0, SeekKind::Data).unwrap();
    two.overwrite(two.a, 2);
    two.fails_next_write();
    assert_eq!(two.fs.fsync(two.a, true).unwrap_err().errno(), errno::EIO);
    assert_eq!(two.fs.fsync(two.b, true).unwrap_err().errno(), errno::EIO, "its durability is unknown");
}

/// The same with writes of others in flight: these are not counted yet, but the failed flush may
/// have lost them.
#[test]
fn a_failed_one_shuts_down_if_others_are_writing() {
    let two = two_files();
    two.overwrite(two.a, 2);
    two.overwrite(two.b, 2);
    let plan = FaultPlan::new(0).hold(OpKind::Write, 0).fail(OpKind::Write, 1, errno::EIO);
    two.device.set_plan(plan);
    let (fs, b) = (two.fs.clone(), two.b);
    let other = spawn_named("other", move || fs.seek(b, 0, SeekKind::Data).map(drop)).unwrap();
    two.until_held();
    assert_eq!(two.fs.fsync(two.a, true).unwrap_err().errno(), errno::EIO);
    assert_eq!(
        two.device.op_counts().writes,
        2,
        "the test's own assumption: one of two went before the other"
    );
    two.device.release();
    // The other thread's write itself succeeded.
    let _ = other.join().unwrap();
    assert_eq!(two.fs.fsync(two.b, true).unwrap_err().errno(), errno::EIO, "its durability is unknown");
}

/// The error of the write does not show that its flush failed. Nothing else was in the cache, so
/// only the write's own bytes are lost.
#[test]
fn one_that_loses_itself_is_tried_again() {
    let two = two_files();
    two.overwrite(two.a, 2);
    two.loses_next_write(false);
    assert_eq!(two.fs.fsync(two.a, true).unwrap_err().errno(), errno::EIO);
    assert_eq!(two.after_power_loss(two.a), 1);
    two.fs.fsync(two.a, true).unwrap();
    assert_eq!(two.after_power_loss(two.a), 2);
}

/// A failed flush ends the mount, whatever was to be flushed.
#[test]
fn one_whose_flush_fails_shuts_down() {
    let two = two_files();
    two.overwrite(two.a, 2);
    two.overwrite(two.b, 2);
    two.loses_next_write(true);
    assert_eq!(two.fs.fsync(two.a, true).unwrap_err().errno(), errno::EIO);
    for ino in [two.a, two.b] {
        assert_eq!(two.fs.fsync(ino, true).unwrap_err().errno(), errno::EIO);
    }
}

/// The nodes of a checkpoint wait for their flush, which succeeds after they were lost. No slot may
/// name them.
#[test]
fn one_that_loses_the_nodes_of_a_checkpoint_shuts_down() {
    for names_flush in [false, true] {
        let two = two_files();
        two.fs.create(Ino::ROOT, b"c", 0o644, OWNER).unwrap();
        two.device.set_plan(FaultPlan::new(0).hold(OpKind::Flush, 0));
        let fs = two.fs.clone();
        let checkpoint = spawn_named("checkpoint", move || fs.checkpoint()).unwrap();
        two.until_held();
        two.overwrite(two.a, 2);
        two.loses_next_write(names_flush);
        assert_eq!(two.fs.fsync(two.a, true).unwrap_err().errno(), errno::EIO);
        assert_eq!(two.device.strikes().len(), 1, "the test's own assumption: one durable write failed");
        two.device.release();
        assert_eq!(checkpoint.join().unwrap().unwrap_err().errno(), errno::EIO, "{names_flush}");
        assert_eq!(two.fs.fsync(two.b, true).unwrap_err().errno(), errno::EIO, "{names_flush}");
        assert_eq!(two.after_power_loss(two.b), 1, "the image mounts");
    }
}

/// The flush of a checkpoint succeeds before a durable write reports that its own flush has failed,
/// which may have lost the nodes. The slot waits for that report.
#[test]
fn a_checkpoint_waits_for_one_that_may_have_lost_its_nodes() {
    let two = two_files();
    two.fs.create(Ino::ROOT, b"c", 0o644, OWNER).unwrap();
    two.overwrite(two.a, 2);
    two.device.set_plan(FaultPlan::new(0).hold(OpKind::Write, 0).lose_fua(0, false, errno::EIO));
    let (fs, a) = (two.fs.clone(), two.a);
    let fsync = spawn_named("fsync", move || fs.fsync(a, true)).unwrap();
    two.until_held();
    let (fs, (sender, receiver)) = (two.fs.clone(), std::sync::mpsc::channel());
    let checkpoint = spawn_named("checkpoint", move || sender.send(fs.checkpoint()).unwrap()).unwrap();
    while two.device.op_counts().flushes == 0 {
        std::thread::yield_now();
    }
    assert!(receiver.recv_timeout(4 * LATENCY).is_err(), "the durable write may still fail");
    two.device.release();
    assert_eq!(fsync.join().unwrap().unwrap_err().errno(), errno::EIO);
    assert_eq!(receiver.recv_timeout(HANG).unwrap().unwrap_err().errno(), errno::EIO);
    checkpoint.join().unwrap();
    assert_eq!(two.after_power_loss(two.b), 1, "the image mounts");
}

/// A log write is in flight: on a device without FUA its bytes may be in the cache already, and its
/// own flush would succeed.
#[test]
fn one_that_may_lose_a_log_write_shuts_down() {
    let two = two_files();
    two.fs.create(Ino::ROOT, b"c", 0o644, OWNER).unwrap();
    two.device.set_plan(FaultPlan::new(0).hold(OpKind::Write, 0));
    let fs = two.fs.clone();
    let other = spawn_named("other", move || fs.fsync(Ino::ROOT, false)).unwrap();
    two.until_held();
    two.overwrite(two.a, 2);
    two.loses_next_write(false);
    assert_eq!(two.fs.fsync(two.a, true).unwrap_err().errno(), errno::EIO);
    two.device.release();
    assert_eq!(other.join().unwrap().unwrap_err().errno(), errno::EIO, "its durability is unknown");
    assert_eq!(two.fs.fsync(two.b, true).unwrap_err().errno(), errno::EIO);
}

#[test]
fn each_of_sixteen_fsyncs_hears_that_the_device_is_dead_and_none_hangs() {
    let setup = kedge_sim::explore::setup();
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log).unwrap()));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup).unwrap();
    let inos: Vec<Ino> = (b'a'..b'q')
        .map(|name| {
            let ino = fs.create(Ino::ROOT, &[name], 0o644, OWNER).unwrap().ino;
            fs.write(ino, 0, &[1; 16 * PAGE]).unwrap();
            ino
        })
        .collect();
    fs.sync().unwrap();
    inos.iter().for_each(|ino| assert_eq!(fs.write(*ino, 0, &[2; PAGE]).unwrap(), PAGE));
    device.set_plan(FaultPlan::new(1).latency(OpKind::Write, LATENCY).fail_from(0, errno::EIO));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for &ino in &inos {
            let (fs, sender) = (&fs, sender.clone());
            scope.spawn(move || {
                fs.fsync_async(ino, true, Box::new(move |answer| sender.send(answer).unwrap()));
            });
        }
    });
    for _ in &inos {
        let answer = receiver.recv_timeout(HANG).expect("each call is answered");
        assert_eq!(answer.unwrap_err().errno(), errno::EIO);
    }
    assert!(receiver.try_recv().is_err(), "once");
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    assert!(stats["fsync_groups"]["count"].as_u64() > Some(0), "calls were queued: {stats}");
}
