//! The open images of this process. An image is opened with its first open file and closed with its
//! last.
//!
//! A process that was forked after its parent has opened an image is refused, as by the libraries
//! for C and Python. It has copies of the locks and lists of the process, but none of the threads.

use crate::error::{Outcome, Refused, caught};
use crate::name::Name;
use crate::shared::Shared;
use kedge_base::{Ino, process};
use kedge_host::embed;
use kedgefs::{Dir, FileSystem};
use libsqlite3_sys::{SQLITE_IOERR, SQLITE_IOERR_CLOSE};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Weak};

/// The images in use by location. Two locations of one file have one slot. The lock is never held
/// while an image is opened or closed, so that no image delays the transactions of another.
static IMAGES: Mutex<BTreeMap<String, Arc<Slot>>> = Mutex::new(BTreeMap::new());

/// The place of an image.
struct Slot {
    /// Device and inode number of the image file; `None` if the location names no file.
    file: Option<(u64, u64)>,
    /// `None` before the open and after the close. The lock is held during both, so that a thread
    /// that opens the image waits for a thread that closes it.
    volume: Mutex<Option<Arc<Volume>>>,
}

/// A reference to a slot. Dropping the last reference removes the slot.
struct Held(Option<Arc<Slot>>);

impl Held {
    fn of(image: &str) -> Outcome<Held> {
        check_owner()?;
        if let Some(slot) = IMAGES.lock().get(image) {
            return Ok(Held(Some(slot.clone())));
        }
        // Without the lock: the file system of the host may be slow.
        let file = std::fs::metadata(image).ok().map(|found| (found.dev(), found.ino()));
        let mut images = IMAGES.lock();
        let known = images.get(image).or_else(|| images.values().find(|s| file.is_some() && s.file == file));
        let slot = known.cloned().unwrap_or_else(|| Arc::new(Slot { file, volume: Mutex::new(None) }));
        images.entry(image.to_owned()).or_insert_with(|| slot.clone());
        Ok(Held(Some(slot)))
    }

    fn slot(&self) -> &Slot {
        self.0.as_ref().expect("present until the drop")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(slot) = self.0.take() else { return };
        if check_owner().is_err() {
            return std::mem::forget(slot);
        }
        let mut images = IMAGES.lock();
        let names = images.values().filter(|other| Arc::ptr_eq(other, &slot)).count();
        // References are added and removed under the lock.
        if Arc::strong_count(&slot) == names + 1 {
            images.retain(|_, other| !Arc::ptr_eq(other, &slot));
        }
        drop(slot);
    }
}

/// Refuses a process that was forked after its parent has used an image. Takes no lock, since a
/// lock may be a copy of one that a thread of the parent held.
fn check_owner() -> Outcome<()> {
    if process::enter() {
        return Ok(());
    }
    let text = "no image can be used in a process that was forked after its parent opened one";
    Err(Refused::new(SQLITE_IOERR, text))
}

/// An open image.
pub(crate) struct Volume {
    pub(crate) fs: FileSystem,
    pub(crate) root: Dir,
    /// The locks and the WAL index of each open file.
    files: Mutex<BTreeMap<Ino, Weak<Shared>>>,
}

/// A reference to an open image. Dropping the last reference closes the image.
pub(crate) struct Use {
    image: String,
    /// `None` once the drop has begun.
    volume: Option<Arc<Volume>>,
    held: Held,
}

impl Use {
    /// Opens the image, or adds a reference to the open one. `options` are mount options; they have
    /// an effect only if this call opens the image.
    pub(crate) fn of(name: &Name, options: &str) -> Outcome<Use> {
        let held = Held::of(&name.image)?;
        let mut open = held.slot().volume.lock();
        let volume = match &*open {
            Some(volume) => volume.clone(),
            None => {
                let fs = embed::open(Path::new(&name.image), options)
                    .map_err(|fault| Refused::image(&name.image, &fault))?;
                let root = fs.root().with_owner(embed::owner());
                let files = Mutex::default();
                let volume = Arc::new(Volume { fs, root, files });
                *open = Some(volume.clone());
                volume
            }
        };
        drop(open);
        Ok(Use { image: name.image.clone(), volume: Some(volume), held })
    }

    pub(crate) fn volume(&self) -> &Volume {
        self.volume.as_ref().expect("present until the drop")
    }

    /// Runs work on the file system. A panic becomes an error, and shuts the file system down:
    /// nothing that the panic left incomplete is written.
    pub(crate) fn guard<T>(&self, code: i32, run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        caught(code, run).unwrap_or_else(|panic| {
            self.shut_down();
            Err(panic)
        })
    }

    pub(crate) fn shut_down(&self) {
        // A shutdown without a flush cannot fail.
        let _ = self.volume().fs.shutdown(false);
    }

    /// Whether no other reference to the image exists.
    pub(crate) fn is_only(&self) -> bool {
        // The slot has a reference as well.
        self.volume.as_ref().is_some_and(|volume| Arc::strong_count(volume) == 2)
    }

    /// Refuses the child of the process that has opened the image.
    pub(crate) fn check_process(&self) -> Outcome<()> {
        if !process::is_child() {
            return Ok(());
        }
        let text = format!("{} was opened by the process that forked this one", self.image);
        Err(Refused::new(SQLITE_IOERR, text))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let Some(volume) = self.volume.take() else { return };
        if process::is_child() {
            // The threads and locks of the engine belong to the parent, so the child drops nothing.
            std::mem::forget(volume);
            return;
        }
        let mut open = self.held.slot().volume.lock();
        drop(volume);
        if open.as_ref().is_some_and(|volume| Arc::strong_count(volume) == 1)
            && let Some(volume) = open.take()
            && let Err(e) = volume.fs.close()
        {
            Refused::new(SQLITE_IOERR_CLOSE, format!("{}: {e}", self.image)).note();
        }
    }
}

impl Volume {
    /// What the connections to a file share: the locks and the WAL index.
    pub(crate) fn shared(&self, ino: Ino) -> Arc<Shared> {
        let mut files = self.files.lock();
        files.retain(|_, shared| shared.strong_count() > 0);
        if let Some(shared) = files.get(&ino).and_then(Weak::upgrade) {
            return shared;
        }
        let shared = Arc::new(Shared::default());
        files.insert(ino, Arc::downgrade(&shared));
        shared
    }
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
