//! A file system in memory for tests of stores written in Rust. It records what the store does; a
//! crash state of the recording is another `Disk`, on which the store recovers.
//!
//! ```
//! use kedge_crash::{Disk, Model, explore_in_memory};
//!
//! let disk = Disk::new();
//! let file = disk.create("log").unwrap();
//! file.write_at(0, b"entry").unwrap();
//! file.sync_all().unwrap();
//! disk.tell("entry");
//! // The name was never made persistent: a crash may lose the file that the mark promises.
//! let found = explore_in_memory(&disk.trace(), Model::by_name("posix").unwrap(), |disk, told| {
//!     match told.is_empty() || disk.read("log").is_ok_and(|bytes| bytes == b"entry") {
//!         true => Ok(()),
//!         false => Err("the entry is lost".to_owned()),
//!     }
//! });
//! assert!(found.failures[0].sentence.contains("fsync(\".\")"));
//! ```

use crate::edit::Meta;
use crate::model::STRICT;
use crate::split::Splitter;
use crate::state::{Body, Node, ROOT, State};
use crate::trace::{Call, Event, Trace};
use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

/// A file system in memory. Clones share its content.
#[derive(Clone)]
pub struct Disk {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    state: State,
    splitter: Splitter,
    events: Vec<Event>,
    next_ino: u64,
}

impl Inner {
    fn run(&mut self, call: Call) {
        let time = self.events.len() as u64 * 1000;
        let event = Event { time, pid: 0, tid: 0, errno: 0, call, stack: Vec::new() };
        self.splitter.add(self.events.len() as u32, &event);
        for micro in self.splitter.settle() {
            self.state.apply(&micro.edit);
        }
        self.events.push(event);
    }

    fn find(&self, path: &str) -> Result<(u64, &Arc<Node>)> {
        self.state.find(path.as_bytes()).ok_or_else(|| Error::from(ErrorKind::NotFound))
    }

    /// The directory that contains a path, and the name in it.
    fn place(&self, path: &str) -> Result<(u64, Vec<u8>)> {
        let path = path.trim_matches('/');
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (ino, node) = self.find(dir)?;
        match (&node.body, name) {
            (_, "" | "." | "..") => Err(ErrorKind::InvalidInput.into()),
            (Body::Dir(_), name) => Ok((ino, name.as_bytes().to_vec())),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn size(&self, ino: u64) -> u64 {
        match self.state.node(ino).map(|n| &n.body) {
            Some(Body::File(file)) => file.size,
            _ => 0,
        }
    }

    fn make(&mut self, path: &str, mode: u32) -> Result<u64> {
        let (dir, name) = self.place(path)?;
        if self.find(path).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        self.run(Call::Create { dir, name, ino, mode, uid: 0, gid: 0, target: None });
        Ok(ino)
    }
}

impl Default for Disk {
    fn default() -> Disk {
        Disk::new()
    }
}

impl Disk {
    /// An empty disk.
    pub fn new() -> Disk {
        Disk::after(State::default())
    }

    /// The disk after a crash that left `state`.
    pub fn after(state: State) -> Disk {
        let next_ino = state.ino_max() + 1;
        let splitter = Splitter::new(STRICT);
        Disk { inner: Arc::new(Mutex::new(Inner { state, splitter, events: Vec::new(), next_ino })) }
    }

    /// The recording of all calls so far.
    pub fn trace(&self) -> Trace {
        Trace { events: self.inner.lock().events.clone() }
    }

    /// The current tree.
    pub fn state(&self) -> State {
        self.inner.lock().state.clone()
    }

    /// Marks a promise: from now on the user relies on `text`.
    pub fn tell(&self, text: &str) {
        self.inner.lock().run(Call::Mark { text: text.to_owned() });
    }

    /// Makes everything done so far part of every crash state.
    pub fn settle(&self) {
        self.inner.lock().run(Call::Baseline);
    }

    /// Creates a file; the path must not exist.
    pub fn create(&self, path: &str) -> Result<DiskFile> {
        let ino = self.inner.lock().make(path, Meta::FILE | 0o644)?;
        Ok(DiskFile { disk: self.clone(), ino })
    }

    pub fn open(&self, path: &str) -> Result<DiskFile> {
        let ino = self.inner.lock().find(path)?.0;
        Ok(DiskFile { disk: self.clone(), ino })
    }

    pub fn create_dir(&self, path: &str) -> Result<()> {
        self.inner.lock().make(path, Meta::DIR | 0o755).map(|_| ())
    }

    pub fn exists(&self, path: &str) -> bool {
        self.inner.lock().find(path).is_ok()
    }

    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let inner = self.inner.lock();
        inner.find(path)?;
        inner.state.content(path.as_bytes()).ok_or_else(|| ErrorKind::IsADirectory.into())
    }

    /// The names in a directory, sorted.
    pub fn read_dir(&self, path: &str) -> Result<Vec<String>> {
        match &self.inner.lock().find(path)?.1.body {
            Body::Dir(entries) => {
                Ok(entries.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
            }
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut inner = self.inner.lock();
        let ((dir, name), (new_dir, new_name)) = (inner.place(from)?, inner.place(to)?);
        let ino = inner.find(from)?.0;
        let victim = inner.find(to).ok().map(|(ino, _)| ino);
        if victim != Some(ino) {
            inner.run(Call::Rename { dir, name, new_dir, new_name, ino, victim, exchange: false });
        }
        Ok(())
    }

    pub fn hard_link(&self, from: &str, to: &str) -> Result<()> {
        let mut inner = self.inner.lock();
        let ino = inner.find(from)?.0;
        let (dir, name) = inner.place(to)?;
        if inner.find(to).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        inner.run(Call::Link { ino, dir, name });
        Ok(())
    }

    /// Removes a file or an empty directory.
    pub fn remove(&self, path: &str) -> Result<()> {
        let mut inner = self.inner.lock();
        let (dir, name) = inner.place(path)?;
        let (ino, node) = inner.find(path)?;
        let is_dir = match &node.body {
            Body::Dir(entries) if !entries.is_empty() => return Err(ErrorKind::DirectoryNotEmpty.into()),
            Body::Dir(_) => true,
            _ => false,
        };
        inner.run(Call::Remove { dir, name, ino, is_dir });
        Ok(())
    }

    /// fsync of a directory (or file) by path; the root is "".
    pub fn sync(&self, path: &str) -> Result<()> {
        let ino = self.inner.lock().find(path)?.0;
        DiskFile { disk: self.clone(), ino }.sync_all()
    }
}

/// An open file of a [`Disk`]. It stays usable when its name is gone.
#[derive(Clone)]
pub struct DiskFile {
    disk: Disk,
    ino: u64,
}

impl DiskFile {
    fn run(&self, call: impl FnOnce(&Inner) -> Call) -> Result<()> {
        let mut inner = self.disk.inner.lock();
        let call = call(&inner);
        inner.run(call);
        Ok(())
    }

    pub fn len(&self) -> u64 {
        self.disk.inner.lock().size(self.ino)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.run(|_| Call::Write { ino: self.ino, offset, data: bytes.to_vec(), mapped: false })
    }

    /// A write through a descriptor that was opened with `O_DSYNC`.
    pub fn write_durably_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_at(offset, bytes)?;
        let ranges = vec![(offset, offset.saturating_add(bytes.len() as u64))];
        self.run(|inner| {
            let since = inner.events.len() as u64;
            Call::SyncRange { ino: self.ino, datasync: true, ranges, since }
        })
    }

    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        self.run(|inner| {
            let offset = inner.size(self.ino);
            Call::Write { ino: self.ino, offset, data: bytes.to_vec(), mapped: false }
        })
    }

    pub fn set_len(&self, size: u64) -> Result<()> {
        self.run(|_| Call::Truncate { ino: self.ino, size })
    }

    #[cfg(test)]
    pub(crate) fn allocate(&self, how: crate::trace::Space, offset: u64, len: u64) -> Result<()> {
        self.run(|_| Call::Allocate { ino: self.ino, how, offset, len })
    }

    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> usize {
        match self.disk.inner.lock().state.node(self.ino).map(|n| &n.body) {
            Some(Body::File(file)) => file.read(offset, buf),
            _ => 0,
        }
    }

    pub fn sync_all(&self) -> Result<()> {
        self.sync(false)
    }

    pub fn sync_data(&self) -> Result<()> {
        self.sync(true)
    }

    fn sync(&self, datasync: bool) -> Result<()> {
        self.run(|inner| Call::Fsync { ino: self.ino, datasync, since: inner.events.len() as u64 })
    }
}

/// The inode number of the root directory, for recordings written by hand.
pub const ROOT_INO: u64 = ROOT;
