//! Opens files below a directory, whatever their names are and even if another process changes the
//! directory meanwhile.
//!
//! A path is made of plain names, each of which except the last must be a directory: neither `..`
//! nor a symlink nor a magic link of /proc leads anywhere else. `openat2` resolves such a path in
//! one call. Without `openat2` (an old kernel, or a seccomp filter that refuses it) the path is
//! opened name by name with O_NOFOLLOW, which with plain names cannot leave the directory either.

use crate::vet::is_plain_name;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory from which no path leads outside.
pub(crate) struct Beneath {
    root: OwnedFd,
}

impl Beneath {
    /// Opens the root, whose own path the caller must know to be safe.
    pub fn open(dir: &Path) -> io::Result<Beneath> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Beneath { root: rustix::fs::open(dir, flags, Mode::empty())? })
    }

    /// Opens the directory at a path below the root; the root's path is empty.
    pub fn dir(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if path.is_empty() {
            return self.root.try_clone();
        }
        if !path.split(|b| *b == b'/').all(is_plain_name) {
            return Err(not_plain());
        }
        match self.at_once(path) {
            Err(Errno::NOSYS | Errno::PERM) => self.name_by_name(path),
            opened => Ok(opened?),
        }
    }

    fn at_once(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, OsStr::from_bytes(path), DIR, Mode::empty(), beneath)
    }

    fn name_by_name(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let open = |dir: BorrowedFd<'_>, name: &[u8]| match is_plain_name(name) {
            true => Ok(openat(dir, OsStr::from_bytes(name), DIR, Mode::empty())?),
            false => Err(not_plain()),
        };
        let mut names = path.split(|b| *b == b'/');
        let first = names.next().unwrap_or_default();
        names.try_fold(open(self.root.as_fd(), first)?, |dir, name| open(dir.as_fd(), name))
    }
}

/// Splits a path into the path of the directory and the last name.
pub(crate) fn last(path: &[u8]) -> io::Result<(&[u8], &OsStr)> {
    let (dir, name) = match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    };
    if is_plain_name(name) { Ok((dir, OsStr::from_bytes(name))) } else { Err(not_plain()) }
}

fn not_plain() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a name in it is none that a directory can hold")
}

#[cfg(test)]
#[path = "beneath_tests.rs"]
mod tests;
