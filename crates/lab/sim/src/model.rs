//! The reference model: a plain file system in memory that defines the result of every operation,
//! errno included.
//!
//! Inodes have the model's own numbers; names are (directory, name) → inode. A copy shares all
//! inodes that do not change afterwards, so a history keeps one version per operation.
//!
//! Where POSIX and Linux leave the result open (extended user attributes of a fifo, reading a
//! device), the operation is *unspecified*: [`Model::apply`] returns `None`, and the caller does
//! not run it on the file system either. If several errors apply, the one that Linux reports comes
//! first, and the others are allowed.

mod attributes;
mod data;
mod effect;
mod forbidden;
mod inode;
mod names;
mod trees;

use crate::ops::{Op, Outcome, RDEV, Special, Target, components, errno, split};
use effect::{Answer, No};
use kedge_format::item::NAME_MAX;
use kedgefs::FileKind;
use std::collections::BTreeMap;
use std::sync::Arc;
use trees::Sharing;

pub use effect::{Applied, DataChange, Effect, Persist};
pub use inode::{Id, Inode, Limit, ROOT};

/// The reference file system.
#[derive(Clone, Debug)]
pub struct Model {
    inodes: BTreeMap<Id, Arc<Inode>>,
    handles: BTreeMap<u8, Id>,
    next: Id,
    sharing: Sharing,
}

impl Default for Model {
    fn default() -> Self {
        Model::new()
    }
}

impl Model {
    /// The model of a fresh image, which has only a root directory.
    pub fn new() -> Model {
        let mut root = Inode::new(FileKind::Directory, 0o755);
        root.nlink = 2;
        root.parent = ROOT;
        (root.uid, root.gid) = (0, 0);
        Model { next: ROOT + 1, ..Model::from_inodes(BTreeMap::from([(ROOT, Arc::new(root))])) }
    }

    /// A model with the inodes that were found on an image; they must be consistent.
    pub(crate) fn from_inodes(inodes: BTreeMap<Id, Arc<Inode>>) -> Model {
        let next = inodes.keys().next_back().map_or(ROOT, |id| id + 1);
        Model { inodes, handles: BTreeMap::new(), next, sharing: Sharing::default() }
    }

    pub fn inode(&self, id: Id) -> Option<&Inode> {
        self.inodes.get(&id).map(|inode| &**inode)
    }

    pub fn handles(&self) -> &BTreeMap<u8, Id> {
        &self.handles
    }

    /// Every path and its inode, the root as ".".
    pub fn paths(&self) -> Vec<(String, Id)> {
        let mut paths = vec![(".".to_owned(), ROOT)];
        let mut at = 0;
        while at < paths.len() {
            let (path, id) = paths[at].clone();
            for (name, child) in &self.get(id).entries {
                let below = if id == ROOT { name.clone() } else { format!("{path}/{name}") };
                paths.push((below, *child));
            }
            at += 1;
        }
        paths
    }

    fn get(&self, id: Id) -> &Inode {
        &self.inodes[&id]
    }

    fn edit(&mut self, id: Id) -> &mut Inode {
        Arc::make_mut(self.inodes.get_mut(&id).expect("ids come from the model's own maps"))
    }

    /// Updates the times of an inode whose data, mapping or entries changed.
    fn modified(&mut self, id: Id) {
        let inode = self.edit(id);
        (inode.mtime, inode.ctime) = (None, None);
    }

    /// Updates the time of an inode whose attributes changed.
    fn changed(&mut self, id: Id) {
        self.edit(id).ctime = None;
    }

    fn lookup(&self, dir: Id, name: &str) -> Result<Id, No> {
        let dir = self.get(dir);
        if !dir.is_dir() {
            let both = [errno::ENOTDIR, errno::ENAMETOOLONG];
            return Err(No::Errno(both[..1 + usize::from(name.len() > NAME_MAX)].to_vec()));
        }
        if name.len() > NAME_MAX {
            return Err(errno::ENAMETOOLONG.into());
        }
        dir.entries.get(name).copied().ok_or_else(|| errno::ENOENT.into())
    }

    fn resolve(&self, path: &str) -> Result<Id, No> {
        components(path).try_fold(ROOT, |dir, name| self.lookup(dir, name))
    }

    /// The inode at a path.
    pub fn find(&self, path: &str) -> Option<Id> {
        self.resolve(path).ok()
    }

    fn target(&self, target: &Target) -> Result<Id, No> {
        match target {
            Target::Path(path) => self.resolve(path),
            Target::Handle(handle) => self.handles.get(handle).copied().ok_or_else(|| errno::EBADF.into()),
        }
    }

    fn parent<'a>(&self, path: &'a str) -> Result<(Id, &'a str), No> {
        let (dir, name) = split(path).ok_or(errno::EINVAL)?;
        Ok((self.resolve(dir)?, name))
    }

    /// Returns the directory and the name for an inode to be made.
    fn vacant<'a>(&self, path: &'a str) -> Result<(Id, &'a str), No> {
        let (dir, name) = self.parent(path)?;
        match self.lookup(dir, name) {
            Ok(_) => Err(errno::EEXIST.into()),
            Err(No::Errno(e)) if e[0] == errno::ENOENT => Ok((dir, name)),
            Err(e) => Err(e),
        }
    }

    fn data_target(&self, on: &Target) -> Result<Id, No> {
        let id = self.target(on)?;
        match self.get(id).kind {
            FileKind::Regular => Ok(id),
            FileKind::Directory => Err(errno::EISDIR.into()),
            _ => Err(No::Unspecified),
        }
    }

    fn is_below(&self, dir: Id, ancestor: Id) -> bool {
        let mut at = dir;
        loop {
            if at == ancestor {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.get(at).parent;
        }
    }

    /// Runs the operation. Returns `None` if it is unspecified; then nothing has changed.
    pub fn apply(&mut self, op: &Op) -> Option<Applied> {
        match self.run_permitted(op) {
            Ok((outcome, effect)) => Some(Applied { outcome, or: self.sharing.refusals(op), effect }),
            Err(No::Errno(errors)) => {
                Some(Applied { outcome: Outcome::Failed(errors[0]), or: errors, effect: Effect::default() })
            }
            Err(No::Unspecified) => None,
        }
    }

    fn run(&mut self, op: &Op) -> Answer {
        match op {
            Op::Create { path, mode } => self.make(path, Inode::new(FileKind::Regular, *mode)),
            Op::Mkdir { path, mode } => self.make(path, Inode::new(FileKind::Directory, *mode)),
            Op::Mknod { path, special } => {
                let mut inode = Inode::new(special.kind(), 0o644);
                inode.rdev = if *special == Special::Chr { RDEV } else { 0 };
                self.make(path, inode)
            }
            Op::Symlink { target, path } => self.symlink(target, path),
            Op::Link { from, path } => self.link(from, path),
            Op::Unlink { path } => self.unlink(path),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::Fork { .. }
            | Op::DeleteTree { .. }
            | Op::RollBack { .. }
            | Op::CommitTree { .. }
            | Op::SetLimit { .. }
            | Op::Resize { .. } => self.run_trees(op),
            Op::Tmpfile { .. } | Op::Open { .. } | Op::Close { .. } => self.run_handles(op),
            Op::Remount => {
                self.forget_handles();
                Ok((Outcome::Done, Effect { persist: Some(Persist::All), ..Effect::default() }))
            }
            Op::CrashRemount { .. } => Err(errno::EINVAL.into()),
            Op::Chmod { .. }
            | Op::Chown { .. }
            | Op::Utimes { .. }
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::SetAcl { .. }
            | Op::SetFlags { .. } => self.run_attributes(op),
            _ => self.run_data(op),
        }
    }

    /// Drops all handles, which end with the mount, and the inodes without a name.
    pub fn forget_handles(&mut self) {
        for id in std::mem::take(&mut self.handles).into_values() {
            self.reap(id);
        }
    }

    /// Removes the inode if it has neither a name nor a handle.
    fn reap(&mut self, id: Id) {
        let gone =
            self.inodes.get(&id).is_some_and(|i| i.nlink == 0) && !self.handles.values().any(|h| *h == id);
        if gone {
            self.inodes.remove(&id);
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
