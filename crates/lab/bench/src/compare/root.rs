//! A working directory: on a mount, accessed through std::fs, or in an image, accessed through the
//! library.

use anyhow::{Context, Result};
use kedgefs::{Dir, SetAttr, SetTime, Timespec};
use std::fs::{File, FileTimes, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

#[derive(Clone)]
pub enum Root {
    Host(PathBuf),
    Image(Dir),
}

/// An open file.
pub enum Handle {
    Host(File),
    Image(kedgefs::File),
}

/// The mode that `Root::describe` sets for each file.
const MODE: u32 = 0o640;
const MTIME: u64 = 1_700_000_000;

impl Root {
    /// Opens a subdirectory.
    pub fn below(&self, name: &str) -> Result<Root> {
        Ok(match self {
            Root::Host(dir) => Root::Host(dir.join(name)),
            Root::Image(dir) => Root::Image(dir.dir(name).with_context(|| format!("open {name}"))?),
        })
    }

    pub fn make_dir(&self, name: &str) -> Result<Root> {
        match self {
            Root::Host(dir) => std::fs::create_dir(dir.join(name)),
            Root::Image(dir) => dir.create_dir(name),
        }
        .with_context(|| format!("make the directory {name}"))?;
        self.below(name)
    }

    /// Creates a file.
    pub fn create(&self, name: &str) -> Result<Handle> {
        let how = kedgefs::OpenOptions::new().read(true).write(true).create_new(true);
        let made = match self {
            Root::Host(dir) => {
                let how = File::options().read(true).write(true).create_new(true).to_owned();
                how.open(dir.join(name)).map(Handle::Host)
            }
            Root::Image(dir) => dir.open_with(name, &how).map(Handle::Image),
        };
        made.with_context(|| format!("create {name}"))
    }

    /// Opens an existing file.
    pub fn open(&self, name: &str) -> Result<Handle> {
        let how = kedgefs::OpenOptions::new().read(true).write(true);
        let opened = match self {
            Root::Host(dir) => File::options().read(true).write(true).open(dir.join(name)).map(Handle::Host),
            Root::Image(dir) => dir.open_with(name, &how).map(Handle::Image),
        };
        opened.with_context(|| format!("open {name}"))
    }

    pub fn has_dir(&self, name: &str) -> Result<bool> {
        match self {
            Root::Host(dir) => dir.join(name).try_exists(),
            Root::Image(dir) => match dir.dir(name) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
                dir => dir.map(|_| true),
            },
        }
        .with_context(|| format!("look for {name}"))
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        match self {
            Root::Host(dir) => std::fs::rename(dir.join(from), dir.join(to)),
            Root::Image(dir) => dir.rename(from, to),
        }
        .with_context(|| format!("rename {from}"))
    }

    /// Makes the entries of the directory durable.
    pub fn sync(&self) -> Result<()> {
        match self {
            Root::Host(dir) => File::open(dir).and_then(|dir| dir.sync_all()),
            Root::Image(dir) => dir.sync_all(),
        }
        .context("sync a directory")
    }

    /// Removes a directory and its content. It need not exist.
    pub fn remove_all(&self, name: &str) -> Result<()> {
        let removed = match self {
            Root::Host(dir) => std::fs::remove_dir_all(dir.join(name)),
            Root::Image(dir) => dir.remove_dir_all(name),
        };
        match removed {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.with_context(|| format!("remove {name}")),
        }
    }

    /// Sets mode and time, as a program that restores an archive does.
    pub fn describe(&self, name: &str) -> Result<()> {
        match self {
            Root::Host(dir) => {
                let path = dir.join(name);
                std::fs::set_permissions(&path, Permissions::from_mode(MODE)).and_then(|()| {
                    let time = UNIX_EPOCH + Duration::from_secs(MTIME);
                    File::open(&path)?.set_times(FileTimes::new().set_modified(time))
                })
            }
            Root::Image(dir) => {
                let mtime = Some(SetTime::At(Timespec { sec: MTIME as i64, nsec: 0 }));
                dir.set_attr(name, &SetAttr { mode: Some(MODE), mtime, ..SetAttr::default() }).map(drop)
            }
        }
        .with_context(|| format!("describe {name}"))
    }

    /// Reads the names and attributes of everything in the directory, and returns the number of
    /// entries.
    pub fn walk(&self) -> Result<u64> {
        let mut seen = 0;
        let mut left = vec![self.clone()];
        while let Some(here) = left.pop() {
            match &here {
                Root::Host(dir) => {
                    for entry in std::fs::read_dir(dir)? {
                        let entry = entry?;
                        seen += 1;
                        if entry.metadata()?.is_dir() {
                            left.push(Root::Host(entry.path()));
                        }
                    }
                }
                Root::Image(dir) => {
                    for entry in dir.read_dir(".")? {
                        let entry = entry?;
                        seen += 1;
                        if dir.file_system().getattr(entry.ino)?.kind == kedgefs::FileKind::Directory {
                            left.push(Root::Image(dir.dir(&entry.name)?));
                        }
                    }
                }
            }
        }
        Ok(seen)
    }
}

impl Handle {
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Handle::Host(file) => file.write_all_at(bytes, at),
            Handle::Image(file) => file.write_all_at(at, bytes),
        }
        .context("write")
    }

    /// Writes bytes at the file's position, which then moves past them.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Handle::Host(file) => file.write_all(bytes),
            Handle::Image(file) => file.write_all(bytes),
        }
        .context("write")
    }

    pub fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        match self {
            Handle::Host(file) => file.read_at(buf, at),
            Handle::Image(file) => file.read_at(at, buf),
        }
        .context("read")
    }

    pub fn sync(&self) -> Result<()> {
        match self {
            Handle::Host(file) => file.sync_all(),
            Handle::Image(file) => file.sync_all(),
        }
        .context("fsync")
    }

    pub fn sync_data(&self) -> Result<()> {
        match self {
            Handle::Host(file) => file.sync_data(),
            Handle::Image(file) => file.sync_data(),
        }
        .context("fdatasync")
    }
}
