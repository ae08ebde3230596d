//! Extended attributes.
//!
//! # Bounds
//! An inode has at most [`NAMES_MAX`] bytes of names, so that each list fits listxattr(2), and
//! [`VALUES_MAX`] bytes of values. Without bounds, listing a file with very many attributes would
//! keep a thread and its memory busy for long. An attribute beyond a bound is refused with ENOSPC,
//! as on ext4 with a full attribute block. The present sums are computed when an attribute is new
//! or takes more items than before; most inodes have two or three attributes. An image of an older
//! version may exceed the bounds. Its attributes can still be read, replaced by values that are not
//! larger, and removed.

use super::slots::{self, Slot};
use super::{Names, acl};
use crate::cache::commit::{commit, lock_metas};
use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use crate::flags;
use crate::types::XattrMode;
use kedge_base::broken::{self, Variant};
use kedge_base::{BlockNo, CorruptKind, Ino};
use kedge_format::acl::{ACCESS, Acl, DEFAULT, is_acl_name};
use kedge_format::item::{
    NAME_MAX, XATTR_PART_MAX, XATTR_VALUE_MAX, Xattr, XattrItem, XattrRest, xattr_slots,
};
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{ItemKind, Key};
use kedge_store::{Class, Handle, Need};
use std::ops::ControlFlow;

/// The most slots of an attribute.
const SLOTS_MAX: u64 = 1 + (XATTR_VALUE_MAX / XATTR_PART_MAX) as u64;

/// Prefix of attributes that only the engine uses. Callers cannot set, read or list them.
pub(crate) const HIDDEN: &[u8] = b"system.kedgefs.";

/// The most bytes of all names of an inode, each with a terminating byte: what listxattr(2) can
/// return.
const NAMES_MAX: usize = 65_536;
/// The most bytes of all values of an inode.
const VALUES_MAX: usize = 1 << 20;

/// The value of an attribute.
pub(super) enum Value {
    Small(Vec<u8>),
    /// The length of a value that is stored in parts, in the slots after that of the attribute.
    Large(usize),
}

impl Value {
    /// The value, if it is stored in a single item.
    pub(super) fn small(&self) -> Option<&[u8]> {
        match self {
            Value::Small(value) => Some(value),
            Value::Large(_) => None,
        }
    }
}

/// An attribute to be set.
struct New<'a> {
    name: &'a [u8],
    value: &'a [u8],
    mode: XattrMode,
}

impl Names {
    /// Finds an attribute: its value, or the slot for a new one.
    pub(super) fn find_xattr(&self, ino: Ino, name: &[u8]) -> Result<Slot<Value>> {
        slots::find(self.engine.store(), ino, ItemKind::Xattr, name, |item| {
            let item = XattrItem::decode(item)?;
            Ok((item.name() == Some(name)).then_some(item).and_then(|item| match item {
                XattrItem::Small(xattr) => Some(Value::Small(xattr.value.to_vec())),
                XattrItem::Large { len, .. } => Some(Value::Large(len)),
                XattrItem::Part { .. } => None,
            }))
        })
    }

    pub(crate) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.check_xattr_name(name)?;
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.read();
        let found = self.find_xattr(ino, name)?;
        match found.entry {
            Some(Value::Small(value)) => Ok(value),
            Some(Value::Large(len)) => self.read_parts(ino, found.at(), len),
            None => Err(Error::NoXattr),
        }
    }

    /// The number of slots that an attribute takes. Fails if a part is missing: in a damaged image
    /// the slots after the first may belong to another attribute.
    fn slots_of(&self, ino: Ino, found: &Slot<Value>) -> Result<u64> {
        match found.entry {
            None => Ok(0),
            Some(Value::Small(_)) => Ok(1),
            Some(Value::Large(len)) => self.read_parts(ino, found.at(), len).map(|_| xattr_slots(len)),
        }
    }

    fn read_parts(&self, ino: Ino, slot: u64, len: usize) -> Result<Vec<u8>> {
        let mut value = Vec::with_capacity(len);
        let mut rest = XattrRest::new(slot, len);
        let key = |slot| Key::new(ino, ItemKind::Xattr, slot);
        let last = slot + xattr_slots(len) - 1;
        self.engine.store().scan(
            key(slot + 1),
            key(last),
            &mut |at, item| match XattrItem::decode(item) {
                Ok(item @ XattrItem::Part { bytes, .. }) if rest.take(at.offset, item) => {
                    value.extend_from_slice(bytes);
                    ControlFlow::Continue(())
                }
                _ => ControlFlow::Break(()),
            },
        )?;
        if rest.next_slot().is_some() {
            let what = format!("an attribute of inode {ino} lacks a part of its value");
            return Err(kedge_base::Error::corrupt(CorruptKind::Item, BlockNo(0), what).into());
        }
        Ok(value)
    }

    pub(crate) fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.check_xattr_name(name)?;
        let max = self.engine.store().geometry().xattr_value_max();
        if value.len() > if is_acl_name(name) { XATTR_PART_MAX } else { max } {
            return Err(Error::XattrTooLarge);
        }
        let list = acl::of_value(name, value)?;
        let new = New { name, value, mode };
        // The old value is normally small. If it is not, the call is repeated with a larger
        // reservation.
        let set = self.set_over(ino, &new, list.as_ref(), 1)?
            || self.set_over(ino, &new, list.as_ref(), SLOTS_MAX)?;
        assert!(set, "no attribute takes more slots");
        Ok(())
    }

    /// Sets an attribute whose old value takes at most `slots` slots. If it takes more, returns
    /// false and changes nothing.
    fn set_over(&self, ino: Ino, new: &New<'_>, list: Option<&Acl>, slots: u64) -> Result<bool> {
        let New { name, value, mode } = *new;
        let count = xattr_slots(value.len());
        let items = Xattr { name, value }.items();
        let need = Need::record(Class::Normal).patches(1).deletes(slots as usize);
        let need = items.iter().fold(need, |need, item| need.puts(1, item.len()));
        let mut handle = self.engine.begin(need)?;
        let inode = self.inodes.get(ino)?;
        acl::check_kind(inode.kind, name)?;
        let _io = inode.io.write();
        // Checked before the lookup, so that the error does not depend on whether the attribute
        // exists.
        flags::check_change(&inode.meta.lock().core)?;
        let found = self.find_xattr(ino, name)?;
        let old = self.slots_of(ino, &found)?;
        let slot = match (mode, &found.entry) {
            (XattrMode::Create, Some(_)) => return Err(Error::Exists),
            (XattrMode::Replace, None) => return Err(Error::NoXattr),
            _ if old > slots => return Ok(false),
            _ if count > old.max(1) => found.run(self.engine.store(), ino, ItemKind::Xattr, old, count)?,
            (_, Some(_)) => found.at(),
            (_, None) => found.for_new()?,
        };
        // A value that fits into its old slots needs no check of the bounds.
        if count > old {
            self.check_room(ino, new)?;
        }
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        let key = |slot| Key::new(ino, ItemKind::Xattr, slot);
        // A minimal list is stored only as the mode, which expresses it completely.
        let kept = if acl::is_kept(name, list) { slot..slot + count } else { slot..slot };
        for (slot, item) in kept.clone().zip(items) {
            record.put(key(slot), &item);
        }
        for slot in (found.at()..found.at() + old).filter(|slot| !kept.contains(slot)) {
            if !broken::is(Variant::KeepOldParts) {
                record.delete(key(slot));
            }
        }
        let mode = list.filter(|_| name == ACCESS).map(Acl::mode);
        self.commit_xattr(&mut handle, record, &inode, mode)?;
        if name == DEFAULT {
            inode.meta.lock().no_default_acl = false;
        }
        Ok(true)
    }

    pub(crate) fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_xattr_name(name)?;
        let removed = self.remove_up_to(ino, name, 1)? || self.remove_up_to(ino, name, SLOTS_MAX)?;
        assert!(removed, "no attribute takes more slots");
        Ok(())
    }

    /// Removes an attribute that takes at most `slots` slots. If it takes more, returns false and
    /// changes nothing.
    fn remove_up_to(&self, ino: Ino, name: &[u8], slots: u64) -> Result<bool> {
        // The parts of a value are neighbours: two or three of them fill a leaf.
        let need = Need::record(Class::Reclaim).patches(1).deletes_in(slots.min(7) as usize, slots as usize);
        let mut handle = self.engine.begin(need)?;
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.write();
        // Checked before the lookup, so that the error does not depend on whether the attribute
        // exists.
        flags::check_change(&inode.meta.lock().core)?;
        let found = self.find_xattr(ino, name)?;
        let old = self.slots_of(ino, &found)?;
        if old == 0 {
            return Err(Error::NoXattr);
        }
        if old > slots {
            return Ok(false);
        }
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        for slot in found.at()..found.at() + old {
            record.delete(Key::new(ino, ItemKind::Xattr, slot));
        }
        self.commit_xattr(&mut handle, record, &inode, None)?;
        Ok(true)
    }

    /// Commits a change of attributes with the new ctime. `mode`: the permission bits of a new
    /// access list.
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

    pub(crate) fn list_xattrs(&self, ino: Ino, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.read();
        self.walk_xattrs(ino, &mut |name, _| name.starts_with(HIDDEN) || visit(name))
    }

    /// Reads an attribute that only the engine uses. `name`: without the prefix.
    pub(crate) fn hidden(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.read();
        Ok(self
            .find_xattr(ino, &[HIDDEN, name].concat())?
            .entry
            .and_then(|value| value.small().map(<[u8]>::to_vec)))
    }

    /// Sets an attribute that only the engine uses, regardless of the inode's flags. Callers cannot
    /// see such a change, so the ctime stays.
    pub(crate) fn set_hidden(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        let name = [HIDDEN, name].concat();
        let item = Xattr { name: &name, value }.encode();
        let mut handle = self.engine.begin(Need::record(Class::Normal).patches(1).puts(1, item.len()))?;
        let inode = self.inodes.get(ino)?;
        let _io = inode.io.write();
        let found = self.find_xattr(ino, &name)?;
        let slot = if found.entry.is_some() { found.at() } else { found.for_new()? };
        let mut record = RecordBuilder::new(RecordOp::Xattr);
        record.put(Key::new(ino, ItemKind::Xattr, slot), &item);
        commit(&mut handle, record, &mut lock_metas(&[&inode]))?;
        Ok(())
    }

    /// Calls `visit` with the name and the length of the value of each attribute until it returns
    /// false. The caller holds the inode's io lock.
    fn walk_xattrs(&self, ino: Ino, visit: &mut dyn FnMut(&[u8], usize) -> bool) -> Result<()> {
        let mut bad = None;
        let key = |slot| Key::new(ino, ItemKind::Xattr, slot);
        self.engine.store().scan(key(0), key(u64::MAX), &mut |_, value| {
            let go_on = match XattrItem::decode(value) {
                Ok(XattrItem::Small(xattr)) => visit(xattr.name, xattr.value.len()),
                Ok(XattrItem::Large { name, len }) => visit(name, len),
                Ok(XattrItem::Part { .. }) => true,
                Err(e) => {
                    bad = Some(e);
                    false
                }
            };
            if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        bad.map_or(Ok(()), |e| Err(e.into()))
    }

    /// Checks that the inode's attributes stay within the bounds with a new attribute or a longer
    /// value. The caller holds the inode's io lock.
    fn check_room(&self, ino: Ino, new: &New<'_>) -> Result<()> {
        let (mut names, mut values) = (new.name.len() + 1, new.value.len());
        self.walk_xattrs(ino, &mut |name, len| {
            if name != new.name {
                names += name.len() + 1;
                values += len;
            }
            names <= NAMES_MAX && values <= VALUES_MAX
        })?;
        if names <= NAMES_MAX && values <= VALUES_MAX {
            Ok(())
        } else {
            Err(Error::Engine(kedge_base::Error::NoSpace))
        }
    }

    fn check_xattr_name(&self, name: &[u8]) -> Result<()> {
        const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        // listxattr(2) returns names that end with NUL.
        if name.contains(&0) {
            return Err(Error::Invalid("a NUL in the name of an extended attribute"));
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

#[cfg(test)]
#[path = "xattr_tests.rs"]
mod tests;
