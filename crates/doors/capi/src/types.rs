//! Structures and numbers of the header.

use crate::call::{Fault, Outcome};
use kedgefs::{Attr, FileKind, Limit, SetTime, StatFs, Timespec};
use std::ffi::{c_char, c_void};

/// An open file system, made by kedgefs_open and freed by kedgefs_close.
///
/// A handle is a number, not an address: never read through it. A handle that is closed, NULL, or
/// of another kind is refused with -EBADF.
pub struct KedgeFs {
    _private: [u8; 0],
}

/// An open file, made by kedgefs_file_open and freed by kedgefs_file_close. A number, as kedgefs_t.
pub struct KedgeFile {
    _private: [u8; 0],
}

/// An open directory, made by kedgefs_opendir and freed by kedgefs_closedir. A number, as
/// kedgefs_t.
pub struct KedgeDir {
    _private: [u8; 0],
}

/// For kedgefs_file_open: the file is read.
pub const KEDGEFS_READ: u32 = 1;
/// For kedgefs_file_open: the file is written.
pub const KEDGEFS_WRITE: u32 = 2;
/// For kedgefs_file_open, with KEDGEFS_WRITE: the file is created if the name is free.
pub const KEDGEFS_CREATE: u32 = 4;
/// For kedgefs_file_open, with KEDGEFS_CREATE: the call fails with -EEXIST if the name is taken,
/// even by a symbolic link.
pub const KEDGEFS_EXCLUSIVE: u32 = 8;
/// For kedgefs_file_open, with KEDGEFS_WRITE: an existing file becomes empty.
pub const KEDGEFS_TRUNCATE: u32 = 16;

/// For kedgefs_rename: the call fails with -EEXIST if the new name is taken.
pub const KEDGEFS_NOREPLACE: u32 = 1;
/// For kedgefs_rename: the two names, which must both exist, are swapped.
pub const KEDGEFS_EXCHANGE: u32 = 2;

/// For kedgefs_chown and kedgefs_utimens: a symbolic link at the end of the path is not followed.
pub const KEDGEFS_NOFOLLOW: u32 = 1;

/// For kedgefs_setxattr: the call fails with -EEXIST if the attribute exists.
pub const KEDGEFS_XATTR_CREATE: u32 = 1;
/// For kedgefs_setxattr: the call fails with -ENODATA if the attribute does not exist.
pub const KEDGEFS_XATTR_REPLACE: u32 = 2;

/// For kedgefs_utimens, in place of nanoseconds: the time of the call.
pub const KEDGEFS_NOW: u32 = 0xffff_ffff;

/// For kedgefs_chown: this owner stays as it is.
pub const KEDGEFS_KEEP: u32 = 0xffff_ffff;

/// For kedgefs_fork: nothing in the copy can be changed.
pub const KEDGEFS_SNAPSHOT: u32 = 1;
/// For kedgefs_commit_tree: the tree is replaced although it was changed since the fork.
pub const KEDGEFS_FORCE: u32 = 1;
/// For kedgefs_set_limit: this maximum stays as it is.
pub const KEDGEFS_KEEP_LIMIT: u64 = 0x7fff_ffff_ffff_ffff;

/// Bytes of the longest name in a directory, without the terminating zero.
pub const KEDGEFS_NAME_MAX: usize = 255;

/// A point in time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KedgeTime {
    /// Seconds since 1970-01-01 00:00 UTC, negative before.
    pub sec: i64,
    /// Nanoseconds, 0 to 999999999.
    pub nsec: u32,
    /// Zeros, for fields of later versions.
    pub reserved: u32,
}

impl From<Timespec> for KedgeTime {
    fn from(time: Timespec) -> KedgeTime {
        KedgeTime { sec: time.sec, nsec: time.nsec, reserved: 0 }
    }
}

impl KedgeTime {
    pub(crate) fn to_set(self) -> Outcome<SetTime> {
        match self.nsec {
            KEDGEFS_NOW => Ok(SetTime::Now),
            0..1_000_000_000 => Ok(SetTime::At(Timespec { sec: self.sec, nsec: self.nsec })),
            nsec => Err(Fault::new(libc::EINVAL, format!("{nsec} nanoseconds: must be below 1000000000"))),
        }
    }
}

/// Attributes of a file, as stat(2) shows them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KedgeStat {
    /// Inode number. Never used again for another file of the image.
    pub ino: u64,
    /// Bytes of a file; of a directory its entries.
    pub size: u64,
    /// Space that the file has, in units of 512 bytes.
    pub blocks: u64,
    /// Number of a device file, else 0.
    pub rdev: u64,
    /// Type and permission bits, as st_mode: S_ISDIR and the others apply.
    pub mode: u32,
    /// Number of names; of a directory 2 + its subdirectories.
    pub nlink: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last read, moved as with the mount option relatime.
    pub atime: KedgeTime,
    /// Last change of the contents.
    pub mtime: KedgeTime,
    /// Last change of contents or attributes.
    pub ctime: KedgeTime,
    /// Creation.
    pub btime: KedgeTime,
    /// Zeros, for attributes of later versions.
    pub reserved: [u64; 4],
}

impl From<Attr> for KedgeStat {
    fn from(attr: Attr) -> KedgeStat {
        KedgeStat {
            ino: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks,
            rdev: attr.rdev,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            btime: attr.btime.into(),
            reserved: [0; 4],
        }
    }
}

/// Space and inodes of a file system.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KedgeStatvfs {
    /// Blocks of the image.
    pub blocks: u64,
    /// Free blocks, including those that are kept for metadata.
    pub blocks_free: u64,
    /// Free blocks that the contents of files can have.
    pub blocks_available: u64,
    /// Inodes in use, and those that can still be made.
    pub inodes: u64,
    /// Inodes that can still be made, as an estimate: they are made on demand.
    pub inodes_free: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of the longest name.
    pub name_max: u32,
    /// Zeros, for fields of later versions.
    pub reserved: [u64; 2],
}

impl From<StatFs> for KedgeStatvfs {
    fn from(stat: StatFs) -> KedgeStatvfs {
        KedgeStatvfs {
            blocks: stat.blocks,
            blocks_free: stat.blocks_free,
            blocks_available: stat.blocks_available,
            inodes: stat.inodes,
            inodes_free: stat.inodes_free,
            block_size: stat.block_size,
            name_max: stat.name_max,
            reserved: [0; 2],
        }
    }
}

/// The limit of a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KedgeLimit {
    /// Inode number of the directory.
    pub dir: u64,
    /// Most bytes of file data; 0 if there is no such maximum.
    pub bytes_max: u64,
    /// Bytes in use, including those promised to accepted data that is not written yet.
    pub bytes: u64,
    /// Most inodes, the directory included; 0 if there is no such maximum.
    pub files_max: u64,
    /// Inodes in use.
    pub files: u64,
    /// Zeros, for fields of later versions.
    pub reserved: [u64; 3],
}

impl From<Limit> for KedgeLimit {
    fn from(limit: Limit) -> KedgeLimit {
        KedgeLimit {
            dir: limit.dir.0,
            bytes_max: limit.bytes_max.unwrap_or(0),
            bytes: limit.bytes,
            files_max: limit.files_max.unwrap_or(0),
            files: limit.files,
            reserved: [0; 3],
        }
    }
}

/// A piece of an atomic write.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KedgePiece {
    /// Offset in the file in bytes, 0 or more.
    pub offset: i64,
    /// The bytes to write.
    pub data: *const c_void,
    /// The number of bytes to write.
    pub len: usize,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KedgeDirent {
    /// Inode number.
    pub ino: u64,
    /// Type of the file, as the type bits of st_mode: S_ISDIR and the others apply.
    pub mode: u32,
    /// Bytes of the name, 1 to KEDGEFS_NAME_MAX.
    pub name_len: u32,
    /// The name, which ends with a zero. It is bytes, not text of some encoding.
    pub name: [c_char; 256],
}

const _: () = assert!(KEDGEFS_NAME_MAX < 256);

impl KedgeDirent {
    /// Makes the entry. The name comes from a directory of the file system, so it fits.
    pub(crate) fn new(ino: u64, kind: FileKind, name: &[u8]) -> KedgeDirent {
        let mut entry =
            KedgeDirent { ino, mode: kind.mode_bits(), name_len: name.len() as u32, name: [0; 256] };
        for (to, from) in entry.name.iter_mut().zip(name) {
            *to = *from as c_char;
        }
        entry
    }
}
