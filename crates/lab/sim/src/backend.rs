//! The few calls that a workload needs, for a file system in this process or a mounted one.

use crate::ops::{OWNER, list, resolve, split, write_all};
use kedgefs::{Error, FileSystem, Ino, RenameMode};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Paths are relative to the root of the file system.
pub trait Backend: Send + Sync {
    fn mkdir(&self, path: &str) -> io::Result<()>;
    /// Makes an empty file; the name must be free.
    fn create(&self, path: &str) -> io::Result<()>;
    fn write_at(&self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn unlink(&self, path: &str) -> io::Result<()>;
    /// Syncs a file or a directory.
    fn fsync(&self, path: &str, datasync: bool) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
}

/// Calls through the library.
pub struct InProcess(pub FileSystem);

fn os(e: Error) -> io::Error {
    io::Error::from_raw_os_error(e.errno())
}

impl InProcess {
    fn parent<'a>(&self, path: &'a str) -> io::Result<(Ino, &'a [u8])> {
        let (dir, name) = split(path).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((resolve(&self.0, dir).map_err(os)?, name.as_bytes()))
    }
}

impl Backend for InProcess {
    fn mkdir(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.0.mkdir(dir, name, 0o755, OWNER).map_err(os).map(|_| ())
    }

    fn create(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.0.create(dir, name, 0o644, OWNER).map_err(os).map(|_| ())
    }

    fn write_at(&self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_all(&self.0, resolve(&self.0, path).map_err(os)?, offset, bytes).map_err(os)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((dir, name), (new_dir, new_name)) = (self.parent(from)?, self.parent(to)?);
        self.0.rename(dir, name, new_dir, new_name, RenameMode::Replace).map_err(os)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.0.unlink(dir, name).map_err(os)
    }

    fn fsync(&self, path: &str, datasync: bool) -> io::Result<()> {
        self.0.fsync(resolve(&self.0, path).map_err(os)?, datasync).map_err(os)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync().map_err(os)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let ino = resolve(&self.0, path).map_err(os)?;
        let mut bytes = vec![0; self.0.getattr(ino).map_err(os)?.size as usize];
        let read = self.0.read(ino, 0, &mut bytes).map_err(os)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let names = list(&self.0, resolve(&self.0, dir).map_err(os)?).map_err(os)?;
        Ok(names.into_iter().map(|(name, _)| name).collect())
    }
}

/// Calls through the kernel.
pub struct Mounted(pub PathBuf);

impl Mounted {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Backend for Mounted {
    fn mkdir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.path(path))
    }

    fn create(&self, path: &str) -> io::Result<()> {
        File::create_new(self.path(path)).map(|_| ())
    }

    fn write_at(&self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path(path))?.write_all_at(bytes, offset)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.path(path))
    }

    fn fsync(&self, path: &str, datasync: bool) -> io::Result<()> {
        let file = File::open(self.path(path))?;
        if datasync { file.sync_data() } else { file.sync_all() }
    }

    /// The standard library has no safe syncfs(2). An fsync of the root directory promises less,
    /// and a workload must not rely on more.
    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(path))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        fs::read_dir(self.path(dir))?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect()
    }
}
