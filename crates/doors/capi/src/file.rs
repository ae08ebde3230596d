//! Open files.
#![allow(unsafe_code, reason = "functions for C take pointers, and names of their own")]

use crate::arg::{self, Out};
use crate::call::{At, Fault, Outcome, on};
use crate::open::{OpenFile, Volume};
use crate::types::{
    KEDGEFS_CREATE, KEDGEFS_EXCLUSIVE, KEDGEFS_READ, KEDGEFS_TRUNCATE, KEDGEFS_WRITE, KedgeFile, KedgeFs,
    KedgeStat,
};
use kedgefs::OpenOptions;
use std::ffi::{c_char, c_int, c_void};

/// Opens a regular file. Symbolic links are followed.
///
/// `flags` is KEDGEFS_READ, KEDGEFS_WRITE or both, and with KEDGEFS_WRITE perhaps KEDGEFS_CREATE,
/// KEDGEFS_EXCLUSIVE, KEDGEFS_TRUNCATE. `mode` has the permission bits of a file that is created,
/// such as 0644; no umask is applied. A file that loses its last name stays until it is closed.
///
/// Returns 0 and sets *file, or
/// -ENOENT: no such name, and no KEDGEFS_CREATE;
/// -EEXIST: the name is taken, with KEDGEFS_EXCLUSIVE;
/// -EISDIR: it is a directory;
/// -EINVAL: it is neither file nor directory, or the flags make no sense;
/// -ENOTDIR, -ELOOP, -ENAMETOOLONG: the path;
/// -ENOSPC, -EROFS: it cannot be created.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_file_open(
    fs: *mut KedgeFs,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut *mut KedgeFile,
) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string and a pointer to a handle.
    let (path, file) = unsafe { (arg::path(path), Out::new(file)) };
    on(
        "kedgefs_file_open",
        || Volume::find(fs),
        |volume| {
            let (path, file) = (path?, file?);
            let how = open_options(flags, mode)?;
            let opened = volume.root.open_with(path, &how).at(path)?;
            let (readable, writable) = (flags & KEDGEFS_READ != 0, flags & KEDGEFS_WRITE != 0);
            file.put(OpenFile::insert(volume.clone(), opened, readable, writable)?);
            Ok(0)
        },
    ) as c_int
}

fn open_options(flags: u32, mode: u32) -> Outcome<OpenOptions> {
    let known = KEDGEFS_READ | KEDGEFS_WRITE | KEDGEFS_CREATE | KEDGEFS_EXCLUSIVE | KEDGEFS_TRUNCATE;
    if flags & !known != 0 {
        return Err(Fault::invalid(format!("unknown flags {:#x}", flags & !known)));
    }
    let has = |flag: u32| flags & flag != 0;
    if has(KEDGEFS_EXCLUSIVE) && !has(KEDGEFS_CREATE) {
        return Err(Fault::invalid("KEDGEFS_EXCLUSIVE needs KEDGEFS_CREATE"));
    }
    check_mode(mode)?;
    let how = OpenOptions::new().read(has(KEDGEFS_READ)).write(has(KEDGEFS_WRITE)).mode(mode);
    Ok(how.create(has(KEDGEFS_CREATE)).create_new(has(KEDGEFS_EXCLUSIVE)).truncate(has(KEDGEFS_TRUNCATE)))
}

/// Refuses bits of a mode that are no permission bits.
pub(crate) fn check_mode(mode: u32) -> Outcome<()> {
    match mode & !0o7777 {
        0 => Ok(()),
        _ => Err(Fault::invalid(format!("mode {mode:#o}: has other bits than permissions (0 to 07777)"))),
    }
}

/// Closes a file. Makes nothing durable: kedgefs_fsync does. The handle is invalid from then on. A
/// call of another thread that is under way ends as usual.
///
/// Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_file_close(file: *mut KedgeFile) -> c_int {
    on("kedgefs_file_close", || OpenFile::take(file), |_| Ok(0)) as c_int
}

fn position(offset: i64) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Fault::invalid(format!("offset {offset} is negative")))
}

fn check_readable(file: &OpenFile) -> Outcome<()> {
    if file.readable { Ok(()) } else { Err(Fault::new(libc::EBADF, "the file is not open to be read")) }
}

pub(crate) fn check_writable(file: &OpenFile) -> Outcome<()> {
    if file.writable { Ok(()) } else { Err(Fault::new(libc::EBADF, "the file is not open to be written")) }
}

/// Reads up to `len` bytes at `offset`, 0 or more.
///
/// Returns the number of bytes, which is less than `len` only at the end of the file, or
/// -EBADF: the file is not open for reading;
/// -EINVAL: the offset is negative;
/// -EIO: the device failed, or the data is damaged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_pread(
    file: *mut KedgeFile,
    buf: *mut c_void,
    len: usize,
    offset: i64,
) -> i64 {
    // SAFETY: kedgefs.h requires a buffer of this length.
    let buf = unsafe { arg::buffer(buf, len) };
    on(
        "kedgefs_pread",
        || OpenFile::find(file),
        |file| {
            check_readable(file)?;
            Ok(file.file.read_at(position(offset)?, buf?)? as i64)
        },
    )
}

/// Writes `len` bytes at `offset`, 0 or more. A file that ends before `offset` is filled with
/// zeros. The bytes are durable after kedgefs_fsync, kedgefs_fdatasync or kedgefs_sync.
///
/// Returns the number of bytes, which is less than `len` if space or the device failed on the way
/// (the call that writes the rest returns the error), or
/// -EBADF: the file is not open for writing;
/// -EINVAL: the offset is negative;
/// -EFBIG: the offset is beyond the largest size of a file;
/// -ENOSPC: the image or its host is full;
/// -EROFS: the image is open with option ro;
/// -EPERM: the file is immutable;
/// -EIO: the device failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_pwrite(
    file: *mut KedgeFile,
    buf: *const c_void,
    len: usize,
    offset: i64,
) -> i64 {
    // SAFETY: kedgefs.h requires a buffer of this length.
    let buf = unsafe { arg::bytes(buf, len) };
    on(
        "kedgefs_pwrite",
        || OpenFile::find(file),
        |file| {
            check_writable(file)?;
            Ok(file.file.write_at(position(offset)?, buf?)? as i64)
        },
    )
}

/// Makes data and attributes of the file durable, its name and the directories above it.
///
/// Returns 0: a crash from now on loses none of it. Or
/// -EIO, -ENOSPC: earlier data could not be written to the device or the host. It is not durable.
/// A later call that returns 0 has written it: the library keeps such data and tries again.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_fsync(file: *mut KedgeFile) -> c_int {
    on(
        "kedgefs_fsync",
        || OpenFile::find(file),
        |file| {
            file.file.sync_all()?;
            Ok(0)
        },
    ) as c_int
}

/// As kedgefs_fsync, but only the data and what is needed to read it: time stamps may be older
/// after a crash.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_fdatasync(file: *mut KedgeFile) -> c_int {
    on(
        "kedgefs_fdatasync",
        || OpenFile::find(file),
        |file| {
            file.file.sync_data()?;
            Ok(0)
        },
    ) as c_int
}

/// Sets the size of a file: cuts it, or extends it with zeros.
///
/// Returns 0, or
/// -EBADF: the file is not open for writing;
/// -EINVAL: the size is negative;
/// -EFBIG: it is beyond the largest size of a file;
/// -ENOSPC, -EROFS, -EPERM, -EIO: as kedgefs_pwrite.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_ftruncate(file: *mut KedgeFile, size: i64) -> c_int {
    on(
        "kedgefs_ftruncate",
        || OpenFile::find(file),
        |file| {
            check_writable(file)?;
            let size = u64::try_from(size).map_err(|_| Fault::invalid(format!("size {size} is negative")))?;
            file.file.set_len(size)?;
            Ok(0)
        },
    ) as c_int
}

/// Attributes of an open file.
///
/// Returns 0 and sets *result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_fstat(file: *mut KedgeFile, result: *mut KedgeStat) -> c_int {
    // SAFETY: kedgefs.h requires a pointer to a structure.
    let result = unsafe { Out::new(result) };
    on(
        "kedgefs_fstat",
        || OpenFile::find(file),
        |file| {
            result?.put(file.file.metadata()?.into());
            Ok(0)
        },
    ) as c_int
}
