//! Dispatches requests. Each opcode has a match arm that calls a method and sends its result or
//! errno. The files in this folder contain these methods, grouped by kind of request.

mod attributes;
mod data;
mod entries;
mod ioctls;
mod later;
mod listing;
mod names;
mod opening;
mod xattrs;

use crate::abi::{self, op};
use crate::args::Args;
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::{Reply, Request};
use kedge_base::IoBuf;
use kedgefs::Ino;

impl<O: Ops> Server<O> {
    pub(crate) fn dispatch(&self, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        let node = Ino(request.header.nodeid);
        let mut args = Args::new(request.body);
        let args = &mut args;
        match request.header.opcode {
            op::INIT => {
                reply.finish(self.init(request));
                self.transport.negotiated();
            }
            op::DESTROY => {
                self.destroy();
                reply.finish(Ok::<_, Errno>(()));
            }
            op::LOOKUP => reply.finish(self.lookup(node, args)),
            opcode if has_no_reply(opcode) => {
                // Sends no reply, because the kernel does not expect one.
                reply.none();
                if self.forget(request).is_err() {
                    tracing::error!(op = abi::op_name(opcode), "malformed");
                }
            }
            op::GETATTR => reply.finish(self.getattr(node)),
            op::STATX => reply.finish(self.statx(node)),
            op::SETATTR => reply.finish(self.setattr(request, args)),
            op::READLINK => finish_bytes(reply, self.ops.readlink(node).map_err(Errno::from)),
            op::SYMLINK => reply.finish(self.symlink(request, args)),
            op::MKNOD => reply.finish(self.mknod(request, args)),
            op::MKDIR => reply.finish(self.mkdir(request, args)),
            op::CREATE => reply.finish(self.create(request, args)),
            op::TMPFILE => reply.finish(self.tmpfile(request, args)),
            op::LINK => reply.finish(self.link(node, args)),
            op::UNLINK => reply.finish(self.unlink(node, args)),
            op::RMDIR => self.rmdir(node, args, reply),
            op::RENAME => self.rename(node, args, reply),
            op::RENAME2 => self.rename2(request, args, reply),
            op::OPEN => reply.finish(self.open(request, args)),
            op::OPENDIR => reply.finish(self.opendir(node)),
            op::RELEASE => reply.finish(self.release(node, args)),
            op::RELEASEDIR => reply.finish(Ok::<_, Errno>(())),
            op::READ => finish_scratch(reply, self.read(node, args, out), out),
            op::READDIR => finish_scratch(reply, self.readdir(node, args, out), out),
            op::READDIRPLUS => finish_scratch(reply, self.readdirplus(node, args, out), out),
            op::WRITE => self.write(request, args, reply),
            op::FALLOCATE => reply.finish(self.fallocate(request, args)),
            op::COPY_FILE_RANGE => self.copy_range(request, args, reply, false),
            op::COPY_FILE_RANGE_64 => self.copy_range(request, args, reply, true),
            op::LSEEK => self.lseek(node, args, reply),
            op::FSYNC | op::FSYNCDIR => self.fsync(node, args, reply),
            op::SYNCFS => {
                self.ops.sync_async(Box::new(move |synced| reply.finish(synced.map_err(Errno::from))));
            }
            op::STATFS => reply.finish(self.statfs(Ino(request.header.nodeid))),
            op::GETXATTR => self.getxattr(request, args, reply),
            op::LISTXATTR => self.listxattr(request, args, reply),
            op::SETXATTR => reply.finish(self.setxattr(request, args)),
            op::REMOVEXATTR => reply.finish(self.removexattr(node, args)),
            op::IOCTL => self.ioctl(request, args, reply),
            op::INTERRUPT => self.interrupt(args, reply),
            // Not served; the kernel remembers ENOSYS and sends no more of these: FLUSH (a close is
            // no durability point), ACCESS (the kernel checks permissions), locks and POLL (the
            // kernel handles them), BMAP.
            _ => reply.err(libc::ENOSYS),
        }
    }
}

/// Whether requests with this opcode have no reply.
fn has_no_reply(opcode: u32) -> bool {
    matches!(opcode, op::FORGET | op::BATCH_FORGET)
}

fn finish_bytes(reply: Reply, bytes: Answer<Vec<u8>>) {
    match bytes {
        Ok(bytes) => reply.ok(&[&bytes]),
        Err(e) => reply.err(e.0),
    }
}

/// Replies with the first bytes of the worker's scratch buffer.
fn finish_scratch(reply: Reply, len: Answer<usize>, out: &IoBuf) {
    match len {
        Ok(len) => reply.ok(&[&out.as_bytes()[..len]]),
        Err(e) => reply.err(e.0),
    }
}
