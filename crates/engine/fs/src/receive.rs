//! Fills a tree with inodes whose numbers the caller chooses: [`Receiving`].
//!
//! For all other callers the tree is read-only. It has a preliminary name until
//! [`Receiving::finish`] gives it the final one. Both names are set by checkpoints
//! ([`kedge_store`]), so after a crash the final name has the whole tree or does not exist.
//!
//! # Identity
//! A state of a tree is identified by the image's uuid and the address and generation of its root
//! node: no other state has the same, since a node is written once. A received tree has the
//! identity of its source, in an attribute of its root that no caller of the library can set
//! ([`crate::names::xattr::HIDDEN`]). Forks inherit the attribute with the root. So the attribute
//! also contains the generation in which the tree was completed: a later change gives the root a
//! higher generation, and the attribute is then ignored.

use crate::api::FileSystem;
use crate::error::{Error, Result};
use crate::moment::TreeMoment;
use crate::names::directory::Make;
use crate::types::{Attr, FallocateMode, Owner, RenameMode, SetAttr, WriteMode, XattrMode};
use kedge_base::{Generation, Ino};
use kedge_format::{FileFlags, FileKind, InodeCore};

/// Hidden attribute of a received tree: its identity, and the generation in which it was completed.
pub(crate) const RECEIVED: &[u8] = b"received";
/// Hidden attribute of a tree that is being received: the last note of the caller.
const PROGRESS: &[u8] = b"receiving";

/// Identifies a state of a tree, across all images.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TreeIdentity(pub [u8; 32]);

impl TreeIdentity {
    pub(crate) fn of(uuid: &uuid::Uuid, (addr, generation): (u64, u64)) -> TreeIdentity {
        let mut id = [0; 32];
        id[..16].copy_from_slice(uuid.as_bytes());
        id[16..24].copy_from_slice(&addr.to_le_bytes());
        id[24..].copy_from_slice(&generation.to_le_bytes());
        TreeIdentity(id)
    }

    /// Decodes the attribute of a received tree. `None` if its root, of generation `root`, has
    /// changed since the tree was completed.
    pub(crate) fn received(value: &[u8], root: Generation) -> Option<TreeIdentity> {
        let (id, generation) = value.split_at_checked(32)?;
        let complete = u64::from_le_bytes(generation.try_into().ok()?);
        (root.0 <= complete).then(|| TreeIdentity(id.try_into().expect("32 bytes")))
    }
}

impl std::fmt::Display for TreeIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A tree that is being filled. Inodes have their numbers within the tree. If it is dropped without
/// [`Receiving::finish`] or [`Receiving::abandon`], the tree stays under its preliminary name.
pub struct Receiving {
    fs: FileSystem,
    root: Ino,
    dir: Ino,
    name: Vec<u8>,
}

impl FileSystem {
    /// The identity of the snapshot with this root. Trees that can change have none.
    ///
    /// # Errors
    /// EINVAL: the directory is not the root of a snapshot.
    pub fn tree_identity(&self, root: Ino) -> Result<TreeIdentity> {
        let tree = self.trees().into_iter().find(|tree| tree.root == root);
        if !tree.is_some_and(|tree| tree.read_only) {
            return Err(Error::Invalid("the directory is not the root of a snapshot"));
        }
        let moments = self.moments(&[root])?;
        moments.first().expect("one for each root").identity()
    }

    /// Starts to fill a tree with the preliminary name `name` in `dir`: an empty tree, or a fork of
    /// the snapshot `base` without its limits. Only the result can change the tree until it is
    /// complete. Without limits any name can move within the tree, and nothing is over a maximum.
    ///
    /// # Errors
    /// As for [`FileSystem::fork`].
    pub fn receive(&self, base: Option<Ino>, dir: Ino, name: &[u8]) -> Result<Receiving> {
        let root = match base {
            Some(base) => self.fork(base, dir, name, true)?.ino,
            None => self.fs.create_tree(dir, name)?,
        };
        let tree = Receiving { fs: self.clone(), root, dir, name: name.to_vec() };
        if self.fs.engine().store().has_limits()
            && let Err(e) = self.fs.drop_limits(root)
        {
            if let Err(left) = tree.abandon() {
                tracing::warn!("the unfinished tree of a receive stays: {left}");
            }
            return Err(e);
        }
        Ok(tree)
    }

    /// Returns the last [`Receiving::note`] of a tree that [`FileSystem::receive`] began, to
    /// continue it.
    pub fn receive_noted(&self, root: Ino) -> Result<Option<Vec<u8>>> {
        self.fs.names().hidden(root, PROGRESS)
    }
}

impl crate::core::Fs {
    fn create_tree(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.quietly(|| {
            let dir = self.numbers().inward(dir);
            self.check_changeable(dir)?;
            self.names().check_free(dir, name)?;
            let now = self.engine().now();
            let core = InodeCore {
                mode: FileKind::Directory.mode_bits() | 0o700,
                nlink: 2,
                parent: Ino::ROOT,
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
                ..InodeCore::default()
            };
            Ok(self.engine().store().create_tree(core, dir, name)?)
        })
    }

    fn complete(&self, tree: &Receiving, (dir, name): (Ino, &[u8]), id: &TreeIdentity) -> Result<()> {
        let store = self.engine().store();
        self.quietly(|| {
            let dir = self.numbers().inward(dir);
            self.check_changeable(dir)?;
            self.names().check_free(dir, name)?;
            loop {
                // Setting the attribute gives the root the present generation. If a cut ends that
                // generation in between, the attribute is set again.
                let generation = store.generation();
                let value = [&id.0[..], &generation.0.to_le_bytes()].concat();
                self.names().set_hidden(tree.root, RECEIVED, &value)?;
                if store.generation() == generation {
                    break;
                }
            }
            store.name_tree(tree.root, dir, name, true)?;
            if let Some(inode) = self.inodes().cached(tree.root) {
                inode.meta.lock().core.parent = dir;
            }
            Ok(())
        })
    }
}

impl TreeMoment {
    /// The identity of the tree at this moment. If the tree was received and has not changed since,
    /// that is the identity of its source.
    pub fn identity(&self) -> Result<TreeIdentity> {
        let generation = Generation(self.root_node().1);
        let received = self.hidden(RECEIVED)?;
        let received = received.and_then(|value| TreeIdentity::received(&value, generation));
        Ok(received.unwrap_or_else(|| TreeIdentity::of(&self.uuid(), self.root_node())))
    }
}

impl Receiving {
    /// The root directory of the tree, for reading.
    pub fn root(&self) -> Ino {
        self.root
    }

    fn ino(&self, local: Ino) -> Ino {
        local.in_tree(self.root.tree())
    }

    /// Runs a change of the tree, without the check that refuses other callers.
    fn change<R>(&self, run: impl FnOnce(&crate::core::Fs) -> Result<R>) -> Result<R> {
        let _inside = self.fs.fs.engine().gate().change();
        run(&self.fs.fs)
    }

    /// Returns the attributes of an inode.
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        self.fs.getattr(self.ino(ino))
    }

    /// Returns the attributes of the inode with this name.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.fs.lookup(self.ino(dir), name)
    }

    /// Creates an inode with this number and name. `mode` has the type bits. `target`: the target
    /// of a symbolic link.
    ///
    /// # Errors
    /// EEXIST: the number or the name is in use. EINVAL: an impossible number, type or target.
    pub fn make(&self, ino: Ino, dir: Ino, name: &[u8], mode: u32, rdev: u64, target: &[u8]) -> Result<()> {
        let kind = FileKind::from_mode(mode).ok_or(Error::Invalid("file type"))?;
        if ino <= Ino::ROOT || ino.local() != ino || ino <= dir {
            return Err(Error::Invalid("inode number"));
        }
        if (kind == FileKind::Symlink) == target.is_empty() {
            return Err(Error::Invalid("target of a symbolic link"));
        }
        let make = Make { kind, mode, rdev, target, owner: Owner::default() };
        self.change(|fs| fs.names().make_numbered(self.ino(ino), self.ino(dir), name, &make).map(drop))
    }

    /// Adds a name to an inode that is not a directory.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        self.change(|fs| fs.names().link(self.ino(ino), self.ino(dir), name).map(drop))
    }

    /// Removes a name of an inode that is not a directory.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.change(|fs| fs.names().unlink(self.ino(dir), name))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.change(|fs| fs.names().rmdir(self.ino(dir), name))
    }

    /// Renames. The new name must not exist. A directory cannot move into itself.
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Result<()> {
        let moved = self.lookup(from.0, from.1)?;
        let mut at = self.ino(to.0);
        while moved.kind == FileKind::Directory && at != self.root {
            if at == moved.ino {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            at = self.fs.lookup(at, b"..")?.ino;
        }
        let mode = RenameMode::NoReplace;
        self.change(|fs| fs.names().rename(self.ino(from.0), from.1, self.ino(to.0), to.1, mode))
    }

    /// Writes all bytes or fails.
    pub fn write(&self, ino: Ino, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let mode = WriteMode::default();
            let n = self.change(|fs| fs.files().write(self.ino(ino), offset, bytes, mode))?;
            offset = offset.saturating_add(n as u64);
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// fallocate(2) for a file of the tree.
    pub fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.change(|fs| fs.files().fallocate(self.ino(ino), mode, offset, len))
    }

    /// Sets attributes of an inode.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change(|fs| fs.names().setattr(self.ino(ino), set))
    }

    /// Sets the flags of chattr(1).
    pub fn set_flags(&self, ino: Ino, flags: FileFlags) -> Result<()> {
        self.change(|fs| fs.names().set_flags(self.ino(ino), flags))
    }

    /// Sets an extended attribute; with `None` removes it.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.change(|fs| match value {
            Some(value) => fs.names().setxattr(self.ino(ino), name, value, XattrMode::Any),
            None => fs.names().removexattr(self.ino(ino), name),
        })
    }

    /// Stores the caller's progress in the tree, at most 1 KiB. A fork of the tree inherits it.
    pub fn note(&self, progress: &[u8]) -> Result<()> {
        if progress.len() > 1024 {
            return Err(Error::XattrTooLarge);
        }
        self.change(|fs| fs.names().set_hidden(self.root, PROGRESS, progress))
    }

    /// Makes the tree as it is now a snapshot with this name, which replaces a tree of the name, in
    /// one step and durably. Returns the root of the snapshot.
    ///
    /// # Errors
    /// As for [`FileSystem::fork`] and [`FileSystem::delete_tree`].
    pub fn keep(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let made = match self.fs.tree_named(dir, name) {
            Some(_) => self.fs.replace_by_fork(self.root, dir, name, true)?,
            None => self.fs.fork(self.root, dir, name, true)?,
        };
        Ok(made.ino)
    }

    /// Gives the tree its final name, as a snapshot with this identity. On return the whole tree is
    /// durable. After an error or a crash it has the preliminary name.
    ///
    /// # Errors
    /// EEXIST: the name is taken.
    pub fn finish(&self, dir: Ino, name: &[u8], id: &TreeIdentity) -> Result<()> {
        self.fs.fs.complete(self, (dir, name), id)
    }

    /// Deletes the tree.
    pub fn abandon(&self) -> Result<()> {
        self.fs.delete_tree(self.dir, &self.name)
    }
}
