//! Tracks opens of files in an image that may hold immutable and append-only files.
//!
//! # Why the server must see opens
//! The kernel keeps `S_IMMUTABLE` and `S_APPEND` for its own file systems. It opens a flagged file
//! of a FUSE mount for writing, and lets a shared mapping of it store into the page cache, which
//! all readers share. No WRITE precedes such a store, so the server can only refuse the open. The
//! kernel sends OPEN for each open, or after one ENOSYS for none until the mount ends. So the image
//! decides (`RO_COMPAT_IMMUTABLE`): a mount of an image that may contain such files gets OPEN and
//! RELEASE, and a mount of any other image refuses to set the flags.
//!
//! # Why a flagged file's pages do not change
//! 1. An open for writing fails with EPERM, as in ext4: always for an immutable file, and for an
//!    append-only file without `O_APPEND` or with `O_TRUNC`.
//! 2. An append-only file is opened for appending with `FOPEN_DIRECT_IO`, with which the kernel
//!    makes no shared mapping (ENODEV). An append bypasses the page cache; the pages are
//!    invalidated before the reply to the WRITE ([`crate::settle`]). The kernel sends no FSYNC
//!    after such a WRITE, so with `O_SYNC` or `O_DSYNC` the reply waits until it is durable.
//! 3. A descriptor from before the flag was set, through which pages can be changed, would stay
//!    usable, and the server cannot prevent that. So a flag cannot be set while such a descriptor
//!    exists: ETXTBSY, as fs-verity returns. Such a descriptor is open for reading and writing, so
//!    that it can be mapped, or with a writeback cache open for writing. A mapping keeps its
//!    descriptor's open file. Other descriptors open only for writing stay, and the engine checks
//!    each write through them.
//! 4. Pages that are dirty when the flag is set are written first.
//!
//! So no page of a flagged file becomes dirty, and none is refused when the kernel writes it back,
//! which would fail the syncfs(2) of other programs.
//!
//! An open that can change pages is counted before the flags are checked, and a change of flags
//! bars the inode before it sets them. So at least one of the two detects the other.

use crate::errno::{Answer, Errno};
use kedge_base::InoMap;
use kedgefs::Ino;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The file handle of an open that is counted, until its RELEASE.
pub(crate) const STORES: u64 = 1;
/// The file handle of an open with `FOPEN_DIRECT_IO`. It is not counted.
pub(crate) const DIRECT: u64 = 2;

enum State {
    /// The number of opens that can change pages.
    Stores(u64),
    /// A flag is being set, so such opens are refused.
    Barred,
}

/// The inodes that have counted opens or whose flags are being set.
#[derive(Clone, Default)]
pub(crate) struct Opens(Arc<Mutex<InoMap<State>>>);

/// A counted open, which can change pages, until it is released.
pub(crate) struct Store<'a>(&'a Opens, Ino);

/// While this lives, no open of the inode can change pages.
pub(crate) struct Bar(Opens, Ino);

impl Opens {
    /// Counts an open that can change pages. Fails with EPERM if the inode is barred.
    pub(crate) fn store(&self, ino: Ino) -> Answer<Store<'_>> {
        match self.0.lock().entry(ino).or_insert(State::Stores(0)) {
            State::Stores(count) => *count += 1,
            State::Barred => return Err(Errno(libc::EPERM)),
        }
        Ok(Store(self, ino))
    }

    pub(crate) fn release(&self, ino: Ino) {
        if let Entry::Occupied(mut entry) = self.0.lock().entry(ino)
            && let State::Stores(count) = entry.get_mut()
        {
            *count -= 1;
            if *count == 0 {
                entry.remove();
            }
        }
    }

    /// Bars an inode. Fails with ETXTBSY while the inode has a counted open or another bar.
    pub(crate) fn bar(&self, ino: Ino) -> Answer<Bar> {
        match self.0.lock().entry(ino) {
            Entry::Occupied(_) => return Err(Errno(libc::ETXTBSY)),
            Entry::Vacant(entry) => entry.insert(State::Barred),
        };
        Ok(Bar(self.clone(), ino))
    }
}

impl Store<'_> {
    /// Keeps the open counted until the kernel's RELEASE. Returns the file handle for the reply.
    pub(crate) fn handle(self) -> u64 {
        std::mem::forget(self);
        STORES
    }
}

impl Drop for Store<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

#[cfg(test)]
#[path = "opens_tests.rs"]
mod tests;
