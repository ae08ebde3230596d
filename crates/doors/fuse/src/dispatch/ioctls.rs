//! The ioctls: flags of inodes, and administration of the mount.

use crate::abi::{InHeader, ioctl};
use crate::args::Args;
use crate::atomics::{Atomics, Taken};
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use crate::parking::Job;
use crate::server::Server;
use crate::settle::{SettledJob, Then};
use crate::transport::{Reply, Request};
use crate::tree_limits::LimitCall;
use crate::trees::TreeCall;
use crate::{abi, caller, control, flags};
use kedgefs::Ino;
use kedgefs::acl::{self, Acl};
use std::sync::atomic::Ordering;
use zerocopy::FromZeros;

impl<O: Ops> Server<O> {
    pub(super) fn ioctl(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        let header = &request.header;
        match args.take::<abi::IoctlIn>() {
            Ok(asked) if asked.cmd == ioctl::SHUTDOWN => {
                let stopped = control::shutdown(&*self.ops, header, asked.arg);
                reply.finish(stopped.map(|()| abi::IoctlOut::new_zeroed()));
            }
            Ok(asked) if asked.cmd == ioctl::TRIM => {
                reply.finish(args.take().and_then(|range| control::trim(&*self.ops, header, range)));
            }
            Ok(asked) if TreeCall::is_asked(asked.cmd) => match TreeCall::parse(asked.cmd, header, args) {
                // The new contents get other inode numbers, but only while the image is open. The
                // handles that other clients get would be stale for the next server.
                Ok(call) if self.options.shared && call.is_of_root() => reply.err(libc::EOPNOTSUPP),
                Ok(call) => {
                    let ino = Ino(header.nodeid);
                    self.settle(SettledJob { reply, ino, from: 0, then: Then::Tree(call) });
                }
                Err(e) => reply.err(e.0),
            },
            Ok(asked) if asked.cmd == ioctl::SET_LIMIT => match LimitCall::parse(header, args) {
                Ok(call) => {
                    let ino = Ino(header.nodeid);
                    self.settle(SettledJob { reply, ino, from: 0, then: Then::Limit(call) });
                }
                Err(e) => reply.err(e.0),
            },
            Ok(asked)
                if matches!(
                    asked.cmd,
                    ioctl::F2FS_GET_FEATURES
                        | ioctl::F2FS_START_ATOMIC_WRITE
                        | ioctl::F2FS_COMMIT_ATOMIC_WRITE
                        | ioctl::F2FS_ABORT_ATOMIC_WRITE
                ) =>
            {
                self.atomic(asked.cmd, header, reply);
            }
            Ok(asked) if matches!(asked.cmd, ioctl::FREEZE | ioctl::THAW) => {
                self.freeze_or_thaw(asked.cmd, args, header, reply);
            }
            Ok(asked) => self.ioctl_of_flags(asked.cmd, Ino(header.nodeid), args, reply),
            Err(e) => reply.err(e.0),
        }
    }

    /// Serves [`ioctl::FREEZE`] and [`ioctl::THAW`].
    fn freeze_or_thaw(&self, cmd: u32, args: &mut Args<'_>, header: &InHeader, reply: Reply) {
        let checked = control::check_owner(header).and_then(|()| match cmd {
            ioctl::FREEZE => args.take(),
            _ => Ok(0),
        });
        let reply = match &self.kept {
            // A server that is being replaced waits until the freeze is noted.
            Some(kept) => reply.holding(Box::new(kept.owe(None))),
            None => reply,
        };
        match (checked, &self.parking) {
            (Err(e), _) => reply.err(e.0),
            (_, None) => reply.err(libc::EOPNOTSUPP),
            (Ok(seconds), Some(parking)) if cmd == ioctl::FREEZE => {
                parking.send(Job::Freeze { reply, seconds, unique: header.unique });
            }
            (Ok(_), Some(parking)) => parking.send(Job::Thaw { reply, unique: header.unique }),
        }
    }

    fn ioctl_of_flags(&self, cmd: u32, node: Ino, args: &mut Args<'_>, reply: Reply) {
        let asked = match cmd {
            ioctl::GETFLAGS => return reply.finish(flags::get(&*self.ops, node)),
            ioctl::FSGETXATTR => return reply.finish(flags::get_fsxattr(&*self.ops, node)),
            // A kernel before 5.13 passes the ioctl on for any caller that can open the file.
            ioctl::SETFLAGS | ioctl::FSSETXATTR if !self.flags_checked.load(Ordering::Relaxed) => {
                return reply.err(libc::EOPNOTSUPP);
            }
            ioctl::SETFLAGS => args.take().and_then(flags::asked),
            ioctl::FSSETXATTR => args.take().and_then(|set| flags::asked_of_fsxattr(&*self.ops, node, set)),
            _ => return reply.err(libc::ENOTTY),
        };
        match asked {
            Ok(set) if flags::refuses_writes(set) => {
                let then = Then::SetFlags(set, self.opens.clone());
                self.settle(SettledJob { reply, ino: node, from: 0, then });
            }
            Ok(set) => {
                let done = flags::set(&*self.ops, node, set);
                // The kernel does not know that the ioctl has changed the inode's times.
                self.forget_attributes(node.0);
                reply.finish(done);
            }
            Err(e) => reply.err(e.0),
        }
    }

    /// Begins an atomic write. The kernel does not send whether the descriptor is open for writing,
    /// so the caller needs the right to write to the file.
    fn start_atomic(&self, header: &InHeader) -> Answer<abi::IoctlOut> {
        let ino = Ino(header.nodeid);
        let attr = self.ops.getattr(ino)?;
        let list = match self.acls.load(Ordering::Relaxed) {
            true => match self.ops.getxattr(ino, acl::ACCESS) {
                Ok(bytes) => Acl::decode(&bytes),
                Err(kedgefs::Error::NoXattr) => None,
                Err(e) => return Err(e.into()),
            },
            false => None,
        };
        let user = caller::writer(header, &attr, list.as_ref()).ok_or(Errno(libc::EACCES))?;
        self.atomics.start(&*self.ops, header, user)
    }

    /// Serves the ioctls of F2FS: see [`crate::atomics`].
    fn atomic(&self, cmd: u32, header: &InHeader, reply: Reply) {
        let ino = Ino(header.nodeid);
        if self.writeback.load(Ordering::Relaxed) {
            return match cmd {
                ioctl::F2FS_GET_FEATURES => reply.finish(Ok::<_, Errno>(abi::IoctlFlags::new_zeroed())),
                _ => reply.err(libc::EOPNOTSUPP),
            };
        }
        match cmd {
            ioctl::F2FS_GET_FEATURES => {
                reply.finish(Ok::<_, Errno>(Atomics::features(&*self.ops, header)));
            }
            ioctl::F2FS_START_ATOMIC_WRITE => reply.finish(self.start_atomic(header)),
            _ => match self.atomics.take(header) {
                Ok(taken) => self.end_atomic(cmd, taken, ino, reply),
                Err(e) => reply.err(e.0),
            },
        }
    }

    /// Commits or discards an atomic write. A commit waits for the log. A single one waits on this
    /// worker, which saves waking another thread. Several at a time would occupy all workers, so
    /// other threads serve them.
    fn end_atomic(&self, cmd: u32, taken: Taken, ino: Ino, reply: Reply) {
        let settle = |reply, then| self.settle(SettledJob { reply, ino, from: 0, then });
        let ended = match cmd {
            ioctl::F2FS_COMMIT_ATOMIC_WRITE if !self.atomics.is_single() => {
                return settle(reply, Then::Commit(taken));
            }
            ioctl::F2FS_COMMIT_ATOMIC_WRITE => taken.commit(),
            _ => taken.forget(),
        };
        match ended.has_pages() {
            true => settle(reply, Then::Ended(ended)),
            false => ended.reply(&*self.transport, reply),
        }
    }
}
