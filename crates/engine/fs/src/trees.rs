//! Trees of a file system that share nodes and blocks. [`kedge_format::trees`] describes what is
//! stored, `kedge_store` why nothing shared is lost.
//!
//! # Fork and delete
//! Both need a moment at which no operation changes anything and nothing is dirty. They stop
//! changes as a freeze does ([`crate::gate`]), write what is dirty, make one checkpoint, and let
//! changes continue. Reads continue meanwhile. Data that a kernel above a mount has not written yet
//! is not part of the fork; the mount makes the kernel write it first.
//!
//! # A deleted tree
//! The inodes of the tree in memory become dead, and the call waits for reads in progress in the
//! tree, before anything of it can be freed. A thread then frees its space and ends when nothing is
//! left.

use crate::cache::inode::Inode;
use crate::core::Fs;
use crate::error::{Error, Result};
use crate::flags;
use crate::freeze::Reopen;
use crate::gate::{Door, Phase};
use crate::types::Attr;
use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::{Ino, spawn_named};
use kedge_format::FileKind;
use kedge_store::{ForceCause, Reclaimed, Renamed, TreeEntry, TreeKind, TreeUse};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause of the thread that frees space, while a freeze or another fork is in progress.
const BUSY_REST: Duration = Duration::from_millis(20);

/// A tree of a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TreeInfo {
    /// The root directory.
    pub root: Ino,
    /// The directory that contains the tree's name; for the first tree its own root.
    pub dir: Ino,
    /// The name in that directory; empty for the first tree.
    pub name: Vec<u8>,
    /// Whether the tree is a snapshot, in which nothing can be changed.
    pub read_only: bool,
    /// When the tree was made, in seconds since 1970. For the first tree, when it was first forked.
    pub created: i64,
    /// Number of inodes, including shared ones.
    pub inodes: u64,
}

impl TreeInfo {
    fn of(number: u32, entry: TreeEntry) -> TreeInfo {
        TreeInfo {
            root: Ino::ROOT.in_tree(number),
            dir: entry.dir,
            name: entry.name,
            read_only: entry.read_only,
            created: entry.created,
            inodes: entry.inodes,
        }
    }
}

/// How the first tree is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Root {
    /// By a fork of another tree.
    RolledBack,
    /// By the other tree itself.
    Committed { force: bool },
}

/// Which trees a deletion accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deletion {
    Any,
    /// Only a tree whose root directory is empty, as rmdir(2) does.
    OnlyEmpty,
}

/// The space of a tree, as of the last checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TreeSpace {
    /// Bytes of file data that no other tree uses.
    pub own_data: u64,
    /// Bytes of nodes that no other tree uses.
    pub own_nodes: u64,
}

impl Fs {
    /// Runs `work` while changes are stopped and nothing is dirty.
    pub(crate) fn quietly<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let gate = self.engine().gate();
        if gate.has_entered() {
            return Err(Error::Busy("a change of this thread is under way"));
        }
        // Excludes other forks, and steps of the thread that frees space.
        let _single = gate.single();
        self.quietly_alone(work)
    }

    fn check_usable(&self) -> Result<()> {
        if self.engine().gate().phase() != Phase::Open {
            return Err(Error::Busy("the file system is frozen"));
        }
        self.engine().check_open()?;
        let store = self.engine().store();
        store.check_alive()?;
        if store.is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        Ok(())
    }

    /// [`Fs::quietly`] for a caller that holds `gate.single()`.
    fn quietly_alone<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        self.check_usable()?;
        let gate = self.engine().gate();
        // The first sync does most of the work while operations continue.
        self.syncer().sync(ForceCause::Sync)?;
        gate.shut(Door::Change);
        let _reopen = Reopen(self);
        self.settle_data()?;
        work()
    }

    pub(crate) fn check_tree(&self, root: Ino) -> Result<()> {
        let is_root = root == Ino::ROOT || self.engine().store().is_tree_root(root);
        if is_root { Ok(()) } else { Err(Error::Invalid("the directory is not the root of a tree")) }
    }

    pub(crate) fn fork(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Attr> {
        self.check_tree(source)?;
        self.quietly(|| {
            let dir = self.numbers().inward(dir);
            self.check_changeable(dir)?;
            self.names().check_free(dir, name)?;
            let attr = self.attr_of_fork(source)?;
            let ino = self.engine().store().fork(source, dir, name, read_only)?;
            self.files().drop_orphans_of(ino.tree());
            Ok(Attr { ino, ..attr })
        })
    }

    /// The attributes that the root of a fork of `source` gets, except its number. Changes are
    /// stopped and nothing is dirty, so the attributes in memory are those of the tree at the cut.
    /// The new tree is not opened, since that would read nodes that the source has in memory.
    fn attr_of_fork(&self, source: Ino) -> Result<Attr> {
        // Trees whose names are in the source are not part of the fork.
        self.inodes().get(source)?.attr()
    }

    /// Whether the tree is empty is checked while changes are stopped: until then other threads may
    /// create names in it.
    pub(crate) fn delete_tree(&self, dir: Ino, name: &[u8], accepted: Deletion) -> Result<()> {
        self.quietly(|| {
            let dir = self.numbers().inward(dir);
            self.check_changeable(dir)?;
            let root = self.names().tree_named(dir, name).ok_or(Error::NotFound)?;
            self.check_removable(dir)?;
            if accepted == Deletion::OnlyEmpty && self.names().getattr(root)?.size > 0 {
                return Err(Error::NotEmpty);
            }
            let store = self.engine().store();
            if store.has_trees_below(root) {
                return Err(Error::NotEmpty);
            }
            let deleted = store.delete_tree(root);
            self.forget_if_gone(root);
            Ok(deleted?)
        })
    }

    /// Makes the inodes of a tree dead if the tree is deleted. Called also after an error, since a
    /// later checkpoint may make the deletion durable.
    fn forget_if_gone(&self, root: Ino) {
        if self.engine().store().check_tree(root).is_err() {
            self.forget_tree(root);
        }
    }

    /// Fails if the flags of a directory protect its names.
    fn check_removable(&self, dir: Ino) -> Result<()> {
        flags::check_remove(&self.inodes().get_dir(dir)?.meta.lock().core)
    }

    /// Returns the tree with this name if the tree `by` may replace it.
    fn replaceable(&self, dir: Ino, name: &[u8], by: Ino) -> Result<Ino> {
        self.check_changeable(dir)?;
        let store = self.engine().store();
        let old = self.names().tree_named(dir, name).ok_or(Error::NotFound)?;
        self.check_removable(dir)?;
        if store.same_tree(old, by) {
            return Err(Error::Invalid("a tree cannot replace itself"));
        }
        if store.has_trees_below(old) {
            return Err(Error::NotEmpty);
        }
        Ok(old)
    }

    /// Replaces the tree with this name by a fork of `source`. `read_only`: by a snapshot.
    pub(crate) fn roll_back(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Attr> {
        self.check_tree(source)?;
        self.quietly(|| {
            let dir = self.numbers().inward(dir);
            let old = self.replaceable(dir, name, source)?;
            let attr = self.attr_of_fork(source)?;
            let made = self.engine().store().replace_by_fork(source, old, dir, name, read_only);
            self.forget_if_gone(old);
            let ino = made?;
            self.files().drop_orphans_of(ino.tree());
            Ok(Attr { ino, ..attr })
        })
    }

    pub(crate) fn commit_tree(&self, fork: Ino, dir: Ino, name: &[u8], force: bool) -> Result<()> {
        let store = self.engine().store();
        if !store.is_tree_root(fork) {
            return Err(Error::Invalid("the directory is not the root of a fork"));
        }
        self.quietly(|| {
            let dir = self.numbers().inward(dir);
            let old = self.replaceable(dir, name, fork)?;
            self.check_changeable(fork)?;
            let (_, above) = store.tree_of(fork)?.ok_or(Error::NotFound)?;
            self.check_changeable(above.dir)?;
            self.check_removable(above.dir)?;
            if self.is_below(dir, fork)? {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            if !force && !store.is_as_forked(old, fork) {
                return Err(Error::Busy("the tree was changed since it was forked, and"));
            }
            let replaced = store.replace_by_tree(fork, old, dir, name);
            self.forget_if_gone(old);
            replaced?;
            if let Some(inode) = self.inodes().cached(fork) {
                inode.meta.lock().core.parent = dir;
            }
            Ok(())
        })
    }

    /// Replaces the contents of the first tree: see [`crate::FileSystem::roll_back_root`].
    pub(crate) fn replace_root(&self, source: Ino, how: Root) -> Result<()> {
        let store = self.engine().store();
        if source == Ino::ROOT {
            return Err(Error::Invalid("a tree cannot replace itself"));
        }
        self.check_tree(source)?;
        self.quietly(|| {
            let gone = match how {
                Root::RolledBack => None,
                Root::Committed { force } => {
                    self.check_changeable(source)?;
                    if store.has_trees_below(source) {
                        return Err(Error::NotEmpty);
                    }
                    if !force && !store.is_as_forked(Ino::ROOT, source) {
                        return Err(Error::Busy("the tree was changed since it was forked, and"));
                    }
                    Some(source)
                }
            };
            let names = self.names_kept(source, gone)?;
            let mut replacing = self.numbers().replace();
            let done = store.replace_first(source, gone.is_some(), &names);
            // An error may come after the cut. Then the store is shut down, or the next checkpoint
            // completes the replacement.
            let old = store.replaced_first();
            if done.is_ok() || old != replacing.before() {
                self.forget_tree(Ino::ROOT);
                gone.into_iter().for_each(|root| self.forget_tree(root));
                for Renamed { root, dir, .. } in &names {
                    if let Some(inode) = self.inodes().cached(*root) {
                        inode.meta.lock().core.parent = *dir;
                    }
                }
                replacing.done(old);
            }
            drop(replacing);
            done?;
            self.files().drop_orphans_of(0);
            Ok(())
        })
    }

    /// The names of the trees in the first tree after it has got the contents of `source`: each
    /// tree except `gone` keeps its path.
    fn names_kept(&self, source: Ino, gone: Option<Ino>) -> Result<Vec<Renamed>> {
        let store = self.engine().store();
        let mut names = Vec::new();
        for (number, entry) in store.trees() {
            let root = Ino::ROOT.in_tree(number);
            if number == 0 || entry.kind != TreeKind::Head || Some(root) == gone {
                continue;
            }
            if !store.same_tree(entry.dir, Ino::ROOT) {
                continue; // its name is in another tree, and stays
            }
            let path = self.names().path_of(entry.dir)?;
            let mut dir = source;
            for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
                let found = match self.names().lookup(dir, name) {
                    Err(Error::NotFound) => return Err(Error::NotEmpty),
                    found => found?,
                };
                if found.kind != FileKind::Directory || !store.same_tree(found.ino, source) {
                    return Err(Error::NotEmpty);
                }
                dir = found.ino;
            }
            match self.names().lookup(dir, &entry.name) {
                Err(Error::NotFound) => {}
                Ok(_) => return Err(Error::NotEmpty),
                Err(e) => return Err(e),
            }
            let TreeEntry { name, read_only, .. } = entry;
            names.push(Renamed { root, dir: dir.local(), name, read_only });
        }
        Ok(names)
    }

    /// Makes the inodes of a deleted tree dead. Returns when no thread reads in the tree.
    fn forget_tree(&self, root: Ino) {
        let store = self.engine().store();
        self.inodes().forget_pins(|ino| store.same_tree(ino, root));
        self.inodes().wait_for_loads(|ino| store.same_tree(ino, root));
        let inodes: Vec<Arc<Inode>> = self.inodes().of_tree(root);
        for inode in &inodes {
            let _io = inode.io.write();
            let _wb = inode.wb.lock();
            let delta = inode.pages.lock().remove_range(0, u64::MAX);
            self.writeback().account(delta);
            let mut meta = inode.meta.lock();
            meta.dead = true;
            meta.core.nlink = 0;
            self.writeback().unlist(inode.ino, &mut meta);
            drop(meta);
            self.inodes().remove(inode.ino);
        }
        self.files().orphans().forget(|ino| store.same_tree(ino, root));
    }

    pub(crate) fn rename_tree(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Result<()> {
        self.quietly(|| {
            let inward = |(dir, name)| (self.numbers().inward(dir), name);
            let (from, to) = (inward(from), inward(to));
            self.check_changeable(from.0)?;
            self.check_changeable(to.0)?;
            let root = self.names().tree_named(from.0, from.1).ok_or(Error::NotFound)?;
            if from == to {
                return Ok(());
            }
            self.check_removable(from.0)?;
            self.names().check_free(to.0, to.1)?;
            if self.is_below(to.0, root)? {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            let store = self.engine().store();
            store.name_tree(root, to.0, to.1, store.check_tree(root)?)?;
            if let Some(inode) = self.inodes().cached(root) {
                inode.meta.lock().core.parent = to.0;
            }
            Ok(())
        })
    }

    pub(crate) fn set_tree_read_only(&self, root: Ino, read_only: bool) -> Result<()> {
        self.quietly(|| {
            let store = self.engine().store();
            let tree = if store.is_tree_root(root) { store.tree_of(root)? } else { None };
            let (_, entry) = tree.ok_or(Error::Invalid("the directory is not the root of a fork"))?;
            Ok(store.name_tree(root, entry.dir, &entry.name, read_only)?)
        })
    }

    /// Whether the directory is in tree `root`, or in a tree whose name is below `root`.
    fn is_below(&self, dir: Ino, root: Ino) -> Result<bool> {
        let store = self.engine().store();
        let mut at = dir;
        while !store.same_tree(at, Ino::ROOT) {
            if store.same_tree(at, root) {
                return Ok(true);
            }
            at = store.parent_of(Ino::ROOT.in_tree(at.tree()), Ino::ROOT);
        }
        Ok(false)
    }

    /// Fails if the tree of the inode is read-only or deleted.
    pub(crate) fn check_changeable(&self, ino: Ino) -> Result<()> {
        let store = self.engine().store();
        if !store.is_forked() {
            return Ok(());
        }
        match store.check_tree(ino)? {
            true => Err(kedge_base::Error::ReadOnly.into()),
            false => Ok(()),
        }
    }

    pub(crate) fn trees(&self) -> Vec<TreeInfo> {
        let store = self.engine().store();
        let first = TreeInfo {
            root: Ino::ROOT,
            dir: Ino::ROOT,
            name: Vec::new(),
            read_only: false,
            created: 0,
            inodes: store.inode_count(),
        };
        let mut trees = vec![first];
        for (number, entry) in store.trees() {
            if number == 0 {
                trees[0].created = entry.created;
            } else if entry.kind == TreeKind::Head {
                trees[0].inodes = trees[0].inodes.saturating_sub(entry.inodes);
                trees.push(TreeInfo::of(number, entry));
            }
        }
        trees
    }

    pub(crate) fn tree_of(&self, ino: Ino) -> Result<Option<TreeInfo>> {
        let tree = self.engine().store().tree_of(ino)?;
        Ok(tree.map(|(number, entry)| TreeInfo::of(number, entry)))
    }

    pub(crate) fn tree_space(&self, root: Ino) -> Result<TreeSpace> {
        self.check_tree(root)?;
        let TreeUse { data, nodes } = self.engine().store().tree_use(root)?;
        Ok(TreeSpace { own_data: data, own_nodes: nodes })
    }

    // ----- freeing -----

    /// Frees one batch of the space of deleted trees. Returns whether there may be more.
    pub(crate) fn reclaim(&self) -> Result<bool> {
        let gate = self.engine().gate();
        let _single = gate.single();
        self.reclaim_alone()
    }

    /// [`Fs::reclaim`] for a caller that holds `gate.single()`.
    pub(crate) fn reclaim_alone(&self) -> Result<bool> {
        let store = self.engine().store();
        self.check_usable()?;
        if self.engine().moments.load(SeqCst) > 0 {
            return Err(Error::Busy("trees are being compared or sent"));
        }
        let done = match store.reclaim(false)? {
            Reclaimed::NeedsQuiet => self.quietly_alone(|| Ok(store.reclaim(true)?))?,
            done => done,
        };
        Ok(done == Reclaimed::Some)
    }

    /// Starts the thread that frees the space of deleted trees, unless it is running.
    pub(crate) fn start_reclaim(self: &Arc<Fs>) {
        if !self.engine().store().is_forked() || self.engine().reclaiming.swap(true, SeqCst) {
            return;
        }
        let fs = Arc::downgrade(self);
        if let Err(e) = spawn_named("kedge-reclaim", move || reclaim_all(&fs)) {
            self.engine().reclaiming.store(false, SeqCst);
            tracing::warn!("the space of deleted trees is freed by the next mount: {e}");
        }
    }
}

/// Body of the thread that frees space. It ends when nothing is left, when the file system is
/// dropped, or after an error. The next deletion or mount then starts it again.
fn reclaim_all(fs: &Weak<Fs>) {
    loop {
        let Some(fs) = fs.upgrade() else { return };
        let clock = fs.engine().store().clock().clone();
        match fs.reclaim() {
            Ok(true) => {}
            Ok(false) => {
                fs.engine().reclaiming.store(false, SeqCst);
                // A tree that was deleted just before this point found the thread still running.
                match fs.engine().store().has_work_for_reclaim() {
                    true if !fs.engine().reclaiming.swap(true, SeqCst) => {}
                    _ => return,
                }
            }
            Err(Error::Busy(_)) if !fs.engine().is_closed() => {
                drop(fs);
                clock.sleep(BUSY_REST);
            }
            Err(e) => {
                fs.engine().reclaiming.store(false, SeqCst);
                if !fs.engine().is_closed() {
                    tracing::warn!("the space of deleted trees is not freed yet: {e}");
                }
                return;
            }
        }
    }
}
