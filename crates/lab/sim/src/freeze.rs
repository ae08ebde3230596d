//! Freeze, thaw and crashes. If power fails or a copy is made while the file system is frozen, the
//! image is clean and complete. An image that is not clean is never marked clean.

use crate::ops::{OWNER, write_all};
use crate::rig;
use kedge_base::broken::{self, Variant};
use kedge_base::{HANG, ManualClock, spawn_named};
use kedge_device::MemDevice;
use kedge_device::sim::{SimDevice, StatePlan};
use kedge_fsck::{CheckOptions, FindingKind, ReplayState, StoreReplay};
use kedgefs::{FileSystem, Ino};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Marks in the recording, set when an operation has returned.
const FSYNCED: u64 = 1;
const FROZEN: u64 = 2;
const THAWING: u64 = 3;
const THAWED: u64 = 4;
const AFTER: u64 = 5;

/// How long the test waits for a writer that should be blocked until the thaw.
const CHANCE: Duration = Duration::from_millis(300);

/// Names and lengths of files. At the freeze the first is in the log and the second in memory; the
/// third is written during the freeze, the fourth after it.
const LOGGED: (&str, usize) = ("logged", 700);
const DIRTY: (&str, usize) = ("dirty", 70_000);
const BESIDE: (&str, usize) = ("beside", 5000);
const LATER: (&str, usize) = ("later", 300);

/// Checks every crash state that `plan` selects. With `death` the process dies while the file
/// system is frozen, and another process continues the freeze. Returns the number of states, and
/// how many of them were frozen.
pub fn check(plan: StatePlan, death: bool) -> Result<(usize, usize), String> {
    let setup = crate::explore::setup();
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let mut fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    make(&fs, LOGGED)?;
    fs.fsync(find(&fs, LOGGED.0)?, false).map_err(failed("fsync"))?;
    device.mark(FSYNCED);
    make(&fs, DIRTY)?;
    fs.create(Ino::ROOT, BESIDE.0.as_bytes(), 0o644, OWNER).map_err(failed("create"))?;
    fs.freeze().map_err(failed("freeze"))?;
    device.mark(FROZEN);
    if death {
        drop(fs);
        fs = open_frozen(&device, &setup)?;
    }
    let writer = fs.clone();
    let (done, written) = mpsc::channel();
    let thread = spawn_named("writer", move || {
        let ino = find(&writer, BESIDE.0)?;
        write_all(&writer, ino, 0, &content(BESIDE)).map_err(failed("write"))?;
        writer.fsync(ino, false).map_err(failed("fsync"))?;
        // If the writer was blocked as it should be, the receiver is gone.
        let _ = done.send(());
        Ok::<(), String>(())
    })
    .map_err(|e| e.to_string())?;
    let chance = if broken::is(Variant::UngatedWriter) { HANG } else { CHANCE };
    // The crash states show whether the writer was blocked.
    let _ = written.recv_timeout(chance);
    device.mark(THAWING);
    fs.thaw().map_err(failed("thaw"))?;
    thread.join().map_err(|_| "the writer panicked")??;
    device.mark(THAWED);
    make(&fs, LATER)?;
    fs.fsync(find(&fs, LATER.0)?, false).map_err(failed("fsync"))?;
    device.mark(AFTER);
    drop(fs);
    let (mut count, mut frozen) = (0, 0);
    for state in device.recording().states(plan) {
        count += 1;
        frozen += usize::from(state.mark == Some(FROZEN));
        let place = format!("state {count}, after event {}, {:?}", state.at, state.choice);
        judge(state.medium, state.mark.unwrap_or(0)).map_err(|e| format!("{place}: {e}"))?;
    }
    Ok((count, frozen))
}

fn open_frozen(device: &Arc<SimDevice>, setup: &rig::Setup) -> Result<FileSystem, String> {
    let (device, clock) = (rig::unlocked(device.clone())?, Arc::new(ManualClock::default()));
    let opened = FileSystem::open_again(device, clock, setup.mount.clone(), Some(1), |_| Ok(()));
    let fs = opened.map_err(failed("open"))?;
    if fs.frozen_since() == Some(1) { Ok(fs) } else { Err("the freeze has ended with its process".into()) }
}

fn judge(medium: MemDevice, mark: u64) -> Result<(), String> {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(Arc::new(medium.fork()), &options);
    // fsck reports a wrong clean mark only as a warning, since recovery does not rely on the mark.
    if !report.is_clean() || report.count(FindingKind::SuperblockCleanWithLog) > 0 {
        return Err(format!("fsck: {report}"));
    }
    // Must hold from the end of the freeze until the thaw writes.
    let clean =
        report.superblock.as_ref().is_some_and(|sb| sb.clean) && matches!(report.replay, ReplayState::None);
    if mark == FROZEN && !clean {
        return Err(format!("a frozen image is not clean: {report}"));
    }
    let setup = crate::explore::setup();
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    for (file, since) in [(LOGGED, FSYNCED), (DIRTY, FROZEN), (BESIDE, THAWED), (LATER, AFTER)] {
        if mark >= since {
            has_all(&fs, file)?;
        }
    }
    Ok(())
}

fn failed(what: &'static str) -> impl Fn(kedgefs::Error) -> String {
    move |e| format!("{what}: {e}")
}

fn find(fs: &FileSystem, name: &str) -> Result<Ino, String> {
    Ok(fs.lookup(Ino::ROOT, name.as_bytes()).map_err(|e| format!("{name}: {e}"))?.ino)
}

fn make(fs: &FileSystem, file: (&str, usize)) -> Result<(), String> {
    let ino = fs.create(Ino::ROOT, file.0.as_bytes(), 0o644, OWNER).map_err(failed("create"))?.ino;
    write_all(fs, ino, 0, &content(file)).map_err(failed("write"))
}

fn has_all(fs: &FileSystem, file: (&str, usize)) -> Result<(), String> {
    let (name, mut is) = (file.0, vec![0; file.1 + 1]);
    let n = fs.read(find(fs, name)?, 0, &mut is).map_err(failed("read"))?;
    if is[..n] != content(file)[..] { Err(format!("{name} does not have all its bytes")) } else { Ok(()) }
}

fn content((name, len): (&str, usize)) -> Vec<u8> {
    name.bytes().cycle().take(len).collect()
}
