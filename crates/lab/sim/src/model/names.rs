//! Names in the reference model: new inodes, links, removals, renames, and handles that keep an
//! inode without a name.

use super::Model;
use super::effect::{Answer, Effect, No, ordered};
use super::inode::{Id, Inode};
use crate::ops::{Op, Outcome, Rename, Target, errno};
use kedge_format::item::SYMLINK_MAX;
use kedgefs::FileKind;
use std::sync::Arc;

impl Model {
    pub(super) fn run_handles(&mut self, op: &Op) -> Answer {
        let busy = |model: &Model, handle: &u8| match model.handles.contains_key(handle) {
            true => Err(No::from(errno::EBUSY)),
            false => Ok(()),
        };
        match op {
            Op::Tmpfile { dir, handle, mode } => {
                busy(self, handle)?;
                let dir = self.resolve(dir)?;
                if !self.get(dir).is_dir() {
                    return Err(errno::ENOTDIR.into());
                }
                let id = self.next;
                self.next += 1;
                let mut inode = Inode::new(FileKind::Regular, *mode);
                inode.nlink = 0;
                (inode.parent, inode.tree) = (dir, self.tree_of(dir));
                inode.flags = self.get(dir).flags.inherited();
                if let Some(list) = self.get(dir).default {
                    inode.inherit(list);
                }
                self.inodes.insert(id, Arc::new(inode));
                self.handles.insert(*handle, id);
                Ok(ordered([id]))
            }
            Op::Open { path, handle } => {
                busy(self, handle)?;
                let id = self.resolve(path)?;
                self.handles.insert(*handle, id);
                Ok((Outcome::Done, Effect::default()))
            }
            Op::Close { handle } => {
                let id = self.handles.remove(handle).ok_or(errno::EBADF)?;
                self.reap(id);
                Ok((Outcome::Done, Effect::default()))
            }
            _ => unreachable!("sorted by run()"),
        }
    }

    pub(super) fn make(&mut self, path: &str, mut inode: Inode) -> Answer {
        let (dir, name) = self.vacant(path)?;
        let id = self.next;
        self.next += 1;
        inode.parent = dir;
        inode.tree = self.tree_of(dir);
        if inode.is_dir() {
            inode.nlink = 2;
            self.edit(dir).nlink += 1;
        }
        inode.flags = self.get(dir).flags.inherited();
        if let Some(list) = self.get(dir).default {
            inode.inherit(list);
        }
        self.inodes.insert(id, Arc::new(inode));
        self.edit(dir).entries.insert(name.to_owned(), id);
        self.modified(dir);
        Ok(ordered([dir, id]))
    }

    pub(super) fn symlink(&mut self, target: &str, path: &str) -> Answer {
        // The kernel checks the symlink's target before anything else.
        if target.is_empty() {
            return Err(errno::ENOENT.into());
        }
        if target.len() > SYMLINK_MAX {
            let mut errors = vec![errno::ENAMETOOLONG];
            if let Err(No::Errno(also)) = self.vacant(path) {
                errors.extend(also);
            }
            return Err(No::Errno(errors));
        }
        let mut inode = Inode::new(FileKind::Symlink, 0o777);
        inode.target = target.to_owned();
        self.make(path, inode)
    }

    pub(super) fn link(&mut self, from: &Target, path: &str) -> Answer {
        let id = self.target(from)?;
        self.same_place(self.parent(path)?.0, id)?;
        let directory = self.get(id).is_dir();
        let (dir, name) = match self.vacant(path) {
            Err(No::Errno(mut errors)) if directory => {
                errors.push(errno::EPERM);
                return Err(No::Errno(errors));
            }
            other => other?,
        };
        if directory {
            return Err(errno::EPERM.into());
        }
        if self.get(id).dead {
            return Err(No::Unspecified); // on a mount the kernel itself returns ENOENT
        }
        self.edit(dir).entries.insert(name.to_owned(), id);
        self.modified(dir);
        self.edit(id).nlink += 1;
        self.changed(id);
        Ok(ordered([dir, id]))
    }

    fn drop_name(&mut self, dir: Id, name: &str) -> Id {
        let id = self.edit(dir).entries.remove(name).expect("the caller looked it up");
        self.modified(dir);
        id
    }

    /// Removes a name of the inode (a directory has one).
    fn lose_name(&mut self, id: Id) {
        if self.get(id).is_dir() {
            let parent = self.get(id).parent;
            self.edit(parent).nlink -= 1;
            self.edit(id).nlink = 0;
        } else {
            self.edit(id).nlink -= 1;
        }
        self.edit(id).dead = self.get(id).nlink == 0;
        self.changed(id);
        self.reap(id);
    }

    pub(super) fn unlink(&mut self, path: &str) -> Answer {
        let (dir, name) = self.parent(path)?;
        let id = self.lookup(dir, name)?;
        if self.get(id).is_dir() {
            return Err(errno::EISDIR.into());
        }
        self.drop_name(dir, name);
        self.lose_name(id);
        Ok(ordered([dir, id]))
    }

    pub(super) fn rmdir(&mut self, path: &str) -> Answer {
        let (dir, name) = self.parent(path)?;
        let id = self.lookup(dir, name)?;
        if !self.get(id).is_dir() {
            return Err(errno::ENOTDIR.into());
        }
        if !self.get(id).entries.is_empty() {
            return Err(errno::ENOTEMPTY.into());
        }
        if self.is_tree_root(id) {
            return self.run_trees(&Op::DeleteTree { path: path.to_owned() });
        }
        self.drop_name(dir, name);
        self.lose_name(id);
        Ok(ordered([dir, id]))
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, how: Rename) -> Answer {
        let (old_dir, old_name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        self.same_place(old_dir, new_dir)?;
        let moved = self.lookup(old_dir, old_name);
        let there = match self.lookup(new_dir, new_name) {
            Ok(id) => Ok(Some(id)),
            Err(No::Errno(e)) if e[0] == errno::ENOENT => Ok(None),
            Err(e) => Err(e),
        };
        let (moved, there) = match (moved, there) {
            (Ok(moved), Ok(there)) => (moved, there),
            (moved, there) => {
                let both = [moved.err(), there.err()].into_iter().flatten();
                return Err(No::Errno(
                    both.filter_map(|no| if let No::Errno(e) = no { Some(e) } else { None })
                        .flatten()
                        .collect(),
                ));
            }
        };
        if [Some(moved), there].into_iter().flatten().any(|id| self.is_tree_root(id)) {
            return Err(No::Unspecified);
        }
        let errors = self.rename_errors(old_dir, moved, new_dir, there, how);
        if !errors.is_empty() {
            return Err(No::Errno(errors));
        }
        if there == Some(moved) {
            return Ok((Outcome::Done, Effect::default()));
        }
        let mut left = None;
        if let (Rename::Exchange, Some(other)) = (how, there) {
            self.edit(old_dir).entries.insert(old_name.to_owned(), other);
            self.edit(new_dir).entries.insert(new_name.to_owned(), moved);
            self.rehome(moved, old_dir, new_dir);
            self.rehome(other, new_dir, old_dir);
            self.changed(other);
        } else {
            if there.is_some() {
                let victim = self.drop_name(new_dir, new_name);
                self.lose_name(victim);
            }
            self.drop_name(old_dir, old_name);
            self.edit(new_dir).entries.insert(new_name.to_owned(), moved);
            self.rehome(moved, old_dir, new_dir);
            left = (how == Rename::Whiteout).then(|| self.whiteout(old_dir, old_name));
        }
        self.changed(moved);
        self.modified(old_dir);
        self.modified(new_dir);
        let mut touched = vec![old_dir, new_dir, moved];
        touched.extend(there.into_iter().chain(left));
        Ok(ordered(touched))
    }

    /// Creates a whiteout under a name that has just been removed.
    fn whiteout(&mut self, dir: Id, name: &str) -> Id {
        let id = self.next;
        self.next += 1;
        let mut inode = Inode::new(FileKind::CharDevice, 0);
        (inode.parent, inode.tree) = (dir, self.tree_of(dir));
        inode.flags = self.get(dir).flags.inherited();
        if let Some(list) = self.get(dir).default {
            inode.inherit(list);
        }
        self.inodes.insert(id, Arc::new(inode));
        self.edit(dir).entries.insert(name.to_owned(), id);
        id
    }

    /// Sets the parent of a moved directory.
    fn rehome(&mut self, id: Id, from: Id, to: Id) {
        self.edit(id).parent = to;
        if self.get(id).is_dir() {
            self.edit(from).nlink -= 1;
            self.edit(to).nlink += 1;
        }
    }

    fn rename_errors(&self, old_dir: Id, moved: Id, new_dir: Id, there: Option<Id>, how: Rename) -> Vec<i32> {
        let mut errors = Vec::new();
        match (how, there) {
            (Rename::NoReplace, Some(_)) => errors.push(errno::EEXIST),
            (Rename::Exchange, None) => errors.push(errno::ENOENT),
            _ => {}
        }
        let is_dir = self.get(moved).is_dir();
        if is_dir && self.is_below(new_dir, moved) {
            errors.push(errno::EINVAL);
        }
        let Some(there_id) = there else { return errors };
        let there = self.get(there_id);
        if there.is_dir() && self.is_below(old_dir, there_id) {
            errors.push(if how == Rename::Exchange { errno::EINVAL } else { errno::ENOTEMPTY });
        }
        if matches!(how, Rename::Replace | Rename::Whiteout) && there_id != moved {
            match (is_dir, there.is_dir()) {
                (true, false) => errors.push(errno::ENOTDIR),
                (false, true) => errors.push(errno::EISDIR),
                _ => {}
            }
            if there.is_dir() && !there.entries.is_empty() {
                errors.push(errno::ENOTEMPTY);
            }
        }
        errors
    }
}
