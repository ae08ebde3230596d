//! Panics as errors. A panic means a broken invariant, so state that the panic left incomplete must
//! not be used again. But if the thread simply ended, other threads would wait for it forever. So
//! code that owns a thread or serves requests turns the panic into an error, and the error shuts
//! down the component concerned.

use crate::{Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the message of a panic.
pub fn panic_words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

/// Runs `body`. Turns a panic into an error with the panic's message; the caller then shuts down
/// what `body` may have left incomplete.
pub fn without_panic<T>(what: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let words = panic_words(&*panic);
        Err(Error::Shutdown(format!("a panic in {what}: {words}").into()))
    })
}

#[cfg(test)]
#[path = "panics_tests.rs"]
mod tests;
