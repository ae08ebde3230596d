//! The errors of NFS version 3, and the conversion from the library's errors.

use kedge_base::errno;

/// The errors of `nfsstat3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    Nxio = 6,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    BadHandle = 10001,
    NotSync = 10002,
    BadCookie = 10003,
    NotSupp = 10004,
    TooSmall = 10005,
    BadType = 10007,
    /// The client repeats the call after a pause.
    Jukebox = 10008,
}

pub(crate) const OK: u32 = 0;

pub(crate) type Outcome<T> = Result<T, Status>;

impl From<kedgefs::Error> for Status {
    fn from(e: kedgefs::Error) -> Status {
        match e.errno() {
            errno::EPERM => Status::Perm,
            errno::ENOENT => Status::NoEnt,
            errno::ENXIO => Status::Nxio,
            // The name of a fork or snapshot is in the way.
            errno::EBUSY => Status::Acces,
            errno::EEXIST => Status::Exist,
            errno::EXDEV => Status::XDev,
            errno::ENOTDIR => Status::NotDir,
            errno::EISDIR => Status::IsDir,
            errno::EINVAL => Status::Inval,
            errno::EFBIG => Status::FBig,
            errno::ENOSPC => Status::NoSpc,
            errno::EROFS => Status::RoFs,
            errno::EMLINK => Status::MLink,
            errno::ENAMETOOLONG => Status::NameTooLong,
            errno::ENOTEMPTY => Status::NotEmpty,
            errno::EDQUOT => Status::DQuot,
            errno::ESTALE => Status::Stale,
            errno::EOPNOTSUPP => Status::NotSupp,
            _ => {
                tracing::warn!("a request failed: {e}");
                Status::Io
            }
        }
    }
}

/// The error of a call that names an inode by its handle: if the inode does not exist, the handle
/// is stale.
pub(crate) fn of_handle(e: kedgefs::Error) -> Status {
    match Status::from(e) {
        Status::NoEnt => Status::Stale,
        status => status,
    }
}
