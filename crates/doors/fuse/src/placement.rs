//! Decides whether the receiver runs on its client's processor.
//!
//! A client that has sent a request sleeps until the reply. The receiver usually runs on another
//! processor. Then each request wakes a sleeping thread there, and each reply wakes one here. On a
//! virtual machine such a wake-up takes longer than most requests. Two threads that run alternately
//! lose nothing by sharing a processor, and there a wake-up is only a context switch.
//!
//! # How
//! The scheduler wakes a thread on an idle processor if there is one. So it is not enough that the
//! receiver follows its client: the reply would wake the client elsewhere. But a processor that
//! runs only threads with the policy `SCHED_IDLE` counts as idle for a wake-up (`sched_idle_cpu` in
//! `kernel/sched/fair.c`). One worker, the *companion*, has this policy from its first turn on, and
//! binds itself to the processor of the client ([`crate::companion`]). A reply then wakes the
//! client on that processor, and the client preempts the companion. An ordinary process may adopt
//! this policy but may not leave it. So the companion is a worker of its own, and the policy does
//! not change with each request.
//!
//! # When
//! The companion receives as long as measurements show that this is faster ([`Trials`]). If the
//! threads of many clients compute, if a processor is busy with other work, or if a wake-up costs
//! little, all workers run where the scheduler places them. A trial consists of a few short
//! windows, alternately in the present mode and in the other one, and compares the requests
//! received in each. It ends early if the other mode receives less than half. An idle mount makes
//! no trials.
//!
//! One client and several are different loads, often with similar rates of requests. So each of the
//! two has a decision and trials of its own ([`Decision`]). Several clients are seen by requests
//! that come from another thread than the request before.
//!
//! There is no trial either while no processor is idle ([`crate::spare`]), or while most requests
//! find the receiver awake: then there are no wake-ups of idle processors to save.
//!
//! # A busy processor
//! A thread with `SCHED_IDLE` gets little time on a processor on which other threads compute: 3
//! parts of 1027 beside one other thread. It may hold a lock for which other workers wait. So the
//! watcher of [`crate::pool`] reads how long the companion waited for a processor ([`Starvation`]).
//! A starved companion loses its role, may run on every processor, and gets an ordinary policy for
//! the rest of its request if the process has the right to set it (`CAP_SYS_NICE`). Without that
//! right, its request takes at most 341 times its computing time.

use crate::companion::{Companion, Standing};
use crate::handoff::Moment;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// When the companion receives instead of the other workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementMode {
    Off,
    #[default]
    /// As long as trials find it faster. Never if this process may use only one processor when it
    /// mounts.
    Auto,
    /// Always, except for some seconds after a busy processor starved it.
    On,
}

impl PlacementMode {
    pub const ALL: [PlacementMode; 3] = [PlacementMode::Off, PlacementMode::Auto, PlacementMode::On];

    /// The value of the mount option.
    pub fn name(self) -> &'static str {
        match self {
            PlacementMode::Off => "off",
            PlacementMode::Auto => "auto",
            PlacementMode::On => "on",
        }
    }
}

impl std::str::FromStr for PlacementMode {
    type Err = ();

    fn from_str(name: &str) -> Result<PlacementMode, ()> {
        PlacementMode::ALL.into_iter().find(|mode| mode.name() == name).ok_or(())
    }
}

/// The length of a window, in which a trial uses one of both modes.
const WINDOW: Duration = Duration::from_millis(20);
/// The number of windows of a trial, half of them for each mode.
const WINDOWS: u32 = 6;
/// A window with fewer requests than this is not evaluated.
const REQUESTS_MIN: u64 = 40;
/// The companion is chosen if it receives more than this percentage of the requests that the others
/// receive.
const GAIN_MIN: u64 = 108;
/// The time between two trials, and the limit to which agreeing results increase it.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(30);
/// The time without the companion after starvation, and the limit to which repeated starvation
/// increases it.
const STARVED_MIN: Duration = Duration::from_secs(1);
const STARVED_MAX: Duration = Duration::from_secs(60);

/// Compares the rate of requests with and without the companion.
#[derive(Debug)]
pub(crate) struct Trials {
    /// Whether the companion receives without trials.
    always: bool,
    /// The decision for one client, and that for several.
    decisions: [Decision; 2],
    /// Which of both is in force: whether several clients made the requests of the last window.
    several: bool,
    /// The length of the rest after the last starvation, and the time at which it ends.
    starved: Duration,
    starved_until: Duration,
    /// The begin of the current window, and the counters at that time.
    window: Moment,
    seen: Seen,
    trial: Option<Trial>,
    pub(crate) counts: TrialCounts,
}

/// Counters of the requests since the mount began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// How often a receiver found no request.
    pub(crate) pauses: u64,
    /// Requests of another thread than the request before.
    pub(crate) changes: u64,
}

/// What the trials of one kind of load found.
#[derive(Clone, Copy, Debug)]
struct Decision {
    companion: bool,
    /// Requests per second in the better mode of the last trial. `None` if a changed rate must not
    /// start the next trial early.
    rate: Option<u64>,
    rest: Duration,
    /// The time before which no trial begins.
    next: Duration,
}

impl Decision {
    const NONE: Decision = Decision { companion: false, rate: None, rest: REST_MIN, next: Duration::ZERO };

    /// Whether the rate differs from that of the last trial by a factor of two, and that trial is
    /// not recent.
    fn load_has_changed(&self, window: &Sum, now: Duration) -> bool {
        let decided = self.next.saturating_sub(self.rest);
        let rate = window.rate();
        now >= decided + REST_MIN && self.rate.is_some_and(|before| rate < before / 2 || rate / 2 > before)
    }

    /// Takes over the result of a trial.
    fn settle(&mut self, companion: bool, rate: u64, now: Duration) {
        self.rest = if companion == self.companion { (2 * self.rest).min(REST_MAX) } else { REST_MIN };
        self.companion = companion;
        self.rate = Some(rate);
        self.next = now + self.rest;
    }
}

#[derive(Debug, Default)]
struct Trial {
    windows: u32,
    /// Requests received and time taken, in the present mode and in the other one.
    present: Sum,
    other: Sum,
}

impl Trial {
    /// Whether the current window is in the other mode.
    fn tries(&self) -> bool {
        !self.windows.is_multiple_of(2)
    }

    /// Whether the other mode has received less than half of the requests that the present mode
    /// receives in the same time.
    fn is_lost(&self, window: &Sum) -> bool {
        let usual = u128::from(self.present.rate()) * window.time.as_micros() / 1_000_000;
        self.tries() && usual >= u128::from(REQUESTS_MIN) && u128::from(window.requests) * 2 < usual
    }
}

#[derive(Debug, Default)]
struct Sum {
    requests: u64,
    time: Duration,
}

impl Sum {
    fn rate(&self) -> u64 {
        let micros = self.time.as_micros().max(1);
        u64::try_from(u128::from(self.requests) * 1_000_000 / micros).unwrap_or(u64::MAX)
    }
}

/// Whether most requests find a receiver that waits. Many concurrent clients keep the receiver
/// busy: then there is no wake-up to save, and a trial would only cost time.
fn is_sparse(requests: u64, pauses: u64) -> bool {
    2 * pauses >= requests
}

/// The numbers of trials for the statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrialCounts {
    pub(crate) trials: u64,
    pub(crate) starved: u64,
    /// Requests per second in the last trial.
    pub(crate) rate_without: u64,
    pub(crate) rate_with: u64,
}

impl Trials {
    pub(crate) fn new(mode: PlacementMode, now: Moment) -> Trials {
        Trials {
            always: mode == PlacementMode::On,
            decisions: [Decision::NONE; 2],
            several: false,
            starved: Duration::ZERO,
            starved_until: Duration::ZERO,
            window: now,
            seen: Seen::default(),
            trial: None,
            counts: TrialCounts::default(),
        }
    }

    /// Called at each tick of the watcher. Returns whether the companion must receive from now on.
    pub(crate) fn tick(&mut self, now: Moment, seen: Seen) -> bool {
        if self.always {
            let decision = self.decision();
            decision.companion = now.at >= decision.next;
            return decision.companion;
        }
        let time = now.at.saturating_sub(self.window.at);
        let window = Sum { requests: now.received.saturating_sub(self.window.received), time };
        let is_lost = self.trial.as_ref().is_some_and(|trial| trial.is_lost(&window));
        if time < WINDOW && !is_lost {
            return self.wanted();
        }
        self.window = now;
        let before = std::mem::replace(&mut self.seen, seen);
        // The watcher did not run for a while, or there is no load.
        if time > 3 * WINDOW || (window.requests < REQUESTS_MIN && !is_lost) {
            self.trial = None;
            return self.decision().companion;
        }
        let paused = seen.pauses.saturating_sub(before.pauses);
        let several = 4 * seen.changes.saturating_sub(before.changes) >= window.requests;
        if several != self.several {
            // The windows of a trial must be of one load.
            if self.trial.take().is_some() {
                self.decision().next = now.at + REST_MIN;
            }
            self.several = several;
            if several {
                // Several clients rarely gain, so a load that ends soon is not worth a trial.
                let decision = self.decision();
                decision.next = decision.next.max(now.at + REST_MIN);
            }
        } else if let Some(trial) = &mut self.trial {
            let sum = if trial.tries() { &mut trial.other } else { &mut trial.present };
            sum.requests += window.requests;
            sum.time += window.time;
            trial.windows += 1;
            if trial.windows == WINDOWS || is_lost {
                self.decide(now.at);
            }
        } else {
            let decision = self.decision();
            let is_due = now.at >= decision.next || decision.load_has_changed(&window, now.at);
            if is_due && (decision.companion || is_sparse(window.requests, paused)) {
                self.trial = Some(Trial::default());
            }
        }
        self.wanted()
    }

    fn decision(&mut self) -> &mut Decision {
        let [one, several] = &mut self.decisions;
        if self.several { several } else { one }
    }

    fn wanted(&mut self) -> bool {
        let tries = self.trial.as_ref().is_some_and(Trial::tries);
        self.decision().companion != tries
    }

    fn decide(&mut self, now: Duration) {
        let Some(trial) = self.trial.take() else { return };
        let (present, other) = (trial.present.rate(), trial.other.rate());
        let decision = self.decision();
        let (with, without) = if decision.companion { (present, other) } else { (other, present) };
        let companion = u128::from(with) * 100 > u128::from(without) * u128::from(GAIN_MIN);
        decision.settle(companion, with.max(without), now);
        let trials = self.counts.trials + 1;
        self.counts = TrialCounts { trials, rate_without: without, rate_with: with, ..self.counts };
    }

    /// Called when no processor is idle, so that there are no wake-ups to save. Returns whether the
    /// companion must receive nevertheless.
    pub(crate) fn busy(&mut self, now: Moment, seen: Seen) -> bool {
        if self.always {
            return self.tick(now, seen);
        }
        self.trial = None;
        for decision in &mut self.decisions {
            *decision = Decision { next: decision.next, ..Decision::NONE };
        }
        (self.window, self.seen) = (now, seen);
        false
    }

    /// Called when no request is being served. Ends a running trial.
    pub(crate) fn idle(&mut self) -> bool {
        self.trial = None;
        self.decision().companion
    }

    /// Called when the companion did not get enough of its processor. A single case means that
    /// another thread had some milliseconds of work there. If programs compute on the processor,
    /// the next case follows soon. Then the companion rests longer each time.
    pub(crate) fn starved(&mut self, now: Moment, seen: Seen) {
        self.trial = None;
        self.counts.starved += 1;
        let soon = now.at < self.starved_until + 10 * self.starved;
        self.starved = if soon { (2 * self.starved).min(STARVED_MAX) } else { STARVED_MIN };
        self.starved_until = now.at + self.starved;
        self.decisions = [Decision { next: self.starved_until, ..Decision::NONE }; 2];
        (self.window, self.seen) = (now, seen);
    }
}

/// Detects that the companion waits for its processor while few requests are served.
#[derive(Debug, Default)]
pub(crate) struct Starvation {
    /// The time and the result of the last look.
    last: Option<(Moment, Standing)>,
    /// Consecutive ticks in which the companion starved.
    ticks: u32,
}

/// The remedy for a companion that waits for its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    None,
    /// Another thread had a few milliseconds of work: the companion leaves the processor.
    Leave,
    /// No processor has time for the companion: it loses its role.
    Release,
}

impl Starvation {
    /// If the companion waited for most of a tick and fewer requests than this were served, its own
    /// clients are not the reason: on the same processor, they sleep as soon as each has sent a
    /// request.
    const REQUESTS: u64 = 8;
    const TICK_MIN: Duration = Duration::from_millis(2);

    /// Whether the companion lacked a processor for most of the time since the last look.
    pub(crate) fn look(&mut self, now: Moment, standing: Standing) -> bool {
        let Some((before, standing_before)) = self.last else {
            self.last = Some((now, standing));
            return false;
        };
        let time = now.at.saturating_sub(before.at);
        if time < Self::TICK_MIN {
            return false;
        }
        self.last = Some((now, standing));
        let few = now.received.saturating_sub(before.received) < Self::REQUESTS;
        // `waited` does not include the present wait, which may last for seconds.
        let waits = standing.runnable && standing_before.runnable && standing.ran == standing_before.ran;
        few && (waits || standing.waited.saturating_sub(standing_before.waited) > time / 2)
    }

    /// Returns the remedy. `starves`: [`Starvation::look`] returned true while a client waits.
    pub(crate) fn remedy(&mut self, starves: bool) -> Remedy {
        self.ticks = if starves { self.ticks + 1 } else { 0 };
        match self.ticks {
            0 => Remedy::None,
            1 => Remedy::Leave,
            _ => Remedy::Release,
        }
    }

    pub(crate) fn forget(&mut self) {
        (self.last, self.ticks) = (None, 0);
    }
}

/// The state of a mount's placement that the watcher and the workers share.
pub(crate) struct Placement {
    pub(crate) mode: PlacementMode,
    pub(crate) companion: Arc<Companion>,
    counts: Mutex<TrialCounts>,
}

impl Placement {
    pub(crate) fn new(mode: PlacementMode) -> Placement {
        Placement { mode, companion: Arc::default(), counts: Mutex::default() }
    }

    pub(crate) fn publish(&self, counts: TrialCounts) {
        *self.counts.lock() = counts;
    }

    /// The state for `system.kedgefs.stats`. `receives` is whether the companion receives.
    pub(crate) fn to_json(&self, receives: bool) -> Value {
        let counts = *self.counts.lock();
        json!({
            "companion": receives,
            "processor": self.companion.processor().filter(|_| receives),
            "trials": counts.trials,
            "rate_with": counts.rate_with,
            "rate_without": counts.rate_without,
            "moves": self.companion.moves.get(),
            "starved": counts.starved,
            "unseen": self.companion.unseen.get(),
        })
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
