//! Open directories.
#![allow(unsafe_code, reason = "functions for C take pointers, and names of their own")]

use crate::arg::{self, Out};
use crate::call::{At, Fault, on};
use crate::open::{OpenDir, Volume};
use crate::types::{KEDGEFS_NAME_MAX, KedgeDir, KedgeDirent, KedgeFs};
use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

/// Opens a directory to list its entries.
///
/// Returns 0 and sets *dir, or -ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_opendir(
    fs: *mut KedgeFs,
    path: *const c_char,
    dir: *mut *mut KedgeDir,
) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string and a pointer to a handle.
    let (path, dir) = unsafe { (arg::path(path), Out::new(dir)) };
    on(
        "kedgefs_opendir",
        || Volume::find(fs),
        |volume| {
            let (path, dir) = (path?, dir?);
            let entries = volume.root.read_dir(path).at(path)?;
            dir.put(OpenDir::insert(volume.clone(), entries)?);
            Ok(0)
        },
    ) as c_int
}

/// The next entry of a directory, in no particular order, without "." and "..". Entries that are
/// made or removed meanwhile may or may not be among them.
///
/// Returns 1 and sets *entry, or 0 after the last one, or -EIO. After an error there are no further
/// entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_readdir(dir: *mut KedgeDir, entry: *mut KedgeDirent) -> c_int {
    // SAFETY: kedgefs.h requires a pointer to a structure.
    let entry = unsafe { Out::new(entry) };
    on(
        "kedgefs_readdir",
        || OpenDir::find(dir),
        |dir| {
            let entry = entry?;
            let Some(next) = dir.entries.lock().next() else { return Ok(0) };
            let next = next?;
            let name = next.name.as_bytes();
            if name.len() > KEDGEFS_NAME_MAX {
                return Err(Fault::new(libc::EUCLEAN, format!("a name of {} bytes", name.len())));
            }
            entry.put(KedgeDirent::new(next.ino.0, next.kind, name));
            Ok(1)
        },
    ) as c_int
}

/// Closes a directory. The handle is invalid from then on.
///
/// Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_closedir(dir: *mut KedgeDir) -> c_int {
    on("kedgefs_closedir", || OpenDir::take(dir), |_| Ok(0)) as c_int
}
