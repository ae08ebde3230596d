//! The real time of one thread between two calls of the machine: a *stretch*.
//!
//! The monotonic clock is read without a system call. It also counts the time in which the real
//! processor runs something else, so a stretch that looks long is checked against the processor
//! time of the thread.

use super::table::{Point, What};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::panic::Location;

/// Nanoseconds above which a stretch may contain an interruption. Reading the thread's processor
/// time is a system call, too slow for each stretch.
const CHECKED: u64 = 20_000;

const BEGIN: Point = Point { site: None, what: What::Begin };

thread_local! {
    static OUT: Cell<u64> = const { Cell::new(0) };
    /// The thread's processor time and the monotonic clock at the last check.
    static BASE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// The point at which the running stretch began.
    static LAST: Cell<Point> = const { Cell::new(BEGIN) };
    static SITE: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

fn nanos(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(super) fn monotonic() -> u64 {
    nanos(ClockId::Monotonic)
}

pub(super) fn processor() -> u64 {
    nanos(ClockId::ThreadCPUTime)
}

/// Notes the place in the source code of the next call.
pub(super) fn at(site: &'static Location<'static>) {
    SITE.set(Some(site));
}

pub(super) fn site() -> Option<&'static Location<'static>> {
    SITE.get()
}

/// Ends the stretch at a point. Returns the point at which it began, and this one.
pub(super) fn points(what: What) -> (Point, Point) {
    let here = Point { site: if what == What::Clock { None } else { SITE.get() }, what };
    (LAST.replace(here), here)
}

/// The thread runs again after another thread ran.
pub(super) fn resume() {
    BASE.set((processor(), monotonic()));
}

/// A stretch begins now.
pub(super) fn begin() {
    OUT.set(monotonic());
}

/// Nanoseconds of the stretch that ends at `entered`, including the machine's own cost.
pub(super) fn length(entered: u64) -> u64 {
    let length = entered.saturating_sub(OUT.get());
    if length < CHECKED {
        return length;
    }
    // Time since the last check in which the processor did not run this thread was in this stretch,
    // since it is the first long one after the check.
    let (processor_then, monotonic_then) = BASE.get();
    let away =
        entered.saturating_sub(monotonic_then).saturating_sub(processor().saturating_sub(processor_then));
    BASE.set((processor(), monotonic()));
    length.saturating_sub(away)
}

/// Moves the beginning of the stretch by the machine's own time: from `entered` until now, and
/// `more`.
pub(super) fn aside(entered: u64, more: u64) {
    OUT.set(OUT.get() + (monotonic() - entered) + more);
}
