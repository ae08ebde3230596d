//! An fsync of overwritten blocks whose record sets only time stamps: blocks and log write share
//! one flush. What else is in the log write decides whether they may.

use kedge_base::{ManualClock, spawn_named};
use kedge_device::sim::{Choice, FaultPlan, OpKind, SimDevice};
use kedge_device::{Device, FuaKind, Geometry};
use kedge_sim::ops::OWNER;
use kedge_sim::rig;
use kedgefs::{FallocateMode, FileSystem, Ino};
use std::sync::Arc;

const PAGE: usize = 4096;
const FILE: usize = 64 * PAGE;

struct Rig {
    device: Arc<SimDevice>,
    fs: FileSystem,
    ino: Ino,
}

/// A device with another [`FuaKind`].
struct OfKind(Arc<SimDevice>, Geometry);

impl Device for OfKind {
    kedge_device::delegate!(0: submit, read, write, flush, discard, write_zeroes, grow, cut, room, stats, name);

    fn geometry(&self) -> &Geometry {
        &self.1
    }
}

fn rig() -> Rig {
    rig_on(FuaKind::Native)
}

/// A durable file of blocks in place.
fn rig_on(fua: FuaKind) -> Rig {
    let setup = kedge_sim::explore::setup();
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log).unwrap()));
    let geometry = Geometry { fua, ..device.geometry().clone() };
    let above = Arc::new(OfKind(device.clone(), geometry));
    let fs = rig::open_on(above, &Arc::new(ManualClock::default()), &setup).unwrap();
    let ino = fs.create(Ino::ROOT, b"a", 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, &[1; FILE]).unwrap();
    fs.sync().unwrap();
    device.set_plan(FaultPlan::default());
    Rig { device, fs, ino }
}

impl Rig {
    /// In two places, so that no durable write covers them, and too much for the log.
    fn overwrite(&self, byte: u8) {
        for page in [8, 40] {
            self.fs.write(self.ino, (page * PAGE) as u64, &[byte; 10 * PAGE]).unwrap();
        }
    }

    /// Writes, FUA writes and flushes of an fsync.
    fn fsync(&self) -> (u64, u64, u64) {
        let count = || {
            let counts = self.device.op_counts();
            (counts.writes, self.device.stats().fua_writes.get(), counts.flushes)
        };
        let before = count();
        self.fs.fsync(self.ino, false).unwrap();
        let after = count();
        (after.0 - before.0, after.1 - before.1, after.2 - before.2)
    }

    /// The two overwritten bytes, and the mode and the change time of the file, after the loss of
    /// everything that is not guaranteed.
    fn after_power_loss(&self) -> ([u8; 2], u32, kedge_base::Timespec) {
        let (bytes, attr) = self.after_crash(Choice::None);
        (bytes, attr.mode, attr.ctime)
    }

    /// The two overwritten bytes, and the attributes of the file, after a crash that leaves these
    /// of the writes that wait for a flush.
    fn after_crash(&self, choice: Choice) -> ([u8; 2], kedgefs::Attr) {
        let device = Arc::new(SimDevice::new(self.device.crash_as(choice)));
        let setup = kedge_sim::explore::setup();
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup).unwrap();
        let byte = |page: usize| {
            let mut byte = [0];
            assert_eq!(fs.read(self.ino, (page * PAGE) as u64, &mut byte).unwrap(), 1);
            byte[0]
        };
        let attr = fs.getattr(self.ino).unwrap();
        ([byte(8), byte(40)], attr)
    }
}

#[test]
fn overwrites_and_their_time_stamps_share_one_flush() {
    let rig = rig();
    rig.overwrite(2);
    let ctime = rig.fs.getattr(rig.ino).unwrap().ctime;
    assert_eq!(rig.after_power_loss().0, [1, 1], "the test's own assumption: nothing is durable yet");
    assert_eq!(rig.fsync(), (3, 0, 1), "two runs of blocks, the log write, one flush after all of them");
    let (bytes, _, found) = rig.after_power_loss();
    assert_eq!((bytes, found), ([2, 2], ctime));
}

/// Without FUA a durable write would be one flush, and the log write a second one.
#[test]
fn one_overwritten_block_shares_the_flush_without_fua() {
    for (fua, expected) in [(FuaKind::Emulated, (2, 0, 1)), (FuaKind::Native, (2, 2, 0))] {
        let rig = rig_on(fua);
        rig.fs.write(rig.ino, (8 * PAGE) as u64, &[2; PAGE]).unwrap();
        assert_eq!(rig.fsync(), expected, "{fua:?}");
        assert_eq!(rig.after_power_loss().0, [2, 1], "{fua:?}");
    }
}

/// Its record names the new size, so a durable write of the data spares a flush.
#[test]
fn a_block_at_the_end_is_written_durably() {
    let rig = rig_on(FuaKind::Emulated);
    rig.fs.write(rig.ino, FILE as u64, &[2; 16 * PAGE]).unwrap();
    assert_eq!(rig.fsync(), (2, 2, 0));
}

/// The data of a file that is not flushed yet, and a record of another file's name in the same log
/// write.
#[test]
fn another_record_in_the_log_write_keeps_the_order() {
    let rig = rig();
    rig.overwrite(2);
    rig.fs.create(Ino::ROOT, b"b", 0o644, OWNER).unwrap();
    assert_eq!(rig.fsync(), (3, 1, 1), "a flush, then the log write with FUA");
    assert_eq!(rig.after_power_loss().0, [2, 2]);
}

#[test]
fn a_mode_is_no_time_stamp() {
    let rig = rig();
    rig.overwrite(2);
    let set = kedgefs::SetAttr { mode: Some(0o600), ..Default::default() };
    rig.fs.setattr(rig.ino, &set).unwrap();
    assert_eq!(rig.fsync(), (3, 1, 1));
    let (bytes, mode, _) = rig.after_power_loss();
    assert_eq!((bytes, mode & 0o7777), ([2, 2], 0o600));
}

/// A program that copies files gives the copy the mtime of its source. No crash leaves that mtime
/// with the old bytes.
#[test]
fn a_chosen_mtime_is_not_durable_before_the_bytes() {
    let given = kedge_base::Timespec { sec: 1, nsec: 0 };
    let rig = rig();
    rig.overwrite(2);
    let set = kedgefs::SetAttr { mtime: Some(kedgefs::SetTime::At(given)), ..Default::default() };
    rig.fs.setattr(rig.ino, &set).unwrap();
    rig.device.set_plan(FaultPlan::new(0).hold(OpKind::Flush, 0));
    let (fs, ino) = (rig.fs.clone(), rig.ino);
    let fsync = spawn_named("fsync", move || fs.fsync(ino, false)).unwrap();
    while rig.device.held_up() == 0 {
        std::thread::yield_now();
    }
    let pending = rig.device.pending();
    assert!(pending >= 2, "the test's own assumption: {pending} writes wait for the flush");
    for choice in (0..pending).map(Choice::Only).chain([Choice::None, Choice::All]) {
        let (bytes, attr) = rig.after_crash(choice);
        assert!(attr.mtime != given || bytes == [2, 2], "{choice:?}: {bytes:?} with the mtime of the copy");
    }
    rig.device.release();
    fsync.join().unwrap().unwrap();
    let (bytes, attr) = rig.after_crash(Choice::None);
    assert_eq!((bytes, attr.mtime), ([2, 2], given));
}

/// The record says that the blocks are written.
#[test]
fn blocks_that_become_written_keep_the_order() {
    let rig = rig();
    let ino = rig.fs.create(Ino::ROOT, b"b", 0o644, OWNER).unwrap().ino;
    rig.fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 0, FILE as u64).unwrap();
    rig.fs.sync().unwrap();
    let rig = Rig { ino, ..rig };
    rig.overwrite(2);
    let (_, fua, flushes) = rig.fsync();
    assert_eq!((fua, flushes), (1, 1));
    assert_eq!(rig.after_power_loss().0, [2, 2]);
}

/// Only time stamps, and no data that waits for a flush: a log write with FUA, as before.
#[test]
fn time_stamps_without_data_need_no_flush() {
    let rig = rig();
    let now = kedgefs::SetTime::Now;
    let set = kedgefs::SetAttr { mtime: Some(now), ..Default::default() };
    rig.fs.setattr(rig.ino, &set).unwrap();
    assert_eq!(rig.fsync(), (1, 1, 0));
}
