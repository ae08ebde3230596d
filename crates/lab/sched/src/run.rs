//! Runs a body on a machine of its own.

use crate::machine::{Account, Processor};
use crate::strategy::Plan;
use kedge_base::machine::Seat;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Limit of real time between two steps: far more than a busy machine needs for one.
const HANG: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub plan: Plan,
    pub steps_max: u64,
    /// Limit of virtual time: a later timer counts as never.
    pub time_max: Duration,
}

impl Config {
    pub fn new(seed: u64, plan: Plan) -> Config {
        Config { seed, plan, steps_max: 1_000_000, time_max: Duration::from_secs(600) }
    }
}

/// A run, and what the body returned, or the reason why it did not.
#[derive(Clone, Debug)]
pub struct Run {
    pub account: Account,
    pub result: Result<(), String>,
}

thread_local! {
    /// The machine whose first thread this is.
    static MINE: RefCell<Option<Arc<Processor>>> = const { RefCell::new(None) };
}

/// Sets whether the strategy chooses the next thread. Otherwise each thread keeps its turn until it
/// waits. Must be called by the first thread of a machine.
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
    // `spawn_named` starts the thread outside of any machine; `run_in` then puts it on this one.
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
