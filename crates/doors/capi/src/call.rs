//! The boundary: each function of the header runs its work in [`call`].

use kedgefs::FileSystem;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Why a call failed: a number for the program, a text for people.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) errno: i32,
    pub(crate) text: String,
}

pub(crate) type Outcome<T> = Result<T, Fault>;

impl Fault {
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Fault {
        Fault { errno, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Fault {
        Fault::new(libc::EINVAL, text)
    }

    /// The error of an image's host. The errno is that of the innermost cause that has one, else
    /// `other`.
    pub(crate) fn of_host(e: &anyhow::Error, other: i32) -> Fault {
        let number = |cause: &(dyn std::error::Error + 'static)| {
            if let Some(e) = cause.downcast_ref::<kedgefs::Error>() {
                return Some(e.errno());
            }
            if let Some(e) = cause.downcast_ref::<kedge_base::Error>() {
                return Some(e.errno());
            }
            if cause.is::<kedge_host::Usage>() {
                return Some(libc::EINVAL);
            }
            cause.downcast_ref::<io::Error>().map(errno_of)
        };
        Fault::new(e.chain().filter_map(number).last().unwrap_or(other), format!("{e:#}"))
    }

    fn panicked(panic: &(dyn Any + Send)) -> Fault {
        Fault::new(libc::EIO, format!("a panic in the library: {}", kedge_base::panic_words(panic)))
    }
}

fn errno_of(e: &io::Error) -> i32 {
    let inner = e.get_ref().and_then(|inner| inner.downcast_ref::<kedgefs::Error>());
    inner.map(kedgefs::Error::errno).or(e.raw_os_error()).unwrap_or(libc::EIO)
}

impl From<kedgefs::Error> for Fault {
    fn from(e: kedgefs::Error) -> Fault {
        Fault::new(e.errno(), e.to_string())
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Fault {
        Fault::new(errno_of(&e), e.to_string())
    }
}

/// Adds the path to the text of an error.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Outcome<T>;
}

impl<T, E: Into<Fault>> At<T> for Result<T, E> {
    fn at(self, path: &Path) -> Outcome<T> {
        self.map_err(|e| {
            let Fault { errno, text } = e.into();
            Fault { errno, text: format!("{}: {text}", path.display()) }
        })
    }
}

thread_local! {
    /// The text of this thread's last error.
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

fn remember(what: &str, fault: &Fault) {
    let text = format!("{what}: {}", fault.text).replace('\0', "?");
    let text = CString::new(text).expect("the zeros are replaced");
    // A thread that ends has no place for the text any more. The caller has the number.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// The text of this thread's last error, valid until its next error.
pub(crate) fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

/// Runs the work of a function. Returns its result, or the error as a negative errno.
pub(crate) fn call(what: &str, body: impl FnOnce() -> Outcome<i64>) -> i64 {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Fault::panicked(&*panic)));
    outcome.unwrap_or_else(|fault| {
        remember(what, &fault);
        -i64::from(fault.errno)
    })
}

/// What a handle names.
pub(crate) trait Held {
    fn file_system(&self) -> &FileSystem;
}

/// [`call`] on what `find` finds. After a panic its file system is shut down.
pub(crate) fn on<T: Held>(
    what: &str,
    find: impl FnOnce() -> Outcome<Arc<T>>,
    body: impl FnOnce(&Arc<T>) -> Outcome<i64>,
) -> i64 {
    call(what, || {
        let held = find()?;
        catch_unwind(AssertUnwindSafe(|| body(&held))).unwrap_or_else(|panic| {
            let fault = Fault::panicked(&*panic);
            // Without a flush nothing can fail here.
            let _ = held.file_system().shutdown(false);
            Err(fault)
        })
    })
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
