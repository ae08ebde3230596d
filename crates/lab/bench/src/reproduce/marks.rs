//! fs_mark on the library: `-D 16 -t 32 -s 4096 -N 256 -k -S MODE`, in threads rather than
//! processes.
//!
//! The threads share 16 directories. Each thread creates 256 files in one directory before it moves
//! to the next, writes 4 KiB to each file, and then syncs as the mode says.

use crate::Interrupt;
use crate::library::{Library, in_threads};
use crate::times::Times;
use anyhow::{Result, ensure};
use kedge_base::SystemClock;
use kedgefs::{FileSystem, Ino, Owner};

pub const THREADS: usize = 32;
const DIRS: u64 = 16;
const FILES_PER_TURN: u64 = 256;
const FILE: [u8; 4096] = [0x6b; 4096];
/// Files between two checks for an interrupt.
const LOOK_AGAIN: u64 = 64;

/// The modes of fs_mark's option `-S`, by number.
pub const MODES: [&str; 7] = [
    "no sync",
    "fsync before close",
    "sync, one fsync",
    "fsync afterwards, in reverse",
    "sync, fsync in reverse",
    "fsync afterwards",
    "sync, fsync",
];

pub struct Sum {
    /// Files per second.
    pub rate: f64,
    pub create: Times,
    pub fsync: Times,
}

/// Creates `each` files in each thread. The directories must not exist before.
pub fn run(library: &Library, mode: usize, each: u64, interrupt: &Interrupt) -> Result<Sum> {
    let fs = library.fs();
    let dirs: Vec<Ino> = (0..DIRS)
        .map(|i| Ok(fs.mkdir(Ino::ROOT, format!("{i:02x}").as_bytes(), 0o755, Owner::default())?.ino))
        .collect::<Result<_>>()?;
    let (took, answers) = in_threads(THREADS, |thread| {
        let (fs, dirs, interrupt) = (fs.clone(), dirs.clone(), interrupt.clone());
        move || work(&fs, &dirs, thread, mode, each, &interrupt)
    })?;
    let (mut create, mut fsync) = (Times::default(), Times::default());
    for (creates, fsyncs) in answers {
        create.merge(creates);
        fsync.merge(fsyncs);
    }
    Ok(Sum { rate: create.count() / took.as_secs_f64(), create, fsync })
}

fn work(
    fs: &FileSystem,
    dirs: &[Ino],
    thread: usize,
    mode: usize,
    each: u64,
    interrupt: &Interrupt,
) -> Result<(Times, Times)> {
    let clock = SystemClock::default();
    let (mut create, mut fsync) = (Times::default(), Times::default());
    let mut files = Vec::with_capacity(each as usize);
    for i in 0..each {
        if i.is_multiple_of(LOOK_AGAIN) {
            interrupt.check()?;
        }
        let dir = dirs[(i / FILES_PER_TURN) as usize % dirs.len()];
        let name = format!("{thread:02x}~{i:08x}");
        let file = create.time(&clock, || fs.create(dir, name.as_bytes(), 0o644, Owner::default()))?.ino;
        ensure!(fs.write(file, 0, &FILE)? == FILE.len(), "a write was cut short");
        if mode == 1 {
            fsync.time(&clock, || fs.fsync(file, false))?;
        }
        files.push(file);
    }
    if matches!(mode, 2 | 4 | 6) {
        fs.sync()?;
    }
    match mode {
        2 => files.truncate(1),
        3 | 4 => files.reverse(),
        5 | 6 => {}
        _ => files.clear(),
    }
    for (i, file) in files.into_iter().enumerate() {
        if (i as u64).is_multiple_of(LOOK_AGAIN) {
            interrupt.check()?;
        }
        fsync.time(&clock, || fs.fsync(file, false))?;
    }
    Ok((create, fsync))
}

#[cfg(test)]
#[path = "marks_tests.rs"]
mod tests;
