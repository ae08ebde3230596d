//! Inode numbers as callers know them.
//!
//! A number that a caller knows means one file as long as the file system is open. The first tree
//! can be replaced ([`crate::FileSystem::roll_back_root`]). Its new contents have inode numbers
//! that the old ones had too, because both come from one tree and share nodes. So from then on
//! callers use other numbers for the first tree than the engine.
//!
//! The old contents of the first tree become a tree that is being deleted, with a number that no
//! other tree gets. Callers see the numbers of these two trees exchanged. A caller's number from
//! before the replacement means the deleted tree, and finds nothing there (ESTALE). An inode of the
//! new contents has, for callers, the number of the deleted tree. The root directory keeps its
//! number, for callers and in the engine. After the next open callers use the engine's numbers
//! again.
//!
//! # Concurrency
//! The number of the deleted tree changes while the gate admits no change, and changes translate
//! their numbers inside the gate. Calls that only read pass no gate. They wait while the tree is
//! being replaced. A call that began before the replacement fails at its end, so that no caller
//! gets a mixture of two trees.

use crate::error::Result;
use crate::types::Attr;
use kedge_base::atomic::{AtomicU64, Ordering::SeqCst};
use kedge_base::{Clock, Ino};
use std::time::Duration;

/// Pause between two checks by a call that waits for the end of a replacement.
const REST: Duration = Duration::from_millis(1);
/// Set while the first tree is being replaced.
const BUSY: u64 = 1 << 32;

/// The number of the dying tree with the first tree's old contents; see the module's head.
#[derive(Default)]
pub(crate) struct Numbers(AtomicU64);

fn exchanged(with: u64, ino: Ino) -> Ino {
    let with = with as u32;
    if with == 0 || ino == Ino::ROOT {
        return ino;
    }
    match ino.tree() {
        0 => ino.in_tree(with),
        tree if tree == with => ino.local(),
        _ => ino,
    }
}

impl Numbers {
    /// Translates a caller's inode number to the engine's. For callers that exclude a replacement,
    /// or that can use a number of either tree.
    pub(crate) fn inward(&self, ino: Ino) -> Ino {
        exchanged(self.0.load(SeqCst), ino)
    }

    /// Translates the engine's inode number to the caller's.
    pub(crate) fn outward(&self, ino: Ino) -> Ino {
        exchanged(self.0.load(SeqCst), ino)
    }

    pub(crate) fn attr(&self, attr: Attr) -> Attr {
        Attr { ino: self.outward(attr.ino), ..attr }
    }

    /// Runs an operation that only reads, with the engine's number of the inode. Fails if the inode
    /// is in the first tree and that tree was replaced meanwhile.
    pub(crate) fn steady<R>(
        &self,
        clock: &dyn Clock,
        ino: Ino,
        run: impl FnOnce(Ino) -> Result<R>,
    ) -> Result<R> {
        let mut seen = self.0.load(SeqCst);
        while seen & BUSY != 0 {
            clock.sleep(REST);
            seen = self.0.load(SeqCst);
        }
        let inside = exchanged(seen, ino);
        let result = run(inside);
        if self.0.load(SeqCst) != seen && inside.tree() == 0 {
            return Err(kedge_base::Error::NoTree(0).into());
        }
        result
    }

    /// Makes calls that read wait until the result is dropped. The caller excludes changes and
    /// other replacements.
    pub(crate) fn replace(&self) -> Replacing<'_> {
        let before = self.0.load(SeqCst);
        self.0.store(before | BUSY, SeqCst);
        Replacing { numbers: self, then: before }
    }
}

/// A replacement of the first tree in progress.
#[must_use]
pub(crate) struct Replacing<'a> {
    numbers: &'a Numbers,
    then: u64,
}

impl Replacing<'_> {
    /// The number of the dying tree that the last replacement left; 0 if there was none.
    pub(crate) fn before(&self) -> u32 {
        self.then as u32
    }

    /// Records the number of the dying tree that this replacement leaves.
    pub(crate) fn done(&mut self, old: u32) {
        self.then = u64::from(old);
    }
}

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        self.numbers.0.store(self.then, SeqCst);
    }
}

#[cfg(test)]
#[path = "numbers_tests.rs"]
mod tests;
