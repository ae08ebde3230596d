//! The workers of a mount, and the choice of the one that receives (the Leader/Followers pattern).
//!
//! One worker, the *receiver*, takes one request after the other from the kernel and serves each
//! itself. The other workers sleep on a condition variable, not in the kernel's queue. So a new
//! request wakes no thread while the receiver is awake. The alternative is that all workers wait in
//! the kernel. Then each request wakes a sleeping thread, even if the receiver would take it a
//! moment later. The right to receive is called the *turn*.
//!
//! # When another worker receives
//! - The receiver is about to wait for a device or for a lock (`kedge_base::wait`). It returns its
//!   turn first, and takes a new one after its request. [`crate::handoff`] decides when it keeps
//!   the turn nevertheless.
//! - The receiver serves one request for longer than a tick of the *watcher*, a thread that runs
//!   while requests are served. So code that waits without calling `kedge_base::wait` delays other
//!   requests by at most two ticks.
//! - The receiver found many consecutive requests without a pause. Then one more worker receives as
//!   well, as long as there are processors. A receiver that finds no request leaves, except the
//!   last.
//! - The *companion* receives instead of the others, or the others instead of the companion:
//!   [`crate::placement`].
//!
//! # A companion without a processor
//! The companion has the policy `SCHED_IDLE`, and may get no time for seconds if programs compute
//! on all processors. It may then hold the lock of the pool, possibly because the lock was handed
//! to it while it slept. So the watcher waits for that lock at most one tick, and sleeps with
//! another lock. On an idle mount another worker receives, because the watcher sleeps then.
//!
//! # When there is no request
//! The last receiver polls for a short time before it sleeps in the kernel ([`AdaptivePoll`]): a
//! client that got its reply often sends the next request before a sleeping thread could wake.
//!
//! # Why each request is received
//! A turn is taken and returned under one lock, and returning it wakes a sleeping worker that may
//! take it. So while a worker sleeps here, `receivers` turns are held, each by a worker that
//! receives or serves. A worker that serves either finishes its request and receives again, or
//! loses its turn to the watcher. If every worker serves a request that waits, the watcher starts
//! more workers, up to a limit. At the limit no worker receives until one of the requests is
//! finished. So a device with a long latency gets as many concurrent requests as clients make, and
//! a mount whose requests rarely wait has few threads.

use crate::handoff::{HandOff, Moment, Wait};
use crate::placement::{Placement, PlacementMode, Remedy, Seen, Starvation, Trials};
use crate::spare::Spare;
use kedge_base::{Clock, Counter, SystemClock};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Value, json};
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

/// The interval of the watcher. On a busy machine, a worker that does not wait may still lack a
/// processor for some milliseconds.
const TICK: Duration = Duration::from_millis(5);
/// Ticks without a request after which the companion stops receiving.
const IDLE_TICKS: u32 = 8;
/// Requests without a pause after which one more worker receives.
const PRESSURE: u32 = 64;

/// The workers of one mount.
pub(crate) struct WorkerPool {
    state: Mutex<State>,
    /// Workers without a turn sleep here.
    turn: Condvar,
    /// The condition variable of the companion, which is the last worker if there is a placement.
    companion_turn: Condvar,
    /// Whether the companion must receive.
    with_companion: AtomicBool,
    placement: Option<Placement>,
    /// The condition variable of the watcher. Its lock is never taken by the companion.
    bell: Condvar,
    bell_lock: Mutex<()>,
    /// A copy of `State::ended` for the watcher, readable without the lock.
    closed: AtomicBool,
    slots: Vec<Slot>,
    /// The number of workers that may be started, without the companion.
    workers_max: AtomicUsize,
    receivers_max: usize,
    /// Whether the watcher is awake or has been notified.
    watched: AtomicBool,
    /// The number of requests received.
    received: AtomicU64,
    /// The thread that made the last request.
    client: AtomicU32,
    handoff: HandOff,
    /// Whether a receiver may keep its turn while it waits.
    keeps: bool,
    pub(crate) counts: Counts,
}

struct State {
    /// The number of workers that have been started, without the companion.
    started: usize,
    /// The number of them that wait for a turn.
    waiting: usize,
    /// The number of workers that hold a turn, the right to receive requests.
    receivers: usize,
    /// The number of workers that may hold a turn; at least one.
    receivers_wanted: usize,
    /// Whether the companion has lost its turn while it serves a request. Until it waits for a turn
    /// again, others receive.
    companion_away: bool,
    ended: bool,
}

#[derive(Default)]
struct Slot {
    /// Whether the worker holds a turn.
    turn: AtomicBool,
    /// Odd while the worker serves a request. Increases at each begin and end.
    served: AtomicU64,
    /// The opcode of the present request.
    opcode: AtomicU32,
    /// The value of `served` at the last reply. While both are equal, no client waits for this
    /// worker.
    answered: AtomicU64,
}

/// Counters of the workers, for `system.kedgefs.stats`.
#[derive(Default)]
pub(crate) struct Counts {
    /// Reads that found no request.
    pub polls: Counter,
    /// How often a receiver found no request right after another one.
    pub pauses: Counter,
    /// Requests of another thread than the request before. Counted for the placement only.
    pub changes: Counter,
    /// How often a receiver slept in the kernel.
    pub sleeps: Counter,
    /// Turns returned before a wait.
    pub passed: Counter,
    /// Turns kept during a wait.
    pub kept: Counter,
    /// Turns that the watcher took from a worker.
    pub taken: Counter,
    /// Ticks of the watcher.
    pub ticks: Counter,
}

impl Counts {
    pub(crate) fn to_json(&self, started: usize) -> Value {
        json!({
            "started": started,
            "polls": self.polls.get(),
            "pauses": self.pauses.get(),
            "sleeps": self.sleeps.get(),
            "passed": self.passed.get(),
            "kept": self.kept.get(),
            "taken": self.taken.get(),
            "ticks": self.ticks.get(),
        })
    }
}

impl WorkerPool {
    /// The caller must start `workers.start()` workers, and the companion if there is a
    /// `placement`. [`WorkerPool::watch`] starts more, up to `workers.end()`.
    pub(crate) fn new(
        workers: RangeInclusive<usize>,
        receivers_max: usize,
        placement: Option<Placement>,
    ) -> WorkerPool {
        let workers_max = *workers.end();
        let slots = workers_max + usize::from(placement.is_some());
        let state = State {
            started: *workers.start(),
            waiting: 0,
            receivers: 0,
            receivers_wanted: 1,
            companion_away: true,
            ended: false,
        };
        WorkerPool {
            state: Mutex::new(state),
            turn: Condvar::new(),
            companion_turn: Condvar::new(),
            with_companion: AtomicBool::new(false),
            placement,
            bell: Condvar::new(),
            bell_lock: Mutex::new(()),
            closed: AtomicBool::new(false),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            workers_max: AtomicUsize::new(workers_max),
            receivers_max: receivers_max.clamp(1, workers_max.saturating_sub(1).max(1)),
            watched: AtomicBool::new(false),
            received: AtomicU64::new(0),
            client: AtomicU32::new(0),
            handoff: HandOff::default(),
            keeps: true,
            counts: Counts::default(),
        }
    }

    /// The pool of a lane. Its receiver never keeps the turn while it waits, because only the
    /// worker with the turn sends the replies of other threads.
    pub(crate) fn of_lane(workers: RangeInclusive<usize>) -> WorkerPool {
        WorkerPool { keeps: false, ..WorkerPool::new(workers, 1, None) }
    }

    /// Waits until `worker` may receive. Returns false if the connection has ended.
    pub(crate) fn take_turn(&self, worker: usize) -> bool {
        let mut state = self.state.lock();
        let companion = self.is_companion(worker);
        if companion {
            state.companion_away = false;
        }
        let condvar = if companion { &self.companion_turn } else { &self.turn };
        while !state.ended && (state.receivers >= state.receivers_wanted || !self.may_receive(&state, worker))
        {
            state.waiting += usize::from(!companion);
            condvar.wait(&mut state);
            state.waiting -= usize::from(!companion);
        }
        if state.ended {
            return false;
        }
        state.receivers += 1;
        self.slots[worker].turn.store(true, Release);
        true
    }

    /// Returns the turn of `worker`, if it holds one, and wakes another worker. Returns whether it
    /// held one.
    fn return_turn(&self, worker: usize) -> bool {
        let mut state = self.state.lock();
        self.return_in(&mut state, worker)
    }

    fn return_in(&self, state: &mut State, worker: usize) -> bool {
        let held = self.slots[worker].turn.swap(false, Release);
        if held {
            state.receivers -= 1;
            state.companion_away |= self.is_companion(worker);
            self.wake_one(state);
        }
        held
    }

    /// Wakes a worker that may take a returned turn.
    fn wake_one(&self, state: &State) {
        if self.with_companion.load(Relaxed) && !state.companion_away {
            self.companion_turn.notify_one();
        } else {
            self.turn.notify_one();
        }
    }

    /// The number of workers that have been started.
    pub(crate) fn started(&self) -> usize {
        self.state.lock().started
    }

    pub(crate) fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// The number of the companion; `None` without a placement.
    pub(crate) fn companion(&self) -> Option<usize> {
        self.placement.is_some().then(|| self.slots.len() - 1)
    }

    pub(crate) fn is_companion(&self, worker: usize) -> bool {
        self.companion() == Some(worker)
    }

    fn may_receive(&self, state: &State, worker: usize) -> bool {
        let with_companion = self.with_companion.load(Relaxed) && !state.companion_away;
        with_companion == self.is_companion(worker)
    }

    /// Between two requests: returns the turn of `worker` if other workers must receive instead.
    /// Returns whether it did.
    pub(crate) fn hand_over(&self, worker: usize) -> bool {
        if self.placement.is_none() || self.with_companion.load(Relaxed) == self.is_companion(worker) {
            return false;
        }
        let mut state = self.state.lock();
        !self.may_receive(&state, worker) && self.return_in(&mut state, worker)
    }

    /// Sets whether the companion must receive from now on.
    fn set_companion(&self, state: &State, on: bool) {
        if self.with_companion.swap(on, Relaxed) != on {
            self.wake_one(state);
        }
    }

    /// Must be called before the worker waits. Returns the argument for [`WorkerPool::waited`].
    pub(crate) fn about_to_wait(&self, worker: usize, now: Duration) -> Wait {
        let wait = Wait { began: self.moment(now), ended: None, kept: self.keeps && self.handoff.keeps() };
        if wait.kept {
            self.counts.kept.inc();
        } else {
            self.pass_on(worker);
        }
        wait
    }

    pub(crate) fn moment(&self, now: Duration) -> Moment {
        Moment { at: now, received: self.received.load(Relaxed) }
    }

    /// Must be called after the wait and the reply to its request. If the turn was kept, the
    /// receiver must have read the next request. `another`: the next request is from another thread
    /// than the one that got the reply.
    pub(crate) fn waited(&self, wait: Wait, now: Duration, another: bool) {
        self.handoff.learn(wait, self.moment(now), another);
    }

    fn pass_on(&self, worker: usize) {
        if self.return_turn(worker) {
            self.counts.passed.inc();
        }
    }

    pub(crate) fn holds_turn(&self, worker: usize) -> bool {
        self.slots[worker].turn.load(Acquire)
    }

    /// Returns the turn of a receiver that found no request, if another worker still receives.
    /// Returns false if there is no other.
    pub(crate) fn leave_if_spare(&self, worker: usize) -> bool {
        if self.receivers_max == 1 {
            return false;
        }
        let mut state = self.state.lock();
        if state.receivers <= 1 {
            return false;
        }
        // The turn is given up and not passed on, so no worker is woken.
        if self.slots[worker].turn.swap(false, Release) {
            state.receivers -= 1;
            state.receivers_wanted = (state.receivers_wanted - 1).max(1);
        }
        true
    }

    /// Called when a receiver found `in_a_row` consecutive requests without a pause.
    pub(crate) fn feel_pressure(&self, in_a_row: u32) {
        if self.receivers_max == 1 || !in_a_row.is_multiple_of(PRESSURE) {
            return;
        }
        let mut state = self.state.lock();
        if state.receivers_wanted < self.receivers_max && !self.with_companion.load(Relaxed) {
            state.receivers_wanted += 1;
            self.turn.notify_one();
        }
    }

    pub(crate) fn begin(&self, worker: usize, opcode: u32) {
        self.received.fetch_add(1, Relaxed);
        self.slots[worker].opcode.store(opcode, Relaxed);
        self.slots[worker].served.fetch_add(1, SeqCst);
        // Either the watcher reads the increased count, or this thread finds that the watcher
        // sleeps.
        if !self.watched.load(SeqCst) && !self.watched.swap(true, SeqCst) {
            let _bell = self.bell_lock.lock();
            self.bell.notify_one();
        }
    }

    /// Notes the thread that has made a request. `client` is 0 for a request of the kernel itself
    /// and for threads of other PID namespaces, which are not distinguished.
    pub(crate) fn asked_by(&self, client: u32) {
        if self.placement.is_some() && client != 0 && self.client.load(Relaxed) != client {
            self.client.store(client, Relaxed);
            self.counts.changes.inc();
        }
    }

    /// Must be called before the worker sends a reply.
    pub(crate) fn answering(&self, worker: usize) {
        // Only the placement reads the value.
        if self.placement.is_some() {
            let slot = &self.slots[worker];
            slot.answered.store(slot.served.load(Relaxed), Release);
        }
    }

    /// The opcodes of the requests that workers are serving.
    pub(crate) fn serves(&self) -> Vec<u32> {
        let serving = self.slots.iter().filter(|slot| slot.served.load(SeqCst) % 2 == 1);
        serving.map(|slot| slot.opcode.load(Relaxed)).collect()
    }

    /// Whether a worker serves a request that has no reply yet.
    fn owes_a_reply(&self) -> bool {
        self.slots.iter().any(|slot| {
            let served = slot.served.load(SeqCst);
            served % 2 == 1 && slot.answered.load(Acquire) != served
        })
    }

    pub(crate) fn end(&self, worker: usize) {
        self.slots[worker].served.fetch_add(1, SeqCst);
    }

    /// Called when the workers are about to end. The companion's end must not wait for a busy
    /// processor.
    pub(crate) fn hasten_end(&self) {
        if let Some(placement) = &self.placement {
            placement.companion.hasten_end();
        }
    }

    /// Ends all workers, because the connection or one of them has ended.
    pub(crate) fn close(&self) {
        self.state.lock().ended = true;
        self.turn.notify_all();
        self.companion_turn.notify_all();
        self.closed.store(true, SeqCst);
        let _bell = self.bell_lock.lock();
        self.bell.notify_all();
    }

    /// The numbers of the workers to start now: some if every worker serves a request that waits,
    /// and the limit is not reached.
    fn lacking(&self, state: &State) -> Range<usize> {
        let companion = self.with_companion.load(Relaxed) && !state.companion_away;
        let receives = state.receivers > 0 || state.waiting > 0 || companion;
        let room = self.workers_max.load(Relaxed).saturating_sub(state.started);
        // Each tick adds a quarter: 60 more workers take about fifteen ticks.
        let more =
            if receives || state.ended { 0 } else { (state.started / 4).clamp(1, room.max(1)).min(room) };
        state.started..state.started + more
    }

    /// Starts the workers that are lacking. After a failure no more are started for this mount.
    fn grow(&self, state: &mut MutexGuard<'_, State>, start: &dyn Fn(usize) -> std::io::Result<()>) {
        for worker in self.lacking(state) {
            match MutexGuard::unlocked(state, || start(worker)) {
                Ok(()) => state.started += 1,
                Err(e) => {
                    tracing::warn!("only {worker} workers, although all wait for requests to end: {e}");
                    self.workers_max.store(worker, Relaxed);
                    return;
                }
            }
        }
    }

    /// The body of the watcher's thread, which sleeps while nothing is served. `has_request`
    /// returns whether the kernel has a request that no worker has received. `start` starts the
    /// worker with this number.
    pub(crate) fn watch(&self, has_request: &dyn Fn() -> bool, start: &dyn Fn(usize) -> std::io::Result<()>) {
        let mut seen = vec![0; self.slots.len()];
        let clock = SystemClock::default();
        let mode = self.placement.as_ref().map_or(PlacementMode::Off, |placement| placement.mode);
        let mut trials = Trials::new(mode, self.moment(clock.monotonic()));
        let mut starvation = Starvation::default();
        let mut spare = None;
        let mut idle_ticks = 0;
        while !self.closed.load(SeqCst) {
            if !self.sleep_until_tick() {
                // The idle time until now is irrelevant for the load that begins.
                spare = self.placement.is_some().then(|| Spare::new(clock.monotonic()));
                continue;
            }
            let now = self.moment(clock.monotonic());
            let no_spare = spare.as_mut().is_some_and(|spare: &mut Spare| spare.are_busy(now.at));
            let mut state = self.lock_at_tick();
            self.counts.ticks.inc();
            self.place(&mut state, &mut trials, &mut starvation, (now, no_spare), has_request);
            let busy = self.look(&mut state, &mut seen);
            self.grow(&mut state, start);
            idle_ticks = if busy { 0 } else { idle_ticks + 1 };
            if !busy {
                self.set_companion(&state, trials.idle());
                if !self.dismiss_companion(&mut state, idle_ticks) {
                    continue;
                }
                starvation.forget();
                self.watched.store(false, SeqCst);
                // A request that began before the store above did not notify the watcher.
                if self.look(&mut state, &mut seen) {
                    self.watched.store(true, SeqCst);
                }
            }
        }
    }

    /// Sleeps for a tick. Returns false after a longer sleep, during which there was nothing to
    /// watch.
    fn sleep_until_tick(&self) -> bool {
        let mut bell = self.bell_lock.lock();
        if self.watched.load(SeqCst) {
            self.bell.wait_for(&mut bell, TICK);
            return true;
        }
        // `close` sets this before it takes the lock.
        if !self.closed.load(SeqCst) {
            self.bell.wait(&mut bell);
        }
        false
    }

    /// Takes the lock of the pool. Only a starved companion holds it for a whole tick: the lock may
    /// have been handed to it while it slept.
    fn lock_at_tick(&self) -> MutexGuard<'_, State> {
        loop {
            if let Some(state) = self.state.try_lock_for(TICK) {
                return state;
            }
            if let Some(placement) = &self.placement {
                placement.companion.release();
            }
        }
    }

    /// Lets another worker receive on an idle mount. Programs may begin to compute on all
    /// processors while the watcher sleeps. The next request would then wait for the companion, and
    /// the watcher wakes only when a request was received. Returns false if it is too early for
    /// that.
    fn dismiss_companion(&self, state: &mut State, idle_ticks: u32) -> bool {
        // The companion may have been woken for its turn and still wait for a processor to take it.
        let has_it = |worker: &usize| self.holds_turn(*worker) || self.with_companion.load(Relaxed);
        let Some(companion) = self.companion().filter(has_it) else { return true };
        // Otherwise the companion would lose its turn at every short pause.
        if idle_ticks < IDLE_TICKS || state.waiting == 0 {
            return false;
        }
        self.set_companion(state, false);
        // The companion wakes with the next request, and may receive that one together with the
        // other worker.
        self.return_in(state, companion);
        true
    }

    /// Whether the companion holds the turn or serves a request.
    fn companion_serves(&self) -> bool {
        self.companion().is_some_and(|worker| {
            self.holds_turn(worker) || !self.slots[worker].served.load(SeqCst).is_multiple_of(2)
        })
    }

    /// At a tick of the watcher, decides whether the companion receives. `busy` means that no
    /// processor is idle.
    fn place(
        &self,
        state: &mut State,
        trials: &mut Trials,
        starvation: &mut Starvation,
        (now, busy): (Moment, bool),
        has_request: &dyn Fn() -> bool,
    ) {
        let Some(placement) = self.placement.as_ref().filter(|p| p.companion.is_there()) else { return };
        let on = self.with_companion.load(Relaxed) || self.companion_serves();
        // If no client waits, the companion's lack of a processor delays no request.
        let starves = on
            && placement.companion.standing().is_some_and(|standing| starvation.look(now, standing))
            && (has_request() || self.owes_a_reply());
        let remedy = starvation.remedy(starves);
        let seen = Seen { pauses: self.counts.pauses.get(), changes: self.counts.changes.get() };
        let on = match remedy {
            Remedy::Release => {
                trials.starved(now, seen);
                placement.companion.release();
                false
            }
            Remedy::Leave => {
                placement.companion.leave();
                trials.tick(now, seen)
            }
            Remedy::None if busy => trials.busy(now, seen),
            Remedy::None => trials.tick(now, seen),
        };
        if !on {
            starvation.forget();
        }
        placement.publish(trials.counts);
        self.set_companion(state, on);
        if remedy == Remedy::Release
            && let Some(worker) = self.companion()
        {
            // The companion may still serve its request for long, so another worker gets the turn.
            self.return_in(state, worker);
        }
    }

    /// The placement's state for `system.kedgefs.stats`; null if the mount has no placement.
    pub(crate) fn placement_json(&self) -> Value {
        let receives = self.with_companion.load(Relaxed);
        self.placement.as_ref().map_or(Value::Null, |placement| placement.to_json(receives))
    }

    /// Takes the turn from each worker that still serves the same request as at the last tick.
    /// Returns whether any worker served.
    fn look(&self, state: &mut State, seen: &mut [u64]) -> bool {
        let mut busy = false;
        for (worker, (slot, seen)) in self.slots.iter().zip(seen).enumerate() {
            let served = slot.served.load(SeqCst);
            let serves = served % 2 == 1;
            if serves && served == *seen && self.return_in(state, worker) {
                self.counts.taken.inc();
            }
            busy |= served != *seen || (serves && slot.turn.load(Acquire));
            *seen = served;
        }
        busy
    }
}

/// Decides how long the receiver polls before it sleeps.
///
/// Polling pays off if the next request follows soon. So the time grows after short sleeps and
/// shrinks after long ones: on an idle mount it becomes zero. It is always zero with one processor,
/// and becomes zero if another thread used this processor.
pub(crate) struct AdaptivePoll {
    limit: Duration,
    max: Duration,
}

impl AdaptivePoll {
    const START: Duration = Duration::from_micros(5);
    /// The longest polling time: about the time that waking a sleeping thread takes.
    const MAX: Duration = Duration::from_micros(50);
    /// A pause below this is short. It includes the wake-up at its end.
    const SHORT: Duration = Duration::from_micros(200);

    pub(crate) fn new(processors: usize) -> AdaptivePoll {
        let max = if processors > 1 { Self::MAX } else { Duration::ZERO };
        AdaptivePoll { limit: Duration::ZERO, max }
    }

    /// Whether to continue polling after `idle` without a request.
    pub(crate) fn lasts(&self, idle: Duration) -> bool {
        idle < self.limit
    }

    /// Records that the receiver slept, and found the next request after `pause`.
    pub(crate) fn slept(&mut self, pause: Duration) {
        self.limit = if pause < Self::SHORT {
            (self.limit * 2).max(Self::START).min(self.max)
        } else if self.limit > Self::START {
            self.limit / 2
        } else {
            Duration::ZERO
        };
    }

    /// Records that another thread ran on this processor during the polling.
    pub(crate) fn lost_processor(&mut self) {
        self.limit = Duration::ZERO;
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
