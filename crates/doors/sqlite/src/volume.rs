//! The open images of this process. An image is opened with its first open file and closed with its
//! last.

use crate::error::{Outcome, Refused};
use crate::name::Name;
use crate::shared::Shared;
use kedge_base::Ino;
use kedge_host::embed;
use kedgefs::{Dir, FileSystem};
use libsqlite3_sys::{SQLITE_IOERR, SQLITE_IOERR_CLOSE};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The open images by location. The lock is held while an image is opened or closed, so that a
/// thread that opens an image waits for a thread that closes it.
static IMAGES: Mutex<BTreeMap<String, Arc<Volume>>> = Mutex::new(BTreeMap::new());

/// The process that used [`IMAGES`] last; 0 before the first use. If another thread held the lock
/// at a fork, no thread of the child would ever release the child's copy of it.
static USER: AtomicU32 = AtomicU32::new(0);
/// How long a child waits for the lock before it takes it for one that was copied.
const FORKED_WAIT: Duration = Duration::from_secs(1);

/// Locks the open images. Returns an error in a child of a process in which another thread held the
/// lock at the fork.
fn lock_images() -> Outcome<MutexGuard<'static, BTreeMap<String, Arc<Volume>>>> {
    let me = process::id();
    let user = USER.load(Ordering::Relaxed);
    if user == 0 || user == me {
        USER.store(me, Ordering::Relaxed);
        return Ok(IMAGES.lock());
    }
    let text = "another thread was opening or closing an image when this process was forked";
    let images = IMAGES.try_lock_for(FORKED_WAIT).ok_or_else(|| Refused::new(SQLITE_IOERR, text))?;
    USER.store(me, Ordering::Relaxed);
    Ok(images)
}

/// An open image.
pub(crate) struct Volume {
    pub(crate) fs: FileSystem,
    pub(crate) root: Dir,
    /// The process that opened the image. A child has copies of the caches but none of the threads,
    /// so it must not use the image.
    process: u32,
    /// The locks and the WAL index of each open file.
    files: Mutex<BTreeMap<Ino, Weak<Shared>>>,
}

/// A reference to an open image. Dropping the last reference closes the image.
pub(crate) struct Use {
    image: String,
    /// `None` once the drop has begun.
    volume: Option<Arc<Volume>>,
}

impl Use {
    /// Opens the image, or adds a reference to the open one. `options` are mount options; they have
    /// an effect only if this call opens the image.
    pub(crate) fn of(name: &Name, options: &str) -> Outcome<Use> {
        let mut images = lock_images()?;
        let volume = match images.get(&name.image) {
            Some(volume) => volume.clone(),
            None => {
                let fs = embed::open(Path::new(&name.image), options)
                    .map_err(|fault| Refused::image(&name.image, &fault))?;
                let root = fs.root().with_owner(embed::owner());
                let files = Mutex::default();
                let volume = Arc::new(Volume { fs, root, process: process::id(), files });
                images.insert(name.image.clone(), volume.clone());
                volume
            }
        };
        let used = Use { image: name.image.clone(), volume: Some(volume) };
        drop(images);
        used.check_process()?;
        Ok(used)
    }

    pub(crate) fn volume(&self) -> &Volume {
        self.volume.as_ref().expect("present until the drop")
    }

    /// Refuses the child of the process that has opened the image.
    pub(crate) fn check_process(&self) -> Outcome<()> {
        if self.volume().process == process::id() {
            return Ok(());
        }
        let text = format!("{} was opened by the process that forked this one", self.image);
        Err(Refused::new(SQLITE_IOERR, text))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let Some(volume) = self.volume.take() else { return };
        if volume.process != process::id() {
            // The threads and locks of the engine belong to the parent, so the child drops nothing.
            std::mem::forget(volume);
            return;
        }
        let mut images = IMAGES.lock();
        drop(volume);
        let is_last = images.get(&self.image).is_some_and(|volume| Arc::strong_count(volume) == 1);
        if is_last
            && let Some(volume) = images.remove(&self.image)
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
mod tests {
    use super::*;

    #[test]
    fn a_child_does_not_wait_for_a_thread_of_its_parent() {
        let held = lock_images().unwrap();
        // SAFETY: the child calls only functions that take no lock but that of this test, and ends
        // with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; an alarm ends a child that waits.
            unsafe { libc::alarm(20) };
            let code = i32::from(lock_images().is_ok());
            // SAFETY: as above.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child gets an error");
        drop(held);
        assert!(lock_images().is_ok(), "the parent goes on");
    }
}
