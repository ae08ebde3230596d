//! Edits: the smallest changes that a crash can keep or lose on their own.

use crate::page::{Name, Page};
use std::ops::Range;
use std::sync::Arc;

/// Type, permissions and owner of an inode. Time stamps are not part of a crash state: no model
/// promises them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Meta {
    pub const KINDS: u32 = 0o170000;
    pub const FILE: u32 = 0o100000;
    pub const DIR: u32 = 0o040000;
    pub const LINK: u32 = 0o120000;

    /// The type bits; 0 means a regular file, as in mknod(2).
    pub fn kind(&self) -> u32 {
        match self.mode & Meta::KINDS {
            0 => Meta::FILE,
            kind => kind,
        }
    }
}

/// Bytes of one write call; the edits of that call share them.
#[derive(Clone, Debug)]
pub struct Slice {
    pub of: Arc<[u8]>,
    pub range: Range<u32>,
}

impl Slice {
    pub fn as_slice(&self) -> &[u8] {
        &self.of[self.range.start as usize..self.range.end as usize]
    }
}

#[derive(Clone, Debug)]
pub enum Edit {
    /// A new inode. No program can reach it before an edit adds a name.
    Inode {
        ino: u64,
        meta: Meta,
        target: Option<Arc<[u8]>>,
    },
    Add {
        dir: u64,
        name: Name,
        ino: u64,
    },
    Remove {
        dir: u64,
        name: Name,
        ino: u64,
    },
    /// A rename. It is a single edit, because every model treats rename as atomic, except where
    /// `rename_may_link` splits it.
    Rename {
        dir: u64,
        name: Name,
        new_dir: u64,
        new_name: Name,
        ino: u64,
        victim: Option<u64>,
        exchange: bool,
    },
    /// Bytes inside one page. `whole` is set if they are the entire page.
    Data {
        ino: u64,
        page: u64,
        at: u16,
        bytes: Slice,
        whole: Option<Arc<Page>>,
    },
    /// A write extended the file to this length.
    Grow {
        ino: u64,
        size: u64,
    },
    /// Sets the size of a file by truncate(2), to a smaller or a larger value.
    Truncate {
        ino: u64,
        size: u64,
    },
    Zero {
        ino: u64,
        from: u64,
        to: u64,
    },
    /// Moves the bytes from `from` on to `to`, as fallocate's collapse and insert do.
    Shift {
        ino: u64,
        from: u64,
        to: u64,
        size: u64,
    },
    Attr {
        ino: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Xattr {
        ino: u64,
        name: Name,
        value: Option<Arc<[u8]>>,
    },
}

impl Edit {
    /// The inode whose contents or attributes the edit changes. Changes of a directory's entries do
    /// not count.
    pub fn own(&self) -> Option<u64> {
        match self {
            Edit::Inode { ino, .. }
            | Edit::Data { ino, .. }
            | Edit::Grow { ino, .. }
            | Edit::Truncate { ino, .. }
            | Edit::Zero { ino, .. }
            | Edit::Shift { ino, .. }
            | Edit::Attr { ino, .. }
            | Edit::Xattr { ino, .. } => Some(*ino),
            Edit::Add { .. } | Edit::Remove { .. } | Edit::Rename { .. } => None,
        }
    }

    /// The inodes that gain or lose a name by the edit.
    pub fn named(&self) -> [Option<u64>; 2] {
        match self {
            Edit::Add { ino, .. } | Edit::Remove { ino, .. } => [Some(*ino), None],
            Edit::Rename { ino, victim, .. } => [Some(*ino), *victim],
            _ => [None, None],
        }
    }

    /// The directories whose entries the edit changes.
    pub fn dirs(&self) -> [Option<u64>; 2] {
        match self {
            Edit::Add { dir, .. } | Edit::Remove { dir, .. } => [Some(*dir), None],
            Edit::Rename { dir, new_dir, .. } => [Some(*dir), Some(*new_dir)],
            _ => [None, None],
        }
    }

    pub fn is_name(&self) -> bool {
        self.dirs()[0].is_some()
    }

    pub fn is_data(&self) -> bool {
        matches!(self, Edit::Data { .. })
    }
}
