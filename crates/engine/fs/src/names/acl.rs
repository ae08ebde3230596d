//! Access control lists: attributes that agree with the mode and that new files inherit. The
//! kernel, or a program that links the library, enforces them.
//!
//! # Invariants
//! 1. The nine permission bits of the mode are those of the access list ([`Acl::mode`]). The group
//!    bits of the mode are the mask of the list.
//! 2. A minimal access list is not stored, because the mode expresses the same.
//!
//! An operation that changes the mode or the list changes both in one record, under the inode's
//! exclusive io lock. So no crash leaves a new mode with an old list. Otherwise a file whose list
//! denies access to a user could be open to that user by its mode.

use super::Names;
use crate::cache::inode::Inode;
use crate::error::{Error, Result};
use kedge_base::{BlockNo, CorruptKind, Ino};
use kedge_format::acl::{ACCESS, Acl, DEFAULT, is_acl_name};
use kedge_format::item::{VALUE_MAX, Xattr, name_slot};
use kedge_format::record::RecordBuilder;
use kedge_format::{FileKind, InodeCore, ItemKind, Key};

/// Bytes of the largest list.
pub(super) const LIST_MAX: usize = VALUE_MAX;

/// Decodes the value of an attribute as a list. `None` if the attribute is not an access control
/// list.
pub(super) fn of_value(name: &[u8], value: &[u8]) -> Result<Option<Acl>> {
    if !is_acl_name(name) {
        return Ok(None);
    }
    Acl::decode(value).map(Some).ok_or(Error::Invalid("not a valid access control list"))
}

/// Whether an attribute is stored. Only a minimal access list is not, since the mode expresses it.
pub(super) fn is_kept(name: &[u8], list: Option<&Acl>) -> bool {
    name != ACCESS || list.is_none_or(|list| !list.is_minimal())
}

pub(super) fn check_kind(kind: FileKind, name: &[u8]) -> Result<()> {
    match kind {
        FileKind::Symlink if is_acl_name(name) => Err(Error::NotSupported("a list of a symbolic link")),
        FileKind::Directory => Ok(()),
        _ if name == DEFAULT => Err(Error::Invalid("only directories have a default list")),
        _ => Ok(()),
    }
}

impl Names {
    /// Whether the image supports lists. An image of an older version may not.
    pub(crate) fn has_acls(&self) -> bool {
        self.engine.store().geometry().has_acls()
    }

    /// Reads one of an inode's lists, with its slot. The caller holds the inode's io lock.
    fn list(&self, ino: Ino, name: &[u8]) -> Result<Option<(u64, Acl)>> {
        let found = self.find_xattr(ino, name)?;
        let Some(value) = &found.entry else { return Ok(None) };
        match value.small().and_then(Acl::decode) {
            Some(acl) => Ok(Some((found.at(), acl))),
            None => {
                let what = format!("an access control list of inode {ino} is none");
                Err(kedge_base::Error::corrupt(CorruptKind::Item, BlockNo(0), what).into())
            }
        }
    }

    /// Adds the edit that adapts the inode's access list to a new mode. The caller holds the
    /// inode's io lock exclusively.
    pub(super) fn list_follows_mode(
        &self,
        inode: &Inode,
        mode: u32,
        record: &mut RecordBuilder,
    ) -> Result<()> {
        if let Some((slot, acl)) = self.list(inode.ino, ACCESS)? {
            let value = acl.with_mode(mode).encode();
            let key = Key::new(inode.ino, ItemKind::Xattr, slot);
            record.put(key, &Xattr { name: ACCESS, value: &value }.encode());
        }
        Ok(())
    }

    /// Whether a new file in this directory may inherit a list. A result of `false` stays valid
    /// while the caller holds the directory's io lock.
    pub(super) fn may_inherit(&self, dir: &Inode) -> bool {
        self.has_acls() && !dir.meta.lock().no_default_acl
    }

    /// Reads the default list of a directory. The caller holds the directory's io lock.
    pub(super) fn default_list(&self, dir: &Inode) -> Result<Option<Acl>> {
        let list = self.list(dir.ino, DEFAULT)?;
        if list.is_none() {
            dir.meta.lock().no_default_acl = true;
        }
        Ok(list.map(|(_, acl)| acl))
    }

    /// Adds the lists that a new file inherits from the default list of its directory, and sets the
    /// file's mode.
    pub(super) fn inherit(&self, default: Acl, ino: Ino, core: &mut InodeCore, record: &mut RecordBuilder) {
        let kind = core.kind().expect("a new inode has a type");
        if kind == FileKind::Symlink {
            return;
        }
        let seed = &self.engine.store().geometry().hash_seed;
        let access = default.clone().for_new(core.mode);
        core.mode = core.mode & !0o777 | access.mode();
        let lists =
            [(DEFAULT, &default, kind == FileKind::Directory), (ACCESS, &access, !access.is_minimal())];
        let mut taken = None;
        for (name, acl, _) in lists.into_iter().filter(|(.., kept)| *kept) {
            let first = name_slot(seed, name);
            // If both names have the same hash, they share its slots.
            let slot = if taken == Some(first) { first + 1 } else { first };
            taken = Some(first);
            let value = acl.encode();
            record.put(Key::new(ino, ItemKind::Xattr, slot), &Xattr { name, value: &value }.encode());
        }
    }
}
