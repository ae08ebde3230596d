//! Arguments that are pointers of the caller. NULL is refused with EFAULT; no other fault of a
//! pointer can be detected.
#![allow(unsafe_code, reason = "it is what makes references of the caller's pointers")]

use crate::call::{Fault, Outcome};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn null(what: &str) -> Fault {
    Fault::new(libc::EFAULT, format!("{what} is NULL"))
}

fn check_len(len: usize) -> Outcome<()> {
    match isize::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault::invalid(format!("{len} bytes are more than a memory has"))),
    }
}

/// A NUL-terminated string without its NUL.
///
/// # Safety
/// NULL, or a NUL-terminated string that does not change while the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<&'a [u8]> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: `text` is not NULL, and the caller guarantees a NUL-terminated string that does not
    // change.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A path: the bytes of a string.
///
/// # Safety
/// The requirements are those of [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Outcome<&'a Path> {
    // SAFETY: the caller guarantees what [`text`] requires.
    let bytes = unsafe { text(path, "the path") }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// A list of options, which must be UTF-8. NULL is the empty list.
///
/// # Safety
/// The requirements are those of [`text`].
pub(crate) unsafe fn options<'a>(options: *const c_char) -> Outcome<&'a str> {
    if options.is_null() {
        return Ok("");
    }
    // SAFETY: the caller guarantees what [`text`] requires.
    let bytes = unsafe { text(options, "the options") }?;
    std::str::from_utf8(bytes).map_err(|_| Fault::invalid("the options are not UTF-8"))
}

/// Bytes to read.
///
/// # Safety
/// NULL, or `len` readable bytes that do not change while the result is used.
pub(crate) unsafe fn bytes<'a>(from: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    check_len(len)?;
    match len {
        0 => Ok(&[]),
        _ if from.is_null() => Err(null("the buffer")),
        // SAFETY: `from` is not NULL, `len` is at most isize::MAX, and the caller guarantees `len`
        // readable bytes that do not change.
        _ => Ok(unsafe { std::slice::from_raw_parts(from.cast(), len) }),
    }
}

/// An array of structures to read.
///
/// # Safety
/// NULL, or `count` readable structures that do not change while the result is used.
pub(crate) unsafe fn array<'a, T>(from: *const T, count: usize) -> Outcome<&'a [T]> {
    check_len(count.saturating_mul(size_of::<T>()))?;
    match count {
        0 => Ok(&[]),
        _ if from.is_null() => Err(null("the array")),
        // SAFETY: `from` is not NULL, the size is at most isize::MAX, and the caller guarantees
        // `count` readable structures that do not change.
        _ => Ok(unsafe { std::slice::from_raw_parts(from, count) }),
    }
}

/// A buffer to write to. It may be uninitialised; the file system does not read it before writing
/// it.
///
/// # Safety
/// NULL, or `len` writable bytes that nothing else uses while the result is used.
pub(crate) unsafe fn buffer<'a>(to: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    check_len(len)?;
    match len {
        0 => Ok(&mut []),
        _ if to.is_null() => Err(null("the buffer")),
        // SAFETY: `to` is not NULL, `len` is at most isize::MAX, and the caller guarantees `len`
        // writable bytes that nothing else uses.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), len) }),
    }
}

/// The pointer at which a result is stored. It is checked before the work begins, so that no change
/// is made whose result could not be returned.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// NULL, or a pointer to writable memory for a `T`, which nothing else uses while the result
    /// exists.
    pub(crate) unsafe fn new(place: *mut T) -> Outcome<Out<T>> {
        if place.is_null() { Err(null("the place of the result")) } else { Ok(Out(place)) }
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: `new` refuses NULL, and its caller guarantees writable memory for a `T`. The
        // memory may be uninitialised, so its old contents are not dropped.
        unsafe { self.0.write(value) }
    }
}

/// A value that may be absent.
///
/// # Safety
/// NULL, or a pointer to a valid `T`.
pub(crate) unsafe fn optional<T: Copy>(value: *const T) -> Option<T> {
    // SAFETY: the pointer is not NULL, so the caller guarantees a valid `T` there.
    (!value.is_null()).then(|| unsafe { value.read() })
}

/// Copies a value into the caller's buffer and returns its length. An empty buffer requests the
/// length alone.
pub(crate) fn copy_out(value: &[u8], buf: &mut [u8]) -> Outcome<i64> {
    match buf.len() {
        0 => {}
        room if room < value.len() => {
            let text = format!("the buffer has {room} bytes, the value {}", value.len());
            return Err(Fault::new(libc::ERANGE, text));
        }
        _ => buf[..value.len()].copy_from_slice(value),
    }
    Ok(value.len() as i64)
}
