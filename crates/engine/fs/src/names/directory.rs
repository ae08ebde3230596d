//! Directories: lookup, create, link, unlink, rmdir, readdir. A directory's entries change under
//! its exclusive io lock.

use super::Names;
use super::acl::LIST_MAX;
use super::slots::{self, Slot};
use crate::cache::commit::{Change, commit, commit_only, create_mask, lock_metas, new_core};
use crate::cache::inode::Inode;
use crate::cache::inodes::NewInode;
use crate::data::orphans::Named;
use crate::error::{Error, Result};
use crate::flags;
use crate::types::{Attr, DirEntry, Owner};
use kedge_base::lock::WriteGuard;
use kedge_base::{CorruptKind, Ino, Timespec};
use kedge_format::item::{Dentry, NAME_MAX, Orphan, SLOT_ORDINALS, SYMLINK_MAX, name_slot};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{FileKind, ItemKind, Key};
use kedge_store::{Charge, Class, Handle, Need};
use smallvec::SmallVec;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The most names of one inode.
pub(super) const LINKS_MAX: u32 = 65_000;
/// Cookies of "." and "..". The cookie of any other entry is its slot, which is larger.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// The need of a removal of a name: the entry, both inodes, and an orphan item if it was the last
/// name.
const UNLINK: Need = Need::record(Class::Reclaim).deletes(1).patches(2).puts(1, Orphan::SIZE);

/// The error if the root of a tree is removed or moved like a directory.
pub(super) const TREE_ROOT: &str = "the directory is the root of a tree";

/// Bytes of the item of a name.
pub(super) fn dentry_len(name: &[u8]) -> usize {
    Dentry::encoded_len(name.len())
}

/// The inode and type that a name refers to, or the slot for a new name.
pub(super) type Found = Slot<(Ino, FileKind)>;

pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, 0 | b'/')) {
        return Err(Error::Invalid("impossible file name"));
    }
    Ok(())
}

/// Checks the target of a symbolic link; that of other inodes is empty.
fn check_link_target(target: &[u8]) -> Result<()> {
    if target.len() > SYMLINK_MAX {
        return Err(Error::NameTooLong);
    }
    // readlink(2) ends at a NUL, and fsck finds such a target damaged.
    if target.contains(&0) { Err(Error::Invalid("a NUL in the target of a symbolic link")) } else { Ok(()) }
}

/// The parameters of create, mkdir, mknod and symlink.
pub(crate) struct Make<'a> {
    pub kind: FileKind,
    pub mode: u32,
    pub rdev: u64,
    pub target: &'a [u8],
    pub owner: Owner,
}

/// Where the number of a new inode comes from.
#[derive(Clone, Copy)]
enum Number {
    Next,
    /// The caller gives the number, within the tree of the directory. The caller ensures that no
    /// other inode of the tree is made meanwhile.
    Given(Ino),
}

impl Names {
    /// Looks up a name. The caller holds the directory's io lock.
    pub(super) fn find(&self, dir: Ino, name: &[u8]) -> Result<Found> {
        let store = self.engine.store();
        let mut found = slots::find(store, dir, ItemKind::Dentry, name, |value| {
            let entry = Dentry::decode(value)?;
            Ok((entry.name == name).then(|| (store.named_by(dir, entry.ino), entry.kind)))
        })?;
        if found.entry.is_none() {
            found.entry = self.tree_named(dir, name).map(|root| (root, FileKind::Directory));
        }
        Ok(found)
    }

    /// The root inode of the tree with this name in the directory. Names of trees are not items of
    /// the directory.
    pub(crate) fn tree_named(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.engine.store().tree_named(dir, name)
    }

    /// See [`crate::FileSystem::path_of`].
    pub(crate) fn path_of(&self, dir: Ino) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        // No directory is visited twice, so a circle in a corrupt image ends the loop.
        let mut visited = std::collections::BTreeSet::new();
        let mut at = dir;
        while at != Ino::ROOT && visited.insert(at) {
            let parent = self.lookup(at, b"..")?.ino;
            let mut found = None;
            self.readdir(parent, DOT_DOT, &mut |entry| {
                if entry.ino == at {
                    found = Some(entry.name.to_vec());
                }
                found.is_none()
            })?;
            names.push(found.ok_or(Error::NotFound)?);
            at = parent;
        }
        if at != Ino::ROOT {
            return Err(self.dangling(dir, at));
        }
        names.push(Vec::new());
        names.reverse();
        Ok(if names.len() == 1 { b"/".to_vec() } else { names.join(&b'/') })
    }

    /// Fails if the directory has the name, if the name is impossible, or if the directory was
    /// removed.
    pub(crate) fn check_free(&self, dir: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let dir = self.inodes.get_dir(dir)?;
        let _io = dir.io.read();
        if dir.meta.lock().core.nlink == 0 {
            return Err(Error::NotFound);
        }
        flags::check_add(&dir.meta.lock().core)?;
        if self.find(dir.ino, name)?.entry.is_some() { Err(Error::Exists) } else { Ok(()) }
    }

    pub(super) fn put_dentry(
        &self,
        record: &mut RecordBuilder,
        dir: Ino,
        slot: u64,
        ino: Ino,
        kind: FileKind,
        name: &[u8],
    ) {
        let ino = self.engine.store().in_item(ino);
        record.put(Key::new(dir, ItemKind::Dentry, slot), &Dentry { ino, kind, name }.encode());
    }

    /// The slot for a new name. Fails if the name exists.
    fn find_free(&self, dir: Ino, name: &[u8]) -> Result<u64> {
        let found = self.find(dir, name)?;
        if found.entry.is_some() { Err(Error::Exists) } else { found.for_new() }
    }

    pub(crate) fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let dir = self.inodes.get_dir(dir)?;
        match name {
            b"." => return self.shown(&dir),
            b".." => {
                let parent = dir.meta.lock().core.parent;
                return self.shown(&*self.inodes.get(parent)?);
            }
            _ if name.len() > NAME_MAX => return Err(Error::NameTooLong),
            _ => {}
        }
        let _io = dir.io.read();
        let Some((ino, kind)) = self.find(dir.ino, name)?.entry else { return Err(Error::NotFound) };
        let inode = self.inodes.get(ino).map_err(|e| match e {
            Error::NotFound => self.dangling(dir.ino, ino),
            e => e,
        })?;
        if inode.kind != kind {
            return Err(self.dangling(dir.ino, ino));
        }
        self.shown(&inode)
    }

    fn dangling(&self, dir: Ino, ino: Ino) -> Error {
        kedge_base::Error::corrupt(
            CorruptKind::Dentry,
            kedge_base::BlockNo(0),
            format!("directory {dir} names inode {ino}, which does not exist or is of another type"),
        )
        .into()
    }

    /// Reserves for a new entry of a directory, and locks the directory. The result says whether
    /// the entry may inherit access control lists. That is checked before the lock, because it
    /// decides how much is reserved. If a default list is set in between, the call reserves again.
    fn begin_in<'a>(&'a self, dir: &'a Inode, need: Need) -> Result<(Handle<'a>, WriteGuard<'a, ()>, bool)> {
        if self.may_inherit(dir) {
            // Rarely a directory has a default list. If there is none, `default_list` notes that in
            // the inode.
            let _io = dir.io.read();
            self.default_list(dir)?;
        }
        if !self.may_inherit(dir) {
            let handle = self.engine.begin(need)?;
            let io = dir.io.write();
            if !self.may_inherit(dir) {
                return Ok((handle, io, false));
            }
        }
        let handle = self.engine.begin(need.puts(2, LIST_MAX))?;
        Ok((handle, dir.io.write(), true))
    }

    pub(crate) fn make(&self, dir: Ino, name: &[u8], make: &Make<'_>) -> Result<Attr> {
        self.make_as(Number::Next, dir, name, make)
    }

    /// [`Names::make`] with an inode number that the caller chooses. No other inode of the tree may
    /// be made meanwhile.
    pub(crate) fn make_numbered(&self, ino: Ino, dir: Ino, name: &[u8], make: &Make<'_>) -> Result<Attr> {
        self.make_as(Number::Given(ino), dir, name, make)
    }

    fn make_as(&self, number: Number, dir: Ino, name: &[u8], make: &Make<'_>) -> Result<Attr> {
        check_name(name)?;
        check_link_target(make.target)?;
        let dir = self.inodes.get_dir(dir)?;
        let need = Need::record(Class::Normal).patches(1).creates(1).puts(1, dentry_len(name));
        let need = if make.target.is_empty() { need } else { need.puts(1, make.target.len()) };
        let (mut handle, _io, inherits) = self.begin_in(&dir, need)?;
        let slot = self.find_free(dir.ino, name)?;
        let now = self.engine.now();
        let default = if inherits { self.default_list(&dir)? } else { None };
        let mut changes = lock_metas(&[&dir]);
        let parent = &mut changes[0];
        if parent.meta.core.nlink == 0 {
            return Err(Error::NotFound);
        }
        flags::check_add(&parent.core)?;
        let ino = match number {
            Number::Next => self.inodes.new_ino(dir.ino, &mut parent.meta)?,
            Number::Given(ino) if self.engine.store().get(Key::inode(ino))?.is_some() => {
                return Err(Error::Exists);
            }
            Number::Given(ino) => ino,
        };
        let mut core = new_core(&parent.core, make.mode, make.kind, make.owner, now);
        core.rdev = make.rdev;
        let mut record = RecordBuilder::new(RecordOp::Create);
        parent.touch(now);
        parent.set(InodeMask::SIZE, |c| c.size += 1);
        match make.kind {
            FileKind::Directory => {
                core.nlink = 2;
                core.parent = dir.ino;
                if parent.core.nlink >= LINKS_MAX {
                    return Err(Error::TooManyLinks);
                }
                parent.set(InodeMask::NLINK, |c| c.nlink += 1);
            }
            FileKind::Symlink => {
                core.size = make.target.len() as u64;
                record.put(Key::new(ino, ItemKind::Symlink, 0), make.target);
            }
            _ => {}
        }
        if let Some(default) = default {
            self.inherit(default, ino, &mut core, &mut record);
        }
        record.inode(ino, create_mask(&core), &core);
        self.put_dentry(&mut record, dir.ino, slot, ino, make.kind, name);
        let geometry = self.engine.store().geometry();
        let inode = Inode::new(ino, core, make.kind, geometry.sums_data(&core), Default::default());
        let inode = Arc::new(inode.with_inline(geometry.inline_max));
        let new_inode = NewInode::new(&self.inodes, dir.ino, &inode)?;
        let mut charge = self.charge_inode(&mut handle, dir.ino, core.limit)?;
        new_inode.created(commit_only(handle, record, &mut changes)?);
        spent(&mut charge);
        Ok(Attr::from_core(ino, &core, make.kind))
    }

    /// Creates an inode without a name, of any kind but a directory: it is an orphan until it is
    /// linked. Returns it with one pin.
    pub(crate) fn make_nameless(&self, dir: Ino, make: &Make<'_>) -> Result<Attr> {
        check_link_target(make.target)?;
        let need = Need::record(Class::Normal).creates(1).puts(1, Orphan::SIZE);
        let need = if make.target.is_empty() { need } else { need.puts(1, make.target.len()) };
        let mut handle = self.engine.begin(need.puts(self.has_acls() as usize, LIST_MAX))?;
        let dir = self.inodes.get_dir(dir)?;
        let _io = dir.io.read();
        let default = if self.may_inherit(&dir) { self.default_list(&dir)? } else { None };
        let now = self.engine.now();
        let mut meta = dir.meta.lock();
        if meta.core.nlink == 0 {
            return Err(Error::NotFound);
        }
        flags::check_add(&meta.core)?;
        let ino = self.inodes.new_ino(dir.ino, &mut meta)?;
        let parent = meta.core;
        drop(meta);
        let mut core = new_core(&parent, make.mode, make.kind, make.owner, now);
        core.nlink = 0;
        core.rdev = make.rdev;
        let mut record = RecordBuilder::new(RecordOp::Create);
        if make.kind == FileKind::Symlink {
            core.size = make.target.len() as u64;
            record.put(Key::new(ino, ItemKind::Symlink, 0), make.target);
        }
        if let Some(default) = default {
            self.inherit(default, ino, &mut core, &mut record);
        }
        record.inode(ino, create_mask(&core), &core);
        record.put(Key::orphan(ino), &Orphan::Unlinked.encode());
        let geometry = self.engine.store().geometry();
        let inode = Inode::new(ino, core, make.kind, geometry.sums_data(&core), Default::default());
        let inode = Arc::new(inode.with_inline(geometry.inline_max));
        let new_inode = NewInode::new(&self.inodes, dir.ino, &inode)?;
        let mut charge = self.charge_inode(&mut handle, dir.ino, core.limit)?;
        self.inodes.pin(ino);
        self.files.orphans().add(ino, Named::Later);
        new_inode.created(handle.commit(record).inspect_err(|_| {
            self.inodes.unpin(ino, 1);
            self.files.orphans().remove(ino);
        })?);
        spent(&mut charge);
        Ok(Attr::from_core(ino, &core, make.kind))
    }

    /// Charges a limit for a new inode in the tree of `dir`. The next record of the handle spends
    /// the charge. `None` without a limit.
    pub(super) fn charge_inode(
        &self,
        handle: &mut Handle<'_>,
        dir: Ino,
        number: u32,
    ) -> Result<Option<Charge>> {
        if number == 0 {
            return Ok(None);
        }
        let store = self.engine.store();
        let charge = store.charge_inode(store.limit_id(dir, number)).ok_or(Error::OverLimit)?;
        handle.spend(charge.all());
        Ok(Some(charge))
    }

    /// Checks that a name of `child` in `dir` would count for the same limit as before. A directory
    /// with a limit of its own may have its name anywhere inside the limit that contains its own.
    pub(super) fn check_limit(&self, child: &Inode, dir: &Inode) -> Result<()> {
        let limit = child.meta.lock().core.limit;
        let around = dir.meta.lock().core.limit;
        if limit == around {
            return Ok(());
        }
        let store = self.engine.store();
        let own = store.limit_of_dir(child.ino).filter(|_| child.is_dir());
        match own.and_then(|id| store.limit(id)) {
            Some(own) if own.id.number == limit && own.entry.parent == around => Ok(()),
            _ => Err(Error::CrossLimit),
        }
    }

    pub(crate) fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inodes.get(ino)?;
        if inode.kind != FileKind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let target = self.engine.store().get(Key::new(ino, ItemKind::Symlink, 0))?.ok_or(Error::NotFound)?;
        self.files.accessed(&inode);
        Ok(target)
    }

    pub(crate) fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.link_to(ino, dir, name, false)?;
        self.inodes.get(ino)?.attr()
    }

    /// [`Names::link`] that takes the name from another file, in the same record: no crash leaves
    /// the directory without the name. Returns the file that lost the name.
    pub(crate) fn link_over(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        self.link_to(ino, dir, name, true)
    }

    fn link_to(&self, ino: Ino, dir: Ino, name: &[u8], replaces: bool) -> Result<Option<Ino>> {
        check_name(name)?;
        // Patches of directory and inode, the name, the orphan item of a nameless inode; and the
        // file that loses the name.
        let need = Need::record(Class::Normal).patches(2).puts(1, dentry_len(name)).puts(1, Orphan::SIZE);
        let need = if replaces { need.patches(1).puts(1, Orphan::SIZE) } else { need };
        let handle = self.engine.begin(need)?;
        let dir = self.inodes.get_dir(dir)?;
        let child = self.inodes.get(ino)?;
        if child.is_dir() {
            return Err(Error::NotPermitted("hard link to a directory"));
        }
        if !self.engine.store().same_tree(ino, dir.ino) {
            return Err(Error::CrossTree);
        }
        self.check_limit(&child, &dir)?;
        let io = dir.io.write();
        let found = self.find(dir.ino, name)?;
        let victim = match found.entry {
            None => None,
            Some(_) if !replaces => return Err(Error::Exists),
            Some((_, FileKind::Directory)) => return Err(Error::IsDirectory),
            Some((there, _)) if there == ino => return Ok(None),
            Some((there, _)) => Some(self.inodes.get(there)?),
        };
        let slot = if victim.is_some() { found.at() } else { found.for_new()? };
        let now = self.engine.now();
        let mut inodes: SmallVec<[&Inode; 3]> = SmallVec::from_slice(&[&*dir, &*child]);
        inodes.extend(victim.as_deref());
        let mut changes = lock_metas(&inodes);
        let mut record = RecordBuilder::new(RecordOp::Link);
        let mut orphaned = false;
        for c in &mut changes {
            if c.inode.ino == dir.ino {
                name_in(c, victim.is_some(), now)?;
            } else if c.inode.ino == ino {
                self.add_link(c, &mut record, now)?;
            } else {
                flags::check_change(&c.core)?;
                orphaned = drop_name(c, &mut record, now)?;
            }
        }
        self.put_dentry(&mut record, dir.ino, slot, ino, child.kind, name);
        commit_only(handle, record, &mut changes)?;
        self.files.orphans().remove(ino);
        drop(changes);
        let price = self.price_of_link(&child, &dir);
        let paid = self.pay_locked(price);
        drop(io);
        let paid = paid.and_then(|()| self.pay_unlocked(price));
        // The old file has lost the name, even if its deletion fails.
        let victim = victim.as_ref().map(|victim| victim.ino);
        if let Some(victim) = victim.filter(|_| orphaned) {
            self.files.orphaned(victim);
        }
        paid.map(|()| victim)
    }

    /// Adds a name to the link count of a file that is not a directory.
    fn add_link(&self, c: &mut Change<'_>, record: &mut RecordBuilder, now: Timespec) -> Result<()> {
        let ino = c.inode.ino;
        if c.meta.dead {
            return Err(Error::NotFound);
        }
        flags::check_change(&c.core)?;
        if c.core.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        if c.core.nlink == 0 {
            // Only an inode created without a name (O_TMPFILE) may get its first name. An unlinked
            // file stays unlinked.
            if !self.files.orphans().may_get_name(ino) {
                return Err(Error::NotFound);
            }
            // The orphan item stays if a truncate is unfinished, since the file will not be deleted
            // now.
            if c.meta.shrinking {
                record.put(Key::orphan(ino), &Orphan::Truncate.encode());
            } else {
                record.delete(Key::orphan(ino));
            }
        }
        c.set(InodeMask::NLINK | InodeMask::CTIME, |core| {
            core.nlink += 1;
            core.ctime = now;
        });
        Ok(())
    }

    pub(crate) fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let handle = self.engine.begin(UNLINK)?;
        let dir = self.inodes.get_dir(dir)?;
        let io = dir.io.write();
        let found = self.find(dir.ino, name)?;
        let Some((ino, kind)) = found.entry else { return Err(Error::NotFound) };
        if kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        let child = self.inodes.get(ino)?;
        let now = self.engine.now();
        let mut changes = lock_metas(&[&dir, &child]);
        let mut record = RecordBuilder::new(RecordOp::Unlink);
        record.delete(Key::new(dir.ino, ItemKind::Dentry, found.at()));
        let mut orphaned = false;
        for c in &mut changes {
            if c.inode.ino == dir.ino {
                flags::check_remove(&c.core)?;
                c.touch(now);
                c.set(InodeMask::SIZE, |core| core.size = core.size.saturating_sub(1));
                continue;
            }
            flags::check_change(&c.core)?;
            orphaned = drop_name(c, &mut record, now)?;
        }
        commit_only(handle, record, &mut changes)?;
        drop(changes);
        drop(io);
        if orphaned {
            self.files.orphaned(ino);
        }
        Ok(())
    }

    pub(crate) fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        if name == b"." {
            return Err(Error::Invalid("rmdir of \".\""));
        }
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        check_name(name)?;
        let mut handle = self.engine.begin(UNLINK)?;
        let dir = self.inodes.get_dir(dir)?;
        loop {
            // The child is looked up without its lock, and again under both locks, since locks are
            // taken in ascending order of inode numbers.
            let child = {
                let _io = dir.io.read();
                match self.find(dir.ino, name)?.entry {
                    None => return Err(Error::NotFound),
                    Some((_, kind)) if kind != FileKind::Directory => return Err(Error::NotDirectory),
                    Some((ino, _)) => self.inodes.get(ino)?,
                }
            };
            let guards = lock_dirs(&[&dir, &child]);
            let found = self.find(dir.ino, name)?;
            if found.entry != Some((child.ino, FileKind::Directory)) {
                continue;
            }
            if self.engine.store().is_tree_root(child.ino) {
                return Err(Error::Busy(TREE_ROOT));
            }
            if !self.engine.store().trees_in(child.ino).is_empty() {
                return Err(Error::NotEmpty);
            }
            self.rmdir_locked(&mut handle, &dir, &child, found.at())?;
            self.inherit_marks(&child, &dir);
            drop(guards);
            drop(handle);
            self.files.orphaned(child.ino);
            return Ok(());
        }
    }

    fn rmdir_locked(&self, handle: &mut Handle<'_>, dir: &Inode, child: &Inode, slot: u64) -> Result<()> {
        let now = self.engine.now();
        let mut changes = lock_metas(&[dir, child]);
        let mut record = RecordBuilder::new(RecordOp::Unlink);
        record.delete(Key::new(dir.ino, ItemKind::Dentry, slot));
        for c in &mut changes {
            if c.inode.ino == dir.ino {
                flags::check_remove(&c.core)?;
                c.touch(now);
                c.set(InodeMask::SIZE | InodeMask::NLINK, |core| {
                    core.size = core.size.saturating_sub(1);
                    core.nlink = core.nlink.saturating_sub(1);
                });
                continue;
            }
            flags::check_change(&c.core)?;
            if c.core.size != 0 {
                return Err(Error::NotEmpty);
            }
            drop_name(c, &mut record, now)?;
        }
        commit(handle, record, &mut changes)?;
        Ok(())
    }

    pub(crate) fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.inodes.get_dir(dir)?;
        let _io = dir.io.read();
        let (parent, nlink) = {
            let meta = dir.meta.lock();
            (meta.core.parent, meta.core.nlink)
        };
        if nlink == 0 {
            return Ok(()); // removed but still open, so empty
        }
        self.files.accessed(&dir);
        let dots: [(u64, &[u8], Ino); 2] = [(DOT, b".", dir.ino), (DOT_DOT, b"..", parent)];
        for (at, name, ino) in dots {
            let entry = DirEntry { ino, kind: FileKind::Directory, name, cookie: at };
            if cookie < at && !visit(entry) {
                return Ok(());
            }
        }
        let from = Key::new(dir.ino, ItemKind::Dentry, cookie.saturating_add(1).max(SLOT_ORDINALS));
        let to = Key::new(dir.ino, ItemKind::Dentry, u64::MAX);
        let store = self.engine.store();
        let mut trees = self.tree_slots(dir.ino, cookie);
        let mut bad = None;
        let mut ended = false;
        store.scan(from, to, &mut |key, value| {
            while let Some(tree) = trees.pop_if(|(slot, ..)| *slot < key.offset) {
                if !visit(tree_entry(&tree)) {
                    ended = true;
                    return ControlFlow::Break(());
                }
            }
            match Dentry::decode(value) {
                Ok(d) => {
                    let ino = store.named_by(dir.ino, d.ino);
                    ended = !visit(DirEntry { ino, kind: d.kind, name: d.name, cookie: key.offset });
                }
                Err(e) => bad = Some(e),
            }
            if ended || bad.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(e) = bad {
            return Err(e.into());
        }
        while !ended && let Some(tree) = trees.pop() {
            ended = !visit(tree_entry(&tree));
        }
        Ok(())
    }

    /// The trees whose names are in a directory, with slots above `cookie`: slot, root and name,
    /// lowest slot last. A tree's slot serves only as a cookie. It is one of the last slots of the
    /// name's hash, which entries use last.
    fn tree_slots(&self, dir: Ino, cookie: u64) -> Vec<(u64, Ino, Vec<u8>)> {
        let store = self.engine.store();
        let seed = store.geometry().hash_seed;
        let mut trees: Vec<_> = store
            .trees_in(dir)
            .into_iter()
            .map(|(root, name)| (name_slot(&seed, &name) + SLOT_ORDINALS - 1, root, name))
            .collect();
        trees.sort_unstable_by(|a, b| b.cmp(a));
        for i in 1..trees.len() {
            trees[i].0 = trees[i].0.min(trees[i - 1].0 - 1);
        }
        trees.retain(|(slot, ..)| *slot > cookie);
        trees
    }
}

/// Ends a charge of an inode, after the record that spends it.
pub(super) fn spent(charge: &mut Option<Charge>) {
    if let Some(charge) = charge {
        charge.spent(0, 1);
    }
}

fn tree_entry((slot, ino, name): &(u64, Ino, Vec<u8>)) -> DirEntry<'_> {
    DirEntry { ino: *ino, kind: FileKind::Directory, name, cookie: *slot }
}

/// Takes the io locks of several directories exclusively, in ascending order. Each directory is
/// locked once.
pub(super) fn lock_dirs<'a>(dirs: &[&'a Arc<Inode>]) -> SmallVec<[WriteGuard<'a, ()>; 4]> {
    let mut sorted: SmallVec<[&'a Arc<Inode>; 4]> = dirs.into();
    sorted.sort_by_key(|i| i.ino);
    sorted.dedup_by_key(|i| i.ino);
    sorted.into_iter().map(|i| i.io.write()).collect()
}

/// The change of a directory by a link. `taken`: the name exists, and another file loses it.
fn name_in(c: &mut Change<'_>, taken: bool, now: Timespec) -> Result<()> {
    if c.core.nlink == 0 {
        return Err(Error::NotFound);
    }
    if taken {
        flags::check_remove(&c.core)?;
    }
    flags::check_add(&c.core)?;
    c.touch(now);
    if !taken {
        c.set(InodeMask::SIZE, |core| core.size = core.size.saturating_add(1));
    }
    Ok(())
}

/// Removes one name from the link count of an inode. Returns whether it was the last name: the same
/// record then makes the inode an orphan.
pub(super) fn drop_name(c: &mut Change<'_>, record: &mut RecordBuilder, now: Timespec) -> Result<bool> {
    let last = c.inode.is_dir() || c.core.nlink == 1;
    if c.core.nlink == 0 {
        let what = format!("inode {} is named and has a link count of 0", c.inode.ino);
        return Err(kedge_base::Error::corrupt(CorruptKind::Inode, kedge_base::BlockNo(0), what).into());
    }
    c.set(InodeMask::NLINK | InodeMask::CTIME, |core| {
        core.nlink = if last { 0 } else { core.nlink - 1 };
        core.ctime = now;
    });
    if last {
        record.put(Key::orphan(c.inode.ino), &Orphan::Unlinked.encode());
    }
    Ok(last)
}
