//! Processors, the run queue, and the events of virtual time.
//!
//! # Model
//! There is one run queue for all processors, first in first out: the operating system is assumed
//! to balance perfectly. A woken thread takes an idle processor, its last one if possible, and
//! preempts no other thread. A thread that has used its slice while others are ready goes to the
//! end of the queue.

use super::hardware::Hardware;
use super::profile::{Kind, Sums};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::Location;
use std::thread::Thread;

pub(super) type Site = Option<&'static Location<'static>>;

/// The object for which a thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum On {
    Place(usize),
    Lock(usize),
    EndOf(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    /// On this processor; `time` is its virtual time.
    Runs(usize),
    /// On a processor: spins for a lock, until it is free or the thread goes to sleep. Lock,
    /// processor.
    SpinsFor(usize, usize),
    /// Has no processor.
    Ready,
    Sleeps(On),
    Ended,
}

pub(super) struct Slot {
    pub name: usize,
    pub status: Status,
    /// Its virtual time: that of its last action, or of its next one if that lies ahead.
    pub time: u64,
    /// The time at which it got its processor.
    pub on_since: u64,
    pub last_processor: usize,
    /// Number of its waits, which distinguishes the timer of this wait from earlier ones.
    pub waits: u64,
    pub waits_since: u64,
    pub waits_as: (Kind, Site),
    pub late: bool,
    pub shared: bool,
    pub looks: u32,
    pub spun: u64,
    /// The thread's handle, once it has begun.
    pub thread: Option<Thread>,
}

enum Event {
    /// The thread becomes ready.
    Ready(usize),
    /// The time limit of the thread's wait with this number is over.
    Late(usize, u64),
    /// In its wait with this number the thread has spun for the lock long enough, and goes to
    /// sleep.
    Parks(usize, u64),
}

#[derive(Default)]
struct Processor {
    thread: Option<usize>,
    free_at: u64,
}

/// The state of a cache line.
#[derive(Default)]
struct Line {
    owner: Option<usize>,
    /// Processors with a copy, one bit each.
    copies: u64,
    /// The time at which the last change is complete.
    busy_until: u64,
}

const LINE: usize = 64;
/// Limit of known cache lines. Beyond it all are forgotten, so that a long run does not fill the
/// memory.
const LINES_MAX: usize = 1 << 20;
/// Limit of the time between two checks of a spinning thread, in units of one check.
const LOOKS_MAX: u64 = 16;
/// Pauses of parking_lot before it yields the processor.
const PAUSES: u64 = 2 + 4 + 8;
/// Checks after which a spinning thread yields its processor, as `btree::sync::relax` does.
const LOOKS_UNTIL_YIELD: u64 = 64;

pub(super) struct State {
    pub threads: Vec<Slot>,
    pub sums: Sums,
    pub steps: u64,
    pub switches: u64,
    pub unknown: u64,
    processors: Vec<Processor>,
    queue: VecDeque<usize>,
    events: BTreeMap<(u64, u64), Event>,
    event: u64,
    sleepers: HashMap<On, VecDeque<usize>>,
    lines: HashMap<usize, Line>,
    pub hardware: Hardware,
}

impl State {
    /// A machine with one thread, number 0, which runs.
    pub fn new(hardware: Hardware) -> State {
        let mut processors: Vec<Processor> = Vec::new();
        processors.resize_with(hardware.processors, Processor::default);
        let mut state = State {
            threads: Vec::new(),
            sums: Sums::default(),
            steps: 0,
            switches: 0,
            unknown: 0,
            processors,
            queue: VecDeque::new(),
            events: BTreeMap::new(),
            event: 0,
            sleepers: HashMap::new(),
            lines: HashMap::new(),
            hardware,
        };
        state.add("main", 0);
        state.threads[0].status = Status::Runs(0);
        state.processors[0].thread = Some(0);
        state
    }

    pub fn add(&mut self, name: &str, now: u64) -> usize {
        let name = self.sums.name(name);
        self.threads.push(Slot {
            name,
            status: Status::Ready,
            time: now,
            on_since: now,
            last_processor: 0,
            waits: 0,
            waits_since: now,
            waits_as: (Kind::RunQueue, None),
            late: false,
            shared: false,
            looks: 0,
            spun: 0,
            thread: None,
        });
        self.threads.len() - 1
    }

    fn at(&mut self, time: u64, event: Event) {
        self.event += 1;
        self.events.insert((time, self.event), event);
    }

    /// Lets the thread become ready at that time.
    pub fn start(&mut self, thread: usize, time: u64) {
        self.at(time, Event::Ready(thread));
    }

    pub fn spend(&mut self, me: usize, kind: Kind, site: Site, nanos: u64) {
        let slot = &mut self.threads[me];
        slot.time += nanos;
        self.sums.add(slot.name, kind, site, nanos);
    }

    /// Returns the thread that acts next, or `None` if nothing will ever happen again.
    pub fn next(&mut self) -> Option<usize> {
        loop {
            let runs = |(i, slot): (usize, &Slot)| match slot.status {
                Status::Runs(_) => Some((slot.time, i)),
                _ => None,
            };
            // There may be many threads, so only those on a processor are examined.
            let on = self.processors.iter().filter_map(|processor| processor.thread);
            let first = on.filter_map(|i| runs((i, &self.threads[i]))).min();
            let event = self.events.first_key_value().map(|((time, _), _)| *time);
            match (first, event) {
                (Some((time, thread)), event) if event.is_none_or(|event| event > time) => {
                    return Some(thread);
                }
                (_, Some(_)) => {
                    let ((time, _), event) = self.events.pop_first().expect("there is one");
                    self.happen(time, event);
                }
                (None, None) => return None,
                (Some(_), None) => unreachable!("the first arm takes it"),
            }
        }
    }

    fn happen(&mut self, time: u64, event: Event) {
        match event {
            Event::Ready(thread) => self.ready(thread, time),
            Event::Late(thread, waits) => {
                let slot = &mut self.threads[thread];
                if let (Status::Sleeps(on), true) = (slot.status, slot.waits == waits) {
                    slot.late = true;
                    self.forget_sleeper(on, thread);
                    self.awake(thread, time);
                }
            }
            Event::Parks(thread, waits) => {
                let slot = &mut self.threads[thread];
                if let (Status::SpinsFor(place, processor), true) = (slot.status, slot.waits == waits) {
                    slot.status = Status::Sleeps(On::Lock(place));
                    self.sleepers.entry(On::Lock(place)).or_default().push_back(thread);
                    self.release(processor, time);
                }
            }
        }
    }

    fn forget_sleeper(&mut self, on: On, thread: usize) {
        if let Some(queue) = self.sleepers.get_mut(&on) {
            queue.retain(|sleeper| *sleeper != thread);
            if queue.is_empty() {
                self.sleepers.remove(&on);
            }
        }
    }

    /// Ends the wait of a thread at `time`: it needs a processor.
    fn awake(&mut self, thread: usize, time: u64) {
        let slot = &mut self.threads[thread];
        let (kind, site) = slot.waits_as;
        self.sums.add(slot.name, kind, site, time.saturating_sub(slot.waits_since));
        slot.status = Status::Ready;
        self.ready(thread, time);
    }

    fn ready(&mut self, thread: usize, time: u64) {
        let slot = &mut self.threads[thread];
        if slot.status == Status::Ended {
            return;
        }
        slot.status = Status::Ready;
        slot.waits_since = time;
        let last = slot.last_processor;
        let idle = |i: &usize| self.processors[*i].thread.is_none();
        let found = Some(last).filter(idle).or_else(|| (0..self.processors.len()).find(idle));
        match found {
            Some(processor) => {
                let begin = time.max(self.processors[processor].free_at) + self.hardware.wake_latency;
                self.sums.add(self.threads[thread].name, Kind::WakeUp, None, begin - time);
                self.put(thread, processor, begin);
            }
            None => self.queue.push_back(thread),
        }
    }

    fn put(&mut self, thread: usize, processor: usize, time: u64) {
        self.processors[processor].thread = Some(thread);
        let slot = &mut self.threads[thread];
        slot.status = Status::Runs(processor);
        slot.time = time;
        slot.on_since = time;
        slot.last_processor = processor;
    }

    /// Takes the processor from its thread and gives it to the next one of the queue.
    fn release(&mut self, processor: usize, time: u64) {
        let free = time + self.hardware.switch;
        self.processors[processor].thread = None;
        self.processors[processor].free_at = free;
        if let Some(next) = self.queue.pop_front() {
            let slot = &self.threads[next];
            let begin = free.max(slot.waits_since);
            self.sums.add(slot.name, Kind::RunQueue, None, begin - slot.waits_since);
            self.put(next, processor, begin);
        }
    }

    fn processor(&self, thread: usize) -> usize {
        match self.threads[thread].status {
            Status::Runs(processor) | Status::SpinsFor(_, processor) => processor,
            _ => unreachable!("a thread that acts has a processor"),
        }
    }

    fn waits(&mut self, me: usize, kind: Kind, site: Site) -> u64 {
        let slot = &mut self.threads[me];
        slot.waits += 1;
        slot.waits_since = slot.time;
        slot.waits_as = (kind, site);
        slot.late = false;
        slot.looks = 0;
        slot.waits
    }

    pub fn sleep(&mut self, me: usize, on: On, until: Option<u64>, kind: Kind, site: Site) {
        let processor = self.processor(me);
        let waits = self.waits(me, kind, site);
        let time = self.threads[me].time;
        self.threads[me].status = Status::Sleeps(on);
        self.sleepers.entry(on).or_default().push_back(me);
        if let Some(until) = until {
            self.at(until.max(time), Event::Late(me, waits));
        }
        self.release(processor, time);
    }

    /// Waits for a lock that is taken: spins if no thread sleeps for the lock yet, as parking_lot
    /// does, and otherwise sleeps.
    pub fn wait_for_lock(&mut self, me: usize, place: usize, shared: bool, site: Site) {
        self.threads[me].shared = shared;
        if self.hardware.spin == 0 || self.sleepers.contains_key(&On::Lock(place)) {
            return self.sleep(me, On::Lock(place), None, Kind::Lock, site);
        }
        let processor = self.processor(me);
        let waits = self.waits(me, Kind::Lock, site);
        let slot = &mut self.threads[me];
        slot.status = Status::SpinsFor(place, processor);
        // If other threads are ready, the yields after the pauses give them the processor, as
        // sleeping does.
        let pauses = PAUSES * self.hardware.look;
        let spin = if self.queue.is_empty() { self.hardware.spin } else { pauses.min(self.hardware.spin) };
        let until = slot.time + spin;
        self.at(until, Event::Parks(me, waits));
    }

    /// Lets threads continue after a lock was released. Threads that spin for it continue at once.
    /// The first sleeping thread is woken, and if it is a reader, also the readers directly after
    /// it.
    pub fn freed(&mut self, me: usize, place: usize) {
        let (time, transfer) = (self.threads[me].time, self.hardware.transfer);
        let on: Vec<usize> = self.processors.iter().filter_map(|processor| processor.thread).collect();
        for thread in on {
            let slot = &mut self.threads[thread];
            if let Status::SpinsFor(wanted, processor) = slot.status
                && wanted == place
            {
                slot.status = Status::Runs(processor);
                slot.time = slot.time.max(time) + transfer;
                let (kind, site) = slot.waits_as;
                self.sums.add(slot.name, kind, site, slot.time - slot.waits_since);
            }
        }
        let Some(queue) = self.sleepers.get(&On::Lock(place)) else { return };
        let readers = queue.iter().take_while(|thread| self.threads[**thread].shared).count();
        self.wake(me, On::Lock(place), readers.max(1));
    }

    /// Wakes at most `count` threads. `me` pays for each.
    pub fn wake(&mut self, me: usize, on: On, count: usize) {
        for _ in 0..count {
            let Some(queue) = self.sleepers.get_mut(&on) else { return };
            let Some(thread) = queue.pop_front() else { return };
            if queue.is_empty() {
                self.sleepers.remove(&on);
            }
            self.spend(me, Kind::Switch, None, self.hardware.wake);
            let time = self.threads[me].time;
            self.awake(thread, time);
        }
    }

    /// Gives the processor of `me` to the thread that waits longest for one, if any does.
    pub fn hand_on(&mut self, me: usize) {
        if self.queue.is_empty() {
            return;
        }
        let processor = self.processor(me);
        let slot = &mut self.threads[me];
        slot.status = Status::Ready;
        slot.waits_since = slot.time;
        let time = slot.time;
        self.queue.push_back(me);
        self.release(processor, time);
    }

    /// Gives the processor of `me` to another thread if its slice is over.
    pub fn tick(&mut self, me: usize) {
        let slot = &self.threads[me];
        if slot.time.saturating_sub(slot.on_since) >= self.hardware.quantum {
            self.hand_on(me);
        }
    }

    /// One check of a thread that spins. Checks become rarer, which only makes the simulation
    /// faster: the thread may notice a change late by a few checks.
    pub fn look(&mut self, me: usize, site: Site) {
        let slot = &mut self.threads[me];
        slot.looks += 1;
        let nanos = self.hardware.look * u64::from(1 + slot.looks / 8).min(LOOKS_MAX);
        slot.spun += nanos;
        self.spend(me, Kind::Spin, site, nanos);
        if self.threads[me].spun >= LOOKS_UNTIL_YIELD * self.hardware.look {
            self.threads[me].spun = 0;
            self.hand_on(me);
        }
    }

    /// Charges the cost of fetching the cache line of the address.
    pub fn touch(&mut self, me: usize, address: usize, writes: bool, site: Site) {
        if self.hardware.transfer == 0 || self.hardware.processors == 1 {
            return;
        }
        if self.lines.len() > LINES_MAX {
            self.lines.clear();
        }
        let processor = self.processor(me);
        let bit = 1u64 << (processor % 64);
        let (now, transfer) = (self.threads[me].time, self.hardware.transfer);
        let line = self.lines.entry(address / LINE).or_default();
        let has = line.copies & bit != 0 && (!writes || line.copies == bit);
        let fresh = line.owner.is_none();
        let ready = if has || fresh { now } else { now.max(line.busy_until) + transfer };
        if writes {
            *line = Line { owner: Some(processor), copies: bit, busy_until: ready };
        } else {
            line.owner = line.owner.or(Some(processor));
            line.copies |= bit;
        }
        self.spend(me, Kind::CacheLine, site, ready - now);
    }

    pub fn end(&mut self, me: usize) {
        let processor = self.processor(me);
        self.threads[me].status = Status::Ended;
        let time = self.threads[me].time;
        self.wake(me, On::EndOf(me), usize::MAX);
        self.release(processor, time);
    }

    pub fn ended(&self, thread: usize) -> bool {
        self.threads[thread].status == Status::Ended
    }

    pub fn name(&self, thread: usize) -> &str {
        self.sums.name_of(self.threads[thread].name)
    }
}
