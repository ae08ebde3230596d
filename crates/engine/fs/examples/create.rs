//! Creates empty files as fast as one thread can, on an image file: `cargo run --release -p kedgefs
//! --example create -- IMAGE FILES`.

use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{Clock, FileSystem, FormatOptions, Ino, MountOptions, Owner, SystemClock};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let image = args.next().ok_or("which image file?")?;
    let files: u64 = args.next().map_or(Ok(200_000), |n| n.parse())?;
    let fsync = args.next().is_some();
    let _ = std::fs::remove_file(&image);
    let device = FileDevice::create(std::path::Path::new(&image), 4 << 30, OpenOptions::default())?;
    let clock = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default())?;
    let fs = FileSystem::open(device, clock.clone(), MountOptions::default())?;
    let started = clock.monotonic();
    let mut dir = Ino::ROOT;
    for i in 0..files {
        if i % 10_000 == 0 {
            dir = fs.mkdir(Ino::ROOT, format!("d{i}").as_bytes(), 0o755, Owner::default())?.ino;
        }
        let f = fs.create(dir, format!("file{i}").as_bytes(), 0o644, Owner::default())?;
        if fsync {
            fs.write(f.ino, 0, &[7; 4096])?;
            fs.fsync(f.ino, false)?;
        }
    }
    let took = clock.since(started).as_secs_f64();
    println!("{files} files in {took:.3} s: {:.0} files/s", files as f64 / took);
    fs.close()?;
    println!("closed after {:.3} s", clock.since(started).as_secs_f64());
    Ok(())
}
