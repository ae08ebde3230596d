//! An open file with a position.

use super::walk::{Found, walk};
use crate::api::FileSystem;
use crate::error::{Error, Result};
use crate::types::{Attr, Owner, SetAttr};
use kedge_base::Ino;
use kedge_format::FileKind;
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Options for opening a file, like those of std.
///
/// There is no append mode: each of two appending handles would have to know the end that the other
/// has reached. Use one shared handle, or keep the position in the program.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// No access is selected yet, and new files get mode 0644.
    pub const fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    /// Opens for reading.
    pub const fn read(mut self, yes: bool) -> OpenOptions {
        self.read = yes;
        self
    }

    /// Opens for writing.
    pub const fn write(mut self, yes: bool) -> OpenOptions {
        self.write = yes;
        self
    }

    /// Truncates the file. Needs `write`.
    pub const fn truncate(mut self, yes: bool) -> OpenOptions {
        self.truncate = yes;
        self
    }

    /// Creates the file if it does not exist. Needs `write`.
    pub const fn create(mut self, yes: bool) -> OpenOptions {
        self.create = yes;
        self
    }

    /// Creates the file. Fails if the name exists, even as a symbolic link. Needs `write`.
    pub const fn create_new(mut self, yes: bool) -> OpenOptions {
        self.create_new = yes;
        self
    }

    /// Permission bits of a new file.
    pub const fn mode(mut self, mode: u32) -> OpenOptions {
        self.mode = mode;
        self
    }

    fn check(&self) -> Result<()> {
        if !self.read && !self.write {
            return Err(Error::Invalid("a file is opened to be read, to be written, or both"));
        }
        if !self.write && (self.truncate || self.create || self.create_new) {
            return Err(Error::Invalid("to truncate or to create, a file must be opened to be written"));
        }
        Ok(())
    }

    pub(super) fn open(&self, fs: &FileSystem, start: Ino, path: &[u8], owner: Owner) -> Result<File> {
        self.check()?;
        loop {
            let found = walk(fs, start, path, !self.create_new)?;
            let attr = match &found.attr {
                Some(_) if self.create_new => return Err(Error::Exists),
                Some(attr) => *attr,
                None if self.create || self.create_new => {
                    match fs.create(found.dir, &found.name, self.mode, owner) {
                        // Another thread has created the file meanwhile.
                        Err(Error::Exists) if !self.create_new => continue,
                        made => made?,
                    }
                }
                None => return Err(Error::NotFound),
            };
            match attr.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Error::IsDirectory),
                _ => return Err(Error::Invalid("not a regular file")),
            }
            // From here on the file is pinned. If opening fails, the drop releases the pin.
            let file = File::new(fs, attr.ino, self)?;
            if !still_names(fs, &found, attr.ino)? {
                continue;
            }
            if self.truncate && found.attr.is_some() {
                fs.setattr(attr.ino, &SetAttr { size: Some(0), ..SetAttr::default() })?;
            }
            return Ok(file);
        }
    }
}

/// Whether the name still refers to the inode that was found under it.
fn still_names(fs: &FileSystem, found: &Found, ino: Ino) -> Result<bool> {
    match fs.lookup(found.dir, &found.name) {
        Ok(attr) => Ok(attr.ino == ino),
        Err(Error::NotFound) => Ok(false),
        Err(e) => Err(e),
    }
}

/// An open regular file. If its last name is removed, it exists until this handle is dropped.
///
/// Reads and writes through the std traits move a position, as with std::fs::File, also through
/// `&File`; [`File::read_at`] and [`File::write_at`] do not. Written data is durable after
/// [`File::sync_all`] or [`File::sync_data`]; dropping the file makes nothing durable.
pub struct File {
    fs: FileSystem,
    ino: Ino,
    readable: bool,
    writable: bool,
    /// Locked during a read or write that moves the position. The lock has no rank, since no other
    /// lock is held when it is taken.
    position: Mutex<u64>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("ino", &self.ino).finish_non_exhaustive()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.fs.unpin(self.ino, 1);
    }
}

impl File {
    fn new(fs: &FileSystem, ino: Ino, how: &OpenOptions) -> Result<File> {
        fs.pin(ino)?;
        let (readable, writable) = (how.read, how.write);
        Ok(File { fs: fs.clone(), ino, readable, writable, position: Mutex::new(0) })
    }

    /// The inode number, for operations of [`FileSystem`] that this interface lacks.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The attributes that stat(2) shows.
    pub fn metadata(&self) -> io::Result<Attr> {
        Ok(self.fs.getattr(self.ino)?)
    }

    /// Truncates the file, or extends it with zeros.
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        self.check_writable()?;
        self.fs.setattr(self.ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    }

    /// Reads at `offset`. Returns the number of bytes read, which is less than requested only at
    /// the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if !self.readable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file is not open to be read"));
        }
        Ok(self.fs.read(self.ino, offset, buf)?)
    }

    /// Writes at `offset`. Returns the number of bytes written, which is less than requested if the
    /// space ran out or the device failed after a part of the bytes.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.check_writable()?;
        Ok(self.fs.write(self.ino, offset, data)?)
    }

    /// Writes all bytes at `offset`, or fails. Bytes written before the error stay.
    pub fn write_all_at(&self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        while !data.is_empty() {
            let n = self.write_at(offset, data)?;
            offset += n as u64;
            data = &data[n..];
        }
        Ok(())
    }

    /// Makes data, attributes, the name and all directories above it durable.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(self.fs.fsync(self.ino, false)?)
    }

    /// Makes the data durable, and what is needed to read it.
    pub fn sync_data(&self) -> io::Result<()> {
        Ok(self.fs.fsync(self.ino, true)?)
    }

    pub(super) fn fs(&self) -> &FileSystem {
        &self.fs
    }

    pub(super) fn check_writable(&self) -> io::Result<()> {
        match self.writable {
            true => Ok(()),
            false => {
                Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file is not open to be written"))
            }
        }
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let n = self.read_at(*position, buf)?;
        *position += n as u64;
        Ok(n)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let n = self.write_at(*position, data)?;
        *position += n as u64;
        Ok(n)
    }

    /// Does nothing, because this handle buffers nothing. [`File::sync_all`] makes data durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.size.checked_add_signed(by),
        };
        // Offsets are signed in system calls.
        let Some(target) = target.filter(|offset| i64::try_from(*offset).is_ok()) else {
            let what = "a position before the beginning of the file, or beyond any";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        *position = target;
        Ok(target)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
