//! The directory of an experiment, and the properties of the machine.

use crate::Settings;
use crate::shell::Shell;
use anyhow::{Context, Result, anyhow};
use kedge_base::{BLOCK_SIZE, Clock, IoBuf, SystemClock};
use kedge_device::{Device, FileDevice, OpenOptions};
use serde::Serialize;
use std::path::Path;
use tempfile::TempDir;

/// The experiment's own directory, which is removed on drop. Mounts inside it must be undone
/// before, so values that hold mounts borrow this one.
pub struct Place {
    pub shell: Shell,
    pub root: bool,
    /// Kind of the file system that contains the directory.
    pub host: String,
    _dir: TempDir,
}

impl Place {
    pub fn new(settings: &Settings) -> Result<Place> {
        let parent = settings.dir.as_deref().unwrap_or(Path::new("."));
        let dir = tempfile::Builder::new()
            .prefix("kedge-bench.")
            .tempdir_in(parent)
            .with_context(|| format!("make a directory in {}", parent.display()))?;
        let path = dir.path().canonicalize()?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read the list of mounts")?;
        let status = std::fs::read_to_string("/proc/self/status").context("read our own status")?;
        Ok(Place {
            shell: Shell::new(&path, &settings.kedge, &settings.interrupt)
                .with_before(settings.before.clone()),
            root: effective_uid(&status) == Some(0),
            host: kind_of_mount(&mounts, &path).unwrap_or_else(|| "unknown".into()),
            _dir: dir,
        })
    }

    /// Whether the directory is on tmpfs, where a durable write waits for no disk.
    pub fn in_memory(&self) -> bool {
        matches!(self.host.as_str(), "tmpfs" | "ramfs")
    }

    /// The median time of a durable write of one block, in microseconds. No fsync is faster.
    pub fn durable_write(&self) -> Result<f64> {
        const BLOCKS: usize = 256;
        let path = self.shell.dir.join("probe");
        let block = IoBuf::zeroed(1);
        let device = FileDevice::create(&path, (BLOCKS * BLOCK_SIZE) as u64, OpenOptions::default())?;
        // The blocks are written before, so that the host allocates nothing during the measurement.
        device.write(0, &IoBuf::zeroed(BLOCKS), false)?;
        device.flush()?;
        let clock = SystemClock::default();
        let mut times = crate::sample::Sample::default();
        for i in 0..BLOCKS {
            let started = clock.monotonic();
            device.write((i * BLOCK_SIZE) as u64, &block, true)?;
            times.push(clock.since(started).as_nanos() as f64 / 1e3);
        }
        drop(device);
        std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        Ok(times.median())
    }
}

/// The properties of the machine on which figures depend.
#[derive(Serialize)]
pub struct Machine {
    pub cores: usize,
    pub memory_mib: u64,
    pub kernel: String,
    /// Kind of the file system that holds the images.
    pub host: String,
    /// Average number of runnable processes in the minute before the experiment.
    pub load: f64,
    /// Microseconds of a durable write, before and after the experiment.
    pub durable_write: Vec<f64>,
}

impl Machine {
    pub fn look(place: &Place) -> Result<Machine> {
        let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("read {path}"));
        let load = read("/proc/loadavg")?;
        Ok(Machine {
            cores: std::thread::available_parallelism()?.get(),
            memory_mib: memory_mib(&read("/proc/meminfo")?)
                .ok_or_else(|| anyhow!("no size of the memory"))?,
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            host: place.host.clone(),
            load: load.split(' ').next().and_then(|w| w.parse().ok()).unwrap_or(f64::NAN),
            durable_write: vec![place.durable_write()?],
        })
    }
}

fn memory_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? >> 10)
}

pub(crate) fn effective_uid(status: &str) -> Option<u32> {
    status.lines().find_map(|l| l.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// The kind of the file system that contains `path`: that of the longest mount point above `path`,
/// or the last such mount point if several are equal.
fn kind_of_mount(mountinfo: &str, path: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        Some((Path::new(place.split(' ').nth(4)?), kind.split(' ').next()?))
    });
    let (_, kind) =
        mounts.filter(|(dir, _)| path.starts_with(dir)).max_by_key(|(dir, _)| dir.components().count())?;
    Some(kind.to_owned())
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
