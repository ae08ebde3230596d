//! The same loops for the library and, through std::fs, for a mounted file system.

use anyhow::{Context, Result, bail};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_base::{Clock, SystemClock, spawn_named};
use kedge_device::{Device, FileDevice, OpenOptions};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The operations that the loops need.
pub trait Target: Clone + Send + 'static {
    type Dir: Clone + Send + 'static;

    fn make_dir(&self, name: &str) -> Result<Self::Dir>;
    fn create(&self, dir: &Self::Dir, name: &str) -> Result<()>;
    /// Creates a file and makes it durable before it returns.
    fn create_synced(&self, dir: &Self::Dir, name: &str, data: &[u8]) -> Result<()>;
    /// Removes a directory and the files in it.
    fn remove_dir(&self, name: &str) -> Result<()>;
}

/// The work for each file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Empty files, one directory for each thread, no fsync.
    Empty,
    /// Files of 4 KiB with an fsync each, all in one directory, as `fs_mark -s 4096 -S 1` makes
    /// them.
    Synced,
}

const FILE: [u8; 4096] = [0x6b; 4096];

/// Files per second, if `threads` threads make `each` files. The files are removed afterwards.
pub fn files_per_second<T: Target>(target: &T, work: Work, threads: usize, each: u64) -> Result<f64> {
    let took = make_files(target, work, threads, each)?;
    (0..dirs(work, threads)).try_for_each(|i| target.remove_dir(&dir_name(work, i)))?;
    Ok((threads as u64 * each) as f64 / took.as_secs_f64())
}

/// The time that `threads` threads need to create `each` files, which are kept.
pub fn make_files<T: Target>(target: &T, work: Work, threads: usize, each: u64) -> Result<Duration> {
    let dirs = dirs(work, threads);
    let made: Vec<T::Dir> = (0..dirs).map(|i| target.make_dir(&dir_name(work, i))).collect::<Result<_>>()?;
    let (took, _) = in_threads(threads, |i| {
        let (target, dir) = (target.clone(), made[i % dirs].clone());
        move || create_files(&target, &dir, work, i, each)
    })?;
    Ok(took)
}

fn dirs(work: Work, threads: usize) -> usize {
    if work == Work::Empty { threads } else { 1 }
}

fn dir_name(work: Work, i: usize) -> String {
    match work {
        Work::Empty => format!("work{i}"),
        Work::Synced => "work".into(),
    }
}

/// A gate that opens when all threads have come. Threads of a simulated machine can wait at it, but
/// not at a barrier of the standard library.
struct Gate {
    missing: Mutex<usize>,
    all: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut missing = self.missing.lock();
        *missing -= 1;
        if *missing == 0 {
            self.all.notify_all();
        }
        while *missing > 0 {
            self.all.wait(&mut missing);
        }
    }
}

/// Runs `threads` threads, which start together. Returns the time from the start of the first to
/// the end of the last, and the threads' results.
pub fn in_threads<R: Send + 'static, W: FnOnce() -> Result<R> + Send + 'static>(
    threads: usize,
    mut make: impl FnMut(usize) -> W,
) -> Result<(Duration, Vec<R>)> {
    let clock = SystemClock::default();
    let start = Arc::new(Gate { missing: Mutex::new(Rank::Leaf, threads), all: Condvar::new() });
    let mut workers = Vec::new();
    for i in 0..threads {
        let (work, start) = (make(i), start.clone());
        // Each thread reads the clock itself: on a busy machine it may begin long before the
        // waiting thread runs again.
        let body = move || {
            start.pass();
            let began = clock.monotonic();
            let answer = work();
            (began, clock.monotonic(), answer)
        };
        workers.push(spawn_named("bench", body).context("start a thread")?);
    }
    // All threads are joined before the first error is returned, since they use data that the
    // caller may drop.
    let ended: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
    let (mut first, mut last) = (Duration::MAX, Duration::ZERO);
    let mut answers = Vec::new();
    for ended in ended {
        let (began, end, answer) = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (first, last) = (first.min(began), last.max(end));
        answers.push(answer);
    }
    Ok((last.saturating_sub(first), answers.into_iter().collect::<Result<_>>()?))
}

fn create_files<T: Target>(target: &T, dir: &T::Dir, work: Work, thread: usize, each: u64) -> Result<()> {
    use std::fmt::Write;
    let mut name = String::new();
    for i in 0..each {
        name.clear();
        write!(name, "t{thread}f{i:07}").expect("a String takes all");
        match work {
            Work::Empty => target.create(dir, &name)?,
            Work::Synced => target.create_synced(dir, &name, &FILE)?,
        }
    }
    Ok(())
}

/// The library on an image file.
#[derive(Clone)]
pub struct Library(FileSystem);

impl Library {
    /// Formats an image with the default options and opens it. The file may exist.
    pub fn make(image: &Path, size: u64) -> Result<Library> {
        let device = FileDevice::create(image, size, OpenOptions::default())?;
        Library::on(device, &FormatOptions::default(), MountOptions::default())
    }

    pub fn on(device: Arc<dyn Device>, format: &FormatOptions, options: MountOptions) -> Result<Library> {
        let clock = Arc::new(SystemClock::default());
        let name = device.name().to_owned();
        let format = FormatOptions { overwrite: true, ..format.clone() };
        FileSystem::format(device.clone(), clock.clone(), &format)
            .with_context(|| format!("format {name}"))?;
        Ok(Library(FileSystem::open(device, clock, options).with_context(|| format!("open {name}"))?))
    }

    /// Opens a formatted image.
    pub fn open(device: Arc<dyn Device>, options: MountOptions) -> Result<Library> {
        let name = device.name().to_owned();
        let clock = Arc::new(SystemClock::default());
        Ok(Library(FileSystem::open(device, clock, options).with_context(|| format!("open {name}"))?))
    }

    pub fn fs(&self) -> &FileSystem {
        &self.0
    }

    /// Creates a file and writes its bytes, without making them durable.
    pub fn create_written(&self, dir: &Ino, name: &str, data: &[u8]) -> Result<Ino> {
        let file = self.0.create(*dir, name.as_bytes(), 0o644, Owner::default())?;
        if self.0.write(file.ino, 0, data)? != data.len() {
            bail!("{name} was not written whole");
        }
        Ok(file.ino)
    }

    pub fn sync(&self) -> Result<()> {
        self.0.sync().context("sync the image")
    }

    pub fn close(&self) -> Result<()> {
        self.0.close().context("close the image")
    }
}

impl Target for Library {
    type Dir = Ino;

    fn make_dir(&self, name: &str) -> Result<Ino> {
        Ok(self.0.mkdir(Ino::ROOT, name.as_bytes(), 0o755, Owner::default())?.ino)
    }

    fn create(&self, dir: &Ino, name: &str) -> Result<()> {
        self.0.create(*dir, name.as_bytes(), 0o644, Owner::default())?;
        Ok(())
    }

    fn create_synced(&self, dir: &Ino, name: &str, data: &[u8]) -> Result<()> {
        let ino = self.create_written(dir, name, data)?;
        Ok(self.0.fsync(ino, false)?)
    }

    fn remove_dir(&self, name: &str) -> Result<()> {
        let dir = self.0.lookup(Ino::ROOT, name.as_bytes())?.ino;
        let mut names: Vec<Vec<u8>> = Vec::new();
        self.0.readdir(dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        names.iter().try_for_each(|name| self.0.unlink(dir, name))?;
        Ok(self.0.rmdir(Ino::ROOT, name.as_bytes())?)
    }
}

/// A mounted file system, given by its directory.
#[derive(Clone)]
pub struct Host(pub PathBuf);

impl Target for Host {
    type Dir = PathBuf;

    fn make_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.0.join(name);
        std::fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    fn create(&self, dir: &PathBuf, name: &str) -> Result<()> {
        File::create_new(dir.join(name)).with_context(|| format!("create {name}"))?;
        Ok(())
    }

    fn create_synced(&self, dir: &PathBuf, name: &str, data: &[u8]) -> Result<()> {
        let mut file = File::create_new(dir.join(name)).with_context(|| format!("create {name}"))?;
        file.write_all(data).and_then(|()| file.sync_all()).with_context(|| format!("write {name}"))
    }

    fn remove_dir(&self, name: &str) -> Result<()> {
        std::fs::remove_dir_all(self.0.join(name)).with_context(|| format!("remove {name}"))
    }
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
