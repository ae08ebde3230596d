//! Images with a filled log at the time of a crash, and the time to open them.

use super::{BLOCK, OPENING, Scale, file_name, outcome};
use crate::contest::{Better, Metric, Outcome};
use crate::counters::Counters;
use crate::library::{Library, in_threads};
use crate::mounts::Mounted;
use crate::sample::Sample;
use anyhow::{Result, ensure};
use kedge_base::{Clock, SystemClock};
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, Switches};
use std::path::Path;
use std::sync::Arc;

/// How much of the log is filled, as fractions of what it holds before a checkpoint must run. A
/// part of a log is always reserved, for example for records of log-resident data that is written
/// in place.
const FILLS: [(&str, f64); 4] = [("25 %", 0.25), ("50 %", 0.5), ("75 %", 0.75), ("95 %", 0.95)];
const IMAGE: u64 = 4 << 30;
/// Bytes of cache: everything that the log refers to stays in memory, since a full cache would
/// start a checkpoint.
const CACHE: u64 = 4 << 30;
/// Number of threads that create files with an fsync.
const THREADS: usize = 8;

/// The operations that fill the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Filler {
    /// Creations of empty files, which give the most records.
    Creations,
    /// Files of 4 KiB with an fsync each, whose bytes are in the log.
    Synced,
}

const FILLERS: [Filler; 2] = [Filler::Creations, Filler::Synced];

impl Filler {
    /// Number of files that are created between two checks of the log.
    fn batch(self) -> u64 {
        match self {
            Filler::Creations => 512,
            Filler::Synced => 64,
        }
    }
}

/// For each filler, in their order, one metric for the library and one for the mount.
const METRICS: [&str; 4] = [
    "library, creations",
    "kedge mount, creations",
    "library, small files with fsync",
    "kedge mount, small files with fsync",
];

impl Scale<'_> {
    pub(super) fn opening(&self, failures: &mut Vec<String>) -> Result<Outcome> {
        let fills = if self.settings.quick { &FILLS[1..] } else { &FILLS };
        let mut sides = Vec::new();
        let image = self.place.shell.dir.join("crash.img");
        let mut full = Vec::new();
        for filler in FILLERS {
            full.push(fill_log(&image, self.log_size(), filler, None)?);
        }
        for (name, part) in fills.iter().copied() {
            let mut samples = vec![Sample::default(); METRICS.len()];
            for _ in 0..self.rounds {
                for ((filler, full), samples) in FILLERS.into_iter().zip(&full).zip(samples.chunks_mut(2)) {
                    self.settings.interrupt.check()?;
                    fill_log(&image, self.log_size(), filler, Some(full * part))?;
                    self.place.shell.run("cp --sparse=always crash.img kedge.img")?;
                    // The copy must be on the disk, not only in the host's cache.
                    self.place.shell.run("sync kedge.img")?;
                    samples[0].push(open(&image)?);
                    std::fs::remove_file(&image)?;
                    match self.mount() {
                        Ok(took) => samples[1].push(took),
                        Err(e) => {
                            self.settings.interrupt.check()?;
                            failures.push(format!("a log that was {name} full: {e:#}"));
                        }
                    }
                }
            }
            let medians: Vec<String> = samples.iter().map(|s| format!("{:.2}", s.median())).collect();
            self.say(&format!(
                "a log that is {name} full: {} s ({})",
                medians.join(", "),
                METRICS.join("; ")
            ));
            sides.push((name, samples));
        }
        let metrics = METRICS.map(|name| Metric::new(name, "s", Better::Lower)).into();
        Ok(outcome(OPENING, metrics, sides))
    }

    /// Mounts the copy and returns the seconds. The copy is removed with the mount.
    fn mount(&self) -> Result<f64> {
        let clock = SystemClock::default();
        let shell = &self.place.shell;
        shell.run("mkdir -p kedge")?;
        let started = clock.monotonic();
        let mounted = Mounted::kedge_by(shell, &["kedge mount kedge.img kedge".into()])?;
        let took = clock.since(started).as_secs_f64();
        mounted.end()?;
        Ok(took)
    }
}

/// Makes an image that crashes in use with this many bytes in its log. With `None` fills the log
/// until a checkpoint empties it. Returns the largest number of bytes that the log held.
fn fill_log(image: &Path, log_size: u64, filler: Filler, bytes: Option<f64>) -> Result<f64> {
    let device = FileDevice::create(image, IMAGE, OpenOptions::default())?;
    let format = FormatOptions { log_size: Some(log_size), ..FormatOptions::default() };
    let mut options = MountOptions { cache_size: CACHE, ..MountOptions::default() };
    "noasync_checkpoint".parse::<Switches>()?.apply(&mut options);
    let library = Library::on(device, &format, options)?;
    let fs = library.fs();
    let checkpoints = |counters: &Counters| counters.get("transactions/checkpoints");
    let before = checkpoints(&Counters::of(fs)?)?;
    let (mut batch, mut most) = (0, 0.0f64);
    loop {
        let counters = Counters::of(fs)?;
        if checkpoints(&counters)? != before {
            ensure!(bytes.is_none(), "a checkpoint ran while the log was filled");
            break;
        }
        most = most.max(counters.get("log/used_bytes")?);
        if bytes.is_some_and(|bytes| most >= bytes) {
            break;
        }
        fill(fs, filler, batch)?;
        batch += 1;
    }
    fs.fsync(Ino::ROOT, false)?;
    fs.shutdown(false)?;
    Ok(most)
}

/// Adds a directory with `batch` files.
fn fill(fs: &FileSystem, filler: Filler, batch: u64) -> Result<()> {
    let dir = fs.mkdir(Ino::ROOT, format!("dir{batch}").as_bytes(), 0o755, Owner::default())?.ino;
    let make = move |fs: &FileSystem, i: u64| -> Result<()> {
        let file = fs.create(dir, file_name(i).as_bytes(), 0o644, Owner::default())?.ino;
        if filler == Filler::Synced {
            ensure!(fs.write(file, 0, &BLOCK)? == BLOCK.len(), "a write was cut short");
            fs.fsync(file, false)?;
        }
        Ok(())
    };
    if filler == Filler::Creations {
        return (0..filler.batch()).try_for_each(|i| make(fs, i));
    }
    let each = filler.batch() / THREADS as u64;
    in_threads(THREADS, |thread| {
        let fs = fs.clone();
        move || (0..each).try_for_each(|i| make(&fs, thread as u64 * each + i))
    })?;
    Ok(())
}

/// Opens the image with the library and returns the seconds.
fn open(image: &Path) -> Result<f64> {
    let clock = SystemClock::default();
    let started = clock.monotonic();
    let device = FileDevice::open(image, OpenOptions::default())?;
    let fs = FileSystem::open(device, Arc::new(clock), MountOptions::default())?;
    let took = clock.since(started).as_secs_f64();
    ensure!(replayed(&fs)? > 0.0, "no log was replayed");
    // The file system is shut down, since closing would write contents that are not needed.
    fs.shutdown(false)?;
    Ok(took)
}

/// Number of bytes of the log that were replayed when the image was opened.
fn replayed(fs: &FileSystem) -> Result<f64> {
    Counters::parse(&fs.info_json())?.get("recovery/bytes")
}

#[cfg(test)]
#[path = "crash_tests.rs"]
mod tests;
