//! The open images of this process. An image is opened with its first open file and closed with its
//! last.

use crate::error::{Outcome, Refused};
use crate::name::Name;
use crate::shared::Shared;
use kedge_base::Ino;
use kedge_host::embed;
use kedgefs::{Dir, FileSystem};
use libsqlite3_sys::{SQLITE_IOERR, SQLITE_IOERR_CLOSE};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::process;
use std::sync::{Arc, Weak};

/// The open images by location. The lock is held while an image is opened or closed, so that a
/// thread that opens an image waits for a thread that closes it.
static IMAGES: Mutex<BTreeMap<String, Arc<Volume>>> = Mutex::new(BTreeMap::new());

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
        let mut images = IMAGES.lock();
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
