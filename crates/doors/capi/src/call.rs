//! The boundary: each function of the header runs its work in [`call`].

pub(crate) use kedge_host::embed::{Fault, Outcome};
use kedgefs::FileSystem;
use parking_lot::RwLock;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

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
    // A thread that is ending can no longer store the text. The caller gets the number all the
    // same.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// The text of this thread's last error, valid until the next error of this thread.
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

/// An object that a handle refers to.
pub(crate) trait Held {
    fn file_system(&self) -> &FileSystem;

    /// The lock that a call holds shared while it uses the object.
    fn calls(&self) -> &RwLock<()>;
}

/// Runs [`call`] with the object that `find` returns. After a panic the object's file system is
/// shut down.
pub(crate) fn on<T: Held>(
    what: &str,
    find: impl FnOnce() -> Outcome<Arc<T>>,
    body: impl FnOnce(&Arc<T>) -> Outcome<i64>,
) -> i64 {
    call(what, || {
        let held = find()?;
        let _under_way = held.calls().read();
        catch_unwind(AssertUnwindSafe(|| body(&held))).unwrap_or_else(|panic| {
            let fault = Fault::panicked(&*panic);
            // A shutdown without a flush cannot fail.
            let _ = held.file_system().shutdown(false);
            Err(fault)
        })
    })
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
