//! Atomic writes for programs on a mount, by the ioctls of F2FS that SQLite uses.
//!
//! `F2FS_IOC_START_ATOMIC_WRITE` begins an atomic write of the calling thread to a file. What the
//! thread then writes to the file is staged here. `COMMIT` makes it part of the file, durably and
//! as a whole. `ABORT` discards it.
//!
//! # What other readers see
//! No staged byte before the commit. The kernel puts written bytes into its page cache before it
//! sends the WRITE, so a job invalidates these pages. The job cannot do that before the reply: the
//! kernel may hold a lock on a page until then. So for some microseconds another reader may see
//! uncommitted bytes. SQLite holds its exclusive lock on the database from before the start until
//! after the commit, so no other SQLite process reads then.
//!
//! After the commit the kernel must have no page from before it. The job has invalidated the pages
//! that the thread wrote. Only a READ, or a WRITE that is not staged, can bring a page back, and
//! the server notes both until the commit is over ([`Shown`]). If there was one, or if the job has
//! not ended, the commit invalidates all pages of the atomic write before it replies. An abort does
//! the same. Otherwise nothing needs to be invalidated. This saves time, because a notification for
//! pages passes through another process ([`crate::courier`]).
//!
//! With a writeback cache the kernel keeps written bytes, and an ioctl does not make it send them.
//! So such a mount has no atomic writes: `GET_FEATURES` reports that, and SQLite uses its journal.
//!
//! # Ends
//! On most mounts the kernel does not report the close of a file ([`crate::server`]). So an atomic
//! write belongs to a thread, identified by its directory in /proc ([`crate::task`]). What an ended
//! thread has staged is never committed. It is discarded by the next START, FORGET or STATFS, so
//! that it does not hold the space of an unlinked file for long. Writes of other threads are not
//! staged.
//!
//! # Bounds
//! A mount has at most [`STAGINGS_MAX`] atomic writes at a time, and one user at most half of them;
//! a START beyond that fails with EBUSY. Each has at most [`AtomicWrite::bytes_max`] bytes, and a
//! WRITE beyond that fails with EFBIG.

use crate::abi::{self, InHeader, IoctlFlags, IoctlOut};
use crate::errno::{Answer, EINVAL, Errno};
use crate::ops::Ops;
use crate::task::Task;
use crate::transport::{Reply, Transport};
use kedge_base::BLOCK_SIZE;
use kedgefs::{AtomicWrite, Ino};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::{FromZeros, IntoBytes};

/// The bit for atomic writes in the result of GET_FEATURES.
const FEATURE_ATOMIC_WRITE: u32 = 0x0004;
/// Limit for the atomic writes of a mount at a time.
const STAGINGS_MAX: usize = 64;
/// Limit for those of one user.
const STAGINGS_OF_USER_MAX: usize = STAGINGS_MAX / 2;

/// The granularity of invalidations: the unit of [`AtomicWrite`], and not more than a page of the
/// kernel.
const PAGE: u64 = BLOCK_SIZE as u64;

/// The atomic write of one thread to one file.
struct Staging {
    tid: u32,
    /// The user of the thread at the start.
    user: u32,
    task: Task,
    /// `None` while it is being committed or discarded.
    write: Option<AtomicWrite>,
    shown: Arc<Shown>,
}

impl Staging {
    fn is_of(&self, header: &InHeader) -> bool {
        self.write.is_some()
            && (self.shown.ino.0, self.tid) == (header.nodeid, header.pid)
            && self.task.is_there()
    }

    /// Whether its thread has ended without a commit or abort.
    fn is_left(&self) -> bool {
        self.write.is_some() && !self.task.is_there()
    }
}

/// Tracks which pages of a file with an atomic write the kernel may have in its cache.
pub struct Shown {
    ino: Ino,
    pages: Mutex<ShownPages>,
}

#[derive(Default)]
struct ShownPages {
    /// The indexes of pages with staged bytes that no job has begun to invalidate.
    written: BTreeSet<u64>,
    /// Whether a job for `written` is queued or about to be.
    is_queued: bool,
    /// The number of jobs that have begun and not ended.
    dropping: usize,
    /// Whether the kernel may have pages from before the commit: it has sent a READ, or a WRITE
    /// that is not staged.
    has_others: bool,
}

impl Shown {
    fn new(ino: Ino) -> Arc<Shown> {
        Arc::new(Shown { ino, pages: Mutex::default() })
    }

    /// Notes staged bytes. Must be called before the reply to their WRITE. Returns whether the
    /// caller must queue a job for them.
    fn wrote(&self, offset: u64, len: usize) -> bool {
        let mut pages = self.pages.lock();
        pages.written.extend(offset / PAGE..(offset + len as u64).div_ceil(PAGE));
        !std::mem::replace(&mut pages.is_queued, true)
    }

    /// The job: invalidates the pages in `written`. If the WRITE of such a page has no reply yet,
    /// the kernel waits for the reply.
    pub(crate) fn drop_written(&self, transport: &dyn Transport) {
        let written = {
            let mut pages = self.pages.lock();
            pages.is_queued = false;
            pages.dropping += 1;
            std::mem::take(&mut pages.written)
        };
        let mut runs: Vec<Span> = Vec::new();
        for from in written.into_iter().map(|page| page * PAGE) {
            match runs.last_mut() {
                Some(run) if run.from + run.len == from => run.len += PAGE,
                _ => runs.push(Span { from, len: PAGE }),
            }
        }
        for run in runs {
            drop_pages(transport, self.ino, run);
        }
        self.pages.lock().dropping -= 1;
    }

    /// Whether the kernel has none of the written pages in its cache.
    fn is_dropped(&self) -> bool {
        let pages = self.pages.lock();
        pages.written.is_empty() && pages.dropping == 0 && !pages.has_others
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }
}

/// The atomic writes of a mount.
#[derive(Default)]
pub(crate) struct Atomics {
    stagings: Mutex<Vec<Staging>>,
    /// The length of `stagings`. While it is zero, READs and WRITEs take no lock.
    count: AtomicUsize,
}

/// File bytes whose pages the kernel must drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: u64,
    len: u64,
}

impl Atomics {
    pub(crate) fn is_used(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Returns the F2FS features of the file.
    pub(crate) fn features(ops: &impl Ops, header: &InHeader) -> IoctlFlags {
        let can = Task::open(header.pid).is_ok() && ops.atomic(Ino(header.nodeid)).is_ok();
        IoctlFlags { out: IoctlOut::new_zeroed(), flags: if can { FEATURE_ATOMIC_WRITE } else { 0 } }
    }

    /// Begins an atomic write of the caller, a thread of `user`, which may write to the file.
    /// Discards an earlier one of the same thread and file.
    pub(crate) fn start(&self, ops: &impl Ops, header: &InHeader, user: u32) -> Answer<IoctlOut> {
        let ino = Ino(header.nodeid);
        let task = Task::open(header.pid).map_err(|e| {
            tracing::debug!(ino = ino.0, "no atomic write: {e}");
            Errno(libc::EOPNOTSUPP)
        })?;
        let write = ops.atomic(ino)?;
        let mut stagings = self.stagings.lock();
        let is_gone = |staging: &Staging| {
            let again = (staging.shown.ino, staging.tid) == (ino, header.pid);
            staging.write.is_some() && again || staging.is_left()
        };
        let gone: Vec<Staging> = stagings.extract_if(.., |staging| is_gone(staging)).collect();
        let of_user = stagings.iter().filter(|staging| staging.user == user).count();
        let is_full = stagings.len() >= STAGINGS_MAX || of_user >= STAGINGS_OF_USER_MAX;
        if !is_full {
            let shown = Shown::new(ino);
            stagings.push(Staging { tid: header.pid, user, task, write: Some(write), shown });
        }
        self.count.store(stagings.len(), Ordering::Release);
        drop(stagings);
        // Dropped without the lock: the last reference to an unlinked file may delete the file.
        drop(gone);
        if is_full { Err(Errno(libc::EBUSY)) } else { Ok(IoctlOut::new_zeroed()) }
    }

    /// Discards the atomic writes of ended threads. Each pins its file, so that an unlinked file
    /// would keep its space.
    pub(crate) fn forget_ended(&self) {
        if !self.is_used() {
            return;
        }
        let mut stagings = self.stagings.lock();
        let left: Vec<Staging> = stagings.extract_if(.., |staging| staging.is_left()).collect();
        self.count.store(stagings.len(), Ordering::Release);
        drop(stagings);
        // Dropped without the lock: the last reference to an unlinked file may delete the file.
        drop(left);
    }

    /// Stages the bytes of a WRITE. Returns `None` if the caller has no atomic write of the file.
    /// If the result contains a [`Shown`], the caller must queue a job for it after the reply.
    pub(crate) fn stage(
        &self,
        header: &InHeader,
        offset: u64,
        data: &[u8],
    ) -> Option<Answer<Option<Arc<Shown>>>> {
        let mut stagings = self.stagings.lock();
        let staging = stagings.iter_mut().find(|staging| staging.is_of(header))?;
        if let Err(e) = staging.write.as_mut()?.write_at(offset, data) {
            return Some(Err(e.into()));
        }
        Some(Ok(staging.shown.wrote(offset, data.len()).then(|| staging.shown.clone())))
    }

    /// Notes a READ, or a WRITE that is not staged. Must be called before the request is carried
    /// out: then the request sees the committed file, or the commit sees the note.
    pub(crate) fn note_other(&self, ino: Ino) {
        if self.is_used() {
            for staging in self.stagings.lock().iter().filter(|staging| staging.shown.ino == ino) {
                staging.shown.pages.lock().has_others = true;
            }
        }
    }

    /// Whether the mount has at most one atomic write.
    pub(crate) fn is_single(&self) -> bool {
        self.count.load(Ordering::Acquire) <= 1
    }

    /// Takes the atomic write of the caller, to be committed or discarded.
    pub(crate) fn take(self: &Arc<Self>, header: &InHeader) -> Answer<Taken> {
        let mut stagings = self.stagings.lock();
        let staging = stagings.iter_mut().find(|staging| staging.is_of(header)).ok_or(EINVAL)?;
        let write = staging.write.take().ok_or(EINVAL)?;
        Ok(Taken { write, noted: Noted { atomics: self.clone(), shown: staging.shown.clone() } })
    }

    /// Discards all atomic writes, at the end of the mount.
    pub(crate) fn clear(&self) {
        let gone = std::mem::take(&mut *self.stagings.lock());
        self.count.store(0, Ordering::Release);
        drop(gone);
    }
}

/// An atomic write that is being committed or discarded.
pub(crate) struct Taken {
    write: AtomicWrite,
    noted: Noted,
}

/// While this lives, READs and other WRITEs of the file are still noted.
struct Noted {
    atomics: Arc<Atomics>,
    shown: Arc<Shown>,
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut stagings = self.atomics.stagings.lock();
        stagings.retain(|staging| !Arc::ptr_eq(&staging.shown, &self.shown));
        self.atomics.count.store(stagings.len(), Ordering::Release);
    }
}

/// The result of a commit or abort, before its reply.
pub(crate) struct Ended {
    ino: Ino,
    result: Answer<()>,
    /// Ranges of which the kernel may have outdated pages.
    wrong: Vec<Span>,
}

impl Taken {
    pub(crate) fn commit(self) -> Ended {
        self.end(|write| write.commit().map_err(Errno::from))
    }

    pub(crate) fn forget(self) -> Ended {
        self.end(|write| {
            drop(write);
            Ok(())
        })
    }

    fn end(self, end: impl FnOnce(AtomicWrite) -> Answer<()>) -> Ended {
        let Taken { write, noted } = self;
        let spans: Vec<Span> = write.ranges().map(|(from, len)| Span { from, len }).collect();
        let result = end(write);
        let wrong = if noted.shown.is_dropped() { Vec::new() } else { spans };
        Ended { ino: noted.shown.ino, result, wrong }
    }
}

impl Ended {
    /// Whether pages must be invalidated before the reply.
    pub(crate) fn has_pages(&self) -> bool {
        !self.wrong.is_empty()
    }

    /// Invalidates the pages and the attributes, then replies.
    pub(crate) fn reply(self, transport: &dyn Transport, reply: Reply) {
        for span in self.wrong {
            drop_pages(transport, self.ino, span);
        }
        // The kernel may have cached size and times since the WRITEs.
        invalidate(transport, self.ino, ATTRIBUTES, 0);
        reply.finish(self.result.map(|()| IoctlOut::new_zeroed()));
    }
}

/// The offset in a notification that invalidates only the attributes.
const ATTRIBUTES: i64 = -1;

/// Invalidates a range of pages, and the attributes, in the kernel.
fn drop_pages(transport: &dyn Transport, ino: Ino, span: Span) {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    invalidate(transport, ino, signed(span.from), signed(span.len));
}

fn invalidate(transport: &dyn Transport, ino: Ino, off: i64, len: i64) {
    let body = abi::InvalInodeOut { ino: ino.0, off, len };
    if let Err(e) = transport.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes()) {
        // ENOENT means that the kernel has no such inode, and so no pages of it.
        tracing::debug!(ino = ino.0, "not invalidated in the kernel: {e}");
    }
}

#[cfg(test)]
#[path = "atomics_tests.rs"]
mod tests;
