//! A device in memory that records requests, fails them as planned, and simulates power loss.
//!
//! Three states are separate: the *view* (all completed writes, which reads see), the *medium*
//! (what a power loss can leave) and the *recording* (the events up to now, for a later replay).
//!
//! An operation is submitted when the call enters the device, waits for its latency, and then takes
//! effect at one instant. A flush covers the writes that had completed when the flush was
//! submitted; it covers neither writes of its own batch nor writes that complete while it waits.
//! The operations of a batch take effect in random order; operations that the plan holds or puts
//! last come last. Lock: one leaf, not held while waiting or completing.

use super::fault::{Asked, Effect, FaultPlan, OpCounts, OpKind, Progress, Strike};
use super::medium::{Choice, Medium, SECTOR, WHOLE, mix};
use super::recording::{Event, Recording};
use crate::mem::put;
use crate::pages::{Data, Page, blocks};
use crate::{Completion, CompletionSink, Device, DeviceStats, Geometry, MemDevice, Op, Request};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use parking_lot::{Condvar, Mutex};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

pub struct SimDevice {
    geometry: Geometry,
    stats: DeviceStats,
    state: Mutex<State>,
    /// Notified when held operations are released.
    released: Condvar,
}

struct State {
    view: MemDevice,
    medium: Medium,
    /// Number of the next event.
    seq: u64,
    /// The base and the events; `None` while not recording.
    recording: Option<(MemDevice, Vec<Event>)>,
    plan: FaultPlan,
    progress: Progress,
    /// Number of held operations that wait for their release.
    held_up: usize,
    /// Number of calls of `release` so far.
    releases: u64,
    /// Set after an unknown outcome: every request fails from then on.
    poisoned: bool,
    rng: SmallRng,
}

/// An operation that has been submitted but has not taken effect yet.
struct Admitted {
    /// Number of the next event at submission: every event with a lower number has completed.
    seq: u64,
    fault: Option<(Effect, Strike)>,
    latency: Duration,
    /// Whether the operation takes effect after the rest of its batch.
    last: bool,
    /// A held operation waits until the number of releases exceeds this value.
    held: Option<u64>,
}

impl SimDevice {
    /// Makes a device whose medium has the contents of `mem`. It records from the start.
    pub fn new(mem: MemDevice) -> SimDevice {
        let state = State {
            view: mem.fork(),
            recording: Some((mem.fork(), Vec::new())),
            medium: Medium::new(mem.fork()),
            seq: 1,
            plan: FaultPlan::default(),
            progress: Progress::default(),
            held_up: 0,
            releases: 0,
            poisoned: false,
            rng: SmallRng::seed_from_u64(0),
        };
        SimDevice {
            geometry: mem.geometry().clone(),
            stats: DeviceStats::default(),
            state: Mutex::new(state),
            released: Condvar::new(),
        }
    }

    /// Replaces the plan, resets the counts to zero, and restarts the random choices from the
    /// plan's seed.
    pub fn set_plan(&self, plan: FaultPlan) {
        let mut state = self.state.lock();
        state.rng = SmallRng::seed_from_u64(plan.seed);
        state.progress = Progress::default();
        state.plan = plan;
    }

    pub fn op_counts(&self) -> OpCounts {
        self.state.lock().progress.counts
    }

    /// Number of operations that failed as planned since the plan was set.
    pub fn struck(&self) -> u64 {
        self.state.lock().progress.struck
    }

    /// Returns the first few thousand operations that failed as planned, in the order of their
    /// completion.
    pub fn strikes(&self) -> Vec<Strike> {
        self.state.lock().progress.strikes.clone()
    }

    /// Ends all failures and holds. Counts are kept.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.plan = FaultPlan::new(state.plan.seed);
        state.progress.heal();
        state.releases += 1;
        drop(state);
        self.released.notify_all();
    }

    /// Releases all operations that the plan holds now.
    pub fn release(&self) {
        self.state.lock().releases += 1;
        self.released.notify_all();
    }

    /// Number of held operations that wait now: submitted, but neither applied nor completed.
    pub fn held_up(&self) -> usize {
        self.state.lock().held_up
    }

    /// Records the mark `n`.
    pub fn mark(&self, n: u64) {
        self.state.lock().note(Event::Mark(n));
    }

    /// Returns the medium after a power loss now: everything durable, and a random subset of the
    /// other writes, torn at sectors.
    pub fn crash(&self, seed: u64) -> MemDevice {
        self.crash_as(Choice::Torn(seed))
    }

    /// Returns the medium after a power loss now, with the given choice of pending writes.
    pub fn crash_as(&self, choice: Choice) -> MemDevice {
        self.state.lock().medium.build(choice)
    }

    /// Returns the contents that reads see: all completed writes, as after an orderly shutdown.
    pub fn view(&self) -> MemDevice {
        self.state.lock().view.fork()
    }

    /// Returns the number of writes that a power loss now may lose.
    pub fn pending(&self) -> usize {
        self.state.lock().medium.pending()
    }

    /// Returns the recording so far; empty while not recording.
    pub fn recording(&self) -> Recording {
        let state = self.state.lock();
        match &state.recording {
            Some((base, events)) => Recording { base: base.fork(), events: events.clone() },
            None => Recording { base: state.medium.durable().fork(), events: Vec::new() },
        }
    }

    /// Stops recording and drops the recording, which keeps all data ever written in memory. Power
    /// loss can still be simulated.
    pub fn stop_recording(&self) {
        self.state.lock().recording = None;
    }

    fn admit(&self, asked: &Asked<'_>) -> Admitted {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let kind = asked.kind;
        let latency = state.plan.latency_of(kind);
        if !state.plan.covers(asked) {
            return Admitted { seq: state.seq, fault: None, latency, last: false, held: None };
        }
        let nth = *state.progress.counts.of(kind);
        let last = state.plan.is_last(kind, nth);
        let held = state.plan.holds(kind, nth).then_some(state.releases);
        let pages = state.view.pages_mut();
        let fault =
            state.plan.strike(&mut state.progress, &mut state.rng, asked, |block| pages.get(block).is_some());
        Admitted { seq: state.seq, fault, latency, last, held }
    }

    fn admit_op(&self, offset: u64, op: &Op) -> Admitted {
        self.stats.count(op);
        let (kind, data) = match op {
            Op::Read(_) => (OpKind::Read, None),
            Op::Write { buf, .. } => (OpKind::Write, Some(buf)),
            Op::Discard { .. } | Op::WriteZeroes { .. } => (OpKind::Write, None),
            Op::Flush => (OpKind::Flush, None),
        };
        self.admit(&Asked { kind, offset, len: op.len(), data })
    }

    fn happen(&self, admitted: &Admitted, offset: u64, op: &mut Op) -> Result<()> {
        match op {
            Op::Read(buf) => self.do_read(admitted, offset, buf),
            Op::Write { buf, fua } => self.do_write(admitted, offset, buf, *fua),
            Op::Flush => self.do_flush(admitted),
            Op::Discard { len } => self.do_zero(admitted, "discard", offset, *len),
            Op::WriteZeroes { len } => self.do_zero(admitted, "write_zeroes", offset, *len),
        }
    }

    fn do_read(&self, admitted: &Admitted, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.geometry.check("read", offset, buf.len() as u64)?;
        let mut state = self.state.lock();
        state.fail(admitted, "read", offset, buf.len() as u64)?;
        state.view.read(offset, buf)
    }

    fn do_write(&self, admitted: &Admitted, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        let len = buf.len() as u64;
        self.geometry.check("write", offset, len)?;
        let mut state = self.state.lock();
        let failure = state.fail(admitted, "write", offset, len);
        let torn = match admitted.fault.as_ref().map(|(effect, _)| *effect) {
            None if failure.is_ok() => None,
            Some(Effect::LostFua { names_flush }) if fua && !state.poisoned => {
                let data = Data::new(buf);
                state.show(offset, &data, None);
                let seq = state.next_seq();
                state.happened(Event::Write { seq, offset, data, fua: false, torn: None });
                let seq = state.next_seq();
                state.happened(Event::FlushLost { seq, covers: seq });
                return match failure {
                    Err(Error::Io { errno, .. }) if names_flush => {
                        Err(Error::Io { op: "flush", offset: 0, len: 0, errno })
                    }
                    failure => failure,
                };
            }
            Some(effect @ (Effect::Torn | Effect::Short(_) | Effect::Done | Effect::Unknown))
                if !state.poisoned =>
            {
                state.poisoned = effect == Effect::Unknown;
                Some(state.reached(effect, buf.blocks()))
            }
            _ => return failure,
        };
        let data = Data::new(buf);
        state.show(offset, &data, torn.as_deref());
        let seq = state.next_seq();
        let fua = fua && !state.plan.lying && torn.is_none();
        state.happened(Event::Write { seq, offset, data, fua, torn });
        failure
    }

    fn do_zero(&self, admitted: &Admitted, op: &'static str, offset: u64, len: u64) -> Result<()> {
        self.geometry.check(op, offset, len)?;
        let mut state = self.state.lock();
        let failure = state.fail(admitted, op, offset, len);
        let done = matches!(admitted.fault, Some((Effect::Done, _))) && !state.poisoned;
        if failure.is_err() && !done {
            return failure;
        }
        state.view.pages_mut().remove(blocks(offset), blocks(len));
        let seq = state.next_seq();
        state.happened(match op {
            "discard" => Event::Discard { seq, offset, len },
            _ => Event::WriteZeroes { seq, offset, len },
        });
        failure
    }

    fn do_flush(&self, admitted: &Admitted) -> Result<()> {
        let mut state = self.state.lock();
        let failure = state.fail(admitted, "flush", 0, 0);
        let seq = state.next_seq();
        if failure.is_ok() {
            let covers = if state.plan.lying { 0 } else { admitted.seq };
            state.happened(Event::Flush { seq, covers });
        } else if matches!(admitted.fault, Some((Effect::Lost, _))) {
            state.happened(Event::FlushLost { seq, covers: admitted.seq });
        }
        failure
    }

    /// Serves one synchronous request.
    fn alone(&self, asked: &Asked<'_>, happen: impl FnOnce(&Admitted) -> Result<()>) -> Result<()> {
        let admitted = self.admit(asked);
        wait(admitted.latency);
        self.hold_up(&admitted);
        happen(&admitted)
    }

    fn hold_up(&self, admitted: &Admitted) {
        let Some(releases) = admitted.held else { return };
        let mut state = self.state.lock();
        state.held_up += 1;
        while state.releases <= releases {
            self.released.wait(&mut state);
        }
        state.held_up -= 1;
    }
}

fn wait(delay: Duration) {
    if !delay.is_zero() {
        kedge_base::pause(delay);
    }
}

impl State {
    fn fail(&mut self, admitted: &Admitted, op: &'static str, offset: u64, len: u64) -> Result<()> {
        if self.poisoned {
            return Err(Error::OutcomeUnknown);
        }
        let Some((effect, strike)) = &admitted.fault else { return Ok(()) };
        self.progress.answered(strike);
        Err(effect.error(op, offset, len, strike.errno))
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq - 1
    }

    fn note(&mut self, event: Event) {
        if let Some((_, events)) = &mut self.recording {
            events.push(event);
        }
    }

    fn happened(&mut self, event: Event) {
        self.medium.apply(&event);
        self.note(event);
    }

    /// Returns the sectors that a failing write reached.
    fn reached(&mut self, effect: Effect, blocks: usize) -> Arc<[u8]> {
        match effect {
            Effect::Short(bytes) => {
                let sectors = bytes as usize / SECTOR;
                let per_block = BLOCK_SIZE / SECTOR;
                let mask = |block: usize| match sectors.saturating_sub(block * per_block) {
                    n if n >= per_block => WHOLE,
                    n => (1u8 << n) - 1,
                };
                (0..blocks).map(mask).collect()
            }
            Effect::Done => vec![WHOLE; blocks].into(),
            // No sector, all sectors and some sectors occur with comparable probability.
            _ => match self.rng.random_range(0..4) {
                0 => (0..blocks).map(|_| 0).collect(),
                1 => (0..blocks).map(|_| WHOLE).collect(),
                _ => (0..blocks).map(|_| self.rng.random()).collect(),
            },
        }
    }

    fn show(&mut self, offset: u64, data: &Data, torn: Option<&[u8]>) {
        let pages = self.view.pages_mut();
        for i in 0..data.blocks() {
            let block = blocks(offset) + i;
            let new = data.page(i);
            match torn.map_or(WHOLE, |masks| masks[i as usize]) {
                WHOLE => put(pages, block, new),
                mask => {
                    let mixed = mix(pages.get(block).unwrap_or(&Page::ZERO), &new, mask);
                    put(pages, block, mixed);
                }
            }
        }
    }
}

impl Device for SimDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let mut admitted: Vec<(Admitted, Request)> =
            batch.into_iter().map(|request| (self.admit_op(request.offset, &request.op), request)).collect();
        wait(admitted.iter().map(|(a, _)| a.latency).max().unwrap_or_default());
        admitted.shuffle(&mut self.state.lock().rng);
        admitted.sort_by_key(|(a, _)| (a.held.is_some(), a.last));
        for (admitted, Request { tag, offset, mut op }) in admitted {
            self.hold_up(&admitted);
            let result = self.happen(&admitted, offset, &mut op);
            sink.complete(Completion { tag, op, result });
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.stats.count_read(buf.len());
        let asked = Asked { kind: OpKind::Read, offset, len: buf.len() as u64, data: None };
        self.alone(&asked, |admitted| self.do_read(admitted, offset, buf))
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.stats.count_write(buf.len(), fua);
        let asked = Asked { kind: OpKind::Write, offset, len: buf.len() as u64, data: Some(buf) };
        self.alone(&asked, |admitted| self.do_write(admitted, offset, buf, fua))
    }

    fn flush(&self) -> Result<()> {
        self.stats.count_flush();
        let asked = Asked { kind: OpKind::Flush, offset: 0, len: 0, data: None };
        self.alone(&asked, |admitted| self.do_flush(admitted))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let asked = Asked { kind: OpKind::Write, offset, len, data: None };
        self.alone(&asked, |admitted| self.do_zero(admitted, "discard", offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let asked = Asked { kind: OpKind::Write, offset, len, data: None };
        self.alone(&asked, |admitted| self.do_zero(admitted, "write_zeroes", offset, len))
    }

    /// The device keeps its size, and the contents beyond are discarded: after a power loss they
    /// may be gone or not.
    fn cut(&self, size: u64) -> Result<()> {
        match self.geometry.size.checked_sub(size) {
            None | Some(0) => Ok(()),
            Some(beyond) => self.discard(size, beyond),
        }
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn name(&self) -> &str {
        "simulation"
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
