//! Checks on a failing device: only durable data is reported as durable.

use kedge_base::{ManualClock, spawn_named};
use kedge_device::MemDevice;
use kedge_device::sim::{Choice, FaultPlan, OpKind, SimDevice};
use kedge_sim::ops::{OWNER, errno};
use kedge_sim::rig;
use kedgefs::{FileSystem, Ino, MountOptions};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const IMAGE: u64 = 64 << 20;
const LOG: u64 = 4 << 20;
const PAGE: usize = 4096;
/// The outcome depends on a race, so the check is repeated this often.
const TRIES: u32 = 10;

fn said(e: kedgefs::Error) -> String {
    e.to_string()
}

fn open(medium: MemDevice, cache_size: u64) -> Result<(Arc<SimDevice>, FileSystem), String> {
    let device = Arc::new(SimDevice::new(medium));
    let options = MountOptions { commit: Duration::from_secs(3600), cache_size, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), Arc::new(ManualClock::default()), options).map_err(said)?;
    Ok((device, fs))
}

/// Whether the bytes survive a power failure that loses everything unflushed.
fn is_durable(device: &SimDevice, ino: Ino, at: u64, bytes: &[u8]) -> Result<bool, String> {
    let (_, fs) = open(device.crash_as(Choice::None), 16 << 20)?;
    let mut found = vec![0; bytes.len()];
    let n = fs.read(ino, at, &mut found).map_err(said)?;
    Ok(n == bytes.len() && found == bytes)
}

/// The record of a writeback needs a tree node whose read fails once. If an fsync succeeds after
/// that error, the bytes must be durable.
pub fn failed_record() -> Result<(), String> {
    let (device, fs) = open(rig::format(IMAGE, LOG)?, 16 << 20)?;
    let ino = fs.create(Ino::ROOT, b"sparse", 0o644, OWNER).map_err(said)?.ino;
    for i in 0..3000 {
        fs.write(ino, 2 * i * PAGE as u64, &[1; PAGE]).map_err(said)?;
    }
    fs.close().map_err(said)?;
    let base = device.view();
    for nth in 0.. {
        let (device, fs) = open(base.fork(), 128 << 10)?;
        let (end, new) = (2 * 3000 * PAGE as u64, vec![2; 20 * PAGE]);
        fs.write(ino, end, &new).map_err(said)?;
        for i in 1000..2000 {
            fs.read(ino, 2 * i * PAGE as u64, &mut [0]).map_err(said)?;
        }
        device.set_plan(FaultPlan::new(nth).fail(OpKind::Read, nth, errno::EIO));
        let answers = [0; 3].map(|_| fs.fsync(ino, true).is_ok());
        if answers.contains(&true) && !is_durable(&device, ino, end, &new)? {
            return Err(format!("read {nth} fails: fsync answers {answers:?}, the bytes are not there"));
        }
        if !answers[2] {
            return Err(format!("read {nth} fails once: fsync answers {answers:?}"));
        }
        if device.struck() == 0 {
            return if nth > 1 { Ok(()) } else { Err("fsync reads nothing".to_owned()) };
        }
    }
    unreachable!("some read is the last")
}

/// Waits until a thread of this process sleeps (for another thread) or has ended.
fn until_it_sleeps(thread: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    // The state follows the name, which may contain any characters.
    let runs = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('S'));
    while std::fs::read_to_string(&path).is_ok_and(runs) {
        std::thread::yield_now();
    }
}

/// An fsync that runs while another one fails does not report success for the data of that one.
pub fn second_fsync() -> Result<(), String> {
    (0..TRIES).try_for_each(|_| {
        let (device, fs) = open(rig::format(IMAGE, LOG)?, 16 << 20)?;
        let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).map_err(said)?.ino;
        fs.write(ino, 0, &[1; 64 * PAGE]).map_err(said)?;
        fs.sync().map_err(said)?;
        fs.write(ino, 0, &[2; 64 * PAGE]).map_err(said)?;
        let plan = FaultPlan::new(0).hold(OpKind::Write, 0).fail_kind_from(OpKind::Write, 0, errno::EIO);
        device.set_plan(plan);
        let (tell, told) = mpsc::channel();
        let fsync = || {
            let (fs, tell) = (fs.clone(), tell.clone());
            let body = move || {
                tell.send(rustix::thread::gettid()).expect("the test listens");
                fs.fsync(ino, true)
            };
            spawn_named("fsync", body).map_err(|e| e.to_string())
        };
        let first = fsync()?;
        while device.held_up() == 0 {
            std::thread::yield_now();
        }
        told.recv().map_err(|e| e.to_string())?;
        let second = fsync()?;
        until_it_sleeps(told.recv().map_err(|e| e.to_string())?);
        device.release();
        let answers = [first, second].map(|thread| thread.join().is_ok_and(|answer| answer.is_ok()));
        match answers.contains(&true) && !is_durable(&device, ino, 0, &[2; 64 * PAGE])? {
            true => Err(format!("{answers:?}, and the bytes are not there")),
            false => Ok(()),
        }
    })
}

/// A durable write fails in its flush, and the device loses the nodes of a checkpoint with it. The
/// flush of the checkpoint then succeeds. The image must mount after a power failure.
pub fn lost_nodes() -> Result<(), String> {
    let (device, fs) = open(rig::format(IMAGE, LOG)?, 16 << 20)?;
    let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).map_err(said)?.ino;
    fs.write(ino, 0, &[1; 64 * PAGE]).map_err(said)?;
    fs.sync().map_err(said)?;
    fs.create(Ino::ROOT, b"g", 0o644, OWNER).map_err(said)?;
    device.set_plan(FaultPlan::new(0).hold(OpKind::Flush, 0));
    let other = fs.clone();
    let checkpoint = spawn_named("checkpoint", move || other.checkpoint()).map_err(|e| e.to_string())?;
    while device.held_up() == 0 {
        std::thread::yield_now();
    }
    fs.write(ino, 0, &[2; PAGE]).map_err(said)?;
    device.set_plan(FaultPlan::new(0).lose_fua(0, false, errno::EIO));
    if fs.fsync(ino, true).is_ok() || device.struck() != 1 {
        return Err("the test's own assumption: the durable write failed".to_owned());
    }
    device.release();
    let checkpoint = checkpoint.join().map_err(|panic| rig::panic_text(&*panic))?;
    match is_durable(&device, ino, PAGE as u64, &[1; PAGE]) {
        Ok(true) if checkpoint.is_err() => Ok(()),
        found => Err(format!("the checkpoint: {checkpoint:?}; after a power failure: {found:?}")),
    }
}
