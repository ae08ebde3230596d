//! Rounds of a piece of work that concurrent callers share.
//!
//! One round runs at a time. A caller needs a round that begins after its call. So a caller that
//! finds no round running begins one, and all callers that arrive while it runs share the next one.
//!
//! # Why syncs share the writing of their data
//! Each sync writes all dirty data, in passes over many files. A pass reserves log for the largest
//! record that it may make, which is a tenth of a log of one MiB. If each of 32 threads that call
//! sync ran its own passes, they would reserve several times what a small log has, mostly for
//! records that they then do not write, because another thread has written the data. Meanwhile the
//! log would look full: creations would be delayed, and the checkpoint would hurry.
//!
//! # Crash argument
//! A round begins after the call, so it writes and records everything that was complete at the
//! call. Each caller then forces the log to the head that it reads after the round, and flushes for
//! the newest data write of the round. So when a sync returns, the same records and data are
//! durable as if it had run alone. The broken variant `SyncJoinsRunning` shares the round that is
//! already running.

use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Condvar, Mutex, Rank};

struct State<T> {
    /// Number of rounds that have begun.
    begun: u64,
    running: bool,
    /// Number and result of the last round that ended.
    last: Option<(u64, T)>,
}

/// Rounds of work with results of type `T`; see the module's head.
pub(super) struct Rounds<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

/// A running round. If a panic drops it without a result, a waiting caller begins the next round.
struct Turn<'a, T>(&'a Rounds<T>);

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.0.state.lock().running = false;
        self.0.ended.notify_all();
    }
}

impl<T: Clone> Rounds<T> {
    pub(super) fn new() -> Rounds<T> {
        let state = State { begun: 0, running: false, last: None };
        Rounds { state: Mutex::new(Rank::Leaf, state), ended: Condvar::new() }
    }

    /// Returns the result of a round that begins after the call. The round runs in this thread
    /// (`run`) or in that of another caller.
    pub(super) fn share(&self, run: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        let mut mine = state.begun + 1;
        if state.running && broken::is(Variant::SyncJoinsRunning) {
            // Broken on purpose: the running round may have passed this caller's data already.
            mine = state.begun;
        }
        while state.running {
            self.ended.wait(&mut state);
            if let Some((_, result)) = state.last.as_ref().filter(|(round, _)| *round >= mine) {
                return result.clone();
            }
        }
        state.begun += 1;
        state.running = true;
        let round = state.begun;
        drop(state);
        let turn = Turn(self);
        let result = run();
        self.state.lock().last = Some((round, result.clone()));
        drop(turn);
        result
    }
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
