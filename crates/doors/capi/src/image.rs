//! Images, and the library itself.
#![allow(unsafe_code, reason = "functions for C take pointers, and names of their own")]

use crate::arg::{self, Out};
use crate::call::{Fault, Outcome, call, last_error, on};
use crate::open::{Volume, check_process, note_fork};
use crate::types::{KedgeFs, KedgeStatvfs};
use kedge_host::embed;
use kedge_host::options::parse_size;
use kedgefs::{FormatOptions, Switches};
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no zeros"),
        };
    VERSION.as_ptr()
}

/// The text of the last error of the calling thread, in English, for people. Empty if the thread
/// had none. A call that succeeds leaves it as it is.
///
/// Valid until the next call of this thread that fails. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_error() -> *const c_char {
    last_error()
}

/// Makes an image of `size` bytes in a new file, or in a new RBD image (rbd:POOL/IMAGE). The file
/// appears under its name when the image in it is complete and durable. Its root directory belongs
/// to the effective user and group of the process. kedgefs_open opens it.
///
/// `options` is NULL, or a list separated by commas: label=NAME (at most 64 bytes), log_size=SIZE,
/// immutable. Sizes are bytes, or written as 64K, 16M, 4G.
///
/// Returns 0, or
/// -EEXIST: something has that name;
/// -EINVAL: size is below 16 MiB, or an option is unknown;
/// -ENOENT, -EACCES, -ENOSPC, ...: the host's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_create(image: *const c_char, size: u64, options: *const c_char) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings.
    let (image, options) = unsafe { (arg::path(image), arg::options(options)) };
    call("kedgefs_create", || {
        check_process()?;
        embed::create(image?, size, &format_options(options?)?)?;
        Ok(0)
    }) as c_int
}

fn format_options(list: &str) -> Outcome<FormatOptions> {
    let mut options = FormatOptions::default();
    for word in list.split(',').filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some(("label", label)) => label.clone_into(&mut options.label),
            Some(("log_size", size)) => {
                let size = parse_size(size).map_err(|e| Fault::invalid(format!("option {word}: {e}")))?;
                options.log_size = Some(size);
            }
            None if word == "immutable" => options.immutable = true,
            _ => {
                let known = "label=NAME, log_size=SIZE, immutable";
                return Err(Fault::invalid(format!("unknown option {word}; known are {known}")));
            }
        }
    }
    Ok(options)
}

/// Opens an image: a file, a block device, or a URI (file:, nbd:, nbd+unix:, rbd:). If it was not
/// closed, its log is replayed first: everything that was synced is there.
///
/// `options` is NULL, or a list of mount options separated by commas, as for kedge mount -o: ro,
/// commit=SECONDS, cache_size=SIZE, noatime, discard, volatile, offset=BYTES, sizelimit=BYTES,
/// key-file=FILE and others. Options of the kernel's side of a mount, such as allow_other, are
/// refused. The default cache is a sixteenth of the memory, within 64 MiB and 1 GiB.
///
/// While the image is open it is locked, and no other process can open or mount it. New files
/// belong to the effective user and group that the process has now. The library checks no
/// permissions and applies no umask: the caller is the owner of the image.
///
/// A child of this process (fork) cannot use the library any more, until it executes another
/// program. Its copies of the handles are refused, and keep the image locked.
///
/// Returns 0 and sets *fs, or
/// -EBUSY: another process has the image open, or this one has. The call waits up to 15 seconds for
/// the end of such a process;
/// -EINVAL: an option is unknown, or this is neither file nor block device, or it is too small;
/// -EUCLEAN: the image is damaged, which kedge fsck may repair, or it is no image;
/// -ENOKEY: the image is encrypted, and there is no option key-file;
/// -EROFS: the image can only be read: option ro;
/// -ENOSPC: the host has no space to replay the log; option ro replays it in memory;
/// -ENOENT, -EACCES, -EIO, ...: the host's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_open(
    image: *const c_char,
    options: *const c_char,
    fs: *mut *mut KedgeFs,
) -> c_int {
    // SAFETY: kedgefs.h requires NUL-terminated strings and a pointer to a handle.
    let (image, options, fs) = unsafe { (arg::path(image), arg::options(options), Out::new(fs)) };
    call("kedgefs_open", || {
        check_process()?;
        let (image, options, fs) = (image?, options?, fs?);
        refuse_forks()?;
        let engine = embed::open(image, options)?;
        let volume = Volume::new(engine.clone(), embed::owner());
        // Close the image again if the table has no slot for its handle.
        let handle = volume.insert().or_else(|fault| engine.close().map_err(Fault::from).and(Err(fault)))?;
        fs.put(handle);
        Ok(0)
    }) as c_int
}

/// Makes the children of this process unable to use the library from now on.
fn refuse_forks() -> Outcome<()> {
    extern "C" fn in_child() {
        note_fork();
    }
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    // SAFETY: the handler stores to an atomic, which a child may do.
    let failed = *REGISTERED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    match failed {
        0 => Ok(()),
        errno => Err(Fault::new(errno, "the library cannot notice forks")),
    }
}

/// Makes everything durable, ends the file system and unlocks the image. The handle, and those of
/// all its files and directories, are invalid from then on, whatever the call returns. It waits for
/// calls of other threads that are under way: what they have written is durable when it returns.
///
/// A process that ends without this call loses what was not synced, as in a crash, and nothing
/// else.
///
/// Returns 0, or
/// -EIO: data could not be written, even after retries, and is lost; kedgefs_error says of which
/// files. The rest is durable;
/// -ENOSPC: the host has no space for the last checkpoint; the next open replays the log.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_close(fs: *mut KedgeFs) -> c_int {
    call("kedgefs_close", || {
        let volume = Volume::take(fs)?;
        let _alone = volume.calls.write();
        volume.fs.close()?;
        Ok(0)
    }) as c_int
}

/// Makes everything durable that calls have done before.
///
/// Returns 0, or -EIO, -ENOSPC: not all of it is durable.
#[unsafe(no_mangle)]
pub extern "C" fn kedgefs_sync(fs: *mut KedgeFs) -> c_int {
    on(
        "kedgefs_sync",
        || Volume::find(fs),
        |volume| {
            volume.fs.sync()?;
            Ok(0)
        },
    ) as c_int
}

/// Changes options of an open file system: those that are marked with * in kedge mount --help, such
/// as commit=SECONDS, without ro and rw.
///
/// Returns 0, or -EINVAL: an option is unknown, or cannot change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_set_options(fs: *mut KedgeFs, options: *const c_char) -> c_int {
    // SAFETY: kedgefs.h requires a NUL-terminated string.
    let options = unsafe { arg::options(options) };
    on(
        "kedgefs_set_options",
        || Volume::find(fs),
        |volume| {
            let switches: Switches = options?.parse()?;
            volume.fs.remount(&switches)?;
            Ok(0)
        },
    ) as c_int
}

/// Space and inodes, used and free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kedgefs_statvfs(fs: *mut KedgeFs, result: *mut KedgeStatvfs) -> c_int {
    // SAFETY: kedgefs.h requires a pointer to a structure.
    let result = unsafe { Out::new(result) };
    on(
        "kedgefs_statvfs",
        || Volume::find(fs),
        |volume| {
            result?.put(volume.fs.statfs().into());
            Ok(0)
        },
    ) as c_int
}
