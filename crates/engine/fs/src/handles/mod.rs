//! Paths and open files modelled on std::fs, for programs that link the library: [`Dir`], [`File`].
//! They are built on the public interface of [`FileSystem`]; atomic writes also use staged bytes
//! (`data::atomic`).
//!
//! # Why an open file stays
//! An open file has a pin. Between the lookup of the name and the pin another thread may remove the
//! file. So the name is looked up again once the pin exists. If it still refers to the inode, a
//! thread that removes the name later finds the pin. Inode numbers are never reused.

mod atomic;
mod dir;
mod file;
mod walk;

pub use atomic::AtomicWrite;
pub use dir::{Dir, Entry, ReadDir};
pub use file::{File, OpenOptions};

use crate::api::FileSystem;
use crate::error::Result;
use crate::policy::options::{FormatOptions, MountOptions};
use crate::types::Owner;
use kedge_base::{Ino, SystemClock};
use kedge_device::{Device, FileDevice, MemDevice};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

impl FileSystem {
    /// Returns the root directory, where absolute paths start. New files belong to user and group 0
    /// unless [`Dir::with_owner`] sets another owner.
    pub fn root(&self) -> Dir {
        Dir::new(self.clone(), Ino::ROOT)
    }

    /// Creates an image file of `size` bytes (at least 16 MiB) with a file system that has default
    /// options, and opens it. Its root directory belongs to the owner of the image file. The path
    /// must not exist. After an error no file is left there.
    pub fn create_image(path: impl AsRef<Path>, size: u64) -> std::io::Result<FileSystem> {
        let path = path.as_ref();
        drop(std::fs::File::create_new(path)?);
        create_in(path, size).inspect_err(|_| {
            // The error of the creation is returned, not that of the removal.
            let _ = std::fs::remove_file(path);
        })
    }

    /// Opens an image file with default options. Recovers it if it was not closed.
    pub fn open_image(path: impl AsRef<Path>) -> std::io::Result<FileSystem> {
        let device = FileDevice::open(path, kedge_device::OpenOptions::default())
            .map_err(crate::error::Error::from)?;
        Ok(FileSystem::open(device, Arc::new(SystemClock::default()), MountOptions::default())?)
    }

    /// Makes a file system of `size` bytes (at least 16 MiB) in memory, for tests. The memory is
    /// freed when the last clone is dropped.
    pub fn in_memory(size: u64) -> std::io::Result<FileSystem> {
        Ok(format_and_open(Arc::new(MemDevice::new(size)), Owner::default())?)
    }
}

fn create_in(path: &Path, size: u64) -> std::io::Result<FileSystem> {
    let device = FileDevice::create(path, size, kedge_device::OpenOptions::default())
        .map_err(crate::error::Error::from)?;
    // The owner of the image file also owns the root directory, since otherwise the owner could not
    // write to a mount of the image.
    let file = std::fs::metadata(path)?;
    Ok(format_and_open(device, Owner { uid: file.uid(), gid: file.gid() })?)
}

fn format_and_open(device: Arc<dyn Device>, owner: Owner) -> Result<FileSystem> {
    let clock = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions { owner, ..Default::default() })?;
    FileSystem::open(device, clock, MountOptions::default())
}
