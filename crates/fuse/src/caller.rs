//! Who asked: the thread behind the request that is being served.

use std::cell::Cell;

thread_local! {
    static CALLER: Cell<u32> = const { Cell::new(0) };
}

/// The number of the thread whose system call the request that this thread serves came from, as this process's namespace sees it.
/// 0: the kernel by itself (writeback of a mapping), or no request. Jobs that are handed on to other threads (fsync's end, LSEEK) have none
/// there.
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
