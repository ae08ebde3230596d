//! The machine: threads of the operating system, each parked until it has the turn.
//!
//! # Invariants
//! 1. The thread named by `turn` runs; all others are parked in [`Processor::await_turn`], have not
//!    begun, or have ended.
//! 2. The state changes only in the thread that has the turn (and, after a failure, in the thread
//!    that collects the report). So its lock is never contended for long.
//! 3. Nothing depends on the real clock, on addresses, or on numbers that the operating system
//!    assigns. So a seed repeats a run.
//!
//! # Time
//! Each step takes a microsecond. While no thread can run, time jumps to the next end of a sleep.
//! The strategy may let time jump earlier, by at most [`JUMP_MAX`], as if the other threads were
//! slow.

use crate::strategy::{Choice, Look, Strategy};
use kedge_base::machine::{Machine, Step};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::Thread;
use std::time::Duration;

const STEP: Duration = Duration::from_micros(1);
/// Far below the time after which the engine considers a device or an operation stuck.
const JUMP_MAX: Duration = Duration::from_millis(100);
/// The value of `turn` after the run: no thread has the turn.
const NONE: usize = usize::MAX;

/// The reason why a run ended before its threads did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// Every thread waits for another thread, or for a timer beyond the time limit of the run: a
    /// deadlock, or a wake-up that was lost.
    AllWait,
    /// A thread waits for the device or for another thread while it holds a lock that must not be
    /// held during a wait.
    WaitsWithLock(String),
    /// The run exceeds its limit of steps: threads wake one another forever, or spin.
    NoEnd,
    /// The thread that has the turn makes no further step: it loops or waits outside of the
    /// machine.
    Stuck,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum On {
    Place(usize),
    EndOf(usize),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    Waits { on: On, until: Option<Duration>, since: u64 },
    Ended,
}

struct Slot {
    name: String,
    status: Status,
    /// The thread's handle, once it has begun.
    thread: Option<Thread>,
    /// Whether its last wait ended because its time limit was over.
    late: bool,
    last: Option<Step>,
    stack: Option<String>,
}

struct State {
    threads: Vec<Slot>,
    now: Duration,
    steps: u64,
    choices: u64,
    trace: u64,
    strategy: Box<dyn Strategy>,
    /// Choices that differ from [`Look::plain`], with their numbers.
    schedule: Vec<(u64, Choice)>,
    switches: u64,
    why: Option<Why>,
    own: HashMap<TypeId, &'static (dyn Any + Send + Sync)>,
    /// Whether the strategy chooses. Otherwise each thread keeps its turn until it waits.
    exploring: bool,
}

/// See the module.
pub struct Processor {
    turn: AtomicUsize,
    state: Mutex<State>,
    /// Signalled at the end of the run, and for each stack of a report.
    ended: Condvar,
    steps_max: u64,
    time_max: Duration,
}

/// The numbers of a run, and how it ended.
#[derive(Clone, Debug)]
pub struct Account {
    /// A hash of the schedule and the steps: equal for two runs that took the same steps.
    pub trace: u64,
    pub steps: u64,
    pub choices: u64,
    pub switches: u64,
    pub time: Duration,
    pub threads: usize,
    pub schedule: Vec<(u64, Choice)>,
    pub failure: Option<Failure>,
}

/// Why a run ended before its threads did, and all of these threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub why: Why,
    /// For each thread that has not ended: its name, what it does, and its stack.
    pub threads: Vec<(String, String, String)>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::AllWait => f.write_str("all threads wait for one another (a deadlock or a lost wake-up)"),
            Why::WaitsWithLock(what) => f.write_str(what),
            Why::NoEnd => f.write_str("the run does not end"),
            Why::Stuck => f.write_str("the running thread does not come to a step"),
        }?;
        for (name, does, stack) in &self.threads {
            write!(f, "\nthread {name} {does}\n{stack}")?;
        }
        Ok(())
    }
}

fn mix(trace: u64, value: u64) -> u64 {
    (trace ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

impl Processor {
    /// A machine with one thread, number 0, which has the turn.
    pub(crate) fn new(strategy: Box<dyn Strategy>, steps_max: u64, time_max: Duration) -> Processor {
        let main = Slot {
            name: "main".to_owned(),
            status: Status::Ready,
            thread: None,
            late: false,
            last: None,
            stack: None,
        };
        Processor {
            turn: AtomicUsize::new(0),
            state: Mutex::new(State {
                threads: vec![main],
                now: Duration::ZERO,
                steps: 0,
                choices: 0,
                trace: 0,
                strategy,
                schedule: Vec::new(),
                switches: 0,
                why: None,
                own: HashMap::new(),
                exploring: true,
            }),
            ended: Condvar::new(),
            steps_max,
            time_max,
        }
    }

    /// Sets whether the strategy chooses. Opening and closing a file system is most of a run, and a
    /// scenario that does not test them need not spend its switches there.
    pub(crate) fn explore(&self, on: bool) {
        self.state.lock().exploring = on;
    }

    /// Gives the turn to the thread that the strategy chooses. Returns when `me` has the turn
    /// again.
    fn choose(&self, mut state: MutexGuard<'_, State>, me: usize, what: Option<Step>) {
        if state.why.is_none() && state.steps > self.steps_max {
            state.why = Some(Why::NoEnd);
        }
        let next = if state.why.is_some() { None } else { state.next(me, what, self.time_max) };
        let Some(next) = next else {
            self.turn.store(NONE, SeqCst);
            self.ended.notify_all();
            drop(state);
            return self.await_turn(me);
        };
        if next == me {
            return;
        }
        state.switches += 1;
        let thread = state.threads[next].thread.clone();
        let ended = state.threads[me].status == Status::Ended;
        self.turn.store(next, SeqCst);
        drop(state);
        if let Some(thread) = thread {
            thread.unpark();
        }
        if !ended {
            self.await_turn(me);
        }
    }

    /// Returns when the thread has the turn. After a failure it never returns: the thread notes its
    /// stack and stays parked, since unwinding would make calls that no program makes.
    fn await_turn(&self, me: usize) {
        while self.turn.load(SeqCst) != me {
            if self.turn.load(SeqCst) == NONE {
                let mut state = self.state.lock();
                if state.threads[me].status == Status::Ended {
                    return;
                }
                if state.why.is_some() && state.threads[me].stack.is_none() {
                    state.threads[me].stack = Some(String::new());
                    drop(state);
                    let stack = stack();
                    self.state.lock().threads[me].stack = Some(stack);
                    self.ended.notify_all();
                }
            }
            std::thread::park();
        }
    }

    /// Waits for the end of the run, or until `hang` of real time has passed without a step.
    pub(crate) fn account(&self, hang: Duration) -> Account {
        let mut state = self.state.lock();
        let mut seen = state.steps;
        while self.turn.load(SeqCst) != NONE {
            let late = self.ended.wait_for(&mut state, hang).timed_out();
            if late && state.steps == seen && self.turn.load(SeqCst) != NONE {
                state.why = Some(Why::Stuck);
                break;
            }
            seen = state.steps;
        }
        let failure = state.why.clone().map(|why| {
            for slot in &state.threads {
                if let Some(thread) = &slot.thread {
                    thread.unpark();
                }
            }
            let stuck = self.turn.load(SeqCst);
            let missing = |state: &State| {
                let waits = |(i, slot): (usize, &Slot)| {
                    i != stuck
                        && slot.thread.is_some()
                        && slot.status != Status::Ended
                        && slot.stack.as_ref().is_none_or(String::is_empty)
                };
                state.threads.iter().enumerate().any(waits)
            };
            // If the running thread is stuck, the others stay parked and note no stacks.
            while stuck == NONE && missing(&state) {
                if self.ended.wait_for(&mut state, hang).timed_out() {
                    break;
                }
            }
            let live = state.threads.iter().enumerate().filter(|(_, s)| s.status != Status::Ended);
            let threads = live.map(|(i, slot)| {
                let does = if i == stuck {
                    format!("has the turn, last step {:?}", slot.last)
                } else {
                    slot.does(&state.threads)
                };
                (slot.name.clone(), does, slot.stack.clone().unwrap_or_default())
            });
            Failure { why, threads: threads.collect() }
        });
        Account {
            trace: mix(state.trace, state.steps),
            steps: state.steps,
            choices: state.choices,
            switches: state.switches,
            time: state.now,
            threads: state.threads.len(),
            schedule: state.schedule.clone(),
            failure,
        }
    }
}

impl Slot {
    fn does(&self, all: &[Slot]) -> String {
        match &self.status {
            Status::Ready => format!("could run, last step {:?}", self.last),
            Status::Waits { on: On::EndOf(thread), .. } => {
                format!("waits for the end of {}", all[*thread].name)
            }
            Status::Waits { .. } => format!("waits for a lock or a wake-up, last step {:?}", self.last),
            Status::Ended => "has ended".to_owned(),
        }
    }
}

impl State {
    /// Returns the thread that runs next, or `None` if the run is over or has failed.
    fn next(&mut self, me: usize, what: Option<Step>, time_max: Duration) -> Option<usize> {
        loop {
            let now = self.now;
            let mut ready = Vec::with_capacity(self.threads.len());
            let mut soonest: Option<Duration> = None;
            for (i, slot) in self.threads.iter_mut().enumerate() {
                if let Status::Waits { until: Some(until), .. } = slot.status {
                    if until <= now {
                        slot.status = Status::Ready;
                        slot.late = true;
                    } else {
                        soonest = Some(soonest.map_or(until, |least| least.min(until)));
                    }
                }
                if slot.status == Status::Ready {
                    ready.push(i);
                }
            }
            if ready.is_empty() {
                if let Some(until) = soonest.filter(|until| *until <= time_max) {
                    self.now = until;
                    continue;
                }
                if self.threads.iter().any(|slot| slot.status != Status::Ended) {
                    self.why = Some(Why::AllWait);
                }
                return None;
            }
            let look = Look {
                at: self.choices,
                ready: &ready,
                current: ready.contains(&me).then_some(me),
                what,
                sleeper: soonest.is_some_and(|until| until <= now + JUMP_MAX),
            };
            let choice = if self.exploring {
                self.choices += 1;
                self.strategy.choose(&look)
            } else {
                Choice::Run(look.plain())
            };
            if self.exploring && choice != Choice::Run(look.plain()) {
                self.schedule.push((look.at, choice));
            }
            match choice {
                Choice::Run(next) => {
                    assert!(ready.contains(&next), "a strategy chooses among the threads that can run");
                    self.trace = mix(self.trace, next as u64);
                    return Some(next);
                }
                Choice::Jump => self.now = soonest.expect("offered only with a sleeper"),
            }
        }
    }

    fn count(&mut self, me: usize, what: Option<Step>) {
        self.steps += 1;
        self.now += STEP;
        self.threads[me].last = what.or(self.threads[me].last);
        self.trace = mix(self.trace, (me as u64) << 8 | what.map_or(0xff, |what| what as u64));
    }

    fn wake(&mut self, on: &On, all: bool) {
        let since = |slot: &Slot| match &slot.status {
            Status::Waits { on: place, since, .. } if place == on => Some(*since),
            _ => None,
        };
        loop {
            // Waiters wake in the order of their arrival, as with the locks of the operating
            // system.
            let waiting = self.threads.iter_mut().filter_map(|slot| since(slot).map(|since| (since, slot)));
            let Some((_, slot)) = waiting.min_by_key(|(since, _)| *since) else { return };
            slot.status = Status::Ready;
            slot.late = false;
            if !all {
                return;
            }
        }
    }
}

impl Machine for Processor {
    fn step(&self, me: usize, what: Step) {
        let mut state = self.state.lock();
        state.count(me, Some(what));
        self.choose(state, me, Some(what));
    }

    fn wait(&self, me: usize, place: usize, until: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        state.count(me, None);
        let since = state.steps;
        state.threads[me].status = Status::Waits { on: On::Place(place), until, since };
        self.choose(state, me, None);
        self.state.lock().threads[me].late
    }

    fn wake(&self, place: usize, all: bool) {
        self.state.lock().wake(&On::Place(place), all);
    }

    fn now(&self) -> Duration {
        self.state.lock().now
    }

    fn add(&self, name: &str) -> usize {
        let mut state = self.state.lock();
        state.threads.push(Slot {
            name: name.to_owned(),
            status: Status::Ready,
            thread: None,
            late: false,
            last: None,
            stack: None,
        });
        state.threads.len() - 1
    }

    fn forget(&self, thread: usize) {
        self.state.lock().threads[thread].status = Status::Ended;
    }

    fn enter(&self, me: usize) {
        self.state.lock().threads[me].thread = Some(std::thread::current());
        self.await_turn(me);
    }

    fn leave(&self, me: usize) {
        let mut state = self.state.lock();
        state.count(me, None);
        state.threads[me].status = Status::Ended;
        state.wake(&On::EndOf(me), true);
        self.choose(state, me, None);
    }

    fn join(&self, me: usize, thread: usize) {
        let mut state = self.state.lock();
        state.count(me, None);
        if state.threads[thread].status == Status::Ended {
            return;
        }
        let since = state.steps;
        state.threads[me].status = Status::Waits { on: On::EndOf(thread), until: None, since };
        self.choose(state, me, None);
    }

    fn accuse(&self, me: usize, what: String) {
        let mut state = self.state.lock();
        state.why.get_or_insert(Why::WaitsWithLock(what));
        self.choose(state, me, None);
    }

    fn note(&self, value: u64) {
        let mut state = self.state.lock();
        state.trace = mix(state.trace, value);
    }

    fn own(
        &self,
        key: TypeId,
        make: &mut dyn FnMut() -> &'static (dyn Any + Send + Sync),
    ) -> &'static (dyn Any + Send + Sync) {
        *self.state.lock().own.entry(key).or_insert_with(make)
    }
}

/// Returns the calling thread's stack, without the frames of libraries and of the machine.
fn stack() -> String {
    let whole = std::backtrace::Backtrace::force_capture().to_string();
    let (mut out, mut name) = (String::new(), "");
    for line in whole.lines() {
        let place = line.trim_start();
        let ours = !["/rustc/", "/registry/", "/library/"].iter().any(|library| place.contains(library))
            && !["base/src/machine.rs", "sched/src/machine.rs"].iter().any(|file| place.contains(file));
        if !place.starts_with("at ") {
            name = line;
        } else if ours {
            out.push_str(name);
            out.push('\n');
            out.push_str(line);
            out.push('\n');
        }
    }
    // Without file names in the stack, frames of libraries cannot be recognised.
    if out.is_empty() { whole } else { out }
}
