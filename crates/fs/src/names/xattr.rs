//! Extended attributes.

use super::slots::{self, Slot};
use super::{Names, acl};
use crate::cache::commit::{PATCH_BYTES, commit, lock_metas};
use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use crate::flags;
use crate::types::XattrMode;
use kedge_base::Ino;
use kedge_format::acl::{ACCESS, DEFAULT, is_acl_name};
use kedge_format::item::{NAME_MAX, XATTR_VALUE_MAX, Xattr};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{ItemKind, Key};
use kedge_store::{Class, Handle};
use std::ops::ControlFlow;

impl Names {
    /// The attribute's value, or where it would go.
    pub(super) fn find_xattr(&self, ino: Ino, name: &[u8]) -> Result<Slot<Vec<u8>>> {
        slots::find(self.engine.store(), ino, ItemKind::Xattr, name, |value| {
            let xattr = Xattr::decode(value)?;
            Ok((xattr.name == name).then(|| xattr.value.to_vec()))
        })
    }

    pub(crate) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.check_xattr_name(name)?;
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.read();
        self.find_xattr(ino, name)?.entry.ok_or(Error::NoXattr)
    }

    pub(crate) fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::XattrTooLarge);
        }
        let list = acl::of_value(name, value)?;
        let bytes = PATCH_BYTES + (name.len() + value.len()) as u64 + 64;
        let mut handle = self.engine.begin(bytes, 2, Class::Normal)?;
        let inode = self.inodes.get(ino)?;
        acl::check_kind(inode.kind, name)?;
        let _io = inode.io.write();
        let found = self.find_xattr(ino, name)?;
        let slot = match (mode, &found.entry) {
            (XattrMode::Create, Some(_)) => return Err(Error::Exists),
            (XattrMode::Replace, None) => return Err(Error::NoXattr),
            (_, Some(_)) => found.at(),
            (_, None) => found.for_new()?,
        };
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        let key = Key::new(ino, ItemKind::Xattr, slot);
        // The mode says all of a minimal list, and is the one place for it.
        if acl::is_kept(name, list.as_ref()) {
            record.put(key, &Xattr { name, value }.encode());
        } else if found.entry.is_some() {
            record.delete(key);
        }
        let mode = list.filter(|_| name == ACCESS).map(|list| list.mode());
        self.commit_xattr(&mut handle, record, &inode, mode)?;
        if name == DEFAULT {
            inode.meta.lock().no_default_acl = false;
        }
        Ok(())
    }

    pub(crate) fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_xattr_name(name)?;
        let mut handle = self.engine.begin(PATCH_BYTES + 64, 2, Class::Reclaim)?;
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.write();
        let found = self.find_xattr(ino, name)?;
        if found.entry.is_none() {
            return Err(Error::NoXattr);
        }
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        record.delete(Key::new(ino, ItemKind::Xattr, found.at()));
        self.commit_xattr(&mut handle, record, &inode, None)
    }

    /// `mode`: the permission bits that go with a new access control list.
    fn commit_xattr(
        &self,
        handle: &mut Handle<'_>,
        record: RecordBuilder,
        inode: &Inode,
        mode: Option<u32>,
    ) -> Result<()> {
        let now = self.engine.now();
        let mut changes = lock_metas(&[inode]);
        if changes[0].meta.dead {
            return Err(Error::NotFound);
        }
        flags::check_change(&changes[0].core)?;
        changes[0].set(InodeMask::CTIME, |core| core.ctime = now);
        if let Some(mode) = mode {
            changes[0].set(InodeMask::MODE, |core| core.mode = core.mode & !0o777 | mode);
        }
        commit(handle, record, &mut changes)?;
        Ok(())
    }

    pub(crate) fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.read();
        let mut names = Vec::new();
        let mut bad = None;
        let key = |slot| Key::new(ino, ItemKind::Xattr, slot);
        self.engine.store().scan(key(0), key(u64::MAX), &mut |_, value| {
            match Xattr::decode(value) {
                Ok(x) => names.push(x.name.to_vec()),
                Err(e) => bad = Some(e),
            }
            ControlFlow::Continue(())
        })?;
        bad.map_or(Ok(names), |e| Err(e.into()))
    }

    fn check_xattr_name(&self, name: &[u8]) -> Result<()> {
        const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if is_acl_name(name) && self.has_acls() {
            return Ok(());
        }
        match NAMESPACES.iter().find(|n| name.starts_with(n)) {
            Some(n) if name.len() > n.len() => Ok(()),
            Some(_) => Err(Error::Invalid("extended attribute without a name")),
            None => Err(Error::NotSupported("extended attribute namespace")),
        }
    }
}
