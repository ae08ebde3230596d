//! One run: a body on a fresh machine.

use crate::machine::{Account, Processor};
use crate::strategy::Plan;
use kedge_base::machine::Seat;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The longest real time between two steps: far above what a busy machine needs for one.
const HANG: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub plan: Plan,
    pub steps_max: u64,
    /// Virtual time up to which the run waits for a timer.
    pub time_max: Duration,
}

impl Config {
    pub fn new(seed: u64, plan: Plan) -> Config {
        Config { seed, plan, steps_max: 1_000_000, time_max: Duration::from_secs(600) }
    }
}

/// A run and its result: what the body returned, or why it did not.
#[derive(Clone, Debug)]
pub struct Run {
    pub account: Account,
    pub result: Result<(), String>,
}

thread_local! {
    /// The machine of a first thread.
    static MINE: RefCell<Option<Arc<Processor>>> = const { RefCell::new(None) };
}

/// Whether the strategy chooses the next thread from now on, or every thread keeps its turn until
/// it waits. Called by the first thread of a machine.
pub fn explore(on: bool) {
    MINE.with_borrow(|machine| machine.as_ref().expect("the first thread of a machine").explore(on));
}

/// Runs `body` as the first thread of a machine. Returns when all threads of the machine have
/// ended, or when they never will. In the second case they stay parked for the rest of the process.
pub fn run(config: &Config, body: impl FnOnce() -> Result<(), String> + Send + 'static) -> Run {
    let strategy = config.plan.strategy(config.seed);
    let machine = Arc::new(Processor::new(strategy, config.steps_max, config.time_max));
    let seat = Seat { machine: machine.clone(), thread: 0 };
    let result = Arc::new(Mutex::new(None));
    let (kept, explored) = (result.clone(), machine.clone());
    // The thread itself belongs to no machine: it is started by one that does not.
    kedge_base::spawn_named("simulated", move || {
        MINE.set(Some(explored));
        kedge_base::run_in(seat, || {
            let caught = catch_unwind(AssertUnwindSafe(body));
            *kept.lock() = Some(
                caught.unwrap_or_else(|panic| Err(format!("panic: {}", kedge_base::panic_words(&*panic)))),
            );
        });
    })
    .expect("a test can start a thread");
    let account = machine.account(HANG);
    let result = match &account.failure {
        Some(failure) => Err(failure.to_string()),
        None => result.lock().take().expect("the first thread has ended"),
    };
    Run { account, result }
}
