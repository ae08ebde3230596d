//! System calls on an open image. Each operation completes in the calling thread.
//!
//! Interrupted calls are repeated and short transfers are continued; neither counts as an error of
//! the device. Every other error is final.

use super::sys;
use crate::Op;
use crate::flushes::Flushes;
use crate::interface::OPTIMAL_IO;
use kedge_base::wait::about_to_wait;
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub(super) struct RawFile {
    pub fd: OwnedFd,
    pub name: Arc<str>,
    pub direct: bool,
    pub block_device: bool,
    pub read_only: bool,
    /// Set when the kernel has refused RWF_DSYNC. A FUA write is then a write and `fdatasync`.
    pub no_dsync: AtomicBool,
    /// Set when the file system has refused to zero a range with fallocate. Zeros are then written.
    pub no_zero_range: AtomicBool,
    pub flushes: Flushes,
}

/// The progress of a read or write of `len` bytes.
pub(super) struct Transfer {
    pub done: usize,
    len: usize,
    direct: bool,
    stalled: bool,
}

pub(super) enum Step {
    Done,
    More,
    /// The transfer reached the end of the file, or the device transfers nothing and reports no
    /// error.
    Stuck,
}

impl Transfer {
    pub fn new(len: usize, direct: bool) -> Transfer {
        Transfer { done: 0, len, direct, stalled: false }
    }

    pub fn remaining(&self) -> usize {
        self.len - self.done
    }

    /// Adds the `n` bytes that a call moved. With O_DIRECT the transfer continues from a block
    /// boundary, because the remaining range must be aligned. If two calls from the same boundary
    /// make no progress, the transfer is stuck.
    pub fn advance(&mut self, n: usize) -> Step {
        let mut done = self.done + n;
        if done >= self.len {
            self.done = self.len;
            return Step::Done;
        }
        if self.direct {
            done -= done % BLOCK_SIZE;
        }
        if n == 0 || (done == self.done && self.stalled) {
            return Step::Stuck;
        }
        self.stalled = done == self.done;
        self.done = done;
        Step::More
    }

    fn run(&mut self, mut call: impl FnMut(usize) -> Result<usize, Errno>) -> Result<(), Errno> {
        loop {
            match call(self.done) {
                Ok(n) => match self.advance(n) {
                    Step::Done => return Ok(()),
                    Step::More => {}
                    Step::Stuck => return Err(Errno::IO),
                },
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Returns whether an error of the kernel or the file system means "not supported".
pub(super) fn unsupported(e: Errno) -> bool {
    matches!(e, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
}

fn failed(op: &'static str, offset: u64, len: u64, e: Errno) -> Error {
    Error::Io { op, offset, len, errno: e.raw_os_error() }
}

impl RawFile {
    /// Closes the file, which releases its lock. A request that is in progress keeps both until it
    /// completes: so no write of this owner can follow one of the next owner.
    pub fn release(&self) -> Result<()> {
        sys::close_in_place(&self.fd).map_err(|e| failed("close", 0, 0, e))
    }

    /// Returns the size of the file or block device in bytes.
    pub fn len(&self) -> Result<u64> {
        rustix::fs::seek(&self.fd, SeekFrom::End(0)).map_err(|e| failed("size", 0, 0, e))
    }

    /// Extends a file to `size` bytes, durably; the added range is a hole. Returns the resulting
    /// size of the file, or the size of the block device.
    pub fn extend(&self, size: u64) -> Result<u64> {
        self.writable()?;
        let has = self.len()?;
        if self.block_device || has >= size {
            return Ok(has);
        }
        rustix::fs::ftruncate(&self.fd, size).map_err(|e| failed("grow", has, size - has, e))?;
        // `fdatasync` also writes the new size, because reads of the added range need it.
        self.flush()?;
        Ok(size)
    }

    /// Truncates a file to `size` bytes, durably, if it is longer.
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.writable()?;
        let has = self.len()?;
        if self.block_device || has <= size {
            return Ok(());
        }
        rustix::fs::ftruncate(&self.fd, size).map_err(|e| failed("truncate", size, has - size, e))?;
        self.flush()
    }

    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        about_to_wait();
        let mut transfer = Transfer::new(buf.len(), self.direct);
        let outcome =
            transfer.run(|done| rustix::io::pread(&self.fd, &mut buf[done..], offset + done as u64));
        outcome.map_err(|e| failed("read", offset + transfer.done as u64, transfer.remaining() as u64, e))
    }

    pub fn write(&self, offset: u64, buf: &[u8], fua: bool) -> Result<()> {
        self.writable()?;
        about_to_wait();
        if fua {
            self.flushes.check()?;
        }
        // On a block device the kernel follows a synchronous write that has RWF_DSYNC with a flush
        // of the device, beside the FUA or the flush of the write itself.
        if fua && !self.block_device && self.takes_dsync() {
            match self.write_calls(offset, buf, true) {
                Ok(()) => return self.flushes.check(),
                Err(Error::Io { errno, .. }) if unsupported(Errno::from_raw_os_error(errno)) => {
                    // RWF_DSYNC need not be the reason. If the kernel refuses the write for another
                    // reason, the plain write below fails too.
                    self.no_dsync.store(true, Relaxed);
                }
                outcome => return outcome,
            }
        }
        self.write_calls(offset, buf, false)?;
        if fua { self.flush() } else { Ok(()) }
    }

    /// Whether a FUA write may have RWF_DSYNC. Through the page cache it is a write and a flush
    /// instead: a failed call with RWF_DSYNC may have taken the error of other pages, as a flush
    /// does, or may have written nothing, as on a full host. Its error shows no difference.
    pub fn takes_dsync(&self) -> bool {
        self.direct && !self.no_dsync.load(Relaxed)
    }

    fn write_calls(&self, offset: u64, buf: &[u8], durable: bool) -> Result<()> {
        let mut transfer = Transfer::new(buf.len(), self.direct);
        let outcome = transfer.run(|done| {
            let at = offset + done as u64;
            match durable {
                false => rustix::io::pwrite(&self.fd, &buf[done..], at),
                true => sys::write_durable(&self.fd, &buf[done..], at),
            }
        });
        outcome.map_err(|e| failed("write", offset + transfer.done as u64, transfer.remaining() as u64, e))
    }

    /// Flushes. Never repeated after an error: the kernel may have dropped pages that it could not
    /// write, and the success of a second call would then be false. That holds for each error,
    /// ENOSPC of a full host included. Only an interrupted call (EINTR) is repeated.
    pub fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        about_to_wait();
        self.flushes.run(|| retry(|| sys::flush(&self.fd)).map_err(|e| failed("flush", 0, 0, e)))
    }

    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        if len == 0 {
            return Ok(());
        }
        about_to_wait();
        let outcome = if self.block_device {
            retry(|| sys::discard_blocks(self.fd.as_fd(), offset, len))
        } else {
            retry(|| sys::punch(&self.fd, offset, len))
        };
        outcome.map_err(|e| failed("discard", offset, len, e))
    }

    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        if len == 0 {
            return Ok(());
        }
        about_to_wait();
        if !self.no_zero_range.load(Relaxed) {
            // On a block device the kernel maps this call to the device's zeroing command, as
            // BLKZEROOUT does.
            match retry(|| sys::zero(&self.fd, offset, len)) {
                Ok(()) => return Ok(()),
                Err(e) if unsupported(e) => self.no_zero_range.store(true, Relaxed),
                Err(e) => return Err(failed("write_zeroes", offset, len, e)),
            }
        }
        let zeros = IoBuf::zeroed((len.min(OPTIMAL_IO as u64) as usize).div_ceil(BLOCK_SIZE));
        let mut done = 0;
        while done < len {
            let n = (len - done).min(zeros.len() as u64);
            self.write(offset + done, &zeros.as_bytes()[..n as usize], false)?;
            done += n;
        }
        Ok(())
    }

    pub fn perform(&self, offset: u64, op: &mut Op) -> Result<()> {
        match op {
            Op::Read(buf) => self.read(offset, buf.as_mut_bytes()),
            Op::Write { buf, fua } => self.write(offset, buf.as_bytes(), *fua),
            Op::Flush => self.flush(),
            Op::Discard { len } => self.discard(offset, *len),
            Op::WriteZeroes { len } => self.write_zeroes(offset, *len),
        }
    }

    /// Returns the free space that an unprivileged process can use.
    pub fn host_free(&self) -> Option<u64> {
        if self.block_device {
            return None;
        }
        let host = rustix::fs::fstatvfs(&self.fd).ok()?;
        Some(host.f_bavail.saturating_mul(host.f_frsize))
    }

    /// Returns the first hole of the range. A file whose blocks are all allocated has no hole.
    /// `SEEK_HOLE` alone does not show that: it reports an allocated range that was never written
    /// as a hole, because the range reads as zeros.
    pub fn first_hole(&self, offset: u64, len: u64) -> Option<u64> {
        if self.block_device {
            return None;
        }
        let stat = rustix::fs::fstat(&self.fd).ok()?;
        if (stat.st_blocks as u64).saturating_mul(512) >= stat.st_size as u64 {
            return None;
        }
        // For an offset beyond the end of the file the kernel returns no hole, and nothing there is
        // allocated.
        let hole = match sys::seek_hole(&self.fd, offset) {
            Ok(hole) => hole,
            Err(Errno::NXIO) => offset,
            Err(_) => return None,
        };
        (hole < offset + len).then_some(hole)
    }

    fn writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}
