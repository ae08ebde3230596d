//! Panics as errors. A panic is a broken invariant: what it left half done must not be used again. But a thread that just
//! ends leaves those who wait for it waiting for ever, so whoever owns a thread, or answers others, turns the panic into an
//! error that shuts its part down.

use crate::{Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a panic said.
pub fn panic_words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

/// Runs `body`. If it panics the error has the panic's words, and the caller shuts down what `body` may have left half done.
pub fn without_panic<T>(what: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let words = panic_words(&*panic);
        Err(Error::Shutdown(format!("a panic in {what}: {words}").into()))
    })
}

#[cfg(test)]
#[path = "panics_tests.rs"]
mod tests;
