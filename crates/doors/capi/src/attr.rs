//! Attributes, and extended attributes.
#![allow(unsafe_code, reason = "functions for C take pointers, and names of their own")]

use crate::arg::{self, Out};
use crate::call::{At, Fault, Outcome, on};
use crate::file::check_mode;
use crate::open::Volume;
use crate::types::{
    KEDGEFS_KEEP, KEDGEFS_NOFOLLOW, KEDGEFS_XATTR_CREATE, KEDGEFS_XATTR_REPLACE, KedgeFs, KedgeStat,
    KedgeTime,
};
use kedgefs::{Attr, SetAttr, XattrMode};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

/// Attributes of a file, directory or other node. Symbolic links are followed.
///
/// Returns 0 and sets *result, or -ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_stat(
    fs: *mut KedgeFs,
    path: *const c_char,
    result: *mut KedgeStat,
) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string and a pointer to a structure.
    let (path, result) = unsafe { (arg::path(path), Out::new(result)) };
    on(
        "kedgefs_stat",
        || Volume::find(fs),
        |volume| {
            let (path, result) = (path?, result?);
            result.put(volume.root.metadata(path).at(path)?.into());
            Ok(0)
        },
    ) as c_int
}

/// As kedgefs_stat, but of a symbolic link at the end of the path itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_lstat(
    fs: *mut KedgeFs,
    path: *const c_char,
    result: *mut KedgeStat,
) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string and a pointer to a structure.
    let (path, result) = unsafe { (arg::path(path), Out::new(result)) };
    on(
        "kedgefs_lstat",
        || Volume::find(fs),
        |volume| {
            let (path, result) = (path?, result?);
            result.put(volume.root.symlink_metadata(path).at(path)?.into());
            Ok(0)
        },
    ) as c_int
}

fn find(volume: &Volume, path: &Path, flags: u32) -> Outcome<Attr> {
    match flags {
        0 => volume.root.metadata(path).at(path),
        KEDGEFS_NOFOLLOW => volume.root.symlink_metadata(path).at(path),
        _ => Err(Fault::invalid(format!("unknown flags {flags:#x}"))),
    }
}

fn set(volume: &Volume, path: &Path, flags: u32, set: &SetAttr) -> Outcome<i64> {
    let found = find(volume, path, flags)?;
    volume.fs.setattr(found.ino, set).at(path)?;
    Ok(0)
}

/// Sets the permission bits, 0 to 07777. Symbolic links are followed.
///
/// Returns 0, or -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_chmod(fs: *mut KedgeFs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let path = unsafe { arg::path(path) };
    on(
        "kedgefs_chmod",
        || Volume::find(fs),
        |volume| {
            check_mode(mode)?;
            set(volume, path?, 0, &SetAttr { mode: Some(mode), ..SetAttr::default() })
        },
    ) as c_int
}

/// Sets user and group, each of which may be KEDGEFS_KEEP. `flags` is 0 or KEDGEFS_NOFOLLOW. The
/// set-user-id and set-group-id bits stay: a program that gives files away clears them first.
///
/// Returns 0, or -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_chown(
    fs: *mut KedgeFs,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: u32,
) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let path = unsafe { arg::path(path) };
    on(
        "kedgefs_chown",
        || Volume::find(fs),
        |volume| {
            let given = |id: u32| (id != KEDGEFS_KEEP).then_some(id);
            set(volume, path?, flags, &SetAttr { uid: given(uid), gid: given(gid), ..SetAttr::default() })
        },
    ) as c_int
}

/// Sets the times of the last read and of the last change. NULL keeps a time; KEDGEFS_NOW as its
/// nanoseconds is the time of the call. `flags` is 0 or KEDGEFS_NOFOLLOW.
///
/// Returns 0, or -EINVAL (nanoseconds), -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_utimens(
    fs: *mut KedgeFs,
    path: *const c_char,
    atime: *const KedgeTime,
    mtime: *const KedgeTime,
    flags: u32,
) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string, and pointers to structures or NULL.
    let (path, atime, mtime) = unsafe { (arg::path(path), arg::optional(atime), arg::optional(mtime)) };
    on(
        "kedgefs_utimens",
        || Volume::find(fs),
        |volume| {
            let atime = atime.map(KedgeTime::to_set).transpose()?;
            let mtime = mtime.map(KedgeTime::to_set).transpose()?;
            set(volume, path?, flags, &SetAttr { atime, mtime, ..SetAttr::default() })
        },
    ) as c_int
}

/// The value of an extended attribute. Names include their namespace, such as user.color. Symbolic
/// links are followed, here and in the three functions below.
///
/// Returns the length of the value. With `len` 0 nothing is written, and buf may be NULL. Or
/// -ERANGE: the buffer is too small;
/// -ENODATA: there is no such attribute;
/// -ENOENT, -ENOTDIR, -ELOOP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_getxattr(
    fs: *mut KedgeFs,
    path: *const c_char,
    name: *const c_char,
    buf: *mut c_void,
    len: usize,
) -> i64 {
    // SAFETY: kedgefs.h requires NUL-terminated strings and a buffer of `len` bytes.
    let (path, name, buf) = unsafe { (arg::path(path), arg::text(name, "the name"), arg::buffer(buf, len)) };
    on(
        "kedgefs_getxattr",
        || Volume::find(fs),
        |volume| {
            let (path, name, buf) = (path?, name?, buf?);
            let value = volume.fs.getxattr(find(volume, path, 0)?.ino, name).at(path)?;
            arg::copy_out(&value, buf)
        },
    )
}

/// Sets an extended attribute to `len` bytes, at most 65536. `flags` is 0, KEDGEFS_XATTR_CREATE or
/// KEDGEFS_XATTR_REPLACE.
///
/// Returns 0, or
/// -EEXIST, -ENODATA: as the flags say;
/// -E2BIG: the value is too long;
/// -EINVAL, -EOPNOTSUPP: the name is not possible;
/// -ENOSPC: no space, or the names of the file have more than 65536 bytes;
/// -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_setxattr(
    fs: *mut KedgeFs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    len: usize,
    flags: u32,
) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings and a buffer of `len` bytes.
    let (path, name, value) =
        unsafe { (arg::path(path), arg::text(name, "the name"), arg::bytes(value, len)) };
    on(
        "kedgefs_setxattr",
        || Volume::find(fs),
        |volume| {
            let (path, name, value) = (path?, name?, value?);
            let mode = match flags {
                0 => XattrMode::Any,
                KEDGEFS_XATTR_CREATE => XattrMode::Create,
                KEDGEFS_XATTR_REPLACE => XattrMode::Replace,
                _ => return Err(Fault::invalid(format!("unknown flags {flags:#x}"))),
            };
            volume.fs.setxattr(find(volume, path, 0)?.ino, name, value, mode).at(path)?;
            Ok(0)
        },
    ) as c_int
}

/// The names of all extended attributes, each with a terminating zero, at most 65536 bytes.
///
/// Returns their length in all. With `len` 0 nothing is written, and buf may be NULL. Or
/// -ERANGE: the buffer is too small;
/// -ENOENT, -ENOTDIR, -ELOOP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_listxattr(
    fs: *mut KedgeFs,
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
) -> i64 {
    // SAFETY: kedgefs.h requires a NUL-terminated string and a buffer of `len` bytes.
    let (path, buf) = unsafe { (arg::path(path), arg::buffer(buf.cast::<c_void>(), len)) };
    on(
        "kedgefs_listxattr",
        || Volume::find(fs),
        |volume| {
            let (path, buf) = (path?, buf?);
            let mut names = Vec::new();
            volume
                .fs
                .list_xattrs(find(volume, path, 0)?.ino, &mut |name| {
                    names.extend_from_slice(name);
                    names.push(0);
                    true
                })
                .at(path)?;
            arg::copy_out(&names, buf)
        },
    )
}

/// Removes an extended attribute.
///
/// Returns 0, or -ENODATA (there is none), -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_removexattr(
    fs: *mut KedgeFs,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings.
    let (path, name) = unsafe { (arg::path(path), arg::text(name, "the name")) };
    on(
        "kedgefs_removexattr",
        || Volume::find(fs),
        |volume| {
            let (path, name) = (path?, name?);
            volume.fs.removexattr(find(volume, path, 0)?.ino, name).at(path)?;
            Ok(0)
        },
    ) as c_int
}
