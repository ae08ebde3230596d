//! Makes files in the image that is being filled.
//!
//! # Whole files
//! Every file except a directory is made without a name, and gets its name when contents, owner,
//! attributes and times are complete. If another file has the name, the same operation replaces it.
//! So no reader sees a partial file:
//! - *An error*: a file without a name is deleted.
//! - *The kernel*, where the file system is mounted: it cannot look up an inode without a name, and
//!   so caches no size, page or attribute of an incomplete file.
//! - *A crash*: each name has the old file (or none, if there was none) or the complete new file.
//!   Before names are given, the bytes of their files are written in place and the extents are
//!   logged ([`FileSystem::write_back`]). The record of a name is later in the log, so any part of
//!   the log that survives a crash has both records or no name. Recovery deletes files without a
//!   name. This needs no flush: the caller decides when the copy becomes durable.
//!
//! Names are given for many files at once, because writing one file costs as much as writing a
//! hundred adjacent files. A directory is made immediately, and an existing directory stays: only
//! the files in it are replaced. Times of directories are set at the end, because each new entry
//! changes them.

use super::{BLOCK, is_dir, read_full, show};
use anyhow::{Context, Result, bail};
use kedge_host::engine;
use kedgefs::{Attr, FileKind, FileSystem, Ino, Owner, SetAttr, SetTime, Timespec, XattrMode};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

/// The most bytes written with one call.
const CHUNK: usize = 1 << 20;
/// Bytes of data between two syncs: a third of the amount of dirty pages at which the flusher
/// wakes. That amount is a quarter of the page budget, which is three eighths of the cache.
const SYNC_BYTES: u64 = engine::FILL_CACHE / 8 * 3 / 4 / 3;
/// Entries between two syncs: so few that their records fit one batch of the log.
const SYNC_ENTRIES: u64 = 128;
/// Bytes of names, attributes and targets between two syncs.
const SYNC_TEXT: u64 = 128 << 10;
/// Syncs between two checkpoints: so few that no checkpoint starts because of dirty tree nodes.
const CHECKPOINT_SYNCS: u64 = 64;
/// The most files of a mount that wait for their names, and the most bytes in these files.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES: u64 = 16 << 20;
const SHOW_EVERY: u64 = 256;
const SET_IDS: u32 = 0o6000;
const SET_GROUP_ID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const FILE_CAPABILITIES: &[u8] = b"security.capability";

/// The attributes that every kind of file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timespec,
    /// Names (with their namespaces) and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The data ranges of a file as offset and length, ascending.
pub type Ranges = Vec<(u64, u64)>;

/// Receives the entries of a source, each directory before its contents.
pub trait Entries {
    /// Identifies a file that was made, as a parent or as the target of a link.
    type Id: Clone;
    /// The directory to which paths are relative.
    fn top(&self) -> Self::Id;
    /// Sets the attributes of that directory.
    fn root(&mut self, meta: &Meta) -> Result<()>;
    /// Makes a directory, or uses the existing directory.
    fn directory(&mut self, at: At<'_, Self::Id>, meta: &Meta) -> Result<Self::Id>;
    fn file(&mut self, at: At<'_, Self::Id>, meta: &Meta, data: Data<'_>) -> Result<Self::Id>;
    fn symlink(&mut self, at: At<'_, Self::Id>, target: &[u8], meta: &Meta) -> Result<Self::Id>;
    /// Makes a device, a pipe or a socket.
    fn node(&mut self, at: At<'_, Self::Id>, kind: FileKind, rdev: u64, meta: &Meta) -> Result<Self::Id>;
    /// Adds a name to a file.
    fn link(&mut self, file: Self::Id, at: At<'_, Self::Id>) -> Result<()>;
}

/// The place of a new file.
#[derive(Clone, Copy)]
pub struct At<'a, D = Ino> {
    pub dir: D,
    pub name: &'a [u8],
    /// The path in the source, for messages.
    pub path: &'a [u8],
}

/// The contents of a regular file.
pub struct Data<'a> {
    /// The size, including holes.
    pub size: u64,
    pub ranges: &'a [(u64, u64)],
    /// Reads the ranges one after another.
    pub reader: &'a mut dyn Read,
    /// The source inode, if the source is an image.
    pub of: Option<Ino>,
}

/// Whether a copy within an image shares blocks with its original.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reflink {
    #[default]
    Never,
    /// Shares blocks if image and file allow it, otherwise copies them.
    Auto,
    /// Shares blocks, or fails.
    Always,
}

/// A change that makes the kernel's caches stale.
#[derive(Clone, Copy, Debug)]
pub enum Changed<'a> {
    /// A name of a directory is new or refers to another file.
    Name(Ino, &'a [u8]),
    /// The attributes of an inode, and a directory's listing. Reported after all changed names of
    /// the directory.
    Inode(Ino),
}

/// A mount whose file system is filled.
pub struct Live<'a> {
    pub changed: &'a dyn Fn(Changed<'_>),
    /// The user that must own all files, and gets no more rights than through the kernel; `None`
    /// for root.
    pub only: Option<Owner>,
    /// The client's mount honours no set-id bits and no file capabilities, so even root makes none
    /// through it.
    pub nosuid: bool,
    /// The client's mount honours no devices, so even root makes none through it.
    pub nodev: bool,
}

/// A complete file and the name that it will get.
struct Waiting {
    dir: Ino,
    name: Vec<u8>,
    path: Vec<u8>,
    ino: Ino,
    /// Whether the sink made the file, which is then pinned until it has its name.
    is_new: bool,
}

pub struct Sink<'a> {
    fs: &'a FileSystem,
    live: Option<Live<'a>>,
    waiting: Vec<Waiting>,
    /// The names of the waiting files.
    waiting_names: BTreeSet<(Ino, Vec<u8>)>,
    /// The directory to which paths are relative.
    pub top: Ino,
    /// Whether copies share blocks with their sources. Set only if the sources are in the same file
    /// system.
    pub reflink: Reflink,
    /// The latest time stamp that a file may get.
    latest: Option<Timespec>,
    /// Times of directories, to be set at the end.
    dirs: BTreeMap<Ino, Timespec>,
    entries: u64,
    bytes: u64,
    unsynced: Unsynced,
    syncs: u64,
    shows: bool,
    buf: Vec<u8>,
}

#[derive(Default)]
struct Unsynced {
    entries: u64,
    bytes: u64,
    text: u64,
}

impl<'a> Sink<'a> {
    pub fn new(fs: &'a FileSystem, top: Ino, latest: Option<Timespec>, shows: bool) -> Sink<'a> {
        Sink {
            fs,
            live: None,
            waiting: Vec::new(),
            waiting_names: BTreeSet::new(),
            top,
            reflink: Reflink::Never,
            latest,
            dirs: BTreeMap::new(),
            entries: 0,
            bytes: 0,
            unsynced: Unsynced::default(),
            syncs: 0,
            shows,
            buf: vec![0; CHUNK],
        }
    }

    /// A sink into the file system of a mount. The caller makes the files durable.
    pub fn live(fs: &'a FileSystem, top: Ino, live: Live<'a>) -> Sink<'a> {
        Sink { live: Some(live), ..Sink::new(fs, top, None, false) }
    }

    /// Returns the inode with this name, if there is one.
    pub fn find(&mut self, dir: Ino, name: &[u8]) -> Result<Option<kedgefs::Attr>> {
        if !self.waiting.is_empty() && self.waiting_names.contains(&(dir, name.to_vec())) {
            self.give_names()?;
        }
        match self.fs.lookup(dir, name) {
            Ok(attr) => Ok(Some(attr)),
            Err(kedgefs::Error::NotFound) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Lets the new file share the blocks of the original. Returns false if they cannot share.
    fn share(&self, ino: Ino, path: &[u8], data: &Data<'_>) -> Result<bool> {
        let Some(of) = data.of.filter(|_| self.reflink != Reflink::Never) else { return Ok(false) };
        match self.fs.clone_file(of, ino) {
            Ok(()) => Ok(true),
            Err(kedgefs::Error::Invalid(_) | kedgefs::Error::CrossTree) if self.reflink == Reflink::Auto => {
                Ok(false)
            }
            Err(e) => named(Err(e), path),
        }
    }

    fn write(&mut self, ino: Ino, path: &[u8], mut data: Data<'_>) -> Result<()> {
        if self.share(ino, path, &data)? {
            return Ok(());
        }
        let mut buf = std::mem::take(&mut self.buf);
        let copied =
            data.ranges.iter().try_for_each(|&range| self.copy(ino, path, range, &mut data.reader, &mut buf));
        self.buf = buf;
        copied?;
        let end = data.ranges.last().map_or(0, |(start, len)| start + len);
        if data.size > end {
            let grown = self.fs.setattr(ino, &SetAttr { size: Some(data.size), ..SetAttr::default() });
            named(grown.map(drop), path)?;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        ino: Ino,
        path: &[u8],
        (start, len): (u64, u64),
        mut reader: &mut dyn Read,
        buf: &mut [u8],
    ) -> Result<()> {
        let mut at = 0;
        while at < len {
            let want = (len - at).min(CHUNK as u64) as usize;
            let got = read_full(&mut reader, &mut buf[..want]).with_context(|| show(path))?;
            self.write_all(ino, start + at, &buf[..got], path)?;
            at += got as u64;
            if got < want {
                bail!("{}: ends after {at} of {len} bytes", show(path));
            }
        }
        Ok(())
    }

    fn write_all(&mut self, ino: Ino, mut at: u64, mut bytes: &[u8], path: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = named(self.fs.write(ino, at, bytes), path)?;
            at += n as u64;
            bytes = &bytes[n..];
            self.bytes += n as u64;
            self.unsynced.bytes += (n as u64).next_multiple_of(BLOCK);
        }
        // The sync names the files that are complete, but not the file that is being written.
        let max = if self.live.is_some() { WAITING_BYTES } else { SYNC_BYTES };
        if self.unsynced.bytes >= max { self.sync() } else { Ok(()) }
    }

    fn only(&self) -> Option<Owner> {
        self.live.as_ref().and_then(|live| live.only)
    }

    fn owner(&self, meta: &Meta) -> Owner {
        self.only().unwrap_or(Owner { uid: meta.uid, gid: meta.gid })
    }

    /// Reports a change that makes the kernel's caches stale.
    fn changed(&self, what: Changed<'_>) {
        if let Some(live) = &self.live {
            (live.changed)(what);
        }
    }

    /// Refuses set-id files and devices that root's mount does not honour: root may have been
    /// confined to that mount so that it cannot make them.
    fn check_view(&self, path: &[u8], meta: &Meta, is_device: bool) -> Result<()> {
        let Some(live) = self.live.as_ref().filter(|live| live.only.is_none()) else { return Ok(()) };
        let grants =
            meta.mode & SET_IDS != 0 || meta.xattrs.iter().any(|(name, _)| name == FILE_CAPABILITIES);
        if live.nosuid && grants {
            bail!("{}: set-id bits or capabilities, and the directory is mounted nosuid", show(path));
        }
        if live.nodev && is_device {
            bail!("{}: a device, and the directory is mounted nodev", show(path));
        }
        Ok(())
    }

    /// An ordinary user may fill only directories, and link only files, that the user owns.
    pub fn check_own(&self, there: &Attr, path: &[u8]) -> Result<()> {
        match self.only() {
            Some(only) if there.uid != only.uid => {
                bail!("{}: there already, and another user's", show(path))
            }
            _ => Ok(()),
        }
    }

    /// In a sticky directory a user may not replace the files of others.
    fn check_sticky(&self, dir: Ino, there: &Attr, path: &[u8]) -> Result<()> {
        let Some(only) = self.only().filter(|only| only.uid != there.uid) else { return Ok(()) };
        let above = named(self.fs.getattr(dir), path)?;
        if above.mode & STICKY != 0 && above.uid != only.uid {
            bail!("{}: there already, and another user's", show(path));
        }
        Ok(())
    }

    /// A later entry replaces an earlier one, unless the earlier one is a directory.
    fn refuse_directory(&mut self, at: At<'_>) -> Result<()> {
        match self.find(at.dir, at.name).with_context(|| show(at.path))? {
            Some(attr) if is_dir(&attr) => bail!("{}: is there already, as a directory", show(at.path)),
            Some(attr) => self.check_sticky(at.dir, &attr, at.path),
            None => Ok(()),
        }
    }

    /// Completes a file without a name and queues it for its name, or deletes it on an error.
    fn complete(
        &mut self,
        at: At<'_>,
        made: kedgefs::Result<kedgefs::Attr>,
        text: usize,
        complete: impl FnOnce(&mut Self, Ino) -> Result<()>,
    ) -> Result<Ino> {
        let ino = named(made.map(|attr| attr.ino), at.path)?;
        if let Err(e) = complete(self, ino) {
            self.fs.unpin(ino, 1);
            return Err(e);
        }
        self.wait_for_name(at, ino, true, text)?;
        Ok(ino)
    }

    fn wait_for_name(&mut self, at: At<'_>, ino: Ino, is_new: bool, text: usize) -> Result<()> {
        let (name, path) = (at.name.to_vec(), at.path.to_vec());
        self.waiting_names.insert((at.dir, name.clone()));
        self.waiting.push(Waiting { dir: at.dir, name, path, ino, is_new });
        self.note(text)
    }

    /// Names all waiting files in the order of the entries. A file that cannot get its name is
    /// deleted; the other files still get theirs.
    fn give_names(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_names.clear();
        let new: Vec<Ino> = waiting.iter().filter(|w| w.is_new).map(|w| w.ino).collect();
        let written = self.fs.write_back(&new).map_err(with_hint).context("write to the image");
        let mut result = Ok(());
        let mut dirs = BTreeSet::new();
        for Waiting { dir, name, path, ino, is_new } in waiting {
            // After a failed write it is unknown which files lack bytes, so none gets its name.
            if written.is_ok() {
                let given = named(self.fs.link_over(ino, dir, &name), &path).map(|old| {
                    self.changed(Changed::Name(dir, &name));
                    // The link counts of the replaced file and of a linked file have changed;
                    // either may have other names or be open.
                    old.into_iter()
                        .chain((!is_new).then_some(ino))
                        .for_each(|ino| self.changed(Changed::Inode(ino)));
                    dirs.insert(dir);
                });
                result = result.and(given);
            }
            if is_new {
                self.fs.unpin(ino, 1);
            }
        }
        dirs.into_iter().for_each(|dir| self.changed(Changed::Inode(dir)));
        written.and(result)
    }

    fn describe(&mut self, ino: Ino, meta: &Meta, is_dir: bool) -> Result<()> {
        let owner = self.only().is_none().then_some((meta.uid, meta.gid));
        let (uid, gid) = (owner.map(|(uid, _)| uid), owner.map(|(_, gid)| gid));
        // The kernel lets no user set the set-group-id bit for a group that the user is not in.
        let foreign = match self.only() {
            Some(only) if !is_dir => self.fs.getattr(ino).map_err(with_hint)?.gid != only.gid,
            _ => false,
        };
        let mode = if foreign { meta.mode & !SET_GROUP_ID } else { meta.mode };
        self.set(ino, &SetAttr { mode: Some(mode), uid, gid, ..SetAttr::default() })?;
        for (name, value) in &meta.xattrs {
            if self.only().is_some() && is_roots(name) {
                bail!("attribute {}: only root can set it on a mount", show(name));
            }
            let set = self.fs.setxattr(ino, name, value, XattrMode::Any);
            set.map_err(with_hint).with_context(|| format!("attribute {}", show(name)))?;
            self.unsynced.text += (name.len() + value.len()) as u64;
        }
        let mtime = self.latest.map_or(meta.mtime, |latest| meta.mtime.min(latest));
        if is_dir {
            self.dirs.insert(ino, mtime);
            return Ok(());
        }
        self.set_time(ino, mtime)
    }

    /// Sets both times to the modification time. The source's access time is not copied, because
    /// reading the source has changed it.
    fn set_time(&self, ino: Ino, mtime: Timespec) -> Result<()> {
        let time = Some(SetTime::At(mtime));
        self.set(ino, &SetAttr { atime: time, mtime: time, ..SetAttr::default() })
    }

    fn set(&self, ino: Ino, set: &SetAttr) -> Result<()> {
        self.fs.setattr(ino, set).map(drop).map_err(with_hint)
    }

    /// Counts a complete entry and syncs if enough is unsynced.
    fn note(&mut self, text: usize) -> Result<()> {
        self.entries += 1;
        self.unsynced.entries += 1;
        self.unsynced.text += text as u64;
        if self.shows && self.entries.is_multiple_of(SHOW_EVERY) {
            // Progress that cannot be shown is no reason to stop.
            let _ = write!(std::io::stderr(), "\r{} entries, {} MiB\x1b[K", self.entries, self.bytes >> 20);
        }
        let is_due = match self.live {
            Some(_) => self.waiting.len() >= WAITING_MAX,
            None => self.unsynced.entries >= SYNC_ENTRIES || self.unsynced.text >= SYNC_TEXT,
        };
        if is_due { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<()> {
        self.unsynced = Unsynced::default();
        self.give_names()?;
        if self.live.is_some() {
            return Ok(());
        }
        self.syncs += 1;
        if self.syncs.is_multiple_of(CHECKPOINT_SYNCS) {
            return self.fs.checkpoint().map_err(with_hint).context("write a checkpoint");
        }
        self.fs.sync().map_err(with_hint).context("write to the image")
    }

    /// Names the last files and sets the times of the directories.
    pub fn finish(mut self) -> Result<()> {
        let given = self.give_names();
        for (ino, mtime) in std::mem::take(&mut self.dirs) {
            self.set_time(ino, mtime).with_context(|| format!("time of directory {ino}"))?;
            self.changed(Changed::Inode(ino));
            self.note(0)?;
        }
        given?;
        if self.shows && self.entries >= SHOW_EVERY {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        Ok(())
    }
}

impl Entries for Sink<'_> {
    type Id = Ino;

    fn top(&self) -> Ino {
        self.top
    }

    fn root(&mut self, meta: &Meta) -> Result<()> {
        if self.only().is_some() {
            self.check_own(&self.fs.getattr(self.top).map_err(with_hint)?, b".")?;
        }
        let described = self.describe(self.top, meta, true).context(show(b""));
        self.changed(Changed::Inode(self.top));
        described
    }

    fn directory(&mut self, at: At<'_>, meta: &Meta) -> Result<Ino> {
        let ino = match self.find(at.dir, at.name).with_context(|| show(at.path))? {
            Some(attr) if is_dir(&attr) => {
                self.check_own(&attr, at.path)?;
                attr.ino
            }
            Some(_) => bail!("{}: is there already, and no directory", show(at.path)),
            None => {
                let made = self.fs.mkdir(at.dir, at.name, meta.mode, self.owner(meta));
                let ino = named(made.map(|a| a.ino), at.path)?;
                self.changed(Changed::Name(at.dir, at.name));
                self.changed(Changed::Inode(at.dir));
                ino
            }
        };
        let described = self.describe(ino, meta, true).with_context(|| show(at.path));
        // The directory exists, even if setting its attributes failed.
        self.changed(Changed::Inode(ino));
        described?;
        self.note(at.name.len())?;
        Ok(ino)
    }

    fn file(&mut self, at: At<'_>, meta: &Meta, data: Data<'_>) -> Result<Ino> {
        self.check_view(at.path, meta, false)?;
        self.refuse_directory(at)?;
        let made = self.fs.tmpfile(at.dir, meta.mode, self.owner(meta));
        self.complete(at, made, at.name.len(), |sink, ino| {
            sink.write(ino, at.path, data)?;
            sink.describe(ino, meta, false).with_context(|| show(at.path))
        })
    }

    fn symlink(&mut self, at: At<'_>, target: &[u8], meta: &Meta) -> Result<Ino> {
        self.refuse_directory(at)?;
        let made = self.fs.symlink_nameless(at.dir, target, self.owner(meta));
        // The mode of a symbolic link is always the same.
        let meta = Meta { mode: 0o777, ..meta.clone() };
        self.complete(at, made, at.name.len() + target.len(), |sink, ino| {
            sink.describe(ino, &meta, false).with_context(|| show(at.path))
        })
    }

    fn node(&mut self, at: At<'_>, kind: FileKind, rdev: u64, meta: &Meta) -> Result<Ino> {
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        if self.only().is_some() && is_device {
            bail!("{}: only root can make a device on a mount", show(at.path));
        }
        self.check_view(at.path, meta, is_device)?;
        self.refuse_directory(at)?;
        let mode = kind.mode_bits() | meta.mode;
        let made = self.fs.mknod_nameless(at.dir, mode, rdev, self.owner(meta));
        self.complete(at, made, at.name.len(), |sink, ino| {
            sink.describe(ino, meta, false).with_context(|| show(at.path))
        })
    }

    fn link(&mut self, ino: Ino, at: At<'_>) -> Result<()> {
        self.refuse_directory(at)?;
        self.wait_for_name(at, ino, false, at.name.len())
    }
}

/// Adds an explanation if the image is full.
fn with_hint(e: kedgefs::Error) -> anyhow::Error {
    let full = e.errno() == rustix::io::Errno::NOSPC.raw_os_error();
    let e = anyhow::Error::from(e);
    if full { e.context("the image is full, a larger --size is needed") } else { e }
}

/// Adds the path to an error.
fn named<T>(result: kedgefs::Result<T>, path: &[u8]) -> Result<T> {
    result.map_err(|e| with_hint(e).context(show(path)))
}

/// Whether the kernel lets only root set an extended attribute.
pub fn is_roots(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}
