//! What is open, and the children of this process.
//!
//! # Forks
//! A child has a copy of the caches and of the log's position, but none of the engine's threads.
//! Its writes would destroy the image of its parent, and a lock that another thread held at the
//! fork stays locked. So each call compares the process with that which opened the image, and a
//! child drops nothing of the engine: its copy is left as it is until the child ends. An image that
//! is opened in the child itself needs an engine whose locks are free. So a child opens images only
//! if none was open, or being opened, at the fork.
//!
//! The process's number is asked from the kernel each time. `pthread_atfork` would save these 50 ns,
//! but it needs unsafe code and misses children that clone(2) makes.

use kedge_host::embed::{Fault, Outcome};
use kedgefs::{Dir, File, FileSystem, Owner};
use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Images that are open, or are being opened or made.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// The process that they belong to. Set before `LIVE` is raised, so that a fork in between leaves
/// none that count.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Files that are open as images here. It has no rank, since no other lock is taken while it is
/// held.
static CLAIMS: Mutex<Vec<Claim>> = Mutex::new(Vec::new());

fn of_parent(what: &str) -> Fault {
    Fault::new(libc::EBADF, format!("{what} in a process that was forked while images were open"))
}

/// Permission for this process to run an engine, and the count of it.
pub(crate) struct Live(u32);

impl Live {
    pub(crate) fn begin() -> Outcome<Live> {
        let here = process::id();
        if LIVE.load(Ordering::SeqCst) > 0 && OWNER.load(Ordering::SeqCst) != here {
            return Err(of_parent("no image can be opened"));
        }
        OWNER.store(here, Ordering::SeqCst);
        LIVE.fetch_add(1, Ordering::SeqCst);
        Ok(Live(here))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.0 == process::id() {
            LIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// An image file that this process has open. The lock of the image says only that some process has,
/// and only after a wait for the end of that process.
#[derive(Clone, PartialEq)]
struct Claim {
    dev: u64,
    ino: u64,
    writes: bool,
}

struct Claimed(Option<Claim>);

impl Claimed {
    /// A name that is no file is left to the engine, which says what is wrong with it.
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

/// Locks of appending writes: one of them is held from the look at a file's end to the write there.
const APPENDS: usize = 16;

struct Engine {
    root: Dir,
    _claimed: Claimed,
    // Dropped last: until then the engine is there.
    _live: Live,
}

/// An open image.
pub(crate) struct Opened {
    /// `None` after the drop began.
    engine: Option<Engine>,
    process: u32,
    /// Set by the close.
    closed: AtomicBool,
    appends: [Mutex<()>; APPENDS],
}

impl Opened {
    fn new(fs: &FileSystem, owner: Owner, claimed: Claimed, live: Live) -> Opened {
        let engine = Engine { root: fs.root().with_owner(owner), _claimed: claimed, _live: live };
        Opened {
            process: engine._live.0,
            engine: Some(engine),
            closed: AtomicBool::new(false),
            appends: [const { Mutex::new(()) }; APPENDS],
        }
    }

    pub(crate) fn image(image: &Path, options: &str, writes: bool) -> Outcome<Opened> {
        let live = Live::begin()?;
        let claimed = Claimed::new(image, writes)?;
        let fs = kedge_host::embed::open(image, options)?;
        Ok(Opened::new(&fs, kedge_host::embed::owner(), claimed, live))
    }

    pub(crate) fn memory(size: u64) -> Outcome<Opened> {
        let live = Live::begin()?;
        let fs = FileSystem::in_memory(size)?;
        Ok(Opened::new(&fs, kedge_host::embed::owner(), Claimed(None), live))
    }

    pub(crate) fn root(&self) -> &Dir {
        &self.engine.as_ref().expect("it is taken by the drop only").root
    }

    pub(crate) fn fs(&self) -> &FileSystem {
        self.root().file_system()
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.process == process::id()
    }

    pub(crate) fn check_process(&self) -> Outcome<()> {
        if self.is_ours() { Ok(()) } else { Err(of_parent("the file system belongs to the parent")) }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) -> Outcome<()> {
        self.closed.store(true, Ordering::Release);
        Ok(self.fs().close()?)
    }

    /// The lock of appending writes to a file.
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
    /// `None` after the drop began.
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
