//! All that the command line asks of the engine, the mount and the checker.

use crate::options::MountWords;
use anyhow::{Context, Result, bail};
use kedge_base::SystemClock;
use kedge_device::Device;
use kedgefs::{FileSystem, FormatOptions, MountOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Without privilege the kernel passes no sync(2) on to us: what the timer has not made durable is all that a crash
/// after `sync` can cost, so it runs more often.
const COMMIT_ROOTLESS: Duration = Duration::from_secs(1);

/// Makes an image on an existing file or device.
pub fn format(path: &Path, options: &FormatOptions) -> Result<()> {
    let device = open_device(path, false)?;
    format_device(&device, path, options)
}

/// Makes a file of `size` bytes and an image in it. The path must not exist.
pub fn create(path: &Path, size: u64, options: &FormatOptions) -> Result<()> {
    let device = create_device(path, size)?;
    format_device(&device, path, options)
}

fn format_device(device: &Arc<dyn Device>, path: &Path, options: &FormatOptions) -> Result<()> {
    FileSystem::format(device.as_ref(), options).with_context(|| format!("format {}", path.display()))
}

/// Opens the file system of an image as the mount options say.
pub fn open(path: &Path, words: &MountWords, cache_size: Option<u64>) -> Result<FileSystem> {
    let device = open_device(path, words.read_only)?;
    let mut options = MountOptions { read_only: words.read_only, ..MountOptions::default() };
    if let Some(commit) = words.commit {
        options.commit = commit;
    } else if !privileged() {
        options.commit = COMMIT_ROOTLESS;
    }
    if let Some(bytes) = cache_size.or(words.cache_size) {
        options.cache_size = bytes;
    }
    if let Some(percent) = words.async_checkpoint {
        options.async_checkpoint = percent;
    }
    FileSystem::open(device, Arc::new(SystemClock::default()), options)
        .with_context(|| format!("open {}", path.display()))
}

/// Whether the kernel lets us mount by ourselves.
pub fn privileged() -> bool {
    rustix::process::geteuid().is_root()
}

// integration: kedge_device::FileDevice::open(path, OpenOptions { read_only, lock: true, direct: true, io_uring: true })
fn open_device(path: &Path, _read_only: bool) -> Result<Arc<dyn Device>> {
    bail!("open {}: the file device is not part of this build", path.display())
}

// integration: kedge_device::FileDevice::create(path, size)
fn create_device(path: &Path, _size: u64) -> Result<Arc<dyn Device>> {
    bail!("create {}: the file device is not part of this build", path.display())
}

// integration: kedge_fuse::MountedSession
/// A live mount.
pub struct Session {}

impl Session {
    // integration: session.run(); returns after the unmount
    /// Serves until the mount is gone.
    pub fn run(&self) -> Result<()> {
        Ok(())
    }

    // integration: session.request_unmount()
    /// Asks for the end of [`Session::run`].
    pub fn request_unmount(&self) -> Result<()> {
        Ok(())
    }
}

// integration: kedge_fuse::mount(fs, dir, options with image as the source name, words.{read_only, allow_other, workers,
// writeback_cache, kernel})
/// Attaches an open file system to a directory.
pub fn mount(_fs: FileSystem, _image: &Path, dir: &Path, _words: &MountWords) -> Result<Arc<Session>> {
    bail!("mount on {}: the FUSE transport is not part of this build", dir.display())
}

// integration: kedge_fuse::unmount(dir, lazy)
/// Detaches a mount; `lazy`: even if it is in use or dead.
pub fn unmount(dir: &Path, _lazy: bool) -> Result<()> {
    bail!("unmount {}: the FUSE transport is not part of this build", dir.display())
}

/// What the checker found.
pub struct Checked {
    /// For people.
    pub text: String,
    pub json: serde_json::Value,
    /// As fsck(8) wants it.
    pub exit_code: u8,
}

// integration: kedge_fsck::check(open_device(path, true)?, &CheckOptions::default()): text is the report's Display,
// json its Serialize, exit_code its exit_code()
/// Judges an image without writing to it.
pub fn check(path: &Path) -> Result<Checked> {
    let _ = open_device(path, true)?;
    bail!("check {}: the checker is not part of this build", path.display())
}
