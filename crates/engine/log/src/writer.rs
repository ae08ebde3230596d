//! Writer threads: they write full batches, lead writes for asynchronous forces and call their
//! callbacks.
//!
//! The thread that led a write delivers its results. If the leader is a thread that waits in a
//! force, or if there are several results, another thread is woken to deliver them.
//!
//! A thread that starts work first ensures that another thread waits for the next work, and starts
//! one if necessary. There is at most one thread more than the maximum number of writes in flight.
//! So the delivery of a result never waits for a device write, and a mount that needs only one
//! thread has only one.

use crate::force::{Leader, stopped};
use crate::shared::Shared;
use crate::state::State;
use crate::wait::Wake;
use kedge_base::{Error, spawn_named, without_panic};
use std::sync::Arc;

/// Starts the first writer thread. If that fails, latches shutdown, because no thread could
/// complete asynchronous forces.
pub(crate) fn start(shared: &Arc<Shared>) {
    let started = start_one(shared, &mut shared.state.lock());
    if let Err(error) = started {
        shared.shut_down(&Error::thread("kedge-log", &error));
    }
}

fn start_one(shared: &Arc<Shared>, state: &mut State) -> std::io::Result<()> {
    let shared_of_thread = shared.clone();
    let name = format!("kedge-log-{}", state.threads.len());
    let thread = spawn_named(&name, move || run(&shared_of_thread))?;
    state.threads.push(thread);
    state.threads_waiting += 1;
    Ok(())
}

/// Called by a thread that starts work: ensures that another thread waits for the next work.
fn leave_one_waiting(shared: &Arc<Shared>, state: &mut State) {
    let wanted = state.in_flight_max + 1;
    if state.threads_waiting > 0 || state.stopping || state.threads.len() >= wanted {
        return;
    }
    if let Err(error) = start_one(shared, state) {
        let started = state.threads.len();
        tracing::warn!(%error, started, wanted, "fewer log writer threads than wanted");
    }
}

/// Runs a writer thread. A panic shuts the log down, but the thread continues, because the waiting
/// forces still need their results. The panics cannot repeat forever: a log that is shut down
/// writes nothing, and a result is removed from the queue before it is delivered.
fn run(shared: &Arc<Shared>) {
    shared.state.lock().threads_waiting -= 1;
    while let Err(error) = without_panic("a thread of the log", || {
        serve(shared);
        Ok(())
    }) {
        tracing::error!("{error}");
        shared.shut_down(&error);
    }
}

fn serve(shared: &Arc<Shared>) {
    let mut state = shared.state.lock();
    loop {
        if let Some((done, result)) = state.answers.pop_front() {
            leave_one_waiting(shared, &mut state);
            drop(state);
            done(result);
            state = shared.state.lock();
        } else if state.writer_may_lead() {
            leave_one_waiting(shared, &mut state);
            let mut wake = Wake::default();
            let write = shared.take(&mut state, &mut wake);
            drop(state);
            wake.fire(&shared.writers);
            // A failure is latched as shutdown, and every waiter has received it. No other caller
            // needs it.
            let _latched = shared.write(write, Leader::Writer);
            state = shared.state.lock();
        } else if state.stopping && state.is_drained() {
            return;
        } else {
            state.threads_waiting += 1;
            shared.writers.wait(&mut state);
            state.threads_waiting -= 1;
            shared.stats.writer_wakes.inc();
        }
    }
}

impl State {
    /// Returns whether the writer threads have no work left, now and after the writes in flight.
    fn is_drained(&self) -> bool {
        self.answers.is_empty() && self.sealed.is_empty() && (self.dead.is_some() || self.in_flight() == 0)
    }
}

/// Lets the threads finish, joins them and shuts the log down. A callback may drop the last handle
/// of a log, so the calling thread may itself be a writer thread; it does not join itself.
pub(crate) fn stop(shared: &Shared) {
    let threads = {
        let mut state = shared.state.lock();
        // From now on no writer thread is started.
        state.stopping = true;
        std::mem::take(&mut state.threads)
    };
    shared.writers.notify_all();
    let this = std::thread::current().id();
    for thread in threads {
        if thread.thread().id() != this && thread.join().is_err() {
            tracing::error!("a log writer thread panicked");
        }
    }
    shared.shut_down(&stopped());
}
