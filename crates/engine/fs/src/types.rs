//! Types of the file system's interface.

use kedge_base::{Ino, Timespec};
use kedge_format::{FileFlags, FileKind, InodeCore};
use serde::Serialize;

/// The result of format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FormatSummary {
    /// Identity of the image.
    pub uuid: uuid::Uuid,
    /// Bytes.
    pub size: u64,
    /// Bytes.
    pub log_size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Allocation groups.
    pub groups: u64,
    /// Blocks for tree and data.
    pub data_blocks: u64,
}

/// The owner of a new inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The attributes that stat(2) shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Type of the file.
    pub kind: FileKind,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names; for a directory, 2 + subdirectories.
    pub nlink: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for a device file.
    pub rdev: u64,
    /// Bytes; for a directory, its entries.
    pub size: u64,
    /// 512-byte units, as in st_blocks.
    pub blocks: u64,
    /// Last read. Updated lazily.
    pub atime: Timespec,
    /// Last change of the contents.
    pub mtime: Timespec,
    /// Last change of contents or attributes.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
    /// The flags that chattr(1) has set.
    pub flags: FileFlags,
}

impl Attr {
    pub(crate) fn from_core(ino: Ino, core: &InodeCore, kind: FileKind) -> Attr {
        Attr {
            ino,
            kind,
            mode: core.mode,
            nlink: core.nlink,
            uid: core.uid,
            gid: core.gid,
            rdev: core.rdev,
            size: core.size,
            blocks: core.blocks * 8,
            atime: core.atime,
            mtime: core.mtime,
            ctime: core.ctime,
            btime: core.btime,
            flags: core.file_flags(),
        }
    }
}

/// A new time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    At(Timespec),
}

/// Attributes to change in setattr; `None` leaves a field unchanged. Fields may be added: end an
/// expression with `..SetAttr::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (the type bits are ignored).
    pub mode: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncates, or extends with zeros.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of contents or attributes.
    pub ctime: Option<Timespec>,
    /// Only with `mode` alone: removes just set-user-id and set-group-id from the mode, where
    /// `mode` lacks them. An append-only file permits this, since the bits are removed before
    /// another user appends.
    pub before_append: bool,
}

/// One entry of readdir. "." and ".." come first.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Type of the file.
    pub kind: FileKind,
    /// Any bytes but `/` and zero.
    pub name: &'a [u8],
    /// Passed to readdir to continue after this entry. Stable while the directory changes.
    pub cookie: u64,
}

/// Flags of renameat2(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replace the target if it exists.
    #[default]
    Replace,
    /// Refuse if the target exists.
    NoReplace,
    /// Swap the two names, which must both exist.
    Exchange,
    /// Leave a whiteout under the old name: a character device of number 0, which hides the name in
    /// the lower layers of an overlay.
    Whiteout {
        /// The owner of the whiteout.
        owner: Owner,
        /// Replace the target if it exists; otherwise refuse.
        replace: bool,
    },
}

/// Flags of setxattr(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Any,
    /// Refuse if it exists.
    Create,
    /// Refuse if it does not exist.
    Replace,
}

/// Modes of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocates blocks for the range without writing them.
    Allocate {
        /// Keeps the size, even if the range extends beyond it.
        keep_size: bool,
    },
    /// Deallocates the range, which then reads as zeros.
    PunchHole,
    /// Makes the range read as zeros and allocates its holes.
    ZeroRange {
        /// Keeps the size, even if the range extends beyond it.
        keep_size: bool,
    },
    /// Removes the range and moves the data after it to its place.
    CollapseRange,
    /// Moves the data from the offset on away and leaves a hole.
    InsertRange,
}

/// Whence of lseek(2) beyond the classic three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKind {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE; the end of a file counts as a hole.
    Hole,
}

/// The result of statfs(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the image.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that file data can have.
    pub blocks_available: u64,
    /// Inodes in use and free.
    pub inodes: u64,
    /// Inodes that can still be created, as an estimate.
    pub inodes_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

/// How [`crate::FileSystem::write_with`] writes. The default behaves as write(2): as much as there
/// is space for is copied into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteMode {
    /// Writes all bytes or fails, for a caller that ignores short counts: the kernel, when it
    /// writes back pages of its cache. Bytes accepted before the error stay, since the caller's
    /// cache shows them.
    pub whole: bool,
    /// The bytes are on the device, though not flushed, when the call returns, or the call fails
    /// (`O_DIRECT`). A short count is the number of bytes on the device.
    pub through: bool,
    /// Keeps the time stamps: the caller sets them.
    pub keep_times: bool,
}

impl WriteMode {
    /// For pages that the kernel writes back from its cache, with time stamps that the kernel
    /// keeps.
    pub const fn from_cache() -> WriteMode {
        WriteMode { whole: true, through: false, keep_times: true }
    }

    /// For `O_DIRECT`.
    pub const fn direct() -> WriteMode {
        WriteMode { whole: false, through: true, keep_times: false }
    }

    /// A copy with this `whole`.
    pub const fn with_whole(self, whole: bool) -> WriteMode {
        WriteMode { whole, ..self }
    }

    /// A copy with this `through`.
    pub const fn with_through(self, through: bool) -> WriteMode {
        WriteMode { through, ..self }
    }

    /// A copy with this `keep_times`.
    pub const fn with_keep_times(self, keep_times: bool) -> WriteMode {
        WriteMode { keep_times, ..self }
    }
}
