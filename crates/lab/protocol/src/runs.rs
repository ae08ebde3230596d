//! Runs of the engine that produce traces, which are checked.

use crate::trace::{Counts, Violation, check};
use kedge_base::trace;
use kedge_device::sim::Choice;
use kedge_sim::backend::{Backend, InProcess};
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::rig::{Rig, Setup, panic_text};
use kedge_sim::writers::Writers;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Operations of a run with one thread.
const OPERATIONS: usize = 40;
/// Operations of each thread in a run with several threads.
const PER_THREAD: u64 = 20;
const THREADS: usize = 4;

/// The reason why a run fails.
#[derive(Debug)]
pub enum Failure {
    /// The trace violates a rule of the protocol.
    Trace(Box<Violation>),
    /// Another check failed first.
    Run(String),
}

/// Allows one run at a time, since all threads of the process note events in one list.
static ONE: Mutex<()> = Mutex::new(());

/// Runs `body` and checks the trace of the engine. The trace is checked even if `body` fails.
pub fn traced(body: impl FnOnce() -> Result<(), String>) -> Result<Counts, Failure> {
    let _one = ONE.lock();
    trace::start();
    // A panic is a failure of the run, too, and its trace may say why.
    let result = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
    let events = trace::take();
    let counts = check(&events).map_err(Failure::Trace)?;
    result.map_err(Failure::Run)?;
    Ok(counts)
}

/// Runs random operations of one thread, then a power failure and a recovery.
pub fn history(seed: u64) -> Result<(), String> {
    let setup = if seed.is_multiple_of(2) { Setup::cramped() } else { Setup::default() };
    // The image is small, since each run makes its own.
    let setup = Setup { image: 32 << 20, log: setup.log.min(1 << 20), ..setup.switched(seed) };
    let profile = Profile { remounts: 20, crashes: 0, persists: 250, ..Profile::default() };
    let mut generator = Generator::new(seed, profile);
    let mut rig = Rig::new(setup)?;
    let mut done = 0;
    while done < OPERATIONS {
        let op = generator.next(&rig.model);
        done += usize::from(rig.step(&op)?.is_some());
    }
    power_failure(&mut rig, seed)?;
    rig.exec.fs.close().map_err(|e| e.to_string())
}

/// Recovers what a power failure would leave now. The running file system is closed first, on its
/// own medium, since a trace has one file system at a time.
fn power_failure(rig: &mut Rig, seed: u64) -> Result<(), String> {
    let medium = rig.device.crash_as(Choice::Torn(seed));
    rig.exec.fs.close().map_err(|e| e.to_string())?;
    rig.restart(medium).map(drop)
}

/// Runs threads that write, fsync and rename while checkpoints run, then a power failure.
pub fn writers(seed: u64) -> Result<(), String> {
    let setup = Setup { image: 32 << 20, ..Setup::cramped().switched(seed) };
    let mut rig = Rig::new(setup)?;
    // Other threads change the image, so the model does not know its state.
    rig.history = None;
    let backend: Arc<dyn Backend> = Arc::new(InProcess(rig.exec.fs.clone()));
    let writers = Writers::start(&backend, THREADS, "w", seed).map_err(|e| e.to_string())?;
    while writers.operations() < THREADS as u64 * PER_THREAD && !writers.ended() {
        rig.exec.fs.checkpoint().map_err(|e| e.to_string())?;
        kedge_base::pause(Duration::from_micros(200));
    }
    let begun = writers.stop();
    if let Some(error) = begun.errors().first() {
        return Err((*error).to_owned());
    }
    power_failure(&mut rig, seed)?;
    rig.exec.fs.close().map_err(|e| e.to_string())
}
