//! The caller: the thread whose system call led to the request that is being served.
//!
//! # Which user
//! Where idmapped mounts are permitted, the kernel sends ids only with requests that make inodes,
//! and these are ids of the file system: for an idmapped mount not the caller's own. What only root
//! may do must not be judged by them. So the kernel is asked for the user of the calling thread.
//! That thread waits for the answer, and can neither end nor run another program meanwhile.
//!
//! The rejected alternative is `/proc/PID/status`: it need not belong to this process's namespace,
//! where the number is another thread's.

use crate::abi::{InHeader, NO_ID};
use crate::sys;
use std::cell::Cell;

thread_local! {
    static CALLER: Cell<u32> = const { Cell::new(0) };
}

/// The number of the calling thread of the request that this thread serves, in this process's
/// namespace. 0: the kernel itself (writeback of a mapping), or no request. Jobs that are passed to
/// other threads (the end of an fsync, LSEEK) have none there.
pub fn caller() -> u32 {
    CALLER.get()
}

/// The user whose thread made the request. `None`: it cannot be known, and is nobody's who may do
/// more than others. A thread that this process cannot see, from outside of its container, has no
/// number here.
pub(crate) fn user(header: &InHeader) -> Option<u32> {
    if header.uid != NO_ID {
        return Some(header.uid);
    }
    let asked = sys::user_of_thread(header.pid);
    asked.inspect_err(|e| tracing::debug!(pid = header.pid, "user of the caller: {e}")).ok()
}

/// Whether [`user`] has an answer without ids in the request. It takes Linux 6.13.
pub(crate) fn can_be_asked() -> bool {
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    sys::user_of_thread(own).is_ok_and(|uid| uid == rustix::process::geteuid().as_raw())
}

/// Runs `serve` for a request of thread `tid`.
pub(crate) fn with_caller<T>(tid: u32, serve: impl FnOnce() -> T) -> T {
    CALLER.set(tid);
    let result = serve();
    CALLER.set(0);
    result
}
