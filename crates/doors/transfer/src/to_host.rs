//! Copies from an image into a directory of this machine.
//!
//! An attacker may have made the image, or the files in the target. So paths are resolved name by
//! name, and no name contains a `/`. Each directory is opened below the target without following a
//! link. Each file is a new one: nothing is written through an existing name.
//!
//! Attributes that grant rights to any local user are left out unless requested: set-id bits,
//! devices, and attributes that only root can set, such as the capabilities of programs. Root may
//! copy an image only to inspect it, and a set-user-id program in it may come from any user.

use crate::import::image::{Ranged, meta, ranges};
use crate::import::sink::Meta;
use crate::offline::{device, entries};
use anyhow::{Context, Result, bail, ensure};
use kedgefs::{Attr, FileKind, FileSystem, Ino};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

const CHUNK: usize = 1 << 20;

pub struct Target {
    /// All paths are relative to this directory.
    top: OwnedFd,
    /// The name of the copy; `None` keeps the source's name.
    name: Option<Vec<u8>>,
    root: bool,
    /// Copies set-id bits, devices and attributes that only root may set.
    privileged: bool,
    left_out: LeftOut,
    /// The first path of each file with several links.
    links: BTreeMap<Ino, Vec<u8>>,
    buf: Vec<u8>,
}

/// The number of attributes and devices that were left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeftOut {
    bits: u64,
    devices: u64,
    attributes: u64,
}

/// A copied directory. Its attributes are set at the end, because each new entry changes its times.
struct Made {
    path: Vec<u8>,
    meta: Meta,
}

fn show(path: &[u8]) -> String {
    kedge_base::printable(&String::from_utf8_lossy(path))
}

impl Target {
    /// An existing directory takes copies under their own names. Otherwise the last name of the
    /// path is the copy's name.
    pub fn new(path: &Path, several: bool, privileged: bool) -> Result<Target> {
        let slash = path.as_os_str().as_bytes().ends_with(b"/");
        let (dir, name) = match std::fs::metadata(path) {
            Ok(there) if there.is_dir() => (path, None),
            Ok(_) if several || slash => bail!("{}: is no directory", path.display()),
            Err(e) if several || slash => return Err(e).with_context(|| path.display().to_string()),
            _ => {
                let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let name =
                    path.file_name().with_context(|| format!("{}: ends without a name", path.display()))?;
                (above, Some(name.as_bytes().to_vec()))
            }
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top =
            rustix::fs::open(dir, flags, Mode::empty()).with_context(|| format!("open {}", dir.display()))?;
        let root = rustix::process::geteuid().is_root();
        let privileged = privileged && root;
        let (left_out, links) = (LeftOut::default(), BTreeMap::new());
        Ok(Target { top, name, root, privileged, left_out, links, buf: vec![0; CHUNK] })
    }

    /// Copies a file, or a directory with all its contents.
    pub fn copy(&mut self, fs: &FileSystem, attr: &Attr, own: Option<Vec<u8>>) -> Result<()> {
        // Inode numbers of an earlier source may belong to another image.
        self.links.clear();
        let name = self.name.clone().or(own);
        if attr.kind != FileKind::Directory {
            return self.add(fs, attr, &name.context("it has no name")?);
        }
        let mut made = Vec::new();
        let mut left = vec![(name.unwrap_or(b".".to_vec()), *attr)];
        while let Some((path, attr)) = left.pop() {
            self.make_dir(&path)?;
            for (name, ino) in entries(fs, attr.ino).with_context(|| show(&path))? {
                ensure!(
                    !name.contains(&b'/') && !name.contains(&0) && name != b"..",
                    "{}: an impossible name",
                    show(&name)
                );
                let below = [&path[..], &name[..]].join(&b'/');
                let attr = fs.getattr(ino).with_context(|| show(&below))?;
                match attr.kind {
                    FileKind::Directory => left.push((below, attr)),
                    _ => self.add(fs, &attr, &below)?,
                }
            }
            made.push(Made { path, meta: meta(fs, &attr)? });
        }
        // The deepest directory first, because a mode may forbid the access to the directories
        // below.
        for Made { path, meta } in made.into_iter().rev() {
            let dir = self.open_dir(&path)?;
            self.describe(&dir, &meta).with_context(|| show(&path))?;
        }
        Ok(())
    }

    /// Makes all copies durable.
    pub fn finish(self) -> Result<()> {
        let LeftOut { bits, devices, attributes } = self.left_out;
        let counts = [(bits, "files' set-id bits"), (devices, "devices"), (attributes, "attributes of root")];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            eprintln!("kedge: warning: {count} {what} left out (--privileged keeps them, as root)");
        }
        rustix::fs::syncfs(&self.top).context("make the copies durable")
    }

    fn open_dir(&self, path: &[u8]) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.top, OsStr::from_bytes(path), flags, Mode::empty(), beneath)
            .with_context(|| format!("open the directory {}", show(path)))
    }

    /// Opens the parent directory; also returns the last name.
    fn above<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p OsStr)> {
        let (dir, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b"."[..], path),
        };
        Ok((self.open_dir(dir)?, OsStr::from_bytes(name)))
    }

    fn make_dir(&self, path: &[u8]) -> Result<()> {
        if path == b"." {
            return Ok(());
        }
        let (dir, name) = self.above(path)?;
        match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
            // An existing directory is used; any other file is refused when it is opened as a
            // directory.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(e).with_context(|| format!("make the directory {}", show(path))),
        }
    }

    fn add(&mut self, fs: &FileSystem, attr: &Attr, path: &[u8]) -> Result<()> {
        let (dir, name) = self.above(path)?;
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e).with_context(|| format!("replace {}", show(path))),
        }
        if let Some(first) = self.links.get(&attr.ino) {
            let (first_dir, first_name) = self.above(first)?;
            return rustix::fs::linkat(&first_dir, first_name, &dir, name, AtFlags::empty())
                .with_context(|| format!("link {}", show(path)));
        }
        self.make(fs, attr, &dir, name).with_context(|| show(path)).inspect_err(|_| {
            // A copy is complete or absent. The first error is returned.
            let _ = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
        })?;
        if attr.nlink > 1 {
            self.links.insert(attr.ino, path.to_vec());
        }
        Ok(())
    }

    fn make(&mut self, fs: &FileSystem, attr: &Attr, dir: &OwnedFd, name: &OsStr) -> Result<()> {
        let meta = meta(fs, attr)?;
        match attr.kind {
            FileKind::Regular => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
                self.write(fs, attr, &file)?;
                return self.describe(&file, &meta);
            }
            FileKind::Symlink => {
                let target = fs.readlink(attr.ino)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), dir, name)?;
            }
            FileKind::CharDevice | FileKind::BlockDevice if !self.privileged => {
                self.left_out.devices += 1;
                return Ok(());
            }
            kind => {
                let (kind, number) = match kind {
                    FileKind::CharDevice => (FileType::CharacterDevice, attr.rdev),
                    FileKind::BlockDevice => (FileType::BlockDevice, attr.rdev),
                    FileKind::Fifo => (FileType::Fifo, 0),
                    _ => (FileType::Socket, 0),
                };
                let (major, minor) = device(number);
                let number = rustix::fs::makedev(major as u32, minor as u32);
                rustix::fs::mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, number)?;
                set_mode(dir, name, kind, Mode::from_raw_mode(meta.mode & 0o777))?;
            }
        }
        if self.root {
            let (uid, gid) = owner(&meta)?;
            rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(rustix::fs::utimensat(dir, name, &times(&meta), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn write(&mut self, fs: &FileSystem, attr: &Attr, file: &File) -> Result<()> {
        let ranges = ranges(fs, attr)?;
        for &(start, len) in &ranges {
            let mut reader = Ranged { fs, ino: attr.ino, ranges: &[(start, len)], at: 0 };
            let mut at = start;
            loop {
                let n = reader.read(&mut self.buf)?;
                if n == 0 {
                    break;
                }
                file.write_all_at(&self.buf[..n], at)?;
                at += n as u64;
            }
            ensure!(at == start + len, "ends at byte {at}");
        }
        Ok(file.set_len(attr.size)?)
    }

    /// Sets the owner first, because a change of owner clears set-id bits. Without root these bits
    /// are not set, since the file belongs to another user than in the image.
    fn describe(&mut self, fd: impl AsFd, meta: &Meta) -> Result<()> {
        if self.root {
            let (uid, gid) = owner(meta)?;
            rustix::fs::fchown(&fd, Some(uid), Some(gid))?;
        }
        for (name, value) in &meta.xattrs {
            // Attributes outside the user's namespace (security., trusted.) grant rights. Access
            // control lists do too, but none beyond the mode's group bits.
            if !self.privileged && !name.starts_with(b"user.") && !name.starts_with(b"system.") {
                self.left_out.attributes += 1;
                continue;
            }
            rustix::fs::fsetxattr(&fd, OsStr::from_bytes(name), value, XattrFlags::empty())
                .with_context(|| format!("attribute {}", show(name)))?;
        }
        let bits = if self.privileged { meta.mode } else { meta.mode & 0o1777 };
        self.left_out.bits += u64::from(bits != meta.mode);
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(bits))?;
        Ok(rustix::fs::futimens(&fd, &times(meta))?)
    }
}

/// Sets the mode of a new device, pipe or socket, which cannot be opened for reading. If another
/// process replaces it by a link, the link is not followed.
fn set_mode(dir: &OwnedFd, name: &OsStr, kind: FileType, mode: Mode) -> Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let there = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    ensure!(there == kind, "another process has replaced it");
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode)?)
}

/// Refuses `u32::MAX`, which stands for "unchanged" in chown(2).
fn owner(meta: &Meta) -> Result<(Uid, Gid)> {
    ensure!(meta.uid != u32::MAX && meta.gid != u32::MAX, "an owner id that is not valid");
    Ok((Uid::from_raw(meta.uid), Gid::from_raw(meta.gid)))
}

fn times(meta: &Meta) -> Timestamps {
    let time = Timespec { tv_sec: meta.mtime.sec, tv_nsec: i64::from(meta.mtime.nsec) };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
#[path = "to_host_tests.rs"]
mod tests;
