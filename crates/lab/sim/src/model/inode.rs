//! An inode of the reference model, and how its mode and its access control list follow each other.

use crate::content::Content;
use crate::ops::{AclBits, OWNER, acl_bytes, acl_name};
use kedgefs::{FileFlags, FileKind, Timespec};
use std::collections::BTreeMap;

/// The model's inode number.
pub type Id = u64;

pub const ROOT: Id = 1;

/// Maximum of bytes and of files below a directory.
pub type Limit = (u64, u64);

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
    /// Whether the last name was removed: such an inode cannot get another name (a new nameless
    /// file can).
    pub dead: bool,
    pub content: Content,
    pub entries: BTreeMap<String, Id>,
    /// For a directory: its parent.
    pub parent: Id,
    pub target: String,
    /// The root of the inode's tree.
    pub tree: Id,
    /// The limit of a directory.
    pub limit: Option<Limit>,
    pub xattrs: BTreeMap<String, String>,
    /// The access control list, which is also in `xattrs`, and the default list of a directory.
    pub access: Option<AclBits>,
    pub default: Option<AclBits>,
    /// Times, where the model knows them: they were set explicitly or
    /// [learned](super::Model::learn_times), and have not changed since.
    pub atime: Option<Timespec>,
    pub mtime: Option<Timespec>,
    pub ctime: Option<Timespec>,
}

/// Returns the list with the permissions of a mode.
fn with_perm([_, user, group, ..]: AclBits, perm: u32) -> AclBits {
    let class = |shift: u32| (perm >> shift & 7) as u16;
    [class(6), user, group, class(3), class(0)]
}

impl Inode {
    pub(super) fn new(kind: FileKind, perm: u32) -> Inode {
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

    /// Sets a list. The access control list also changes the mode.
    pub(super) fn set_acl(&mut self, default: bool, list: AclBits) {
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

    /// Sets the mode, which also changes the access control list.
    pub(super) fn set_perm(&mut self, perm: u32) {
        self.perm = perm & 0o7777;
        if let Some(list) = self.access {
            self.set_acl(false, with_perm(list, perm));
        }
    }

    /// Takes over the default list of the parent directory.
    pub(super) fn inherit(&mut self, list: AclBits) {
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
