//! Changes of the image's size and crashes: a state after a power failure has the old size or the
//! new one, passes fsck, and has all that was made durable before, during and after the change.

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

/// The sizes that an image has one after another, and its content.
pub struct Course {
    sizes: &'static [u64],
    /// Bytes of the file that is made durable after each change: enough that it gets new blocks.
    file: usize,
    /// Bytes of a file that is deleted before the first change, and the number of small files that
    /// were made after it. So the blocks and nodes of the small files lie further on.
    filler: usize,
    small: usize,
    /// Whether each small file of several blocks has two clones.
    clones: bool,
}

/// Growth inside the last group, growth that moves the maps into the data area, and growth that
/// moves them again.
pub const GROWTH: Course = Course {
    sizes: &[20 * MIB, 24 * MIB, GROUP + 2 * MIB, 2 * GROUP + 2 * MIB],
    file: 3 << 20,
    filler: 0,
    small: 0,
    clones: false,
};

/// A shrink inside the last group, growth that moves the maps into the data area, a shrink that
/// moves them back before the log, growth by several groups, and a shrink that moves maps to free
/// blocks.
pub const SHRINK: Course = Course {
    sizes: &[40 * MIB, 24 * MIB, GROUP + 2 * MIB, 25 * MIB, 6 * GROUP, 2 * GROUP + MIB],
    file: 1 << 20,
    filler: 13 << 20,
    small: 60,
    clones: true,
};

/// The content of the n-th small file. It lies in the log, in a block, or in several blocks.
fn small_bytes(n: usize) -> Vec<u8> {
    vec![n as u8 + 100; [700, 5_000, 70_000][n % 3]]
}

fn small_name(n: usize) -> Vec<u8> {
    format!("small {n}").into_bytes()
}

fn clones_of(course: &Course, n: usize) -> impl Iterator<Item = Vec<u8>> {
    let count = if course.clones && n % 3 == 2 { 2 } else { 0 };
    (0..count).map(move |clone| format!("clone {clone} of {n}").into_bytes())
}

/// Checks every crash state that `plan` selects. Returns their number, and for each size the number
/// of states that have it.
pub fn check(course: &Course, plan: StatePlan) -> Result<(usize, Vec<usize>), String> {
    let setup = crate::explore::setup();
    let sizes = course.sizes;
    let medium = Arc::new(MemDevice::new(sizes.iter().copied().max().unwrap_or(0)));
    let clock = Arc::new(ManualClock::default());
    let options =
        FormatOptions { size: Some(sizes[0]), log_size: Some(setup.log), ..FormatOptions::default() };
    FileSystem::format(medium.clone(), clock.clone(), &options).map_err(|e| format!("format: {e}"))?;
    if course.filler > 0 {
        let fs = FileSystem::open(medium.clone(), clock.clone(), setup.mount.clone())
            .map_err(|e| format!("open: {e}"))?;
        make(&fs, b"filler", &vec![1; course.filler])?;
        for n in 0..course.small {
            make(&fs, &small_name(n), &small_bytes(n))?;
            for clone in clones_of(course, n) {
                make(&fs, &clone, &[])?;
                let ino = |name: &[u8]| fs.lookup(Ino::ROOT, name).map(|attr| attr.ino);
                ino(&small_name(n))
                    .and_then(|source| fs.clone_file(source, ino(&clone)?))
                    .map_err(|e| format!("clone: {e}"))?;
            }
        }
        fs.unlink(Ino::ROOT, b"filler").map_err(|e| format!("unlink: {e}"))?;
        fs.close().map_err(|e| format!("close: {e}"))?;
    }
    let device = Arc::new(SimDevice::new(medium.fork()));
    let fs = rig::open(&device, &clock, &setup)?;
    for (n, size) in sizes.iter().enumerate() {
        let done = fs.resize(Some(*size)).map_err(|e| format!("resize to {size}: {e}"))?;
        if done != *size {
            return Err(format!("{done} bytes instead of {size}"));
        }
        device.mark(2 * n as u64 + 1);
        make(&fs, n.to_string().as_bytes(), &content(course, n))?;
        device.mark(2 * n as u64 + 2);
    }
    drop(fs);
    let (mut count, mut of_size) = (0, vec![0; sizes.len()]);
    for state in device.recording().states(plan) {
        count += 1;
        let place = format!("state {count}, after event {}, {:?}", state.at, state.choice);
        let n = judge(course, state.medium, state.mark.unwrap_or(0)).map_err(|e| format!("{place}: {e}"))?;
        of_size[n] += 1;
    }
    Ok((count, of_size))
}

/// Creates a file and makes it durable.
fn make(fs: &FileSystem, name: &[u8], bytes: &[u8]) -> Result<(), String> {
    let ino = fs.create(Ino::ROOT, name, 0o644, OWNER).map_err(|e| format!("create: {e}"))?.ino;
    write_all(fs, ino, 0, bytes).map_err(|e| format!("write: {e}"))?;
    fs.fsync(ino, false).map_err(|e| format!("fsync: {e}"))
}

/// Checks a state, and returns the index of its size.
fn judge(course: &Course, medium: MemDevice, mark: u64) -> Result<usize, String> {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(Arc::new(medium.fork()), &options);
    if !report.is_clean() {
        return Err(format!("fsck: {report}"));
    }
    let setup = crate::explore::setup();
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let size = fs.statfs().blocks * 4096;
    let n =
        course.sizes.iter().position(|s| *s == size).ok_or(format!("{size} bytes, a size it never had"))?;
    // An odd mark was set after a change of the size, an even mark after the fsync that follows.
    let (changed, durable) = (mark.div_ceil(2) as usize, (mark / 2) as usize);
    if n + 1 < changed || n > changed {
        return Err(format!("{size} bytes after {changed} steps"));
    }
    for n in 0..course.small {
        for name in std::iter::once(small_name(n)).chain(clones_of(course, n)) {
            has(&fs, &name, &small_bytes(n))?;
        }
    }
    for n in 0..durable {
        has(&fs, n.to_string().as_bytes(), &content(course, n))?;
    }
    Ok(n)
}

fn has(fs: &FileSystem, name: &[u8], bytes: &[u8]) -> Result<(), String> {
    let shown = String::from_utf8_lossy(name).into_owned();
    let ino = fs.lookup(Ino::ROOT, name).map_err(|e| format!("file {shown}: {e}"))?.ino;
    let mut is = vec![0; bytes.len()];
    let read = fs.read(ino, 0, &mut is).map_err(|e| format!("file {shown}: {e}"))?;
    if read != bytes.len() || is != bytes {
        return Err(format!("file {shown} does not have its bytes"));
    }
    Ok(())
}

fn content(course: &Course, n: usize) -> Vec<u8> {
    vec![n as u8 + 1; course.file]
}
