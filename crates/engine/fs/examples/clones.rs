//! What clones cost, on an image file: `cargo run --release -p kedgefs --example clones -- IMAGE
//! MIB`.
//!
//! Clones a file of MIB MiB. Prints the time and the bytes written of the clone and of its fsync.
//! Also prints the time of an overwrite with fdatasync in three cases: before the clone; while the
//! block is shared, so that the overwrite takes a new block; and when the block is the file's own
//! again.

use kedge_device::{Device, FileDevice, OpenOptions};
use kedgefs::{Clock, FileSystem, FormatOptions, Ino, MountOptions, Owner, SystemClock};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 2000;

/// Returns the mean time of an overwrite of one block with fdatasync. Successive blocks are far
/// apart.
fn overwrites(fs: &FileSystem, clock: &SystemClock, file: Ino, size: u64) -> Outcome<Duration> {
    let started = clock.monotonic();
    for i in 0..BLOCKS {
        fs.write(file, (i * 7919 % (size / 4096)) * 4096, &[i as u8; 4096])?;
        fs.fsync(file, true)?;
    }
    Ok(clock.since(started) / BLOCKS as u32)
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let image = args.next().ok_or("which image file?")?;
    let size = args.next().map_or(Ok(1024), |n| n.parse::<u64>())? * MIB;
    let _ = std::fs::remove_file(&image);
    let device =
        FileDevice::create(std::path::Path::new(&image), 2 * size + (1 << 30), OpenOptions::default())?;
    let clock = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default())?;
    let fs = FileSystem::open(device.clone(), clock.clone(), MountOptions::default())?;
    let source = fs.create(Ino::ROOT, b"source", 0o644, Owner::default())?.ino;
    for at in (0..size).step_by(MIB as usize) {
        fs.write(source, at, &vec![7; MIB as usize])?;
    }
    fs.sync()?;
    fs.checkpoint()?;
    println!("overwrite+fdatasync before a clone: {:?}", overwrites(&fs, &clock, source, size)?);
    for i in 0..3 {
        fs.sync()?;
        let target = fs.create(Ino::ROOT, format!("clone{i}").as_bytes(), 0o644, Owner::default())?.ino;
        let (started, before) = (clock.monotonic(), device.stats().write_bytes.get());
        fs.clone_file(source, target)?;
        let cloned = clock.since(started);
        fs.fsync(target, false)?;
        let bytes = device.stats().write_bytes.get() - before;
        println!("clone {i}: {cloned:?}, with fsync {:?}, {bytes} bytes written", clock.since(started));
    }
    println!("overwrite+fdatasync of shared blocks: {:?}", overwrites(&fs, &clock, source, size)?);
    println!("of the same blocks again: {:?}", overwrites(&fs, &clock, source, size)?);
    fs.close()?;
    Ok(())
}
