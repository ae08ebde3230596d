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

/// How a file is opened, as std's.
///
/// There is no append mode: two handles that append would each have to know where the other ends.
/// One handle that is shared, or a position that the program keeps, does it.
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
    /// Nothing is chosen yet, the mode of new files is 0644.
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

    /// To be read.
    pub const fn read(mut self, yes: bool) -> OpenOptions {
        self.read = yes;
        self
    }

    /// To be written.
    pub const fn write(mut self, yes: bool) -> OpenOptions {
        self.write = yes;
        self
    }

    /// What it holds goes. Needs write.
    pub const fn truncate(mut self, yes: bool) -> OpenOptions {
        self.truncate = yes;
        self
    }

    /// Made if it is not there. Needs write.
    pub const fn create(mut self, yes: bool) -> OpenOptions {
        self.create = yes;
        self
    }

    /// Made, and an error if the name is taken, be it by a symbolic link. Needs write.
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
                        // Another thread was faster.
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
            // Pinned from here on: dropped, it gives the pin back.
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

/// Whether the name that was found names the inode now.
fn still_names(fs: &FileSystem, found: &Found, ino: Ino) -> Result<bool> {
    match fs.lookup(found.dir, &found.name) {
        Ok(attr) => Ok(attr.ino == ino),
        Err(Error::NotFound) => Ok(false),
        Err(e) => Err(e),
    }
}

/// An open regular file. It stays though its last name is removed, until this is dropped.
///
/// Reading and writing move a position, as with std::fs::File, also through `&File`;
/// [`File::read_at`] and [`File::write_at`] do not. What was written is durable after
/// [`File::sync_all`] or [`File::sync_data`]; dropping the file makes nothing durable.
pub struct File {
    fs: FileSystem,
    ino: Ino,
    readable: bool,
    writable: bool,
    /// Held while a read or write that moves it runs. Without a rank: nothing is locked before it.
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

    /// The inode, for what [`FileSystem`] can do beyond this interface.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// What stat(2) shows.
    pub fn metadata(&self) -> io::Result<Attr> {
        Ok(self.fs.getattr(self.ino)?)
    }

    /// Truncates, or extends with zeros.
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        self.check_writable()?;
        self.fs.setattr(self.ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    }

    /// Bytes read at `offset`; fewer than asked only at the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if !self.readable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file is not open to be read"));
        }
        Ok(self.fs.read(self.ino, offset, buf)?)
    }

    /// Bytes written at `offset`; fewer than asked when space or device gave out on the way.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.check_writable()?;
        Ok(self.fs.write(self.ino, offset, data)?)
    }

    /// All bytes at `offset`, or an error. Bytes that were written before the error stay.
    pub fn write_all_at(&self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        while !data.is_empty() {
            let n = self.write_at(offset, data)?;
            offset += n as u64;
            data = &data[n..];
        }
        Ok(())
    }

    /// Durable when it returns: data, attributes, its name and all that leads to it.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(self.fs.fsync(self.ino, false)?)
    }

    /// Durable when it returns: data, and what is needed to read it.
    pub fn sync_data(&self) -> io::Result<()> {
        Ok(self.fs.fsync(self.ino, true)?)
    }

    fn check_writable(&self) -> io::Result<()> {
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

    /// Nothing is buffered here. [`File::sync_all`] makes durable.
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
