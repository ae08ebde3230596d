//! The system calls on an image that differ between operating systems.
//!
//! On systems other than Linux an image file is read and written through the page cache, discards
//! do not free its space, and a durable write is a write and a flush. Block devices are supported
//! on Linux only: elsewhere they are neither claimed nor discarded.

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(super) use other::*;

#[cfg(target_os = "linux")]
mod linux {
    use kedge_base::BLOCK_SIZE;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
    use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
    use rustix::io::{Errno, ReadWriteFlags};
    use std::io::IoSlice;

    /// The flag by which transfers bypass the page cache.
    pub(crate) const DIRECT: Option<OFlags> = Some(OFlags::DIRECT);
    pub(crate) const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
    pub(crate) const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

    /// Returns whether block-aligned requests satisfy direct IO on this file. A kernel that does
    /// not report the alignment is older than the devices that need a larger one.
    pub(crate) fn direct_fits(fd: impl AsFd) -> bool {
        let Ok(st) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
            return true;
        };
        let known = st.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        // An alignment of 0 means that the file system accepts the flag and ignores it.
        !known
            || (1..=BLOCK_SIZE as u32).contains(&st.stx_dio_offset_align)
                && st.stx_dio_mem_align <= BLOCK_SIZE as u32
    }

    /// Makes a write that is durable when the call returns.
    pub(crate) fn write_durable(fd: impl AsFd, bytes: &[u8], at: u64) -> Result<usize, Errno> {
        rustix::io::pwritev2(fd, &[IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC)
    }

    pub(crate) fn flush(fd: impl AsFd) -> Result<(), Errno> {
        rustix::fs::fdatasync(fd)
    }

    pub(crate) fn punch(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
        rustix::fs::fallocate(fd, PUNCH, offset, len)
    }

    pub(crate) fn zero(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
        rustix::fs::fallocate(fd, ZERO, offset, len)
    }

    pub(crate) fn seek_hole(fd: impl AsFd, offset: u64) -> Result<u64, Errno> {
        rustix::fs::seek(fd, rustix::fs::SeekFrom::Hole(offset))
    }

    /// Closes a file whose descriptor others use. The descriptor then refers to no file's contents,
    /// and each request fails with EBADF. The number stays in use, so no other file gets it.
    #[allow(unsafe_code)]
    pub(crate) fn close_in_place(fd: &OwnedFd) -> Result<(), Errno> {
        let nothing = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        // SAFETY: both descriptors are open. `fd` still owns an open descriptor of the same number
        // afterwards, so its contract holds. A call in another thread that began earlier has its
        // own reference to the file.
        match unsafe { libc::dup3(nothing.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
            _ => Ok(()),
        }
    }

    pub(crate) const LOCKS_RANGES: bool = true;

    /// Locks a range for the open file description, as flock(2) does for the whole file. Does not
    /// wait: fails with EAGAIN if another owner holds a part of the range. `len` 0 means everything
    /// from `offset` on. A lock of the process (`F_SETLK`) would be lost when the process closes
    /// any other descriptor of the file.
    #[allow(unsafe_code)]
    pub(crate) fn lock_range(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        exclusive: bool,
    ) -> Result<(), Errno> {
        let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: offset.try_into().map_err(|_| Errno::OVERFLOW)?,
            l_len: len.try_into().map_err(|_| Errno::OVERFLOW)?,
            l_pid: 0,
        };
        loop {
            // SAFETY: the pointer refers to a `flock` on the stack, which outlives the call;
            // F_OFD_SETLK only reads it.
            let rc = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
            match (rc, std::io::Error::last_os_error()) {
                (0, _) => return Ok(()),
                (_, e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                (_, e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
            }
        }
    }

    #[allow(unsafe_code)]
    pub(crate) fn discard_blocks(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
        /// `_IO(0x12, 119)`.
        const BLKDISCARD: libc::c_ulong = 0x1277;
        let range = [offset, len];
        // SAFETY: the pointer refers to two u64 that outlive the call. BLKDISCARD reads exactly
        // these and writes nothing to memory of this process.
        let rc = unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
        if rc == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    /// Wakes the ring thread, which waits on the ring and not on a condition variable.
    pub(crate) struct Bell(OwnedFd);

    impl Bell {
        pub(crate) fn new() -> std::io::Result<Bell> {
            Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(crate) fn fd(&self) -> RawFd {
            self.0.as_raw_fd()
        }

        pub(crate) fn ring(&self) {
            // EAGAIN means that the event counter is at its maximum, so the ring thread has been
            // woken already.
            match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(e) => tracing::error!("cannot wake the ring thread: {e}"),
            }
        }

        pub(crate) fn silence(&self) {
            let mut count = [0u8; 8];
            match rustix::io::read(&self.0, &mut count) {
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(e) => tracing::error!("cannot reset the ring thread's bell: {e}"),
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use rustix::fd::{AsFd, BorrowedFd};
    use rustix::fs::OFlags;
    use rustix::io::Errno;

    pub(crate) const DIRECT: Option<OFlags> = None;

    pub(crate) fn direct_fits(_: impl AsFd) -> bool {
        false
    }

    /// Always fails as unsupported, so that the caller writes and flushes instead.
    pub(crate) fn write_durable(_: impl AsFd, _: &[u8], _: u64) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    /// Flushes the drive's cache as well; fsync(2) of macOS leaves data there.
    #[cfg(target_vendor = "apple")]
    pub(crate) fn flush(fd: impl AsFd) -> Result<(), Errno> {
        rustix::fs::fcntl_fullfsync(fd)
    }

    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn flush(fd: impl AsFd) -> Result<(), Errno> {
        rustix::fs::fsync(fd)
    }

    pub(crate) fn punch(_: impl AsFd, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    pub(crate) fn zero(_: impl AsFd, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    pub(crate) fn seek_hole(_: impl AsFd, _: u64) -> Result<u64, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Not needed: these systems have no mounts, whose end waits for this.
    pub(crate) fn close_in_place(_: &rustix::fd::OwnedFd) -> Result<(), Errno> {
        Ok(())
    }

    /// No range locks on these systems: owners of parts exclude each other through the lock of the
    /// whole file.
    pub(crate) const LOCKS_RANGES: bool = false;

    pub(crate) fn lock_range(_: BorrowedFd<'_>, _: u64, _: u64, _: bool) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    pub(crate) fn discard_blocks(_: BorrowedFd<'_>, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// An empty type: there is no ring to wake.
    pub(crate) struct Bell;

    impl Bell {
        pub(crate) fn new() -> std::io::Result<Bell> {
            Ok(Bell)
        }

        pub(crate) fn ring(&self) {}
    }
}
