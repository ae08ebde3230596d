//! What a new name costs with `new_name=sync`, the rule that Btrfs had before "do not commit logs
//! and transactions during link and rename operations". With the default nothing in this file runs.
//!
//! Btrfs had three marks for each inode in memory, and so has an [`Inode`] (`NameMarks`). A mark is
//! the LSN of a record. It counts until a checkpoint has made that record part of the tree, as
//! Btrfs's marks counted until their transaction was committed. It is lost when the inode leaves
//! the cache, as in Btrfs.
//! - *logged*: an fsync found the inode changed and put it into the log. A new name that forced the
//!   log did the same: it marked the inode, the directories above it that were made since the
//!   checkpoint, and the directory in which the checkpoint has a file.
//! - *moved out*, for a directory: an inode was moved from it to another directory, and neither the
//!   inode nor the directory was logged. An inode that is moved to another directory, or linked, is
//!   marked itself.
//! - *created*: the LSN at which the inode was created.
//!
//! Link checks the inode. Rename checks the inode and the directory that it leaves; an exchange
//! does so for both of its inodes. If one of them is logged, the log is forced before the call
//! returns, with the directories still locked. If a directory that has to be logged, or one on the
//! path from the new name to the root, is marked as moved out, the log did not suffice for Btrfs,
//! and it committed the transaction. Here that is a checkpoint. It runs after the directories are
//! unlocked, because a checkpoint precedes an inode in the lock order; Btrfs committed with the
//! directories locked. Btrfs also committed if forcing failed. Here a log that fails has shut the
//! file system down.
//!
//! The rule is milder here than in Btrfs where it would require that a file knows its directories:
//! - In Btrfs an fsync of a file also marked the directories above it that were made since the
//!   checkpoint. If the file had got a new name since then, it also marked those in which the
//!   checkpoint has the file.
//! - In Btrfs a new name marked each directory in which the checkpoint has the file. Here that is
//!   the directory that the file leaves, if the file was neither moved nor linked before.
//! - With such a directory, Btrfs also marked the inodes that were made in it since the checkpoint.
//!
//! No crash guarantee needs this rule: G1 to G5 of the crash model hold with and without it. So a
//! mark that is lost or late only makes the comparison less exact.

use super::Names;
use super::rename::Side;
use crate::cache::inode::Inode;
use crate::error::Result;
use crate::policy::options::NewName;
use crate::types::RenameMode;
use kedge_base::{Ino, Lsn};
use kedge_store::{CheckpointCause, ForceCause};
use std::sync::Arc;

/// The deepest directory tree in which the path to the root is followed.
const DEPTH_MAX: usize = 1 << 20;

/// What a link or a rename must do before it returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Price {
    Nothing,
    Force,
    Checkpoint,
}

/// An inode that got a new name.
struct Named<'a> {
    inode: &'a Arc<Inode>,
    /// `None` for a link.
    old_dir: Option<&'a Arc<Inode>>,
    dir: &'a Arc<Inode>,
    /// Whether the inode is a file that the last checkpoint has in `old_dir`.
    was_at_home: bool,
}

impl<'a> Named<'a> {
    fn renamed(inode: &'a Arc<Inode>, old_dir: &'a Arc<Inode>, dir: &'a Arc<Inode>, since: Lsn) -> Named<'a> {
        let was_at_home = {
            let marks = inode.meta.lock().marks;
            !inode.is_dir() && marks.created <= since && marks.moved_out <= since
        };
        Named { inode, old_dir: Some(old_dir), dir, was_at_home }
    }

    /// Marks an inode as moved out if it has left its directory for another. Also marks the
    /// directory that it left, unless one of the two is logged.
    fn mark_moved(&self, since: Lsn) {
        let Some(old_dir) = self.old_dir.filter(|old| old.ino != self.dir.ino) else { return };
        let (at, logged) = {
            let mut meta = self.inode.meta.lock();
            let at = meta.progress.commit_lsn;
            meta.marks.moved_out = at;
            (at, meta.marks.logged > since)
        };
        let mut meta = old_dir.meta.lock();
        if !logged && meta.marks.logged <= since {
            meta.marks.moved_out = at;
        }
    }
}

impl Names {
    /// What a completed rename must do. Called with the directories locked.
    pub(super) fn price_of_rename(&self, from: &Side<'_>, to: &Side<'_>, mode: RenameMode) -> Price {
        let Some(source) = from.inode.as_ref().filter(|_| self.pays_for_names()) else {
            return Price::Nothing;
        };
        let since = self.committed();
        let target = to.inode.as_ref().filter(|_| mode == RenameMode::Exchange);
        let source = Named::renamed(source, from.dir, to.dir, since);
        let target = target.map(|target| Named::renamed(target, to.dir, from.dir, since));
        source.mark_moved(since);
        if let Some(target) = &target {
            target.mark_moved(since);
        }
        match (self.price(&source, since), target) {
            // One checkpoint makes both inodes durable.
            (Price::Checkpoint, _) => Price::Checkpoint,
            (price, Some(target)) => price.max(self.price(&target, since)),
            (price, None) => price,
        }
    }

    /// What a completed link must do. Called with the directory locked.
    pub(super) fn price_of_link(&self, inode: &Arc<Inode>, dir: &Arc<Inode>) -> Price {
        if !self.pays_for_names() {
            return Price::Nothing;
        }
        let price = self.price(&Named { inode, old_dir: None, dir, was_at_home: false }, self.committed());
        let mut meta = inode.meta.lock();
        meta.marks.moved_out = meta.progress.commit_lsn;
        price
    }

    /// Passes the moved-out mark of a removed directory to its parent.
    pub(super) fn inherit_marks(&self, child: &Inode, dir: &Inode) {
        if !self.pays_for_names() {
            return;
        }
        let moved_out = child.meta.lock().marks.moved_out;
        if moved_out > self.committed() {
            dir.meta.lock().marks.moved_out = moved_out;
        }
    }

    /// Forces the log if `price` requires it. Called with the directories locked.
    pub(super) fn pay_locked(&self, price: Price) -> Result<()> {
        if price == Price::Force {
            let store = self.engine.store();
            store.force(store.head_lsn(), ForceCause::Rename)?;
        }
        Ok(())
    }

    /// Runs a checkpoint if `price` requires it. Called after the directories are unlocked.
    pub(super) fn pay_unlocked(&self, price: Price) -> Result<()> {
        if price == Price::Checkpoint {
            self.engine.store().checkpoint(CheckpointCause::Request)?;
        }
        Ok(())
    }

    fn pays_for_names(&self) -> bool {
        self.engine.live().new_name() == NewName::Sync
    }

    /// LSN of the last checkpoint: marks up to this LSN no longer count.
    fn committed(&self) -> Lsn {
        self.engine.store().checkpoint_lsn()
    }

    fn price(&self, named: &Named<'_>, since: Lsn) -> Price {
        let is_logged = |inode: &Inode| inode.meta.lock().marks.logged > since;
        if !is_logged(named.inode) && !named.old_dir.is_some_and(|dir| is_logged(dir)) {
            return Price::Nothing;
        }
        let is_dir = named.inode.is_dir();
        let at = {
            let mut meta = named.inode.meta.lock();
            if is_dir && meta.marks.moved_out > since {
                return Price::Checkpoint;
            }
            meta.marks.logged = meta.progress.commit_lsn;
            meta.progress.commit_lsn
        };
        if let Some(old_dir) = named.old_dir.filter(|_| named.was_at_home) {
            let mut meta = old_dir.meta.lock();
            if meta.marks.moved_out > since {
                return Price::Checkpoint;
            }
            meta.marks.logged = at;
        }
        let mut above = named.dir.clone();
        for step in 0..DEPTH_MAX {
            let is_root = above.ino == Ino::ROOT || self.engine.store().is_tree_root(above.ino);
            // Btrfs did not check the parent of a directory, unless the parent was the root.
            let is_looked_at = !is_dir || step > 0 || is_root;
            let parent = {
                let mut meta = above.meta.lock();
                if is_looked_at && meta.marks.moved_out > since {
                    return Price::Checkpoint;
                }
                if meta.marks.created > since {
                    meta.marks.logged = at;
                }
                meta.core.parent
            };
            if is_root {
                return Price::Force;
            }
            match self.inodes.get(parent) {
                Ok(parent) => above = parent,
                Err(_) => break,
            }
        }
        // Btrfs also committed if it could not log a name. The next operation that needs the
        // directory returns the error.
        Price::Checkpoint
    }
}

#[cfg(test)]
#[path = "new_name_tests.rs"]
mod tests;
