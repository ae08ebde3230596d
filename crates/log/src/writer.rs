//! Writer threads: they write full batches, write for asynchronous forces and deliver their answers.
//!
//! There is one more thread than writes may be in flight, so that an answer never waits behind a device write.

use crate::Shared;
use crate::force::stopped;
use crate::state::State;
use crate::wait::Wake;
use kedge_base::{Error, spawn_named};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Starts the writer threads. One suffices; without any, shutdown is latched: nobody would answer asynchronous forces.
pub(crate) fn start(shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let wanted = shared.state.lock().in_flight_max + 1;
    let mut threads = Vec::new();
    for i in 0..wanted {
        let shared_of_thread = shared.clone();
        match spawn_named(&format!("kedge-log-{i}"), move || run(&shared_of_thread)) {
            Ok(thread) => threads.push(thread),
            Err(error) if threads.is_empty() => {
                shared.shut_down(&Error::invalid(format!("no log writer thread could be started: {error}")));
                break;
            }
            Err(error) => {
                tracing::warn!(%error, started = threads.len(), wanted, "fewer log writer threads than wanted");
                break;
            }
        }
    }
    threads
}

fn run(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        if let Some((done, result)) = state.answers.pop_front() {
            drop(state);
            done(result);
            state = shared.state.lock();
        } else if state.writer_may_lead() {
            let mut wake = Wake::default();
            let write = shared.take(&mut state, &mut wake);
            drop(state);
            wake.fire(&shared.writers);
            // A failure is latched and every waiter has it: there is nobody else to tell.
            let _latched = shared.write(write);
            state = shared.state.lock();
        } else if state.stopping && state.is_drained() {
            return;
        } else {
            shared.writers.wait(&mut state);
        }
    }
}

impl State {
    /// Nothing is left for a writer thread to do, now or when a write in flight completes.
    fn is_drained(&self) -> bool {
        self.answers.is_empty() && self.sealed.is_empty() && (self.dead.is_some() || self.in_flight() == 0)
    }
}

/// Lets the threads finish, joins them, shuts the log down. A callback may drop the last handle of a log, so the caller can
/// be a writer thread itself: that one is not joined.
pub(crate) fn stop(shared: &Shared, threads: Vec<JoinHandle<()>>) {
    shared.state.lock().stopping = true;
    shared.writers.notify_all();
    let this = std::thread::current().id();
    for thread in threads {
        if thread.thread().id() != this && thread.join().is_err() {
            tracing::error!("a log writer thread panicked");
        }
    }
    shared.shut_down(&stopped());
}
