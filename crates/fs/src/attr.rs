//! Attributes and extended attributes.

use crate::core::Fs;
use crate::inode::Inode;
use crate::{Attr, Error, Result, SetAttr, SetTime, XattrMode};
use kedge_base::{Ino, Timespec};
use kedge_format::item::{NAME_MAX, SLOT_ORDINALS, XATTR_VALUE_MAX, Xattr, name_slot};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{FileKind, ItemKind, Key};
use kedge_store::Class;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of a record that patches one inode.
pub(crate) const PATCH_BYTES: u64 = 256;
const DAY: i64 = 86_400;

impl Fs {
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attr_of(&*self.get(ino)?)
    }

    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.check_open()?;
        let inode = self.get(ino)?;
        if let Some(size) = set.size {
            match inode.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Error::IsDirectory),
                _ => return Err(Error::Invalid("size of a special file")),
            }
            self.truncate(&inode, size)?;
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.set_owner_and_mode(&inode, set)?;
        } else if set.atime.is_some() || set.mtime.is_some() || set.ctime.is_some() {
            self.set_times(&inode, set)?;
        }
        self.attr_of(&inode)
    }

    fn set_owner_and_mode(&self, inode: &Inode, set: &SetAttr) -> Result<()> {
        let mut handle = self.begin(PATCH_BYTES, 1, Class::Normal)?;
        let now = self.now();
        let mut changes = self.lock_metas(&[inode]);
        let c = &mut changes[0];
        if c.meta.dead {
            return Err(Error::NotFound);
        }
        c.set(InodeMask::CTIME, |core| core.ctime = set.ctime.unwrap_or(now));
        if let Some(mode) = set.mode {
            c.set(InodeMask::MODE, |core| core.mode = (core.mode & FileKind::MODE_MASK) | (mode & 0o7777));
        }
        if let Some(uid) = set.uid {
            c.set(InodeMask::UID, |core| core.uid = uid);
        }
        if let Some(gid) = set.gid {
            c.set(InodeMask::GID, |core| core.gid = gid);
        }
        if let Some(atime) = set.atime {
            c.set(InodeMask::ATIME, |core| core.atime = resolve(atime, now));
        }
        if let Some(mtime) = set.mtime {
            c.set(InodeMask::MTIME, |core| core.mtime = resolve(mtime, now));
        }
        self.commit(&mut handle, RecordBuilder::new(RecordOp::SetAttr), &mut changes)?;
        Ok(())
    }

    /// Time stamps alone make no record: they wait in the inode until it is next logged, forced or written back.
    fn set_times(&self, inode: &Arc<Inode>, set: &SetAttr) -> Result<()> {
        if self.store.is_read_only() {
            return Err(kedge_base::Error::ReadOnly.into());
        }
        self.store.check_alive()?;
        let now = self.now();
        let mut meta = inode.meta.lock();
        if meta.dead {
            return Err(Error::NotFound);
        }
        if let Some(atime) = set.atime {
            meta.core.atime = resolve(atime, now);
            meta.unlogged |= InodeMask::ATIME;
        }
        if let Some(mtime) = set.mtime {
            meta.core.mtime = resolve(mtime, now);
            meta.unlogged |= InodeMask::MTIME;
        }
        meta.core.ctime = set.ctime.unwrap_or(now);
        meta.unlogged |= InodeMask::CTIME;
        self.list_dirty(inode, &mut meta);
        Ok(())
    }

    /// The read time stamp in the manner of relatime: moved when it is not newer than the last change, or a day old.
    pub fn accessed(&self, inode: &Arc<Inode>) {
        if self.store.is_read_only() {
            return;
        }
        let mut meta = inode.meta.lock();
        let c = &meta.core;
        if c.atime > c.mtime && c.atime > c.ctime && self.now().sec - c.atime.sec < DAY {
            return;
        }
        meta.core.atime = self.now();
        meta.unlogged |= InodeMask::ATIME;
        self.list_dirty(inode, &mut meta);
    }

    // ----- extended attributes -----

    /// The attribute's slot and value; without it, a free slot.
    fn find_xattr(&self, ino: Ino, name: &[u8]) -> Result<(u64, Option<Vec<u8>>)> {
        let first = name_slot(&self.seed, name);
        let key = |slot| Key::new(ino, ItemKind::Xattr, slot);
        let mut free = first;
        let mut found = None;
        let mut bad = None;
        self.store.scan(key(first), key(first + SLOT_ORDINALS - 1), &mut |at, value| {
            match Xattr::decode(value) {
                Ok(x) if x.name == name => {
                    found = Some((at.offset, x.value.to_vec()));
                    return ControlFlow::Break(());
                }
                Ok(_) if at.offset == free => free += 1,
                Ok(_) => {}
                Err(e) => bad = Some(e),
            }
            ControlFlow::Continue(())
        })?;
        match (bad, found) {
            (Some(e), _) => Err(e.into()),
            (None, Some((slot, value))) => Ok((slot, Some(value))),
            (None, None) => Ok((free, None)),
        }
    }

    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let inode = self.get(ino)?;
        let _io = inode.io.read();
        self.find_xattr(ino, name)?.1.ok_or(Error::NoXattr)
    }

    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::XattrTooLarge);
        }
        let bytes = PATCH_BYTES + (name.len() + value.len()) as u64 + 64;
        let mut handle = self.begin(bytes, 2, Class::Normal)?;
        let inode = self.get(ino)?;
        let _io = inode.io.write();
        let (slot, old) = self.find_xattr(ino, name)?;
        match (mode, &old) {
            (XattrMode::Create, Some(_)) => return Err(Error::Exists),
            (XattrMode::Replace, None) => return Err(Error::NoXattr),
            // 256 names of one hash: the next slot belongs to another.
            (_, None) if slot >= name_slot(&self.seed, name) + SLOT_ORDINALS => {
                return Err(kedge_base::Error::NoSpace.into());
            }
            _ => {}
        }
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        record.put(Key::new(ino, ItemKind::Xattr, slot), &Xattr { name, value }.encode());
        self.commit_xattr(&mut handle, record, &inode)
    }

    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        let mut handle = self.begin(PATCH_BYTES + 64, 2, Class::Reclaim)?;
        let inode = self.get(ino)?;
        let _io = inode.io.write();
        let (slot, old) = self.find_xattr(ino, name)?;
        if old.is_none() {
            return Err(Error::NoXattr);
        }
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        record.delete(Key::new(ino, ItemKind::Xattr, slot));
        self.commit_xattr(&mut handle, record, &inode)
    }

    fn commit_xattr(
        &self,
        handle: &mut kedge_store::Handle<'_>,
        record: RecordBuilder,
        inode: &Inode,
    ) -> Result<()> {
        let now = self.now();
        let mut changes = self.lock_metas(&[inode]);
        if changes[0].meta.dead {
            return Err(Error::NotFound);
        }
        changes[0].set(InodeMask::CTIME, |core| core.ctime = now);
        self.commit(handle, record, &mut changes)?;
        Ok(())
    }

    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.get(ino)?;
        let _io = inode.io.read();
        let mut names = Vec::new();
        let mut bad = None;
        let key = |slot| Key::new(ino, ItemKind::Xattr, slot);
        self.store.scan(key(0), key(u64::MAX), &mut |_, value| {
            match Xattr::decode(value) {
                Ok(x) => names.push(x.name.to_vec()),
                Err(e) => bad = Some(e),
            }
            ControlFlow::Continue(())
        })?;
        bad.map_or(Ok(names), |e| Err(e.into()))
    }
}

fn resolve(time: SetTime, now: Timespec) -> Timespec {
    match time {
        SetTime::Now => now,
        SetTime::At(t) => t,
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
