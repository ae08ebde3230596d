//! Random overwrites of 4 KiB, each made durable with fdatasync, in fully written files.
//!
//! The same loop runs on the library and, through std::fs, on a mount. Each round begins with a
//! change of size: from then on more of the inode than its time stamps is dirty, until something
//! makes that durable.

use crate::Interrupt;
use crate::library::{Library, in_threads};
use crate::times::Times;
use anyhow::{Context, Result, ensure};
use kedge_base::{Clock, SystemClock};
use kedgefs::{FileSystem, Ino, Owner};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = 4096;
/// Bytes of a write that fills a file.
const FILL: usize = 1 << 20;

/// An open file.
pub trait Target: Clone + Send + 'static {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    fn fdatasync(&self) -> Result<()>;
}

#[derive(Clone)]
pub struct LibraryFile(FileSystem, Ino);

impl Target for LibraryFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        ensure!(self.0.write(self.1, offset, data)? == data.len(), "a write was cut short");
        Ok(())
    }

    fn fdatasync(&self) -> Result<()> {
        Ok(self.0.fsync(self.1, true)?)
    }
}

#[derive(Clone)]
pub struct HostFile(Arc<File>);

impl Target for HostFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write_all_at(data, offset).context("write")
    }

    fn fdatasync(&self) -> Result<()> {
        self.0.sync_data().context("fdatasync")
    }
}

/// Creates a durable file of `size` bytes, all of them written. `name` must be new.
pub fn library_file(library: &Library, name: &str, size: u64) -> Result<LibraryFile> {
    let file = library.fs().create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default())?;
    let file = LibraryFile(library.fs().clone(), file.ino);
    fill(&file, size)?;
    Ok(file)
}

/// Like [`library_file`], through std::fs.
pub fn host_file(dir: &Path, name: &str, size: u64) -> Result<HostFile> {
    let path = dir.join(name);
    let file = File::create_new(&path).with_context(|| format!("create {}", path.display()))?;
    let file = HostFile(Arc::new(file));
    fill(&file, size)?;
    Ok(file)
}

fn fill(file: &impl Target, size: u64) -> Result<()> {
    let data = vec![0x6b; FILL];
    (0..size / FILL as u64).try_for_each(|i| file.write_at(i * FILL as u64, &data))?;
    file.fdatasync()
}

pub struct Sum {
    /// Overwrites per second.
    pub rate: f64,
    pub seconds: f64,
    /// Latencies of an overwrite and its fdatasync together.
    pub latency: Times,
    /// Number of fdatasyncs, including those after the change of size. All of them had dirty data.
    pub calls: f64,
}

/// Runs one round. Thread `i` works on `files[i % files.len()]`. `round` selects the random
/// sequence and the offset at which the files grow, and must be larger than in earlier rounds on
/// the same files. The round is limited by time, since a shared disk may become a hundred times
/// slower from one round to the next.
pub fn run<T: Target>(
    files: &[T],
    size: u64,
    threads: usize,
    time: Duration,
    round: u64,
    interrupt: &Interrupt,
) -> Result<Sum> {
    let (took, answers) = in_threads(threads, |i| {
        let (file, interrupt) = (files[i % files.len()].clone(), interrupt.clone());
        let first = i < files.len();
        move || overwrite(&file, size, first, time, round * 64 + i as u64, &interrupt)
    })?;
    let mut latency = Times::default();
    answers.into_iter().for_each(|times| latency.merge(times));
    let calls = latency.count() + files.len().min(threads) as f64;
    let seconds = took.as_secs_f64();
    Ok(Sum { rate: latency.count() / seconds, seconds, latency, calls })
}

fn overwrite<T: Target>(
    file: &T,
    size: u64,
    first: bool,
    time: Duration,
    seed: u64,
    interrupt: &Interrupt,
) -> Result<Times> {
    let clock = SystemClock::default();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut times = Times::default();
    let mut block = vec![0u8; BLOCK as usize];
    if first {
        // The file grows by a block at a higher offset in each round, whichever contestants came
        // before.
        let behind = size + (seed / 64) * BLOCK;
        file.write_at(behind, &block)?;
        file.fdatasync()?;
    }
    let end = clock.monotonic() + time;
    while clock.monotonic() < end {
        interrupt.check()?;
        rng.fill(&mut block[..]);
        let at = rng.random_range(0..size / BLOCK) * BLOCK;
        times.time(&clock, || file.write_at(at, &block).and_then(|()| file.fdatasync()))?;
    }
    Ok(times)
}

#[cfg(test)]
#[path = "overwrite_tests.rs"]
mod tests;
