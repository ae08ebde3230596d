//! The methods for forks, snapshots and their trees.

use super::FileSystem;
use crate::error::Result;
use crate::stats::OpKind;
use crate::trees::{Deletion, Root, TreeInfo, TreeSpace};
use crate::types::Attr;
use kedge_base::Ino;

impl FileSystem {
    /// Forks the tree whose root directory is `source` ([`Ino::ROOT`], or the root of a fork): the
    /// whole tree, as it is at one moment, becomes another tree with the name `name` in `dir`. From
    /// then on both are independent. Time and space do not depend on the size of the tree: nodes
    /// and blocks are shared until one of the trees changes them. Returns the root of the fork,
    /// which is durable. `read_only`: makes a snapshot, in which nothing can be changed.
    ///
    /// Inode numbers of a fork differ from those of its source in the upper bits. Trees whose names
    /// are in `source` are not part of the fork. Links and renames between trees fail with EXDEV.
    ///
    /// # Errors
    /// EINVAL: `source` is not the root of a tree. EEXIST: the name exists. EROFS: `dir` is in a
    /// snapshot. ENOSPC: the image or its host has no space for the table of trees; if the host
    /// becomes full during the call, the fork may exist. It is durable once the host has space, and
    /// until then each change of the file system fails with ENOSPC. A crash before that undoes the
    /// fork.
    /// EBUSY: the file system is frozen, or another fork is in progress.
    pub fn fork(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Attr> {
        self.timed(OpKind::fork, |fs| fs.fork(source, dir, name, read_only))
    }

    /// Deletes a tree with everything in it. The removal of its name is durable on return; its
    /// space is freed in the background. Calls with its inodes, open ones too, fail with ESTALE.
    ///
    /// # Errors
    /// ENOENT: no tree has this name. ENOTEMPTY: the tree contains the name of another tree. EPERM:
    /// `dir` is immutable or append-only.
    /// ENOSPC: the host of the image is full. The name is gone, and durably so once the host has
    /// space; until then each change of the file system fails with ENOSPC. A crash before that
    /// brings the tree back.
    pub fn delete_tree(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.delete_tree_if(dir, name, Deletion::Any)
    }

    /// Deletes a tree if it is one of the accepted.
    pub(super) fn delete_tree_if(&self, dir: Ino, name: &[u8], accepted: Deletion) -> Result<()> {
        let done = self.timed(OpKind::delete_tree, |fs| fs.delete_tree(dir, name, accepted));
        // Started even if the call fails: the tree may be gone nevertheless.
        self.fs.start_reclaim();
        done
    }

    /// Replaces the tree with this name by a fork of `source`, for instance a snapshot of the tree.
    /// The tree is deleted and the fork gets its name, in one step and durably. Returns the root of
    /// the fork.
    ///
    /// # Errors
    /// EINVAL: `source` is the tree itself. Others as for [`FileSystem::fork`], except EEXIST, and
    /// for [`FileSystem::delete_tree`].
    pub fn roll_back(&self, source: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.replace_by_fork(source, dir, name, false)
    }

    /// [`FileSystem::roll_back`]; with `read_only` the fork is a snapshot.
    pub(crate) fn replace_by_fork(
        &self,
        source: Ino,
        dir: Ino,
        name: &[u8],
        read_only: bool,
    ) -> Result<Attr> {
        let made = self.timed(OpKind::fork, |fs| fs.roll_back(source, dir, name, read_only));
        self.fs.start_reclaim();
        made
    }

    /// Replaces the contents of the first tree by a fork of `source`, for instance a snapshot of
    /// it, in one step and durably. The former contents are deleted, and their space is freed in
    /// the background.
    ///
    /// The root directory keeps its number. All other inodes that a caller knows of the first tree
    /// are gone, open ones too: calls with their numbers fail with ESTALE. Inodes of the new
    /// contents have new numbers, until the file system is opened again.
    ///
    /// Trees whose names are in the first tree keep their paths.
    ///
    /// # Errors
    /// EINVAL: `source` is the first tree, or not the root of a tree. ENOTEMPTY: a tree would lose
    /// its path, because `source` lacks its directory or has something else under its name; use
    /// [`FileSystem::rename_tree`] first. Others as for [`FileSystem::fork`].
    pub fn roll_back_root(&self, source: Ino) -> Result<()> {
        let done = self.timed(OpKind::fork, |fs| fs.replace_root(source, Root::RolledBack));
        self.fs.start_reclaim();
        done
    }

    /// Makes the fork whose root is `fork` the first tree, in one step, as
    /// [`FileSystem::roll_back_root`] does with a new fork. The name of the fork is removed. Unless
    /// `force` is set, the first tree must not have changed since it was forked.
    ///
    /// # Errors
    /// As for [`FileSystem::roll_back_root`] and [`FileSystem::commit_tree`]. Also ENOTEMPTY: the
    /// fork contains the name of another tree.
    pub fn commit_root(&self, fork: Ino, force: bool) -> Result<()> {
        let done = self.timed(OpKind::rename, |fs| fs.replace_root(fork, Root::Committed { force }));
        self.fs.start_reclaim();
        done
    }

    /// Replaces the tree with this name by the fork whose root is `fork`: the tree is deleted and
    /// the fork gets its name, in one step and durably. Unless `force` is set, the tree must not
    /// have changed since it was forked; an access time counts as a change.
    ///
    /// # Errors
    /// EBUSY: the tree was changed, or the fork was not made from it. EROFS: the fork is a
    /// snapshot. EINVAL: `fork` is not the root of a fork, or is the tree itself, or would move
    /// into itself. Others as for [`FileSystem::delete_tree`].
    pub fn commit_tree(&self, fork: Ino, dir: Ino, name: &[u8], force: bool) -> Result<()> {
        let done = self.timed(OpKind::rename, |fs| fs.commit_tree(fork, dir, name, force));
        self.fs.start_reclaim();
        done
    }

    /// Renames a tree, durably.
    ///
    /// # Errors
    /// ENOENT: no tree has the old name, or the new directory was removed. EEXIST: the new name
    /// exists. EINVAL: the tree would move into itself. EBUSY, ENOSPC: as for [`FileSystem::fork`].
    pub fn rename_tree(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8]) -> Result<()> {
        self.timed(OpKind::rename, |fs| fs.rename_tree((dir, name), (new_dir, new_name)))
    }

    /// Makes a fork a snapshot, in which nothing can be changed, or a snapshot a fork, durably.
    ///
    /// # Errors
    /// EINVAL: `root` is not the root of a fork or snapshot. EBUSY, ENOSPC: as for
    /// [`FileSystem::fork`].
    pub fn set_tree_read_only(&self, root: Ino, read_only: bool) -> Result<()> {
        self.timed(OpKind::setattr, |fs| fs.set_tree_read_only(root, read_only))
    }

    /// Returns all trees, the first tree first.
    pub fn trees(&self) -> Vec<TreeInfo> {
        let mut trees = self.fs.trees();
        trees.iter_mut().for_each(|tree| tree.dir = self.fs.numbers().outward(tree.dir));
        trees
    }

    /// Returns the fork or snapshot that the inode is in; `None` for the first tree. The count of
    /// inodes is that of the last checkpoint. Whether the inode exists is not checked.
    ///
    /// # Errors
    /// ESTALE: the tree was deleted.
    pub fn tree_of(&self, ino: Ino) -> Result<Option<TreeInfo>> {
        let tree = self.fs.steady(ino, |ino| self.fs.tree_of(ino))?;
        Ok(tree.map(|tree| TreeInfo { dir: self.fs.numbers().outward(tree.dir), ..tree }))
    }

    /// Returns the root of the tree with this name in the directory.
    pub fn tree_named(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.fs.names().tree_named(self.fs.numbers().inward(dir), name)
    }

    /// Returns the space that only this tree uses. Reads the nodes that the tree does not share.
    ///
    /// # Errors
    /// EINVAL: `root` is not the root of a tree.
    pub fn tree_space(&self, root: Ino) -> Result<TreeSpace> {
        self.fs.tree_space(root)
    }

    /// Frees the space of all deleted trees, as the background thread does. Returns when nothing is
    /// left.
    ///
    /// # Errors
    /// EBUSY: the file system is frozen, or trees are being compared or sent. EROFS: the file
    /// system is open for reading only.
    pub fn reclaim(&self) -> Result<()> {
        while self.fs.reclaim()? {}
        Ok(())
    }
}
