//! Atomic writes of one file.

use super::file::File;
use crate::api::FileSystem;
use crate::data::atomic::Staged;
use crate::error::{Error, Result};
use kedge_base::{BLOCK_SIZE, Ino};
use kedge_format::FileKind;
use std::fmt;
use std::io;

/// Writes to one file that become part of it all at once, durably, by [`AtomicWrite::commit`]: a
/// crash leaves all of them or none. Until then they are in memory and only this handle reads them.
/// Dropping it forgets them.
///
/// [`AtomicWrite::bytes_max`] bounds it, in whole pages of 4 KiB.
///
/// Two of them may be open for one file. Each commit then changes what it has written, and leaves
/// the rest as it finds it.
pub struct AtomicWrite {
    fs: FileSystem,
    ino: Ino,
    staged: Staged,
    pages_max: u64,
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
    /// Begins an atomic write of a regular file.
    pub fn atomic(&self, ino: Ino) -> Result<AtomicWrite> {
        match self.getattr(ino)?.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("not a regular file")),
        }
        self.pin(ino)?;
        let pages_max = self.fs.files().atomic_pages_max();
        Ok(AtomicWrite { fs: self.clone(), ino, staged: Staged::default(), pages_max })
    }
}

impl File {
    /// Begins an atomic write.
    pub fn atomic(&self) -> io::Result<AtomicWrite> {
        self.check_writable()?;
        Ok(self.fs().atomic(self.ino())?)
    }
}

impl AtomicWrite {
    /// The most bytes that it takes, if they fill whole pages: 896 KiB, less with a small log.
    pub fn bytes_max(&self) -> u64 {
        self.pages_max * BLOCK_SIZE as u64
    }

    /// Writes all bytes at `offset`, beyond the end of the file too.
    ///
    /// # Errors
    /// EFBIG: more than [`AtomicWrite::bytes_max`]. Nothing of this call is written then, and what
    /// was written before stays.
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.staged.write(offset, data, self.pages_max)
    }

    /// Reads the file as a commit would leave it.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.fs.read(self.ino, offset, buf)?;
        let staged = usize::try_from(self.staged.end().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = read.max(staged.min(buf.len()));
        buf[read..len].fill(0);
        self.lay_over(offset, &mut buf[..len]);
        Ok(len)
    }

    /// Puts the bytes that are written over those of a buffer, which has the bytes of the file from
    /// `offset` on.
    pub fn lay_over(&self, offset: u64, buf: &mut [u8]) {
        self.staged.lay_over(offset, buf);
    }

    /// The end of the last byte that is written; 0 if nothing is.
    pub fn end(&self) -> u64 {
        self.staged.end()
    }

    /// The runs of neighbouring pages that are written to, as offsets and lengths.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let bytes = BLOCK_SIZE as u64;
        self.staged.runs().into_iter().map(move |run| (run.start * bytes, (run.end - run.start) * bytes))
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    /// Makes everything that was written part of the file, durably. The file's time stamps and the
    /// directories on the way to it are durable too.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT, EPERM (flags), ENOENT (the file was deleted): the file is as it was.
    /// EIO: the log could not be written. The file system is shut down, and the next open finds all
    /// of the bytes or none.
    pub fn commit(mut self) -> Result<()> {
        self.fs.commit_atomic(self.ino, std::mem::take(&mut self.staged))
    }
}
