//! Types of the file system's interface.

use kedge_base::{Ino, Timespec};
use kedge_format::{FileFlags, FileKind, InodeCore};
use serde::Serialize;

/// Properties of the image that format has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FormatSummary {
    /// Identity of the image.
    pub uuid: uuid::Uuid,
    /// Size of the image in bytes.
    pub size: u64,
    /// Size of the log in bytes.
    pub log_size: u64,
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Number of allocation groups.
    pub groups: u64,
    /// Number of blocks for tree nodes and data.
    pub data_blocks: u64,
}

/// The owner of a new inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
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
    /// Number of names; for a directory, 2 plus the number of subdirectories.
    pub nlink: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Device number of a device file; otherwise 0.
    pub rdev: u64,
    /// Size in bytes; for a directory, the number of its entries.
    pub size: u64,
    /// Allocated space in units of 512 bytes, as in st_blocks.
    pub blocks: u64,
    /// Time of the last read; may be older (relatime).
    pub atime: Timespec,
    /// Time of the last change of the contents.
    pub mtime: Timespec,
    /// Time of the last change of contents or attributes.
    pub ctime: Timespec,
    /// Time of creation.
    pub btime: Timespec,
    /// Flags set with chattr(1).
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
    /// This time. Its nanoseconds are less than 1,000,000,000.
    At(Timespec),
}

/// Attributes to change with setattr; `None` leaves a field unchanged. Fields may be added in later
/// versions: end an expression with `..SetAttr::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits. Type bits are ignored.
    pub mode: Option<u32>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id of the owner.
    pub gid: Option<u32>,
    /// Size in bytes. Truncates the file, or extends it with zeros.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last change of the contents.
    pub mtime: Option<SetTime>,
    /// Time of the last change of contents or attributes. Its nanoseconds are less than
    /// 1,000,000,000.
    pub ctime: Option<Timespec>,
    /// Only clears set-user-id and set-group-id where `mode` lacks them. To be set with `mode` and
    /// no other field. This is permitted for an append-only file too, since a write by another user
    /// must clear these bits first.
    pub before_append: bool,
}

/// One entry of readdir. "." and ".." come first.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Type of the file.
    pub kind: FileKind,
    /// The name: any bytes except `/` and zero.
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
        /// Whether an existing target is replaced; otherwise the rename is refused.
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
    /// Removes the range; the data after it moves to its offset.
    CollapseRange,
    /// Moves the data from the offset on by the length of the range, which becomes a hole.
    InsertRange,
}

/// What lseek(2) searches for.
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
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Number of blocks of the image.
    pub blocks: u64,
    /// Number of free blocks.
    pub blocks_free: u64,
    /// Number of free blocks that file data can use.
    pub blocks_available: u64,
    /// Number of inodes in use, plus `inodes_free`.
    pub inodes: u64,
    /// Estimate of the number of inodes that can still be created.
    pub inodes_free: u64,
    /// Length of the longest name in bytes.
    pub name_max: u32,
}

/// How [`crate::FileSystem::write_with`] writes. The default behaves as write(2): it copies as many
/// bytes into memory as there is space for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteMode {
    /// Writes all bytes or fails. For a caller that ignores short counts: the kernel, when it
    /// writes back pages of its cache. Bytes accepted before the error stay, since the caller's
    /// cache shows them too.
    pub whole: bool,
    /// When the call returns, the bytes are on the device, though not flushed; otherwise it fails
    /// (`O_DIRECT`). A short count is the number of bytes on the device.
    pub through: bool,
    /// Leaves the time stamps unchanged: the caller sets them.
    pub keep_times: bool,
}

impl WriteMode {
    /// The mode for pages that the kernel writes back from its cache. The kernel also sets the time
    /// stamps.
    pub const fn from_cache() -> WriteMode {
        WriteMode { whole: true, through: false, keep_times: true }
    }

    /// The mode for `O_DIRECT`.
    pub const fn direct() -> WriteMode {
        WriteMode { whole: false, through: true, keep_times: false }
    }

    /// Returns a copy with another `whole`.
    pub const fn with_whole(self, whole: bool) -> WriteMode {
        WriteMode { whole, ..self }
    }

    /// Returns a copy with another `through`.
    pub const fn with_through(self, through: bool) -> WriteMode {
        WriteMode { through, ..self }
    }

    /// Returns a copy with another `keep_times`.
    pub const fn with_keep_times(self, keep_times: bool) -> WriteMode {
        WriteMode { keep_times, ..self }
    }
}
