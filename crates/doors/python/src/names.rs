//! Operations on names.

use crate::handle::Access;
use crate::open::{OpenFile, Opened};
use kedge_host::embed::{Fault, Outcome};
use kedgefs::{Entry, OpenOptions, RenameMode};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

/// The options of open(2) other than the access.
pub(crate) struct Creation {
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    pub(crate) mode: u32,
}

/// Converts the flags of open(2).
pub(crate) fn how(flags: i32, mode: u32) -> (Access, Creation) {
    let has = |flag: i32| flags & flag != 0;
    let way = flags & libc::O_ACCMODE;
    let access =
        Access { read: way != libc::O_WRONLY, write: way != libc::O_RDONLY, append: has(libc::O_APPEND) };
    let (create, exclusive) = (has(libc::O_CREAT), has(libc::O_EXCL));
    (access, Creation { create, exclusive, truncate: has(libc::O_TRUNC), mode })
}

/// Refuses bits of a mode that are no permission bits.
pub(crate) fn check_mode(mode: u32) -> Outcome<u32> {
    match mode & !0o7777 {
        0 => Ok(mode),
        _ => Err(Fault::invalid(format!("mode {mode:#o}: has other bits than permissions (0 to 0o7777)"))),
    }
}

pub(crate) fn open(opened: Arc<Opened>, path: &Path, access: Access, how: &Creation) -> Outcome<OpenFile> {
    let options = OpenOptions::new()
        .read(access.read)
        .write(access.write)
        .create(how.create)
        .create_new(how.exclusive)
        .truncate(how.truncate)
        .mode(check_mode(how.mode)?);
    let file = opened.root().open_with(path, &options)?;
    let open = OpenFile::new(opened, file);
    if access.append {
        *open.position.lock() = open.file().metadata()?.size;
    }
    Ok(open)
}

pub(crate) fn entries(opened: &Opened, path: &Path) -> Outcome<Vec<Entry>> {
    Ok(opened.root().read_dir(path)?.collect::<Result<_, _>>()?)
}

pub(crate) fn rename(opened: &Opened, from: &Path, to: &Path, mode: &str) -> Outcome<()> {
    let mode = match mode {
        "replace" => RenameMode::Replace,
        "noreplace" => RenameMode::NoReplace,
        "exchange" => RenameMode::Exchange,
        _ => return Err(Fault::invalid(format!("rename mode {mode}"))),
    };
    Ok(opened.root().rename_with(from, to, mode)?)
}

/// Makes a file, or the entries of a directory, durable.
pub(crate) fn sync(opened: &Opened, path: &Path, datasync: bool) -> Outcome<()> {
    Ok(opened.fs().fsync(opened.root().resolve(path)?, datasync)?)
}

/// Splits a path into its directory and its last name.
pub(crate) fn split(path: &Path) -> Outcome<(&Path, &OsStr)> {
    let name = path.file_name();
    let name = name.ok_or_else(|| Fault::invalid("the path does not end with a name"))?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    Ok((above.unwrap_or(Path::new("/")), name))
}
