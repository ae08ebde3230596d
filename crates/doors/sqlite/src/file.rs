//! An open file, and the operations of SQLite on it.

use crate::error::{Outcome, Refused};
use crate::locks::{Held, Level};
use crate::name::Name;
use crate::shared::{NoRegion, Shared};
use crate::volume::Use;
use kedgefs::{AtomicWrite, File, OpenOptions};
use libsqlite3_sys as sqlite;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Constants of SQLite that the oldest supported version does not define.
pub(crate) const IOCAP_BATCH_ATOMIC: i32 = 0x4000;
pub(crate) const IOERR_BEGIN_ATOMIC: i32 = sqlite::SQLITE_IOERR | 29 << 8;
pub(crate) const IOERR_COMMIT_ATOMIC: i32 = sqlite::SQLITE_IOERR | 30 << 8;

/// An open file of an image.
pub(crate) struct OpenFile {
    // Dropped before `image`, which may close the image.
    file: File,
    /// The bytes of a transaction that is being committed.
    atomic: Option<AtomicWrite>,
    shared: Arc<Shared>,
    level: Level,
    /// The locks that this connection holds on the WAL index; `None` before the index is mapped.
    held: Option<Held>,
    path: String,
    /// Remove the file on close.
    doomed: bool,
    /// Whether nothing can be changed in the file's image or tree.
    read_only: bool,
    /// Whether SQLite keeps the WAL when the last connection closes.
    persists_wal: bool,
    errno: i32,
    image: Use,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) delete_on_close: bool,
}

impl OpenFile {
    pub(crate) fn open(name: &Name, options: &str, how: How) -> Outcome<OpenFile> {
        let image = Use::of(name, options)?;
        let how_to = OpenOptions::new()
            .read(true)
            .write(how.write)
            .create(how.write && how.create)
            .create_new(how.write && how.create && how.exclusive);
        let cannot =
            |e: &io::Error| Refused { code: sqlite::SQLITE_CANTOPEN, ..Refused::io(0, &name.to_string(), e) };
        let (file, read_only) = image.guard(sqlite::SQLITE_CANTOPEN, || {
            let file = image.volume().root.open_with(&name.path, &how_to).map_err(|e| cannot(&e))?;
            let fs = &image.volume().fs;
            let tree = fs.tree_of(file.ino()).map_err(|e| cannot(&e.into()))?;
            Ok((file, fs.options().read_only || tree.is_some_and(|tree| tree.read_only)))
        })?;
        let shared = image.volume().shared(file.ino());
        let (path, doomed) = (name.path.clone(), how.delete_on_close);
        let (level, held) = (Level::None, None);
        let (atomic, persists_wal, errno) = (None, false, 0);
        Ok(OpenFile {
            file,
            atomic,
            shared,
            level,
            held,
            path,
            doomed,
            read_only,
            persists_wal,
            errno,
            image,
        })
    }

    /// Shuts the file system down after a panic.
    pub(crate) fn shut_down(&self) {
        self.image.shut_down();
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) fn close(mut self) -> Outcome<()> {
        let checked = self.image.check_process();
        if checked.is_err() {
            // In a child of the process that opened the file, leave all objects as they are.
            std::mem::forget(self);
            return Ok(());
        }
        self.unmap();
        self.unlock(Level::None);
        if !self.doomed {
            return Ok(());
        }
        self.image.guard(sqlite::SQLITE_IOERR_DELETE, || {
            let removed = self.image.volume().root.remove_file(&self.path);
            removed.map_err(|e| Refused::io(sqlite::SQLITE_IOERR_DELETE, &self.path, &e))
        })
    }

    /// Whether the path now refers to another file or to none. SQLite then leaves the journal and
    /// the WAL at that path alone: they belong to the database that replaced this one.
    pub(crate) fn has_moved(&self) -> Outcome<bool> {
        self.image.check_process()?;
        match self.image.volume().root.metadata(&self.path) {
            Ok(attr) => Ok(attr.ino != self.file.ino()),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(true),
            Err(e) => Err(Refused::io(sqlite::SQLITE_IOERR_FSTAT, &self.path, &e)),
        }
    }

    /// Stores the errno of the outcome's error, which SQLite may query.
    pub(crate) fn note<T>(&mut self, outcome: Outcome<T>) -> Outcome<T> {
        outcome.inspect_err(|refused| self.errno = refused.errno)
    }

    /// Sets whether the WAL stays, unless `choice` is negative. Returns whether it stays.
    pub(crate) fn persist_wal(&mut self, choice: i32) -> bool {
        if choice >= 0 {
            self.persists_wal = choice != 0;
        }
        self.persists_wal
    }

    pub(crate) fn errno(&self) -> i32 {
        self.errno
    }

    /// Fills the buffer; bytes past the end of the file are zero. Returns whether the file has all
    /// bytes.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Outcome<bool> {
        self.image.check_process()?;
        let mut done = 0;
        while done < buf.len() {
            let (at, rest) = (offset + done as u64, &mut buf[done..]);
            let read = match &self.atomic {
                Some(atomic) => atomic.read_at(at, rest).map_err(io::Error::from),
                None => self.file.read_at(at, rest),
            };
            match read.map_err(|e| Refused::io(sqlite::SQLITE_IOERR_READ, "read", &e))? {
                0 => break,
                n => done += n,
            }
        }
        buf[done..].fill(0);
        Ok(done == buf.len())
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Outcome<()> {
        self.image.check_process()?;
        let written = match &mut self.atomic {
            Some(atomic) => atomic.write_at(offset, data).map_err(io::Error::from),
            None => self.file.write_all_at(offset, data),
        };
        let written = written.map_err(|e| Refused::io(sqlite::SQLITE_IOERR_WRITE, "write", &e));
        self.note(written)
    }

    pub(crate) fn truncate(&mut self, size: u64) -> Outcome<()> {
        self.image.check_process()?;
        let cut = self.file.set_len(size);
        self.note(cut.map_err(|e| Refused::io(sqlite::SQLITE_IOERR_TRUNCATE, "truncate", &e)))
    }

    /// Makes the bytes durable by fdatasync, which leaves out only time stamps. It covers the name
    /// of a new file.
    pub(crate) fn sync(&mut self) -> Outcome<()> {
        self.image.check_process()?;
        let synced = self.file.sync_data();
        self.note(synced.map_err(|e| Refused::io(sqlite::SQLITE_IOERR_FSYNC, "sync", &e)))
    }

    pub(crate) fn size(&self) -> Outcome<u64> {
        self.image.check_process()?;
        let attr = self.file.metadata();
        let size = attr.map_err(|e| Refused::io(sqlite::SQLITE_IOERR_FSTAT, "size", &e))?.size;
        Ok(size.max(self.atomic.as_ref().map_or(0, AtomicWrite::end)))
    }

    // ----- the transaction that is being committed -----

    pub(crate) fn begin_atomic(&mut self) -> Outcome<()> {
        self.image.check_process()?;
        let begun = self.file.atomic();
        let begun = begun.map_err(|e| Refused::io(IOERR_BEGIN_ATOMIC, "begin of an atomic write", &e));
        self.atomic = Some(self.note(begun)?);
        Ok(())
    }

    pub(crate) fn commit_atomic(&mut self) -> Outcome<()> {
        self.image.check_process()?;
        let Some(atomic) = self.atomic.take() else {
            return Err(Refused::new(IOERR_COMMIT_ATOMIC, "no atomic write has begun"));
        };
        let committed = atomic.commit().map_err(io::Error::from);
        self.note(committed.map_err(|e| Refused::io(IOERR_COMMIT_ATOMIC, "commit", &e)))
    }

    pub(crate) fn abort_atomic(&mut self) {
        self.atomic = None;
    }

    // ----- locks -----

    /// Returns whether the connection has the lock now.
    pub(crate) fn lock(&mut self, want: Level) -> Outcome<bool> {
        self.image.check_process()?;
        self.level = self.shared.locks.lock().raise(self.level, want);
        Ok(self.level >= want)
    }

    pub(crate) fn unlock(&mut self, want: Level) {
        if want < self.level {
            self.shared.locks.lock().lower(self.level, want);
            self.level = want;
        }
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.shared.locks.lock().is_reserved()
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    // ----- the WAL index -----

    /// The address of a region of the WAL index; null if the region does not exist.
    pub(crate) fn region(&mut self, at: usize, bytes: usize, extend: bool) -> Outcome<*mut u8> {
        self.image.check_process()?;
        let mut index = self.shared.index.lock();
        if self.held.is_none() {
            index.join();
            self.held = Some(Held::default());
        }
        match index.region(at, bytes, extend) {
            Ok(region) => Ok(region),
            Err(NoRegion::Absent) => Ok(std::ptr::null_mut()),
            Err(NoRegion::TooLarge) => {
                Err(Refused::new(sqlite::SQLITE_IOERR_SHMMAP, format!("region {at} of {bytes} bytes")))
            }
        }
    }

    /// Takes the locks of `mask`. Returns whether the connection has all of them now.
    pub(crate) fn take_slots(&mut self, mask: u8, exclusive: bool) -> bool {
        let Some(held) = &mut self.held else { return false };
        self.shared.index.lock().slots.take(held, mask, exclusive)
    }

    pub(crate) fn release_slots(&mut self, mask: u8) {
        if let Some(held) = &mut self.held {
            self.shared.index.lock().slots.release(held, mask);
        }
    }

    /// Orders accesses to the index. The lock is a barrier for the compiler and the processor, as
    /// in SQLite's own VFS.
    pub(crate) fn barrier(&self) {
        fence(Ordering::SeqCst);
        drop(self.shared.index.lock());
    }

    pub(crate) fn unmap(&mut self) {
        if let Some(mut held) = self.held.take() {
            self.shared.index.lock().leave(&mut held);
        }
    }
}
