//! The functions that SQLite calls for an open file.
#![allow(unsafe_code, reason = "SQLite calls functions of C, with pointers")]

use crate::error::{Outcome, Refused, caught, guarded};
use crate::file::{IOCAP_BATCH_ATOMIC, OpenFile};
use crate::locks::{Level, SLOTS};
use crate::name::VFS;
use libsqlite3_sys as sqlite;
use sqlite::{SQLITE_BUSY, SQLITE_IOERR, SQLITE_NOTFOUND, SQLITE_OK};
use std::ffi::{c_int, c_void};
use std::ptr;

/// The memory of an open file that SQLite allocates: `szOsFile` bytes.
#[repr(C)]
pub(crate) struct Handle {
    base: sqlite::sqlite3_file,
    file: *mut OpenFile,
}

/// Bytes of the smallest unit that a crash leaves either written or not.
const SECTOR_BYTES: c_int = 4096;
const FCNTL_BEGIN_ATOMIC_WRITE: c_int = 31;
const FCNTL_COMMIT_ATOMIC_WRITE: c_int = 32;
const FCNTL_ROLLBACK_ATOMIC_WRITE: c_int = 33;
/// For tests: panics.
#[cfg(debug_assertions)]
const FCNTL_PANIC: c_int = 0x6b_66_70;

static METHODS: sqlite::sqlite3_io_methods = sqlite::sqlite3_io_methods {
    // Version 2 has shared memory and no memory-mapped files.
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// Marks a handle as not open, so that SQLite does not close it.
///
/// # Safety
/// `handle` must point to memory for a [`Handle`].
pub(crate) unsafe fn set_closed(handle: *mut sqlite::sqlite3_file) {
    // SAFETY: the caller guarantees memory for a [`Handle`].
    unsafe { (*handle).pMethods = ptr::null() };
}

/// Makes a handle the owner of an open file.
///
/// # Safety
/// `handle` must point to memory for a [`Handle`].
pub(crate) unsafe fn set_open(handle: *mut sqlite::sqlite3_file, file: OpenFile) {
    let own = Handle { base: sqlite::sqlite3_file { pMethods: &raw const METHODS }, file: ptr::null_mut() };
    let own = Handle { file: Box::into_raw(Box::new(file)), ..own };
    // SAFETY: the caller guarantees memory for a [`Handle`]; its old contents need no drop.
    unsafe { handle.cast::<Handle>().write(own) };
}

/// Runs a method of an open file. A panic shuts its file system down.
///
/// # Safety
/// `handle` must be open, and no other thread may use it: SQLite serialises the calls for a file.
unsafe fn on(
    handle: *mut sqlite::sqlite3_file,
    code: c_int,
    run: impl FnOnce(&mut OpenFile) -> Outcome<c_int>,
) -> c_int {
    guarded(code, || {
        // SAFETY: an open handle owns its file, and by the caller's guarantee no other thread uses
        // it.
        let file = unsafe { &mut *(*handle.cast::<Handle>()).file };
        caught(code, || run(&mut *file)).unwrap_or_else(|panic| {
            file.shut_down();
            Err(panic)
        })
    })
}

unsafe extern "C" fn close(handle: *mut sqlite::sqlite3_file) -> c_int {
    guarded(SQLITE_IOERR, || {
        // SAFETY: an open handle owns its file; SQLite does not use the handle after this call.
        let file = unsafe { Box::from_raw((*handle.cast::<Handle>()).file) };
        // SAFETY: the handle is memory of SQLite for a [`Handle`].
        unsafe { set_closed(handle) };
        file.close().map(|()| SQLITE_OK)
    })
}

unsafe extern "C" fn read(
    handle: *mut sqlite::sqlite3_file,
    buf: *mut c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    let run = |file: &mut OpenFile| {
        let (amount, offset) = extent(amount, offset)?;
        // SAFETY: SQLite passes a buffer of this size, which is zeroed before a reference is made.
        let buf = unsafe {
            buf.cast::<u8>().write_bytes(0, amount);
            std::slice::from_raw_parts_mut(buf.cast::<u8>(), amount)
        };
        Ok(if file.read(offset, buf)? { SQLITE_OK } else { sqlite::SQLITE_IOERR_SHORT_READ })
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_READ, run) }
}

unsafe extern "C" fn write(
    handle: *mut sqlite::sqlite3_file,
    buf: *const c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    let run = |file: &mut OpenFile| {
        let (amount, offset) = extent(amount, offset)?;
        // SAFETY: SQLite passes an initialised buffer of this size.
        let data = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), amount) };
        file.write(offset, data).map(|()| SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_WRITE, run) }
}

fn extent(amount: c_int, offset: i64) -> Outcome<(usize, u64)> {
    match (usize::try_from(amount), u64::try_from(offset)) {
        (Ok(amount), Ok(offset)) => Ok((amount, offset)),
        _ => Err(Refused::new(SQLITE_IOERR, format!("{amount} bytes at {offset}"))),
    }
}

unsafe extern "C" fn truncate(handle: *mut sqlite::sqlite3_file, size: i64) -> c_int {
    let run = |file: &mut OpenFile| {
        let (_, size) = extent(0, size)?;
        file.truncate(size).map(|()| SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_TRUNCATE, run) }
}

unsafe extern "C" fn sync(handle: *mut sqlite::sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_FSYNC, |file| file.sync().map(|()| SQLITE_OK)) }
}

unsafe extern "C" fn file_size(handle: *mut sqlite::sqlite3_file, size: *mut i64) -> c_int {
    let run = |file: &mut OpenFile| {
        let found = i64::try_from(file.size()?).unwrap_or(i64::MAX);
        // SAFETY: SQLite passes a pointer to an integer for the size.
        unsafe { *size = found };
        Ok(SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_FSTAT, run) }
}

unsafe extern "C" fn lock(handle: *mut sqlite::sqlite3_file, level: c_int) -> c_int {
    let run = |file: &mut OpenFile| {
        let level = Level::of(level).ok_or_else(|| Refused::new(SQLITE_IOERR, "an unknown lock"))?;
        Ok(if file.lock(level)? { SQLITE_OK } else { SQLITE_BUSY })
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_LOCK, run) }
}

unsafe extern "C" fn unlock(handle: *mut sqlite::sqlite3_file, level: c_int) -> c_int {
    let run = |file: &mut OpenFile| {
        file.unlock(Level::of(level).unwrap_or_default());
        Ok(SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_UNLOCK, run) }
}

unsafe extern "C" fn check_reserved_lock(handle: *mut sqlite::sqlite3_file, result: *mut c_int) -> c_int {
    let run = |file: &mut OpenFile| {
        // SAFETY: SQLite passes a pointer to an int for the result.
        unsafe { *result = file.is_reserved().into() };
        Ok(SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_CHECKRESERVEDLOCK, run) }
}

unsafe extern "C" fn file_control(
    handle: *mut sqlite::sqlite3_file,
    op: c_int,
    argument: *mut c_void,
) -> c_int {
    let run = |file: &mut OpenFile| {
        match op {
            FCNTL_BEGIN_ATOMIC_WRITE => file.begin_atomic()?,
            FCNTL_COMMIT_ATOMIC_WRITE => file.commit_atomic()?,
            FCNTL_ROLLBACK_ATOMIC_WRITE => file.abort_atomic(),
            // SAFETY: SQLite documents the type that `argument` points to for each operation: an
            // int for this one.
            sqlite::SQLITE_FCNTL_LOCKSTATE => unsafe { *argument.cast::<c_int>() = file.level() as c_int },
            // SAFETY: for this operation `argument` points to an int, says SQLite's documentation.
            sqlite::SQLITE_FCNTL_LAST_ERRNO => unsafe { *argument.cast::<c_int>() = file.errno() },
            sqlite::SQLITE_FCNTL_HAS_MOVED => {
                let has_moved = file.has_moved()?;
                // SAFETY: SQLite passes a pointer to an int for this operation.
                unsafe { *argument.cast::<c_int>() = has_moved.into() };
            }
            sqlite::SQLITE_FCNTL_PERSIST_WAL => {
                // SAFETY: SQLite passes a pointer to an int, which holds the choice and gets the
                // result.
                let choice = unsafe { &mut *argument.cast::<c_int>() };
                *choice = file.persist_wal(*choice).into();
            }
            // SAFETY: for this operation `argument` points to a pointer to a string that SQLite
            // frees.
            sqlite::SQLITE_FCNTL_VFSNAME => unsafe { *argument.cast::<*mut c_void>() = copy_of_name() },
            #[cfg(debug_assertions)]
            FCNTL_PANIC => panic!("a test of the boundary"),
            _ => return Ok(SQLITE_NOTFOUND),
        }
        Ok(SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, SQLITE_IOERR, run) }
}

/// A copy of the name of the VFS in memory that SQLite frees; null if there is no memory.
fn copy_of_name() -> *mut c_void {
    let name = VFS.to_bytes_with_nul();
    // SAFETY: the memory, unless it is null, has space for the name.
    unsafe {
        let copy = sqlite::sqlite3_malloc(name.len() as c_int);
        if !copy.is_null() {
            copy.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
        }
        copy
    }
}

unsafe extern "C" fn sector_size(_handle: *mut sqlite::sqlite3_file) -> c_int {
    SECTOR_BYTES
}

/// A crash during a write changes no byte outside its range, and a transaction can be written
/// atomically.
unsafe extern "C" fn device_characteristics(_handle: *mut sqlite::sqlite3_file) -> c_int {
    sqlite::SQLITE_IOCAP_POWERSAFE_OVERWRITE | IOCAP_BATCH_ATOMIC
}

unsafe extern "C" fn shm_map(
    handle: *mut sqlite::sqlite3_file,
    at: c_int,
    bytes: c_int,
    extend: c_int,
    region: *mut *mut c_void,
) -> c_int {
    let run = |file: &mut OpenFile| {
        let ((at, _), (bytes, _)) = (extent(at, 0)?, extent(bytes, 0)?);
        let found = file.region(at, bytes, extend != 0)?;
        // SAFETY: SQLite passes a pointer to a pointer for the address.
        unsafe { *region = found.cast() };
        Ok(SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_SHMMAP, run) }
}

unsafe extern "C" fn shm_lock(
    handle: *mut sqlite::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    let run = |file: &mut OpenFile| {
        let ((offset, _), (count, _)) = (extent(offset, 0)?, extent(count, 0)?);
        if count == 0 || offset.checked_add(count).is_none_or(|end| end > SLOTS) {
            return Err(Refused::new(sqlite::SQLITE_IOERR_SHMLOCK, format!("{count} slots at {offset}")));
        }
        let mask = (((1u16 << count) - 1) << offset) as u8;
        if flags & sqlite::SQLITE_SHM_UNLOCK != 0 {
            file.release_slots(mask);
            return Ok(SQLITE_OK);
        }
        let exclusive = flags & sqlite::SQLITE_SHM_EXCLUSIVE != 0;
        Ok(if file.take_slots(mask, exclusive) { SQLITE_OK } else { SQLITE_BUSY })
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, sqlite::SQLITE_IOERR_SHMLOCK, run) }
}

unsafe extern "C" fn shm_barrier(handle: *mut sqlite::sqlite3_file) {
    let run = |file: &mut OpenFile| {
        file.barrier();
        Ok(SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, SQLITE_IOERR, run) };
}

unsafe extern "C" fn shm_unmap(handle: *mut sqlite::sqlite3_file, _delete: c_int) -> c_int {
    let run = |file: &mut OpenFile| {
        file.unmap();
        Ok(SQLITE_OK)
    };
    // SAFETY: SQLite calls methods only with an open handle, one call at a time.
    unsafe { on(handle, SQLITE_IOERR, run) }
}
