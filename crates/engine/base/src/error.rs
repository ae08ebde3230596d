//! The error type of the engine. Errors of file operations (such as ENOENT) are defined in the
//! `kedgefs` crate.

use crate::{BlockNo, Ino, Lsn, errno};
use std::sync::Arc;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of structure that is corrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CorruptKind {
    Superblock,
    AllocIndex,
    Bitmap,
    Log,
    Node,
    Item,
    Inode,
    Dentry,
    ExtentItem,
    /// File data that does not match its checksum.
    Data,
}

impl CorruptKind {
    pub const fn name(self) -> &'static str {
        match self {
            CorruptKind::Superblock => "superblock",
            CorruptKind::AllocIndex => "allocation index",
            CorruptKind::Bitmap => "allocation bitmap",
            CorruptKind::Log => "log",
            CorruptKind::Node => "tree node",
            CorruptKind::Item => "item",
            CorruptKind::Inode => "inode",
            CorruptKind::Dentry => "dentry",
            CorruptKind::ExtentItem => "extent",
            CorruptKind::Data => "file data",
        }
    }
}

/// An error of any layer below the rules of a file system.
///
/// The type is `Clone` because all waiters of a failed log force receive the same error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A structure of the image is corrupt: `kind` and `block` say where, `what` says how.
    #[error("corrupt {} at block {block}: {what}", kind.name())]
    Corrupt { kind: CorruptKind, block: BlockNo, what: Arc<str> },
    /// The device failed a request.
    #[error("device {op} of {len} bytes at offset {offset} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Io { op: &'static str, offset: u64, len: u64, errno: i32 },
    /// Another host or process has taken over the device: the mount shuts down and retries nothing.
    #[error("device was taken over by another owner")]
    Fenced,
    /// No completion arrived for a write, so its data may or may not be on the device.
    #[error("outcome of a device write is unknown")]
    OutcomeUnknown,
    /// An earlier failure, usually of a log write or a flush, has shut the mount down: every
    /// operation fails until the image is mounted again.
    #[error("file system is shut down after: {0}")]
    Shutdown(Arc<str>),
    #[error("no space left on the image")]
    NoSpace,
    #[error("image is mounted read-only")]
    ReadOnly,
    /// Another process or host uses the image.
    #[error("{0} is in use by another process")]
    Busy(Arc<str>),
    /// The image needs something that this version does not support.
    #[error("unsupported image: {0}")]
    Unsupported(Arc<str>),
    /// A request or an option is invalid; the text has the reason.
    #[error("{0}")]
    Invalid(Arc<str>),
    /// Recovery can write log-resident data neither to its own block nor to another. The data stays
    /// in the log.
    #[error("data of inode {ino} in the log cannot be put into its place, block {block}: {why}")]
    Unplaced { ino: Ino, block: BlockNo, why: Arc<Error> },
    /// A clean checkpoint must leave the log empty, but recovery would still need some records.
    #[error("the log is still needed below the checkpoint")]
    LogInUse,
    /// The operating system did not start a thread that the engine needs.
    #[error("thread {name} could not be started: {}", std::io::Error::from_raw_os_error(*errno))]
    NoThread { name: &'static str, errno: i32 },
    /// The tree to which an inode belongs was deleted; the field is the number of the tree.
    #[error("tree {0} does not exist any more")]
    NoTree(u32),
    /// An item does not fit into a tree node. Both fields are in bytes.
    #[error("item of {len} bytes, {max} are the most")]
    ItemTooLarge { len: usize, max: usize },
    /// A record or an operation needs more log space than the log can provide. Both fields are in
    /// bytes.
    #[error("operation needs {need} bytes of log, the log takes at most {max}")]
    TooLarge { need: u64, max: u64 },
}

impl Error {
    pub fn corrupt(kind: CorruptKind, block: BlockNo, what: impl Into<Arc<str>>) -> Error {
        Error::Corrupt { kind, block, what: what.into() }
    }

    pub fn corrupt_log(lsn: Lsn, what: impl std::fmt::Display) -> Error {
        Error::Corrupt {
            kind: CorruptKind::Log,
            block: BlockNo(0),
            what: format!("LSN {lsn}: {what}").into(),
        }
    }

    pub fn io(op: &'static str, offset: u64, len: u64, err: &std::io::Error) -> Error {
        Error::Io { op, offset, len, errno: err.raw_os_error().unwrap_or(errno::EIO) }
    }

    pub fn thread(name: &'static str, err: &std::io::Error) -> Error {
        Error::NoThread { name, errno: err.raw_os_error().unwrap_or(errno::EIO) }
    }

    pub fn invalid(what: impl Into<Arc<str>>) -> Error {
        Error::Invalid(what.into())
    }

    /// Returns whether a request failed because the file system that stores the image is full
    /// (ENOSPC) or a quota there is used up (EDQUOT). A plain write may then be repeated. A flush
    /// may fail in this way, too, and must not be repeated ([`Error::is_failed_flush`]).
    pub fn is_host_full(&self) -> bool {
        matches!(self, Error::Io { errno: errno::ENOSPC | errno::EDQUOT, .. })
    }

    /// Returns whether a flush failed. The operating system may report such a failure only once, so
    /// the caller that gets the error shuts the mount down: the next flush may succeed falsely.
    pub fn is_failed_flush(&self) -> bool {
        matches!(self, Error::Io { op: "flush", .. })
    }

    /// Returns the number that a system call would report for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Corrupt { kind: CorruptKind::Data, .. } => errno::EIO,
            Error::Corrupt { .. } => errno::EUCLEAN,
            // A full host leaves no space for the image either.
            e if e.is_host_full() => errno::ENOSPC,
            Error::Io { .. }
            | Error::OutcomeUnknown
            | Error::Shutdown(_)
            | Error::Fenced
            | Error::LogInUse => errno::EIO,
            Error::Unplaced { why, .. } => why.errno(),
            Error::NoThread { errno, .. } => *errno,
            Error::NoSpace => errno::ENOSPC,
            Error::NoTree(_) => errno::ESTALE,
            Error::ReadOnly => errno::EROFS,
            Error::Busy(_) => errno::EBUSY,
            Error::Unsupported(_) | Error::Invalid(_) | Error::ItemTooLarge { .. } => errno::EINVAL,
            Error::TooLarge { .. } => errno::EFBIG,
        }
    }
}
