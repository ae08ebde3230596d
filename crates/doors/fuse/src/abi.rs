//! The FUSE wire format as plain structs, opcodes and flags.
//!
//! Integers are in host order. An `assert!` after each struct checks its size, which for structs of
//! the protocol is a multiple of 8 bytes. A request is an [`InHeader`], one argument struct, and
//! then names or data. Only the types that this server uses are defined here. A request with an
//! unknown opcode gets ENOSYS, after which the kernel works without that request.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const MAJOR: u32 = 7;
/// The protocol version of this server; statx is the newest request that it supports.
pub const MINOR: u32 = 40;
/// The oldest supported version. Before 7.23 (Linux 3.15) SETATTR has no ctime, and structs have
/// other sizes.
pub const MINOR_MIN: u32 = 23;
/// From 7.44 (Linux 6.16) on the kernel considers an inode found by a file handle stale.
pub const MINOR_EPOCH: u32 = 44;
/// The version of Linux 5.14. From Linux 5.13 on the kernel checks the right to set file flags
/// before it passes the ioctl on; 5.14 is the next version that can be recognised.
pub const MINOR_FLAGS: u32 = 34;

/// The largest payload of one READ or WRITE: 256 pages, the most the kernel grants without a
/// sysctl.
pub const MAX_IO: usize = 1 << 20;
pub const MAX_PAGES: u16 = 256;

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

wire!(InHeader = 40 {
    len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
});
wire!(OutHeader = 16 { len: u32, error: i32, unique: u64 });
wire!(InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 });
wire!(
    /// Follows [`InitIn`] when [`init::INIT_EXT`] is set.
    InitInExt = 48 { flags2: u32, unused: [u32; 11] }
);
wire!(InitOut = 64 {
    major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
    max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, unused: [u32; 6],
});
wire!(Attr = 88 {
    ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
    ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
});
wire!(AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr });
wire!(EntryOut = 128 {
    nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
    attr: Attr,
});
wire!(ForgetIn = 8 { nlookup: u64 });
wire!(BatchForgetIn = 8 { count: u32, dummy: u32 });
wire!(ForgetOne = 16 { nodeid: u64, nlookup: u64 });
wire!(SetattrIn = 88 {
    valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
    mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
});
wire!(MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 });
wire!(MkdirIn = 8 { mode: u32, umask: u32 });
wire!(RenameIn = 8 { newdir: u64 });
wire!(Rename2In = 16 { newdir: u64, flags: u32, padding: u32 });
wire!(LinkIn = 8 { oldnodeid: u64 });
wire!(OpenIn = 8 { flags: u32, open_flags: u32 });
wire!(CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 });
wire!(OpenOut = 16 { fh: u64, open_flags: u32, padding: u32 });
wire!(CreateOut = 144 { entry: EntryOut, open: OpenOut });
wire!(
    /// READ, READDIR and READDIRPLUS.
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
);
wire!(WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 });
wire!(WriteOut = 8 { size: u32, padding: u32 });
wire!(ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 });
wire!(StatfsOut = 80 {
    blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32,
    spare: [u32; 6],
});
wire!(FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 });
wire!(SetxattrIn = 8 { size: u32, flags: u32 });
wire!(
    /// Follows [`SetxattrIn`] when [`init::SETXATTR_EXT`] is set.
    SetxattrInExt = 8 { setxattr_flags: u32, padding: u32 }
);
wire!(
    /// GETXATTR and LISTXATTR.
    GetxattrIn = 8 { size: u32, padding: u32 }
);
wire!(GetxattrOut = 8 { size: u32, padding: u32 });
wire!(CopyFileRangeIn = 56 {
    fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
});
wire!(CopyFileRange64Out = 8 { size: u64 });
wire!(FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 });
wire!(LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 });
wire!(LseekOut = 8 { offset: u64 });
wire!(IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 });
wire!(IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 });
wire!(
    /// `struct fstrim_range` of `linux/fs.h`.
    TrimRange = 24 { start: u64, len: u64, min_len: u64 }
);
wire!(
    /// A tree to make or to delete; its name in the open directory has `name_len` bytes.
    TreeIn = 272 { source: u64, flags: u32, name_len: u32, name_head: [u64; 32] }
);
wire!(
    /// The maxima of a directory; 0 means no maximum.
    LimitIn = 24 { bytes: u64, files: u64, flags: u32, padding: u32 }
);
wire!(IoctlTrimOut = 40 { out: IoctlOut, range: TrimRange });
wire!(IoctlFlags = 20 { out: IoctlOut, flags: u32 });
wire!(
    /// `struct fsxattr` of `linux/fs.h`.
    Fsxattr = 28 { xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u8; 8] }
);
wire!(IoctlFsxattr = 44 { out: IoctlOut, attributes: Fsxattr });
wire!(StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 });
wire!(StatxTime = 16 { sec: i64, nsec: u32, reserved: i32 });
wire!(Statx = 256 {
    mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
    size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime, ctime: StatxTime,
    mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
});
wire!(StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx });
wire!(
    /// The name follows, padded with zeros to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
);
wire!(InvalInodeOut = 24 { ino: u64, off: i64, len: i64 });
wire!(InvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32 });

/// Bytes of an entry with a head of `head` bytes and a name of `name` bytes.
pub const fn dirent_size(head: usize, name: usize) -> usize {
    (head + name + 7) & !7
}

/// Opcodes, with the names that the counters show.
macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        pub mod op {
            $(pub const $name: u32 = $number;)*
        }

        /// The name of an opcode, for messages and counters.
        pub const fn op_name(opcode: u32) -> &'static str {
            match opcode {
                $($number => stringify!($name),)*
                _ => "UNKNOWN",
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9, UNLINK = 10,
    RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20,
    SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28,
    RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36,
    BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43,
    READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SETUPMAPPING = 48, REMOVEMAPPING = 49,
    SYNCFS = 50, TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
}

/// One more than the highest known opcode.
pub const OPCODES: usize = 54;

/// Flags of INIT: offered by the kernel, and accepted by the server.
pub mod init {
    pub const ASYNC_READ: u32 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub const EXPORT_SUPPORT: u32 = 1 << 4;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const DONT_MASK: u32 = 1 << 6;
    pub const AUTO_INVAL_DATA: u32 = 1 << 12;
    pub const DO_READDIRPLUS: u32 = 1 << 13;
    pub const ASYNC_DIO: u32 = 1 << 15;
    pub const WRITEBACK_CACHE: u32 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u32 = 1 << 17;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    pub const POSIX_ACL: u32 = 1 << 20;
    pub const ABORT_ERROR: u32 = 1 << 21;
    pub const MAX_PAGES: u32 = 1 << 22;
    pub const CACHE_SYMLINKS: u32 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u32 = 1 << 24;
    pub const HANDLE_KILLPRIV_V2: u32 = 1 << 28;
    pub const SETXATTR_EXT: u32 = 1 << 29;
    pub const INIT_EXT: u32 = 1 << 30;
}

/// Flags of INIT from bit 32 on: [`InitInExt::flags2`] and [`InitOut::flags2`].
pub mod init2 {
    pub const NO_EXPORT_SUPPORT: u32 = 1 << 6;
    /// The kernel supports resending requests ([`super::NOTIFY_RESEND`]). The server need not
    /// accept this flag.
    pub const HAS_RESEND: u32 = 1 << 7;
    pub const ALLOW_IDMAP: u32 = 1 << 8;
    pub const OVER_IO_URING: u32 = 1 << 9;
}

/// The value of [`InHeader::uid`] and [`InHeader::gid`] if idmapped mounts are permitted and the
/// request makes no inode.
pub const NO_ID: u32 = u32::MAX;

/// [`SetattrIn::valid`].
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// The ioctls that the server implements, by [`IoctlIn::cmd`].
pub mod ioctl {
    /// Freezes the file system of an open directory. Its argument points to a `u32`: the seconds
    /// until an automatic thaw; 0 means never.
    pub const FREEZE: u32 = 0x4004_6b01;
    /// Ends the freeze.
    pub const THAW: u32 = 0x6b02;
    /// Forks a tree into the open directory, with a [`super::TreeIn`] as input.
    pub const FORK: u32 = 0x4110_6b03;
    /// Deletes a tree that the open directory names, with a [`super::TreeIn`] as input.
    pub const DELETE_TREE: u32 = 0x4110_6b04;
    /// Replaces a tree that the open directory names by a fork, with a [`super::TreeIn`] as input.
    pub const ROLL_BACK: u32 = 0x4110_6b05;
    /// Replaces a tree that the open directory names by another tree, likewise.
    pub const COMMIT_TREE: u32 = 0x4110_6b06;
    /// Sets the limit of the open directory, with a [`super::LimitIn`] as input.
    pub const SET_LIMIT: u32 = 0x4018_6b07;
    /// `FITRIM`, with a [`super::TrimRange`] as input and output.
    pub const TRIM: u32 = 0xc018_5879;
    /// `FS_IOC_SHUTDOWN` (XFS_IOC_GOINGDOWN).
    pub const SHUTDOWN: u32 = 0x8004_587d;
    /// `FS_IOC_GETFLAGS` and the three below: chattr(1) and lsattr(1).
    pub const GETFLAGS: u32 = 0x8008_6601;
    pub const SETFLAGS: u32 = 0x4008_6602;
    pub const FSGETXATTR: u32 = 0x801c_581f;
    pub const FSSETXATTR: u32 = 0x401c_5820;
    /// The ioctls of F2FS for atomic writes; the first returns a `u32`.
    pub const F2FS_GET_FEATURES: u32 = 0x8004_f50c;
    pub const F2FS_START_ATOMIC_WRITE: u32 = 0xf501;
    pub const F2FS_COMMIT_ATOMIC_WRITE: u32 = 0xf502;
    pub const F2FS_ABORT_ATOMIC_WRITE: u32 = 0xf505;
}

/// [`TreeIn::flags`]: the fork is a snapshot, which is read-only.
pub const TREE_READ_ONLY: u32 = 1 << 0;
/// [`TreeIn::flags`]: replaces a tree even if it was changed since the fork.
pub const TREE_FORCE: u32 = 1 << 1;

/// [`LimitIn::flags`]: the maxima to set; the others stay unchanged.
pub const LIMIT_BYTES: u32 = 1 << 0;
pub const LIMIT_FILES: u32 = 1 << 1;

/// [`OpenOut::open_flags`].
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
}

/// [`SetxattrInExt::setxattr_flags`]: the set-group-id bit must be cleared, because the caller may
/// not keep it.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// [`OpenIn::open_flags`].
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// [`WriteIn::write_flags`]: the data is written back from the kernel's cache. The kernel ignores a
/// short count in the reply.
pub const WRITE_CACHE: u32 = 1 << 0;
/// [`WriteIn::write_flags`].
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// [`FsyncIn::fsync_flags`].
pub const FSYNC_DATASYNC: u32 = 1 << 0;
/// An unsolicited message: attributes are stale, and pages too unless the offset is negative.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// An unsolicited message: the inode of a name is stale. The name follows, ended by a zero.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// [`InvalEntryOut::flags`]: the name is looked up again before it is used. Without the flag the
/// name is dropped immediately, which for a directory detaches the mounts below it.
pub const INVAL_EXPIRE_ONLY: u32 = 1 << 0;
/// An unsolicited message: asks the kernel to resend the requests that were received and have no
/// reply, with [`UNIQUE_RESEND`].
pub const NOTIFY_RESEND: i32 = 7;
/// Set in [`InHeader::unique`] of a resent request.
pub const UNIQUE_RESEND: u64 = 1 << 63;
