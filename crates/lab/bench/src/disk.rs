//! A loop device, and the kernel's counts for a block device.
//!
//! The requests of a mounted image file bypass the block layer, since the serving process writes
//! the file itself. On a loop device requests pass through the block layer, and the kernel counts
//! them.

use crate::mounts::make_file;
use crate::shell::{Shell, find};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// The unit of the kernel's counts, whatever the device's sector size.
const SECTOR: u64 = 512;

/// An image and its loop device. Drop removes both.
pub struct LoopDevice<'a> {
    shell: &'a Shell,
    image: PathBuf,
    /// The path, such as `/dev/loop7`.
    pub path: String,
}

impl<'a> LoopDevice<'a> {
    /// Why no loop device can be made here.
    pub fn missing(root: bool) -> Option<&'static str> {
        match () {
            () if !root => Some("it takes root to make one"),
            () if find("losetup").is_none() => Some("losetup is not installed: Debian package mount"),
            () if !Path::new("/dev/loop-control").exists() => Some("there is no /dev/loop-control"),
            () => None,
        }
    }

    /// Makes a loop device on a new image `NAME.img`. It bypasses the host's cache, as KedgeFS does
    /// with an image file.
    pub fn make(shell: &'a Shell, name: &str, size: u64) -> Result<LoopDevice<'a>> {
        // The value exists before the device is attached, so that drop removes a half-made device,
        // too.
        let mut made =
            LoopDevice { shell, image: shell.dir.join(format!("{name}.img")), path: String::new() };
        shell.run(&make_file(name, size, false))?;
        let path = shell.run(&format!("losetup --find --show --direct-io=on {name}.img"))?.trim().to_owned();
        ensure!(path.starts_with("/dev/loop"), "losetup answered '{path}'");
        made.path = path;
        Ok(made)
    }

    pub fn counts(&self) -> Result<DiskCounts> {
        let name = self.path.trim_start_matches("/dev/");
        let stat = format!("/sys/block/{name}/stat");
        let text = std::fs::read_to_string(&stat).with_context(|| format!("read {stat}"))?;
        DiskCounts::parse(&text).with_context(|| format!("{stat}: '{}'", text.trim()))
    }
}

impl Drop for LoopDevice<'_> {
    fn drop(&mut self) {
        if !self.path.is_empty()
            && let Err(e) = self.shell.undo(&format!("losetup --detach {}", self.path))
        {
            eprintln!("kedge-lab: {e:#}");
        }
        // The image may not exist. In any case it is removed with the experiment's directory.
        let _ = std::fs::remove_file(&self.image);
    }
}

/// Counts of the requests that the device received, after merging by the kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DiskCounts {
    /// Number of writes, including flushes without data.
    pub writes: u64,
    /// Number of requests that were merged into others.
    pub merges: u64,
    pub bytes: u64,
    pub flushes: u64,
}

impl DiskCounts {
    /// Parses `/sys/block/NAME/stat`, whose fields `Documentation/block/stat.rst` names.
    fn parse(text: &str) -> Option<DiskCounts> {
        let fields: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        let fields = fields?;
        let at = |i: usize| fields.get(i).copied();
        Some(DiskCounts {
            writes: at(4)?,
            merges: at(5)?,
            bytes: at(6)?.checked_mul(SECTOR)?,
            flushes: at(15)?,
        })
    }

    pub fn since(self, earlier: DiskCounts) -> DiskCounts {
        DiskCounts {
            writes: self.writes.saturating_sub(earlier.writes),
            merges: self.merges.saturating_sub(earlier.merges),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
