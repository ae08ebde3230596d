//! The open objects, found by their handles.

use crate::call::{Fault, Held, Outcome};
use crate::table::{Kind, OPEN_MAX, Table};
use crate::types::{KedgeDir, KedgeFile, KedgeFs};
use kedgefs::{Dir, File, FileSystem, Owner, ReadDir};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

static FILE_SYSTEMS: Table<Volume> = Table::new(Kind::FileSystem);
static FILES: Table<OpenFile> = Table::new(Kind::File);
static DIRS: Table<OpenDir> = Table::new(Kind::Dir);

/// Whether this process is a child of one that has opened an image.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Marks this process as the child of a process that has opened an image.
pub(crate) fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Refuses the child of a process that has opened an image. Callers check this before they take any
/// lock of the library: a thread that the child does not have may hold it.
pub(crate) fn check_process() -> Outcome<()> {
    match FORKED.load(Ordering::Relaxed) {
        false => Ok(()),
        true => Err(bad("an image was opened before this process was forked: it belongs to the parent")),
    }
}

fn bad(text: &str) -> Fault {
    Fault::new(libc::EBADF, text)
}

fn too_many() -> Fault {
    Fault::new(libc::ENFILE, format!("{OPEN_MAX} handles of this kind are open"))
}

/// An open file system.
pub(crate) struct Volume {
    pub(crate) fs: FileSystem,
    pub(crate) root: Dir,
    /// Held shared by each call, and exclusively by the close. So the close waits for the calls in
    /// progress, and every write that one of them has accepted is durable when the close returns.
    pub(crate) calls: RwLock<()>,
    /// Set by the close: handles that another thread makes during the close are invalid too.
    closed: AtomicBool,
}

pub(crate) struct OpenFile {
    pub(crate) volume: Arc<Volume>,
    pub(crate) file: File,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

pub(crate) struct OpenDir {
    volume: Arc<Volume>,
    /// Held while the next entry is read. It has no rank, since no other lock is held when it is
    /// taken.
    pub(crate) entries: Mutex<ReadDir>,
}

impl Held for Volume {
    fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    fn calls(&self) -> &RwLock<()> {
        &self.calls
    }
}

impl Held for OpenFile {
    fn file_system(&self) -> &FileSystem {
        &self.volume.fs
    }

    fn calls(&self) -> &RwLock<()> {
        &self.volume.calls
    }
}

impl Held for OpenDir {
    fn file_system(&self) -> &FileSystem {
        &self.volume.fs
    }

    fn calls(&self) -> &RwLock<()> {
        &self.volume.calls
    }
}

impl Volume {
    /// A file system whose new files belong to `owner`.
    pub(crate) fn new(fs: FileSystem, owner: Owner) -> Volume {
        let root = fs.root().with_owner(owner);
        Volume { fs, root, calls: RwLock::new(()), closed: AtomicBool::new(false) }
    }

    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn insert(self) -> Outcome<*mut KedgeFs> {
        let handle = FILE_SYSTEMS.insert(Arc::new(self)).ok_or_else(too_many)?;
        Ok(std::ptr::without_provenance_mut(handle))
    }

    pub(crate) fn find(handle: *mut KedgeFs) -> Outcome<Arc<Volume>> {
        check_process()?;
        FILE_SYSTEMS.get(handle.addr()).ok_or_else(|| bad("not the handle of an open file system"))
    }

    /// Removes the handle of the file system, and the handles of all its files and directories.
    pub(crate) fn take(handle: *mut KedgeFs) -> Outcome<Arc<Volume>> {
        check_process()?;
        let taken = FILE_SYSTEMS.remove(handle.addr());
        let volume = taken.ok_or_else(|| bad("not the handle of an open file system"))?;
        volume.closed.store(true, Ordering::Release);
        drop(FILES.remove_all(|file| Arc::ptr_eq(&file.volume, &volume)));
        drop(DIRS.remove_all(|dir| Arc::ptr_eq(&dir.volume, &volume)));
        Ok(volume)
    }
}

impl OpenFile {
    pub(crate) fn insert(
        volume: Arc<Volume>,
        file: File,
        readable: bool,
        writable: bool,
    ) -> Outcome<*mut KedgeFile> {
        let open = OpenFile { volume, file, readable, writable };
        let handle = FILES.insert(Arc::new(open)).ok_or_else(too_many)?;
        Ok(std::ptr::without_provenance_mut(handle))
    }

    pub(crate) fn find(handle: *mut KedgeFile) -> Outcome<Arc<OpenFile>> {
        check_process()?;
        let found = FILES.get(handle.addr()).filter(|file| file.volume.is_open());
        found.ok_or_else(|| bad("not the handle of an open file"))
    }

    pub(crate) fn take(handle: *mut KedgeFile) -> Outcome<Arc<OpenFile>> {
        check_process()?;
        let taken = FILES.remove(handle.addr()).filter(|file| file.volume.is_open());
        taken.ok_or_else(|| bad("not the handle of an open file"))
    }
}

impl OpenDir {
    pub(crate) fn insert(volume: Arc<Volume>, entries: ReadDir) -> Outcome<*mut KedgeDir> {
        let open = OpenDir { volume, entries: Mutex::new(entries) };
        let handle = DIRS.insert(Arc::new(open)).ok_or_else(too_many)?;
        Ok(std::ptr::without_provenance_mut(handle))
    }

    pub(crate) fn find(handle: *mut KedgeDir) -> Outcome<Arc<OpenDir>> {
        check_process()?;
        let found = DIRS.get(handle.addr()).filter(|dir| dir.volume.is_open());
        found.ok_or_else(|| bad("not the handle of an open directory"))
    }

    pub(crate) fn take(handle: *mut KedgeDir) -> Outcome<Arc<OpenDir>> {
        check_process()?;
        let taken = DIRS.remove(handle.addr()).filter(|dir| dir.volume.is_open());
        taken.ok_or_else(|| bad("not the handle of an open directory"))
    }
}
