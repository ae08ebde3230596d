//! Extended attributes.

use super::Names;
use super::slots::{self, Slot};
use crate::cache::commit::{PATCH_BYTES, commit, lock_metas};
use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use crate::types::XattrMode;
use kedge_base::Ino;
use kedge_format::item::{NAME_MAX, XATTR_VALUE_MAX, Xattr};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{ItemKind, Key};
use kedge_store::{Class, Handle};
use std::ops::ControlFlow;

impl Names {
    /// The attribute's value, or where it would go.
    fn find_xattr(&self, ino: Ino, name: &[u8]) -> Result<Slot<Vec<u8>>> {
        slots::find(self.engine.store(), ino, ItemKind::Xattr, name, |value| {
            let xattr = Xattr::decode(value)?;
            Ok((xattr.name == name).then(|| xattr.value.to_vec()))
        })
    }

    pub(crate) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.read();
        self.find_xattr(ino, name)?.entry.ok_or(Error::NoXattr)
    }

    pub(crate) fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::XattrTooLarge);
        }
        let bytes = PATCH_BYTES + (name.len() + value.len()) as u64 + 64;
        let mut handle = self.engine.begin(bytes, 2, Class::Normal)?;
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.write();
        let found = self.find_xattr(ino, name)?;
        let slot = match (mode, &found.entry) {
            (XattrMode::Create, Some(_)) => return Err(Error::Exists),
            (XattrMode::Replace, None) => return Err(Error::NoXattr),
            (_, Some(_)) => found.at(),
            (_, None) => found.for_new()?,
        };
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        record.put(Key::new(ino, ItemKind::Xattr, slot), &Xattr { name, value }.encode());
        self.commit_xattr(&mut handle, record, &inode)
    }

    pub(crate) fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        let mut handle = self.engine.begin(PATCH_BYTES + 64, 2, Class::Reclaim)?;
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.write();
        let found = self.find_xattr(ino, name)?;
        if found.entry.is_none() {
            return Err(Error::NoXattr);
        }
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        record.delete(Key::new(ino, ItemKind::Xattr, found.at()));
        self.commit_xattr(&mut handle, record, &inode)
    }

    fn commit_xattr(&self, handle: &mut Handle<'_>, record: RecordBuilder, inode: &Inode) -> Result<()> {
        let now = self.engine.now();
        let mut changes = lock_metas(&[inode]);
        if changes[0].meta.dead {
            return Err(Error::NotFound);
        }
        changes[0].set(InodeMask::CTIME, |core| core.ctime = now);
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
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    match NAMESPACES.iter().find(|n| name.starts_with(n)) {
        Some(n) if name.len() > n.len() => Ok(()),
        Some(_) => Err(Error::Invalid("extended attribute without a name")),
        None => Err(Error::NotSupported("extended attribute namespace")),
    }
}
