//! The machine: threads of the operating system. The thread with the lowest virtual time runs.
//!
//! # Invariants
//! 1. The thread named by `turn` runs; all others are parked, have not begun, or have ended.
//! 2. When a call of the machine returns, no other thread and no event has an earlier virtual time
//!    than the caller. So a load sees each store that was earlier, and a lock is taken from its
//!    acquisition until its release.
//! 3. With fixed or learnt costs nothing depends on the real clock.

use super::Computing;
use super::hardware::Hardware;
use super::profile::{Kind, Profile};
use super::state::{On, State, Status};
use super::stretch::{self, monotonic};
use super::table::What;
use kedge_base::machine::{Machine, Step};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const NONE: usize = usize::MAX;

/// The machine's own time that a measured stretch contains, in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Overhead {
    /// With a point that ends the stretch.
    pub point: u64,
    /// With a call that does not end the stretch.
    pub aside: u64,
}

type Own = HashMap<TypeId, &'static (dyn Any + Send + Sync)>;

/// See the module.
pub struct Clockwork {
    turn: AtomicUsize,
    state: Mutex<State>,
    rng: Mutex<SmallRng>,
    own: Mutex<Own>,
    why: Mutex<Option<String>>,
    ended: Condvar,
    computing: Computing,
    overhead: Overhead,
}

impl Clockwork {
    pub(super) fn new(hardware: Hardware, computing: Computing, overhead: Overhead) -> Clockwork {
        Clockwork {
            turn: AtomicUsize::new(0),
            state: Mutex::new(State::new(hardware)),
            // Chooses among the learnt costs of a stretch. The fixed seed makes a run repeatable.
            rng: Mutex::new(SmallRng::seed_from_u64(1)),
            own: Mutex::default(),
            why: Mutex::default(),
            ended: Condvar::new(),
            computing,
            overhead,
        }
    }

    fn measures(&self) -> bool {
        matches!(self.computing, Computing::Measured(_))
    }

    fn entered(&self) -> u64 {
        if self.measures() { monotonic() } else { 0 }
    }

    /// Ends the thread's stretch and charges its cost.
    fn charge(&self, state: &mut State, me: usize, what: What, entered: u64) {
        state.steps += 1;
        let (from, to) = stretch::points(what);
        let nanos = match &self.computing {
            Computing::Fixed(each) => each.as_nanos() as u64,
            Computing::Measured(table) => {
                let nanos = stretch::length(entered).saturating_sub(self.overhead.point);
                table.learn(from, to, nanos);
                nanos
            }
            Computing::Learnt(table) => {
                let (nanos, known) = table.cost(from, to, &mut self.rng.lock());
                state.unknown += if known { 0 } else { nanos };
                nanos
            }
        };
        state.spend(me, Kind::Computing, None, nanos);
    }

    /// Returns from a call of the machine: the next stretch of the thread begins.
    fn leave_call(&self, state: MutexGuard<'_, State>) {
        drop(state);
        if self.measures() {
            stretch::begin();
        }
    }

    fn leave_aside(&self, state: MutexGuard<'_, State>, entered: u64) {
        drop(state);
        if self.measures() {
            stretch::aside(entered, self.overhead.aside);
        }
    }

    /// Gives the turn to the thread with the earliest virtual time. Returns when `me` has it again.
    fn pass(&self, mut state: MutexGuard<'_, State>, me: usize) {
        let next = state.next();
        if next == Some(me) {
            return self.leave_call(state);
        }
        let Some(next) = next else {
            if state.threads.iter().any(|slot| slot.status != Status::Ended) {
                let left = (0..state.threads.len()).filter(|thread| !state.ended(*thread));
                let left: Vec<String> = left
                    .map(|thread| {
                        let slot = &state.threads[thread];
                        format!("{} {:?} at {:?}", state.name(thread), slot.status, slot.waits_as)
                    })
                    .collect();
                self.fail(format!("all threads wait for one another: {}", left.join(", ")));
            }
            drop(state);
            self.turn.store(NONE, SeqCst);
            self.ended.notify_all();
            return self.await_turn(me);
        };
        state.switches += 1;
        let thread = state.threads[next].thread.clone();
        let ended = state.ended(me);
        drop(state);
        self.turn.store(next, SeqCst);
        if let Some(thread) = thread {
            thread.unpark();
        }
        if !ended {
            self.await_turn(me);
        }
    }

    /// [`Clockwork::pass`], then takes the cache line of `address`. It takes the line at the
    /// thread's virtual time. If it took the line before it passes the turn on, threads that use
    /// the line earlier would be delayed.
    fn pass_and_touch(&self, state: MutexGuard<'_, State>, me: usize, address: usize) {
        self.pass(state, me);
        let mut state = self.state.lock();
        state.touch(me, address, true, stretch::site());
        self.leave_call(state);
    }

    fn fail(&self, why: String) {
        self.why.lock().get_or_insert(why);
    }

    /// Returns when the thread has the turn. After a failure it stays parked: unwinding would make
    /// calls that no program makes.
    fn await_turn(&self, me: usize) {
        while self.turn.load(SeqCst) != me {
            if self.turn.load(SeqCst) == NONE && self.state.lock().ended(me) {
                return;
            }
            std::thread::park();
        }
        if self.measures() {
            stretch::resume();
            stretch::begin();
        }
    }

    /// Waits for the end of the run. `hang`: the longest real time without a step.
    pub(super) fn outcome(&self, hang: Duration) -> Result<Account, String> {
        let mut state = self.state.lock();
        let mut seen = state.steps;
        while self.turn.load(SeqCst) != NONE {
            let late = self.ended.wait_for(&mut state, hang).timed_out();
            let turn = self.turn.load(SeqCst);
            if late && state.steps == seen && turn != NONE {
                return Err(format!("the thread {} does not come to a step", state.name(turn)));
            }
            seen = state.steps;
        }
        match self.why.lock().clone() {
            Some(why) => Err(why),
            None => Ok(Account { steps: state.steps, switches: state.switches }),
        }
    }

    /// Lets virtual time pass for the calling thread, as computing.
    pub(super) fn compute(&self, me: usize, time: Duration) {
        let mut state = self.state.lock();
        state.spend(me, Kind::Computing, None, time.as_nanos() as u64);
        state.tick(me);
        self.pass(state, me);
    }

    /// Returns the profile since the last call, and how much of its computing was between points
    /// that the table does not know.
    pub(super) fn mark(&self) -> (Profile, Duration) {
        let mut state = self.state.lock();
        let unknown = std::mem::take(&mut state.unknown);
        (state.sums.take(), Duration::from_nanos(unknown))
    }

    fn sleep(&self, me: usize, on: On, until: Option<u64>, kind: Kind) -> bool {
        let entered = self.entered();
        let mut state = self.state.lock();
        self.charge(&mut state, me, What::Wait, entered);
        state.sleep(me, on, until, kind, stretch::site());
        self.pass(state, me);
        self.state.lock().threads[me].late
    }
}

/// What a run took on the real machine.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    pub steps: u64,
    pub switches: u64,
}

impl Machine for Clockwork {
    fn at(&self, _: usize, site: &'static Location<'static>) {
        stretch::at(site);
    }

    fn step(&self, me: usize, what: Step) {
        let entered = self.entered();
        let mut state = self.state.lock();
        match what {
            // The computing before this step was charged when the lock was released, the waiter
            // woken, or the thread added.
            Step::Unlock | Step::Notify | Step::Spawn => return self.leave_aside(state, entered),
            Step::Spin => {
                stretch::points(What::Step);
                state.steps += 1;
                state.look(me, stretch::site());
            }
            Step::Lock | Step::Atomic | Step::Device => {
                self.charge(&mut state, me, What::Step, entered);
            }
        }
        state.tick(me);
        self.pass(state, me);
    }

    fn lock(&self, me: usize, place: usize) {
        let entered = self.entered();
        let mut state = self.state.lock();
        self.charge(&mut state, me, What::Lock, entered);
        state.tick(me);
        self.pass_and_touch(state, me, place);
    }

    fn touch(&self, me: usize, address: usize, writes: bool) {
        let entered = self.entered();
        let mut state = self.state.lock();
        if !writes {
            // A load does not pass the turn on. So it reads a value at most one stretch too early.
            state.touch(me, address, false, stretch::site());
            return self.leave_aside(state, entered);
        }
        self.charge(&mut state, me, What::Step, entered);
        state.tick(me);
        self.pass_and_touch(state, me, address);
    }

    fn releasing(&self, me: usize, place: usize) {
        let entered = self.entered();
        let mut state = self.state.lock();
        self.charge(&mut state, me, What::Release, entered);
        self.pass_and_touch(state, me, place);
    }

    fn freed(&self, me: usize, place: usize) {
        let entered = self.entered();
        let mut state = self.state.lock();
        state.freed(me, place);
        self.leave_aside(state, entered);
    }

    fn blocked(&self, me: usize, place: usize, shared: bool) {
        let entered = self.entered();
        let mut state = self.state.lock();
        self.charge(&mut state, me, What::Wait, entered);
        state.wait_for_lock(me, place, shared, stretch::site());
        self.pass(state, me);
    }

    fn wait(&self, me: usize, place: usize, until: Option<Duration>) -> bool {
        let kind = if place == 0 { Kind::Sleep } else { Kind::Condition };
        self.sleep(me, On::Place(place), until.map(|until| until.as_nanos() as u64), kind)
    }

    fn wake(&self, place: usize, all: bool) {
        let (entered, me) = (self.entered(), self.turn.load(SeqCst));
        let mut state = self.state.lock();
        self.charge(&mut state, me, What::Wake, entered);
        state.wake(me, On::Place(place), if all { usize::MAX } else { 1 });
        self.leave_call(state);
    }

    fn now(&self) -> Duration {
        let (entered, me) = (self.entered(), self.turn.load(SeqCst));
        let mut state = self.state.lock();
        self.charge(&mut state, me, What::Clock, entered);
        let now = state.threads[me].time;
        self.leave_call(state);
        Duration::from_nanos(now)
    }

    fn wall(&self) -> Duration {
        let (now, tick) = (self.now().as_nanos() as u64, self.state.lock().hardware.tick);
        Duration::from_nanos(now - now % tick)
    }

    fn add(&self, name: &str) -> usize {
        let (entered, me) = (self.entered(), self.turn.load(SeqCst));
        let mut state = self.state.lock();
        self.charge(&mut state, me, What::Wake, entered);
        let wake = state.hardware.wake;
        state.spend(me, Kind::Switch, None, wake);
        let now = state.threads[me].time;
        let thread = state.add(name, now);
        state.start(thread, now);
        self.leave_call(state);
        thread
    }

    fn forget(&self, thread: usize) {
        self.state.lock().threads[thread].status = Status::Ended;
    }

    fn enter(&self, me: usize) {
        self.state.lock().threads[me].thread = Some(std::thread::current());
        self.await_turn(me);
    }

    fn leave(&self, me: usize) {
        let entered = self.entered();
        let mut state = self.state.lock();
        self.charge(&mut state, me, What::End, entered);
        state.end(me);
        self.pass(state, me);
    }

    fn join(&self, me: usize, thread: usize) {
        let state = self.state.lock();
        if state.ended(thread) {
            return self.leave_call(state);
        }
        drop(state);
        self.sleep(me, On::EndOf(thread), None, Kind::Join);
    }

    fn accuse(&self, _: usize, what: String) {
        self.fail(what);
    }

    fn note(&self, _: u64) {}

    fn own(
        &self,
        key: TypeId,
        make: &mut dyn FnMut() -> &'static (dyn Any + Send + Sync),
    ) -> &'static (dyn Any + Send + Sync) {
        if let Some(own) = self.own.lock().get(&key) {
            return *own;
        }
        let made = make();
        *self.own.lock().entry(key).or_insert(made)
    }
}
