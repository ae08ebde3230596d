//! The reference model: a plain file system in memory that defines the result of every operation,
//! errno included.
//!
//! Inodes have the model's own numbers; names are (directory, name) → inode. A copy shares all
//! inodes that do not change afterwards, so a history keeps one version per operation.
//!
//! Where POSIX and Linux leave the result open (extended user attributes of a fifo, reading a
//! device), the operation is *unspecified*: [`Model::apply`] returns `None`, and the caller that
//! drives both sides skips it. If several errors apply, the one that Linux reports comes first and
//! the others are allowed.

mod trees;

use crate::content::{CHUNK, Content};
use crate::ops::{
    AclBits, Falloc, OWNER, Op, Outcome, RDEV, Rename, Special, Target, XattrFlag, acl_bytes, acl_name,
    components, errno, split, stamp,
};
use kedge_format::item::{FILE_SIZE_MAX, NAME_MAX, SYMLINK_MAX, XATTR_VALUE_MAX};
use kedgefs::{FileFlags, FileKind, Timespec};
use std::collections::BTreeMap;
use std::sync::Arc;

pub use trees::Limit;

/// The model's inode number.
pub type Id = u64;

pub const ROOT: Id = 1;

/// An inode of the model.
#[derive(Clone, Debug)]
pub struct Inode {
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub flags: FileFlags,
    pub nlink: u32,
    /// The last name was removed, so the inode cannot get another (a new nameless file can).
    pub dead: bool,
    pub content: Content,
    pub entries: BTreeMap<String, Id>,
    /// For a directory: its parent.
    pub parent: Id,
    pub target: String,
    /// The root of its tree.
    pub tree: Id,
    /// The limit of a directory.
    pub limit: Option<Limit>,
    pub xattrs: BTreeMap<String, String>,
    /// The access control list, which is also one of `xattrs`; and a directory's default list.
    pub access: Option<AclBits>,
    pub default: Option<AclBits>,
    /// Times where they are known: set explicitly or [learned](Model::learn_times), and unchanged
    /// since.
    pub atime: Option<Timespec>,
    pub mtime: Option<Timespec>,
    pub ctime: Option<Timespec>,
}

/// The list with the classes of a mode.
fn with_perm([_, user, group, ..]: AclBits, perm: u32) -> AclBits {
    let class = |shift: u32| (perm >> shift & 7) as u16;
    [class(6), user, group, class(3), class(0)]
}

impl Inode {
    fn new(kind: FileKind, perm: u32) -> Inode {
        Inode {
            kind,
            perm: perm & 0o7777,
            uid: OWNER.uid,
            gid: OWNER.gid,
            rdev: 0,
            flags: FileFlags::default(),
            nlink: 1,
            dead: false,
            content: Content::default(),
            entries: BTreeMap::new(),
            parent: 0,
            target: String::new(),
            tree: ROOT,
            limit: None,
            xattrs: BTreeMap::new(),
            access: None,
            default: None,
            atime: None,
            mtime: None,
            ctime: None,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Sets this list; the mode follows.
    fn set_acl(&mut self, default: bool, list: AclBits) {
        let text = String::from_utf8_lossy(&acl_bytes(list)).into_owned();
        self.xattrs.insert(acl_name(default).to_owned(), text);
        if default {
            self.default = Some(list);
            return;
        }
        self.access = Some(list);
        let [owner, _, _, mask, others] = list.map(u32::from);
        self.perm = self.perm & 0o7000 | owner << 6 | mask << 3 | others;
    }

    /// Sets this mode; the list follows.
    fn set_perm(&mut self, perm: u32) {
        self.perm = perm & 0o7777;
        if let Some(list) = self.access {
            self.set_acl(false, with_perm(list, perm));
        }
    }

    /// Inherits this default list of the parent directory.
    fn inherit(&mut self, list: AclBits) {
        if self.kind == FileKind::Symlink {
            return;
        }
        if self.is_dir() {
            self.set_acl(true, list);
        }
        let [owner, _, _, mask, others] = list.map(u32::from);
        self.set_acl(false, with_perm(list, self.perm & (owner << 6 | mask << 3 | others)));
    }

    pub fn is_file(&self) -> bool {
        self.kind == FileKind::Regular
    }

    /// st_size: bytes of a file, length of a target, entries of a directory.
    pub fn size(&self) -> u64 {
        match self.kind {
            FileKind::Regular => self.content.size(),
            FileKind::Directory => self.entries.len() as u64,
            FileKind::Symlink => self.target.len() as u64,
            _ => 0,
        }
    }
}

/// A change of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataChange {
    pub id: Id,
    /// Offsets whose bytes may have changed.
    pub from: u64,
    pub to: u64,
    /// The operation sets the size as part of the sequence (truncate, fallocate).
    pub sets_size: bool,
    /// A plain write extended the file.
    pub grew: bool,
}

/// What an operation makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    Inode { id: Id, datasync: bool },
    All,
}

/// The effect of an operation, as far as the crash oracle needs it.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    /// Whether it has a place in the sequence of metadata operations. Plain writes have none.
    pub ordered: bool,
    /// Whether an fdatasync of the touched inodes must make it durable.
    pub datasync: bool,
    /// Inodes whose fsync must make it durable.
    pub touched: Vec<Id>,
    pub data: Option<DataChange>,
    pub persist: Option<Persist>,
}

/// The expected result.
#[derive(Clone, Debug)]
pub struct Applied {
    pub outcome: Outcome,
    /// Other errno values that are also correct.
    pub or: Vec<i32>,
    pub effect: Effect,
}

impl Applied {
    pub fn allows(&self, outcome: &Outcome) -> bool {
        *outcome == self.outcome || matches!(outcome, Outcome::Failed(e) if self.or.contains(e))
    }
}

/// Why the model has no [`Applied`] with success.
enum No {
    /// The first is what Linux returns.
    Errno(Vec<i32>),
    Unspecified,
}

impl From<i32> for No {
    fn from(errno: i32) -> No {
        No::Errno(vec![errno])
    }
}

type Answer = Result<(Outcome, Effect), No>;

/// The reference file system.
#[derive(Clone, Debug)]
pub struct Model {
    inodes: BTreeMap<Id, Arc<Inode>>,
    handles: BTreeMap<u8, Id>,
    next: Id,
}

impl Default for Model {
    fn default() -> Self {
        Model::new()
    }
}

impl Model {
    /// A fresh image: only a root directory.
    pub fn new() -> Model {
        let mut root = Inode::new(FileKind::Directory, 0o755);
        root.nlink = 2;
        root.parent = ROOT;
        (root.uid, root.gid) = (0, 0);
        Model { inodes: BTreeMap::from([(ROOT, Arc::new(root))]), handles: BTreeMap::new(), next: ROOT + 1 }
    }

    /// A model that holds what was found on an image; `inodes` must be consistent.
    pub(crate) fn from_inodes(inodes: BTreeMap<Id, Arc<Inode>>) -> Model {
        let next = inodes.keys().next_back().map_or(ROOT, |id| id + 1);
        Model { inodes, handles: BTreeMap::new(), next }
    }

    pub fn inode(&self, id: Id) -> Option<&Inode> {
        self.inodes.get(&id).map(|inode| &**inode)
    }

    pub fn handles(&self) -> &BTreeMap<u8, Id> {
        &self.handles
    }

    /// Reads may have updated atimes (relatime), so they are unknown from here on.
    pub fn forget_atimes(&mut self) {
        for inode in self.inodes.values_mut().filter(|inode| inode.atime.is_some()) {
            Arc::make_mut(inode).atime = None;
        }
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

    /// The inode's data, mapping or entries changed.
    fn modified(&mut self, id: Id) {
        let inode = self.edit(id);
        (inode.mtime, inode.ctime) = (None, None);
    }

    /// The inode's attributes changed.
    fn changed(&mut self, id: Id) {
        self.edit(id).ctime = None;
    }

    /// Reads the times that the last operation set, which the file system takes from its clock.
    /// From here on they may not change without an operation. Call it after each operation, or
    /// never. Inodes without a name are left out.
    ///
    /// # Errors
    /// A ctime outside `from..=to`: it cannot be set by a caller, so it must come from the clock.
    pub fn learn_times(
        &mut self,
        (from, to): (Timespec, Timespec),
        attr: impl Fn(&str) -> Result<kedgefs::Attr, String>,
    ) -> Result<(), String> {
        for (path, id) in self.paths() {
            let inode = self.get(id);
            if inode.mtime.is_some() && inode.ctime.is_some() {
                continue;
            }
            let found = attr(&path)?;
            let inode = self.edit(id);
            inode.mtime.get_or_insert(found.mtime);
            inode.ctime.get_or_insert(found.ctime);
            if !(from..=to).contains(&found.ctime) {
                return Err(format!(
                    "{path}: ctime {:?}, the clock went from {from:?} to {to:?}",
                    found.ctime
                ));
            }
        }
        Ok(())
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

    /// The directory and name of something to be made.
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

    /// Runs the operation. `None`: unspecified, nothing changed.
    pub fn apply(&mut self, op: &Op) -> Option<Applied> {
        match self.run_permitted(op) {
            Ok((outcome, effect)) => Some(Applied { outcome, or: Vec::new(), effect }),
            Err(No::Errno(errors)) => {
                Some(Applied { outcome: Outcome::Failed(errors[0]), or: errors, effect: Effect::default() })
            }
            Err(No::Unspecified) => None,
        }
    }

    /// An operation that flags forbid returns EPERM, or another error that also applies.
    fn run_permitted(&mut self, op: &Op) -> Answer {
        if !self.is_forbidden(op).unwrap_or(false) {
            return self.run(op);
        }
        match self.clone().run(op) {
            Ok(_) => Err(errno::EPERM.into()),
            Err(No::Errno(mut errors)) => {
                errors.push(errno::EPERM);
                Err(No::Errno(errors))
            }
            Err(No::Unspecified) => Err(No::Unspecified),
        }
    }

    /// Whether the inode's flags forbid the operation. `Err`: it names something that does not
    /// exist.
    fn is_forbidden(&self, op: &Op) -> Result<bool, No> {
        const FIXED: FileFlags = FileFlags::IMMUTABLE;
        let either = FIXED | FileFlags::APPEND;
        let has = |id: Id, flags| self.get(id).flags.has(flags);
        Ok(match op {
            Op::Create { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Mknod { path, .. }
            | Op::Symlink { path, .. } => has(self.parent(path)?.0, FIXED),
            Op::Tmpfile { dir, .. } => has(self.resolve(dir)?, FIXED),
            Op::Link { from, path } => has(self.parent(path)?.0, FIXED) || has(self.target(from)?, either),
            Op::Unlink { path } | Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                if self.is_tree_root(self.lookup(dir, name)?) {
                    return Ok(false);
                }
                has(dir, either) || has(self.lookup(dir, name)?, either)
            }
            Op::Rename { from, to, .. } => {
                let (old_dir, old_name) = self.parent(from)?;
                let (new_dir, new_name) = self.parent(to)?;
                let moved = self.lookup(old_dir, old_name)?;
                match self.lookup(new_dir, new_name) {
                    Ok(there) if there == moved => false,
                    Ok(there) => [old_dir, new_dir, moved, there].into_iter().any(|id| has(id, either)),
                    Err(_) => has(old_dir, either) || has(new_dir, FIXED) || has(moved, either),
                }
            }
            Op::Write { on, offset, .. } | Op::WriteText { on, offset, .. } => {
                let id = self.target(on)?;
                has(id, FIXED) || has(id, FileFlags::APPEND) && *offset < self.get(id).content.size()
            }
            Op::Append { on, .. } => has(self.target(on)?, FIXED),
            Op::Fallocate { on, how, .. } => {
                has(self.target(on)?, if how.zeroes() || how.shifts() { either } else { FIXED })
            }
            Op::Truncate { on, .. }
            | Op::Clone { on, .. }
            | Op::CloneFile { on, .. }
            | Op::Chmod { on, .. }
            | Op::Chown { on, .. }
            | Op::Utimes { on, .. }
            | Op::SetXattr { on, .. }
            | Op::RemoveXattr { on, .. }
            | Op::SetAcl { on, .. } => has(self.target(on)?, either),
            _ => false,
        })
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

    /// Handles end with the mount, and so do nameless inodes.
    pub fn forget_handles(&mut self) {
        for id in std::mem::take(&mut self.handles).into_values() {
            self.reap(id);
        }
    }

    /// Removes the inode if no name or handle keeps it.
    fn reap(&mut self, id: Id) {
        let gone =
            self.inodes.get(&id).is_some_and(|i| i.nlink == 0) && !self.handles.values().any(|h| *h == id);
        if gone {
            self.inodes.remove(&id);
        }
    }

    fn make(&mut self, path: &str, mut inode: Inode) -> Answer {
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

    fn symlink(&mut self, target: &str, path: &str) -> Answer {
        // The kernel checks the target first.
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

    fn link(&mut self, from: &Target, path: &str) -> Answer {
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
            return Err(No::Unspecified); // above a mount the kernel returns ENOENT
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

    fn unlink(&mut self, path: &str) -> Answer {
        let (dir, name) = self.parent(path)?;
        let id = self.lookup(dir, name)?;
        if self.get(id).is_dir() {
            return Err(errno::EISDIR.into());
        }
        self.drop_name(dir, name);
        self.lose_name(id);
        Ok(ordered([dir, id]))
    }

    fn rmdir(&mut self, path: &str) -> Answer {
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

    fn rename(&mut self, from: &str, to: &str, how: Rename) -> Answer {
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

    /// Puts a whiteout under a name that has just been removed.
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

    fn run_handles(&mut self, op: &Op) -> Answer {
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

    fn run_attributes(&mut self, op: &Op) -> Answer {
        let (id, datasync) = match op {
            Op::Chmod { on, mode } => {
                let id = self.target(on)?;
                if self.get(id).kind == FileKind::Symlink {
                    return Err(No::Unspecified);
                }
                self.edit(id).set_perm(*mode);
                (id, false)
            }
            Op::Chown { on, uid, gid } => {
                let id = self.target(on)?;
                let inode = self.edit(id);
                (inode.uid, inode.gid) = (*uid, *gid);
                (id, false)
            }
            Op::Utimes { on, atime, mtime } => {
                let id = self.target(on)?;
                let inode = self.edit(id);
                (inode.atime, inode.mtime) = (Some(stamp(*atime)), Some(stamp(*mtime)));
                (id, false)
            }
            Op::SetXattr { on, name, value, how } => {
                let id = self.xattr_target(on)?;
                let there = self.get(id).xattrs.contains_key(name);
                if value.len() > XATTR_VALUE_MAX {
                    return Err(errno::E2BIG.into());
                }
                match how {
                    XattrFlag::Create if there => return Err(errno::EEXIST.into()),
                    XattrFlag::Replace if !there => return Err(errno::ENODATA.into()),
                    _ => {}
                }
                self.edit(id).xattrs.insert(name.clone(), value.clone());
                (id, false)
            }
            Op::RemoveXattr { on, name } => {
                let id = self.xattr_target(on)?;
                let inode = self.edit(id);
                inode.xattrs.remove(name).ok_or(errno::ENODATA)?;
                for (default, list) in [(false, &mut inode.access), (true, &mut inode.default)] {
                    if name == acl_name(default) {
                        *list = None;
                    }
                }
                (id, false)
            }
            Op::SetAcl { on, default, list } => {
                let id = self.xattr_target(on)?;
                if *default && !self.get(id).is_dir() {
                    return Err(errno::EINVAL.into());
                }
                self.edit(id).set_acl(*default, *list);
                (id, false)
            }
            Op::SetFlags { on, flags } => {
                let id = self.xattr_target(on)?;
                let flags = FileFlags::from_bits(*flags).ok_or(errno::EINVAL)?;
                if self.get(id).flags == flags {
                    return Ok((Outcome::Done, Effect::default()));
                }
                self.edit(id).flags = flags;
                (id, false)
            }
            _ => unreachable!("sorted by run()"),
        };
        self.changed(id);
        Ok((Outcome::Done, Effect { ordered: true, datasync, touched: vec![id], ..Effect::default() }))
    }

    /// Only files and directories have user attributes.
    fn xattr_target(&self, on: &Target) -> Result<Id, No> {
        let id = self.target(on)?;
        let inode = self.get(id);
        if inode.is_file() || inode.is_dir() { Ok(id) } else { Err(No::Unspecified) }
    }

    fn run_data(&mut self, op: &Op) -> Answer {
        match op {
            Op::Write { on, offset, len, fill } => {
                let id = self.data_target(on)?;
                if *len == 0 {
                    return Ok((Outcome::Done, Effect::default()));
                }
                self.write(id, *offset, || fill.bytes(*offset, *len as usize), *len as u64)
            }
            Op::WriteText { on, offset, text } => {
                let id = self.data_target(on)?;
                self.write(id, *offset, || text.clone().into_bytes(), text.len() as u64)
            }
            Op::Append { on, text } => {
                let id = self.data_target(on)?;
                self.write(id, self.get(id).content.size(), || text.clone().into_bytes(), text.len() as u64)
            }
            Op::Truncate { on, size } => self.truncate(on, *size),
            Op::Fallocate { on, how, offset, len } => self.fallocate(on, *how, *offset, *len),
            Op::Clone { source, from, on, to, len } => self.clone_range(source, *from, on, *to, *len),
            Op::CloneFile { source, on } => self.clone_file(source, on),
            Op::Fsync { on } => {
                let id = self.target(on)?;
                Ok(persist(Persist::Inode { id, datasync: false }))
            }
            Op::Fdatasync { on } => {
                let id = self.target(on)?;
                Ok(persist(Persist::Inode { id, datasync: true }))
            }
            Op::Sync | Op::Freeze => Ok(persist(Persist::All)),
            Op::Read { on, offset, len } => {
                let id = self.data_target(on)?;
                self.edit(id).atime = None;
                Ok((Outcome::Bytes(self.get(id).content.read(*offset, *len as usize)), Effect::default()))
            }
            Op::Readdir { path } => {
                let id = self.resolve(path)?;
                if !self.get(id).is_dir() {
                    return Err(errno::ENOTDIR.into());
                }
                self.edit(id).atime = None;
                let dir = self.get(id);
                let names = dir.entries.iter().map(|(name, id)| (name.clone(), self.get(*id).kind));
                Ok((Outcome::Names(names.collect()), Effect::default()))
            }
            Op::Readlink { path } => {
                let id = self.resolve(path)?;
                if self.get(id).kind != FileKind::Symlink {
                    return Err(errno::EINVAL.into());
                }
                self.edit(id).atime = None;
                Ok((Outcome::Bytes(self.get(id).target.clone().into_bytes()), Effect::default()))
            }
            _ => unreachable!("sorted by run()"),
        }
    }

    fn write(&mut self, id: Id, offset: u64, bytes: impl FnOnce() -> Vec<u8>, len: u64) -> Answer {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX) else {
            return Err(errno::EFBIG.into());
        };
        if len == 0 {
            return Ok((Outcome::Done, Effect::default()));
        }
        let inode = self.edit(id);
        let grew = end > inode.content.size();
        inode.content.write(offset, &bytes());
        (inode.mtime, inode.ctime) = (None, None);
        let data = Some(DataChange { id, from: offset, to: end, sets_size: false, grew });
        Ok((Outcome::Done, Effect { data, ..Effect::default() }))
    }

    fn truncate(&mut self, on: &Target, size: u64) -> Answer {
        let id = self.target(on)?;
        match self.get(id).kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(errno::EISDIR.into()),
            _ => return Err(errno::EINVAL.into()),
        }
        if size > FILE_SIZE_MAX {
            return Err(errno::EFBIG.into());
        }
        let inode = self.edit(id);
        let old = inode.content.size();
        inode.content.set_size(size);
        (inode.mtime, inode.ctime) = (None, None);
        let to = if size < old { u64::MAX } else { size };
        let data = Some(DataChange { id, from: size, to, sets_size: size != old, grew: false });
        Ok((
            Outcome::Done,
            Effect { ordered: true, datasync: size != old, touched: vec![id], data, persist: None },
        ))
    }

    fn fallocate(&mut self, on: &Target, how: Falloc, offset: u64, len: u64) -> Answer {
        let id = self.target(on)?;
        if len == 0 {
            return Err(No::Errno(vec![errno::EINVAL, errno::EISDIR]));
        }
        self.data_target(on)?;
        let Some(end) = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX) else {
            return Err(errno::EFBIG.into());
        };
        let inode = self.edit(id);
        let before = inode.content.clone();
        if matches!(how, Falloc::Collapse | Falloc::Insert) {
            return self.shift(id, how, offset, len);
        }
        if how.zeroes() {
            inode.content.zero(offset, end);
        }
        let old = inode.content.size();
        if how.grows() {
            inode.content.set_size(old.max(end));
        }
        (inode.mtime, inode.ctime) = (None, None);
        let (from, to) = if how.zeroes() { (offset, end) } else { (0, 0) };
        let sets_size = how.grows() && end > old;
        let data = Some(DataChange { id, from, to, sets_size, grew: false });
        // If no byte changed, nothing must become durable; and bytes that exist only in memory may
        // be dropped.
        let touched = if inode.content == before { Vec::new() } else { vec![id] };
        Ok((Outcome::Done, Effect { ordered: true, datasync: sets_size, touched, data, persist: None }))
    }
}

impl Model {
    /// Whole blocks, or up to the ends of both files.
    fn clone_range(&mut self, source: &Target, from: u64, on: &Target, to: u64, len: u64) -> Answer {
        let (_, _) = (self.target(source)?, self.target(on)?);
        let (source, id) = (self.data_target(source)?, self.data_target(on)?);
        if self.tree_of(source) != self.tree_of(id) {
            return Err(No::Unspecified);
        }
        let (size, old) = (self.get(source).content.size(), self.get(id).content.size());
        let len = if len == 0 { size.saturating_sub(from) } else { len };
        if !from.is_multiple_of(CHUNK) || !to.is_multiple_of(CHUNK) {
            return Err(errno::EINVAL.into());
        }
        let (Some(from_end), Some(to_end)) = (from.checked_add(len), to.checked_add(len)) else {
            return Err(errno::EFBIG.into());
        };
        if to_end > FILE_SIZE_MAX {
            return Err(errno::EFBIG.into());
        }
        let ends = from_end == size && to_end >= old;
        let whole = |at: u64| at.next_multiple_of(CHUNK);
        let overlap = source == id && from < whole(to_end) && to < whole(from_end);
        if from_end > size || !len.is_multiple_of(CHUNK) && !ends || overlap {
            return Err(errno::EINVAL.into());
        }
        if len == 0 {
            return Ok((Outcome::Done, Effect::default()));
        }
        // By chunks, since the file may be a hole of terabytes.
        let content = self.get(source).content.clone();
        let inode = self.edit(id);
        inode.content.set_size(old.max(to_end));
        inode.content.zero(to, to_end);
        let chunks = content.chunk_numbers().map(|number| number * CHUNK);
        for base in chunks.filter(|base| (from..from_end).contains(base)) {
            let bytes = content.read(base, CHUNK.min(from_end - base) as usize);
            inode.content.write(base - from + to, &bytes);
        }
        (inode.mtime, inode.ctime) = (None, None);
        let data = Some(DataChange { id, from: to, to: to_end, sets_size: to_end > old, grew: false });
        Ok((Outcome::Done, Effect { ordered: true, datasync: true, touched: vec![id], data, persist: None }))
    }

    /// One change of bytes and size.
    fn clone_file(&mut self, source: &Target, on: &Target) -> Answer {
        let (_, _) = (self.target(source)?, self.target(on)?);
        let (source, id) = (self.data_target(source)?, self.data_target(on)?);
        if self.tree_of(source) != self.tree_of(id) {
            return Err(No::Unspecified);
        }
        if source == id {
            return Ok((Outcome::Done, Effect::default()));
        }
        let content = self.get(source).content.clone();
        let inode = self.edit(id);
        let sets_size = content.size() != inode.content.size();
        inode.content = content;
        (inode.mtime, inode.ctime) = (None, None);
        let data = Some(DataChange { id, from: 0, to: u64::MAX, sets_size, grew: false });
        Ok((Outcome::Done, Effect { ordered: true, datasync: true, touched: vec![id], data, persist: None }))
    }

    /// Collapse and insert range: whole blocks, inside the file.
    fn shift(&mut self, id: Id, how: Falloc, offset: u64, len: u64) -> Answer {
        let content = &self.get(id).content;
        let size = content.size();
        if !offset.is_multiple_of(CHUNK) || !len.is_multiple_of(CHUNK) {
            return Err(errno::EINVAL.into());
        }
        let collapse = how == Falloc::Collapse;
        let (from, to, new_size) = match collapse {
            true if offset + len >= size => return Err(errno::EINVAL.into()),
            false if offset >= size => return Err(errno::EINVAL.into()),
            true => (offset + len, offset, size - len),
            false => (offset, offset + len, size + len),
        };
        if new_size > FILE_SIZE_MAX {
            return Err(errno::EFBIG.into());
        }
        let content = content.shifted(from, to, new_size);
        let inode = self.edit(id);
        inode.content = content;
        (inode.mtime, inode.ctime) = (None, None);
        let data = Some(DataChange { id, from: offset, to: u64::MAX, sets_size: true, grew: false });
        Ok((Outcome::Done, Effect { ordered: true, datasync: true, touched: vec![id], data, persist: None }))
    }
}

fn ordered(touched: impl Into<Vec<Id>>) -> (Outcome, Effect) {
    (Outcome::Done, Effect { ordered: true, datasync: true, touched: touched.into(), ..Effect::default() })
}

fn persist(persist: Persist) -> (Outcome, Effect) {
    (Outcome::Done, Effect { persist: Some(persist), ..Effect::default() })
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
