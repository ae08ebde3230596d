//! Atomic writes of programs on a mount, by the ioctls of F2FS that SQLite uses.
//!
//! `F2FS_IOC_START_ATOMIC_WRITE` begins one of the calling thread for the file. What the thread
//! writes to the file from then on is staged here; `COMMIT` makes it part of the file, durably and
//! as a whole, and `ABORT` forgets it.
//!
//! # What others see
//! Nothing before the commit. The kernel puts written bytes into its page cache before it sends the
//! WRITE, so a job invalidates these pages. It cannot do that before the reply: the kernel may hold
//! a lock on a page until then. So for some microseconds another reader may find bytes that are not
//! committed. SQLite holds its exclusive lock on the database from before the start until after the
//! commit, so no other SQLite reads then.
//!
//! After the commit the kernel must have no page of before it. The job has invalidated those that
//! the thread wrote. Only a READ, or a WRITE that is not staged, brings a page back, and the server
//! notes both until the commit is over ([`Shown`]). If there was one, or if the job has not ended,
//! the commit invalidates all pages of the atomic write before it replies; an abort does the same.
//! Otherwise there is nothing to invalidate. That matters because a notification for pages passes
//! through another process ([`crate::courier`]).
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
use kedge_base::BLOCK_SIZE;
use kedgefs::{AtomicWrite, Ino};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::{FromZeros, IntoBytes};

/// The bit of atomic writes in the result of GET_FEATURES.
const FEATURE_ATOMIC_WRITE: u32 = 0x0004;
/// Atomic writes that a mount has at a time.
const STAGINGS_MAX: usize = 64;

/// At most a page of the kernel, and what [`AtomicWrite`] counts in.
const PAGE: u64 = BLOCK_SIZE as u64;

/// An atomic write of a thread.
struct Staging {
    tid: u32,
    task: Task,
    /// `None` while it is committed or forgotten.
    write: Option<AtomicWrite>,
    shown: Arc<Shown>,
}

impl Staging {
    fn is_of(&self, header: &InHeader) -> bool {
        self.write.is_some()
            && (self.shown.ino.0, self.tid) == (header.nodeid, header.pid)
            && self.task.is_there()
    }
}

/// What the kernel's pages may show of a file while it has an atomic write.
pub struct Shown {
    ino: Ino,
    pages: Mutex<ShownPages>,
}

#[derive(Default)]
struct ShownPages {
    /// The indexes of pages with staged bytes that no job has begun to invalidate.
    written: BTreeSet<u64>,
    /// A job for them is queued, or about to be.
    is_queued: bool,
    /// Jobs that have begun and not ended.
    dropping: usize,
    /// The kernel may have pages of before the commit: it has sent a READ, or a WRITE that is not
    /// staged.
    has_others: bool,
}

impl Shown {
    fn new(ino: Ino) -> Arc<Shown> {
        Arc::new(Shown { ino, pages: Mutex::default() })
    }

    /// Notes staged bytes, before the reply to their WRITE. Returns whether the caller must queue a
    /// job for them.
    fn wrote(&self, offset: u64, len: usize) -> bool {
        let mut pages = self.pages.lock();
        pages.written.extend(offset / PAGE..(offset + len as u64).div_ceil(PAGE));
        !std::mem::replace(&mut pages.is_queued, true)
    }

    /// The job: makes the kernel drop the pages that were written so far. If a WRITE among them has
    /// no reply yet, the kernel waits for it.
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

    /// Whether the kernel has none of the pages that were written.
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
    /// Their number: without any, READs and WRITEs take no lock.
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
        let is_gone = |staging: &Staging| {
            let again = (staging.shown.ino, staging.tid) == (ino, header.pid);
            staging.write.is_some() && (again || !staging.task.is_there())
        };
        let gone: Vec<Staging> = stagings.extract_if(.., |staging| is_gone(staging)).collect();
        let is_full = stagings.len() >= STAGINGS_MAX;
        if !is_full {
            let shown = Shown::new(ino);
            stagings.push(Staging { tid: header.pid, task, write: Some(write), shown });
        }
        self.count.store(stagings.len(), Ordering::Release);
        drop(stagings);
        // Without the lock: the end of one may delete a file that has no name any more.
        drop(gone);
        if is_full { Err(Errno(libc::EBUSY)) } else { Ok(IoctlOut::new_zeroed()) }
    }

    /// Stages the bytes of a WRITE, if its caller has an atomic write of the file. `None` if not.
    /// What it returns is to be queued as a job after the reply.
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

    /// Notes a READ, or a WRITE that is not staged, before it is carried out: either it finds the
    /// file as after the commit, or the commit finds the note.
    pub(crate) fn note_other(&self, ino: Ino) {
        if self.is_used() {
            for staging in self.stagings.lock().iter().filter(|staging| staging.shown.ino == ino) {
                staging.shown.pages.lock().has_others = true;
            }
        }
    }

    /// Whether at most one atomic write is open on this mount.
    pub(crate) fn is_single(&self) -> bool {
        self.count.load(Ordering::Acquire) <= 1
    }

    /// Takes the atomic write of the caller, to be committed or forgotten.
    pub(crate) fn take(self: &Arc<Self>, header: &InHeader) -> Answer<Taken> {
        let mut stagings = self.stagings.lock();
        let staging = stagings.iter_mut().find(|staging| staging.is_of(header)).ok_or(EINVAL)?;
        let write = staging.write.take().ok_or(EINVAL)?;
        Ok(Taken { write, noted: Noted { atomics: self.clone(), shown: staging.shown.clone() } })
    }

    /// Forgets all of them, at the end of the mount.
    pub(crate) fn clear(&self) {
        let gone = std::mem::take(&mut *self.stagings.lock());
        self.count.store(0, Ordering::Release);
        drop(gone);
    }
}

/// An atomic write that was taken.
pub(crate) struct Taken {
    write: AtomicWrite,
    noted: Noted,
}

/// Until it is dropped, READs and other WRITEs of the file are noted.
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

/// An atomic write that was committed or forgotten, without a reply.
pub(crate) struct Ended {
    ino: Ino,
    result: Answer<()>,
    /// The kernel may have pages of these spans that are not those of the file.
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
    /// Whether the reply has to wait until the kernel has dropped pages.
    pub(crate) fn has_pages(&self) -> bool {
        !self.wrong.is_empty()
    }

    /// Makes the kernel drop the pages, and replies.
    pub(crate) fn reply(self, transport: &dyn Transport, reply: Reply) {
        for span in self.wrong {
            drop_pages(transport, self.ino, span);
        }
        // A caller may have asked for size and times since the WRITEs.
        invalidate(transport, self.ino, ATTRIBUTES, 0);
        reply.finish(self.result.map(|()| IoctlOut::new_zeroed()));
    }
}

/// The offset that stands for the attributes alone.
const ATTRIBUTES: i64 = -1;

/// Invalidates the pages of a range, and the attributes, in the kernel.
fn drop_pages(transport: &dyn Transport, ino: Ino, span: Span) {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    invalidate(transport, ino, signed(span.from), signed(span.len));
}

fn invalidate(transport: &dyn Transport, ino: Ino, off: i64, len: i64) {
    let body = abi::InvalInodeOut { ino: ino.0, off, len };
    if let Err(e) = transport.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes()) {
        // ENOENT: the kernel has forgotten the inode, and its pages with it.
        tracing::debug!(ino = ino.0, "not invalidated in the kernel: {e}");
    }
}

#[cfg(test)]
#[path = "atomics_tests.rs"]
mod tests;
