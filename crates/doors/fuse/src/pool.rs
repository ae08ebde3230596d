//! The workers of a mount, and which of them receives (the Leader/Followers pattern).
//!
//! One worker, the *receiver*, takes request after request from the kernel and serves each itself.
//! The others sleep on a condition variable. The kernel does not know them, so a new request wakes
//! no thread while the receiver is awake. The alternative is that all workers wait in the kernel;
//! then each request wakes a sleeping thread, even if the receiver would take it a moment later.
//! The right to receive is called the *turn*.
//!
//! # When another worker receives
//! - The receiver is about to wait for a device or for a lock (`kedge_base::wait`). It returns its
//!   turn first, and takes a new one when its request is served. [`crate::handoff`] decides when it
//!   keeps the turn nevertheless.
//! - The receiver serves one request for longer than a tick of the *watcher*, a thread that runs
//!   while requests are served. So a place that waits without notice delays a request by at most
//!   two ticks.
//! - The receiver found many requests without a pause. Then one more worker receives beside it, as
//!   long as there are processors. A receiver that finds no request leaves, except for the last.
//! - The *companion* receives instead of the others, or the others instead of the companion:
//!   [`crate::placement`].
//!
//! # A companion without a processor
//! The companion has the policy `SCHED_IDLE`, and may get no time for seconds where programs
//! compute on all processors. It may hold the lock of the pool then, also because it got it as the
//! one that had slept for it longest. So the watcher waits for that lock no longer than a tick, and
//! sleeps with another one. On an idle mount another worker receives, because the watcher sleeps.
//!
//! # When there is no request
//! The last receiver polls for a short time before it sleeps in the kernel ([`AdaptivePoll`]): a
//! client that got its reply often sends the next request before a sleeping thread could wake.
//!
//! # Why each request is received
//! A turn is taken and returned under one lock, and returning it wakes a sleeping worker that may
//! take it. So while a worker sleeps here, `receivers` turns are held, each by a worker that
//! receives or serves. A worker that serves either ends its request and receives again, or loses
//! its turn to the watcher. If every worker serves a request that waits, the watcher starts more
//! workers, up to a limit. At the limit no worker receives until one of the requests has ended.
//! So a device with a long latency is given as many requests at a time as clients make, and a mount
//! whose requests rarely wait has few threads.

use crate::handoff::{HandOff, Moment, Wait};
use crate::placement::{Placement, PlacementMode, Remedy, Starvation, Trials};
use crate::spare::Spare;
use kedge_base::{Clock, Counter, SystemClock};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Value, json};
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

/// The interval of the watcher. On a busy machine a worker may not run for some milliseconds
/// although it does not wait.
const TICK: Duration = Duration::from_millis(5);
/// Rounds of the watcher without a request after which the companion receives no more.
const IDLE_TICKS: u32 = 8;
/// Requests without a pause after which one more worker receives.
const PRESSURE: u32 = 64;

/// The workers of one mount.
pub(crate) struct WorkerPool {
    state: Mutex<State>,
    /// Workers without a turn sleep here.
    turn: Condvar,
    /// The companion sleeps here, which is the last worker if there is a placement.
    companion_turn: Condvar,
    /// The companion is to receive.
    with_companion: AtomicBool,
    placement: Option<Placement>,
    /// The watcher sleeps here, with a lock that the companion never takes.
    bell: Condvar,
    bell_lock: Mutex<()>,
    /// What `State::ended` says, for a watcher that sleeps.
    closed: AtomicBool,
    slots: Vec<Slot>,
    /// Workers that may be started, without the companion.
    workers_max: AtomicUsize,
    receivers_max: usize,
    /// The watcher is awake, or has been notified.
    watched: AtomicBool,
    /// Requests received.
    received: AtomicU64,
    handoff: HandOff,
    /// Whether a receiver may keep its turn while it waits.
    keeps: bool,
    pub(crate) counts: Counts,
}

struct State {
    /// Workers that have been started, without the companion.
    started: usize,
    /// Of these, the workers that wait for a turn.
    waiting: usize,
    /// Workers that hold a turn, which is the right to receive requests.
    receivers: usize,
    /// The most workers that may hold a turn; at least one.
    receivers_wanted: usize,
    /// The companion lost its turn while it serves a request: until it is back, others receive.
    companion_away: bool,
    ended: bool,
}

#[derive(Default)]
struct Slot {
    /// The worker holds a turn.
    turn: AtomicBool,
    /// Odd while the worker serves a request. Increases at each begin and end.
    served: AtomicU64,
    /// The opcode of the request.
    opcode: AtomicU32,
    /// The value of `served` at the last reply. Until it changes, no client waits for this worker.
    answered: AtomicU64,
}

/// What the workers did, for `system.kedgefs.stats`.
#[derive(Default)]
pub(crate) struct Counts {
    /// Reads that found no request.
    pub polls: Counter,
    /// Times that a receiver, after a request, found no other.
    pub pauses: Counter,
    /// Waits in the kernel.
    pub sleeps: Counter,
    /// Turns returned before a wait.
    pub passed: Counter,
    /// Turns kept during a wait.
    pub kept: Counter,
    /// Turns that the watcher took from a worker.
    pub taken: Counter,
    /// Rounds of the watcher.
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
    /// The caller starts as many workers as `workers` begins with, and the companion if there is a
    /// `placement`. [`WorkerPool::watch`] starts more, up to the end of `workers`.
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
            handoff: HandOff::default(),
            keeps: true,
            counts: Counts::default(),
        }
    }

    /// The workers of a lane. A receiver never keeps its turn while it waits, because only the
    /// worker with the turn sends the replies of other threads.
    pub(crate) fn of_lane(workers: RangeInclusive<usize>) -> WorkerPool {
        WorkerPool { keeps: false, ..WorkerPool::new(workers, 1, None) }
    }

    /// Waits until `worker` may receive. `false`: the connection has ended.
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

    /// Returns the turn of `worker`, if it holds one, and wakes a worker to take it.
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

    /// Wakes a worker that may receive.
    fn wake_one(&self, state: &State) {
        if self.with_companion.load(Relaxed) && !state.companion_away {
            self.companion_turn.notify_one();
        } else {
            self.turn.notify_one();
        }
    }

    /// Workers that have been started.
    pub(crate) fn started(&self) -> usize {
        self.state.lock().started
    }

    pub(crate) fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// The number of the companion, if there is to be one.
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

    /// Returns the turn of a worker between two requests if another one is to receive instead.
    pub(crate) fn hand_over(&self, worker: usize) -> bool {
        if self.placement.is_none() || self.with_companion.load(Relaxed) == self.is_companion(worker) {
            return false;
        }
        let mut state = self.state.lock();
        !self.may_receive(&state, worker) && self.return_in(&mut state, worker)
    }

    /// Whether the companion receives from now on.
    fn set_companion(&self, state: &State, on: bool) {
        if self.with_companion.swap(on, Relaxed) != on {
            self.wake_one(state);
        }
    }

    /// The worker is about to wait. Returns the argument for [`WorkerPool::waited`].
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

    /// The wait is over, and its request has its reply. If the turn was kept, the receiver has
    /// read the next request. `another`: that one is of another thread.
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

    /// A receiver that found no request returns its turn if another worker still receives. Returns
    /// whether it did.
    pub(crate) fn leave_if_spare(&self, worker: usize) -> bool {
        if self.receivers_max == 1 {
            return false;
        }
        let mut state = self.state.lock();
        if state.receivers <= 1 {
            return false;
        }
        // No worker is woken for this turn.
        if self.slots[worker].turn.swap(false, Release) {
            state.receivers -= 1;
            state.receivers_wanted = (state.receivers_wanted - 1).max(1);
        }
        true
    }

    /// A receiver found `in_a_row` requests without a pause.
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
        // Either the watcher reads the new count, or this thread reads that the watcher sleeps.
        if !self.watched.load(SeqCst) && !self.watched.swap(true, SeqCst) {
            let _bell = self.bell_lock.lock();
            self.bell.notify_one();
        }
    }

    /// The worker is about to send a reply.
    pub(crate) fn answering(&self, worker: usize) {
        // Without a placement no thread reads it.
        if self.placement.is_some() {
            let slot = &self.slots[worker];
            slot.answered.store(slot.served.load(Relaxed), Release);
        }
    }

    /// The opcodes of the requests that workers serve.
    pub(crate) fn serves(&self) -> Vec<u32> {
        let serving = self.slots.iter().filter(|slot| slot.served.load(SeqCst) % 2 == 1);
        serving.map(|slot| slot.opcode.load(Relaxed)).collect()
    }

    /// Whether some worker serves a request that has no reply yet.
    fn owes_a_reply(&self) -> bool {
        self.slots.iter().any(|slot| {
            let served = slot.served.load(SeqCst);
            served % 2 == 1 && slot.answered.load(Acquire) != served
        })
    }

    pub(crate) fn end(&self, worker: usize) {
        self.slots[worker].served.fetch_add(1, SeqCst);
    }

    /// The workers are about to end, and that is not to wait for a busy processor.
    pub(crate) fn hasten_end(&self) {
        if let Some(placement) = &self.placement {
            placement.companion.hasten_end();
        }
    }

    /// The connection has ended, or a worker has.
    pub(crate) fn close(&self) {
        self.state.lock().ended = true;
        self.turn.notify_all();
        self.companion_turn.notify_all();
        self.closed.store(true, SeqCst);
        let _bell = self.bell_lock.lock();
        self.bell.notify_all();
    }

    /// Workers that are to be started now: some if every worker serves a request that waits, and
    /// more may be started.
    fn lacking(&self, state: &State) -> Range<usize> {
        let companion = self.with_companion.load(Relaxed) && !state.companion_away;
        let receives = state.receivers > 0 || state.waiting > 0 || companion;
        let room = self.workers_max.load(Relaxed).saturating_sub(state.started);
        // Each round adds a quarter: 60 more take some fifteen rounds.
        let more =
            if receives || state.ended { 0 } else { (state.started / 4).clamp(1, room.max(1)).min(room) };
        state.started..state.started + more
    }

    /// Starts the workers that are lacking. The first that cannot be started is the last that is
    /// tried for this mount.
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

    /// The watcher's thread. It sleeps while nothing is served. `has_request`: whether the kernel
    /// holds a request that no worker has received. `start` starts the worker of that number.
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
                // The idle time until now says nothing about the load that begins.
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
                // A request that began before the store did not notify.
                if self.look(&mut state, &mut seen) {
                    self.watched.store(true, SeqCst);
                }
            }
        }
    }

    /// Sleeps for a tick. `false`: it was a longer sleep, without a request to watch.
    fn sleep_until_tick(&self) -> bool {
        let mut bell = self.bell_lock.lock();
        if self.watched.load(SeqCst) {
            self.bell.wait_for(&mut bell, TICK);
            return true;
        }
        // Closing the pool takes the lock after it has set this.
        if !self.closed.load(SeqCst) {
            self.bell.wait(&mut bell);
        }
        false
    }

    /// Only a starved companion keeps the lock for a tick. It may have got it while it slept.
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

    /// Has another worker receive on an idle mount. Programs may begin to compute on all processors
    /// while the watcher sleeps. Then the next request would wait for the companion, and only a
    /// request that was received wakes the watcher. `false`: not yet.
    fn dismiss_companion(&self, state: &mut State, idle_ticks: u32) -> bool {
        // It may have been woken for its turn, and wait for a processor to take it.
        let has_it = |worker: &usize| self.holds_turn(*worker) || self.with_companion.load(Relaxed);
        let Some(companion) = self.companion().filter(has_it) else { return true };
        // Short pauses would otherwise cost the companion its turn again and again.
        if idle_ticks < IDLE_TICKS || state.waiting == 0 {
            return false;
        }
        self.set_companion(state, false);
        // It wakes with the next request, and may receive that one beside the other worker.
        self.return_in(state, companion);
        true
    }

    /// The companion may have a request, or is the one to get the next.
    fn companion_serves(&self) -> bool {
        self.companion().is_some_and(|worker| {
            self.holds_turn(worker) || !self.slots[worker].served.load(SeqCst).is_multiple_of(2)
        })
    }

    /// Decides whether the companion receives, at a tick of the watcher. `busy`: no processor is
    /// idle.
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
        // A client that computes on the companion's processor delays no client.
        let starves = on
            && placement.companion.standing().is_some_and(|standing| starvation.look(now, standing))
            && (has_request() || self.owes_a_reply());
        let remedy = starvation.remedy(starves);
        let on = match remedy {
            Remedy::Release => {
                trials.starved(now);
                placement.companion.release();
                false
            }
            Remedy::Leave => {
                placement.companion.leave();
                trials.tick(now, self.counts.pauses.get())
            }
            Remedy::None if busy => trials.busy(now),
            Remedy::None => trials.tick(now, self.counts.pauses.get()),
        };
        if !on {
            starvation.forget();
        }
        placement.publish(trials.counts);
        self.set_companion(state, on);
        if remedy == Remedy::Release
            && let Some(worker) = self.companion()
        {
            // What it serves may take long.
            self.return_in(state, worker);
        }
    }

    /// For `system.kedgefs.stats`; null if the mount has no placement.
    pub(crate) fn placement_json(&self) -> Value {
        let receives = self.with_companion.load(Relaxed);
        self.placement.as_ref().map_or(Value::Null, |placement| placement.to_json(receives))
    }

    /// Takes the turn of each worker that still serves the request of the last round. Returns
    /// whether any worker served.
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

/// How long the receiver polls before it sleeps.
///
/// Polling pays when the next request follows soon. So the time grows after short sleeps and
/// shrinks after long ones: an idle mount does not poll. It is zero with one processor, and becomes
/// zero when another thread used this processor.
pub(crate) struct AdaptivePoll {
    limit: Duration,
    max: Duration,
}

impl AdaptivePoll {
    const START: Duration = Duration::from_micros(5);
    /// About the time that waking a sleeping thread takes.
    const MAX: Duration = Duration::from_micros(50);
    /// A pause below this is short, beside the time of the wake-up at its end.
    const SHORT: Duration = Duration::from_micros(200);

    pub(crate) fn new(processors: usize) -> AdaptivePoll {
        let max = if processors > 1 { Self::MAX } else { Duration::ZERO };
        AdaptivePoll { limit: Duration::ZERO, max }
    }

    /// Whether to poll on after `idle` without a request.
    pub(crate) fn lasts(&self, idle: Duration) -> bool {
        idle < self.limit
    }

    /// The pause ended in a sleep and took `pause`.
    pub(crate) fn slept(&mut self, pause: Duration) {
        self.limit = if pause < Self::SHORT {
            (self.limit * 2).max(Self::START).min(self.max)
        } else if self.limit > Self::START {
            self.limit / 2
        } else {
            Duration::ZERO
        };
    }

    /// Another thread ran on this processor meanwhile.
    pub(crate) fn lost_processor(&mut self) {
        self.limit = Duration::ZERO;
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
