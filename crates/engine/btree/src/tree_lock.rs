//! The kinds of latches that a tree can use.

use kedge_base::Error;
use std::fmt;
use std::str::FromStr;

/// How threads exclude each other in the nodes. The choice affects neither the tree's contents nor
/// its format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TreeLock {
    /// Descents read inner nodes without a latch and validate what they read; leaves have latches.
    #[default]
    Optimistic,
    /// Descents take each node's reader-writer latch in turn.
    Rwlock,
    /// Descents hold the latches of a path. The latches spin; they are converted to blocking where
    /// a thread might sleep, and never back. For comparison only.
    #[cfg(feature = "historic")]
    Blocking,
    /// Like [`TreeLock::Blocking`], but the latches of the path are converted back to spinning on
    /// each level of a descent. Slow under contention; for comparison only.
    #[cfg(feature = "historic")]
    Pingpong,
}

impl TreeLock {
    /// All kinds of this build. The kinds for comparison need the feature `historic`.
    pub const ALL: &[TreeLock] = &[
        TreeLock::Optimistic,
        TreeLock::Rwlock,
        #[cfg(feature = "historic")]
        TreeLock::Blocking,
        #[cfg(feature = "historic")]
        TreeLock::Pingpong,
    ];

    pub fn name(self) -> &'static str {
        match self {
            TreeLock::Optimistic => "optimistic",
            TreeLock::Rwlock => "rwlock",
            #[cfg(feature = "historic")]
            TreeLock::Blocking => "blocking",
            #[cfg(feature = "historic")]
            TreeLock::Pingpong => "pingpong",
        }
    }

    /// Returns the names of this build's kinds, for a message.
    pub fn names() -> String {
        TreeLock::ALL.iter().map(|lock| lock.name()).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether descents hold the latches of a path (`pingpong`).
    pub(crate) fn holds_paths(self) -> bool {
        match self {
            TreeLock::Optimistic | TreeLock::Rwlock => false,
            #[cfg(feature = "historic")]
            TreeLock::Blocking | TreeLock::Pingpong => true,
        }
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
        TreeLock::ALL.iter().copied().find(|lock| lock.name() == text).ok_or_else(|| {
            let names = TreeLock::names();
            Error::invalid(format!("tree_lock={text}: the value must be one of {names}"))
        })
    }
}

#[cfg(test)]
#[path = "tree_lock_tests.rs"]
mod tests;
