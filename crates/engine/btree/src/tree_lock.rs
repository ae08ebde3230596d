//! The kinds of latches that a tree can use.

use kedge_base::Error;
use std::fmt;
use std::str::FromStr;

/// How threads exclude each other in the nodes. The tree's contents and format do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TreeLock {
    /// Descents read inner nodes without a latch and validate what they read; leaves have latches.
    #[default]
    Optimistic,
    /// Descents take each node's reader-writer latch.
    Rwlock,
    /// Descents hold the latches of a path, which spin and are converted to blocking where a thread
    /// might sleep, never back. For comparison only.
    Blocking,
    /// As [`TreeLock::Blocking`], but the latches of the path are converted back to spinning on
    /// each level of a descent. Slow under contention; for comparison only.
    Pingpong,
}

impl TreeLock {
    pub const ALL: [TreeLock; 4] =
        [TreeLock::Optimistic, TreeLock::Rwlock, TreeLock::Blocking, TreeLock::Pingpong];

    pub fn name(self) -> &'static str {
        match self {
            TreeLock::Optimistic => "optimistic",
            TreeLock::Rwlock => "rwlock",
            TreeLock::Blocking => "blocking",
            TreeLock::Pingpong => "pingpong",
        }
    }

    /// Whether descents hold the latches of a path, which spin or block (`pingpong`).
    pub(crate) fn holds_paths(self) -> bool {
        matches!(self, TreeLock::Blocking | TreeLock::Pingpong)
    }
}

impl fmt::Display for TreeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TreeLock {
    type Err = Error;

    fn from_str(text: &str) -> Result<TreeLock, Error> {
        TreeLock::ALL.into_iter().find(|lock| lock.name() == text).ok_or_else(|| {
            let names = TreeLock::ALL.map(TreeLock::name).join(", ");
            Error::invalid(format!("tree_lock={text}: the value must be one of {names}"))
        })
    }
}

#[cfg(test)]
#[path = "tree_lock_tests.rs"]
mod tests;
