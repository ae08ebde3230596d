//! Memory for keys: it is locked, so that it is never swapped out; excluded from core dumps; and
//! erased when it is dropped.

use std::mem::size_of;
use zeroize::Zeroizing;

/// A value in memory pages that contain nothing else. The system may refuse to lock the pages
/// (RLIMIT_MEMLOCK). Then a warning is logged: failing the mount instead would protect nothing.
pub struct Locked<T>(Box<Pages<T>>);

/// The alignment makes the size whole pages, so that nothing else lies in them. (Where pages are
/// larger than 4096 bytes, a core dump may include the key, and the warning says so.) The value is
/// `None` only during the drop.
#[repr(align(4096))]
struct Pages<T>(Option<T>);

impl<T> Locked<T> {
    pub fn new(value: T) -> Locked<T> {
        let mut pages = Box::new(Pages(Some(value)));
        let (at, len) = range(&mut pages);
        // SAFETY: the range is the heap memory of `pages`, which `pages` owns during the calls. Its
        // start and length are multiples of 4096, so it is whole pages where pages are no larger.
        // The calls change how the system treats the pages and not their contents.
        #[allow(unsafe_code)]
        let (locked, left_out) = unsafe { (rustix::mm::mlock(at, len), leave_out(at, len, true)) };
        for (what, outcome) in [("lock a key in memory", locked), ("keep a key out of core dumps", left_out)]
        {
            if let Err(e) = outcome {
                tracing::warn!("cannot {what}: {}", std::io::Error::from(e));
            }
        }
        Locked(pages)
    }

    pub fn get(&self) -> &T {
        self.0.0.as_ref().expect("there until it is dropped")
    }
}

/// Excludes pages from core dumps, or with `out` false includes them again.
///
/// # Safety
/// The range is mapped memory of the caller.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
unsafe fn leave_out(at: *mut std::ffi::c_void, len: usize, out: bool) -> rustix::io::Result<()> {
    use rustix::mm::{Advice, madvise};
    let advice = if out { Advice::LinuxDontDump } else { Advice::LinuxDoDump };
    // SAFETY: the caller ensures that the range is mapped memory of its own. The advice does not
    // change the contents.
    unsafe { madvise(at, len, advice) }
}

/// Does nothing: other systems have no such advice.
///
/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
unsafe fn leave_out(_: *mut std::ffi::c_void, _: usize, _: bool) -> rustix::io::Result<()> {
    Ok(())
}

fn range<T>(pages: &mut Box<Pages<T>>) -> (*mut std::ffi::c_void, usize) {
    ((&raw mut **pages).cast(), size_of::<Pages<T>>())
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        // Drop the value, which erases itself, while the pages are still locked.
        self.0.0 = None;
        let (at, len) = range(&mut self.0);
        // SAFETY: the range is the heap memory of `self.0`, which lives until the end of this
        // function. The calls restore the pages' default treatment before the allocator gets them
        // back.
        #[allow(unsafe_code)]
        let outcome = unsafe { leave_out(at, len, false).and(rustix::mm::munlock(at, len)) };
        if let Err(e) = outcome {
            tracing::debug!("cannot unlock the memory of a key: {}", std::io::Error::from(e));
        }
    }
}

/// A passphrase, or the contents of a key file.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    pub fn new(bytes: Vec<u8>) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    /// Returns the bytes, for a process that needs the same secret.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    /// Prints nothing about the contents, not even their length.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}
