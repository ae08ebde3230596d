//! Checks of results: writes are complete or fail, losses are reported, and the kernel's time
//! stamps stay.

use kedge_base::ManualClock;
use kedge_device::sim::{Choice, FaultPlan, OpKind, SimDevice};
use kedge_sim::ops::{OWNER, errno, stamp};
use kedge_sim::rig::{self, Setup};
use kedgefs::{Error, FileSystem, Ino, SetAttr, SetTime, WriteMode};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

fn said(e: Error) -> String {
    e.to_string()
}

fn start() -> Result<(Arc<SimDevice>, FileSystem, Ino), String> {
    let setup = Setup::cramped();
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).map_err(said)?.ino;
    Ok((device, fs, ino))
}

/// The kernel ignores short writes during writeback, so a write that does not fit must fail.
pub fn whole_or_error() -> Result<(), String> {
    let (_, fs, ino) = start()?;
    let free = fs.statfs().blocks_available * 4096;
    let bytes = vec![7; free as usize + (4 << 20)];
    match fs.write_with(ino, 0, &bytes, WriteMode::from_cache()) {
        Err(e) if e.errno() == errno::ENOSPC => Ok(()),
        other => Err(format!("{} bytes with {free} free: {other:?}", bytes.len())),
    }
}

/// After an unmount that lost data, close reports the loss, and the image is marked.
pub fn losses_are_noted() -> Result<(), String> {
    const MARK: [u8; 8] = *b"refused!";
    let (device, fs, ino) = start()?;
    fs.sync().map_err(said)?;
    fs.write(ino, 0, &MARK.repeat(8 << 10)).map_err(said)?;
    device.set_plan(FaultPlan::new(1).refuse(MARK, errno::EIO));
    let Err(Error::DataLost(_)) = fs.close() else {
        return Err("close succeeds although no block takes the data".to_owned());
    };
    if device.struck() == 0 {
        return Err("nothing was refused".to_owned());
    }
    match rig::fsck(device.view()) {
        Err(report) if report.contains("data-lost") => Ok(()),
        other => Err(format!("fsck after the loss: {other:?}")),
    }
}

/// Where the kernel sets mtime and ctime, a write does not change them, neither at once nor after a
/// power failure.
pub fn times_are_kept() -> Result<(), String> {
    let (device, fs, ino) = start()?;
    let mtime = Some(SetTime::At(stamp(77)));
    let set = fs.setattr(ino, &SetAttr { mtime, ..SetAttr::default() }).map_err(said)?;
    fs.write_with(ino, 0, &[7; 70_000], WriteMode::from_cache()).map_err(said)?;
    let now = fs.getattr(ino).map_err(said)?;
    fs.fsync(ino, false).map_err(said)?;
    let recovered = Arc::new(SimDevice::new(device.crash_as(Choice::None)));
    let fs = rig::open(&recovered, &Arc::new(ManualClock::default()), &Setup::cramped())?;
    let later = fs.getattr(ino).map_err(said)?;
    for (when, found) in [("at once", &now), ("after a crash", &later)] {
        if (found.mtime, found.ctime) != (set.mtime, set.ctime) {
            return Err(format!(
                "{when}: {:?}, {:?} was set",
                (found.mtime, found.ctime),
                (set.mtime, set.ctime)
            ));
        }
    }
    if later.size == 70_000 { Ok(()) } else { Err(format!("{} bytes", later.size)) }
}

/// What an asynchronous fsync reports as durable survives a power failure.
pub fn answered_later() -> Result<(), String> {
    const LEN: usize = 60_000;
    const SECOND: u64 = 40_960;
    let (device, fs, ino) = start()?;
    // The device is so slow that a result that waits for nothing comes too early.
    device.set_plan(FaultPlan::new(1).latency(OpKind::Write, Duration::from_millis(20)));
    let synced = |datasync: bool| {
        let (sender, receiver) = channel();
        fs.fsync_async(ino, datasync, Box::new(move |answer| drop(sender.send(answer))));
        receiver.recv().map_err(|e| e.to_string())?.map_err(said)?;
        Ok::<_, String>(device.crash_as(Choice::None))
    };
    let read_back = |medium, expected: &[(u64, u8)]| {
        let device = Arc::new(SimDevice::new(medium));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &Setup::cramped())?;
        let mut byte = [0];
        for (at, value) in expected {
            let n = fs.read(ino, *at, &mut byte).map_err(said)?;
            if (n, byte) != (1, [*value]) {
                return Err(format!("{n} bytes at {at}, {byte:?}"));
            }
        }
        Ok(())
    };
    // Few bytes, which the fsync puts into the log.
    fs.write(ino, 0, &[1; 100]).map_err(said)?;
    read_back(synced(false)?, &[(0, 1), (99, 1)]).map_err(|e| format!("after fsync: {e}"))?;
    fs.write(ino, 0, &[1; LEN]).map_err(said)?;
    fs.sync().map_err(said)?;
    // Two distant blocks, which one durable write cannot cover.
    fs.write(ino, 0, &[2; 4096]).map_err(said)?;
    fs.write(ino, SECOND, &[3; 4096]).map_err(said)?;
    read_back(synced(true)?, &[(0, 2), (SECOND, 3)]).map_err(|e| format!("after fdatasync: {e}"))
}

/// Each of the fsyncs that share a pass returns only when its data is durable.
pub fn answered_in_groups() -> Result<(), String> {
    const FILES: u8 = 16;
    const LEN: usize = 60_000;
    const ROUNDS: u8 = 20;
    let (device, fs, _) = start()?;
    let mut inos = Vec::new();
    for i in 0..FILES {
        let ino = fs.create(Ino::ROOT, &[b'A' + i], 0o644, OWNER).map_err(said)?.ino;
        fs.write(ino, 0, &[0; LEN]).map_err(said)?;
        inos.push(ino);
    }
    fs.sync().map_err(said)?;
    // The device is so slow that the calls share passes, and that a result that waits for nothing
    // comes too early.
    device.set_plan(FaultPlan::new(1).latency(OpKind::Write, Duration::from_millis(20)));
    for round in 1..=ROUNDS {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            for &ino in &inos {
                let (fs, device, sender) = (&fs, device.clone(), sender.clone());
                scope.spawn(move || {
                    let written = fs.write(ino, 0, &[round; 4096]).map_err(said);
                    let done = Box::new(move |answer: kedgefs::Result<()>| {
                        let answer = written.and(answer.map_err(said));
                        drop(sender.send((ino, answer, device.crash_as(Choice::None))));
                    });
                    fs.fsync_async(ino, true, done);
                });
            }
        });
        drop(sender);
        let mut answers = 0;
        for (ino, answer, medium) in receiver {
            answer?;
            let device = Arc::new(SimDevice::new(medium));
            let fs = rig::open(&device, &Arc::new(ManualClock::default()), &Setup::cramped())?;
            let mut byte = [0];
            fs.read(ino, 0, &mut byte).map_err(said)?;
            if byte != [round] {
                return Err(format!("round {round}: inode {ino} has {byte:?} after its fdatasync"));
            }
            answers += 1;
        }
        if answers != FILES {
            return Err(format!("{answers} answers"));
        }
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).map_err(|e| e.to_string())?;
        if stats["fsync_groups"]["max"].as_u64() > Some(1) {
            return Ok(());
        }
    }
    Err(format!("no two fsyncs shared a pass in {ROUNDS} rounds"))
}
