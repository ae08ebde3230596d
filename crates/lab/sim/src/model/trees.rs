//! Trees, limits and the size of the image in the reference model.
//!
//! A fork is a deep copy: its inodes differ from those of its source, and a name in a directory
//! refers to its root. Each tree operation makes itself and everything that completed before it
//! durable.
//!
//! The model does not define what happens to inodes that a handle keeps in a tree that is removed,
//! to names of one file in two trees or below two limits, or to a tree that is renamed like a
//! directory. Such operations are unspecified. No operation reaches a limit.

use super::Model;
use super::effect::{Answer, Effect, No, Persist};
use super::inode::{Id, Inode, Limit, ROOT};
use crate::ops::{Op, Outcome, components, errno};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn done(touched: Vec<Id>) -> Answer {
    let persist = Some(Persist::All);
    Ok((Outcome::Done, Effect { ordered: true, datasync: true, touched, persist, ..Effect::default() }))
}

/// The state that decides whether a shrink may be refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Sharing {
    /// Whether files or trees may share blocks, or shared some that are not reclaimed yet.
    shares: bool,
    /// The size that the last resize gave the image.
    size: Option<u64>,
}

impl Sharing {
    /// Returns the errors that are allowed instead of success: a shrink moves no block that clones
    /// or forks share.
    pub(super) fn refusals(&mut self, op: &Op) -> Vec<i32> {
        match op {
            Op::Fork { .. }
            | Op::RollBack { .. }
            | Op::CommitTree { .. }
            | Op::Clone { .. }
            | Op::CloneFile { .. } => self.shares = true,
            Op::Resize { bytes } if self.shares && self.size.is_some_and(|size| *bytes < size) => {
                return vec![errno::EINVAL];
            }
            Op::Resize { bytes } => self.size = Some(*bytes),
            _ => {}
        }
        Vec::new()
    }
}

impl Model {
    pub(super) fn run_trees(&mut self, op: &Op) -> Answer {
        match op {
            Op::Fork { source, path } => self.fork(source, path),
            Op::DeleteTree { path } => self.delete_tree(path),
            Op::RollBack { source, path } => self.roll_back(source, path),
            Op::CommitTree { fork, path } => self.commit_tree(fork, path),
            Op::SetLimit { path, bytes, files } => self.set_limit(path, (*bytes, *files)),
            // A resize writes a checkpoint, but promises nothing.
            Op::Resize { .. } => Ok((Outcome::Done, Effect::default())),
            _ => unreachable!("sorted by run()"),
        }
    }

    /// The root of the tree of an inode.
    pub(super) fn tree_of(&self, id: Id) -> Id {
        self.get(id).tree
    }

    /// Whether the inode is the root of a tree other than the first.
    pub(super) fn is_tree_root(&self, id: Id) -> bool {
        id != ROOT && self.get(id).tree == id
    }

    /// Whether the inode is the root of a tree, the first one included.
    pub fn is_root(&self, id: Id) -> bool {
        self.get(id).tree == id
    }

    /// Returns the directory whose limit applies to the inode.
    fn limited_by(&self, id: Id) -> Option<Id> {
        let mut at = id;
        loop {
            // The directory in which a file was made may have been removed, and its limit is then
            // unknown.
            let Some(inode) = self.inodes.get(&at) else {
                return self.inodes.values().any(|inode| inode.limit.is_some()).then_some(at);
            };
            if inode.limit.is_some() {
                return Some(at);
            }
            if inode.tree == at {
                return None;
            }
            at = inode.parent;
        }
    }

    /// Fails if a move or link between the two inodes would cross trees or limits.
    pub(super) fn same_place(&self, a: Id, b: Id) -> Result<(), No> {
        let same = self.tree_of(a) == self.tree_of(b) && self.limited_by(a) == self.limited_by(b);
        if same { Ok(()) } else { Err(No::Unspecified) }
    }

    /// Returns the tree with this path.
    fn tree(&self, path: &str) -> Result<Id, No> {
        let id = self.resolve(path)?;
        if id == ROOT || self.is_tree_root(id) { Ok(id) } else { Err(errno::EINVAL.into()) }
    }

    /// Returns the directory, the name and the root of a tree other than the first.
    fn named_tree<'a>(&self, path: &'a str) -> Result<(Id, &'a str, Id), No> {
        let (dir, name) = self.parent(path)?;
        // If there is no tree of that name, ENOENT is correct, too, whatever other error applies.
        let id = self.lookup(dir, name).map_err(|no| match no {
            No::Errno(mut errors) => {
                errors.push(errno::ENOENT);
                No::Errno(errors)
            }
            No::Unspecified => No::Unspecified,
        })?;
        if self.is_tree_root(id) { Ok((dir, name, id)) } else { Err(errno::ENOENT.into()) }
    }

    fn inodes_of(&self, tree: Id) -> Vec<Id> {
        self.inodes.iter().filter(|(_, inode)| inode.tree == tree).map(|(id, _)| *id).collect()
    }

    /// Returns the trees that directories of this tree name: directory, name, tree.
    fn named_in(&self, tree: Id) -> Vec<(Id, String, Id)> {
        let mut named = Vec::new();
        for (id, inode) in self.inodes.iter().filter(|(_, inode)| inode.tree == tree) {
            let trees = inode.entries.iter().filter(|(_, child)| self.tree_of(**child) != tree);
            named.extend(trees.map(|(name, child)| (*id, name.clone(), *child)));
        }
        named
    }

    fn check_unused(&self, tree: Id) -> Result<(), No> {
        let open = self.handles.values().any(|id| self.inodes.get(id).is_some_and(|i| i.tree == tree));
        if open { Err(No::Unspecified) } else { Ok(()) }
    }

    /// Copies the inodes of a tree that have a name. The copy of its root becomes `root`.
    fn copied(&mut self, tree: Id, root: Option<Id>, parent: Id) -> (Id, BTreeMap<Id, Inode>) {
        let mut found = BTreeSet::from([tree]);
        let mut queue = vec![tree];
        while let Some(dir) = queue.pop() {
            for child in self.get(dir).entries.values() {
                if self.tree_of(*child) == tree && found.insert(*child) {
                    queue.push(*child);
                }
            }
        }
        let mut ids = BTreeMap::new();
        for id in &found {
            let new = match root {
                Some(root) if *id == tree => root,
                _ => {
                    self.next += 1;
                    self.next - 1
                }
            };
            ids.insert(*id, new);
        }
        let new_root = ids[&tree];
        let mut copies = BTreeMap::new();
        for (id, new) in &ids {
            let mut inode = self.get(*id).clone();
            inode.tree = new_root;
            inode.parent = if *id == tree { parent } else { ids.get(&inode.parent).copied().unwrap_or(0) };
            inode.entries = inode
                .entries
                .iter()
                .filter_map(|(name, child)| Some((name.clone(), *ids.get(child)?)))
                .collect();
            if inode.is_dir() {
                let is_dir = |child: &&Id| self.get(**child).is_dir() && ids.contains_key(*child);
                inode.nlink = 2 + self.get(*id).entries.values().filter(is_dir).count() as u32;
            }
            copies.insert(*new, inode);
        }
        (new_root, copies)
    }

    fn add(&mut self, copies: BTreeMap<Id, Inode>) {
        self.inodes.extend(copies.into_iter().map(|(id, inode)| (id, Arc::new(inode))));
    }

    fn remove_tree(&mut self, tree: Id) {
        for id in self.inodes_of(tree) {
            self.inodes.remove(&id);
        }
    }

    fn add_name(&mut self, dir: Id, name: &str, tree: Id) {
        let inode = self.edit(dir);
        inode.entries.insert(name.to_owned(), tree);
        inode.nlink += 1;
        self.edit(tree).parent = dir;
    }

    fn take_name(&mut self, dir: Id, name: &str) {
        let inode = self.edit(dir);
        inode.entries.remove(name);
        inode.nlink -= 1;
    }

    fn fork(&mut self, source: &str, path: &str) -> Answer {
        let source = self.resolve(source)?;
        let (dir, name) = self.vacant(path)?;
        if source != ROOT && !self.is_tree_root(source) {
            return Err(errno::EINVAL.into());
        }
        if self.get(dir).flags != kedgefs::FileFlags::default() {
            return Err(No::Unspecified);
        }
        let (root, copies) = self.copied(source, None, dir);
        self.add(copies);
        self.add_name(dir, name, root);
        done(vec![dir, root])
    }

    fn delete_tree(&mut self, path: &str) -> Answer {
        let (dir, name, tree) = self.named_tree(path)?;
        if !self.named_in(tree).is_empty() {
            return Err(errno::ENOTEMPTY.into());
        }
        self.check_unused(tree)?;
        self.take_name(dir, name);
        self.remove_tree(tree);
        done(vec![dir])
    }

    fn roll_back(&mut self, source: &str, path: &str) -> Answer {
        let source = self.tree(source)?;
        if components(path).next().is_none() {
            return self.replace_root(source, false);
        }
        let (dir, name, old) = self.named_tree(path)?;
        if old == source {
            return Err(errno::EINVAL.into());
        }
        if !self.named_in(old).is_empty() {
            return Err(errno::ENOTEMPTY.into());
        }
        self.check_unused(old)?;
        let (root, copies) = self.copied(source, None, dir);
        self.take_name(dir, name);
        self.remove_tree(old);
        self.add(copies);
        self.add_name(dir, name, root);
        done(vec![dir, root])
    }

    /// Replaces a tree by a fork, even if the tree was changed since the fork.
    fn commit_tree(&mut self, fork: &str, path: &str) -> Answer {
        let (fork_dir, fork_name, fork) = self.named_tree(fork)?;
        if components(path).next().is_none() {
            return self.replace_root(fork, true);
        }
        let (dir, name, old) = self.named_tree(path)?;
        let mut errors = Vec::new();
        if !self.named_in(old).is_empty() {
            errors.push(errno::ENOTEMPTY);
        }
        if old == fork || self.is_below(dir, fork) {
            errors.push(errno::EINVAL);
        }
        if !errors.is_empty() {
            return Err(No::Errno(errors));
        }
        self.check_unused(old)?;
        self.take_name(dir, name);
        self.remove_tree(old);
        self.take_name(fork_dir, fork_name);
        self.add_name(dir, name, fork);
        done(vec![dir, fork_dir, fork])
    }

    /// Gives the first tree the contents of another, which is moved (`moves`) or copied.
    fn replace_root(&mut self, source: Id, moves: bool) -> Answer {
        if source == ROOT {
            return Err(errno::EINVAL.into());
        }
        if moves && !self.named_in(source).is_empty() {
            return Err(errno::ENOTEMPTY.into());
        }
        self.check_unused(ROOT)?;
        if moves {
            self.check_unused(source)?;
        }
        let paths: BTreeMap<Id, String> = self.paths().into_iter().map(|(path, id)| (id, path)).collect();
        let kept = self.named_in(ROOT).into_iter().filter(|(_, _, tree)| !moves || *tree != source);
        let kept: Vec<_> = kept.map(|(dir, name, tree)| (paths[&dir].clone(), name, tree)).collect();
        for (path, name, _) in &kept {
            let step = |dir: Id, name: &str| self.get(dir).entries.get(name).copied();
            let dir = components(path).try_fold(source, |dir, name| {
                step(dir, name).filter(|id| self.get(*id).is_dir() && self.tree_of(*id) == source)
            });
            dir.filter(|dir| step(*dir, name).is_none()).ok_or(errno::ENOTEMPTY)?;
        }
        let (_, copies) = self.copied(source, Some(ROOT), ROOT);
        let place = |(path, name, tree): (String, String, Id)| {
            let dir = components(&path).fold(ROOT, |dir, name| copies[&dir].entries[name]);
            (dir, name, tree)
        };
        let places: Vec<_> = kept.into_iter().map(place).collect();
        self.remove_tree(ROOT);
        if moves {
            let above = self.inodes.get(&self.get(source).parent).map(|_| self.get(source).parent);
            let name = above.and_then(|dir| {
                let mut names = self.get(dir).entries.iter();
                names.find(|(_, child)| **child == source).map(|(name, _)| (dir, name.clone()))
            });
            if let Some((dir, name)) = name {
                self.take_name(dir, &name);
            }
            self.remove_tree(source);
        }
        self.add(copies);
        for (dir, name, tree) in places {
            self.add_name(dir, &name, tree);
        }
        done(vec![ROOT])
    }

    fn set_limit(&mut self, path: &str, limit: Limit) -> Answer {
        let id = self.resolve(path)?;
        if !self.get(id).is_dir() {
            return Err(errno::ENOTDIR.into());
        }
        let mut names: BTreeMap<Id, u32> = BTreeMap::new();
        let mut queue = vec![id];
        while let Some(dir) = queue.pop() {
            for child in self.get(dir).entries.values().filter(|child| !self.is_tree_root(**child)) {
                *names.entry(*child).or_default() += 1;
                if self.get(*child).is_dir() {
                    queue.push(*child);
                }
            }
        }
        let outside = |(id, count): (&Id, &u32)| !self.get(*id).is_dir() && self.get(*id).nlink != *count;
        if names.iter().any(outside) || !self.handles.is_empty() {
            return Err(No::Unspecified);
        }
        self.edit(id).limit = Some(limit);
        done(vec![id])
    }
}
