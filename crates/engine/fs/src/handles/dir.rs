//! A directory handle, and path lookup from it.

use super::file::{File, OpenOptions};
use super::walk::{Found, walk};
use crate::api::FileSystem;
use crate::error::{Error, Result};
use crate::types::{Attr, Owner, RenameMode, SetAttr};
use kedge_base::Ino;
use kedge_format::FileKind;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The most entries that are read in one batch.
const BATCH: usize = 256;

/// A directory of the image, where relative paths start. [`FileSystem::root`] is the first one.
///
/// Paths are resolved as in the kernel, including symbolic links. An absolute path, or a link with
/// an absolute target, starts at the root of the image. A `Dir` does not confine paths: `..` may
/// lead out of it, but never out of the image.
///
/// Errors are those of std::io. The [`Error`] of this crate is available as
/// [`std::io::Error::get_ref`].
#[derive(Clone)]
pub struct Dir {
    fs: FileSystem,
    ino: Ino,
    owner: Owner,
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dir").field("ino", &self.ino).finish_non_exhaustive()
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Removes slashes at the end of a path: `DIR/` may name a directory that is to be made or removed.
fn without_slash(path: &Path) -> &[u8] {
    let mut path = bytes(path);
    while path.len() > 1 && path.ends_with(b"/") {
        path = &path[..path.len() - 1];
    }
    path
}

impl Dir {
    pub(super) fn new(fs: FileSystem, ino: Ino) -> Dir {
        Dir { fs, ino, owner: Owner::default() }
    }

    /// Returns the same directory with an owner for new entries.
    pub fn with_owner(self, owner: Owner) -> Dir {
        Dir { owner, ..self }
    }

    /// The inode number, for operations of [`FileSystem`] that this interface lacks.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The file system of the directory.
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    fn find(&self, path: &[u8], follow: bool) -> Result<Found> {
        walk(&self.fs, self.ino, path, follow)
    }

    /// Returns the inode that a path names. Follows symbolic links.
    pub fn resolve(&self, path: impl AsRef<Path>) -> io::Result<Ino> {
        Ok(self.find(bytes(path.as_ref()), true)?.attr()?.ino)
    }

    /// Opens the directory that a path names.
    pub fn dir(&self, path: impl AsRef<Path>) -> io::Result<Dir> {
        let attr = self.find(bytes(path.as_ref()), true)?.attr()?;
        match attr.kind {
            FileKind::Directory => Ok(Dir { ino: attr.ino, ..self.clone() }),
            _ => Err(Error::NotDirectory.into()),
        }
    }

    /// Opens a file for reading.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_with(path, &OpenOptions::new().read(true))
    }

    /// Opens a file for writing. Creates it if it does not exist, and truncates it.
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_with(path, &OpenOptions::new().write(true).create(true).truncate(true))
    }

    /// Opens a file with options.
    pub fn open_with(&self, path: impl AsRef<Path>, how: &OpenOptions) -> io::Result<File> {
        Ok(how.open(&self.fs, self.ino, bytes(path.as_ref()), self.owner)?)
    }

    /// Reads a whole file.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        self.open(path)?.read_to_end(&mut all)?;
        Ok(all)
    }

    /// Reads a whole file, which must be UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut all = String::new();
        self.open(path)?.read_to_string(&mut all)?;
        Ok(all)
    }

    /// Writes a whole file, as std::fs::write does. The file is durable only with the next sync;
    /// until then a crash may leave it empty or absent. To replace a file so that a crash leaves
    /// the old or the new version: write another file, [`File::sync_all`], [`Dir::rename`].
    pub fn write(&self, path: impl AsRef<Path>, data: impl AsRef<[u8]>) -> io::Result<()> {
        self.create(path)?.write_all(data.as_ref())
    }

    /// The attributes that stat(2) shows.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Attr> {
        Ok(self.find(bytes(path.as_ref()), true)?.attr()?)
    }

    /// The attributes that lstat(2) shows: those of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Attr> {
        Ok(self.find(bytes(path.as_ref()), false)?.attr()?)
    }

    /// Whether the path names an inode. Fails if that cannot be determined.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        match self.find(bytes(path.as_ref()), true) {
            Ok(found) => Ok(found.attr.is_some()),
            Err(Error::NotFound) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Changes attributes. Follows a symbolic link.
    pub fn set_attr(&self, path: impl AsRef<Path>, set: &SetAttr) -> io::Result<Attr> {
        Ok(self.fs.setattr(self.resolve(path)?, set)?)
    }

    /// Returns the entries of a directory, without `.` and `..`, in no particular order. Entries
    /// that are made or removed meanwhile may be missing or present.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
        let dir = self.dir(path)?;
        Ok(ReadDir { fs: dir.fs, ino: dir.ino, cookie: Some(0), read: VecDeque::new() })
    }

    /// Creates a directory with mode 0755.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.create_dir_with(path, 0o755)
    }

    /// Creates a directory with these permission bits.
    pub fn create_dir_with(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let found = self.find(without_slash(path.as_ref()), false)?.named(Error::Exists)?;
        self.fs.mkdir(found.dir, &found.name, mode, self.owner)?;
        Ok(())
    }

    /// Creates a directory and its missing ancestors. Succeeds if the directory exists.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = bytes(path.as_ref());
        let ends = path.iter().enumerate().filter(|(at, b)| **b == b'/' && *at > 0).map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let here = Path::new(OsStr::from_bytes(&path[..end]));
            match self.dir(here) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                there => {
                    there?;
                    continue;
                }
            }
            match self.create_dir(here) {
                // Another thread has created it, or the name is a dangling symbolic link. The next
                // step finds out.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.dir(here).map(drop)?,
                made => made?,
            }
        }
        Ok(())
    }

    /// Removes a name of a file that is not a directory. The file is deleted with its last name,
    /// once it is no longer open.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let found = self.find(bytes(path.as_ref()), false)?.named(Error::IsDirectory)?;
        Ok(self.fs.unlink(found.dir, &found.name)?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let found = self
            .find(without_slash(path.as_ref()), false)?
            .named(Error::Invalid("a directory is removed by its name"))?;
        Ok(self.fs.rmdir(found.dir, &found.name)?)
    }

    /// Removes a directory and everything below it, without following symbolic links. After a crash
    /// or an error the rest is still there.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let top = self
            .find(without_slash(path.as_ref()), false)?
            .named(Error::Invalid("a directory is removed by its name"))?;
        let Found { dir, name, attr } = top;
        let attr = attr.ok_or(Error::NotFound)?;
        if attr.kind != FileKind::Directory {
            return Err(Error::NotDirectory.into());
        }
        // A list replaces recursion, since a tree may be deeper than the stack allows. Each
        // element: parent directory, name, directory.
        let mut left = vec![(dir, name, attr.ino)];
        while let Some((above, name, here)) = left.last().cloned() {
            let depth = left.len();
            let entries = ReadDir { fs: self.fs.clone(), ino: here, cookie: Some(0), read: VecDeque::new() };
            for entry in entries {
                let entry = entry?;
                let name = entry.name.into_vec();
                match entry.kind {
                    FileKind::Directory => left.push((here, name, entry.ino)),
                    _ => self.fs.unlink(here, &name)?,
                }
            }
            if left.len() == depth {
                self.fs.rmdir(above, &name)?;
                left.pop();
            }
        }
        Ok(())
    }

    /// Renames atomically: no crash leaves both names or neither. Replaces an existing `to`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// [`Dir::rename`] that fails if `to` exists, or swaps the two names, depending on `mode`.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> io::Result<()> {
        let busy = || Error::Invalid("a name is moved to a name");
        let from = self.find(without_slash(from.as_ref()), false)?.named(busy())?;
        let to = self.find(without_slash(to.as_ref()), false)?.named(busy())?;
        Ok(self.fs.rename(from.dir, &from.name, to.dir, &to.name, mode)?)
    }

    /// Adds the name `to` to the file `from`, which is not a directory. Does not follow a symbolic
    /// link.
    pub fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let file = self.find(bytes(from.as_ref()), false)?.attr()?;
        let to = self.find(bytes(to.as_ref()), false)?.named(Error::Exists)?;
        self.fs.link(file.ino, to.dir, &to.name)?;
        Ok(())
    }

    /// Creates a symbolic link at `link`. `target` is not interpreted.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let link = self.find(bytes(link.as_ref()), false)?.named(Error::Exists)?;
        self.fs.symlink(link.dir, &link.name, bytes(target.as_ref()), self.owner)?;
        Ok(())
    }

    /// Returns the target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let link = self.symlink_metadata(path)?;
        Ok(OsString::from_vec(self.fs.readlink(link.ino)?).into())
    }

    /// Makes the entries of this directory durable. A file's [`File::sync_all`] also covers the
    /// file's own name.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(self.fs.fsync(self.ino, false)?)
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The name, without a path.
    pub name: OsString,
    /// Inode number.
    pub ino: Ino,
    /// Type of the file. A symbolic link is not followed.
    pub kind: FileKind,
}

/// An iterator over the entries of a directory: see [`Dir::read_dir`].
pub struct ReadDir {
    fs: FileSystem,
    ino: Ino,
    /// The cookie from which the next batch starts; `None` after the last batch.
    cookie: Option<u64>,
    read: VecDeque<Entry>,
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir").field("ino", &self.ino).finish_non_exhaustive()
    }
}

impl ReadDir {
    /// Reads the next batch of entries.
    fn fill(&mut self, from: u64) -> Result<()> {
        let (read, mut next) = (&mut self.read, None);
        self.fs.readdir(self.ino, from, &mut |entry| {
            if read.len() == BATCH {
                return false;
            }
            next = Some(entry.cookie);
            if entry.name != b"." && entry.name != b".." {
                let name = OsStr::from_bytes(entry.name).to_owned();
                read.push_back(Entry { name, ino: entry.ino, kind: entry.kind });
            }
            true
        })?;
        self.cookie = next;
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = io::Result<Entry>;

    /// After an error the iterator ends.
    fn next(&mut self) -> Option<io::Result<Entry>> {
        while self.read.is_empty() {
            let from = self.cookie.take()?;
            if let Err(e) = self.fill(from) {
                return Some(Err(e.into()));
            }
        }
        self.read.pop_front().map(Ok)
    }
}
