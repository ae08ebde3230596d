//! Attributes of the model's inodes: modes, owners, times, extended attributes, lists, flags.

use super::Model;
use super::effect::{Answer, Effect, No};
use super::inode::Id;
use crate::ops::{Op, Outcome, Target, XattrFlag, acl_name, errno, stamp};
use kedge_format::item::XATTR_VALUE_MAX;
use kedgefs::{FileFlags, FileKind, Timespec};
use std::sync::Arc;

impl Model {
    pub(super) fn run_attributes(&mut self, op: &Op) -> Answer {
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

    /// Resolves the target; only files and directories have user attributes.
    fn xattr_target(&self, on: &Target) -> Result<Id, No> {
        let id = self.target(on)?;
        let inode = self.get(id);
        if inode.is_file() || inode.is_dir() { Ok(id) } else { Err(No::Unspecified) }
    }

    /// Forgets all atimes, since reads may have updated them (relatime).
    pub fn forget_atimes(&mut self) {
        for inode in self.inodes.values_mut().filter(|inode| inode.atime.is_some()) {
            Arc::make_mut(inode).atime = None;
        }
    }

    /// Reads the times that the last operation set, which the file system takes from its clock.
    /// From here on they may change only by an operation. Must be called after each operation, or
    /// never. Inodes without a name are left out.
    ///
    /// # Errors
    /// Fails if a ctime is outside of `from..=to`: callers cannot set it, so it must come from the
    /// clock.
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
}
