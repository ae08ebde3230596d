//! What a new name costs with `new_name=sync`, the rule that Btrfs had before "do not commit logs
//! and transactions during link and rename operations". With the default nothing here is done.
//!
//! Btrfs kept three marks of each inode in memory, and so does an [`Inode`] (`NameMarks`). A mark
//! is the position of a record; it counts until a checkpoint has made that record part of the tree,
//! as Btrfs's marks counted until their transaction was committed. It goes with the inode when that
//! leaves the cache, as it did there.
//! - *logged*: an fsync found the inode changed and put it into the log. So did a new name that
//!   forced: it marked the inode, and the directories above that were made since the checkpoint.
//! - *moved out*: of a directory: an inode left it for another directory, and neither of the two
//!   was logged. A directory that is moved to another one is itself marked.
//! - *created*: since when the inode exists.
//!
//! Link looks at the inode; rename at the inode and the directory that it leaves; an exchange does
//! so for both of its inodes. If one of them is logged, the log is forced before the call returns,
//! with the directories still locked. If a directory on the way from the new name to the root is
//! marked as moved out, the log would not do for Btrfs: it committed the transaction. Here that is
//! a checkpoint. It is made after the directories are unlocked, because a checkpoint comes before
//! an inode in the lock order; Btrfs committed with the directories locked. Where forcing fails,
//! Btrfs committed, too; here a log that fails has shut the file system down.
//!
//! One thing is milder than it was: an fsync of a file also marked the directories above that were
//! made since the checkpoint. A file here does not know its directories.
//!
//! Nothing of this is needed for a crash: see the crash model's G1 to G5, which hold with either
//! rule. So a mark that is lost or late costs nothing but the likeness.

use super::Names;
use super::rename::Side;
use crate::cache::inode::Inode;
use crate::error::Result;
use crate::options::NewName;
use crate::types::RenameMode;
use kedge_base::{Ino, Lsn};
use kedge_store::{CheckpointCause, ForceCause};
use std::sync::Arc;

/// Deepest directory tree that is followed.
const DEPTH_MAX: usize = 1 << 20;

/// What a link or a rename does before it returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Price {
    Nothing,
    Force,
    Checkpoint,
}

impl Names {
    /// Of a rename that is done, under the locks of the directories.
    pub(super) fn price_of_rename(&self, from: &Side<'_>, to: &Side<'_>, mode: RenameMode) -> Price {
        let Some(source) = from.inode.as_ref().filter(|_| self.pays_for_names()) else {
            return Price::Nothing;
        };
        let target = to.inode.as_ref().filter(|_| mode == RenameMode::Exchange);
        if from.dir.ino != to.dir.ino {
            self.left(source, from.dir);
            if let Some(target) = target {
                self.left(target, to.dir);
            }
        }
        let price = self.price(source, Some(from.dir), to.dir);
        match target {
            // The checkpoint makes both durable.
            Some(target) if price < Price::Checkpoint => {
                price.max(self.price(target, Some(to.dir), from.dir))
            }
            _ => price,
        }
    }

    /// Of a link that is done, under the directory's lock.
    pub(super) fn price_of_link(&self, inode: &Arc<Inode>, dir: &Arc<Inode>) -> Price {
        if self.pays_for_names() { self.price(inode, None, dir) } else { Price::Nothing }
    }

    /// Of a directory that is gone: what it was marked with passes to its parent.
    pub(super) fn inherit_marks(&self, child: &Inode, dir: &Inode) {
        let moved_out = child.meta.lock().marks.moved_out;
        if self.pays_for_names() && moved_out > self.committed() {
            dir.meta.lock().marks.moved_out = moved_out;
        }
    }

    /// The part that is done with the directories locked.
    pub(super) fn pay_locked(&self, price: Price) -> Result<()> {
        if price == Price::Force {
            let store = self.engine.store();
            store.force(store.head_lsn(), ForceCause::Rename)?;
        }
        Ok(())
    }

    /// The part that is done after they are unlocked.
    pub(super) fn pay_unlocked(&self, price: Price) -> Result<()> {
        if price == Price::Checkpoint {
            self.engine.store().checkpoint(CheckpointCause::Request)?;
        }
        Ok(())
    }

    fn pays_for_names(&self) -> bool {
        self.engine.live().new_name() == NewName::Sync
    }

    /// Marks up to here no longer count.
    fn committed(&self) -> Lsn {
        self.engine.store().log().tail_lsn()
    }

    /// `inode` has left `dir` for another directory.
    fn left(&self, inode: &Inode, dir: &Inode) {
        let committed = self.committed();
        let (at, logged) = {
            let mut meta = inode.meta.lock();
            let at = meta.progress.commit_lsn;
            meta.marks.moved_out = at;
            (at, meta.marks.logged > committed)
        };
        let mut meta = dir.meta.lock();
        if !logged && meta.marks.logged <= committed {
            meta.marks.moved_out = at;
        }
    }

    fn price(&self, inode: &Arc<Inode>, old_dir: Option<&Arc<Inode>>, dir: &Arc<Inode>) -> Price {
        let committed = self.committed();
        let is_logged = |inode: &Inode| inode.meta.lock().marks.logged > committed;
        if !is_logged(inode) && !old_dir.is_some_and(|dir| is_logged(dir)) {
            return Price::Nothing;
        }
        let at = {
            let mut meta = inode.meta.lock();
            if inode.is_dir() && meta.marks.moved_out > committed {
                return Price::Checkpoint;
            }
            meta.marks.logged = meta.progress.commit_lsn;
            meta.progress.commit_lsn
        };
        let mut above = dir.clone();
        for _ in 0..DEPTH_MAX {
            let parent = {
                let mut meta = above.meta.lock();
                if meta.marks.moved_out > committed {
                    return Price::Checkpoint;
                }
                if meta.marks.created > committed {
                    meta.marks.logged = at;
                }
                meta.core.parent
            };
            if above.ino == Ino::ROOT {
                return Price::Force;
            }
            match self.inodes.get(parent) {
                Ok(parent) => above = parent,
                Err(_) => break,
            }
        }
        // As Btrfs where it could not log a name. The next operation that needs the directory gets
        // the error.
        Price::Checkpoint
    }
}

#[cfg(test)]
#[path = "new_name_tests.rs"]
mod tests;
