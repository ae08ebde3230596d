//! Inode numbers as callers know them.
//!
//! A number that a caller knows names one file as long as the file system is open. The first tree
//! can be replaced ([`crate::FileSystem::roll_back_root`]), and its new contents have inode numbers
//! that the old ones had too, because both come from one tree and share nodes. So the engine's
//! numbers of the first tree are not those of callers from then on.
//!
//! What the first tree had before is a tree that is being deleted, with a number of its own that no
//! other tree gets. Callers see the numbers of these two trees exchanged: a number from before the
//! replacement names the deleted tree, and finds nothing there (ESTALE); an inode of the new
//! contents shows the number of the deleted tree. The root directory keeps its number, for callers
//! and in the engine. The next open begins with the engine's numbers.
//!
//! # Concurrency
//! The number of the deleted tree changes while the gate admits no change, and changes translate
//! their numbers inside the gate. Calls that change nothing pass no gate: they wait while the tree
//! is being replaced, and a call that has begun before fails at its end, so that no caller gets a
//! mixture of two trees.

use crate::error::Result;
use crate::types::Attr;
use kedge_base::atomic::{AtomicU64, Ordering::SeqCst};
use kedge_base::{Clock, Ino};
use std::time::Duration;

/// How long a call rests that waits for the end of a replacement.
const REST: Duration = Duration::from_millis(1);
/// Set while the first tree is being replaced.
const BUSY: u64 = 1 << 32;

/// The number that the first tree's old contents have; see the module's head.
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
    /// The engine's number for that of a caller. Only for callers that exclude a replacement, or
    /// for which a number of either tree is harmless.
    pub(crate) fn inward(&self, ino: Ino) -> Ino {
        exchanged(self.0.load(SeqCst), ino)
    }

    /// The caller's number for that of the engine.
    pub(crate) fn outward(&self, ino: Ino) -> Ino {
        exchanged(self.0.load(SeqCst), ino)
    }

    pub(crate) fn attr(&self, attr: Attr) -> Attr {
        Attr { ino: self.outward(attr.ino), ..attr }
    }

    /// Runs what reads at an inode, and gets its number in the engine. Fails if the inode is of the
    /// first tree and that was replaced meanwhile.
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

    /// Makes calls that read wait, until the drop of what this returns. The caller excludes changes
    /// and other replacements.
    pub(crate) fn replace(&self) -> Replacing<'_> {
        let before = self.0.load(SeqCst);
        self.0.store(before | BUSY, SeqCst);
        Replacing { numbers: self, then: before }
    }
}

/// The first tree is being replaced.
#[must_use]
pub(crate) struct Replacing<'a> {
    numbers: &'a Numbers,
    then: u64,
}

impl Replacing<'_> {
    /// The number that the contents got which the last replacement deleted; 0 if there was none.
    pub(crate) fn before(&self) -> u32 {
        self.then as u32
    }

    /// The old contents have this number.
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
