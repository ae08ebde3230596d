//! The errors of file system operations, and their errno.

use kedge_base::{Ino, errno};
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

/// The result of a file system operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Receives the result of an operation that continued in the background.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Why an operation was refused or failed. Converted to [`std::io::Error`], it gets the kind that
/// std assigns to the same errno, and is available as [`std::io::Error::get_ref`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// ENOENT: there is no inode with this number or name.
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST: the name is taken.
    #[error("file exists")]
    Exists,
    /// ENOTDIR: the inode is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR: the inode is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY: the directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// ENAMETOOLONG: a name of more than 255 bytes, or a link target of more than 4095.
    #[error("file name too long")]
    NameTooLong,
    /// EINVAL. The text says what is wrong.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// EBUSY. The text gives the reason.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// EPERM. The text names the operation.
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// EXDEV: an inode would get a name in another tree, or the root of a tree would be renamed
    /// like a directory.
    #[error("the names are in different trees")]
    CrossTree,
    /// EXDEV: the two names are below different limits.
    #[error("the names are below different limits")]
    CrossLimit,
    /// EDQUOT: the operation needs more than the limit of a directory allows.
    #[error("the limit of a directory is reached")]
    OverLimit,
    /// EMLINK: a directory cannot get a limit, because this file below it has another name outside.
    #[error("file {1:?} (inode {0}) has another name outside of the directory")]
    LinkedOutside(Ino, Arc<str>),
    /// EMLINK: the inode has 65,000 names already.
    #[error("too many links")]
    TooManyLinks,
    /// EFBIG: the range extends beyond the largest size of a file.
    #[error("file too large")]
    FileTooLarge,
    /// EFBIG: an atomic write has more than this many bytes, or too many separate ranges.
    #[error("an atomic write has at most {0} bytes, or fewer in many separate ranges")]
    AtomicTooLarge(u64),
    /// ELOOP: a path leads through more than 40 symbolic links.
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// ENODATA: the inode has no such extended attribute.
    #[error("no such extended attribute")]
    NoXattr,
    /// E2BIG: the value has more than 64 KiB. For an access control list, or in an image without
    /// large attributes, the maximum is 4096 bytes.
    #[error("extended attribute value too large")]
    XattrTooLarge,
    /// EOPNOTSUPP. The text names the feature.
    #[error("operation not supported: {0}")]
    NotSupported(&'static str),
    /// ENXIO: the offset is at or beyond the last data or the end of the file.
    #[error("no data or hole after the offset")]
    NoSuchOffset,
    /// EIO: data of this inode that was accepted earlier could not be written to the device.
    #[error("data of inode {0} could not be written back")]
    WriteBack(Ino),
    /// Any errno, injected by a crash test. The engine itself never returns this error.
    #[cfg(feature = "injected")]
    #[error("errno {0}, asked for by a crash test")]
    Injected(i32),
    /// EIO: file data could not be written before an unmount or close, and is lost.
    #[error("{0}")]
    DataLost(Arc<LostData>),
    /// An error of the lower layers: device, corruption, space, shutdown.
    #[error(transparent)]
    Engine(#[from] kedge_base::Error),
}

impl Error {
    /// The errno that a system call returns.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => errno::ENOENT,
            Error::Exists => errno::EEXIST,
            Error::NotDirectory => errno::ENOTDIR,
            Error::IsDirectory => errno::EISDIR,
            Error::NotEmpty => errno::ENOTEMPTY,
            Error::NameTooLong => errno::ENAMETOOLONG,
            Error::Invalid(_) => errno::EINVAL,
            Error::Busy(_) => errno::EBUSY,
            Error::NotPermitted(_) => errno::EPERM,
            Error::CrossTree | Error::CrossLimit => errno::EXDEV,
            Error::OverLimit => errno::EDQUOT,
            Error::TooManyLinks | Error::LinkedOutside(..) => errno::EMLINK,
            Error::FileTooLarge | Error::AtomicTooLarge(_) => errno::EFBIG,
            Error::TooManySymlinks => errno::ELOOP,
            Error::NoXattr => errno::ENODATA,
            Error::XattrTooLarge => errno::E2BIG,
            Error::NotSupported(_) => errno::EOPNOTSUPP,
            Error::NoSuchOffset => errno::ENXIO,
            Error::WriteBack(_) => errno::EIO,
            Error::DataLost(_) => errno::EIO,
            #[cfg(feature = "injected")]
            Error::Injected(errno) => *errno,
            Error::Engine(e) => e.errno(),
        }
    }
}

/// Maps an errno to a kind. The numbers are those of Linux on every system, so std's own table,
/// which is that of the host system, cannot be used.
fn kind_of(errno: i32) -> ErrorKind {
    match errno {
        1 => ErrorKind::PermissionDenied,         // EPERM
        2 => ErrorKind::NotFound,                 // ENOENT
        7 => ErrorKind::ArgumentListTooLong,      // E2BIG
        16 => ErrorKind::ResourceBusy,            // EBUSY
        17 => ErrorKind::AlreadyExists,           // EEXIST
        18 => ErrorKind::CrossesDevices,          // EXDEV
        20 => ErrorKind::NotADirectory,           // ENOTDIR
        21 => ErrorKind::IsADirectory,            // EISDIR
        22 => ErrorKind::InvalidInput,            // EINVAL
        27 => ErrorKind::FileTooLarge,            // EFBIG
        28 => ErrorKind::StorageFull,             // ENOSPC
        30 => ErrorKind::ReadOnlyFilesystem,      // EROFS
        31 => ErrorKind::TooManyLinks,            // EMLINK
        36 => ErrorKind::InvalidFilename,         // ENAMETOOLONG
        39 => ErrorKind::DirectoryNotEmpty,       // ENOTEMPTY
        95 => ErrorKind::Unsupported,             // EOPNOTSUPP
        116 => ErrorKind::StaleNetworkFileHandle, // ESTALE
        122 => ErrorKind::QuotaExceeded,          // EDQUOT
        // A corrupt image: std has no kind for EUCLEAN.
        117 => ErrorKind::InvalidData,
        _ => ErrorKind::Other,
    }
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> std::io::Error {
        std::io::Error::new(kind_of(e.errno()), e)
    }
}

/// File data that was accepted and could not be written to any block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostData {
    /// Number of files that lost data.
    pub files: u64,
    /// Number of bytes lost, in whole pages.
    pub bytes: u64,
    /// Inode and lost bytes of up to 16 of these files, in ascending order.
    pub some: Vec<(Ino, u64)>,
}

impl LostData {
    /// The most files that `some` lists.
    pub(crate) const NAMED_MAX: usize = 16;
}

impl fmt::Display for LostData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {} files could not be written and are lost:", self.bytes, self.files)?;
        for (i, (ino, bytes)) in self.some.iter().enumerate() {
            write!(f, "{} {bytes} of inode {ino}", if i > 0 { "," } else { "" })?;
        }
        match self.files - self.some.len() as u64 {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
