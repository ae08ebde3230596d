//! LSEEK (SEEK_DATA, SEEK_HOLE) below the kernel's page cache.
//!
//! The kernel asks the server where data is without writing its dirty pages first. With a writeback
//! cache, a file just written would be a hole. In either cache mode, so would a store through a
//! shared mapping. A copy that trusts SEEK_DATA would lose those bytes. The usual workaround is to
//! answer ENOSYS. The kernel then considers every file dense, and sparse files lose their holes in
//! copies. Instead, the server tells the kernel to invalidate the file's pages from the offset on,
//! which makes it write the dirty ones, and then searches. If there is data at the offset itself,
//! no dirty page can change the answer, and it is given at once.
//!
//! The kernel returns from the invalidation when the pages are written: when workers have answered
//! the WRITEs. A worker that waited there could deadlock on itself, so these requests have a thread
//! of their own. The LSEEK holds the inode's lock in the kernel, but neither WRITE nor the
//! invalidation takes that.
//!
//! The queue is as long as there are callers blocked in lseek(2). A panic shuts the file system
//! down, as that of a worker does. The thread goes on, or every later lseek(2) would wait for ever.

use crate::abi::{self, LseekOut};
use crate::dispatch::Errno;
use crate::ops::Ops;
use crate::transport::{Reply, Transport};
use kedge_base::without_panic;
use kedgefs::{Ino, SeekKind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use zerocopy::IntoBytes;

/// An LSEEK to be answered.
pub struct SeekJob {
    pub(crate) reply: Reply,
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) kind: SeekKind,
}

/// Answers jobs until no server can send any more.
pub fn serve<O: Ops>(ops: Arc<O>, transport: Arc<dyn Transport>, jobs: Receiver<SeekJob>) {
    while let Ok(job) = jobs.recv() {
        let ino = job.ino.0;
        // The reply answers EIO when the stack unwinds over it.
        let answered = without_panic("the seek thread", || {
            answer(&*ops, &*transport, job);
            Ok(())
        });
        let Err(panic) = answered else { continue };
        tracing::error!(ino, "{panic}: shutting the file system down");
        let down = without_panic("a shutdown", || Ok(ops.shutdown(false).map_err(|e| e.to_string())));
        if let Err(e) = down.unwrap_or_else(|panic| Err(panic.to_string())) {
            tracing::error!("shutdown after a panic failed: {e}");
        }
    }
}

fn answer<O: Ops>(ops: &O, transport: &dyn Transport, job: SeekJob) {
    let from = i64::try_from(job.offset).unwrap_or(i64::MAX);
    let body = abi::InvalInodeOut { ino: job.ino.0, off: from, len: 0 };
    if let Err(e) = transport.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes()) {
        // The pages may still be dirty: an error to the caller, rather than a hole where data is.
        tracing::warn!(ino = job.ino.0, "dirty pages not written for lseek: {e}");
        job.reply.err(e.raw_os_error().unwrap_or(libc::EIO));
        return;
    }
    let found = ops.seek(job.ino, job.offset, job.kind).map_err(Errno::from);
    job.reply.finish(found.map(|offset| LseekOut { offset }));
}

#[cfg(test)]
#[path = "seek_tests.rs"]
mod tests;
