//! Crashes on purpose: what does a program that saves a document find after a power failure? `cargo
//! run -p kedgefs --example crash`.
//!
//! The simulated disk separates what was written from what is durable. [`SimDevice::crash`] returns
//! what a power failure would leave now: everything durable, and a random part of the rest.

use kedgefs::device::{MemDevice, sim::SimDevice};
use kedgefs::{Dir, FileSystem, FormatOptions, MountOptions, SystemClock};
use std::io::{self, Write};
use std::sync::Arc;

/// Simulated power failures for each call of `moment`.
const FAILURES: u64 = 20;

type Save = fn(&Dir, &[u8], &mut dyn FnMut()) -> io::Result<()>;

/// Saves a document correctly. Calls `moment` wherever the power may fail.
fn careful(dir: &Dir, text: &[u8], moment: &mut dyn FnMut()) -> io::Result<()> {
    let mut file = dir.create("document.new")?;
    file.write_all(text)?;
    moment();
    file.sync_all()?;
    moment();
    dir.rename("document.new", "document")?;
    moment();
    dir.sync_all()?;
    moment();
    Ok(())
}

/// Saves a document without the fsync of the new file: its name may become durable before its
/// contents.
fn careless(dir: &Dir, text: &[u8], moment: &mut dyn FnMut()) -> io::Result<()> {
    let mut file = dir.create("document.new")?;
    file.write_all(text)?;
    moment();
    dir.rename("document.new", "document")?;
    dir.sync_all()?;
    moment();
    Ok(())
}

fn open(disk: Arc<dyn kedgefs::device::Device>) -> kedgefs::Result<FileSystem> {
    FileSystem::open(disk, Arc::new(SystemClock::default()), MountOptions::default())
}

/// Saves a second version over a first one. Returns the number of power failures after which
/// neither version is there.
pub fn losses(save: Save) -> io::Result<u64> {
    let memory = Arc::new(MemDevice::new(32 << 20));
    FileSystem::format(memory.clone(), Arc::new(SystemClock::default()), &FormatOptions::default())?;
    let disk = Arc::new(SimDevice::new(memory.fork()));
    let fs = open(disk.clone())?;
    let (old, new) = (vec![b'1'; 100_000], vec![b'2'; 100_000]);
    careful(&fs.root(), &old, &mut || ())?;

    let mut left = Vec::new();
    save(&fs.root(), &new, &mut || left.extend((0..FAILURES).map(|seed| disk.crash(seed))))?;
    drop(fs);

    let mut lost = 0;
    for disk in left {
        // Whatever the power failure leaves, the image opens without repair.
        let found = open(Arc::new(disk))?.root().read("document")?;
        lost += u64::from(found != old && found != new);
    }
    Ok(lost)
}

pub fn main() -> io::Result<()> {
    let (careful, careless) = (losses(careful)?, losses(careless)?);
    println!("careful: {careful} losses, careless: {careless}");
    assert_eq!(careful, 0);
    assert!(careless > 0, "the missing fsync was not noticed");
    Ok(())
}
