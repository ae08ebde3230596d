//! The caller: the thread whose system call led to the request that is being served, and what it
//! may do that others may not.
//!
//! # Rights
//! They are judged as a file system in the kernel would: by capabilities that are in effect, in the
//! user namespace of this process. The caller waits for the answer. It can neither end nor change
//! its credentials and namespaces meanwhile, so that what /proc says of it ([`crate::task`]) is
//! true as long as the request has no answer. Nothing is kept from one request for the next.
//!
//! False is the answer where it cannot be known:
//! - a caller without a number here, from outside of this process's pid namespace;
//! - a caller whose namespaces this process may not see. The kernel lets no process in a user
//!   namespace look at those outside, so root outside has no rights over a mount made inside. (The
//!   kernel also keeps it from accessing that mount.) The same holds for root and a mount that an
//!   ordinary user serves: root can end that mount or its process;
//! - a thread of the kernel, which acts for others: an NFS server's requests come from threads with
//!   all capabilities;
//! - a caller whose ids in the request are not its own: it acts with the credentials of others, as
//!   overlayfs and io_uring do. Where idmapped mounts are permitted, requests have no ids, and the
//!   thread's own rights count.
//!
//! Security modules may refuse what a capability permits. They are not asked.
//!
//! # Ids
//! Where idmapped mounts are permitted, the kernel sends ids only with requests that make inodes,
//! and these are ids of the file system: not the caller's own on an idmapped mount. So nothing is
//! decided by the ids of a request alone.

use crate::abi::{InHeader, NO_ID};
use crate::task::{Capability, Namespace, Status, Task};
use std::cell::Cell;
use std::io;

thread_local! {
    static CALLER: Cell<u32> = const { Cell::new(0) };
}

/// The number of the calling thread of the request that this thread serves, in this process's
/// namespace. 0: the kernel itself (writeback of a mapping), or no request. Jobs that are passed to
/// other threads (the end of an fsync, LSEEK) have none there.
pub fn caller() -> u32 {
    CALLER.get()
}

/// Whether the caller of a request without an answer has a capability over this process's user
/// namespace. See the module for what is not known, and false. It reads /proc: not for requests
/// that are frequent.
pub(crate) fn is_capable(header: &InHeader, capability: Capability) -> bool {
    known(header, |task, status| Ok(status.has(capability) && task.shares(Namespace::User)?))
}

/// Whether the caller is in a group. Groups that this process's user namespace does not map, and
/// those of an idmapped mount, are others.
pub(crate) fn is_member(header: &InHeader, gid: u32) -> bool {
    known(header, |_, status| Ok(status.is_member(gid)))
}

/// Whether the caller is the ordinary user who serves the mount, outside of sandboxes. Root of a
/// user namespace is judged by capabilities. A process of the same user in other namespaces has
/// been given less than the user has: a sandbox with a read-only view of the mount must not change
/// it by other means.
pub(crate) fn serves_the_mount(header: &InHeader) -> bool {
    let own = rustix::process::geteuid();
    !own.is_root()
        && known(header, |task, status| {
            let same = status.is_wholly(own.as_raw());
            Ok(same && task.shares(Namespace::User)? && task.shares(Namespace::Mount)?)
        })
}

fn known(header: &InHeader, holds: impl FnOnce(&Task, &Status) -> io::Result<bool>) -> bool {
    let judge = || {
        let task = Task::open(header.pid)?;
        let status = task.status()?;
        let own_ids = header.uid == NO_ID || header.uid == status.user();
        Ok(own_ids && status.is_programs() && holds(&task, &status)?)
    };
    judge().unwrap_or_else(|e: io::Error| {
        tracing::debug!(pid = header.pid, "rights of the caller are not known: {e}");
        false
    })
}

/// Runs `serve` for a request of thread `tid`.
pub(crate) fn with_caller<T>(tid: u32, serve: impl FnOnce() -> T) -> T {
    CALLER.set(tid);
    let result = serve();
    CALLER.set(0);
    result
}
