//! The image that is being filled.
//!
//! # Whole files
//! All but directories is made without a name, and gets its name when it is complete: contents,
//! owner, attributes, times. If another file has the name, the same operation takes it from that
//! one. So nobody sees a part of a file:
//! - *An error*: a file without a name goes.
//! - *The kernel*, where the file system is mounted: it cannot come to know an inode that has no
//!   name, and so keeps no size, page or attribute from the time before.
//! - *A crash*: each name is found with the old file or with the new one, whole, or with none where
//!   there was none. Before names are given, the bytes of their files are written in place and the
//!   records that say so are logged ([`FileSystem::write_back`]). The record of a name comes later
//!   in the log, so whatever a crash leaves of the log has both or no name. Files without a name
//!   are deleted by recovery. This needs no flush: when the copy is durable is for the caller.
//!
//! Names are given for many files at once, as writing one file costs as much as writing a hundred
//! that lie side by side. A directory is made at once, and one that is there stays: it is the files
//! in it that are replaced. Times of directories are set at the end, as each new entry moves them.

use super::{BLOCK, is_dir, read_full, show};
use anyhow::{Context, Result, bail};
use kedge_host::engine;
use kedgefs::{Attr, FileKind, FileSystem, Ino, Owner, SetAttr, SetTime, Timespec, XattrMode};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{Read, Write};

/// Bytes that are written with one call.
const CHUNK: usize = 1 << 20;
/// A third of what makes the flusher wake: a quarter of the budget for pages, which is three
/// eighths of the cache that the image is opened with.
const SYNC_BYTES: u64 = engine::FILL_CACHE / 8 * 3 / 4 / 3;
/// Records of so many entries fit one batch of the log.
const SYNC_ENTRIES: u64 = 128;
/// Attributes and targets count, too.
const SYNC_TEXT: u64 = 128 << 10;
/// Syncs between two checkpoints: few enough tree nodes are dirty that none starts by itself.
const CHECKPOINT_SYNCS: u64 = 64;
/// Files of a mount that wait for their names, and their bytes.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES: u64 = 16 << 20;
const SHOW_EVERY: u64 = 256;
const SET_IDS: u32 = 0o6000;
const SET_GROUP_ID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const FILE_CAPABILITIES: &[u8] = b"security.capability";

/// What every kind of file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timespec,
    /// Names with their namespaces.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where data lies in a file: offset and length, ascending.
pub type Ranges = Vec<(u64, u64)>;

/// Takes the entries of a source, a directory before what it holds.
pub trait Entries {
    /// A file that was made. Files are put below it, or linked to it.
    type Id: Clone;
    /// The directory where paths begin.
    fn top(&self) -> Self::Id;
    /// Attributes of that directory.
    fn root(&mut self, meta: &Meta) -> Result<()>;
    /// A directory, new or there already.
    fn directory(&mut self, at: At<'_, Self::Id>, meta: &Meta) -> Result<Self::Id>;
    fn file(&mut self, at: At<'_, Self::Id>, meta: &Meta, data: Data<'_>) -> Result<Self::Id>;
    fn symlink(&mut self, at: At<'_, Self::Id>, target: &[u8], meta: &Meta) -> Result<Self::Id>;
    /// A device, a pipe or a socket.
    fn node(&mut self, at: At<'_, Self::Id>, kind: FileKind, rdev: u64, meta: &Meta) -> Result<Self::Id>;
    /// A further name of a file.
    fn link(&mut self, file: Self::Id, at: At<'_, Self::Id>) -> Result<()>;
}

/// Where a new file goes.
#[derive(Clone, Copy)]
pub struct At<'a, D = Ino> {
    pub dir: D,
    pub name: &'a [u8],
    /// For messages: as the source names it.
    pub path: &'a [u8],
}

/// What a regular file holds.
pub struct Data<'a> {
    /// With holes.
    pub size: u64,
    pub ranges: &'a [(u64, u64)],
    /// Delivers one range after another.
    pub reader: &'a mut dyn Read,
}

/// What the kernel may know otherwise.
#[derive(Clone, Copy, Debug)]
pub enum Changed<'a> {
    /// A name of a directory is new, or stands for another file.
    Name(Ino, &'a [u8]),
    /// The attributes of an inode, and what a directory lists. After all of its names.
    Inode(Ino),
}

/// A mount whose file system is filled.
pub struct Live<'a> {
    pub changed: &'a dyn Fn(Changed<'_>),
    /// Everything belongs to this user, who may do no more than through the kernel. `None`: root.
    pub only: Option<Owner>,
    /// Whoever fills it reaches it through a mount that honours no set-id bits and no file
    /// capabilities: root makes none there.
    pub nosuid: bool,
    /// ... and no devices.
    pub nodev: bool,
}

/// A file that is complete, and the name that it is to have.
struct Waiting {
    dir: Ino,
    name: Vec<u8>,
    path: Vec<u8>,
    ino: Ino,
    /// Made here: pinned as long as it waits.
    is_new: bool,
}

pub struct Sink<'a> {
    fs: &'a FileSystem,
    live: Option<Live<'a>>,
    waiting: Vec<Waiting>,
    /// The names among them.
    waiting_names: HashSet<(Ino, Vec<u8>)>,
    /// Where paths begin.
    pub top: Ino,
    /// No time is later.
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
            waiting_names: HashSet::new(),
            top,
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

    /// Fills the file system of a mount. The caller makes it durable.
    pub fn live(fs: &'a FileSystem, top: Ino, live: Live<'a>) -> Sink<'a> {
        Sink { live: Some(live), ..Sink::new(fs, top, None, false) }
    }

    /// The inode of a name, if there is one.
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

    fn write(&mut self, ino: Ino, path: &[u8], mut data: Data<'_>) -> Result<()> {
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
        // The files before this one get their names: it has none that could wait.
        let max = if self.live.is_some() { WAITING_BYTES } else { SYNC_BYTES };
        if self.unsynced.bytes >= max { self.sync() } else { Ok(()) }
    }

    fn only(&self) -> Option<Owner> {
        self.live.as_ref().and_then(|live| live.only)
    }

    fn owner(&self, meta: &Meta) -> Owner {
        self.only().unwrap_or(Owner { uid: meta.uid, gid: meta.gid })
    }

    /// These are not what the kernel knows of them.
    fn changed(&self, what: Changed<'_>) {
        if let Some(live) = &self.live {
            (live.changed)(what);
        }
    }

    /// Root makes nothing that its view of a mount does not honour: it may have been given that
    /// view so that it cannot.
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

    /// An ordinary user fills directories, and links files, that are the user's own.
    pub fn check_own(&self, there: &Attr, path: &[u8]) -> Result<()> {
        match self.only() {
            Some(only) if there.uid != only.uid => {
                bail!("{}: there already, and another user's", show(path))
            }
            _ => Ok(()),
        }
    }

    /// In a sticky directory others' files stay.
    fn check_sticky(&self, dir: Ino, there: &Attr, path: &[u8]) -> Result<()> {
        let Some(only) = self.only().filter(|only| only.uid != there.uid) else { return Ok(()) };
        let above = named(self.fs.getattr(dir), path)?;
        if above.mode & STICKY != 0 && above.uid != only.uid {
            bail!("{}: there already, and another user's", show(path));
        }
        Ok(())
    }

    /// A later entry takes the place of an earlier one, unless one is a directory.
    fn refuse_directory(&mut self, at: At<'_>) -> Result<()> {
        match self.find(at.dir, at.name).with_context(|| show(at.path))? {
            Some(attr) if is_dir(&attr) => bail!("{}: is there already, as a directory", show(at.path)),
            Some(attr) => self.check_sticky(at.dir, &attr, at.path),
            None => Ok(()),
        }
    }

    /// A file without a name has been made. It is completed and waits for its name, or goes.
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

    /// Gives all that waits its name, in the order of the entries. One that cannot have it goes,
    /// and keeps no other from having its own.
    fn give_names(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_names.clear();
        let new: Vec<Ino> = waiting.iter().filter(|w| w.is_new).map(|w| w.ino).collect();
        let written = self.fs.write_back(&new).map_err(told).context("write to the image");
        let mut result = Ok(());
        let mut dirs = BTreeSet::new();
        for Waiting { dir, name, path, ino, is_new } in waiting {
            // After an error nobody knows whose bytes are missing.
            if written.is_ok() {
                let given = named(self.fs.link_over(ino, dir, &name), &path).map(|old| {
                    self.changed(Changed::Name(dir, &name));
                    // Links of a file, whether or not it has others, and to whom it is open.
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
        // The kernel lets nobody give away the rights of a group that is not the user's.
        let foreign = match self.only() {
            Some(only) if !is_dir => self.fs.getattr(ino).map_err(told)?.gid != only.gid,
            _ => false,
        };
        let mode = if foreign { meta.mode & !SET_GROUP_ID } else { meta.mode };
        self.set(ino, &SetAttr { mode: Some(mode), uid, gid, ..SetAttr::default() })?;
        for (name, value) in &meta.xattrs {
            if self.only().is_some() && is_roots(name) {
                bail!("attribute {}: only root can set it on a mount", show(name));
            }
            let set = self.fs.setxattr(ino, name, value, XattrMode::Any);
            set.map_err(told).with_context(|| format!("attribute {}", show(name)))?;
            self.unsynced.text += (name.len() + value.len()) as u64;
        }
        let mtime = self.latest.map_or(meta.mtime, |latest| meta.mtime.min(latest));
        if is_dir {
            self.dirs.insert(ino, mtime);
            return Ok(());
        }
        self.set_time(ino, mtime)
    }

    /// A time of reading is not taken over: reading the source has moved it.
    fn set_time(&self, ino: Ino, mtime: Timespec) -> Result<()> {
        let time = Some(SetTime::At(mtime));
        self.set(ino, &SetAttr { atime: time, mtime: time, ..SetAttr::default() })
    }

    fn set(&self, ino: Ino, set: &SetAttr) -> Result<()> {
        self.fs.setattr(ino, set).map(drop).map_err(told)
    }

    /// An entry is complete.
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
            return self.fs.checkpoint().map_err(told).context("write a checkpoint");
        }
        self.fs.sync().map_err(told).context("write to the image")
    }

    /// Gives the last names, and sets the times of the directories.
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
            self.check_own(&self.fs.getattr(self.top).map_err(told)?, b".")?;
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
        // It is there, whether or not it could be described.
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
        // Its mode is always the same.
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

/// In people's words when the image is full.
fn told(e: kedgefs::Error) -> anyhow::Error {
    let full = e.errno() == rustix::io::Errno::NOSPC.raw_os_error();
    let e = anyhow::Error::from(e);
    if full { e.context("the image is full, a larger --size is needed") } else { e }
}

/// Names the file.
fn named<T>(result: kedgefs::Result<T>, path: &[u8]) -> Result<T> {
    result.map_err(|e| told(e).context(show(path)))
}

/// Whether the kernel lets only root set an extended attribute.
pub fn is_roots(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}
