//! Atomic writes of one file.

use super::file::File;
use crate::api::FileSystem;
use crate::data::atomic::{AtomicMax, Staged};
use crate::error::{Error, Result};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_format::FileKind;
use std::fmt;
use std::io;

/// Writes to one file that take effect together, durably, in [`AtomicWrite::commit`]: a crash
/// leaves all of them or none. Until then the bytes are in memory, and only this handle reads them.
/// Dropping the handle discards them.
///
/// [`AtomicWrite::bytes_max`] is the maximum of one atomic write, in whole pages of 4 KiB. Each
/// range that touches no other written byte takes log space too, and many small ranges reach the
/// maximum earlier.
///
/// Two atomic writes may be open for one file. Each commit then changes only the bytes that it has
/// written.
pub struct AtomicWrite {
    fs: FileSystem,
    ino: Ino,
    staged: Staged,
    max: AtomicMax,
}

impl fmt::Debug for AtomicWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicWrite").field("ino", &self.ino).finish_non_exhaustive()
    }
}

impl Drop for AtomicWrite {
    fn drop(&mut self) {
        self.fs.unpin(self.ino, 1);
    }
}

impl FileSystem {
    /// Starts an atomic write of a regular file.
    ///
    /// # Errors
    /// ENOENT: there is no such inode. EISDIR, EINVAL: it is not a regular file.
    pub fn atomic(&self, ino: Ino) -> Result<AtomicWrite> {
        match self.getattr(ino)?.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("not a regular file")),
        }
        self.pin(ino)?;
        let max = self.fs.files().atomic_max();
        Ok(AtomicWrite { fs: self.clone(), ino, staged: Staged::default(), max })
    }
}

impl File {
    /// Starts an atomic write of the file.
    pub fn atomic(&self) -> io::Result<AtomicWrite> {
        self.check_writable()?;
        Ok(self.fs().atomic(self.ino())?)
    }
}

impl AtomicWrite {
    /// The most bytes of one atomic write, if they fill whole pages: 896 KiB, or less if the log is
    /// small.
    pub fn bytes_max(&self) -> u64 {
        self.max.pages * BLOCK_SIZE as u64
    }

    /// Writes all bytes at `offset`, which may be beyond the end of the file.
    ///
    /// # Errors
    /// EFBIG: there would be more than [`AtomicWrite::bytes_max`], or more separate ranges than one
    /// record of the log can hold. Nothing of this call is written then; earlier writes stay.
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.staged.write(offset, data, self.max)
    }

    /// Reads the file as it would be after a commit. Returns the number of bytes.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.fs.read(self.ino, offset, buf)?;
        let staged = usize::try_from(self.staged.end().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = read.max(staged.min(buf.len()));
        buf[read..len].fill(0);
        self.lay_over(offset, &mut buf[..len]);
        Ok(len)
    }

    /// Copies the written bytes over a buffer that has the file's bytes from `offset` on.
    pub fn lay_over(&self, offset: u64, buf: &mut [u8]) {
        self.staged.lay_over(offset, buf);
    }

    /// The file offset after the last written byte; 0 if nothing is written.
    pub fn end(&self) -> u64 {
        self.staged.end()
    }

    /// The ranges of pages with written bytes, as offsets and lengths. Adjacent pages are one
    /// range.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let bytes = BLOCK_SIZE as u64;
        self.staged.runs().into_iter().map(move |run| (run.start * bytes, (run.end - run.start) * bytes))
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    /// Makes the written bytes part of the file, durably. The file's time stamps, and the
    /// directories above the file, are durable too.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT, EPERM (flags), ENOENT (the file was deleted): the file is unchanged. EIO:
    /// the log could not be written. The file system is shut down, and the next open finds all of
    /// the bytes or none.
    pub fn commit(mut self) -> Result<()> {
        self.fs.commit_atomic(self.ino, std::mem::take(&mut self.staged))
    }
}
