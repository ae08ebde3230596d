//! Limits of directories.

use crate::open::Opened;
use kedge_host::embed::Outcome;
use kedgefs::SetLimit;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// A limit, as Python shows it.
pub(crate) struct Limit {
    pub(crate) path: OsString,
    pub(crate) size: Option<u64>,
    pub(crate) files: Option<u64>,
    pub(crate) size_used: u64,
    pub(crate) files_used: u64,
}

pub(crate) fn set(opened: &Opened, path: &Path, change: SetLimit) -> Outcome<()> {
    opened.fs().set_limit(opened.root().dir(path)?.ino(), change)?;
    Ok(())
}

/// The nearest limit at or above a file or directory.
pub(crate) fn of(opened: &Opened, path: &Path) -> Outcome<Option<Limit>> {
    let Some(found) = opened.fs().limit_of(opened.root().resolve(path)?)? else { return Ok(None) };
    Ok(Some(Limit {
        path: OsString::from_vec(opened.fs().path_of(found.dir)?),
        size: found.bytes_max,
        files: found.files_max,
        size_used: found.bytes,
        files_used: found.files,
    }))
}
