//! Permissions. The library checks none, so the server checks them: by the rules of POSIX, with the
//! user and the groups of the call's credential.
//!
//! Two rules are NFS's own, since the protocol has no open files: the owner of a file may read and
//! write it whatever its mode says (the client checked the mode at the open, and the mode may have
//! changed since), and a caller that may execute a file may read it.

use crate::rpc::Credential;
use crate::status::{Outcome, Status};
use kedgefs::acl::{self, Acl, Tag};
use kedgefs::{Attr, Error, FileKind, FileSystem, Owner};

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

pub(crate) const S_ISUID: u32 = 0o4000;
pub(crate) const S_ISGID: u32 = 0o2000;
const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;

/// Which users of the clients the server maps to the anonymous user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Squash {
    /// No user: user 0 of a client is root here.
    None,
    /// User 0 and group 0.
    Root,
    /// All users.
    All,
}

/// The user on whose behalf a call acts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    groups: Vec<u32>,
}

impl Caller {
    pub(crate) fn new(credential: Credential, squash: Squash, anonymous: Owner) -> Caller {
        let nobody = Caller { uid: anonymous.uid, gid: anonymous.gid, groups: Vec::new() };
        match (credential, squash) {
            (Credential::Anonymous, _) | (_, Squash::All) => nobody,
            // The kernel reserves this number for "no id", and would not show a file with it.
            (Credential::Unix { uid: u32::MAX, .. } | Credential::Unix { gid: u32::MAX, .. }, _) => nobody,
            (Credential::Unix { uid: 0, .. }, Squash::Root) => nobody,
            (Credential::Unix { uid, gid, groups }, Squash::Root) => {
                let map = |gid| if gid == 0 { anonymous.gid } else { gid };
                Caller { uid, gid: map(gid), groups: groups.into_iter().map(map).collect() }
            }
            (Credential::Unix { uid, gid, groups }, Squash::None) => Caller { uid, gid, groups },
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub(crate) fn owns(&self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }

    pub(crate) fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid }
    }

    /// Whether the caller has all permissions in `wanted`.
    pub(crate) fn may(&self, fs: &FileSystem, attr: &Attr, wanted: u32) -> Outcome<bool> {
        if self.is_root() {
            // Root may execute a file only if its mode lets some class execute it.
            let executes = attr.kind == FileKind::Directory || attr.mode & 0o111 != 0;
            return Ok(wanted & EXECUTE == 0 || executes);
        }
        let has = |bits: u32| bits & wanted == wanted;
        if self.uid == attr.uid {
            return Ok(has(attr.mode >> 6));
        }
        // The group bits of the mode are the mask of the list: if they are zero, the list grants
        // nothing beyond the mode.
        if attr.mode & 0o070 != 0
            && let Some(list) = list_of(fs, attr)?
        {
            return Ok(self.list_grants(&list, attr, wanted));
        }
        Ok(has(if self.is_member(attr.gid) { attr.mode >> 3 } else { attr.mode }))
    }

    /// Evaluates a list by the algorithm of POSIX 1003.1e, for a caller that is not the owner. A
    /// single matching entry must grant all of `wanted`.
    fn list_grants(&self, list: &Acl, attr: &Attr, wanted: u32) -> bool {
        let has = |bits: u32| bits & wanted == wanted;
        let mask = list.entries().iter().find(|e| e.tag == Tag::Mask).map_or(7, |e| u32::from(e.permissions));
        let mut in_a_group = false;
        for entry in list.entries() {
            let bits = u32::from(entry.permissions);
            let group = match entry.tag {
                Tag::User if entry.id == self.uid => return has(bits & mask),
                Tag::OwningGroup => attr.gid,
                Tag::Group => entry.id,
                Tag::Others if !in_a_group => return has(bits),
                _ => continue,
            };
            if self.is_member(group) {
                if has(bits & mask) {
                    return true;
                }
                in_a_group = true;
            }
        }
        false
    }

    pub(crate) fn check(&self, fs: &FileSystem, attr: &Attr, wanted: u32) -> Outcome<()> {
        if self.may(fs, attr, wanted)? { Ok(()) } else { Err(Status::Acces) }
    }

    /// Checks the right to the data of a file that the caller may have opened before its mode
    /// changed (the second rule of this module: see its head).
    pub(crate) fn check_data(&self, fs: &FileSystem, attr: &Attr, wanted: u32) -> Outcome<()> {
        let is_owner = self.uid == attr.uid;
        let allowed =
            is_owner || self.may(fs, attr, wanted)? || wanted == READ && self.may(fs, attr, EXECUTE)?;
        if allowed { Ok(()) } else { Err(Status::Acces) }
    }

    /// Checks that the caller may remove a name of `victim` from `dir`, which the caller may
    /// change. If `dir` is sticky, the caller must own `dir` or `victim`.
    pub(crate) fn check_sticky(&self, dir: &Attr, victim: &Attr) -> Outcome<()> {
        let allowed = dir.mode & S_ISVTX == 0 || self.owns(dir) || self.owns(victim);
        if allowed { Ok(()) } else { Err(Status::Perm) }
    }

    /// The mode without the set-id bits that a change of owner or contents clears; `None` if it
    /// clears none. Set-group-id without group execution grants no privilege, and stays.
    pub(crate) fn without_privilege(attr: &Attr) -> Option<u32> {
        if attr.kind == FileKind::Directory {
            return None;
        }
        let mut lost = attr.mode & S_ISUID;
        if attr.mode & S_IXGRP != 0 {
            lost |= attr.mode & S_ISGID;
        }
        (lost != 0).then_some(attr.mode & crate::wire::PERMISSIONS & !lost)
    }

    /// The mode of a new file in `dir`. Set-group-id with group execution stays only if the caller
    /// is root or a member of the group that the file inherits.
    pub(crate) fn new_mode(&self, dir: &Attr, mode: u32) -> u32 {
        let runs_as_group = mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
        let inherits = dir.mode & S_ISGID != 0;
        let keeps = self.is_root() || !inherits || self.is_member(dir.gid);
        if runs_as_group && !keeps { mode & !S_ISGID } else { mode }
    }
}

/// The access control list of an inode; `None` if the inode has only a mode.
fn list_of(fs: &FileSystem, attr: &Attr) -> Outcome<Option<Acl>> {
    if !fs.has_acls() || attr.kind == FileKind::Symlink {
        return Ok(None);
    }
    match fs.getxattr(attr.ino, acl::ACCESS) {
        Ok(value) => match Acl::decode(&value) {
            Some(list) => Ok(Some(list)),
            None => {
                tracing::error!("inode {}: the access control list is damaged", attr.ino);
                Err(Status::Io)
            }
        },
        Err(Error::NoXattr) => Ok(None),
        Err(e) => Err(crate::status::of_handle(e)),
    }
}
