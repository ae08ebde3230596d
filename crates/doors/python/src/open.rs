//! The open images and files, and how children of this process are refused.
//!
//! # Forks
//! A child has a copy of the caches and of the log's position, but none of the engine's threads.
//! Its writes would destroy the image of its parent, and the locks and threads that the engine
//! keeps for the whole process are not valid in the child. So once a process has opened an image,
//! its children are refused, as by the library for C. A child also drops no object of the engine:
//! its copies stay as they are until the child ends.
//!
//! [`kedge_base::process`] recognises a child, also one that clone(2) makes.

use kedge_base::process;
use kedge_host::embed::{Fault, Outcome};
use kedgefs::{Dir, File, FileSystem};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The image files that this process has open. The lock has no rank, since no other lock is taken
/// while it is held.
static CLAIMS: Mutex<Vec<Claim>> = Mutex::new(Vec::new());

fn of_parent(what: &str) -> Fault {
    Fault::new(libc::EBADF, format!("{what} in a process that was forked after an image was opened"))
}

/// Refuses the child of a process that has opened an image. Otherwise this process counts as one
/// that has opened an image from now on.
pub(crate) fn enter() -> Outcome<()> {
    if process::enter() { Ok(()) } else { Err(of_parent("no image can be opened")) }
}

/// An image file that this process has open. The lock on the image itself cannot show that it is
/// this process, and reports a conflict only after a wait for the other process to end.
#[derive(Clone, PartialEq)]
struct Claim {
    dev: u64,
    ino: u64,
    writes: bool,
}

struct Claimed(Option<Claim>);

impl Claimed {
    /// Claims an image file. A path without a file is left to the engine, which reports what is
    /// wrong with it.
    fn new(image: &Path, writes: bool) -> Outcome<Claimed> {
        let Ok(found) = std::fs::metadata(image) else { return Ok(Claimed(None)) };
        let claim = Claim { dev: found.dev(), ino: found.ino(), writes };
        let mut claims = CLAIMS.lock();
        let is_same = |other: &Claim| (other.dev, other.ino) == (claim.dev, claim.ino);
        if claims.iter().any(|other| is_same(other) && (other.writes || writes)) {
            return Err(Fault::new(libc::EBUSY, "this process has the image open already"));
        }
        claims.push(claim.clone());
        Ok(Claimed(Some(claim)))
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let mut claims = CLAIMS.lock();
        if let Some(at) = claims.iter().position(|claim| Some(claim) == self.0.as_ref()) {
            claims.swap_remove(at);
        }
    }
}

/// The number of locks for appending writes. A writer holds one from reading a file's end to
/// writing there.
const APPENDS: usize = 16;

/// How often a close that waits for calls checks whether a freeze blocks them.
const LOOK: Duration = Duration::from_millis(50);

struct Engine {
    root: Dir,
    // Dropped last: until then the image file is open.
    _claimed: Claimed,
}

/// An open image.
pub(crate) struct Opened {
    /// `None` once the drop has begun.
    engine: Option<Engine>,
    /// Set by the close.
    closed: AtomicBool,
    /// Held shared by each call. The close waits for the calls in progress: a write that the engine
    /// accepts during its close would be lost, and reported as lost. The lock has no rank, since
    /// each thread takes it once, before any lock of the engine.
    calls: RwLock<()>,
    appends: [Mutex<()>; APPENDS],
}

impl Opened {
    fn new(fs: &FileSystem, claimed: Claimed) -> Opened {
        let engine = Engine { root: fs.root().with_owner(kedge_host::embed::owner()), _claimed: claimed };
        Opened {
            engine: Some(engine),
            closed: AtomicBool::new(false),
            calls: RwLock::new(()),
            appends: [const { Mutex::new(()) }; APPENDS],
        }
    }

    pub(crate) fn image(image: &Path, options: &str, writes: bool) -> Outcome<Opened> {
        enter()?;
        let claimed = Claimed::new(image, writes)?;
        let fs = kedge_host::embed::open(image, options)?;
        Ok(Opened::new(&fs, claimed))
    }

    pub(crate) fn memory(size: u64) -> Outcome<Opened> {
        enter()?;
        let fs = FileSystem::in_memory(size)?;
        Ok(Opened::new(&fs, Claimed(None)))
    }

    pub(crate) fn root(&self) -> &Dir {
        &self.engine.as_ref().expect("it is taken by the drop only").root
    }

    pub(crate) fn fs(&self) -> &FileSystem {
        self.root().file_system()
    }

    pub(crate) fn is_ours(&self) -> bool {
        !process::is_child()
    }

    pub(crate) fn check_process(&self) -> Outcome<()> {
        if self.is_ours() { Ok(()) } else { Err(of_parent("the file system belongs to the parent")) }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Enters a call. Returns `None` once the close has begun.
    pub(crate) fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let inside = self.calls.read();
        (!self.is_closed()).then_some(inside)
    }

    /// Waits for the calls in progress, and closes the image.
    pub(crate) fn close(&self) -> Outcome<()> {
        self.closed.store(true, Ordering::Release);
        // A call in progress may wait for the end of a freeze, or may be the freeze itself, so thaw
        // first. If the thaw fails, the engine's close ends the freeze, and such calls fail.
        let _alone = loop {
            if self.fs().frozen_since().is_some() && self.fs().thaw().is_err() {
                break None;
            }
            if let Some(alone) = self.calls.try_write_for(LOOK) {
                break Some(alone);
            }
        };
        Ok(self.fs().close()?)
    }

    /// The lock for appending writes to a file. Several files may share one.
    pub(crate) fn append_lock(&self, file: &File) -> &Mutex<()> {
        &self.appends[file.ino().0 as usize % APPENDS]
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.is_ours() {
            std::mem::forget(self.engine.take());
        }
    }
}

/// An open file, with its position.
pub(crate) struct OpenFile {
    /// `None` once the drop has begun.
    file: Option<File>,
    /// Held during a read or write that moves the position, never while a thread waits for the
    /// interpreter's lock.
    pub(crate) position: Mutex<u64>,
    pub(crate) opened: Arc<Opened>,
}

impl OpenFile {
    pub(crate) fn new(opened: Arc<Opened>, file: File) -> OpenFile {
        OpenFile { file: Some(file), position: Mutex::new(0), opened }
    }

    pub(crate) fn file(&self) -> &File {
        self.file.as_ref().expect("it is taken by the drop only")
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if !self.opened.is_ours() {
            std::mem::forget(self.file.take());
        }
    }
}
