//! Operations on paths.
#![allow(unsafe_code, reason = "functions for C take pointers, and names of their own")]

use crate::arg;
use crate::call::{At, Fault, on};
use crate::file::check_mode;
use crate::open::Volume;
use crate::types::{KEDGEFS_EXCHANGE, KEDGEFS_NOREPLACE, KedgeFs};
use kedgefs::RenameMode;
use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

/// Makes a directory. `mode` has its permission bits, such as 0755; no umask is applied.
///
/// Returns 0, or -EEXIST, -ENOENT, -ENOTDIR, -ENAMETOOLONG, -EMLINK, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_mkdir(fs: *mut KedgeFs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let path = unsafe { arg::path(path) };
    on(
        "kedgefs_mkdir",
        || Volume::find(fs),
        |volume| {
            let path = path?;
            check_mode(mode)?;
            volume.root.create_dir_with(path, mode).at(path)?;
            Ok(0)
        },
    ) as c_int
}

/// Removes an empty directory.
///
/// Returns 0, or -ENOENT, -ENOTDIR, -ENOTEMPTY, -EROFS; -EINVAL for "/" and for a path that ends
/// with "." or "..".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_rmdir(fs: *mut KedgeFs, path: *const c_char) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let path = unsafe { arg::path(path) };
    on(
        "kedgefs_rmdir",
        || Volume::find(fs),
        |volume| {
            let path = path?;
            volume.root.remove_dir(path).at(path)?;
            Ok(0)
        },
    ) as c_int
}

/// Removes a name of a file that is not a directory. The file is deleted with its last name, once
/// it is no longer open.
///
/// Returns 0, or -ENOENT, -EISDIR, -ENOTDIR, -EROFS, -EPERM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_unlink(fs: *mut KedgeFs, path: *const c_char) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let path = unsafe { arg::path(path) };
    on(
        "kedgefs_unlink",
        || Volume::find(fs),
        |volume| {
            let path = path?;
            volume.root.remove_file(path).at(path)?;
            Ok(0)
        },
    ) as c_int
}

/// Moves a name atomically: no crash leaves both names or neither. Replaces what has the new name,
/// unless `flags` is KEDGEFS_NOREPLACE, or KEDGEFS_EXCHANGE. It is durable after kedgefs_fsync of
/// the file, kedgefs_fsync_dir of the directory, or kedgefs_sync.
///
/// Returns 0, or
/// -ENOENT: no such name;
/// -EEXIST: the new name is taken, with KEDGEFS_NOREPLACE;
/// -ENOTEMPTY, -EISDIR, -ENOTDIR: what has the new name cannot be replaced by this;
/// -EINVAL: a directory would move below itself, or a path ends with "." or "..";
/// -ENAMETOOLONG, -EMLINK, -ENOSPC, -EROFS, -EPERM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_rename(
    fs: *mut KedgeFs,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings.
    let (from, to) = unsafe { (arg::path(from), arg::path(to)) };
    on(
        "kedgefs_rename",
        || Volume::find(fs),
        |volume| {
            let (from, to) = (from?, to?);
            let mode = match flags {
                0 => RenameMode::Replace,
                KEDGEFS_NOREPLACE => RenameMode::NoReplace,
                KEDGEFS_EXCHANGE => RenameMode::Exchange,
                _ => return Err(Fault::invalid(format!("unknown flags {flags:#x}"))),
            };
            volume.root.rename_with(from, to, mode).at(from)?;
            Ok(0)
        },
    ) as c_int
}

/// Adds the name `to` to the file at `from`, which is not a directory. A symbolic link at the end
/// of `from` is not followed.
///
/// Returns 0, or -ENOENT, -EEXIST, -EPERM (a directory), -EMLINK (65000 links), -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_link(fs: *mut KedgeFs, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings.
    let (from, to) = unsafe { (arg::path(from), arg::path(to)) };
    on(
        "kedgefs_link",
        || Volume::find(fs),
        |volume| {
            let (from, to) = (from?, to?);
            volume.root.hard_link(from, to).at(to)?;
            Ok(0)
        },
    ) as c_int
}

/// Makes a symbolic link at `path`. Its target has 1 to 4095 bytes and is not interpreted. An
/// absolute target starts at the root of the image.
///
/// Returns 0, or -EEXIST, -ENOENT, -ENAMETOOLONG, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_symlink(
    fs: *mut KedgeFs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings.
    let (target, path) = unsafe { (arg::path(target), arg::path(path)) };
    on(
        "kedgefs_symlink",
        || Volume::find(fs),
        |volume| {
            let (target, path) = (target?, path?);
            volume.root.symlink(target, path).at(path)?;
            Ok(0)
        },
    ) as c_int
}

/// The target of a symbolic link, with a terminating zero.
///
/// Returns the length without the zero. With `len` 0 nothing is written, and buf may be NULL. Or
/// -ERANGE: the buffer has no room for target and zero;
/// -EINVAL: not a symbolic link;
/// -ENOENT, -ENOTDIR, -ELOOP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_readlink(
    fs: *mut KedgeFs,
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
) -> i64 {
    // SAFETY: kedgefs.h requires a NUL-terminated string and a buffer of `len` bytes.
    let (path, buf) = unsafe { (arg::path(path), arg::buffer(buf.cast::<c_void>(), len)) };
    on(
        "kedgefs_readlink",
        || Volume::find(fs),
        |volume| {
            let (path, buf) = (path?, buf?);
            let target = volume.root.read_link(path).at(path)?;
            let target = target.as_os_str().as_bytes();
            arg::copy_out(&[target, b"\0"].concat(), buf)?;
            Ok(target.len() as i64)
        },
    )
}

/// Makes the entries of a directory durable: names that were made, moved or removed in it.
/// kedgefs_fsync of a file covers the file's own name already.
///
/// Returns 0, or -ENOENT, -ENOTDIR, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_fsync_dir(fs: *mut KedgeFs, path: *const c_char) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let path = unsafe { arg::path(path) };
    on(
        "kedgefs_fsync_dir",
        || Volume::find(fs),
        |volume| {
            let path = path?;
            volume.root.dir(path).and_then(|dir| dir.sync_all()).at(path)?;
            Ok(0)
        },
    ) as c_int
}
