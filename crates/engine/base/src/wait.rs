//! A thread on which others depend passes its work on before it waits.
//!
//! One worker of a mount receives the requests of all clients. If it waits for a device, or for a
//! lock that is held while a device works, another worker must receive meanwhile. The places that
//! wait call [`about_to_wait`]. The alternative is a second worker that receives all the time; the
//! kernel would then wake a sleeping thread for each request.
//!
//! A place that waits without the call delays the other requests until the workers' own supervision
//! notices. So the call makes waiting cheap; correctness does not rest on it.

use std::cell::{Cell, RefCell};

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static STAND_IN: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Sets the function that the calling thread runs before it waits inside of [`passing_on`]. The
/// function must not wait, and may run while locks of any rank are held.
pub fn set_stand_in(call: impl Fn() + 'static) {
    STAND_IN.set(Some(Box::new(call)));
}

/// Runs `body`. Its first wait runs the thread's function. Returns whether it ran.
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
