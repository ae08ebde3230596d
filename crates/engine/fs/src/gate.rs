//! The gate that a freeze closes: it admits changes to the file system, or makes them wait.
//!
//! There are two [`Door`]s. *Changes* are the operations that change something. *Work* makes
//! changes durable: fsync, sync, the flusher threads. A freeze closes the first door, makes
//! everything durable, and closes the second ([`crate::freeze`]).
//!
//! # Cost
//! Entry counts are striped by thread. Entering takes an addition in a cache line of the thread's
//! stripe, and a load of the phase, a read-mostly word. Leaving takes another addition and load.
//!
//! # Why a freeze overlooks no entrant
//! An entrant increments its stripe, then loads the phase; a freezer stores the phase, then reads
//! the counts. All four are SeqCst, so at least one sees the other: either the entrant sees the new
//! phase and leaves again, or the freezer sees the count and waits until it is zero.
//!
//! # Why no thread waits forever
//! The gate is the outermost lock: a thread that waits at it holds no other lock, so a thread
//! inside never waits for a thread outside. A thread inside may enter again ([`Gate::change`])
//! without a check of the phase. A shutdown and a close open the gate; the operations that waited
//! then fail by themselves.

use kedge_base::atomic::Ordering::SeqCst;
use kedge_base::atomic::{AtomicU8, AtomicU64};
use kedge_base::broken::{self, Variant};
use kedge_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use kedge_base::{STRIPES, stripe};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// A class of operations that the gate admits or stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    Change,
    Work,
}

/// The progress of a freeze.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Phase {
    Open,
    /// Changes wait. Dirty data is being written.
    Closing,
    /// Work waits too. No data is dirty.
    Settling,
    /// The freeze is complete: no data is dirty, and no thread writes.
    Frozen,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Open, Phase::Closing, Phase::Settling, Phase::Frozen];
}

/// A function that is called when changes continue.
pub type Thawed = Box<dyn FnOnce() + Send>;

/// One entry count, on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Lane(AtomicU64);

#[derive(Default)]
struct State {
    /// Start of the freeze, in seconds since 1970.
    since: Option<i64>,
    /// Whether further freezes are refused.
    ended: bool,
    /// Functions to call at the thaw, for changes that wait without a thread.
    later: Vec<Thawed>,
}

/// The gate of a file system; see the module's head.
pub(crate) struct Gate {
    phase: AtomicU8,
    inside: [[Lane; STRIPES]; 2],
    state: Mutex<State>,
    /// Signalled when the phase changes, and when a thread leaves.
    changed: Condvar,
    /// Held by a freeze, thaw or close, so that one runs at a time.
    single: Mutex<()>,
}

thread_local! {
    /// The address of the gate in which this thread makes a change; 0 for none.
    static ENTERED: Cell<usize> = const { Cell::new(0) };
}

/// The right of a thread inside the gate to make a change. Dropping it leaves the gate.
#[must_use]
pub(crate) struct Entrant<'a> {
    gate: &'a Gate,
    /// The stripe in which the entry is counted, and the gate in which the thread was before.
    /// `None` if the thread was inside this gate already.
    counted: Option<(usize, usize)>,
    /// Makes the type not `Send`: the thread that entered must leave.
    _stays: PhantomData<*const ()>,
}

impl Drop for Entrant<'_> {
    fn drop(&mut self) {
        if let Some((lane, before)) = self.counted {
            ENTERED.set(before);
            self.gate.leave(Door::Change, lane);
        }
    }
}

/// The right to do work inside the gate, which may continue after the caller's thread has returned.
/// Dropping it leaves the gate.
#[must_use]
pub(crate) struct Working {
    gate: Arc<Gate>,
    lane: usize,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.gate.leave(Door::Work, self.lane);
    }
}

/// Panics in debug builds if the calling thread holds a lock. Checks even while the gate is open,
/// so that every test would fail.
fn assert_outermost() {
    if cfg!(debug_assertions) {
        drop(Mutex::new(Rank::Freeze, ()).lock());
    }
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            phase: AtomicU8::new(Phase::Open as u8),
            inside: Default::default(),
            state: Mutex::new(Rank::Leaf, State::default()),
            changed: Condvar::new(),
            single: Mutex::new(Rank::Freeze, ()),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::ALL[self.phase.load(SeqCst) as usize]
    }

    /// Start of the freeze, if there is one, in seconds since 1970.
    pub(crate) fn since(&self) -> Option<i64> {
        self.state.lock().since
    }

    // ----- entering and leaving -----

    fn try_count(&self, door: Door) -> Option<usize> {
        let lane = stripe();
        self.inside[door as usize][lane].0.fetch_add(1, SeqCst);
        if self.admits(door, self.phase()) {
            return Some(lane);
        }
        self.leave(door, lane);
        None
    }

    fn admits(&self, door: Door, phase: Phase) -> bool {
        match door {
            Door::Change => phase == Phase::Open,
            Door::Work => phase < Phase::Settling,
        }
    }

    fn leave(&self, door: Door, lane: usize) {
        self.inside[door as usize][lane].0.fetch_sub(1, SeqCst);
        if self.phase.load(SeqCst) != Phase::Open as u8 && !broken::is(Variant::UnwokenFreeze) {
            let _state = self.state.lock();
            self.changed.notify_all();
        }
    }

    /// Whether the calling thread is making a change inside this gate.
    pub(crate) fn has_entered(&self) -> bool {
        ENTERED.get() == self.address()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn changing(&self, lane: usize) -> Entrant<'_> {
        let before = ENTERED.replace(self.address());
        Entrant { gate: self, counted: Some((lane, before)), _stays: PhantomData }
    }

    /// Enters for a change. Waits for the end of a freeze. The caller holds no lock.
    pub(crate) fn change(&self) -> Entrant<'_> {
        if self.has_entered() {
            return Entrant { gate: self, counted: None, _stays: PhantomData };
        }
        assert_outermost();
        loop {
            if let Some(lane) = self.try_count(Door::Change) {
                return self.changing(lane);
            }
            let mut state = self.state.lock();
            while self.phase() != Phase::Open {
                self.changed.wait(&mut state);
            }
        }
    }

    /// Enters for a change that can be skipped: `None` in a freeze. May be called with locks held.
    pub(crate) fn try_change(&self) -> Option<Entrant<'_>> {
        if self.has_entered() {
            return Some(Entrant { gate: self, counted: None, _stays: PhantomData });
        }
        self.try_count(Door::Change).map(|lane| self.changing(lane))
    }

    /// Enters for a change, without waiting. `None` in a freeze; the function that `later` returns
    /// is then called when changes continue.
    pub(crate) fn change_or(&self, later: impl FnOnce() -> Option<Thawed>) -> Option<Entrant<'_>> {
        loop {
            if let Some(lane) = self.try_count(Door::Change) {
                return Some(self.changing(lane));
            }
            let mut state = self.state.lock();
            if self.phase() != Phase::Open {
                state.later.extend(later());
                return None;
            }
        }
    }

    /// Enters for work, which may continue in another thread. Waits while a freeze is about to
    /// complete. `None` if the freeze is complete: nothing is dirty then. The caller holds no lock.
    pub(crate) fn work(self: &Arc<Self>) -> Option<Working> {
        assert_outermost();
        loop {
            if let Some(lane) = self.try_count(Door::Work) {
                return Some(Working { gate: self.clone(), lane });
            }
            let mut state = self.state.lock();
            while self.phase() == Phase::Settling {
                self.changed.wait(&mut state);
            }
            if self.phase() == Phase::Frozen {
                return None;
            }
        }
    }

    /// Enters for work for which no caller waits. `None` from the start of a freeze to its end.
    pub(crate) fn try_work(self: &Arc<Self>) -> Option<Working> {
        if self.phase() != Phase::Open {
            return None;
        }
        self.try_count(Door::Work).map(|lane| Working { gate: self.clone(), lane })
    }

    // ----- freezing -----

    /// Excludes other freezes, thaws, closes, resizes and changes of trees.
    pub(crate) fn single(&self) -> MutexGuard<'_, ()> {
        self.single.lock()
    }

    /// Closes the door, and waits for the threads inside to leave.
    pub(crate) fn shut(&self, door: Door) {
        let phase = match door {
            Door::Change => Phase::Closing,
            Door::Work => Phase::Settling,
        };
        let mut state = self.state.lock();
        self.phase.store(phase as u8, SeqCst);
        // One lane after the other suffices: once a count was zero, only a thread that finds the
        // door closed and leaves again raises it.
        for lane in &self.inside[door as usize] {
            while lane.0.load(SeqCst) > 0 {
                self.changed.wait(&mut state);
            }
        }
    }

    pub(crate) fn set_frozen(&self, since: i64) {
        let mut state = self.state.lock();
        state.since = Some(since);
        self.phase.store(Phase::Frozen as u8, SeqCst);
        self.changed.notify_all();
    }

    /// Opens both doors.
    pub(crate) fn open(&self) {
        self.open_from(|_| true);
    }

    /// Opens both doors if the file system is frozen and no freeze or thaw is running.
    pub(crate) fn open_if_frozen(&self) {
        self.open_from(|phase| phase == Phase::Frozen);
    }

    fn open_from(&self, opens: impl Fn(Phase) -> bool) {
        let later = {
            let mut state = self.state.lock();
            if !opens(self.phase()) {
                return;
            }
            state.since = None;
            self.phase.store(Phase::Open as u8, SeqCst);
            self.changed.notify_all();
            std::mem::take(&mut state.later)
        };
        later.into_iter().for_each(|call| call());
    }

    /// Prevents further freezes. The caller holds [`Gate::single`].
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Approximate number of changes inside the gate.
    #[cfg(test)]
    pub(crate) fn changes_inside(&self) -> u64 {
        self.inside[Door::Change as usize].iter().map(|lane| lane.0.load(SeqCst)).sum()
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
