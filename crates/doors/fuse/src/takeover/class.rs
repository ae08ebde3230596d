//! How a server with a keeper treats each kind of request.

use crate::abi::{self, fattr, ioctl, op};
use crate::args::Args;
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::Request;
use crate::trees::TreeCall;
use kedgefs::{Ino, RecordOp};

/// How a journaled change is redone after the death of its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// The change is one record of this kind. It is redone if and only if the log has lost the
    /// record.
    Record(RecordOp),
    /// The change sets file content. It is redone unless its record is durable, but only with bytes
    /// that no later entry changes ([`super::content`]).
    Data,
    /// The change sets time stamps, for which there is no record.
    Times,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// The request changes nothing, or only what is durable by its reply.
    Free,
    Journaled(Rule),
    /// The journal does not cover the change, so it is made durable before its reply.
    Forced,
    Refused(i32),
}

impl<O: Ops> Server<O> {
    /// Returns the class of a request. A request that cannot be parsed is free: `dispatch` refuses
    /// it.
    pub(super) fn class(&self, request: &Request<'_>) -> Class {
        use Class::{Forced, Free, Journaled, Refused};
        let node = Ino(request.header.nodeid);
        let mut args = Args::new(request.body);
        let record = |kind| Journaled(Rule::Record(kind));
        match request.header.opcode {
            op::WRITE => Journaled(Rule::Data),
            op::FALLOCATE => match args.take::<abi::FallocateIn>() {
                // Carried out twice, these requests would move bytes twice.
                Ok(asked) if asked.mode & (FALLOC_COLLAPSE | FALLOC_INSERT) != 0 => Refused(libc::EOPNOTSUPP),
                Ok(_) => Journaled(Rule::Data),
                Err(_) => Free,
            },
            op::SETATTR => match args.take::<abi::SetattrIn>() {
                Ok(asked) => Journaled(rule_of_setattr(asked.valid)),
                Err(_) => Free,
            },
            op::MKNOD | op::MKDIR | op::SYMLINK | op::TMPFILE => record(RecordOp::Create),
            op::LINK => record(RecordOp::Link),
            op::UNLINK => record(RecordOp::Unlink),
            op::RMDIR if self.is_tree(node, args.name().ok()) => Forced,
            op::RMDIR => record(RecordOp::Unlink),
            op::RENAME => match args.take::<abi::RenameIn>() {
                Ok(_) if self.is_tree(node, args.name().ok()) => Forced,
                _ => record(RecordOp::Rename),
            },
            op::RENAME2 => match args.take::<abi::Rename2In>() {
                Ok(asked) if asked.flags & RENAME_WHITEOUT != 0 => Forced,
                Ok(_) if self.is_tree(node, args.name().ok()) => Forced,
                _ => record(RecordOp::Rename),
            },
            op::SETXATTR if node == Ino::ROOT && self.sets_options(Args::new(request.body)) => Forced,
            op::SETXATTR | op::REMOVEXATTR => record(RecordOp::Xattr),
            // After ENOSYS the kernel copies by reads and writes.
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => Refused(libc::ENOSYS),
            op::IOCTL => match args.take::<abi::IoctlIn>() {
                // Afterwards the file system translates the kernel's inode numbers, and the death
                // of the server would lose the translation.
                Ok(asked) if TreeCall::replaces_root(asked.cmd, &mut args) => Refused(libc::EOPNOTSUPP),
                Ok(asked) if TreeCall::is_asked(asked.cmd) => Forced,
                Ok(asked) => match asked.cmd {
                    ioctl::SET_LIMIT | ioctl::SETFLAGS | ioctl::FSSETXATTR => Forced,
                    // The death of the server would lose the staged bytes.
                    ioctl::F2FS_GET_FEATURES
                    | ioctl::F2FS_START_ATOMIC_WRITE
                    | ioctl::F2FS_COMMIT_ATOMIC_WRITE
                    | ioctl::F2FS_ABORT_ATOMIC_WRITE => Refused(libc::EOPNOTSUPP),
                    _ => Free,
                },
                Err(_) => Free,
            },
            _ => Free,
        }
    }

    fn is_tree(&self, dir: Ino, name: Option<&[u8]>) -> bool {
        name.is_some_and(|name| self.ops.tree_named(dir, name).is_some())
    }
}

const FALLOC_COLLAPSE: u32 = 0x08;
const FALLOC_INSERT: u32 = 0x20;
const RENAME_WHITEOUT: u32 = 4;

fn rule_of_setattr(valid: u32) -> Rule {
    if valid & fattr::SIZE != 0 {
        Rule::Data
    } else if valid & (fattr::MODE | fattr::UID | fattr::GID | fattr::KILL_SUIDGID) != 0 {
        Rule::Record(RecordOp::SetAttr)
    } else {
        Rule::Times
    }
}
