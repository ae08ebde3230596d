//! Libraries with either way to track dirty inodes, for the experiments with syncs.

use super::Run;
use crate::counters::Counters;
use crate::library::{Library, Work, make_files};
use anyhow::{Result, ensure};
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{DirtyTracking, FileSystem, FormatOptions, Ino, MountOptions, Owner};
use std::path::PathBuf;

const FILL_THREADS: usize = 4;
const FILE: [u8; 4096] = [0x6b; 4096];
/// Bytes of cache: enough for the largest number of inodes that the library caches.
const CACHE: u64 = 8 << 30;

/// How dirty inodes are tracked, and whether A's cache is full.
pub(super) const SIDES: [(&str, DirtyTracking, bool); 4] = [
    ("shared, A empty", DirtyTracking::Shared, false),
    ("shared, A full", DirtyTracking::Shared, true),
    ("per_sb, A empty", DirtyTracking::PerSb, false),
    ("per_sb, A full", DirtyTracking::PerSb, true),
];

/// A library on an image of its own.
pub(super) struct Made {
    pub library: Library,
    image: PathBuf,
}

impl Made {
    pub(super) fn new(run: &Run<'_>, name: &str, dirty_tracking: DirtyTracking) -> Result<Made> {
        let image = run.place.shell.dir.join(name);
        let device = FileDevice::create(&image, run.settings.size, OpenOptions::default())?;
        let options = MountOptions { dirty_tracking, cache_size: CACHE, ..MountOptions::default() };
        Ok(Made { library: Library::on(device, &FormatOptions::default(), options)?, image })
    }

    /// Drops the library without closing it: closing would write contents that are not needed.
    pub(super) fn end(self) -> Result<()> {
        drop(self.library);
        Ok(std::fs::remove_file(self.image)?)
    }
}

/// Fills the cache of A with `count` clean inodes. Returns how many are cached.
pub(super) fn fill(a: &Library, count: u64) -> Result<f64> {
    if count > 0 {
        make_files(a, Work::Empty, FILL_THREADS, count / FILL_THREADS as u64)?;
    }
    a.sync()?;
    // The checkpoint runs now, so that none runs in the background during the storm.
    a.fs().checkpoint()?;
    let counters = Counters::of(a.fs())?;
    let cached = counters.get("cache/inodes")?;
    ensure!(cached >= count as f64 * 0.95, "only {cached} of {count} inodes stayed in the cache");
    ensure!(counters.get("cache/dirty_inodes")? == 0.0, "A is not clean");
    Ok(cached)
}

pub(super) fn write_small(fs: &FileSystem, dir: Ino, name: &str) -> Result<()> {
    let file = fs.create(dir, name.as_bytes(), 0o644, Owner::default())?.ino;
    ensure!(fs.write(file, 0, &FILE)? == FILE.len(), "a write was cut short");
    Ok(())
}
