//! Serves requests about a file whose dirty pages the kernel must write first.
//!
//! The kernel sends these requests without writing its dirty pages:
//! - LSEEK (SEEK_DATA, SEEK_HOLE): with a writeback cache, a file just written would be a hole. In
//!   either cache mode, so would a store through a shared mapping. A copy that trusts SEEK_DATA
//!   would lose those bytes. The usual workaround is to reply ENOSYS. The kernel then considers
//!   every file dense, and sparse files lose their holes in copies.
//! - An ioctl that makes a file immutable or append-only: pages that were dirty before would be
//!   refused when the kernel writes them, and be lost.
//! - A WRITE to an append-only file: it bypasses the kernel's page cache (see the module `opens`),
//!   whose last page a reader may have cached with the old bytes.
//!
//! The threads also serve atomic writes (the module `atomics`): their pages must be dropped, and
//! concurrent commits wait for the log.
//!
//! The threads also serve changes of whole trees (the module `trees`), which wait for a checkpoint
//! and for the kernel to drop a name, and changes of limits (`tree_limits`).
//!
//! So the server first notifies the kernel to invalidate the file's pages, which makes the kernel
//! write the dirty pages, and then serves the request. If there is data at the offset of an LSEEK
//! itself, no dirty page can change the result, and the reply is sent at once.
//!
//! The notification returns when the pages are written, that is, when workers have replied to the
//! WRITEs. A worker that waited for this could deadlock, so these requests have their own threads.
//! The callers hold the inode's lock in the kernel, but neither WRITE nor the invalidation takes
//! it.
//!
//! While the file system is frozen, the pages of a file are not written before the thaw. A request
//! for such a file waits, and must not delay requests for other files. So whenever all threads are
//! busy another thread is started, up to `THREADS_MAX`. The kernel has at most one such request in
//! flight for each file.
//!
//! The number of callers blocked in lseek(2) and ioctl(2), and the size and number of atomic
//! writes, bound the queue. A panic shuts the file system down, as in a worker. The thread goes on,
//! or every later lseek(2) would wait forever.

use crate::abi::{self, LseekOut, WriteOut};
use crate::atomics::{Ended, Shown, Taken};
use crate::errno::{Answer, Errno};
use crate::flags;
use crate::opens::{Bar, Opens};
use crate::ops::Ops;
use crate::transport::{Reply, Transport};
use crate::tree_limits::LimitCall;
use crate::trees::TreeCall;
use kedge_base::JoinHandle;
use kedge_base::{Clock, SystemClock, spawn_named, without_panic};
use kedgefs::{FileFlags, Ino, SeekKind};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;
use zerocopy::IntoBytes;

/// A job for the threads.
pub enum PageJob {
    Request(SettledJob),
    /// Invalidates pages that a thread has written in an atomic write.
    Drop(Arc<Shown>),
    /// Makes the kernel drop the pages of a file from an offset on.
    Forget(Ino, u64),
}

/// A request that waits for dirty pages to be written.
pub struct SettledJob {
    pub(crate) reply: Reply,
    pub(crate) ino: Ino,
    /// The file offset from which on the pages must be written.
    pub(crate) from: u64,
    pub(crate) then: Then,
}

/// The operation after the pages are written.
pub(crate) enum Then {
    /// Seeks from the same offset.
    Seek(SeekKind),
    SetFlags(FileFlags, Opens),
    /// Nothing more: the WRITE bypassed the pages and is complete, and the pages only had to be
    /// dropped.
    Written(WriteOut),
    Tree(TreeCall),
    Limit(LimitCall),
    Commit(Taken),
    /// Replies to a commit or abort, for which the kernel must first drop pages.
    Ended(Ended),
    /// Replies with an error. The request has changed the file, which the kernel expects only of a
    /// success.
    Failed(Errno),
}

/// Queues a job. If the threads have ended, the job is dropped, and its reply sends EIO.
pub(crate) fn queue(jobs: &Sender<PageJob>, job: PageJob) {
    if jobs.send(job).is_err() {
        tracing::error!("no thread has dirty pages written");
    }
}

/// The most threads for jobs. If all are busy, further jobs wait.
const THREADS_MAX: usize = 64;

/// The state that the threads share.
struct Pool<O> {
    ops: Arc<O>,
    transport: Arc<dyn Transport>,
    /// The thread that holds this lock waits for the next job.
    jobs: Mutex<Receiver<PageJob>>,
    /// Threads that wait for a job, or for the lock on `jobs`.
    idle: AtomicUsize,
    helpers: Mutex<Vec<JoinHandle<()>>>,
}

/// Serves jobs until the last sender is dropped.
pub fn serve<O: Ops>(ops: Arc<O>, transport: Arc<dyn Transport>, jobs: Receiver<PageJob>) {
    let (jobs, idle, helpers) = (Mutex::new(jobs), AtomicUsize::new(0), Mutex::default());
    let pool = Arc::new(Pool { ops, transport, jobs, idle, helpers });
    pool.work();
    // Each helper ends after its job. No jobs are left, so no helper starts another thread.
    let helpers = std::mem::take(&mut *pool.helpers.lock());
    if helpers.into_iter().any(|helper| helper.join().is_err()) {
        tracing::error!("a thread for dirty pages panicked");
    }
}

impl<O: Ops> Pool<O> {
    fn work(self: &Arc<Self>) {
        loop {
            self.idle.fetch_add(1, SeqCst);
            let job = self.jobs.lock().recv();
            let others = self.idle.fetch_sub(1, SeqCst) - 1;
            let Ok(job) = job else { return };
            if others == 0 {
                self.start_another();
            }
            self.answer(job);
        }
    }

    fn start_another(self: &Arc<Self>) {
        let mut helpers = self.helpers.lock();
        if helpers.len() + 1 < THREADS_MAX {
            let pool = self.clone();
            match spawn_named("kedge-fuse-pages", move || pool.work()) {
                Ok(helper) => helpers.push(helper),
                Err(e) => tracing::warn!("requests that need dirty pages written wait for one another: {e}"),
            }
        }
    }

    fn answer(&self, job: PageJob) {
        let ino = match &job {
            PageJob::Request(job) => job.ino.0,
            PageJob::Drop(shown) => shown.ino().0,
            PageJob::Forget(ino, _) => ino.0,
        };
        // When a panic unwinds the stack, the reply's destructor sends EIO.
        let answered = without_panic("the thread for dirty pages", || {
            match job {
                PageJob::Request(job) => answer(&*self.ops, &*self.transport, job),
                PageJob::Drop(shown) => shown.drop_written(&*self.transport),
                PageJob::Forget(ino, from) => {
                    // A failure is logged. The kernel has forgotten the inode, or the mount ends.
                    let _logged = write_dirty_pages(&*self.transport, ino, from);
                }
            }
            Ok(())
        });
        let Err(panic) = answered else { return };
        tracing::error!(ino, "{panic}: shutting the file system down");
        let down = without_panic("a shutdown", || Ok(self.ops.shutdown(false).map_err(|e| e.to_string())));
        if let Err(e) = down.unwrap_or_else(|panic| Err(panic.to_string())) {
            tracing::error!("shutdown after a panic failed: {e}");
        }
    }
}

pub(crate) fn answer<O: Ops>(ops: &O, transport: &dyn Transport, job: SettledJob) {
    let SettledJob { reply, ino, from, then } = job;
    let then = match then {
        Then::Tree(call) => return call.answer(ops, transport, reply),
        Then::Limit(call) => return call.answer(ops, reply),
        Then::Commit(taken) => return taken.commit().reply(transport, reply),
        Then::Ended(ended) => return ended.reply(transport, reply),
        Then::Failed(errno) => {
            // If the invalidation fails, too, the first error is the one to report.
            let _logged = write_dirty_pages(transport, ino, from);
            return reply.err(errno.0);
        }
        then => then,
    };
    let bar = match &then {
        Then::SetFlags(_, opens) => bar(opens, ino).map(Some),
        _ => Ok(None),
    };
    let bar = match bar {
        Ok(bar) => bar,
        Err(errno) => return reply.err(errno.0),
    };
    if let Err(errno) = write_dirty_pages(transport, ino, from) {
        return reply.err(errno.0);
    }
    match then {
        Then::Seek(kind) => {
            let found = ops.seek(ino, from, kind).map_err(Errno::from);
            reply.finish(found.map(|offset| LseekOut { offset }));
        }
        Then::SetFlags(flags, _) => {
            let set = flags::set(ops, ino, flags);
            drop(bar);
            // The kernel does not know that an ioctl changes the inode's times.
            forget_attributes(transport, ino);
            reply.finish(set);
        }
        Then::Written(written) => reply.finish(Ok::<_, Errno>(written)),
        Then::Tree(_) | Then::Limit(_) | Then::Commit(_) | Then::Ended(_) | Then::Failed(_) => {
            unreachable!("answered above")
        }
    }
}

/// Bars opens that could change pages. If a file was just closed, waits a moment: the kernel sends
/// RELEASE after close(2) has returned.
fn bar(opens: &Opens, ino: Ino) -> Answer<Bar> {
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(10);
    for _ in 1..TRIES {
        if let Ok(bar) = opens.bar(ino) {
            return Ok(bar);
        }
        SystemClock::default().sleep(PAUSE);
    }
    opens.bar(ino)
}

/// Invalidates an inode's attributes in the kernel. Pages stay.
pub(crate) fn forget_attributes(transport: &dyn Transport, ino: Ino) {
    let body = abi::InvalInodeOut { ino: ino.0, off: -1, len: 0 };
    if let Err(e) = transport.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes()) {
        // ENOENT means that the kernel has no such inode.
        tracing::debug!(ino = ino.0, "attributes not invalidated: {e}");
    }
}

fn write_dirty_pages(transport: &dyn Transport, ino: Ino, from: u64) -> Answer<()> {
    let off = i64::try_from(from).unwrap_or(i64::MAX);
    let body = abi::InvalInodeOut { ino: ino.0, off, len: 0 };
    transport.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes()).map_err(|e| {
        // The pages may still be dirty. An error is better for the caller than a hole where data
        // is.
        tracing::warn!(ino = ino.0, "dirty pages are not written: {e}");
        Errno(e.raw_os_error().unwrap_or(libc::EIO))
    })
}

#[cfg(test)]
#[path = "settle_tests.rs"]
mod tests;
