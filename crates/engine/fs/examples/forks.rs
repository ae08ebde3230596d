//! What forks cost, on an image file: `cargo run --release -p kedgefs --example forks -- IMAGE
//! FILES [BYTES]`.
//!
//! Makes a tree of FILES files of BYTES each (4,096 by default; 0 leaves them empty) and forks it.
//! Prints the time and the bytes written of the fork. Prints the time of creations and fsyncs in
//! the tree before the fork, in the tree after the fork, in the fork, and beside a thousand forks.
//! Prints the time of fsyncs while a fork is deleted.

use kedge_base::spawn_named;
use kedge_device::{Device, FileDevice, OpenOptions};
use kedgefs::{Clock, FileSystem, FormatOptions, Ino, MountOptions, Owner, SystemClock};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

const ROUND: usize = 500;

/// Number of files that only the deleted fork has.
const ALONE: usize = 20_000;

struct Bench {
    fs: Arc<FileSystem>,
    clock: Arc<SystemClock>,
    made: usize,
}

impl Bench {
    fn timed(&self, work: impl FnOnce() -> kedgefs::Result<()>) -> Outcome<Duration> {
        let started = self.clock.monotonic();
        work()?;
        Ok(self.clock.since(started))
    }

    /// Returns the mean time of one creation of a file with an fsync, and of one overwrite of a
    /// block with fdatasync.
    fn round(&mut self, root: Ino) -> Outcome<(Duration, Duration)> {
        let dir = self.fs.mkdir(root, format!("round{}", self.made).as_bytes(), 0o755, Owner::default())?.ino;
        self.made += 1;
        let mut last = dir;
        let creations = self.timed(|| {
            for i in 0..ROUND {
                last = self.fs.create(dir, format!("{i}").as_bytes(), 0o644, Owner::default())?.ino;
                self.fs.write(last, 0, &[7; 4096])?;
                self.fs.fsync(last, false)?;
            }
            Ok(())
        })?;
        let overwrites = self.timed(|| {
            for i in 0..ROUND {
                self.fs.write(last, 0, &[i as u8; 4096])?;
                self.fs.fsync(last, true)?;
            }
            Ok(())
        })?;
        Ok((creations / ROUND as u32, overwrites / ROUND as u32))
    }

    /// Prints the medians of several rounds. The rounds take turns between the roots.
    fn rounds(&mut self, roots: &[(&str, Ino)]) -> Outcome<()> {
        let mut times = vec![(Vec::new(), Vec::new()); roots.len()];
        for _ in 0..7 {
            for ((_, root), (creations, overwrites)) in roots.iter().zip(&mut times) {
                let (creation, overwrite) = self.round(*root)?;
                creations.push(creation);
                overwrites.push(overwrite);
            }
        }
        for ((what, _), (creations, overwrites)) in roots.iter().zip(&mut times) {
            println!(
                "{what}: create+fsync {:?}, overwrite+fdatasync {:?}",
                median(creations),
                median(overwrites)
            );
        }
        Ok(())
    }

    /// Overwrites a block with fdatasync for one second, and records the time of each.
    fn fsyncs(&self, file: Ino, times: &mut Vec<Duration>) -> Outcome<()> {
        let started = self.clock.monotonic();
        while self.clock.since(started) < Duration::from_secs(1) {
            let byte = times.len() as u8;
            times.push(self.timed(|| {
                self.fs.write(file, 0, &[byte; 4096])?;
                self.fs.fsync(file, true)
            })?);
        }
        Ok(())
    }

    /// Prints the times of fsyncs in the second in which a fork with files of its own is deleted,
    /// and in the second before.
    fn deletions(&self) -> Outcome<()> {
        let file = self.fs.create(Ino::ROOT, b"steady", 0o644, Owner::default())?.ino;
        let (mut before, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let fork = self.fs.fork(Ino::ROOT, Ino::ROOT, b"doomed", false)?.ino;
            for i in 0..ALONE {
                let file = self.fs.create(fork, format!("own{i}").as_bytes(), 0o644, Owner::default())?;
                self.fs.write(file.ino, 0, &[7; 4096])?;
            }
            self.fs.sync()?;
            self.fs.checkpoint()?;
            self.fsyncs(file, &mut before)?;
            let fs = self.fs.clone();
            let deletion = spawn_named("deletion", move || {
                fs.delete_tree(Ino::ROOT, b"doomed")?;
                fs.reclaim()
            })?;
            self.fsyncs(file, &mut beside)?;
            deletion.join().map_err(|_| "the deletion panicked")??;
        }
        for (what, times) in [("before", &mut before), ("beside", &mut beside)] {
            let middle = median(times);
            let most = times[times.len() * 99 / 100];
            println!("fsyncs {what} a deletion: {}, median {middle:?}, p99 {most:?}", times.len());
        }
        Ok(())
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let image = args.next().ok_or("which image file?")?;
    let files: u64 = args.next().map_or(Ok(1000), |n| n.parse())?;
    let bytes: usize = args.next().map_or(Ok(4096), |n| n.parse())?;
    let _ = std::fs::remove_file(&image);
    let size = (files << 14).max(2 << 30);
    let device = FileDevice::create(std::path::Path::new(&image), size, OpenOptions::default())?;
    let clock = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default())?;
    let fs = FileSystem::open(device.clone(), clock.clone(), MountOptions::default())?;
    let mut dir = Ino::ROOT;
    for i in 0..files {
        if i % 10_000 == 0 {
            dir = fs.mkdir(Ino::ROOT, format!("d{i}").as_bytes(), 0o755, Owner::default())?.ino;
        }
        let file = fs.create(dir, format!("file{i}").as_bytes(), 0o644, Owner::default())?;
        fs.write(file.ino, 0, &vec![7; bytes])?;
    }
    fs.sync()?;
    fs.checkpoint()?;
    let mut bench = Bench { fs: Arc::new(fs), clock, made: 0 };
    bench.rounds(&[("not forked", Ino::ROOT)])?;
    bench.fs.sync()?;
    bench.fs.checkpoint()?;

    let (mut times, mut bytes) = (Vec::new(), Vec::new());
    let mut first = Ino::ROOT;
    for i in 0..21 {
        let before = device.stats().write_bytes.get();
        let mut made = Ino::ROOT;
        times.push(bench.timed(|| {
            made = bench.fs.fork(Ino::ROOT, Ino::ROOT, format!("fork{i}").as_bytes(), false)?.ino;
            Ok(())
        })?);
        bytes.push(device.stats().write_bytes.get() - before);
        first = if i == 0 { made } else { first };
    }
    let one = times[0];
    bytes.sort_unstable();
    println!(
        "{files} files: first fork {one:?}, median of 21 {:?}, {} bytes written",
        median(&mut times),
        bytes[bytes.len() / 2]
    );
    bench.rounds(&[("forked", Ino::ROOT), ("a fork", first)])?;

    let started = bench.clock.monotonic();
    for i in 21..1000 {
        bench.fs.fork(Ino::ROOT, Ino::ROOT, format!("fork{i}").as_bytes(), false)?;
    }
    println!("a fork of 1000: {:?}", bench.clock.since(started) / 979);
    bench.rounds(&[("forked 1000 times", Ino::ROOT), ("one of 1000", first)])?;
    let started = bench.clock.monotonic();
    for i in 1..1000 {
        bench.fs.delete_tree(Ino::ROOT, format!("fork{i}").as_bytes())?;
    }
    println!("a deletion: {:?}", bench.clock.since(started) / 999);
    let reclaimed = bench.timed(|| bench.fs.reclaim())?;
    println!("their space: {reclaimed:?}");
    bench.deletions()?;
    bench.fs.close()?;
    Ok(())
}
