//! The gate that a freeze closes: who may change the file system now, and who waits.
//!
//! There are two [`Door`]s. *Changes* are the operations that change something. *Work* is what
//! makes changes durable: fsync, sync, the turns of the flusher threads. A freeze closes the first
//! door, lets everything become durable, and closes the second ([`crate::freeze`]).
//!
//! # Cost
//! Who is inside is counted in stripes of threads. To enter takes an addition in a cache line of
//! the thread's stripe and a load of the phase, which nobody writes; to leave takes the same.
//!
//! # Why nobody is overlooked
//! Who enters first counts itself, then looks at the phase. Who closes a door first sets the phase,
//! then looks at the counts. All four are sequentially consistent: either the first sees the new
//! phase and leaves again, or the second sees the count and waits for it to go.
//!
//! # Why nobody waits for ever
//! The gate is the outermost lock: who waits at it holds no other, so who is inside never waits for
//! who is outside. A thread that is inside may enter again ([`Gate::change`]) without a look at the
//! phase. A shutdown and a close open the gate: what had to wait then fails by itself.

use kedge_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use kedge_base::{STRIPES, stripe};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// What a freeze keeps out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    Change,
    Work,
}

/// How far a freeze is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Phase {
    Open,
    /// Changes wait. What is dirty is being written.
    Closing,
    /// Work waits too. Nothing is dirty.
    Settling,
    /// Nothing is dirty, and nobody writes.
    Frozen,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Open, Phase::Closing, Phase::Settling, Phase::Frozen];
}

/// Called when changes go on.
pub type Thawed = Box<dyn FnOnce() + Send>;

/// A count, on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Lane(AtomicU64);

#[derive(Default)]
struct State {
    /// When it was frozen, in seconds since 1970.
    since: Option<i64>,
    /// It will not be frozen any more.
    ended: bool,
    /// Those who wait without a thread.
    later: Vec<Thawed>,
}

/// See the module.
pub(crate) struct Gate {
    phase: AtomicU8,
    inside: [[Lane; STRIPES]; 2],
    state: Mutex<State>,
    /// The phase has changed, or somebody has left.
    changed: Condvar,
    /// One freeze, thaw or close at a time.
    single: Mutex<()>,
}

thread_local! {
    /// The address of the gate for whose changes this thread has entered; 0: none.
    static ENTERED: Cell<usize> = const { Cell::new(0) };
}

/// A thread is inside.
#[must_use]
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
    /// The stripe, and where the thread was inside before. `None`: here.
    counted: Option<(usize, usize)>,
    /// It leaves on the thread that entered.
    _stays: PhantomData<*const ()>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some((lane, before)) = self.counted {
            ENTERED.set(before);
            self.gate.leave(Door::Change, lane);
        }
    }
}

/// Work that goes on when its caller's thread has returned.
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

/// Panics in debug builds if the calling thread holds a lock: also while the gate is open, so that
/// every test would notice.
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

    /// When it was frozen, if it is, in seconds since 1970.
    pub(crate) fn since(&self) -> Option<i64> {
        self.state.lock().since
    }

    // ----- to enter and to leave -----

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
        if self.phase.load(SeqCst) != Phase::Open as u8 {
            let _state = self.state.lock();
            self.changed.notify_all();
        }
    }

    /// Whether the calling thread is inside with a change.
    pub(crate) fn has_entered(&self) -> bool {
        ENTERED.get() == self.address()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn changing(&self, lane: usize) -> Inside<'_> {
        let before = ENTERED.replace(self.address());
        Inside { gate: self, counted: Some((lane, before)), _stays: PhantomData }
    }

    /// For a change. Waits for the end of a freeze. The caller holds no lock.
    pub(crate) fn change(&self) -> Inside<'_> {
        if self.has_entered() {
            return Inside { gate: self, counted: None, _stays: PhantomData };
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

    /// For a change that can be left out. May be called with locks held.
    pub(crate) fn try_change(&self) -> Option<Inside<'_>> {
        if self.has_entered() {
            return Some(Inside { gate: self, counted: None, _stays: PhantomData });
        }
        self.try_count(Door::Change).map(|lane| self.changing(lane))
    }

    /// For a change whose thread must not wait. `None`: what `later` gives is called when changes
    /// go on.
    pub(crate) fn change_or(&self, later: impl FnOnce() -> Option<Thawed>) -> Option<Inside<'_>> {
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

    /// For work, which may go on in another thread. `None`: frozen, there is nothing to do. Waits
    /// while a freeze is about to be complete. The caller holds no lock.
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

    /// For work that nobody has asked for. `None`: a freeze is under way, or complete.
    pub(crate) fn try_work(self: &Arc<Self>) -> Option<Working> {
        if self.phase() != Phase::Open {
            return None;
        }
        self.try_count(Door::Work).map(|lane| Working { gate: self.clone(), lane })
    }

    // ----- for who freezes -----

    /// For a freeze, a thaw or a close. `None`: another one is at work.
    pub(crate) fn try_single(&self) -> Option<MutexGuard<'_, ()>> {
        self.single.try_lock()
    }

    /// The same for a close, which waits.
    pub(crate) fn single(&self) -> MutexGuard<'_, ()> {
        self.single.lock()
    }

    /// Lets nobody in any more, and waits for those who are inside.
    pub(crate) fn shut(&self, door: Door) {
        let phase = match door {
            Door::Change => Phase::Closing,
            Door::Work => Phase::Settling,
        };
        let mut state = self.state.lock();
        self.phase.store(phase as u8, SeqCst);
        // One by one: a count that was zero once is then raised only by who leaves again at once.
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

    /// Lets all in.
    pub(crate) fn open(&self) {
        self.open_from(|_| true);
    }

    /// Lets all in, if it is frozen and no freeze is at work.
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

    /// No freeze begins any more. The caller holds [`Gate::single`].
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// How many changes are inside, roughly.
    #[cfg(test)]
    pub(crate) fn changes_inside(&self) -> u64 {
        self.inside[Door::Change as usize].iter().map(|lane| lane.0.load(SeqCst)).sum()
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
