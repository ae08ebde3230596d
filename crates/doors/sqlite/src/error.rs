//! Errors: a code of SQLite, and a text with more detail.

use kedge_base::panic_words;
use kedge_host::embed::Fault;
use libsqlite3_sys as sqlite;
use parking_lot::Mutex;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The text of the last error in this process. A VFS cannot pass a text to its connection, so the
/// SQL function `kedgefs_error()` returns it.
static LAST: Mutex<String> = Mutex::new(String::new());

pub(crate) fn last() -> String {
    LAST.lock().clone()
}

/// An error as it is returned to SQLite, with its text and errno.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: i32,
    pub(crate) errno: i32,
    pub(crate) text: String,
}

pub(crate) type Outcome<T> = Result<T, Refused>;

impl Refused {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Refused {
        Refused { code, errno: 0, text: text.into() }
    }

    /// The error for an image that cannot be opened.
    pub(crate) fn image(image: &str, fault: &Fault) -> Refused {
        let text = format!("{image}: {}", fault.text);
        Refused { code: sqlite::SQLITE_CANTOPEN, errno: fault.errno, text }
    }

    /// The error of a call whose failures have the code `code`. A write to a full image gets
    /// SQLITE_FULL instead.
    pub(crate) fn io(code: i32, what: &str, e: &io::Error) -> Refused {
        let errno = e
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<kedgefs::Error>())
            .map_or_else(|| e.raw_os_error().unwrap_or(libc::EIO), kedgefs::Error::errno);
        let full = code == sqlite::SQLITE_IOERR_WRITE && matches!(errno, libc::ENOSPC | libc::EDQUOT);
        let code = if full { sqlite::SQLITE_FULL } else { code };
        Refused { code, errno, text: format!("{what}: {e}") }
    }

    /// Stores the text for `kedgefs_error()`. Returns the code.
    pub(crate) fn note(self) -> i32 {
        *LAST.lock() = self.text;
        self.code
    }
}

/// Runs a function that SQLite calls. A panic becomes an error.
pub(crate) fn guarded(code: i32, run: impl FnOnce() -> Outcome<i32>) -> i32 {
    caught(code, run).and_then(|done| done).unwrap_or_else(Refused::note)
}

/// Runs work that may panic. A panic becomes an error of the outer result.
pub(crate) fn caught<T>(code: i32, run: impl FnOnce() -> T) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|panic| Refused::new(code, format!("a panic in the library: {}", panic_words(&*panic))))
}
