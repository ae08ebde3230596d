//! Requests to which another thread replies, so that they occupy no worker: an fsync waits for the
//! log, and other requests wait until the kernel has written its dirty pages.

use crate::abi;
use crate::args::Args;
use crate::errno::Errno;
use crate::ops::Ops;
use crate::parking::Job;
use crate::server::Server;
use crate::settle::{self, PageJob, SettledJob};
use crate::transport::Reply;
use kedgefs::Ino;

impl<O: Ops> Server<O> {
    pub(super) fn fsync(&self, node: Ino, args: &mut Args<'_>, reply: Reply) {
        match args.take::<abi::FsyncIn>() {
            Ok(asked) => {
                let datasync = asked.fsync_flags & abi::FSYNC_DATASYNC != 0;
                let done =
                    Box::new(move |synced: kedgefs::Result<()>| reply.finish(synced.map_err(Errno::from)));
                self.ops.fsync_opened(asked.fh, node, datasync, done);
            }
            Err(e) => reply.err(e.0),
        }
    }

    /// Passes an INTERRUPT to the thread that serves parked requests. The kernel expects no reply.
    pub(super) fn interrupt(&self, args: &mut Args<'_>, reply: Reply) {
        let Some(parking) = &self.parking else { return reply.err(libc::ENOSYS) };
        reply.none();
        match args.take::<u64>() {
            Ok(unique) => parking.send(Job::Interrupt(unique)),
            Err(_) => tracing::error!("malformed INTERRUPT"),
        }
    }

    /// Passes a request to the threads that first make the kernel write dirty pages.
    pub(crate) fn settle(&self, job: SettledJob) {
        self.page_job(PageJob::Request(job));
    }

    pub(super) fn page_job(&self, job: PageJob) {
        settle::queue(&self.settled, job);
    }
}
