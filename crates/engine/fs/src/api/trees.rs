//! Forks and snapshots, and the trees that they make.

use super::FileSystem;
use crate::error::Result;
use crate::stats::OpKind;
use crate::trees::{Root, TreeInfo, TreeSpace};
use crate::types::Attr;
use kedge_base::Ino;

impl FileSystem {
    /// Forks the tree whose root directory is `source` ([`Ino::ROOT`], or the root of a fork): all
    /// of it, as it is at one moment, becomes a tree of its own with the name `name` in `dir`. Both
    /// are independent from then on. Time and space do not depend on the size of the tree: nodes
    /// and blocks are shared until one of the trees changes them. Returns the root of the fork,
    /// which is durable. `read_only`: a snapshot, in which nothing can be changed.
    ///
    /// Inode numbers of a fork differ from those of its source in the upper bits. Trees that are
    /// named in `source` are not part of the fork. Links and renames between trees are refused with
    /// EXDEV.
    ///
    /// # Errors
    /// EINVAL: `source` is not the root of a tree. EEXIST: the name is taken. EROFS: `dir` is in a
    /// snapshot. ENOSPC: there is no room for the table of trees, in the image or on its host; if
    /// the host fills up in this moment, the fork may be there, and is durable once the host has
    /// room. EBUSY: frozen, or another fork is under way.
    pub fn fork(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Attr> {
        self.timed(OpKind::fork, |fs| fs.fork(source, dir, name, read_only))
    }

    /// Deletes a tree with everything in it. Its name is gone at once, durably; its space is freed
    /// in the background. Inodes of it that are still open get ESTALE.
    ///
    /// # Errors
    /// ENOENT: the name is not that of a tree. ENOTEMPTY: another tree is named in it. ENOSPC: the
    /// host of the image is full; the name is gone, and durably so once the host has room.
    pub fn delete_tree(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let done = self.timed(OpKind::delete_tree, |fs| fs.delete_tree(dir, name));
        // The tree may be gone although the call fails: its space is freed all the same.
        self.fs.start_reclaim();
        done
    }

    /// Replaces a tree by a fork of `source`, a snapshot of it for instance: the tree of this name
    /// is deleted, and its name is that of a new fork, in one step and durably. Returns the root of
    /// the fork.
    ///
    /// # Errors
    /// As for [`FileSystem::fork`] and [`FileSystem::delete_tree`].
    pub fn roll_back(&self, source: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let made = self.timed(OpKind::fork, |fs| fs.roll_back(source, dir, name));
        self.fs.start_reclaim();
        made
    }

    /// Replaces the contents of the first tree by a fork of `source`, a snapshot of it for
    /// instance, in one step and durably: the root directory has what that of `source` has. What
    /// was there before is deleted, and its space is freed in the background.
    ///
    /// The root directory keeps its number. All other inodes of the first tree that a caller knows
    /// are gone, open ones too: calls with their numbers fail with ESTALE. Inodes of the new
    /// contents show numbers that were never shown before, until the file system is opened again.
    ///
    /// Trees that are named in the first tree keep their paths.
    ///
    /// # Errors
    /// EINVAL: `source` is the first tree, or not the root of a tree. ENOTEMPTY: a tree would lose
    /// its path, because `source` has no such directory or has something else there:
    /// [`FileSystem::rename_tree`] it first. Others as for [`FileSystem::fork`].
    pub fn roll_back_root(&self, source: Ino) -> Result<()> {
        let done = self.timed(OpKind::fork, |fs| fs.replace_root(source, Root::RolledBack));
        self.fs.start_reclaim();
        done
    }

    /// Puts the fork whose root is `fork` in the place of the first tree, as
    /// [`FileSystem::roll_back_root`] does, in one step. The name of the fork is gone. Unless
    /// `force` is set, the first tree must not have changed since it was forked.
    ///
    /// # Errors
    /// As for [`FileSystem::roll_back_root`] and [`FileSystem::commit_tree`]. ENOTEMPTY also if
    /// another tree is named in the fork.
    pub fn commit_root(&self, fork: Ino, force: bool) -> Result<()> {
        let done = self.timed(OpKind::rename, |fs| fs.replace_root(fork, Root::Committed { force }));
        self.fs.start_reclaim();
        done
    }

    /// Replaces a tree by a fork: the tree of this name is deleted, and its name becomes that of
    /// the fork whose root is `fork`, in one step and durably. Unless `force` is set, the tree must
    /// not have changed since it was forked; an access time is a change.
    ///
    /// # Errors
    /// EBUSY: the tree was changed, or it is not the one that was forked. EROFS: the fork is a
    /// snapshot. Others as for [`FileSystem::delete_tree`].
    pub fn commit_tree(&self, fork: Ino, dir: Ino, name: &[u8], force: bool) -> Result<()> {
        let done = self.timed(OpKind::rename, |fs| fs.commit_tree(fork, dir, name, force));
        self.fs.start_reclaim();
        done
    }

    /// Gives a tree another name, durably. Nothing is replaced: EEXIST if the name is taken.
    pub fn rename_tree(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8]) -> Result<()> {
        self.timed(OpKind::rename, |fs| fs.rename_tree((dir, name), (new_dir, new_name)))
    }

    /// Makes a fork a snapshot, in which nothing can be changed, or a snapshot a fork.
    pub fn set_tree_read_only(&self, root: Ino, read_only: bool) -> Result<()> {
        self.timed(OpKind::setattr, |fs| fs.set_tree_read_only(root, read_only))
    }

    /// All trees; the first tree comes first.
    pub fn trees(&self) -> Vec<TreeInfo> {
        let mut trees = self.fs.trees();
        trees.iter_mut().for_each(|tree| tree.dir = self.fs.numbers().outward(tree.dir));
        trees
    }

    /// The fork or snapshot that the inode is in, with the count of inodes that the last checkpoint
    /// had; `None` in the first tree. Whether there is such an inode is not looked up.
    ///
    /// # Errors
    /// ESTALE: the tree was deleted.
    pub fn tree_of(&self, ino: Ino) -> Result<Option<TreeInfo>> {
        let tree = self.fs.steady(ino, |ino| self.fs.tree_of(ino))?;
        Ok(tree.map(|tree| TreeInfo { dir: self.fs.numbers().outward(tree.dir), ..tree }))
    }

    /// The root of the tree that has this name in the directory.
    pub fn tree_named(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.fs.names().tree_named(self.fs.numbers().inward(dir), name)
    }

    /// What a tree takes that no other uses. Reads the nodes that are its own.
    pub fn tree_space(&self, root: Ino) -> Result<TreeSpace> {
        self.fs.tree_space(root)
    }

    /// Frees what deleted trees have left, as the background does. Returns when nothing is left.
    pub fn reclaim(&self) -> Result<()> {
        while self.fs.reclaim()? {}
        Ok(())
    }
}
