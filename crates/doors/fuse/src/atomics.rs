//! Atomic writes of programs on a mount, by the ioctls of F2FS that SQLite uses.
//!
//! `F2FS_IOC_START_ATOMIC_WRITE` begins one of the calling thread for the file. What the thread
//! writes to the file from then on is staged here; `COMMIT` makes it part of the file, durably and
//! as a whole, and `ABORT` forgets it.
//!
//! # What others see
//! Nothing before the commit. The kernel puts written bytes into its page cache before it sends the
//! WRITE, so the server invalidates these pages when it has replied. It cannot do that before the
//! reply: the kernel may hold a lock on a page until then. So for some microseconds another reader
//! may find bytes that are not committed. A commit and an abort invalidate them once more, before
//! they return. SQLite holds its exclusive lock on the database from before the start until after
//! the commit, so no other SQLite reads then.
//!
//! With a writeback cache the kernel keeps written bytes, and an ioctl does not make it send them.
//! So there are no atomic writes on such a mount: `GET_FEATURES` says so, and SQLite uses its
//! journal.
//!
//! # Ends
//! The kernel announces no close of a file on most mounts ([`crate::server`]). So an atomic write
//! belongs to a thread, which is recognised by its directory in /proc ([`crate::task`]): what a
//! thread that has ended staged is never committed, and forgotten by the next START. A write of
//! another thread is not staged.
//!
//! # Bounds
//! [`STAGINGS_MAX`] at a time on a mount, each with at most [`AtomicWrite::bytes_max`] bytes. A
//! WRITE beyond that fails with EFBIG.

use crate::abi::{self, InHeader, IoctlFlags, IoctlOut};
use crate::errno::{Answer, EINVAL, Errno};
use crate::ops::Ops;
use crate::task::Task;
use crate::transport::{Reply, Transport};
use kedgefs::{AtomicWrite, Ino};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::{FromZeros, IntoBytes};

/// The bit of atomic writes in the result of GET_FEATURES.
const FEATURE_ATOMIC_WRITE: u32 = 0x0004;
/// Atomic writes that a mount has at a time.
const STAGINGS_MAX: usize = 64;

/// An atomic write of a thread.
struct Staging {
    ino: Ino,
    tid: u32,
    task: Task,
    write: AtomicWrite,
}

impl Staging {
    fn is_of(&self, header: &InHeader) -> bool {
        (self.ino.0, self.tid) == (header.nodeid, header.pid) && self.is_live()
    }

    /// Whether its thread has not ended. Another thread may have its number since.
    fn is_live(&self) -> bool {
        self.task.file("status").is_ok()
    }
}

/// The atomic writes of a mount.
#[derive(Default)]
pub(crate) struct Atomics {
    stagings: Mutex<Vec<Staging>>,
    /// Their number: without any, a WRITE takes no lock.
    count: AtomicUsize,
}

/// File bytes whose pages the kernel must drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub(crate) from: u64,
    pub(crate) len: u64,
}

impl Atomics {
    pub(crate) fn is_used(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Which of the features of F2FS the file has.
    pub(crate) fn features(ops: &impl Ops, header: &InHeader) -> IoctlFlags {
        let can = Task::open(header.pid).is_ok() && ops.atomic(Ino(header.nodeid)).is_ok();
        IoctlFlags { out: IoctlOut::new_zeroed(), flags: if can { FEATURE_ATOMIC_WRITE } else { 0 } }
    }

    /// Begins an atomic write of the caller. One that it has begun before is forgotten.
    pub(crate) fn start(&self, ops: &impl Ops, header: &InHeader) -> Answer<IoctlOut> {
        let ino = Ino(header.nodeid);
        let task = Task::open(header.pid).map_err(|e| {
            tracing::debug!(ino = ino.0, "no atomic write: {e}");
            Errno(libc::EOPNOTSUPP)
        })?;
        let write = ops.atomic(ino)?;
        let mut stagings = self.stagings.lock();
        let is_gone =
            |staging: &Staging| (staging.ino, staging.tid) == (ino, header.pid) || !staging.is_live();
        let gone: Vec<Staging> = stagings.extract_if(.., |staging| is_gone(staging)).collect();
        let is_full = stagings.len() >= STAGINGS_MAX;
        if !is_full {
            stagings.push(Staging { ino, tid: header.pid, task, write });
        }
        self.count.store(stagings.len(), Ordering::Release);
        drop(stagings);
        // Without the lock: the end of one may delete a file that has no name any more.
        drop(gone);
        if is_full { Err(Errno(libc::EBUSY)) } else { Ok(IoctlOut::new_zeroed()) }
    }

    /// Stages the bytes of a WRITE, if its caller has an atomic write of the file. `None` if not.
    pub(crate) fn stage(&self, header: &InHeader, offset: u64, data: &[u8]) -> Option<Answer<Span>> {
        let mut stagings = self.stagings.lock();
        let staging = stagings.iter_mut().find(|staging| staging.is_of(header))?;
        let staged = staging.write.write_at(offset, data).map_err(Errno::from);
        Some(staged.map(|()| Span { from: offset, len: data.len() as u64 }))
    }

    /// Takes the atomic write of the caller, to be committed or forgotten.
    pub(crate) fn take(&self, header: &InHeader) -> Answer<AtomicWrite> {
        let mut stagings = self.stagings.lock();
        let at = stagings.iter().position(|staging| staging.is_of(header)).ok_or(EINVAL)?;
        let staging = stagings.swap_remove(at);
        self.count.store(stagings.len(), Ordering::Release);
        Ok(staging.write)
    }

    /// Forgets all of them, at the end of the mount.
    pub(crate) fn clear(&self) {
        let gone = std::mem::take(&mut *self.stagings.lock());
        self.count.store(0, Ordering::Release);
        drop(gone);
    }
}

/// Commits, and makes the kernel drop the pages that it has of before.
pub(crate) fn commit(transport: &dyn Transport, ino: Ino, write: AtomicWrite, reply: Reply) {
    let spans: Vec<Span> = write.ranges().map(|(from, len)| Span { from, len }).collect();
    let committed = write.commit().map_err(Errno::from);
    for span in spans {
        drop_pages(transport, ino, span);
    }
    reply.finish(committed.map(|()| IoctlOut::new_zeroed()));
}

/// Forgets an atomic write, and makes the kernel drop the pages that show it.
pub(crate) fn abort(transport: &dyn Transport, ino: Ino, write: AtomicWrite, reply: Reply) {
    for (from, len) in write.ranges() {
        drop_pages(transport, ino, Span { from, len });
    }
    drop(write);
    reply.finish(Ok::<_, Errno>(IoctlOut::new_zeroed()));
}

/// Invalidates the pages of a range, and the attributes, in the kernel.
pub(crate) fn drop_pages(transport: &dyn Transport, ino: Ino, span: Span) {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let body = abi::InvalInodeOut { ino: ino.0, off: signed(span.from), len: signed(span.len) };
    if let Err(e) = transport.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes()) {
        // ENOENT: the kernel has forgotten the inode, and its pages with it.
        tracing::debug!(ino = ino.0, "pages not invalidated: {e}");
    }
}

#[cfg(test)]
#[path = "atomics_tests.rs"]
mod tests;
