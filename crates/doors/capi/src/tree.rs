//! Forks and snapshots, copies that share blocks, limits, and atomic writes.
#![allow(unsafe_code, reason = "functions for C take pointers, and names of their own")]

use crate::arg::{self, Out};
use crate::call::{At, Fault, Outcome, on};
use crate::file::check_writable;
use crate::open::{OpenFile, Volume};
use crate::types::{
    KEDGEFS_FORCE, KEDGEFS_KEEP_LIMIT, KEDGEFS_SNAPSHOT, KedgeFile, KedgeFs, KedgeLimit, KedgePiece,
};
use kedgefs::{Ino, SetLimit};
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Splits a path into its directory and its last name.
fn split<'a>(volume: &Volume, path: &'a Path) -> Outcome<(Ino, &'a OsStr)> {
    let name =
        path.file_name().ok_or_else(|| Fault::invalid("the path does not end with a name")).at(path)?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("/"));
    Ok((volume.root.dir(above).at(above)?.ino(), name))
}

/// Whether the path is that of the root.
fn is_root(path: &Path) -> bool {
    path.has_root() && path.components().count() == 1
}

/// Refuses flags other than `known`.
fn check_flags(flags: u32, known: u32) -> Outcome<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Fault::invalid(format!("unknown flags {unknown:#x}"))),
    }
}

/// Makes the directory `to` a copy of the whole tree at `from`, which shares all blocks with it:
/// "/" for the first tree, or a fork or snapshot. With KEDGEFS_SNAPSHOT in `flags`, nothing in the
/// copy can be changed. Work of other threads waits meanwhile, reads do not.
///
/// Returns 0: the copy is durable. Or
/// -EINVAL: `from` is not the root of a tree, or the flags are unknown;
/// -EEXIST: `to` is taken;
/// -ENOENT, -ENOTDIR: a path;
/// -ENOSPC, -EROFS, -EBUSY (frozen).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_fork(
    fs: *mut KedgeFs,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings.
    let (from, to) = unsafe { (arg::path(from), arg::path(to)) };
    on(
        "kedgefs_fork",
        || Volume::find(fs),
        |volume| {
            let (from, to) = (from?, to?);
            check_flags(flags, KEDGEFS_SNAPSHOT)?;
            let source = volume.root.resolve(from).at(from)?;
            let (dir, name) = split(volume, to)?;
            volume.fs.fork(source, dir, name.as_bytes(), flags & KEDGEFS_SNAPSHOT != 0).at(to)?;
            Ok(0)
        },
    ) as c_int
}

/// Deletes a fork or a snapshot with all it holds. Open files in it return -ESTALE from then on.
/// Its space is freed in the background.
///
/// Returns 0: it is durably gone. Or
/// -ENOENT: there is no fork or snapshot of this name;
/// -ENOTEMPTY: another tree is named in it;
/// -ENOSPC, -EROFS, -EBUSY (frozen).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_delete_tree(fs: *mut KedgeFs, path: *const c_char) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let path = unsafe { arg::path(path) };
    on(
        "kedgefs_delete_tree",
        || Volume::find(fs),
        |volume| {
            let path = path?;
            let (dir, name) = split(volume, path)?;
            volume.fs.delete_tree(dir, name.as_bytes()).at(path)?;
            Ok(0)
        },
    ) as c_int
}

/// Replaces the fork at `tree` by a new fork of the tree at `snapshot`, in one step. With "/" as
/// `tree` it replaces the first tree: trees that are named in it keep their paths, and calls on
/// files of it that are open return -ESTALE from then on.
///
/// Returns 0: it is durable. Or
/// -EINVAL: `snapshot` is not the root of a tree, or it is `tree`;
/// -ENOENT: there is no fork at `tree`;
/// -ENOTEMPTY: another tree is named in it, or, with "/", would lose its path;
/// -ENOSPC, -EROFS, -EBUSY (frozen).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_roll_back(
    fs: *mut KedgeFs,
    snapshot: *const c_char,
    tree: *const c_char,
) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings.
    let (snapshot, tree) = unsafe { (arg::path(snapshot), arg::path(tree)) };
    on(
        "kedgefs_roll_back",
        || Volume::find(fs),
        |volume| {
            let (snapshot, tree) = (snapshot?, tree?);
            let source = volume.root.resolve(snapshot).at(snapshot)?;
            if is_root(tree) {
                volume.fs.roll_back_root(source).at(tree)?;
                return Ok(0);
            }
            let (dir, name) = split(volume, tree)?;
            volume.fs.roll_back(source, dir, name.as_bytes()).at(tree)?;
            Ok(0)
        },
    ) as c_int
}

/// Replaces the tree at `tree` by the fork at `fork`, which was made from it, in one step. The name
/// of the fork is then gone. With KEDGEFS_FORCE in `flags`, `tree` may have been changed since the
/// fork.
///
/// Returns 0: it is durable. Or
/// -EBUSY: `tree` was changed since, or the file system is frozen;
/// -EINVAL, -ENOENT, -ENOTEMPTY, -ENOSPC, -EROFS: as kedgefs_roll_back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_commit_tree(
    fs: *mut KedgeFs,
    fork: *const c_char,
    tree: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings.
    let (fork, tree) = unsafe { (arg::path(fork), arg::path(tree)) };
    on(
        "kedgefs_commit_tree",
        || Volume::find(fs),
        |volume| {
            let (fork, tree) = (fork?, tree?);
            check_flags(flags, KEDGEFS_FORCE)?;
            let source = volume.root.resolve(fork).at(fork)?;
            if is_root(tree) {
                volume.fs.commit_root(source, flags & KEDGEFS_FORCE != 0).at(tree)?;
                return Ok(0);
            }
            let (dir, name) = split(volume, tree)?;
            volume.fs.commit_tree(source, dir, name.as_bytes(), flags & KEDGEFS_FORCE != 0).at(tree)?;
            Ok(0)
        },
    ) as c_int
}

/// Makes the contents of file `to` those of file `from`, of the same file system and tree, by
/// sharing its blocks. No space is taken until one of them is written. Durable after kedgefs_fsync
/// of `to`. Other callers and a crash find the old contents or the new ones, except for files with
/// many extents, which take several steps that begin with an empty file.
///
/// Returns 0, or
/// -EBADF: `to` is not open for writing;
/// -EXDEV: the files are in two file systems or two trees;
/// -EINVAL: only one of them has checksums of its data;
/// -ENOSPC, -EROFS, -EPERM, -EIO: as kedgefs_pwrite.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_clone_file(from: *mut KedgeFile, to: *mut KedgeFile) -> c_int {
    on(
        "kedgefs_clone_file",
        || OpenFile::find(to),
        |target| {
            let source = source_of(from, target)?;
            target.volume.fs.clone_file(source, target.file.ino())?;
            Ok(0)
        },
    ) as c_int
}

/// Clones `len` bytes at `from_offset` of file `from`, or all bytes from there on if `len` is 0, as
/// kedgefs_clone_file does. They replace those at `to_offset` of file `to`. Offsets and length are
/// multiples of 4096. The range may instead end at the end of `from`, if in `to` it ends at or
/// after the end of that file.
///
/// Returns 0, or
/// -EINVAL: an offset or the length is negative or no such multiple, or both ranges are in one file
/// and overlap;
/// and the errors of kedgefs_clone_file.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_clone_range(
    from: *mut KedgeFile,
    from_offset: i64,
    to: *mut KedgeFile,
    to_offset: i64,
    len: i64,
) -> c_int {
    on(
        "kedgefs_clone_range",
        || OpenFile::find(to),
        |target| {
            let source = source_of(from, target)?;
            let [offset, at, len] =
                [("offset", from_offset), ("offset", to_offset), ("length", len)].map(|(what, n)| {
                    u64::try_from(n).map_err(|_| Fault::invalid(format!("{what} {n} is negative")))
                });
            target.volume.fs.clone_range(source, offset?, target.file.ino(), at?, len?)?;
            Ok(0)
        },
    ) as c_int
}

/// The inode of the file that is to be cloned to `target`. Refuses files that cannot be cloned so.
fn source_of(from: *mut KedgeFile, target: &OpenFile) -> Outcome<Ino> {
    let source = OpenFile::find(from)?;
    check_writable(target)?;
    if !source.readable {
        return Err(Fault::new(libc::EBADF, "the source is not open to be read"));
    }
    match std::sync::Arc::ptr_eq(&source.volume, &target.volume) {
        true => Ok(source.file.ino()),
        false => Err(Fault::new(libc::EXDEV, "the files are in two file systems")),
    }
}

/// Limits the bytes of file data and the number of inodes at and below a directory: from then on
/// what would need more fails with -EDQUOT. 0 removes a maximum, KEDGEFS_KEEP_LIMIT leaves it as it
/// is. Bytes are rounded down to whole blocks.
///
/// Returns 0: it is durable. Or
/// -ENOTDIR: it is no directory;
/// -EINVAL: less than a block, or more than 32 limits inside one another;
/// -EMLINK: a file has another name outside of the directory;
/// -ENOENT, -ENOSPC, -EROFS, -EBUSY (frozen).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_set_limit(
    fs: *mut KedgeFs,
    path: *const c_char,
    bytes_max: u64,
    files_max: u64,
) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let path = unsafe { arg::path(path) };
    let change = |max: u64| (max != KEDGEFS_KEEP_LIMIT).then_some(Some(max).filter(|max| *max > 0));
    on(
        "kedgefs_set_limit",
        || Volume::find(fs),
        |volume| {
            let path = path?;
            let dir = volume.root.dir(path).at(path)?.ino();
            let change = SetLimit { bytes: change(bytes_max), files: change(files_max) };
            volume.fs.set_limit(dir, change).at(path)?;
            Ok(0)
        },
    ) as c_int
}

/// The nearest limit at or above a file or directory.
///
/// Returns 1 and sets *limit; 0 if there is none; or -ENOENT, -ENOTDIR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_limit_of(
    fs: *mut KedgeFs,
    path: *const c_char,
    limit: *mut KedgeLimit,
) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string and a pointer to a structure.
    let (path, limit) = unsafe { (arg::path(path), Out::new(limit)) };
    on(
        "kedgefs_limit_of",
        || Volume::find(fs),
        |volume| {
            let (path, limit) = (path?, limit?);
            let Some(found) = volume.fs.limit_of(volume.root.resolve(path).at(path)?).at(path)? else {
                return Ok(0);
            };
            limit.put(found.into());
            Ok(1)
        },
    ) as c_int
}

/// Writes `count` pieces to a file so that they become durable together: after a crash the file has
/// all of them or none. They are durable when the call returns 0. All pieces together have at most
/// 896 KiB, less with a small log.
///
/// Returns 0, or
/// -EBADF: the file is not open for writing;
/// -EINVAL: an offset is negative;
/// -EFBIG: the pieces are too large;
/// -ENOSPC, -EDQUOT, -EROFS, -EPERM: the file is as it was;
/// -EIO: the log could not be written. The file system is shut down, and the next open finds all
/// pieces or none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_write_atomic(
    file: *mut KedgeFile,
    pieces: *const KedgePiece,
    count: usize,
) -> c_int {
    // SAFETY: kedgefs.h requires an array of `count` structures.
    let pieces = unsafe { arg::array(pieces, count) };
    on(
        "kedgefs_write_atomic",
        || OpenFile::find(file),
        |file| {
            check_writable(file)?;
            let mut write = file.file.atomic()?;
            for piece in pieces? {
                let offset = u64::try_from(piece.offset)
                    .map_err(|_| Fault::invalid(format!("offset {} is negative", piece.offset)))?;
                // SAFETY: kedgefs.h requires a buffer of this length.
                write.write_at(offset, unsafe { arg::bytes(piece.data, piece.len) }?)?;
            }
            write.commit()?;
            Ok(0)
        },
    ) as c_int
}
