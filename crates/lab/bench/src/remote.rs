//! The cost of distance: the same images in a file, through NBD and on Ceph.
//!
//! The measurements run in this process, without a mount. For each image: durable writes of 4 KiB
//! one after the other (a FUA write, or a write and a flush), which no fsync can beat; then 4 KiB
//! files with an fsync each, by 1, 4 and 16 clients (the work of `fs_mark -S 1`), with the
//! latencies of the fsyncs. The images take turns, and the median of the rounds is reported. If a
//! directory is given instead of an image, files are created in the file system that is mounted
//! there.

use crate::library::{Host, Library, Target, in_threads};
use anyhow::{Context, Result};
use kedge_base::{BLOCK_SIZE, Clock, IoBuf, SystemClock};
use kedge_device::{Device, Location, OpenOptions};
use kedgefs::{FormatOptions, Ino, MountOptions};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const CLIENTS: [usize; 3] = [1, 4, 16];
const DURABLE_WRITES: u64 = 300;
/// Offset in the image of the durable writes.
const AREA: u64 = 1 << 20;
const FILE: [u8; 4096] = [0x6b; 4096];

/// Number per second, and latencies.
#[derive(Clone, Copy, Default, Debug)]
struct Figures {
    p50: Duration,
    p99: Duration,
    per_second: f64,
}

/// A file system in which the loop first creates a file and then fsyncs it.
trait Synced: Target {
    type Open;

    fn create_written(&self, dir: &Self::Dir, name: &str) -> Result<Self::Open>;
    fn fsync(&self, file: Self::Open) -> Result<()>;
}

impl Synced for Library {
    type Open = Ino;

    fn create_written(&self, dir: &Ino, name: &str) -> Result<Ino> {
        Library::create_written(self, dir, name, &FILE)
    }

    fn fsync(&self, file: Ino) -> Result<()> {
        Ok(self.fs().fsync(file, false)?)
    }
}

impl Synced for Host {
    type Open = File;

    fn create_written(&self, dir: &PathBuf, name: &str) -> Result<File> {
        let mut file = File::create_new(dir.join(name)).with_context(|| format!("create {name}"))?;
        file.write_all(&FILE).with_context(|| format!("write {name}"))?;
        Ok(file)
    }

    fn fsync(&self, file: File) -> Result<()> {
        file.sync_all().context("fsync")
    }
}

/// Measures the images, whose contents are lost, and the directories. Returns a table in Markdown.
pub fn run(images: &[String], rounds: usize, each: Duration, progress: fn(&str)) -> Result<String> {
    let mut rows: Vec<Vec<Vec<Figures>>> = vec![vec![Vec::new(); 1 + CLIENTS.len()]; images.len()];
    for round in 1..=rounds {
        for (image, row) in images.iter().zip(&mut rows) {
            progress(&format!("round {round}: {image}"));
            if Path::new(image).is_dir() {
                add_small_files(&Host(image.into()), each, row)?;
                continue;
            }
            let device = open(image)?;
            row[0].push(durable_writes(&*device)?);
            let (format, mount) = (FormatOptions::default(), MountOptions::default());
            let library = Library::on(device, &format, mount)?;
            add_small_files(&library, each, row)?;
            library.close()?;
        }
    }
    Ok(table(images, rows))
}

fn open(image: &str) -> Result<Arc<dyn Device>> {
    let location = Location::parse(Path::new(image))?;
    kedge_device::open(&location, OpenOptions::default()).with_context(|| format!("open {image}"))
}

fn durable_writes(device: &dyn Device) -> Result<Figures> {
    let (clock, block) = (SystemClock::default(), IoBuf::from_bytes(&FILE));
    // The blocks were written before, like those of a log, so that no layer has to allocate space.
    device.write(AREA, &IoBuf::zeroed(DURABLE_WRITES as usize), true)?;
    let started = clock.monotonic();
    let mut took = Vec::new();
    for i in 0..DURABLE_WRITES {
        let before = clock.monotonic();
        device.write(AREA + i * BLOCK_SIZE as u64, &block, true)?;
        took.push(clock.since(before));
    }
    Ok(figures(took, clock.since(started)))
}

fn add_small_files<T: Synced>(target: &T, each: Duration, row: &mut [Vec<Figures>]) -> Result<()> {
    for (i, clients) in CLIENTS.into_iter().enumerate() {
        row[i + 1].push(small_files(target, clients, each)?);
    }
    Ok(())
}

fn small_files<T: Synced>(target: &T, clients: usize, each: Duration) -> Result<Figures> {
    let name = format!("kedge-lab-{clients}");
    let dir = target.make_dir(&name)?;
    let (took, latencies) = in_threads(clients, |client| {
        let (target, dir) = (target.clone(), dir.clone());
        move || {
            let clock = SystemClock::default();
            let started = clock.monotonic();
            let mut latencies = Vec::new();
            while clock.since(started) < each {
                let name = format!("{client}-{}", latencies.len());
                let file = target.create_written(&dir, &name)?;
                let before = clock.monotonic();
                target.fsync(file)?;
                latencies.push(clock.since(before));
            }
            Ok(latencies)
        }
    })?;
    target.remove_dir(&name)?;
    Ok(figures(latencies.concat(), took))
}

fn figures(mut took: Vec<Duration>, all: Duration) -> Figures {
    took.sort_unstable();
    let at = |share: usize| took.get((took.len() * share / 100).min(took.len().saturating_sub(1)));
    let [p50, p99] = [50, 99].map(|share| at(share).copied().unwrap_or_default());
    Figures { p50, p99, per_second: took.len() as f64 / all.as_secs_f64().max(1e-9) }
}

/// The median of each column.
fn median(rounds: &[Figures]) -> Figures {
    let middle = |of: fn(&Figures) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    Figures {
        p50: Duration::from_secs_f64(middle(|one| one.p50.as_secs_f64())),
        p99: Duration::from_secs_f64(middle(|one| one.p99.as_secs_f64())),
        per_second: middle(|one| one.per_second),
    }
}

fn table(images: &[String], rows: Vec<Vec<Vec<Figures>>>) -> String {
    let mut out =
        "| image | work | p50, ms | p99, ms | /s | share of the device |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let ms = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
    for (image, row) in images.iter().zip(rows) {
        let medians: Vec<Figures> = row.iter().map(|rounds| median(rounds)).collect();
        let alone = medians[0].p50;
        // A directory has no device for durable writes.
        for (i, one) in medians.iter().enumerate().skip(row[0].is_empty() as usize) {
            let (work, share) = match i.checked_sub(1).map(|i| CLIENTS[i]) {
                None => ("durable write of 4 KiB".to_owned(), String::new()),
                Some(1) if alone.is_zero() => ("4 KiB + fsync, 1 client".to_owned(), String::new()),
                Some(1) => ("4 KiB + fsync, 1 client".to_owned(), {
                    let share = alone.as_secs_f64() / one.p50.as_secs_f64().max(1e-9);
                    format!("{:.0} %", share * 100.0)
                }),
                Some(n) => (format!("4 KiB + fsync, {n} clients"), String::new()),
            };
            let (p50, p99) = (ms(one.p50), ms(one.p99));
            writeln!(out, "| `{image}` | {work} | {p50} | {p99} | {:.0} | {share} |", one.per_second)
                .expect("a String takes all");
        }
    }
    out
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
