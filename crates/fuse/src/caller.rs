//! The caller: the thread whose system call led to the request that is being served.

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

/// Runs `serve` for a request of thread `tid`.
pub(crate) fn with_caller<T>(tid: u32, serve: impl FnOnce() -> T) -> T {
    CALLER.set(tid);
    let result = serve();
    CALLER.set(0);
    result
}
