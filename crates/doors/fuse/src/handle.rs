//! The path of a request from a worker to its dispatch. The request is counted and its caller
//! noted; a change is parked while the file system is frozen; a panic shuts the file system down.

use crate::abi::{self, ioctl, op, op_name};
use crate::args::Args;
use crate::caller::with_caller;
use crate::keep::steps::{self, Step};
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::{Reply, Request};
use kedge_base::IoBuf;
use kedgefs::Ino;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl<O: Ops> Server<O> {
    /// Serves one request, or passes it to the thread that serves it. `out` is a scratch buffer of
    /// the worker.
    ///
    /// A panic below means a broken invariant of the engine. Nothing may be written any more, but
    /// the mount must continue to reply: otherwise every process that accesses it hangs.
    pub fn handle(&self, request: &Request<'_>, out: &mut IoBuf) {
        let reply = self.accept(request);
        tracing::trace!(op = op_name(request.header.opcode), node = request.header.nodeid, "request");
        self.answer(request, reply, out);
    }

    /// Like [`Server::handle`], with a reply that exists already.
    pub(crate) fn answer(&self, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        let opcode = request.header.opcode;
        // When a panic unwinds the stack, the reply's destructor sends EIO.
        let dispatch = || with_caller(request.header.pid, || self.serve(request, reply, out));
        if catch_unwind(AssertUnwindSafe(dispatch)).is_err() {
            tracing::error!(
                op = op_name(opcode),
                node = request.header.nodeid,
                "panic: shutting the file system down"
            );
            if self.kept.is_some() {
                // The keeper starts another server.
                std::process::abort();
            }
            match catch_unwind(AssertUnwindSafe(|| self.ops.shutdown(false))) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::error!("shutdown after a panic failed: {e}"),
                Err(_) => tracing::error!("shutdown after a panic panicked"),
            }
        }
    }

    fn serve(&self, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        if let Some(kept) = &self.kept {
            steps::at(Step::Received, request.header.opcode);
            self.serve_kept(kept, request, reply, out);
            return steps::at(Step::Served, request.header.opcode);
        }
        self.unless_frozen(request, reply, |reply| self.dispatch(request, reply, out));
    }

    /// Serves a request now. If it has to wait for a thaw, parks it instead.
    pub(crate) fn unless_frozen(&self, request: &Request<'_>, reply: Reply, mut serve: impl FnMut(Reply)) {
        let Some(parking) = self.parking.as_ref().filter(|_| self.is_change(request)) else {
            return serve(reply);
        };
        let (reply, refused) = (Cell::new(Some(reply)), Cell::new(None));
        let mut now = || serve(reply.take().expect("either `now` or `park` uses the reply"));
        let mut later = || {
            let parked = parking.park(request, reply.take().expect("either `now` or `park` uses the reply"));
            parked.unwrap_or_else(|reply| {
                refused.set(Some(reply));
                None
            })
        };
        self.ops.change_or(&mut now, &mut later);
        if let Some(reply) = refused.take() {
            reply.err(libc::ENOMEM);
        }
    }

    /// Whether a request changes the file system. False for requests that cannot be parsed, which
    /// `dispatch` refuses.
    pub(crate) fn is_change(&self, request: &Request<'_>) -> bool {
        let mut args = Args::new(request.body);
        match request.header.opcode {
            op::SETATTR | op::WRITE | op::FALLOCATE | op::REMOVEXATTR => true,
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => true,
            op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK | op::TMPFILE => true,
            op::UNLINK | op::RMDIR | op::RENAME | op::RENAME2 => true,
            op::CREATE => !self.options.no_open,
            op::OPEN if self.options.no_open => false,
            op::OPEN => args.take().is_ok_and(|asked: abi::OpenIn| asked.flags & libc::O_TRUNC as u32 != 0),
            op::SETXATTR => request.header.nodeid != Ino::ROOT.0 || !self.sets_options(args),
            op::IOCTL => args.take().is_ok_and(|asked: abi::IoctlIn| {
                matches!(asked.cmd, ioctl::TRIM | ioctl::SETFLAGS | ioctl::FSSETXATTR)
            }),
            _ => false,
        }
    }
}
