//! The caller of a request, which is the thread whose system call caused the request, and its
//! rights.
//!
//! # Rights
//! Rights are checked as in a file system of the kernel: by effective capabilities in the user
//! namespace of this process. The caller waits for the reply. Until then it can neither end nor
//! change its credentials and namespaces, so its entry in /proc ([`crate::task`]) is valid until
//! the reply is sent. Nothing is cached from one request to the next.
//!
//! The result is false if the rights cannot be determined:
//! - a caller without a pid here, from outside this process's pid namespace;
//! - a caller whose namespaces this process may not see. The kernel lets no process in a user
//!   namespace read the namespaces of a process outside, so root outside has no rights over a mount
//!   made inside. (The kernel also keeps it from accessing that mount.) The same holds for root and
//!   a mount that an ordinary user serves: root can end that mount or its process;
//! - a kernel thread, which acts for other processes: the threads of an NFS server have all
//!   capabilities;
//! - a caller whose ids differ from those in the request: it acts with other credentials, as
//!   overlayfs and io_uring do. Where idmapped mounts are permitted, requests have no ids, and the
//!   thread's own rights count.
//!
//! Security modules may refuse what a capability permits; they are not consulted.
//!
//! # Ids
//! Where idmapped mounts are permitted, the kernel sends ids only with requests that make inodes,
//! and these are ids of the file system, which differ from the caller's on an idmapped mount. So no
//! decision depends on the ids of a request alone.

use crate::abi::{InHeader, NO_ID};
use crate::task::{Capability, Namespace, Status, Task};
use kedgefs::Attr;
use kedgefs::acl::Acl;
use std::cell::Cell;
use std::io;

thread_local! {
    static CALLER: Cell<u32> = const { Cell::new(0) };
}

/// The thread id of the caller of the request that this thread serves, in this process's pid
/// namespace. 0 for the kernel itself (writeback of a mapping), and outside a request. Jobs that
/// other threads finish (the end of an fsync, LSEEK) have no caller there.
pub fn caller() -> u32 {
    CALLER.get()
}

/// Whether the caller of a request has a capability over this process's user namespace. The request
/// must not have its reply yet. False if the rights cannot be determined (see the module). Reads
/// /proc, so it is too slow for frequent requests.
pub(crate) fn is_capable(header: &InHeader, capability: Capability) -> bool {
    known(header, |task, status| Ok(status.has(capability) && task.shares(Namespace::User)?))
}

/// Whether the caller is in a group. Groups that this process's user namespace does not map, and
/// groups of an idmapped mount, never match.
pub(crate) fn is_member(header: &InHeader, gid: u32) -> bool {
    known(header, |_, status| Ok(status.is_member(gid)))
}

/// The user of the caller, if the caller may write to a file with these attributes and this access
/// list. `None` if it may not, or if its rights cannot be determined (see the module).
pub(crate) fn writer(header: &InHeader, attr: &Attr, list: Option<&Acl>) -> Option<u32> {
    let mut user = None;
    let may_write = known(header, |task, status| {
        user = Some(status.user());
        let overrides = || Ok(status.has(Capability::DacOverride) && task.shares(Namespace::User)?);
        if status.may_write(attr, list) { Ok(true) } else { overrides() }
    });
    user.filter(|_| may_write)
}

/// Whether the caller is the ordinary user who serves the mount, outside any sandbox. Root of a
/// user namespace is checked by capabilities instead. A process of the same user in other
/// namespaces has fewer rights than the user: a sandbox with a read-only view of the mount must not
/// change the mount in another way.
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
