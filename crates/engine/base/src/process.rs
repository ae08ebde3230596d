//! Recognises the children of a process that uses images.
//!
//! A child has copies of the caches, locks and lists of its parent, but none of its threads. The
//! process's number does not show it: a child in a PID namespace of its own may have the number of
//! its parent, and the kernel uses numbers again. So a page of memory is marked that the kernel
//! clears in each child, however it is made. The number is compared as well: a child may share the
//! memory of its parent (vfork), and the mark needs Linux 4.14.
#![allow(unsafe_code, reason = "a page with MADV_WIPEONFORK")]

use std::process::id;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The page, which has the value 1 in the process that made it and 0 in its children; null before
/// the first [`enter`], and where the kernel does not clear pages.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// The number of the process that called [`enter`] first; 0 before.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// Marks this process as one that uses images. Returns false, and changes nothing, in a child of a
/// process that was marked before the fork. Takes no lock, since a lock may be a copy of one that a
/// thread of the parent held.
pub fn enter() -> bool {
    if FIRST.load(Ordering::Acquire) == 0 {
        if PAGE.load(Ordering::Acquire).is_null()
            && let Some(page) = wiped::page()
            && PAGE.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            wiped::free(page);
        }
        // An error means that another thread was first.
        let _ = FIRST.compare_exchange(0, id(), Ordering::AcqRel, Ordering::Acquire);
    }
    !is_child()
}

/// Whether this process is a child of one that was marked by [`enter`] before the fork.
pub fn is_child() -> bool {
    let first = FIRST.load(Ordering::Acquire);
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: a page that was stored is never freed, and is at least as large and as aligned as the
    // integer. All accesses are atomic; any bytes are a valid value.
    first != 0 && (first != id() || (!page.is_null() && unsafe { &*page }.load(Ordering::Relaxed) == 0))
}

#[cfg(target_os = "linux")]
mod wiped {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ptr;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The bytes to map, which the kernel rounds up to a page.
    const BYTES: usize = 4096;

    /// Maps a page that the kernel clears in children, and sets its value to 1. `None` if the
    /// kernel does not clear pages, or has no memory.
    pub(super) fn page() -> Option<*mut AtomicU32> {
        // SAFETY: a new mapping, at an address that the kernel chooses, is in no other use.
        let page = unsafe {
            mmap_anonymous(ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let page = page.ok()?;
        // SAFETY: the range is the mapping above, and the advice changes nothing in this process.
        let is_wiped = unsafe { madvise(page, BYTES, Advice::LinuxWipeOnFork) }.is_ok();
        let page = page.cast::<AtomicU32>();
        if !is_wiped {
            free(page);
            return None;
        }
        // SAFETY: the mapping is readable, writable, zeroed, and aligned to a page.
        unsafe { &*page }.store(1, Ordering::Relaxed);
        Some(page)
    }

    /// Unmaps a page that nothing refers to.
    pub(super) fn free(page: *mut AtomicU32) {
        // SAFETY: the range is a mapping of `page`, to which the caller has the only pointer.
        let freed = unsafe { munmap(page.cast(), BYTES) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

#[cfg(not(target_os = "linux"))]
mod wiped {
    use std::sync::atomic::AtomicU32;

    pub(super) fn page() -> Option<*mut AtomicU32> {
        None
    }

    pub(super) fn free(_page: *mut AtomicU32) {}
}
