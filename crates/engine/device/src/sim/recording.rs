//! A recording of the events of a device, and the media that a power loss could have left at each
//! point.

use super::medium::{Choice, Medium};
use crate::MemDevice;
use crate::pages::Data;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// An event, recorded when it completes. `seq` numbers all events except marks, in ascending order.
#[derive(Clone, Debug)]
pub enum Event {
    Write {
        seq: u64,
        offset: u64,
        data: Data,
        /// Whether the write is durable by itself. False for a FUA write about which the device
        /// lied.
        fua: bool,
        /// If the write failed half-way, the sectors that it reached, as a bit mask for each block.
        torn: Option<Arc<[u8]>>,
    },
    WriteZeroes {
        seq: u64,
        offset: u64,
        len: u64,
    },
    Discard {
        seq: u64,
        offset: u64,
        len: u64,
    },
    Flush {
        seq: u64,
        /// Writes with numbers below this completed before the flush was submitted, so the flush
        /// makes them durable. 0 for a flush about which the device lied.
        covers: u64,
    },
    /// A flush failed. No later flush makes the writes with numbers below `covers` durable.
    FlushLost {
        seq: u64,
        covers: u64,
    },
    /// A mark set by the test.
    Mark(u64),
}

impl Medium {
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Write { seq, offset, data, fua, torn } => {
                self.write(*seq, *offset, data, torn.as_deref(), *fua);
            }
            Event::WriteZeroes { seq, offset, len } | Event::Discard { seq, offset, len } => {
                self.write(*seq, *offset, &Data::zeros(*len), None, false);
            }
            Event::Flush { covers, .. } => self.flush(*covers),
            Event::FlushLost { covers, .. } => self.lose(*covers),
            Event::Mark(_) => {}
        }
    }
}

/// The events of a device from `base` on.
pub struct Recording {
    /// The medium before the first event.
    pub base: MemDevice,
    pub events: Vec<Event>,
}

/// How many media to enumerate.
#[derive(Clone, Copy, Debug)]
pub struct StatePlan {
    /// Maximum number of media without torn writes at one point for a complete enumeration: with at
    /// most this many subsets of the unflushed writes, all subsets are visited.
    pub subsets: usize,
    /// With more subsets than that: all writes, none, and a selection, of this total number.
    pub samples: usize,
    /// Number of additional media with torn writes at one point.
    pub torn: usize,
    /// Crash only at marks that a test has set, not at each event.
    pub at_marks_only: bool,
    pub seed: u64,
}

impl Default for StatePlan {
    fn default() -> Self {
        StatePlan { subsets: 16, samples: 16, torn: 4, at_marks_only: false, seed: 0 }
    }
}

/// A medium that a power loss could have left.
pub struct CrashState {
    /// Number of events before the power loss.
    pub at: usize,
    /// The last mark among these events.
    pub mark: Option<u64>,
    /// Number of unflushed writes that may or may not have reached the medium.
    pub pending: usize,
    /// Whether the next event is a FUA write that was torn by the power loss. [`Recording::state`]
    /// cannot reproduce such a state.
    pub in_flight: bool,
    pub choice: Choice,
    pub medium: MemDevice,
}

impl fmt::Debug for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrashState { at, mark, pending, choice, in_flight, .. } = self;
        let torn = if *in_flight { " and a FUA write in flight" } else { "" };
        write!(
            f,
            "crash after {at} events (mark {mark:?}), {pending} writes unflushed{torn}, landed: {choice:?}"
        )
    }
}

impl Recording {
    fn medium(&self, events: usize) -> Medium {
        let mut medium = Medium::new(self.base.fork());
        self.events[..events].iter().for_each(|event| medium.apply(event));
        medium
    }

    /// Returns the medium after the first `events` events, all of which reached it in order.
    pub fn prefix(&self, events: usize) -> MemDevice {
        self.state(events, Choice::All)
    }

    /// Returns the medium with only what is durable after the first `events` events.
    pub fn durable(&self, events: usize) -> MemDevice {
        self.state(events, Choice::None)
    }

    /// Returns a random medium after the first `events` events, with torn writes.
    pub fn crash(&self, events: usize, seed: u64) -> MemDevice {
        self.state(events, Choice::Torn(seed))
    }

    /// Returns the medium after the first `events` events for any choice. It reproduces a
    /// [`CrashState`] from its `at` and `choice`. It replays from the base, so use
    /// [`Recording::states`] to visit all states.
    pub fn state(&self, events: usize, choice: Choice) -> MemDevice {
        self.medium(events).build(choice)
    }

    /// Iterates over the media at each point, in the order of events. Each medium costs a fork and
    /// the writing of its unflushed writes.
    pub fn states(&self, plan: StatePlan) -> States<'_> {
        let medium = Medium::new(self.base.fork());
        let (todo, torn) = (VecDeque::new(), VecDeque::new());
        let mut states = States { recording: self, plan, at: 0, mark: None, from: None, medium, todo, torn };
        if !plan.at_marks_only {
            states.todo.push_back(Choice::None);
        }
        states.plan_torn();
        states
    }
}

/// The iterator of [`Recording::states`].
pub struct States<'a> {
    recording: &'a Recording,
    plan: StatePlan,
    at: usize,
    mark: Option<u64>,
    /// Media before this mark are omitted; set by [`States::from_mark`].
    from: Option<u64>,
    medium: Medium,
    todo: VecDeque<Choice>,
    /// Seeds for the ways in which the next FUA write may be torn.
    torn: VecDeque<u64>,
}

impl Iterator for States<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        loop {
            if let Some(choice) = self.todo.pop_front() {
                return Some(CrashState {
                    at: self.at,
                    mark: self.mark,
                    pending: self.medium.pending(),
                    in_flight: false,
                    choice,
                    medium: self.medium.build(choice),
                });
            }
            if let Some(seed) = self.torn.pop_front() {
                return Some(self.torn_state(seed));
            }
            let event = self.recording.events.get(self.at)?;
            self.medium.apply(event);
            self.at += 1;
            match event {
                Event::Mark(mark) => {
                    self.mark = Some(*mark);
                    self.plan_choices(false);
                }
                _ if self.plan.at_marks_only => {}
                Event::Flush { .. } | Event::FlushLost { .. } => self.plan_choices(false),
                // Media without the new write belong to the previous point, under the same mark. A
                // FUA write is not pending, so every medium has it.
                Event::Write { fua, .. } => self.plan_choices(!fua),
                Event::WriteZeroes { .. } | Event::Discard { .. } => self.plan_choices(true),
            }
            self.plan_torn();
        }
    }
}

impl States<'_> {
    /// Omits the media before this mark; marks must ascend. The remaining media are the same as
    /// without this call.
    pub fn from_mark(mut self, mark: u64) -> Self {
        self.from = Some(mark);
        self.todo.clear();
        self.torn.clear();
        self
    }

    fn is_left_out(&self) -> bool {
        self.mark < self.from
    }

    /// Changes the plan from the next event on.
    pub fn set_plan(&mut self, plan: StatePlan) {
        self.plan = plan;
    }

    fn rng(&self, salt: u64) -> SmallRng {
        SmallRng::seed_from_u64(self.plan.seed ^ salt ^ (self.at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Plans torn states of the next event if it is a FUA write. It is durable when it completes;
    /// until then any part of it may be on the medium, as with any other write.
    fn plan_torn(&mut self) {
        let next = self.recording.events.get(self.at);
        // A write of zero blocks is legal and cannot be torn.
        let tears =
            matches!(next, Some(Event::Write { fua: true, torn: None, data, .. }) if data.blocks() > 0);
        if !self.plan.at_marks_only && tears && !self.is_left_out() {
            let mut rng = self.rng(0xf0a);
            self.torn.extend((0..self.plan.torn).map(|_| rng.random::<u64>()));
        }
    }

    fn torn_state(&self, seed: u64) -> CrashState {
        let Some(Event::Write { seq, offset, data, .. }) = self.recording.events.get(self.at) else {
            unreachable!("planned for a write only");
        };
        CrashState {
            at: self.at,
            mark: self.mark,
            pending: self.medium.pending(),
            in_flight: true,
            choice: Choice::Torn(seed),
            medium: self.medium.build_torn(*seq, *offset, data, seed),
        }
    }

    fn plan_choices(&mut self, with_newest: bool) {
        if self.is_left_out() {
            return;
        }
        let pending = self.medium.pending();
        let newest = with_newest && pending > 0;
        let free = pending - usize::from(newest);
        let mut rng = self.rng(0);
        if pending < 64 && (1u64 << free) <= self.plan.subsets as u64 {
            let fixed = if newest { 1 << free } else { 0 };
            self.todo.extend((0..1u64 << free).map(|mask| Choice::Mask(mask | fixed)));
        } else {
            let nothing = if newest { Choice::Only(pending - 1) } else { Choice::None };
            self.todo.extend([Choice::All, nothing]);
            for i in 2..self.plan.samples {
                self.todo.push_back(match i % 3 {
                    0 => Choice::AllBut(rng.random_range(0..free)),
                    1 => Choice::Only(rng.random_range(0..pending)),
                    _ => Choice::Subset(rng.random()),
                });
            }
        }
        if pending > 0 {
            self.todo.extend((0..self.plan.torn).map(|_| Choice::Torn(rng.random())));
        }
    }
}
