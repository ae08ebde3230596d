//! A thread on which other requests depend hands its other work over before it waits.
//!
//! One worker of a mount receives the requests of all clients. While it waits for a device, or for
//! a lock that is held during device IO, another worker must receive. So code that waits calls
//! [`about_to_wait`] first. The rejected alternative is a second worker that always receives: the
//! kernel would then wake a sleeping thread for each request.
//!
//! Waiting without the call is correct but slow: it delays other requests until the supervision of
//! the workers notices.

use std::cell::{Cell, RefCell};

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static STAND_IN: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Sets the function that the calling thread runs before it first waits inside of [`passing_on`].
/// The function must not wait, because the thread may hold locks of any rank when it runs.
pub fn set_stand_in(call: impl Fn() + 'static) {
    STAND_IN.set(Some(Box::new(call)));
}

/// Runs `body`. Before the first wait in `body`, the function set by [`set_stand_in`] runs. Returns
/// whether there was such a wait.
pub fn passing_on(body: impl FnOnce()) -> bool {
    ARMED.set(true);
    body();
    !ARMED.replace(false)
}

/// Must be called before the calling thread waits for a device or for another thread.
#[inline]
pub fn about_to_wait() {
    if ARMED.replace(false) {
        STAND_IN.with_borrow(|call| {
            if let Some(call) = call {
                call();
            }
        });
    }
}

#[cfg(test)]
#[path = "wait_tests.rs"]
mod tests;
