//! What small files in the tree cost and save, on an image file: `cargo run --release -p kedgefs
//! --example small_files -- IMAGE FILES BYTES ROUNDS`.
//!
//! Each round makes an image without data in the tree and one for each `inline_max` to compare, in
//! turn. In each image it creates FILES files of BYTES bytes in directories of 1,000 and syncs,
//! prints the space used and the bytes written, opens the image again and reads all files. Then it
//! creates, writes and fsyncs 5,000 more files with one thread, and writes a checkpoint. The last
//! lines are the medians.

use kedge_device::{Device, FileDevice, OpenOptions};
use kedgefs::{Clock, FileSystem, FormatOptions, Ino, MountOptions, Owner, SystemClock};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MIB: u64 = 1 << 20;
const PER_DIR: u64 = 1000;
const FSYNCED: u64 = 5000;
const LENGTHS: [u64; 4] = [0, 512, 1024, 2048];
const COLUMNS: [&str; 8] = [
    "created/s",
    "MiB used",
    "MiB written",
    "MiB checkpoints",
    "read/s",
    "created+fsynced/s",
    "MiB written",
    "MiB checkpoints",
];

struct Meter {
    device: Arc<FileDevice>,
    written: u64,
    checkpoints: u64,
}

impl Meter {
    fn checkpoint_bytes(fs: &FileSystem) -> Outcome<u64> {
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json())?;
        Ok(stats["checkpoint"]["bytes_written"].as_u64().ok_or("no checkpoint bytes")?)
    }

    fn start(device: &Arc<FileDevice>, fs: &FileSystem) -> Outcome<Meter> {
        let (device, checkpoints) = (device.clone(), Meter::checkpoint_bytes(fs)?);
        Ok(Meter { written: device.stats().write_bytes.get(), device, checkpoints })
    }

    /// MiB written since the start: in all, and by checkpoints.
    fn read(&self, fs: &FileSystem) -> Outcome<[f64; 2]> {
        let written = self.device.stats().write_bytes.get() - self.written;
        let checkpoints = Meter::checkpoint_bytes(fs)? - self.checkpoints;
        Ok([written, checkpoints].map(|bytes| bytes as f64 / MIB as f64))
    }
}

fn measure(image: &Path, inline_max: u64, files: u64, bytes: usize) -> Outcome<Vec<f64>> {
    let _ = std::fs::remove_file(image);
    let size = (files * 6144).max(512 * MIB) + 512 * MIB;
    let device = FileDevice::create(image, size, OpenOptions::default())?;
    let clock = Arc::new(SystemClock::default());
    let options = FormatOptions { inline_max, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &options)?;
    let fs = FileSystem::open(device.clone(), clock.clone(), MountOptions::default())?;
    let used = |fs: &FileSystem| {
        let statfs = fs.statfs();
        (statfs.blocks - statfs.blocks_free) as f64 * 4096.0 / MIB as f64
    };
    let (empty, meter, started) = (used(&fs), Meter::start(&device, &fs)?, clock.monotonic());
    let data = vec![b'x'; bytes];
    let mut inos = Vec::new();
    let mut dir = Ino::ROOT;
    for n in 0..files {
        if n % PER_DIR == 0 {
            dir = fs.mkdir(Ino::ROOT, format!("d{}", n / PER_DIR).as_bytes(), 0o755, Owner::default())?.ino;
        }
        let ino = fs.create(dir, format!("file{n}").as_bytes(), 0o644, Owner::default())?.ino;
        fs.write(ino, 0, &data)?;
        inos.push(ino);
    }
    fs.sync()?;
    let mut out = vec![files as f64 / clock.since(started).as_secs_f64()];
    fs.checkpoint()?;
    out.push(used(&fs) - empty);
    out.extend(meter.read(&fs)?);
    fs.close()?;

    let fs = FileSystem::open(device.clone(), clock.clone(), MountOptions::default())?;
    let started = clock.monotonic();
    let mut buf = vec![0; bytes];
    for ino in &inos {
        if fs.read(*ino, 0, &mut buf)? != bytes {
            return Err("a short read".into());
        }
    }
    out.push(files as f64 / clock.since(started).as_secs_f64());

    let dir = fs.mkdir(Ino::ROOT, b"fsynced", 0o755, Owner::default())?.ino;
    let (meter, started) = (Meter::start(&device, &fs)?, clock.monotonic());
    for n in 0..FSYNCED {
        let ino = fs.create(dir, format!("file{n}").as_bytes(), 0o644, Owner::default())?.ino;
        fs.write(ino, 0, &data)?;
        fs.fsync(ino, false)?;
    }
    out.push(FSYNCED as f64 / clock.since(started).as_secs_f64());
    fs.checkpoint()?;
    out.extend(meter.read(&fs)?);
    fs.close()?;
    Ok(out)
}

fn print(what: &str, figures: &[f64]) {
    let figures: Vec<String> = figures.iter().map(|figure| format!("{figure:.0}")).collect();
    println!("| {what} | {} |", figures.join(" | "));
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, files, bytes, rounds] = &args[..] else { return Err("IMAGE FILES BYTES ROUNDS".into()) };
    let (files, bytes, rounds) = (files.parse()?, bytes.parse()?, rounds.parse::<usize>()?);
    println!("| in the tree | {} |", COLUMNS.join(" | "));
    let mut all: [Vec<Vec<f64>>; LENGTHS.len()] = Default::default();
    for round in 0..rounds {
        for (of, length) in all.iter_mut().zip(LENGTHS) {
            of.push(measure(Path::new(image), length, files, bytes)?);
            print(&format!("round {round}, {length}"), of.last().ok_or("just pushed")?);
        }
    }
    for (of, length) in all.iter().zip(LENGTHS) {
        let medians: Vec<f64> = (0..COLUMNS.len())
            .map(|column| {
                let mut figures: Vec<f64> = of.iter().map(|round| round[column]).collect();
                figures.sort_by(f64::total_cmp);
                figures[figures.len() / 2]
            })
            .collect();
        print(&format!("median, {length}"), &medians);
    }
    std::fs::remove_file(image)?;
    Ok(())
}
