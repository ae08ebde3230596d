//! Growth and crashes: a state after a power failure has the old size or the new one, passes fsck,
//! and has all that was made durable, before, during and after the growth.

use crate::ops::{OWNER, write_all};
use crate::rig;
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_device::sim::{SimDevice, StatePlan};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::{FileSystem, FormatOptions, Ino};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const GROUP: u64 = GROUP_BLOCKS * 4096;

/// The sizes of the image, one after another: growth inside the last group, growth that moves the
/// maps into the data area, and growth that moves them again.
const SIZES: [u64; 4] = [20 * MIB, 24 * MIB, GROUP + 2 * MIB, 2 * GROUP + 2 * MIB];
/// Bytes of the file that is made durable after each growth, so large that it gets new blocks.
const FILE: usize = 3 << 20;

/// Checks every crash state that `plan` selects. Returns their number, and the number of states of
/// each size.
pub fn check(plan: StatePlan) -> Result<(usize, [usize; SIZES.len()]), String> {
    let setup = crate::explore::setup();
    let medium = Arc::new(MemDevice::new(SIZES[SIZES.len() - 1]));
    let clock = Arc::new(ManualClock::default());
    let options =
        FormatOptions { size: Some(SIZES[0]), log_size: Some(setup.log), ..FormatOptions::default() };
    FileSystem::format(medium.clone(), clock.clone(), &options).map_err(|e| format!("format: {e}"))?;
    let device = Arc::new(SimDevice::new(medium.fork()));
    let fs = rig::open(&device, &clock, &setup)?;
    for (n, size) in SIZES.iter().enumerate() {
        let done = fs.resize(Some(*size)).map_err(|e| format!("resize to {size}: {e}"))?;
        if done != *size {
            return Err(format!("{done} bytes instead of {size}"));
        }
        device.mark(2 * n as u64 + 1);
        let ino = fs
            .create(Ino::ROOT, n.to_string().as_bytes(), 0o644, OWNER)
            .map_err(|e| format!("create: {e}"))?
            .ino;
        write_all(&fs, ino, 0, &content(n)).map_err(|e| format!("write: {e}"))?;
        fs.fsync(ino, false).map_err(|e| format!("fsync: {e}"))?;
        device.mark(2 * n as u64 + 2);
    }
    drop(fs);
    let (mut count, mut of_size) = (0, [0; SIZES.len()]);
    for state in device.recording().states(plan) {
        count += 1;
        let place = format!("state {count}, after event {}, {:?}", state.at, state.choice);
        let n = judge(state.medium, state.mark.unwrap_or(0)).map_err(|e| format!("{place}: {e}"))?;
        of_size[n] += 1;
    }
    Ok((count, of_size))
}

/// Returns which of the sizes the state has.
fn judge(medium: MemDevice, mark: u64) -> Result<usize, String> {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(Arc::new(medium.fork()), &options);
    if !report.is_clean() {
        return Err(format!("fsck: {report}"));
    }
    let setup = crate::explore::setup();
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let size = fs.statfs().blocks * 4096;
    let n = SIZES.iter().position(|s| *s == size).ok_or(format!("{size} bytes, a size it never had"))?;
    // An odd mark says that a growth has returned, an even one that a fsync has.
    let (grown, durable) = (mark.div_ceil(2) as usize, (mark / 2) as usize);
    if n + 1 < grown || n > grown {
        return Err(format!("{size} bytes after {grown} steps"));
    }
    for file in 0..durable {
        let ino =
            fs.lookup(Ino::ROOT, file.to_string().as_bytes()).map_err(|e| format!("file {file}: {e}"))?.ino;
        let mut is = vec![0; FILE];
        let read = fs.read(ino, 0, &mut is).map_err(|e| format!("file {file}: {e}"))?;
        if read != FILE || is != content(file) {
            return Err(format!("file {file} has not its bytes"));
        }
    }
    Ok(n)
}

fn content(n: usize) -> Vec<u8> {
    vec![n as u8 + 1; FILE]
}
