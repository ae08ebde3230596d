//! The inode core: the fields that stat(2) reports and the fields that recovery needs.

use kedge_base::{BlockNo, CorruptKind, Error, Ino, Result, Timespec};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The file type, with the value of the type bits in a mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FileKind {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

impl FileKind {
    pub const MODE_MASK: u32 = 0o170_000;

    pub const ALL: [FileKind; 7] = [
        FileKind::Fifo,
        FileKind::CharDevice,
        FileKind::Directory,
        FileKind::BlockDevice,
        FileKind::Regular,
        FileKind::Symlink,
        FileKind::Socket,
    ];

    pub const fn mode_bits(self) -> u32 {
        (self.dtype() as u32) << 12
    }

    /// Returns the `d_type` of directory entries, which equals the mode's type bits shifted down.
    pub const fn dtype(self) -> u8 {
        match self {
            FileKind::Fifo => 1,
            FileKind::CharDevice => 2,
            FileKind::Directory => 4,
            FileKind::BlockDevice => 6,
            FileKind::Regular => 8,
            FileKind::Symlink => 10,
            FileKind::Socket => 12,
        }
    }

    pub fn from_dtype(dtype: u8) -> Option<FileKind> {
        FileKind::ALL.into_iter().find(|k| k.dtype() == dtype)
    }

    pub fn from_mode(mode: u32) -> Option<FileKind> {
        FileKind::from_dtype(((mode & FileKind::MODE_MASK) >> 12) as u8)
    }
}

/// The flags that chattr(1) sets on a file, with the numbers of `FS_IOC_SETFLAGS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct FileFlags(u32);

impl FileFlags {
    /// The file cannot be changed, renamed, linked or deleted (`chattr +i`).
    pub const IMMUTABLE: FileFlags = FileFlags(0x10);
    /// A file may only grow at its end; a directory may only get new names (`chattr +a`).
    pub const APPEND: FileFlags = FileFlags(0x20);
    /// dump(8) skips the file (`chattr +d`).
    pub const NODUMP: FileFlags = FileFlags(0x40);
    /// Reading the file does not change its access time (`chattr +A`).
    pub const NOATIME: FileFlags = FileFlags(0x80);
    /// The data has no checksums and is overwritten in place (`chattr +C`), in an image whose files
    /// have checksums.
    pub const NOCOW: FileFlags = FileFlags(0x0080_0000);

    const ALL: u32 = Self::IMMUTABLE.0 | Self::APPEND.0 | Self::NODUMP.0 | Self::NOATIME.0 | Self::NOCOW.0;
    /// The flags that a new inode inherits from its directory.
    const INHERITED: u32 = Self::NODUMP.0 | Self::NOATIME.0 | Self::NOCOW.0;

    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns `None` if `bits` has a bit that is not a flag of this format.
    pub const fn from_bits(bits: u32) -> Option<FileFlags> {
        if bits & !Self::ALL == 0 { Some(FileFlags(bits)) } else { None }
    }

    const fn from_bits_truncate(bits: u32) -> FileFlags {
        FileFlags(bits & Self::ALL)
    }

    /// Returns whether any flag of `other` is set.
    pub const fn has(self, other: FileFlags) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub const fn without(self, other: FileFlags) -> FileFlags {
        FileFlags(self.0 & !other.0)
    }

    /// Returns the flags that a new inode inherits from a directory with these flags.
    #[must_use]
    pub const fn inherited(self) -> FileFlags {
        FileFlags(self.0 & Self::INHERITED)
    }
}

impl std::ops::BitOr for FileFlags {
    type Output = FileFlags;

    fn bitor(self, other: FileFlags) -> FileFlags {
        FileFlags(self.0 | other.0)
    }
}

/// A decoded inode core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeCore {
    pub mode: u32,
    pub flags: u32,
    pub uid: u32,
    pub gid: u32,
    /// Link count. For a directory, 2 + number of subdirectories.
    pub nlink: u32,
    /// The number of the limit towards which the inode counts ([`crate::limits`]); 0 if it has no
    /// limit.
    pub limit: u32,
    /// Size in bytes; for a directory, the number of its entries without "." and "..".
    pub size: u64,
    /// Number of allocated 4 KiB blocks.
    pub blocks: u64,
    pub rdev: u64,
    /// For a directory, the directory that contains it (the root contains itself); otherwise 0.
    pub parent: Ino,
    /// Incremented by every change (the change cookie of statx).
    pub change: u64,
    pub atime: Timespec,
    pub mtime: Timespec,
    pub ctime: Timespec,
    pub btime: Timespec,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawInode {
    mode: U32,
    flags: U32,
    uid: U32,
    gid: U32,
    nlink: U32,
    limit: U32,
    size: U64,
    blocks: U64,
    rdev: U64,
    parent: U64,
    change: U64,
    /// In the order atime, mtime, ctime, btime.
    sec: [I64; 4],
    nsec: [U32; 4],
}

crate::layout::layout!(LAYOUT: RawInode, InodeCore::SIZE, {
    mode: 0, 4, "type and permission bits";
    flags: 4, 4, "of chattr(1): 0x10 immutable, 0x20 append only, 0x40 no dump, 0x80 no access time, 0x800000 no checksums";
    uid: 8, 4;
    gid: 12, 4;
    nlink: 16, 4, "of a directory, 2 + subdirectories";
    limit: 20, 4, "number of the limit that it counts for, or 0";
    size: 24, 8, "bytes; of a directory, its entries";
    blocks: 32, 8, "allocated, of 4096 bytes";
    rdev: 40, 8;
    parent: 48, 8, "of a directory: the one that names it";
    change: 56, 8, "counts every change";
    sec: 64, 32, "4 × 8: atime, mtime, ctime, btime";
    nsec: 96, 16, "4 × 4, in the same order";
});

impl InodeCore {
    /// Length of the encoded core in bytes.
    pub const SIZE: usize = 112;

    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Returns the flags in effect, provided that the image may have flags
    /// ([`Geometry::file_flags`](crate::superblock::Geometry::file_flags)). Flags of an inode that
    /// is neither a file nor a directory have no effect: only a damaged image has such flags, and
    /// no call could clear them.
    pub fn file_flags(&self) -> FileFlags {
        let flags = FileFlags::from_bits_truncate(self.flags);
        match self.kind() {
            Some(FileKind::Regular | FileKind::Directory) => flags,
            _ => flags.inherited(),
        }
    }

    /// Returns whether size and block count are small enough for sums without overflow.
    pub(crate) fn is_possible(&self) -> bool {
        self.size <= crate::SIZE_MAX && self.blocks <= crate::BLOCKS_MAX
    }

    pub fn encode(&self) -> [u8; InodeCore::SIZE] {
        let times = [self.atime, self.mtime, self.ctime, self.btime];
        let raw = RawInode {
            mode: self.mode.into(),
            flags: self.flags.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            nlink: self.nlink.into(),
            limit: self.limit.into(),
            size: self.size.into(),
            blocks: self.blocks.into(),
            rdev: self.rdev.into(),
            parent: self.parent.0.into(),
            change: self.change.into(),
            sec: times.map(|t| t.sec.into()),
            nsec: times.map(|t| t.nsec.into()),
        };
        raw.as_bytes().try_into().expect("sizes are asserted equal")
    }

    pub fn decode(bytes: &[u8]) -> Result<InodeCore> {
        let Ok(raw) = RawInode::read_from_bytes(bytes) else {
            return Err(Error::corrupt(
                CorruptKind::Inode,
                BlockNo(0),
                format!("inode item of {} bytes instead of {}", bytes.len(), InodeCore::SIZE),
            ));
        };
        let time = |i: usize| Timespec { sec: raw.sec[i].get(), nsec: raw.nsec[i].get() };
        let core = InodeCore {
            mode: raw.mode.get(),
            flags: raw.flags.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            nlink: raw.nlink.get(),
            limit: raw.limit.get(),
            size: raw.size.get(),
            blocks: raw.blocks.get(),
            rdev: raw.rdev.get(),
            parent: Ino(raw.parent.get()),
            change: raw.change.get(),
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            btime: time(3),
        };
        if core.kind().is_none() {
            return Err(Error::corrupt(
                CorruptKind::Inode,
                BlockNo(0),
                format!("mode {:o} has no file type", core.mode),
            ));
        }
        if !core.is_possible() {
            return Err(Error::corrupt(
                CorruptKind::Inode,
                BlockNo(0),
                format!("impossible size {} or count of blocks {}", core.size, core.blocks),
            ));
        }
        if raw.nsec.iter().any(|n| n.get() >= 1_000_000_000) {
            return Err(Error::corrupt(
                CorruptKind::Inode,
                BlockNo(0),
                "time stamp with a nanosecond part of a second or more",
            ));
        }
        Ok(core)
    }
}
