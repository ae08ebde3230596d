//! Runs a body on a machine of its own.

use super::Computing;
use super::clockwork::{Account, Clockwork, Overhead};
use super::hardware::Hardware;
use super::profile::Profile;
use super::stretch::monotonic;
use super::table::Table;
use kedge_base::machine::{self, Seat, Step};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Limit of real time between two steps: far more than a busy machine needs for one.
const HANG: Duration = Duration::from_secs(60);

thread_local! {
    /// The machine whose first thread this is.
    static MINE: RefCell<Option<Arc<Clockwork>>> = const { RefCell::new(None) };
}

/// What the body returned, and the account of the run.
#[derive(Debug)]
pub struct Timed<T> {
    pub result: T,
    pub account: Account,
}

/// Lets the calling thread compute for that time, in virtual time only. Must be called by the first
/// thread of a machine, or by a thread that got the machine from it.
pub fn compute(machine: &Clockwork, time: Duration) {
    machine.compute(machine::thread_number().expect("a thread of a machine"), time);
}

/// Returns the profile since the last call, and how much of its computing was between points that
/// the table does not know. Must be called by the first thread of a machine.
pub fn mark() -> (Profile, Duration) {
    MINE.with_borrow(|machine| machine.as_ref().expect("the first thread of a machine").mark())
}

/// Runs `body` as the first thread of a machine. Returns when all its threads have ended. Fails if
/// the body panicked, or if threads will never end; those stay parked for the rest of the process.
pub fn run<T: Send + 'static>(
    hardware: Hardware,
    computing: Computing,
    body: impl FnOnce(&Arc<Clockwork>) -> T + Send + 'static,
) -> Result<Timed<T>, String> {
    let overhead = match &computing {
        Computing::Measured(_) => overhead()?,
        _ => Overhead::default(),
    };
    run_with(hardware, computing, overhead, body)
}

fn run_with<T: Send + 'static>(
    hardware: Hardware,
    computing: Computing,
    overhead: Overhead,
    body: impl FnOnce(&Arc<Clockwork>) -> T + Send + 'static,
) -> Result<Timed<T>, String> {
    let machine = Arc::new(Clockwork::new(hardware, computing, overhead));
    let seat = Seat { machine: machine.clone(), thread: 0 };
    let result = Arc::new(Mutex::new(None));
    let (kept, mine) = (result.clone(), machine.clone());
    kedge_base::spawn_named("simulated", move || {
        MINE.set(Some(mine.clone()));
        kedge_base::run_in(seat, || {
            let caught = catch_unwind(AssertUnwindSafe(|| body(&mine)));
            *kept.lock() =
                Some(caught.map_err(|panic| format!("panic: {}", kedge_base::panic_words(&*panic))));
        });
    })
    .map_err(|e| format!("start a thread: {e}"))?;
    let account = machine.outcome(HANG)?;
    let result = result.lock().take().expect("the first thread has ended")?;
    Ok(Timed { result, account })
}

/// Measures once how much of a point's cost lies in the stretches that it separates: a loop of
/// points with nothing between them.
fn overhead() -> Result<Overhead, String> {
    const CALLS: usize = 20_000;
    static KNOWN: OnceLock<Result<Overhead, String>> = OnceLock::new();
    let measure = || {
        let table = Arc::new(Table::default());
        let nothing = Overhead::default();
        let computing = Computing::Measured(table.clone());
        let loops = |_: &Arc<Clockwork>| {
            (0..CALLS).for_each(|_| machine::point(Step::Atomic));
            mark();
            (0..CALLS).for_each(|_| machine::point(Step::Atomic));
            let (points, _) = mark();
            let line = std::sync::atomic::AtomicU64::new(0);
            let start = monotonic();
            (0..CALLS).for_each(|_| machine::touch(&line, false));
            let loads = monotonic() - start;
            machine::point(Step::Atomic);
            let (asides, _) = mark();
            (points, asides, loads)
        };
        let ran = run_with(Hardware::ideal(1), computing, nothing, loops)?;
        let (points, asides, loads) = ran.result;
        let nanos =
            |profile: &Profile| profile.total(super::Kind::Computing).as_nanos() as u64 / CALLS as u64;
        // The time of each load that `stretch::aside` has not subtracted.
        let (point, aside) = (nanos(&points), nanos(&asides).min(loads / CALLS as u64));
        Ok(Overhead { point, aside })
    };
    KNOWN.get_or_init(measure).clone()
}
