//! The ioctls of chattr(1) and lsattr(1). The kernel sends them only for files and directories. It
//! first checks for CAP_LINUX_IMMUTABLE if immutable or append-only changes, and otherwise for the
//! owner. Kernels before 5.13 did not check, so with these the flags cannot be set.

use crate::abi::{self, IoctlOut};
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use kedgefs::{FileFlags, Ino};
use zerocopy::FromZeros;

/// The flags with their bits in `struct fsxattr`.
const XFLAGS: [(FileFlags, u32); 4] = [
    (FileFlags::IMMUTABLE, 0x08),
    (FileFlags::APPEND, 0x10),
    (FileFlags::NOATIME, 0x40),
    (FileFlags::NODUMP, 0x80),
];

fn to_xflags(flags: FileFlags) -> u32 {
    XFLAGS.iter().filter(|(flag, _)| flags.has(*flag)).fold(0, |all, (_, bit)| all | bit)
}

fn from_xflags(xflags: u32) -> Answer<FileFlags> {
    let known = XFLAGS.iter().filter(|(_, bit)| xflags & bit != 0);
    let flags = known.fold(FileFlags::default(), |all, (flag, _)| all | *flag);
    if to_xflags(flags) == xflags { Ok(flags) } else { Err(Errno(libc::EOPNOTSUPP)) }
}

pub fn get(ops: &impl Ops, ino: Ino) -> Answer<abi::IoctlFlags> {
    Ok(abi::IoctlFlags { out: IoctlOut::new_zeroed(), flags: ops.getattr(ino)?.flags.bits() })
}

pub fn get_fsxattr(ops: &impl Ops, ino: Ino) -> Answer<abi::IoctlFsxattr> {
    let xflags = to_xflags(ops.getattr(ino)?.flags);
    Ok(abi::IoctlFsxattr {
        out: IoctlOut::new_zeroed(),
        attributes: abi::Fsxattr { xflags, ..abi::Fsxattr::new_zeroed() },
    })
}

/// The flags that SETFLAGS sets.
pub fn asked(flags: u32) -> Answer<FileFlags> {
    FileFlags::from_bits(flags).ok_or(Errno(libc::EOPNOTSUPP))
}

/// The flags that FSSETXATTR sets. Extent size hints and projects are not supported. A flag that
/// `struct fsxattr` cannot express stays as it is.
pub fn asked_of_fsxattr(ops: &impl Ops, ino: Ino, set: abi::Fsxattr) -> Answer<FileFlags> {
    if (set.extsize, set.projid, set.cowextsize) != (0, 0, 0) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let kept =
        if ops.getattr(ino)?.flags.has(FileFlags::NOCOW) { FileFlags::NOCOW } else { FileFlags::default() };
    Ok(from_xflags(set.xflags)? | kept)
}

/// Whether a file with these flags would refuse the write-back of pages that are dirty now.
pub fn refuses_writes(flags: FileFlags) -> bool {
    flags.has(FileFlags::IMMUTABLE | FileFlags::APPEND)
}

pub fn set(ops: &impl Ops, ino: Ino, flags: FileFlags) -> Answer<IoctlOut> {
    ops.set_flags(ino, flags)?;
    Ok(IoctlOut::new_zeroed())
}
