//! Failures before the first promise.
//!
//! A program that starts in an empty directory and has promised nothing yet has no data that a
//! crash could take from its user. If it does not start after such a crash, this is a fault too,
//! but an installer may repair it by starting again. So reports and the exit code distinguish these
//! failures. If there were files at the start, the user has these, and no failure is early.

use crate::history::History;
use crate::trace::{Call, Trace};

/// The part of a recording before its first promise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    /// The number of the first promise; `None` if no failure counts as early.
    first: Option<u32>,
}

impl Early {
    pub fn of(trace: &Trace, history: &History) -> Early {
        let is_promise = |call: &Call| matches!(call, Call::Mark { .. });
        let first = trace.events.iter().position(|e| is_promise(&e.call));
        Early { first: first.filter(|_| history.starts_empty(trace.device())).map(|n| n as u32) }
    }

    /// Whether a crash at this point comes before the first promise.
    pub fn has(&self, at: u32) -> bool {
        self.first.is_some_and(|first| at <= first)
    }

    /// The first crash point on the same side of the first promise as `at`. A failure that breaks a
    /// promise must still do so when the crash is moved to an earlier point.
    pub fn first_like(&self, at: u32) -> u32 {
        self.first.filter(|first| at > *first).map_or(0, |first| first + 1)
    }
}
