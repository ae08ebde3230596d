//! The lock of a latch in a tree whose descents hold paths.

use super::lock::PingLock;
use crate::tree_lock::TreeLock;

pub(crate) struct PingGuard {
    pub(super) lock: PingLock,
    /// Whether a blocking holder converts the lock back to spinning: true for
    /// [`TreeLock::Pingpong`].
    pub(super) respins: bool,
}

impl PingGuard {
    pub(crate) fn of(lock: TreeLock) -> Option<Box<PingGuard>> {
        let respins = lock == TreeLock::Pingpong;
        lock.holds_paths().then(|| Box::new(PingGuard { lock: PingLock::default(), respins }))
    }
}
