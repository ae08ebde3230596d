//! Pointers of the caller. NULL is refused with EFAULT; nothing else about a pointer can be
//! checked.
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

/// A string.
///
/// # Safety
/// NULL, or a string that ends with a zero and does not change while the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<&'a [u8]> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL, and the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A path: the bytes of a string.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Outcome<&'a Path> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { text(path, "the path") }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// A list of options, which must be UTF-8. NULL is the empty list.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn options<'a>(options: *const c_char) -> Outcome<&'a str> {
    if options.is_null() {
        return Ok("");
    }
    // SAFETY: the caller's promise.
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
        // SAFETY: not NULL, not longer than any object, and the caller's promise.
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
        // SAFETY: not NULL, not longer than any object, and the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(from, count) }),
    }
}

/// Bytes to write. The caller may not have written them yet; the file system does not read them
/// either before it has written them.
///
/// # Safety
/// NULL, or `len` writable bytes that nothing else uses while the result is used.
pub(crate) unsafe fn buffer<'a>(to: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    check_len(len)?;
    match len {
        0 => Ok(&mut []),
        _ if to.is_null() => Err(null("the buffer")),
        // SAFETY: not NULL, not longer than any object, and the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), len) }),
    }
}

/// The place of a result. It is checked before the work begins, so that nothing is done whose
/// result could not be returned.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// NULL, or a place of a `T` that nothing else uses while the result exists.
    pub(crate) unsafe fn new(place: *mut T) -> Outcome<Out<T>> {
        if place.is_null() { Err(null("the place of the result")) } else { Ok(Out(place)) }
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: not NULL, and the promise of the caller of `new`. What is there before may be
        // uninitialised, so it is not dropped.
        unsafe { self.0.write(value) }
    }
}

/// A value that may be absent.
///
/// # Safety
/// NULL, or a `T`.
pub(crate) unsafe fn optional<T: Copy>(value: *const T) -> Option<T> {
    // SAFETY: the caller's promise.
    (!value.is_null()).then(|| unsafe { value.read() })
}

/// Copies a value into the caller's buffer and returns its length. An empty buffer asks for the
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
