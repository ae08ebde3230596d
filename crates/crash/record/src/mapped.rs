//! Collects what programs store through shared mappings: before each recorded call, the recorder
//! lets the kernel write the dirty pages of the files that may be mapped.
//!
//! A store makes no request. The mount gets it when the kernel writes the page. Without this module
//! that happens at msync, fsync, munmap or at any other time, when a later store may have replaced
//! the first. A call of the program waits for the mount's reply, so the pages that the kernel
//! writes before the reply contain what the calling thread stored before the call. Written pages
//! are write-protected, and the next store makes them dirty again. So each store is recorded before
//! the next recorded call of its thread.
//!
//! # Why no impossible state is recorded
//! The kernel may write a dirty page at any time, and the pages are recorded as bytes that no call
//! made durable. A store that is recorded late is one that a crash may lose until then, which it
//! may in any case: msync and fsync write the pages that they promise before they reach the mount.
//! They promise no other pages: an msync makes only its own range durable ([`crate::msync`]), and a
//! persistence call covers the events before it arrived, not the pages collected for it.
//!
//! # Which files
//! A shared writable mapping needs a file that is open for reading and writing, and keeps the file
//! open. The mount sees these opens ([`Ops::opened_to_store`](kedge_fuse::Ops)). The recorder needs
//! an open file too, to make the kernel write its pages. It opens the file by its inode number in a
//! directory that no listing shows, since the program may have renamed or removed the file's name.
//!
//! # Why no thread waits forever
//! The thread that collects waits for the kernel, which waits for WRITEs to the mount. Other
//! workers of the mount serve these WRITEs, without collecting. What else could delay a WRITE:
//! - *Locks of the calling thread*, which waits for the recorder. Writing pages takes no lock of an
//!   inode. Opening by number locks only the directory of these numbers, which no program uses.
//! - *Pages that the calling thread writes with write(2)*: the kernel has locked them until the
//!   reply. The recorder leaves them out.
//! - *A change of the size* of a file: the kernel writes no page of it until the reply. So the
//!   pages of that file are left out.
//! - *Another thread that collects* may wait for just these pages. So a thread with a write or a
//!   change of the size never waits for another thread that collects.
//! - *A worker that holds the log*, which a WRITE needs. The worker waits for no lock of a process
//!   ([`crate::processes`]): munmap holds the mmap lock while it writes pages.
//! - *Too few workers*: so only a few threads collect or wait to collect at a time. A further call
//!   is recorded without collecting; its stores follow later, and are counted.

use crate::error::RecordError;
use crate::msync::{Named, Persists, waits_for};
use kedge_base::wait::about_to_wait;
use kedge_crash::page::PAGE;
use kedgefs::Ino;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Mode, OFlags, fstat, major, minor, open, openat};
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// The oldest suitable kernel: older ones copy a dirty page, count it as written, and send the copy
/// later.
const LINUX_MIN: (u32, u32) = (6, 16);
/// The name of the directory below the root in which files are opened by number.
pub(crate) const FILES_DIR: &str = ".kedge-mapped";
/// The most threads that collect or wait to collect. This is far below the number of a mount's
/// workers.
const THREADS_MAX: usize = 16;
/// The recorder opens at most the number of descriptors of this process divided by this.
const FILES_SHARE: u64 = 2;

/// The pages that a call excludes from collecting.
pub(crate) enum Except {
    None,
    /// The pages of a file whose size changes.
    File(Ino),
    /// The pages of a file that contain these bytes.
    Bytes(Ino, Range<u64>),
}

/// Stores that could not be recorded before the next call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// The number of calls that were recorded while other threads collected.
    pub calls: u64,
    /// The number of files that the recorder could not open.
    pub files: u64,
    /// The number of msync calls that are recorded as an fsync, because their range was not found.
    pub msyncs: u64,
}

/// The collector of stores; see the module.
pub(crate) struct Mapped {
    /// The inode of [`FILES_DIR`].
    pub dir: Ino,
    opens: Mutex<Opens>,
    files: Mutex<Files>,
    /// The device number of the mount (major, minor).
    device: OnceLock<(u32, u32)>,
    /// Whether the recorder must collect: it has files open, or files to open or close.
    is_needed: AtomicBool,
    /// Whether the kernel has written stores so far. Then it may write some at the next call too.
    has_stores: AtomicBool,
    threads: AtomicUsize,
    calls_missed: AtomicU64,
    msyncs_missed: AtomicU64,
}

/// The files that the program has open for reading and writing.
#[derive(Default)]
struct Opens {
    counts: BTreeMap<u64, u64>,
    /// Whether `counts` has other files than at the recorder's last look.
    has_changed: bool,
}

/// The files that the recorder has open.
#[derive(Default)]
struct Files {
    /// The open [`FILES_DIR`], while the mount is served.
    dir: Option<OwnedFd>,
    open: BTreeMap<u64, OwnedFd>,
    refused: BTreeSet<u64>,
}

/// One of [`THREADS_MAX`] permissions to wait for other workers.
struct Slot<'a>(&'a AtomicUsize);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Mapped {
    /// Fails if this kernel's writeback does not wait until the mount has the pages.
    pub fn check() -> Result<(), RecordError> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        match version(&release).is_some_and(|version| version >= LINUX_MIN) {
            true => Ok(()),
            false => Err(RecordError::NoMappings { needed: LINUX_MIN, release }),
        }
    }

    pub fn new(dir: Ino) -> Mapped {
        Mapped {
            dir,
            opens: Mutex::default(),
            files: Mutex::default(),
            device: OnceLock::new(),
            is_needed: AtomicBool::new(false),
            has_stores: AtomicBool::new(false),
            threads: AtomicUsize::new(0),
            calls_missed: AtomicU64::new(0),
            msyncs_missed: AtomicU64::new(0),
        }
    }

    /// Starts collecting. The mount on this directory is served from now on.
    pub fn begin(&self, mount: &Path) -> std::io::Result<()> {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(mount.join(FILES_DIR), how, Mode::empty())?;
        let device = fstat(&dir)?.st_dev;
        // `begin` is called once for each mount.
        assert!(self.device.set((major(device), minor(device))).is_ok(), "the device of a mount is known");
        self.files.lock().dir = Some(dir);
        Ok(())
    }

    /// Closes all files that would keep the mount in use.
    pub fn end(&self) {
        let mut files = self.files.lock();
        files.dir = None;
        files.open.clear();
    }

    pub fn opened(&self, ino: Ino) {
        let mut opens = self.opens.lock();
        let count = opens.counts.entry(ino.0).or_insert(0);
        *count += 1;
        if *count == 1 {
            opens.has_changed = true;
            self.is_needed.store(true, Relaxed);
        }
    }

    pub fn closed(&self, ino: Ino) {
        let mut opens = self.opens.lock();
        let Some(count) = opens.counts.get_mut(&ino.0) else { return };
        *count -= 1;
        if *count == 0 {
            opens.counts.remove(&ino.0);
            opens.has_changed = true;
            self.is_needed.store(true, Relaxed);
        }
    }

    /// Notes that the kernel has written stores to the mount.
    pub fn stored(&self) {
        self.has_stores.store(true, Relaxed);
    }

    fn slot(&self) -> Option<Slot<'_>> {
        let slot = Slot(&self.threads);
        (self.threads.fetch_add(1, Relaxed) < THREADS_MAX).then_some(slot)
    }

    /// Makes the kernel write all dirty pages of the files that may be mapped. The caller must hold
    /// no lock that a WRITE needs.
    pub fn collect(&self, except: &Except) {
        if !self.is_needed.load(Relaxed) {
            return;
        }
        let slot = self.slot();
        let Some(mut files) = slot.as_ref().and_then(|_| self.files_for(except)) else {
            self.calls_missed.fetch_add(1, Relaxed);
            return;
        };
        if self.has_stores.load(Relaxed) {
            about_to_wait();
        }
        self.follow(&mut files);
        for (ino, file) in &files.open {
            if let Err(e) = write_back(file, Ino(*ino), except) {
                tracing::warn!("the stores to inode {ino} are recorded later: {e}");
            }
        }
    }

    fn files_for(&self, except: &Except) -> Option<MutexGuard<'_, Files>> {
        let free = self.files.try_lock();
        match except {
            // This thread must not wait for another one that collects (see the module).
            Except::File(_) | Except::Bytes(..) => free,
            Except::None => Some(free.unwrap_or_else(|| {
                about_to_wait();
                self.files.lock()
            })),
        }
    }

    /// Opens and closes files to follow the opens of the program.
    fn follow(&self, files: &mut Files) {
        let wanted: BTreeSet<u64> = {
            let mut opens = self.opens.lock();
            if !std::mem::take(&mut opens.has_changed) {
                return;
            }
            self.is_needed.store(!opens.counts.is_empty(), Relaxed);
            opens.counts.keys().copied().collect()
        };
        about_to_wait();
        files.open.retain(|ino, _| wanted.contains(ino));
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / FILES_SHARE;
        for ino in wanted {
            let Some(dir) = files.dir.as_ref().filter(|_| !files.open.contains_key(&ino)) else { continue };
            let opened = match (files.open.len() as u64) < limit {
                true => openat(dir, ino.to_string(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()),
                false => Err(rustix::io::Errno::MFILE),
            };
            match opened {
                Ok(file) => drop(files.open.insert(ino, file)),
                Err(e) => {
                    tracing::debug!("inode {ino}, which may be mapped, cannot be opened: {e}");
                    files.refused.insert(ino);
                }
            }
        }
    }

    /// The ranges that the msync promises in which a thread waits. `None` if the thread's call
    /// promises the whole file.
    pub fn msync_ranges(&self, ino: Ino, tid: u32) -> Option<Vec<(u64, u64)>> {
        let device = *self.device.get()?;
        if tid == 0 || !self.opens.lock().counts.contains_key(&ino.0) {
            return None;
        }
        // Reading the mappings of a process waits for its mmap lock, which another thread's munmap
        // may hold while it writes pages.
        let slot = self.slot();
        about_to_wait();
        let found = match slot {
            Some(_) => waits_for(tid, Named { device, ino: ino.0 }),
            None => Err(rustix::io::Errno::BUSY.into()),
        };
        match found {
            Ok(Persists::File) => None,
            Ok(Persists::Ranges(ranges)) => Some(ranges),
            Err(e) => {
                tracing::debug!("what thread {tid} waits for cannot be read: {e}");
                self.msyncs_missed.fetch_add(1, Relaxed);
                None
            }
        }
    }

    pub fn unseen(&self) -> Unseen {
        Unseen {
            calls: self.calls_missed.load(Relaxed),
            files: self.files.lock().refused.len() as u64,
            msyncs: self.msyncs_missed.load(Relaxed),
        }
    }
}

/// The first two numbers of a kernel's release string.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn write_back(file: &OwnedFd, ino: Ino, except: &Except) -> std::io::Result<()> {
    match except {
        Except::File(other) if *other == ino => Ok(()),
        Except::Bytes(other, bytes) if *other == ino => {
            let page = PAGE as u64;
            let (from, to) = (bytes.start / page * page, bytes.end.next_multiple_of(page));
            if from > 0 {
                kedge_fuse::write_back(file, 0, from)?;
            }
            kedge_fuse::write_back(file, to, 0)
        }
        Except::None | Except::File(_) | Except::Bytes(..) => kedge_fuse::write_back(file, 0, 0),
    }
}

#[cfg(test)]
#[path = "mapped_tests.rs"]
mod tests;
