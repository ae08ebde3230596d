//! Error numbers of the system by name, with this platform's values.

use rustix::io::Errno;

macro_rules! numbers {
    ($($name:ident = $errno:ident,)+) => {
        $(pub const $name: i32 = Errno::$errno.raw_os_error();)+
    };
}

numbers! {
    E2BIG = TOOBIG,
    EBADF = BADF,
    EBUSY = BUSY,
    EDQUOT = DQUOT,
    EEXIST = EXIST,
    EFBIG = FBIG,
    EINVAL = INVAL,
    EIO = IO,
    EISDIR = ISDIR,
    ELOOP = LOOP,
    EMLINK = MLINK,
    ENAMETOOLONG = NAMETOOLONG,
    ENODATA = NODATA,
    ENOENT = NOENT,
    ENOSPC = NOSPC,
    ESTALE = STALE,
    EXDEV = XDEV,
    ENOTDIR = NOTDIR,
    ENOTEMPTY = NOTEMPTY,
    ENXIO = NXIO,
    EOPNOTSUPP = OPNOTSUPP,
    EPERM = PERM,
    EROFS = ROFS,
}

/// "Structure needs cleaning", returned for a corrupt image. Only Linux has the number; elsewhere
/// the constant is EIO.
#[cfg(target_os = "linux")]
pub const EUCLEAN: i32 = Errno::UCLEAN.raw_os_error();
#[cfg(not(target_os = "linux"))]
pub const EUCLEAN: i32 = EIO;
