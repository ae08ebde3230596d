//! Rename: one record that moves names and removes the name of a replaced file. No state in between
//! is visible.
//!
//! With `new_name=lazy` a rename starts no IO and waits for none. It walks up the directories only
//! to check that a directory does not move into itself. The moved inode, both directories and the
//! replaced file get the record's LSN, so an fsync of any of them makes the whole rename durable.
//!
//! The same record makes a whiteout, in the slot of the old name. Otherwise a crash could leave the
//! old name without file and whiteout, and a file in a lower layer of an overlay would reappear.

use super::Names;
use super::acl::LIST_MAX;
use super::directory::{Found, LINKS_MAX, TREE_ROOT, check_name, dentry_len, drop_name, lock_dirs, spent};
use crate::cache::commit::{Change, commit, create_mask, lock_metas, new_core};
use crate::cache::inode::Inode;
use crate::cache::inodes::NewInode;
use crate::error::{Error, Result};
use crate::flags;
use crate::types::{Owner, RenameMode};
use kedge_base::broken::{self, Variant};
use kedge_base::{Ino, Timespec};
use kedge_format::item::Orphan;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{FileKind, ItemKind, Key};
use kedge_store::{Class, Handle, Need};
use smallvec::SmallVec;
use std::sync::Arc;

/// The deepest directory tree in which the walk to the root is followed.
const DEPTH_MAX: usize = 1 << 20;

/// One of the two names of a rename. Looked up with the directories locked.
pub(super) struct Side<'a> {
    pub dir: &'a Arc<Inode>,
    name: &'a [u8],
    found: Found,
    pub inode: Option<Arc<Inode>>,
}

/// The effect of a rename.
enum Renamed {
    /// None: both names refer to the same inode.
    Nothing,
    /// The name was moved. The replaced inode, if it lost its last name.
    Moved(Option<Ino>),
}

impl Side<'_> {
    fn is_dir(&self) -> bool {
        self.inode.as_ref().is_some_and(|i| i.is_dir())
    }

    fn key(&self) -> Key {
        Key::new(self.dir.ino, ItemKind::Dentry, self.found.at())
    }
}

impl Names {
    pub(crate) fn rename(
        &self,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        for name in [name, new_name] {
            if name == b"." || name == b".." {
                return Err(Error::Engine(kedge_base::Error::Busy("\".\" or \"..\"".into())));
            }
            check_name(name)?;
        }
        // Both directories and both inodes, both names, a whiteout, an orphan item.
        let need = Need::record(Class::Normal).patches(4).deletes(1).puts(1, dentry_len(name));
        let need = need.puts(1, dentry_len(new_name)).creates(1).puts(1, Orphan::SIZE);
        // A whiteout may inherit an access list.
        let inherits = matches!(mode, RenameMode::Whiteout { .. }) && self.has_acls();
        let need = need.puts(inherits as usize, LIST_MAX);
        let mut handle = self.engine.begin(need)?;
        let from_dir = self.inodes.get_dir(dir)?;
        let to_dir = self.inodes.get_dir(new_dir)?;
        if !self.engine.store().same_tree(dir, new_dir) {
            return Err(Error::CrossTree);
        }
        let shape = (dir != new_dir).then(|| self.shape.lock());
        // A directory that is replaced must be locked too, in the order of locks. It is known only
        // after a first lookup.
        let mut victim_dir: Option<Arc<Inode>> = None;
        loop {
            let mut dirs: SmallVec<[&Arc<Inode>; 4]> = SmallVec::from_slice(&[&from_dir, &to_dir]);
            dirs.extend(victim_dir.as_ref());
            let guards = lock_dirs(&dirs);
            let from = self.side(&from_dir, name)?;
            let to = self.side(&to_dir, new_name)?;
            if to.is_dir() && to.inode.as_ref().map(|i| i.ino) != victim_dir.as_ref().map(|i| i.ino) {
                let victim = to.inode.clone();
                drop((guards, dirs));
                victim_dir = victim;
                continue;
            }
            let Renamed::Moved(orphan) = self.rename_locked(&mut handle, &from, &to, mode)? else {
                return Ok(());
            };
            drop(handle);
            let price = self.price_of_rename(&from, &to, mode);
            let paid = self.pay_locked(price);
            // The rename is complete. The locks are released first, since a checkpoint, or a
            // deletion that has to free space, would hold up other operations.
            drop((guards, shape));
            let paid = paid.and_then(|()| self.pay_unlocked(price));
            // The old file has lost the name, even if its deletion fails.
            if let Some(ino) = orphan {
                self.files.orphaned(ino);
            }
            return paid;
        }
    }

    fn side<'a>(&self, dir: &'a Arc<Inode>, name: &'a [u8]) -> Result<Side<'a>> {
        let found = self.find(dir.ino, name)?;
        let inode = found.entry.map(|(ino, _)| self.inodes.get(ino)).transpose()?;
        Ok(Side { dir, name, found, inode })
    }

    fn rename_locked(
        &self,
        handle: &mut Handle<'_>,
        from: &Side<'_>,
        to: &Side<'_>,
        mode: RenameMode,
    ) -> Result<Renamed> {
        let Some(source) = &from.inode else { return Err(Error::NotFound) };
        if from.dir.meta.lock().core.nlink == 0 || to.dir.meta.lock().core.nlink == 0 {
            return Err(Error::NotFound);
        }
        match (mode, &to.inode) {
            (RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. }, Some(_)) => {
                return Err(Error::Exists);
            }
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (_, Some(target)) if target.ino == source.ino => return Ok(Renamed::Nothing),
            _ => {}
        }
        let store = self.engine.store();
        let is_root = |side: &Side<'_>| side.inode.as_ref().is_some_and(|i| store.is_tree_root(i.ino));
        if is_root(from) || is_root(to) {
            return Err(Error::Busy(TREE_ROOT));
        }
        let moves_between = from.dir.ino != to.dir.ino;
        if source.is_dir() && moves_between {
            self.check_not_below(source.ino, to.dir.ino)?;
        }
        if moves_between {
            self.check_limit(source, to.dir)?;
            if let Some(target) = to.inode.as_ref().filter(|_| mode == RenameMode::Exchange) {
                self.check_limit(target, from.dir)?;
            }
        }
        if mode == RenameMode::Exchange {
            if to.is_dir() && moves_between {
                let target = to.inode.as_ref().expect("exchange has both sides");
                self.check_not_below(target.ino, from.dir.ino)?;
            }
            self.exchange(handle, from, to)?;
            return Ok(Renamed::Moved(None));
        }
        let whiteout = match mode {
            RenameMode::Whiteout { owner, .. } => Some(owner),
            _ => None,
        };
        self.replace(handle, from, to, whiteout).map(Renamed::Moved)
    }

    /// Fails if a directory would move into itself or below itself. The caller holds the lock of
    /// the tree's shape.
    fn check_not_below(&self, moved: Ino, dir: Ino) -> Result<()> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == moved {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            at = self.inodes.get(at)?.meta.lock().core.parent;
        }
        Err(kedge_base::Error::corrupt(
            kedge_base::CorruptKind::Inode,
            kedge_base::BlockNo(0),
            format!("directory {dir} has no way to the root"),
        )
        .into())
    }

    /// Moves a name to a free name, or to that of a file that it replaces. Returns the replaced
    /// inode if it lost its last name. `whiteout`: owner of a whiteout under the old name.
    fn replace(
        &self,
        handle: &mut Handle<'_>,
        from: &Side<'_>,
        to: &Side<'_>,
        whiteout: Option<Owner>,
    ) -> Result<Option<Ino>> {
        let source = from.inode.as_ref().expect("checked by the caller");
        if let Some(target) = &to.inode {
            match (source.is_dir(), target.is_dir()) {
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                // Names of trees are not dentries, so the directory's size does not include them.
                (true, true) if !self.engine.store().trees_in(target.ino).is_empty() => {
                    return Err(Error::NotEmpty);
                }
                _ => {}
            }
        } else {
            to.found.for_new()?;
        }
        let now = self.engine.now();
        let mut inodes: SmallVec<[&Inode; 4]> = SmallVec::from_slice(&[&**from.dir, &**to.dir, &**source]);
        inodes.extend(to.inode.as_deref());
        let mut record = RecordBuilder::new(RecordOp::Rename);
        let left = whiteout.map(|owner| self.whiteout(&mut record, from, owner, now)).transpose()?;
        let number = left.as_ref().map_or(0, |left| left.meta.lock().core.limit);
        let mut changes = lock_metas(&inodes);
        if left.is_none() {
            record.delete(from.key());
        }
        self.put_dentry(&mut record, to.dir.ino, to.found.at(), source.ino, source.kind, to.name);
        let mut orphan = None;
        let victim = to.inode.as_ref().map(|i| i.ino);
        for c in &mut changes {
            let ino = c.inode.ino;
            // Broken on purpose: the replaced inode keeps its link count and becomes no orphan.
            if Some(ino) == victim && broken::is(Variant::ForgetRenameVictim) {
                continue;
            }
            if Some(ino) == victim || ino == source.ino {
                flags::check_change(&c.core)?;
            }
            if Some(ino) == victim {
                if c.inode.is_dir() && c.core.size != 0 {
                    return Err(Error::NotEmpty);
                }
                if drop_name(c, &mut record, now)? {
                    orphan = Some(ino);
                }
                continue;
            }
            if ino == source.ino {
                moved(c, from, to, now);
                continue;
            }
            if ino == from.dir.ino || victim.is_some() {
                flags::check_remove(&c.core)?;
            }
            flags::check_add(&c.core)?;
            // If both names are in the same directory, it gets both changes.
            let mut entries = 0i64;
            let mut links = 0i64;
            if ino == from.dir.ino {
                entries -= left.is_none() as i64;
                links -= source.is_dir() as i64;
            }
            if ino == to.dir.ino {
                entries += victim.is_none() as i64;
                links += source.is_dir() as i64 - to.is_dir() as i64;
            }
            change_dir(c, entries, links, now)?;
        }
        // The new inode's lock is the last in the order, since its number is higher than any in
        // use.
        let highest = changes.last().expect("at least a directory and the moved inode").inode.ino;
        let new_inode = left.as_ref().map(|left| NewInode::new(&self.inodes, highest, left)).transpose()?;
        let mut charge = self.charge_inode(handle, from.dir.ino, number)?;
        let lsn = commit(handle, record, &mut changes)?;
        spent(&mut charge);
        if let Some(new_inode) = new_inode {
            new_inode.created(lsn);
        }
        Ok(orphan)
    }

    /// Adds the whiteout under the old name. Its number is not from the directory's range: its lock
    /// is taken while those of the other inodes of the rename are held, so the number must be
    /// higher than theirs.
    fn whiteout(
        &self,
        record: &mut RecordBuilder,
        from: &Side<'_>,
        owner: Owner,
        now: Timespec,
    ) -> Result<Arc<Inode>> {
        const KIND: FileKind = FileKind::CharDevice;
        let ino = self.engine.store().take_inos(from.dir.ino, 1)?;
        let default = if self.may_inherit(from.dir) { self.default_list(from.dir)? } else { None };
        let mut core = new_core(&from.dir.meta.lock().core, 0, KIND, owner, now);
        if let Some(default) = default {
            self.inherit(default, ino, &mut core, record);
        }
        record.inode(ino, create_mask(&core), &core);
        self.put_dentry(record, from.dir.ino, from.found.at(), ino, KIND, from.name);
        Ok(Arc::new(Inode::new(ino, core, KIND, false, Default::default())))
    }

    fn exchange(&self, handle: &mut Handle<'_>, from: &Side<'_>, to: &Side<'_>) -> Result<()> {
        let source = from.inode.as_ref().expect("checked by the caller");
        let target = to.inode.as_ref().expect("checked by the caller");
        let now = self.engine.now();
        let mut changes = lock_metas(&[from.dir, to.dir, source, target]);
        let mut record = RecordBuilder::new(RecordOp::Rename);
        self.put_dentry(&mut record, from.dir.ino, from.found.at(), target.ino, target.kind, from.name);
        self.put_dentry(&mut record, to.dir.ino, to.found.at(), source.ino, source.kind, to.name);
        for c in &mut changes {
            let ino = c.inode.ino;
            if ino == source.ino {
                flags::check_change(&c.core)?;
                moved(c, from, to, now);
            } else if ino == target.ino {
                flags::check_change(&c.core)?;
                moved(c, to, from, now);
            } else {
                flags::check_remove(&c.core)?;
                let mut links = 0;
                if ino == from.dir.ino {
                    links += target.is_dir() as i64 - source.is_dir() as i64;
                }
                if ino == to.dir.ino {
                    links += source.is_dir() as i64 - target.is_dir() as i64;
                }
                change_dir(c, 0, links, now)?;
            }
        }
        commit(handle, record, &mut changes)?;
        Ok(())
    }
}

/// Changes the moved inode: its ctime, and for a directory its parent.
fn moved(c: &mut Change<'_>, from: &Side<'_>, to: &Side<'_>, now: Timespec) {
    c.set(InodeMask::CTIME, |core| core.ctime = now);
    if c.inode.is_dir() && from.dir.ino != to.dir.ino {
        let parent = to.dir.ino;
        c.set(InodeMask::PARENT, |core| core.parent = parent);
    }
}

fn change_dir(c: &mut Change<'_>, entries: i64, links: i64, now: Timespec) -> Result<()> {
    if links > 0 && c.core.nlink >= LINKS_MAX {
        return Err(Error::TooManyLinks);
    }
    c.touch(now);
    if entries != 0 {
        c.set(InodeMask::SIZE, |core| core.size = core.size.wrapping_add_signed(entries));
    }
    if links != 0 {
        c.set(InodeMask::NLINK, |core| core.nlink = core.nlink.wrapping_add_signed(links as i32));
    }
    Ok(())
}

#[cfg(test)]
#[path = "rename_tests.rs"]
mod tests;
