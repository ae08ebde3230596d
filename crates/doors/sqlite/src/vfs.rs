//! The entry point of the extension, and the functions that SQLite calls for names.
#![allow(unsafe_code, reason = "SQLite calls functions of C, with pointers")]

use crate::error::{Outcome, Refused, guarded, last};
use crate::file::{How, OpenFile};
use crate::methods::{self, Handle};
use crate::name::{NAME_MAX, Name, VFS};
use crate::volume::Use;
use kedgefs::FileKind;
use libsqlite3_sys as sqlite;
use sqlite::{SQLITE_CANTOPEN, SQLITE_ERROR, SQLITE_IOERR, SQLITE_OK};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::ErrorKind;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// The environment variable with the image of databases whose names have none.
const IMAGE_VARIABLE: &str = "KEDGEFS_SQLITE_IMAGE";
/// The SQL function that returns the text of the last error.
const ERROR_FUNCTION: &CStr = c"kedgefs_error";
/// The kinds of files that the host's file system stores: those without a name, and those of one
/// transaction.
const TEMPORARY: c_int = sqlite::SQLITE_OPEN_TEMP_DB
    | sqlite::SQLITE_OPEN_TEMP_JOURNAL
    | sqlite::SQLITE_OPEN_TRANSIENT_DB
    | sqlite::SQLITE_OPEN_SUBJOURNAL;

/// The result of `full_pathname` for a name with a symbolic link, which SQLite refuses or accepts,
/// and the first version of SQLite that knows the result.
const OK_SYMLINK: c_int = 2 << 8;
const OK_SYMLINK_SINCE: c_int = 3_031_000;

thread_local! {
    /// The image that `full_pathname` opened to find symbolic links. SQLite opens the database
    /// next, in the same thread; without this reference the image would be opened twice.
    static RESOLVED: Cell<Option<Use>> = const { Cell::new(None) };
}

/// The errno of the last failed call without a file.
static ERRNO: AtomicI32 = AtomicI32::new(0);

/// The VFS that was the default when the extension was loaded. It serves temporary files, time,
/// sleep and randomness.
struct Host(*mut sqlite::sqlite3_vfs);

// SAFETY: SQLite keeps a registered VFS for the life of the process, and calls it from all threads.
unsafe impl Send for Host {}
// SAFETY: the VFS lives as long as the process, and SQLite itself calls it from all threads.
unsafe impl Sync for Host {}

static HOST: OnceLock<Host> = OnceLock::new();

fn host() -> *mut sqlite::sqlite3_vfs {
    HOST.get().map_or(ptr::null_mut(), |host| host.0)
}

/// The entry point of the extension. It registers the VFS `kedgefs`, which stays until the process
/// ends.
///
/// # Safety
/// Only SQLite may call this function, with a valid connection and its table of functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    db: *mut sqlite::sqlite3,
    _error: *mut *mut c_char,
    api: *mut sqlite::sqlite3_api_routines,
) -> c_int {
    guarded(SQLITE_ERROR, || {
        // SAFETY: the caller is SQLite, whose table of functions stays valid.
        unsafe { sqlite::rusqlite_extension_init2(api) }
            .map_err(|e| Refused::new(SQLITE_ERROR, e.to_string()))?;
        register()?;
        // SAFETY: `db` is SQLite's connection; the name is NUL-terminated and the function has no
        // arguments.
        let made = unsafe {
            sqlite::sqlite3_create_function_v2(
                db,
                ERROR_FUNCTION.as_ptr(),
                0,
                sqlite::SQLITE_UTF8,
                ptr::null_mut(),
                Some(error_text),
                None,
                None,
                None,
            )
        };
        if made == SQLITE_OK { Ok(sqlite::SQLITE_OK_LOAD_PERMANENTLY) } else { Ok(made) }
    })
}

fn register() -> Outcome<()> {
    // SAFETY: the name is NUL-terminated.
    if !unsafe { sqlite::sqlite3_vfs_find(VFS.as_ptr()) }.is_null() {
        return Ok(());
    }
    // SAFETY: null is permitted and means the default VFS.
    let host = unsafe { sqlite::sqlite3_vfs_find(ptr::null()) };
    if host.is_null() {
        return Err(Refused::new(SQLITE_ERROR, "SQLite has no VFS for temporary files"));
    }
    let host = HOST.get_or_init(|| Host(host)).0;
    // SAFETY: a registered VFS is not freed.
    let host_bytes = unsafe { (*host).szOsFile };
    let vfs = sqlite::sqlite3_vfs {
        iVersion: 2,
        szOsFile: (size_of::<Handle>() as c_int).max(host_bytes),
        mxPathname: NAME_MAX as c_int,
        pNext: ptr::null_mut(),
        zName: VFS.as_ptr(),
        pAppData: ptr::null_mut(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: Some(dl_open),
        xDlError: Some(dl_error),
        xDlSym: Some(dl_sym),
        xDlClose: Some(dl_close),
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(get_last_error),
        xCurrentTimeInt64: Some(current_time_int64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    };
    // SAFETY: `vfs` is complete and is never freed.
    match unsafe { sqlite::sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 0) } {
        SQLITE_OK => Ok(()),
        code => Err(Refused::new(code, "SQLite does not register the VFS")),
    }
}

unsafe extern "C" fn error_text(
    context: *mut sqlite::sqlite3_context,
    _count: c_int,
    _arguments: *mut *mut sqlite::sqlite3_value,
) {
    let text = last();
    // SAFETY: SQLite copies the text (TRANSIENT) before it returns.
    unsafe {
        let (start, len) = (text.as_ptr().cast::<c_char>(), text.len() as c_int);
        sqlite::sqlite3_result_text(context, start, len, sqlite::SQLITE_TRANSIENT());
    }
}

/// The text of a name.
///
/// # Safety
/// `name` must be a NUL-terminated string.
unsafe fn text<'a>(name: *const c_char) -> Outcome<&'a str> {
    // SAFETY: the caller guarantees a NUL-terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_err(|_| Refused::new(SQLITE_CANTOPEN, format!("{name:?} is no UTF-8")))
}

/// A parameter of the URI of a database; empty if it has none.
///
/// # Safety
/// `name` must be a name that SQLite has passed to the VFS.
unsafe fn parameter(name: *const c_char, parameter: &CStr) -> Outcome<String> {
    // SAFETY: the caller guarantees a name from SQLite; the parameter's name is NUL-terminated.
    let found = unsafe { sqlite::sqlite3_uri_parameter(name, parameter.as_ptr()) };
    if found.is_null() {
        return Ok(String::new());
    }
    // SAFETY: SQLite returns a NUL-terminated string.
    unsafe { text(found) }.map(str::to_owned)
}

/// Runs a function for a name, and stores the errno of its error.
fn with(code: c_int, run: impl FnOnce() -> Outcome<c_int>) -> c_int {
    guarded(code, || run().inspect_err(|refused| ERRNO.store(refused.errno, Ordering::Relaxed)))
}

unsafe extern "C" fn open(
    _vfs: *mut sqlite::sqlite3_vfs,
    name: *const c_char,
    handle: *mut sqlite::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    if name.is_null() || flags & TEMPORARY != 0 {
        let host = host();
        // SAFETY: `handle` has space for a handle of the host's VFS, which sets its methods.
        return unsafe {
            (*host).xOpen.map_or(SQLITE_CANTOPEN, |open| open(host, name, handle, flags, out_flags))
        };
    }
    // SAFETY: SQLite passes memory for a handle.
    unsafe { methods::set_closed(handle) };
    with(SQLITE_CANTOPEN, || {
        // SAFETY: SQLite passes a string that `full_pathname` made, or one that begins with it.
        let full = unsafe { text(name)? };
        // Names of other files need have no parameters: before 3.32, the name of a super-journal
        // ends with one NUL, and SQLite would read past it. Only the first open of an image
        // uses the options.
        let options = match flags & sqlite::SQLITE_OPEN_MAIN_DB {
            0 => String::new(),
            // SAFETY: the name of a database has the parameters of its URI.
            _ => unsafe { parameter(name, c"options")? },
        };
        let _image = RESOLVED.take();
        let has = |flag| flags & flag != 0;
        let how = How {
            write: has(sqlite::SQLITE_OPEN_READWRITE),
            create: has(sqlite::SQLITE_OPEN_CREATE),
            exclusive: has(sqlite::SQLITE_OPEN_EXCLUSIVE),
            delete_on_close: has(sqlite::SQLITE_OPEN_DELETEONCLOSE),
        };
        let file = OpenFile::open(&Name::parse(full, None)?, &options, how)?;
        // With this flag SQLite refuses writes with SQLITE_READONLY.
        let written = sqlite::SQLITE_OPEN_READWRITE | sqlite::SQLITE_OPEN_CREATE;
        let got = if file.is_read_only() { flags & !written | sqlite::SQLITE_OPEN_READONLY } else { flags };
        // SAFETY: SQLite passes memory for a handle, and for the flags unless the pointer is null.
        unsafe {
            methods::set_open(handle, file);
            if !out_flags.is_null() {
                *out_flags = got;
            }
        }
        Ok(SQLITE_OK)
    })
}

unsafe extern "C" fn delete(_vfs: *mut sqlite::sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    with(sqlite::SQLITE_IOERR_DELETE, || {
        // SAFETY: SQLite passes a string that `full_pathname` made.
        let name = Name::parse(unsafe { text(name)? }, None)?;
        let image = Use::of(&name, "")?;
        let failed = |code, e: &std::io::Error| Refused::io(code, &name.to_string(), e);
        image.guard(sqlite::SQLITE_IOERR_DELETE, || {
            match image.volume().root.remove_file(&name.path) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(sqlite::SQLITE_IOERR_DELETE_NOENT),
                Err(e) => return Err(failed(sqlite::SQLITE_IOERR_DELETE, &e)),
            }
            if sync_dir != 0 {
                let dir =
                    name.path.rsplit_once('/').map_or("/", |(dir, _)| if dir.is_empty() { "/" } else { dir });
                let synced = image.volume().root.dir(dir).and_then(|dir| dir.sync_all());
                synced.map_err(|e| failed(sqlite::SQLITE_IOERR_DIR_FSYNC, &e))?;
            }
            Ok(SQLITE_OK)
        })
    })
}

unsafe extern "C" fn access(
    _vfs: *mut sqlite::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    result: *mut c_int,
) -> c_int {
    with(sqlite::SQLITE_IOERR_ACCESS, || {
        // SAFETY: SQLite passes a string that `full_pathname` made.
        let name = Name::parse(unsafe { text(name)? }, None)?;
        let image = Use::of(&name, "")?;
        let found =
            image.guard(sqlite::SQLITE_IOERR_ACCESS, || Ok(image.volume().root.metadata(&name.path)))?;
        let is_there = match found {
            // An empty file counts as no journal, as in SQLite's own VFS.
            Ok(attr) => {
                flags != sqlite::SQLITE_ACCESS_EXISTS || attr.kind != FileKind::Regular || attr.size > 0
            }
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => false,
            Err(e) => return Err(Refused::io(sqlite::SQLITE_IOERR_ACCESS, &name.to_string(), &e)),
        };
        // SAFETY: SQLite passes a pointer to an int for the result.
        unsafe { *result = is_there.into() };
        Ok(SQLITE_OK)
    })
}

unsafe extern "C" fn full_pathname(
    _vfs: *mut sqlite::sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    with(SQLITE_CANTOPEN, || {
        // SAFETY: SQLite passes the name of a database, with the parameters of its URI.
        let (given, image, options) =
            unsafe { (text(name)?, parameter(name, c"image")?, parameter(name, c"options")?) };
        let apart = if image.is_empty() { std::env::var(IMAGE_VARIABLE).ok() } else { Some(image) };
        let name = Name::parse(given, apart.as_deref())?;
        let image = Use::of(&name, &options)?;
        let (name, followed) = image.guard(SQLITE_CANTOPEN, || name.resolved(&image.volume().root))?;
        let full = name.to_string();
        if full.len() >= usize::try_from(room).unwrap_or(0) {
            return Err(Refused::new(SQLITE_CANTOPEN, format!("{full}: the name is too long")));
        }
        // SAFETY: `out` has `room` bytes, which suffice for the name and its NUL.
        unsafe {
            out.cast::<u8>().copy_from_nonoverlapping(full.as_ptr(), full.len());
            *out.add(full.len()) = 0;
        }
        if image.is_only() {
            RESOLVED.set(Some(image));
        }
        // SAFETY: the function has no arguments.
        let knows = followed && unsafe { sqlite::sqlite3_libversion_number() } >= OK_SYMLINK_SINCE;
        Ok(if knows { OK_SYMLINK } else { SQLITE_OK })
    })
}

unsafe extern "C" fn get_last_error(
    _vfs: *mut sqlite::sqlite3_vfs,
    _room: c_int,
    _out: *mut c_char,
) -> c_int {
    ERRNO.load(Ordering::Relaxed)
}

// ----- what the host's VFS does -----

unsafe extern "C" fn dl_open(_vfs: *mut sqlite::sqlite3_vfs, name: *const c_char) -> *mut c_void {
    let host = host();
    // SAFETY: the host's VFS gets the arguments that SQLite passed to this function.
    unsafe { (*host).xDlOpen.map_or(ptr::null_mut(), |open| open(host, name)) }
}

unsafe extern "C" fn dl_error(_vfs: *mut sqlite::sqlite3_vfs, room: c_int, out: *mut c_char) {
    let host = host();
    // SAFETY: the host's VFS gets the arguments that SQLite passed to this function.
    unsafe {
        if let Some(error) = (*host).xDlError {
            error(host, room, out);
        }
    }
}

type Symbol = Option<unsafe extern "C" fn(*mut sqlite::sqlite3_vfs, *mut c_void, *const c_char)>;

unsafe extern "C" fn dl_sym(
    _vfs: *mut sqlite::sqlite3_vfs,
    library: *mut c_void,
    name: *const c_char,
) -> Symbol {
    let host = host();
    // SAFETY: the host's VFS gets the arguments that SQLite passed to this function.
    unsafe { (*host).xDlSym.and_then(|symbol| symbol(host, library, name)) }
}

unsafe extern "C" fn dl_close(_vfs: *mut sqlite::sqlite3_vfs, library: *mut c_void) {
    let host = host();
    // SAFETY: the host's VFS gets the arguments that SQLite passed to this function.
    unsafe {
        if let Some(close) = (*host).xDlClose {
            close(host, library);
        }
    }
}

unsafe extern "C" fn randomness(_vfs: *mut sqlite::sqlite3_vfs, bytes: c_int, out: *mut c_char) -> c_int {
    let host = host();
    // SAFETY: the host's VFS gets the arguments that SQLite passed to this function.
    unsafe { (*host).xRandomness.map_or(0, |random| random(host, bytes, out)) }
}

unsafe extern "C" fn sleep(_vfs: *mut sqlite::sqlite3_vfs, microseconds: c_int) -> c_int {
    let host = host();
    // SAFETY: the host's VFS gets the arguments that SQLite passed to this function.
    unsafe { (*host).xSleep.map_or(0, |sleep| sleep(host, microseconds)) }
}

unsafe extern "C" fn current_time(_vfs: *mut sqlite::sqlite3_vfs, time: *mut f64) -> c_int {
    let host = host();
    // SAFETY: the host's VFS gets the arguments that SQLite passed to this function.
    unsafe { (*host).xCurrentTime.map_or(SQLITE_IOERR, |now| now(host, time)) }
}

unsafe extern "C" fn current_time_int64(_vfs: *mut sqlite::sqlite3_vfs, time: *mut i64) -> c_int {
    let host = host();
    // SAFETY: the host's VFS gets the arguments that SQLite passed to this function. A VFS of
    // version 1 lacks this function.
    unsafe {
        match ((*host).iVersion >= 2).then_some((*host).xCurrentTimeInt64).flatten() {
            Some(now) => now(host, time),
            None => {
                let mut days = 0.0;
                let code = (*host).xCurrentTime.map_or(SQLITE_IOERR, |now| now(host, &raw mut days));
                *time = (days * 86_400_000.0) as i64;
                code
            }
        }
    }
}

#[cfg(test)]
#[path = "vfs_tests.rs"]
mod tests;
