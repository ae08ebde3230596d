//! Concurrent callers share rounds of the same work.
//!
//! One round runs at a time. A caller needs a round that begins after its call. So a caller that
//! finds none running begins one, and the callers that arrive while it runs share the next one.
//!
//! # Why syncs share the writing of their data
//! Each sync writes all dirty data, in passes over many files, and a pass reserves log for the
//! largest record that it may make: a tenth of a log of one MiB. With one such sequence of passes
//! for each caller, 32 threads that call sync reserve several times what a small log has, for
//! records that most of them do not write, because the thread ahead of them has. Meanwhile the log
//! looks full: creations are delayed, and the checkpoint hurries.
//!
//! # Crash argument
//! A round begins after the call, so it writes and records everything that was complete at the
//! call. Each caller then forces the log to the head that it reads after the round, and flushes for
//! the newest data write of the round. So a sync returns when the same records and data are durable
//! as if it had run alone. The broken variant `SyncJoinsRunning` shares the round that has begun.

use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Condvar, Mutex, Rank};

struct State<T> {
    /// Number of rounds that have begun.
    begun: u64,
    running: bool,
    /// The last round that ended, and its result.
    last: Option<(u64, T)>,
}

/// See the module.
pub(super) struct Rounds<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

/// A running round. If it is dropped without a result, after a panic, a waiting caller begins the
/// next one.
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

    /// The result of a round that begins after the call, in this thread (`run`) or in another.
    pub(super) fn share(&self, run: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        let mut mine = state.begun + 1;
        if state.running && broken::is(Variant::SyncJoinsRunning) {
            // Broken on purpose: the running round may have passed data of this call.
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
