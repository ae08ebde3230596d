//! The operations that an inode's flags forbid. The rules are those of Linux. On a mount the kernel
//! does not know the flags, so the engine enforces them, and the FUSE server refuses opens.
//!
//! A flag is in force when the call that sets it returns, because it is set under the locks under
//! which the forbidden operations check it. The exception is an fallocate of many steps that began
//! earlier: it continues to its end.

use crate::error::{Error, Result};
use kedge_format::{FileFlags, InodeCore};

const FIXED: FileFlags = FileFlags::IMMUTABLE;

fn refuse(core: &InodeCore, flags: FileFlags, what: &'static str) -> Result<()> {
    if core.file_flags().has(flags) { Err(Error::NotPermitted(what)) } else { Ok(()) }
}

/// Checks a change of size, mode, owner, explicit times or extended attributes, or of a name of the
/// inode.
pub(crate) fn check_change(core: &InodeCore) -> Result<()> {
    refuse(core, FIXED | FileFlags::APPEND, "the file is immutable or append-only")
}

/// Checks a change of times to the current time.
pub(crate) fn check_touch(core: &InodeCore) -> Result<()> {
    refuse(core, FIXED, "the file is immutable")
}

/// Checks a write at `offset`.
pub(crate) fn check_write(core: &InodeCore, offset: u64) -> Result<()> {
    refuse(core, FIXED, "the file is immutable")?;
    if offset < core.size { refuse(core, FileFlags::APPEND, "the file is append-only") } else { Ok(()) }
}

/// Checks a new name in a directory.
pub(crate) fn check_add(dir: &InodeCore) -> Result<()> {
    refuse(dir, FIXED, "the directory is immutable")
}

/// Checks the removal of a name from a directory, or its move to another inode.
pub(crate) fn check_remove(dir: &InodeCore) -> Result<()> {
    refuse(dir, FIXED | FileFlags::APPEND, "the directory is immutable or append-only")
}
