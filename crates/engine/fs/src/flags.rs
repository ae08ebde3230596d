//! What the flags of inodes forbid. The rules are those of Linux; on a mount the kernel does not
//! know the flags, so that the engine alone keeps them, and the server of the mount refuses opens.
//!
//! A flag counts from the moment at which setting it returns: it is set under the locks under which
//! the operations that it forbids look at it. An exception is an fallocate of many steps that has
//! begun before: it is finished.

use crate::error::{Error, Result};
use kedge_format::{FileFlags, InodeCore};

const FIXED: FileFlags = FileFlags::IMMUTABLE;

fn refuse(core: &InodeCore, flags: FileFlags, what: &'static str) -> Result<()> {
    if core.file_flags().has(flags) { Err(Error::NotPermitted(what)) } else { Ok(()) }
}

/// Size, mode, owner, times that are given, extended attributes, a name that it gets or loses.
pub(crate) fn check_change(core: &InodeCore) -> Result<()> {
    refuse(core, FIXED | FileFlags::APPEND, "the file is immutable or append-only")
}

/// Times that become the current ones.
pub(crate) fn check_touch(core: &InodeCore) -> Result<()> {
    refuse(core, FIXED, "the file is immutable")
}

/// Bytes written at `offset`.
pub(crate) fn check_write(core: &InodeCore, offset: u64) -> Result<()> {
    refuse(core, FIXED, "the file is immutable")?;
    if offset < core.size { refuse(core, FileFlags::APPEND, "the file is append-only") } else { Ok(()) }
}

/// A new name in a directory.
pub(crate) fn check_add(dir: &InodeCore) -> Result<()> {
    refuse(dir, FIXED, "the directory is immutable")
}

/// A name that leaves a directory, or comes to stand for another inode.
pub(crate) fn check_remove(dir: &InodeCore) -> Result<()> {
    refuse(dir, FIXED | FileFlags::APPEND, "the directory is immutable or append-only")
}
