//! The way of a request from a worker to its dispatch: the request is counted, its caller is noted,
//! a change that finds the file system frozen is parked, and a panic shuts the file system down.

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
    /// Serves one request, or passes it to the thread that will. `out` is scratch space of one
    /// worker.
    ///
    /// A panic below is a broken invariant of the engine. Nothing may be written any more, but the
    /// mount must go on replying, or every process that accesses it hangs.
    pub fn handle(&self, request: &Request<'_>, out: &mut IoBuf) {
        let reply = self.accept(request);
        tracing::trace!(op = op_name(request.header.opcode), node = request.header.nodeid, "request");
        self.answer(request, reply, out);
    }

    /// [`Server::handle`] of a request whose reply is made.
    pub(crate) fn answer(&self, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        let opcode = request.header.opcode;
        // The reply is sent with EIO when the stack unwinds over it.
        let dispatch = || with_caller(request.header.pid, || self.serve(request, reply, out));
        if catch_unwind(AssertUnwindSafe(dispatch)).is_err() {
            tracing::error!(
                op = op_name(opcode),
                node = request.header.nodeid,
                "panic: shutting the file system down"
            );
            if self.kept.is_some() {
                // Another server takes this one's place.
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

    /// Serves a request now, or parks it for the thread if it has to wait for a thaw.
    pub(crate) fn unless_frozen(&self, request: &Request<'_>, reply: Reply, mut serve: impl FnMut(Reply)) {
        let Some(parking) = self.parking.as_ref().filter(|_| self.is_change(request)) else {
            return serve(reply);
        };
        let (reply, refused) = (Cell::new(Some(reply)), Cell::new(None));
        let mut now = || serve(reply.take().expect("one of the two takes it"));
        let mut later = || {
            let parked = parking.park(request, reply.take().expect("one of the two takes it"));
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

    /// Whether a request changes the file system. `dispatch` refuses requests that cannot be
    /// parsed.
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
