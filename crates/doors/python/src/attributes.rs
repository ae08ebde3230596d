//! Attributes, and extended attributes.

use crate::open::Opened;
use kedge_host::embed::{Fault, Outcome};
use kedgefs::{Attr, SetAttr, SetTime, Timespec, XattrMode};
use std::path::Path;

const NANOS: i128 = 1_000_000_000;

pub(crate) fn find(opened: &Opened, path: &Path, follow: bool) -> Outcome<Attr> {
    match follow {
        true => Ok(opened.root().metadata(path)?),
        false => Ok(opened.root().symlink_metadata(path)?),
    }
}

pub(crate) fn set(opened: &Opened, path: &Path, follow: bool, set: &SetAttr) -> Outcome<()> {
    let found = find(opened, path, follow)?;
    opened.fs().setattr(found.ino, set)?;
    Ok(())
}

/// A user or group, of which -1 is no change.
pub(crate) fn owner(id: i64) -> Outcome<Option<u32>> {
    match id {
        -1 => Ok(None),
        _ => u32::try_from(id)
            .ok()
            .filter(|id| *id != u32::MAX)
            .map(Some)
            .ok_or_else(|| Fault::invalid(format!("{id} is no user or group"))),
    }
}

/// A time in nanoseconds since 1970; `None` is the time of the call.
pub(crate) fn time(nanos: Option<i128>) -> Outcome<SetTime> {
    let Some(nanos) = nanos else { return Ok(SetTime::Now) };
    let sec = i64::try_from(nanos.div_euclid(NANOS));
    let sec = sec.map_err(|_| Fault::invalid(format!("{nanos} nanoseconds are beyond any time")))?;
    Ok(SetTime::At(Timespec { sec, nsec: nanos.rem_euclid(NANOS) as u32 }))
}

pub(crate) fn get_xattr(opened: &Opened, path: &Path, follow: bool, name: &[u8]) -> Outcome<Vec<u8>> {
    Ok(opened.fs().getxattr(find(opened, path, follow)?.ino, name)?)
}

pub(crate) fn set_xattr(
    opened: &Opened,
    path: &Path,
    follow: bool,
    name: &[u8],
    value: &[u8],
    flags: i32,
) -> Outcome<()> {
    let mode = match flags {
        0 => XattrMode::Any,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Fault::invalid(format!("flags {flags}"))),
    };
    Ok(opened.fs().setxattr(find(opened, path, follow)?.ino, name, value, mode)?)
}
