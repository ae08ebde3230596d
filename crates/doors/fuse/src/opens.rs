//! Opens of files in an image that may hold immutable and append-only ones.
//!
//! # Why opens are seen
//! The kernel keeps `S_IMMUTABLE` and `S_APPEND` for its own file systems. It opens a flagged file
//! of a FUSE mount for writing, and lets a shared mapping of it store into the page cache, which
//! all readers share. No WRITE comes before that, so the server can only refuse the open. The
//! kernel asks for each open, or after one ENOSYS for none, for as long as the mount lasts. So the
//! image decides (`RO_COMPAT_IMMUTABLE`): a mount of one that may hold such files gets OPEN and
//! RELEASE, and one of any other image refuses to set the flags.
//!
//! # What keeps a flagged file's pages as they are
//! 1. An open for writing fails with EPERM, as in ext4: of an immutable file each, of an
//!    append-only one unless it has `O_APPEND`, or with `O_TRUNC`.
//! 2. An append-only file is opened for appending with `FOPEN_DIRECT_IO`, with which the kernel
//!    makes no shared mapping (ENODEV). What is appended goes past the page cache; the pages are
//!    invalidated before the WRITE is answered ([`crate::settle`]).
//! 3. A descriptor that was opened before the flag was set, and that can store into pages, would go
//!    on doing so. The server cannot stop it. So a flag cannot be set while there is one: ETXTBSY,
//!    as fs-verity returns. That is a descriptor open for reading and writing, which can be mapped,
//!    or with a writeback cache one open for writing. A mapping keeps its descriptor's open file.
//!    Descriptors open for writing alone stay, and the engine checks each of their writes.
//! 4. Pages that are dirty when the flag is set are written first.
//!
//! So no page of a flagged file becomes dirty, and none is refused when the kernel writes it back,
//! which would fail the syncfs(2) of other programs.
//!
//! An open for storing counts itself before it looks at the flags, and a change of flags bars the
//! inode before it sets them. So one of the two sees the other.

use crate::dispatch::{Answer, Errno};
use kedgefs::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The handle of an open that is counted.
pub(crate) const STORES: u64 = 1;

enum State {
    /// Opens that can store into pages.
    Stores(u64),
    /// A flag is being set.
    Barred,
}

/// The inodes with such opens, or about to be flagged.
#[derive(Clone, Default)]
pub(crate) struct Opens(Arc<Mutex<HashMap<Ino, State>>>);

/// An open that can store into pages, until it is released.
pub(crate) struct Store<'a>(&'a Opens, Ino);

/// While it lives, no file is opened for storing.
pub(crate) struct Bar(Opens, Ino);

impl Opens {
    /// Counts an open.
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

    /// Keeps opens for storing out. Refused while there is one.
    pub(crate) fn bar(&self, ino: Ino) -> Answer<Bar> {
        match self.0.lock().entry(ino) {
            Entry::Occupied(_) => return Err(Errno(libc::ETXTBSY)),
            Entry::Vacant(entry) => entry.insert(State::Barred),
        };
        Ok(Bar(self.clone(), ino))
    }
}

impl Store<'_> {
    /// The kernel releases it.
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
