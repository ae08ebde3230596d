//! Opening an image: direct IO if available, the lock that excludes a second owner, and the
//! device's geometry.

use super::raw::RawFile;
use super::sys;
use crate::flushes::Flushes;
use crate::interface::OPTIMAL_IO;
use crate::{FuaKind, Geometry};
use kedge_base::{BLOCK_SIZE, Error, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Options for opening an image.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    pub read_only: bool,
    /// Whether to take the lock: exclusive if writable, shared if read-only. Without the lock two
    /// owners can destroy an image, so set it to false only to read an image that is known to be
    /// mounted.
    pub lock: bool,
    /// How long to wait for the lock before the image counts as in use. A process that unmounts
    /// releases the lock as its very last step, and umount(8) may return before that.
    pub lock_wait: Duration,
    /// Whether to fence the present owner of the lock and take the lock. Only RBD devices support
    /// it; others ignore it.
    pub takeover: bool,
    /// Whether to bypass the page cache, if the operating system and the file system support it.
    pub direct: bool,
    /// Whether to serve batches through io_uring, if the kernel allows it.
    pub io_uring: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            lock: true,
            lock_wait: Duration::ZERO,
            takeover: false,
            direct: true,
            io_uring: true,
        }
    }
}

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub offset: u64,
    /// Length in bytes; `None`: up to the end of the file, however long it becomes.
    pub len: Option<u64>,
}

pub(super) fn open(path: &Path, options: OpenOptions, part: Option<Part>) -> Result<(RawFile, Geometry)> {
    let (fd, direct) = open_fd(path, options, OFlags::empty())?;
    finish(path, options, fd, direct, None, part)
}

/// Uses a file that is open for reading and writing, after extending it to `size` bytes if there is
/// a `size`. Errors name it `path`.
pub(super) fn on(
    fd: OwnedFd,
    path: &Path,
    size: Option<u64>,
    options: OpenOptions,
    part: Option<Part>,
) -> Result<(RawFile, Geometry)> {
    let goes_direct = |flag| {
        let flags = rustix::fs::fcntl_getfl(&fd);
        sys::direct_fits(fd.as_fd()) && flags.and_then(|f| rustix::fs::fcntl_setfl(&fd, f | flag)).is_ok()
    };
    let direct = options.direct && sys::DIRECT.is_some_and(goes_direct);
    if options.direct && sys::DIRECT.is_some() && !direct {
        warn_not_direct(path);
    }
    finish(path, options, fd, direct, size.map(|size| size - size % BLOCK_SIZE as u64), part)
}

fn warn_not_direct(path: &Path) {
    tracing::warn!(path = %path.display(), "no direct IO here: going through the page cache");
}

/// Opens a file after creating it or extending it to `size` bytes. The geometry has that size even
/// if the file is larger.
pub(super) fn create(path: &Path, size: u64, options: OpenOptions) -> Result<(RawFile, Geometry)> {
    let size = size - size % BLOCK_SIZE as u64;
    if options.read_only || size == 0 {
        return Err(Error::invalid(format!(
            "cannot create {}: needs a size and write access",
            path.display()
        )));
    }
    let (fd, direct) = match open_fd(path, options, OFlags::CREATE | OFlags::EXCL) {
        Ok(made) => {
            sync_parent(path)?;
            made
        }
        Err(_) if path.exists() => open_fd(path, options, OFlags::empty())?,
        Err(e) => return Err(e),
    };
    finish(path, options, fd, direct, Some(size), None)
}

fn open_fd(path: &Path, options: OpenOptions, flags: OFlags) -> Result<(OwnedFd, bool)> {
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = flags | access | OFlags::CLOEXEC;
    // An image contains the files of all users, so only its owner may read it.
    let mode = Mode::RUSR | Mode::WUSR;
    let failed = |e: Errno| match e {
        Errno::BUSY => busy(path),
        e => Error::invalid(format!("cannot open {}: {}", path.display(), std::io::Error::from(e))),
    };
    if options.direct
        && let Some(direct) = sys::DIRECT
    {
        match rustix::fs::open(path, flags | direct, mode) {
            Ok(fd) if sys::direct_fits(fd.as_fd()) => return Ok((fd, true)),
            Ok(_) | Err(Errno::INVAL) => {
                warn_not_direct(path);
                // An earlier attempt with CREATE may have made the file before the file system
                // refused O_DIRECT.
                return match rustix::fs::open(path, flags - OFlags::EXCL, mode) {
                    Ok(fd) => Ok((fd, false)),
                    Err(e) => Err(failed(e)),
                };
            }
            Err(e) => return Err(failed(e)),
        }
    }
    rustix::fs::open(path, flags, mode).map(|fd| (fd, false)).map_err(failed)
}

fn finish(
    path: &Path,
    options: OpenOptions,
    fd: OwnedFd,
    direct: bool,
    want: Option<u64>,
    part: Option<Part>,
) -> Result<(RawFile, Geometry)> {
    let failed = |what: &str, e: Errno| {
        Error::invalid(format!("cannot {what} {}: {}", path.display(), std::io::Error::from(e)))
    };
    let stat = rustix::fs::fstat(&fd).map_err(|e| failed("examine", e))?;
    let block_device = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        _ => {
            let what = format!("{} is neither a regular file nor a block device", path.display());
            return Err(Error::Invalid(what.into()));
        }
    };
    if options.lock {
        lock(path, &fd, options, block_device, part)?;
    }
    let mut end = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(|e| failed("size", e))?;
    if let Some(want) = want
        && end < want
    {
        if block_device {
            return Err(Error::invalid(format!("{} has {end} bytes, {want} are wanted", path.display())));
        }
        rustix::fs::ftruncate(&fd, want).map_err(|e| failed("grow", e))?;
        end = want;
    }
    let size = want.unwrap_or(end);
    let discard_granularity = match (options.read_only, block_device) {
        (true, _) => 0,
        (false, true) => block_discard_granularity(&stat),
        // Not tried, because the owner of another part may extend the file meanwhile and write
        // where the hole would be punched. The first discard shows whether the host supports it.
        (false, false) if part.is_some() => BLOCK_SIZE as u32,
        (false, false) => file_discard_granularity(&fd, end),
    };
    let geometry = Geometry {
        size: size - size % BLOCK_SIZE as u64,
        optimal_io: OPTIMAL_IO,
        discard_granularity,
        // A hole in a file reads as zeros. Block devices guarantee nothing about discarded ranges,
        // and the kernel no longer relies on their reports either.
        discard_zeroes: !block_device && discard_granularity > 0,
        fua: fua_kind(if block_device { stat.st_rdev } else { stat.st_dev }),
    };
    let raw = RawFile {
        fd,
        name: path.display().to_string().into(),
        direct,
        block_device,
        read_only: options.read_only,
        no_dsync: AtomicBool::new(false),
        no_zero_range: AtomicBool::new(false),
        flushes: Flushes::default(),
    };
    Ok((raw, geometry))
}

fn busy(path: &Path) -> Error {
    Error::Busy(path.display().to_string().into())
}

/// Pause between two attempts to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Minimum wait for the lock of a block device: udev holds a shared lock while it probes a device
/// that was just closed after writing.
const UDEV_WAIT: Duration = Duration::from_millis(500);

/// Takes the lock, waiting if necessary. The lock belongs to the open file description, so it
/// survives a fork into the background and ends with the process.
///
/// The owner of a part takes a shared lock of the file, which excludes a writer of the whole file,
/// and an exclusive lock of the part's range, which excludes other owners of overlapping parts. A
/// reader of the whole file also has only a shared lock of the file, so it additionally locks the
/// range of the whole file.
fn lock(
    path: &Path,
    fd: &OwnedFd,
    options: OpenOptions,
    block_device: bool,
    part: Option<Part>,
) -> Result<()> {
    let wait = if block_device { options.lock_wait.max(UDEV_WAIT) } else { options.lock_wait };
    let mut pauses = wait.as_millis().div_ceil(LOCK_PAUSE.as_millis());
    loop {
        match try_lock(path, fd, options.read_only, block_device, part) {
            Err(Error::Busy(_)) if pauses > 0 => pauses -= 1,
            outcome => return outcome,
        }
        kedge_base::pause(LOCK_PAUSE);
    }
}

fn try_lock(
    path: &Path,
    fd: &OwnedFd,
    read_only: bool,
    block_device: bool,
    part: Option<Part>,
) -> Result<()> {
    let failed = |what: &str, e: Errno| {
        Error::invalid(format!("cannot {what} {}: {}", path.display(), std::io::Error::from(e)))
    };
    if block_device {
        // The exclusive open lasts only for a moment, because a mount that names this device as its
        // source claims the device itself.
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(claimed) => {
                let device = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| stat.st_rdev);
                if device(&claimed).map_err(|e| failed("claim", e))?
                    != device(fd).map_err(|e| failed("claim", e))?
                {
                    return Err(Error::invalid(format!("{} names another file by now", path.display())));
                }
            }
            Err(Errno::BUSY) => return Err(busy(path)),
            Err(e) => return Err(failed("claim", e)),
        }
    }
    let shared = read_only || (part.is_some() && sys::LOCKS_RANGES);
    let operation =
        if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    loop {
        match rustix::fs::flock(fd, operation) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy(path)),
            Err(e) => return Err(failed("lock", e)),
        }
    }
    if !shared || !sys::LOCKS_RANGES {
        return Ok(());
    }
    let Part { offset, len } = part.unwrap_or(Part { offset: 0, len: None });
    match sys::lock_range(fd.as_fd(), offset, len.unwrap_or(0), !read_only) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN | Errno::ACCESS) => Err(busy(path)),
        // A file system without range locks cannot have owners of parts, so a reader of the whole
        // file needs no range lock.
        Err(_) if part.is_none() => Ok(()),
        Err(e) => Err(failed("lock a part of", e)),
    }
}

/// Returns whether no writer holds the lock.
pub(crate) fn is_unlocked(path: &Path, part: Option<Part>) -> Result<bool> {
    let failed = |what: &str, e: Errno| {
        Error::invalid(format!("cannot {what} {}: {}", path.display(), std::io::Error::from(e)))
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed("open", e))?;
    loop {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(e) => return Err(failed("lock", e)),
        }
    }
    let Some(Part { offset, len }) = part.filter(|_| sys::LOCKS_RANGES) else { return Ok(true) };
    match sys::lock_range(fd.as_fd(), offset, len.unwrap_or(0), false) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(e) => Err(failed("lock a part of", e)),
    }
}

/// Finds out by punching a hole beyond `end`, the end of the file, where there is no data. The
/// device may be shorter than the file.
fn file_discard_granularity(fd: &OwnedFd, end: u64) -> u32 {
    match sys::punch(fd, end.next_multiple_of(BLOCK_SIZE as u64), BLOCK_SIZE as u64) {
        Ok(()) => BLOCK_SIZE as u32,
        Err(_) => 0,
    }
}

fn block_discard_granularity(stat: &Stat) -> u32 {
    queue_property(stat.st_rdev, "discard_granularity").unwrap_or(0)
}

/// Returns whether the device performs FUA writes itself: the block device, or the device below the
/// file system of the image file. [`FuaKind::Native`] if the kernel does not publish it.
fn fua_kind(device: rustix::fs::Dev) -> FuaKind {
    if queue_property(device, "fua") == Some(0) { FuaKind::Emulated } else { FuaKind::Native }
}

/// Reads a number that the kernel publishes about the request queue of a block device.
fn queue_property(device: rustix::fs::Dev, name: &str) -> Option<u32> {
    let at = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has no queue directory of its own; its disk's queue is one level up.
    let text = ["queue", "../queue"]
        .iter()
        .find_map(|queue| std::fs::read_to_string(format!("{at}/{queue}/{name}")).ok())?;
    text.trim().parse().ok()
}

/// Makes the directory entry of a new image durable.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let outcome = std::fs::File::open(parent).and_then(|dir| dir.sync_all());
    outcome.map_err(|e| Error::invalid(format!("cannot sync directory {}: {e}", parent.display())))
}

#[cfg(test)]
#[path = "open_tests.rs"]
mod tests;
