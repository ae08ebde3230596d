//! Wraps the system calls for which the dependencies have no safe wrapper.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::io;
use std::mem::MaybeUninit;
use std::path::PathBuf;

/// Signals that end a mount.
const TERMINATION: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The blocked termination signals.
pub struct TerminationSignals(libc::sigset_t);

impl TerminationSignals {
    /// Blocks the signals in this thread and in threads that it starts from now on. Call it before
    /// other threads exist: the kernel would deliver a signal to a thread that has not blocked it,
    /// and the default action ends the process. Child processes started by std get an empty mask.
    pub fn block() -> io::Result<TerminationSignals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set; sigaddset and pthread_sigmask get an
        // initialised set, and pthread_sigmask takes null for the old mask, which is not needed.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in TERMINATION {
                libc::sigaddset(&raw mut set, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) {
                0 => Ok(TerminationSignals(set)),
                e => Err(io::Error::from_raw_os_error(e)),
            }
        }
    }

    /// Waits for a signal and returns its number.
    pub fn wait(&self) -> io::Result<i32> {
        let mut signal = 0;
        // SAFETY: both pointers are valid for the call; the set was initialised by `block`.
        match unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } {
            0 => Ok(signal),
            e => Err(io::Error::from_raw_os_error(e)),
        }
    }
}

/// Buffers of at least this size are returned to the kernel when they are freed.
#[cfg(target_env = "gnu")]
const MMAP_BYTES_MIN: libc::c_int = 256 << 10;
/// The heap shrinks when this number of bytes at its end is free.
#[cfg(target_env = "gnu")]
const TRIM_BYTES_MIN: libc::c_int = 1 << 20;

/// The step by which a heap configured by [`grow_in_large_steps`] grows, in bytes.
#[cfg(target_env = "gnu")]
const GROWTH_BYTES: libc::c_int = 4 << 20;
/// Buffers of at least this size are allocated outside that heap. glibc permits no larger value.
#[cfg(target_env = "gnu")]
const LARGE_BYTES_MIN: libc::c_int = 32 << 20;

/// Keeps the C library's heaps from holding several times the memory in use. By default, glibc
/// serves large buffers from the heaps once some have been freed. Long-lived cached pages are then
/// scattered between short-lived buffers, so the holes cannot be reused and the heaps cannot
/// shrink. Streaming through a cache of 64 MiB grew the process to 280 MiB. Also by default, glibc
/// makes eight heaps for each processor, and memory freed in one heap is not available to threads
/// of another. One heap for each processor, with a minimum of two, needs a fifth less if a small
/// cache evicts.
pub fn give_large_buffers_back() {
    #[cfg(target_env = "gnu")]
    let heaps = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 64));
    // SAFETY: mallopt takes two integers, and a value that it refuses changes nothing; malloc_trim
    // takes one integer and returns only free memory to the kernel.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, heaps as libc::c_int);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_BYTES_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES_MIN);
        libc::malloc_trim(0);
    }
}

/// Configures the heap for a process that keeps most of what it allocates, such as a file system in
/// memory: one heap, which grows in steps of megabytes and does not shrink. By default, glibc grows
/// a thread's heap by what one allocation lacks, so that each long-lived block costs a system call.
/// Must be called before threads are started, since each of them may get a heap at its start.
pub fn grow_in_large_steps() {
    // SAFETY: mallopt takes two integers, and a value that it refuses changes nothing.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, GROWTH_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES_MIN);
    }
}

/// Returns free memory of the C library's heaps to the kernel.
pub fn give_free_memory_back() {
    // SAFETY: malloc_trim takes an integer, and returns only free memory to the kernel.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Marks every descriptor but the standard three close-on-exec, so that a daemon does not keep the
/// caller's locks and pipes. Nothing is closed here. On a kernel without this flag (before 5.11)
/// the daemon keeps the inherited descriptors.
pub fn inherit_standard_streams_only() {
    // SAFETY: the call takes three integers and, with CLOSE_RANGE_CLOEXEC, only sets a flag: no
    // descriptor that other code owns becomes invalid.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

/// Ends the process with this status, without exit handlers and destructors: other threads may
/// still use what these would destroy.
pub(crate) fn leave(status: u8) -> ! {
    // SAFETY: the call takes an integer and does not return. The kernel frees the resources of the
    // process.
    unsafe { libc::_exit(status.into()) }
}

/// A path to an open file of this process, valid even if the file was renamed or deleted.
pub(crate) fn path_of(file: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Whether an error is temporary: the system lacks memory, processes or descriptors.
pub(crate) fn is_shortage(e: &anyhow::Error) -> bool {
    let is_short = |e: io::Error| {
        matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::ENFILE | libc::EMFILE))
    };
    e.chain().filter_map(io_error).any(is_short)
}

/// The error of a system call, whichever library made the call.
pub(crate) fn io_error(cause: &(dyn std::error::Error + 'static)) -> Option<io::Error> {
    let errno = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    let errno = errno.or_else(|| cause.downcast_ref::<Errno>().map(|e| e.raw_os_error()));
    errno.map(io::Error::from_raw_os_error)
}

/// Whether the cause of an error may pass by itself: a lack of memory, threads or descriptors, or
/// of space in a file system, also by a quota.
pub(crate) fn may_pass(e: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
    // The kinds are those of ENOMEM, EDQUOT, ENOSPC and EAGAIN.
    matches!(e.kind(), OutOfMemory | QuotaExceeded | StorageFull | WouldBlock)
        || matches!(e.raw_os_error(), Some(libc::ENFILE | libc::EMFILE))
}

/// Takes ownership of a descriptor that this process has inherited, and sets close-on-exec. Must be
/// called at most once for each descriptor, at the start of the process.
pub fn inherited(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl takes integers, and fails with EBADF for a number that is not open.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the caller's contract is that nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}

#[cfg(test)]
#[path = "os_tests.rs"]
mod tests;
