//! Fills an image from a directory of this machine.
//!
//! The source may change while it is read, and may belong to an attacker. So every path is opened
//! below the root of the source, without following a link, and first with `O_PATH`, which neither
//! waits for a pipe nor opens a device. All checks use that descriptor, not the path. A file or
//! directory that changes while it is read ends the run, because the image would get contents that
//! never existed.

use super::sink::{At, Data, Entries, Meta, Ranges};
use super::{Estimate, show};
use anyhow::{Context, Result, bail};
use kedgefs::{FileKind, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The largest attribute value, and the longest list of attribute names, on Linux.
const XATTR_MAX: usize = 64 << 10;

/// A file of the source, open with `O_PATH`.
struct Place {
    fd: OwnedFd,
    stat: Stat,
    /// The path below the root of the source.
    path: Vec<u8>,
}

struct Tree {
    root: OwnedFd,
}

impl Tree {
    fn open(dir: &Path) -> Result<Tree> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty());
        Ok(Tree { root: root.with_context(|| format!("open {}", dir.display()))? })
    }

    fn root(&self) -> Result<Place> {
        let fd = self.root.try_clone().context("open the directory again")?;
        let stat = rustix::fs::fstat(&fd).context("read the attributes of the directory")?;
        Ok(Place { fd, stat, path: Vec::new() })
    }

    fn place(&self, path: Vec<u8>) -> Result<Place> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // A symbolic link at the end of the path must be opened itself, which NO_SYMLINKS would
        // refuse. So its directory is opened first.
        let (dir, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b"."[..], &path[..]),
        };
        let open = || -> Result<(OwnedFd, Stat), Errno> {
            let dir_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir =
                rustix::fs::openat2(&self.root, OsStr::from_bytes(dir), dir_flags, Mode::empty(), beneath)?;
            let fd = rustix::fs::openat(&dir, OsStr::from_bytes(name), flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&fd)?;
            Ok((fd, stat))
        };
        let (fd, stat) = open().with_context(|| format!("open {}", show(&path)))?;
        Ok(Place { fd, stat, path })
    }
}

impl Place {
    /// A path to the open file.
    fn link(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    fn read(&self, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::openat(CWD, self.link(), flags, Mode::empty())
            .with_context(|| format!("read {}", show(&self.path)))
    }

    fn meta(&self) -> Result<Meta> {
        Ok(Meta {
            mode: self.stat.st_mode & 0o7777,
            uid: self.stat.st_uid,
            gid: self.stat.st_gid,
            mtime: Timespec { sec: self.stat.st_mtime, nsec: self.stat.st_mtime_nsec as u32 },
            xattrs: self.xattrs().with_context(|| format!("attributes of {}", show(&self.path)))?,
        })
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut names = vec![0; XATTR_MAX];
        let n = match rustix::fs::listxattr(self.link(), &mut names[..]) {
            Ok(n) => n,
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        };
        let mut found = Vec::new();
        for name in names[..n].split(|b| *b == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_MAX];
            let len = rustix::fs::getxattr(self.link(), OsStr::from_bytes(name), &mut value[..])
                .with_context(|| show(name))?;
            value.truncate(len);
            found.push((name.to_vec(), value));
        }
        found.sort();
        Ok(found)
    }

    /// The names in ascending order, so that the order of the source's directory does not matter.
    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let dir = Dir::new(self.read(OFlags::DIRECTORY)?)?;
        let mut names = Vec::new();
        for entry in dir {
            let entry = entry.with_context(|| format!("read {}", show(&self.path)))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort();
        Ok(names)
    }

    fn below(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}

fn refuse_changed(before: &Stat, now: &Place) -> Result<()> {
    let state =
        |s: &Stat| (s.st_dev, s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
    if state(before) != state(&now.stat) {
        bail!("{}: changed while it was read", show(&now.path));
    }
    Ok(())
}

/// Estimates the contents of a directory. Only names and attributes are read.
pub fn estimate(dir: &Path) -> Result<Estimate> {
    let tree = Tree::open(dir)?;
    let mut sum = Estimate::default();
    let mut counted = BTreeSet::new();
    // Keep paths and not open files, because a directory may have more entries than a process may
    // open.
    let mut left = vec![Vec::new()];
    while let Some(path) = left.pop() {
        let place = if path.is_empty() { tree.root()? } else { tree.place(path)? };
        sum.entries += 1;
        sum.text_bytes += place.xattrs()?.iter().map(|(n, v)| (n.len() + v.len()) as u64).sum::<u64>();
        match place.kind() {
            FileType::Directory => {
                for name in place.names()? {
                    sum.text_bytes += name.len() as u64;
                    left.push(place.below(&name));
                }
            }
            FileType::RegularFile if counted.insert((place.stat.st_dev, place.stat.st_ino)) => {
                // Use the size: a file with holes takes less, but the block count of a file that is
                // not written back yet is too low.
                sum.data(place.stat.st_size.max(0) as u64);
            }
            FileType::Symlink => sum.text_bytes += place.stat.st_size.max(0) as u64,
            _ => {}
        }
    }
    Ok(sum)
}

enum Step<I> {
    Enter(Vec<u8>, I),
    /// All entries of the directory were read; check that it has not changed.
    Leave(Vec<u8>, Stat),
}

/// Copies a directory to the top of the sink.
pub fn fill(dir: &Path, sink: &mut impl Entries) -> Result<()> {
    let tree = Tree::open(dir)?;
    let mut links = BTreeMap::new();
    let root = tree.root()?;
    sink.root(&root.meta()?)?;
    let mut steps = Vec::new();
    push_entries(root, &sink.top(), &mut steps)?;
    while let Some(step) = steps.pop() {
        match step {
            Step::Enter(path, parent) => {
                let place = tree.place(path)?;
                let start = place.path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
                let name = place.path[start..].to_vec();
                if place.kind() == FileType::Directory {
                    let at = At { dir: parent, name: &name, path: &place.path };
                    let made = sink.directory(at, &place.meta()?)?;
                    push_entries(place, &made, &mut steps)?;
                } else {
                    let at = At { dir: parent, name: &name, path: &place.path };
                    enter(&place, at, &mut links, sink)?;
                }
            }
            Step::Leave(path, stat) if path.is_empty() => refuse_changed(&stat, &tree.root()?)?,
            Step::Leave(path, stat) => refuse_changed(&stat, &tree.place(path)?)?,
        }
    }
    Ok(())
}

/// Copies one file other than a directory.
pub fn add<E: Entries>(path: &Path, at: At<'_, E::Id>, sink: &mut E) -> Result<()> {
    let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().with_context(|| format!("{}: ends without a name", path.display()))?;
    let place = Tree::open(above)?.place(name.as_bytes().to_vec())?;
    if place.kind() == FileType::Directory {
        bail!("{}: changed while it was read", path.display());
    }
    enter(&place, at, &mut BTreeMap::new(), sink)
}

fn push_entries<I: Clone>(place: Place, dir: &I, steps: &mut Vec<Step<I>>) -> Result<()> {
    let below: Vec<Vec<u8>> = place.names()?.iter().map(|name| place.below(name)).collect();
    steps.push(Step::Leave(place.path, place.stat));
    steps.extend(below.into_iter().rev().map(|path| Step::Enter(path, dir.clone())));
    Ok(())
}

/// The copy of each source file with several links, by device and inode.
type Links<I> = BTreeMap<(u64, u64), I>;

fn enter<E: Entries>(place: &Place, at: At<'_, E::Id>, links: &mut Links<E::Id>, sink: &mut E) -> Result<()> {
    let id = (place.stat.st_dev, place.stat.st_ino);
    if let Some(made) = links.get(&id) {
        return sink.link(made.clone(), at);
    }
    let meta = place.meta()?;
    let made = match place.kind() {
        FileType::RegularFile => copy(place, at, &meta, sink)?,
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&place.fd, c"", Vec::new())
                .with_context(|| format!("read {}", show(&place.path)))?;
            sink.symlink(at, CStr::to_bytes(&target), &meta)?
        }
        kind => {
            let (kind, has_number) = match kind {
                FileType::CharacterDevice => (FileKind::CharDevice, true),
                FileType::BlockDevice => (FileKind::BlockDevice, true),
                FileType::Fifo => (FileKind::Fifo, false),
                FileType::Socket => (FileKind::Socket, false),
                _ => bail!("{}: a file of an unknown type", show(&place.path)),
            };
            let rdev = if has_number {
                let (major, minor) =
                    (rustix::fs::major(place.stat.st_rdev), rustix::fs::minor(place.stat.st_rdev));
                device_number(major, minor).with_context(|| show(&place.path))?
            } else {
                0
            };
            sink.node(at, kind, rdev, &meta)?
        }
    };
    if place.stat.st_nlink > 1 {
        links.insert(id, made);
    }
    Ok(())
}

/// A device number as the kernel passes it to a file system: 12 bits of major, 20 of minor.
pub fn device_number(major: u32, minor: u32) -> Result<u64> {
    if major >= 1 << 12 || minor >= 1 << 20 {
        bail!("device number {major}:{minor} is too large");
    }
    Ok(u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)))
}

fn copy<E: Entries>(place: &Place, at: At<'_, E::Id>, meta: &Meta, sink: &mut E) -> Result<E::Id> {
    let fd = place.read(OFlags::empty())?;
    let size = place.stat.st_size.max(0) as u64;
    let ranges = data_ranges(fd.as_fd(), size).with_context(|| format!("read {}", show(&place.path)))?;
    let mut reader = Ranged { file: File::from(fd), left: ranges.iter().copied().collect(), at: 0 };
    let made = sink.file(at, meta, Data { size, ranges: &ranges, reader: &mut reader, of: None })?;
    let stat = rustix::fs::fstat(&place.fd)
        .with_context(|| format!("read the attributes of {}", show(&place.path)))?;
    let now = Place { fd: place.fd.try_clone()?, stat, path: place.path.clone() };
    refuse_changed(&place.stat, &now)?;
    Ok(made)
}

/// The data ranges of a file by SEEK_DATA; the whole file where its file system does not support
/// that.
fn data_ranges(fd: BorrowedFd<'_>, size: u64) -> Result<Ranges> {
    let mut ranges = Ranges::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(vec![(0, size)]),
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(start))?.min(size);
        if end <= start {
            break;
        }
        ranges.push((start, end - start));
        at = end;
    }
    Ok(ranges)
}

/// A reader of the bytes in the ranges of a file, in order.
struct Ranged {
    file: File,
    left: VecDeque<(u64, u64)>,
    /// Bytes already read of the first range.
    at: u64,
}

impl Read for Ranged {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.left.front().is_some_and(|(_, len)| self.at == *len) {
            self.left.pop_front();
            self.at = 0;
        }
        let Some(&(start, len)) = self.left.front() else { return Ok(0) };
        let want = buf.len().min(usize::try_from(len - self.at).unwrap_or(usize::MAX));
        let got = self.file.read_at(&mut buf[..want], start + self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}
