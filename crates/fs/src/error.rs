//! What a file system operation can answer, and its errno: the one place where the file system's errno numbers appear.

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation was refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("no such file or directory")]
    NotFound,
    #[error("file exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory not empty")]
    NotEmpty,
    #[error("file name too long")]
    NameTooLong,
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    #[error("too many links")]
    TooManyLinks,
    #[error("file too large")]
    FileTooLarge,
    #[error("no such extended attribute")]
    NoXattr,
    #[error("extended attribute value too large")]
    XattrTooLarge,
    #[error("operation not supported: {0}")]
    NotSupported(&'static str),
    #[error("no data or hole behind the offset")]
    NoSuchOffset,
    #[error("data of inode {0} could not be written back")]
    WriteBack(kedge_base::Ino),
    /// The engine's own errors: device, corruption, space, shutdown.
    #[error(transparent)]
    Engine(#[from] kedge_base::Error),
}

impl Error {
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => 2,         // ENOENT
            Error::Exists => 17,          // EEXIST
            Error::NotDirectory => 20,    // ENOTDIR
            Error::IsDirectory => 21,     // EISDIR
            Error::NotEmpty => 39,        // ENOTEMPTY
            Error::NameTooLong => 36,     // ENAMETOOLONG
            Error::Invalid(_) => 22,      // EINVAL
            Error::NotPermitted(_) => 1,  // EPERM
            Error::TooManyLinks => 31,    // EMLINK
            Error::FileTooLarge => 27,    // EFBIG
            Error::NoXattr => 61,         // ENODATA
            Error::XattrTooLarge => 7,    // E2BIG
            Error::NotSupported(_) => 95, // EOPNOTSUPP
            Error::NoSuchOffset => 6,     // ENXIO
            Error::WriteBack(_) => 5,     // EIO
            Error::Engine(e) => e.errno(),
        }
    }
}
