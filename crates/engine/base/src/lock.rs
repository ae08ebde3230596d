//! Locks with ranks: a thread takes locks in ascending rank only. Debug builds assert this order.
//! Release builds do not track which locks a thread holds. In both, a thread that finds a lock
//! taken whose holder may wait for the device hands its other work over before it waits
//! ([`crate::wait`]).
//!
//! [`Rank::ALL`] defines the lock order. The table in `docs/ARCHITECTURE.md`, "Lock order", is
//! generated from it (`cargo xtask docs`).
//!
//! A thread may hold two locks of one rank only if it took them in ascending order of their `order`
//! keys; for the locks of an inode the key is the inode number. The latches of the tree have no
//! rank: a thread latches a parent before its children, and two children of a parent only under the
//! parent's latch.

use crate::machine::{self, Place, Step};
use crate::wait::about_to_wait;
use std::ops::{Deref, DerefMut};

macro_rules! ranks {
    ($($(#[doc = $guards:literal])+ $name:ident = $rank:literal $io:ident,)+) => {
        /// A position in the lock order; a thread takes the lower rank first.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Rank {
            $($(#[doc = $guards])+ $name = $rank,)+
        }

        impl Rank {
            /// All ranks, in the order in which a thread takes them.
            pub const ALL: &'static [Rank] = &[$(Rank::$name),+];

            /// Describes what the locks of this rank guard, for [`order_table`].
            pub const fn guards(self) -> &'static str {
                match self {
                    $(Rank::$name => concat!($($guards),+),)+
                }
            }

            /// Returns whether a thread may wait for the device while it holds a lock of this rank.
            pub const fn may_wait_for_io(self) -> bool {
                match self {
                    $(Rank::$name => ranks!(@$io),)+
                }
            }
        }
    };
    (@io) => { true };
    (@no_io) => { false };
}

ranks! {
    /// One freeze or thaw at a time, and the gate that stops changes while the file system is
    /// frozen.
    Freeze = 10 io,
    /// One checkpoint at a time.
    Checkpoint = 15 io,
    /// No lock, but a reservation of log space and tree nodes for which an operation waits or which
    /// it holds. The rank asserts that the operation waits without a lock that a checkpoint needs,
    /// and that with a reservation it waits neither for a checkpoint nor for a second reservation.
    LogReservation = 20 io,
    /// The shape of the directory tree during a rename between two directories.
    Rename = 30 io,
    /// An inode's contents: shared by reads, exclusive for writes and for changes of a directory's
    /// entries.
    InodeIo = 40 io,
    /// One writeback of an inode at a time.
    Writeback = 45 io,
    /// The reference counts of shared blocks, from the moment they are read until the record that
    /// changes them is committed.
    Counts = 47 io,
    /// An inode's pages.
    PageRange = 50 io,
    /// An inode's attributes, and the order of the records that touch it.
    InodeMeta = 60 io,
    /// The epoch guard: shared by commits, exclusive for the cut of a checkpoint. One lock for each
    /// stripe of threads.
    EpochGuard = 70 no_io,
    /// The trees of a forked image.
    Trees = 72 no_io,
    /// The counts of limits.
    Limits = 73 no_io,
    /// The index of log-resident data.
    Residents = 75 no_io,
    /// An allocation group. Order 0 is the refill of the pool of node slots, order `group + 1` the
    /// group itself.
    AllocGroup = 90 no_io,
    /// Records of a stripe of threads that no log write has taken yet.
    LogLane = 95 no_io,
    /// The state of the log.
    LogState = 100 no_io,
    /// The state of the shared device flush. Released while the flush runs.
    DeviceQueue = 110 no_io,
    /// Lists, tables and condition variables. A thread that holds such a lock takes only another of
    /// this rank, with a higher order.
    Leaf = 120 no_io,
}

/// Returns the lock order as the rows of a Markdown table.
pub fn order_table() -> String {
    let mut out = String::from("| rank | guards | may wait for the device |\n|---|---|---|\n");
    for rank in Rank::ALL {
        let io = if rank.may_wait_for_io() { "yes" } else { "no" };
        out += &format!("| `{rank:?}` | {} | {io} |\n", rank.guards().trim());
    }
    out
}

#[cfg(debug_assertions)]
mod held {
    use super::Rank;
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<(Rank, u64)>> = const { RefCell::new(Vec::new()) };
    }

    pub fn acquire(rank: Rank, order: u64) {
        HELD.with_borrow_mut(|held| {
            if let Some(&(top, top_order)) = held.iter().max() {
                assert!(
                    (top, top_order) < (rank, order),
                    "lock order: {rank:?}({order}) taken while holding {top:?}({top_order})"
                );
            }
            held.push((rank, order));
        });
    }

    pub fn release(rank: Rank, order: u64) {
        HELD.with_borrow_mut(|held| {
            let at =
                held.iter().rposition(|&h| h == (rank, order)).expect("released by the thread that acquired");
            held.remove(at);
        });
    }

    pub fn against_waiting(mut own: Option<Rank>) -> Option<Rank> {
        let counts = |rank: &Rank| !rank.may_wait_for_io() && own.take_if(|own| own == rank).is_none();
        HELD.with_borrow(|held| held.iter().rev().map(|(rank, _)| *rank).find(counts))
    }
}

#[cfg(not(debug_assertions))]
mod held {
    #[inline(always)]
    pub fn acquire(_: super::Rank, _: u64) {}
    #[inline(always)]
    pub fn release(_: super::Rank, _: u64) {}
    #[inline(always)]
    pub fn against_waiting(_: Option<super::Rank>) -> Option<super::Rank> {
        None
    }
}

/// In debug builds, ends a simulated run if the calling thread is about to wait for `what` while it
/// holds a lock whose rank forbids waiting. `own` is the rank of the one such lock that it may
/// hold.
fn accuse_of_waiting(what: &str, own: Option<Rank>) {
    machine::accuse(|| {
        let rank = held::against_waiting(own)?;
        Some(format!("a thread waits for {what} while it holds a lock of rank {rank:?}"))
    });
}

/// Called by a simulated device before it serves a request: the scheduler may switch threads here.
pub fn device_point(reads: bool) {
    // One thread may read while it holds the epoch guard: a commit that races with the first
    // eviction from a tree that was in memory as a whole ("Lock order" in docs/ARCHITECTURE.md).
    accuse_of_waiting("the device", reads.then_some(Rank::EpochGuard));
    machine::point(Step::Device);
}

/// A position in the lock order that a thread occupies without holding a lock, until the value is
/// dropped. The value stays on its thread.
#[derive(Debug)]
pub struct Entered {
    rank: Rank,
    not_send: std::marker::PhantomData<*const ()>,
}

/// Occupies the position of `rank` in the lock order: until the result is dropped, the thread may
/// take only locks of later ranks, and must not enter `rank` again.
pub fn enter(rank: Rank) -> Entered {
    held::acquire(rank, 0);
    Entered { rank, not_send: std::marker::PhantomData }
}

/// In debug builds, panics if the calling thread holds a lock of `rank` or of a later rank. Called
/// before a wait: threads that need such a lock would have to wait as well.
pub fn assert_may_wait(rank: Rank) {
    drop(enter(rank));
}

impl Drop for Entered {
    fn drop(&mut self) {
        held::release(self.rank, 0);
    }
}

/// A lock guard that also removes the lock's rank from the thread's list of held ranks when
/// dropped. The guard stays on its thread.
pub struct Ranked<G> {
    guard: Option<G>,
    place: Place,
    rank: Rank,
    order: u64,
}

impl<G> Drop for Ranked<G> {
    fn drop(&mut self) {
        machine::releasing(self.place);
        self.guard = None;
        held::release(self.rank, self.order);
        machine::released(self.place);
    }
}

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        self.guard.as_ref().expect("a guard lives until it is dropped")
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        self.guard.as_mut().expect("a guard lives until it is dropped")
    }
}

/// Takes a lock. If the lock is taken and its holder may wait for the device, the calling thread
/// hands its other work over ([`crate::wait`]) before it waits. The other ranks are held so briefly
/// that a handoff would cost more than the wait.
#[inline]
fn take_or_pass_on<G>(
    rank: Rank,
    place: Place,
    shared: bool,
    try_take: impl Fn() -> Option<G>,
    take: impl FnOnce() -> G,
) -> G {
    if let Some(guard) = machine::take(place, shared, &try_take) {
        return guard;
    }
    if !rank.may_wait_for_io() {
        return take();
    }
    try_take().unwrap_or_else(|| {
        about_to_wait();
        take()
    })
}

/// A [`parking_lot::Mutex`] with a rank.
#[derive(Debug)]
pub struct Mutex<T> {
    inner: parking_lot::Mutex<T>,
    rank: Rank,
    order: u64,
}

pub type MutexGuard<'a, T> = Ranked<parking_lot::MutexGuard<'a, T>>;

impl<T> Mutex<T> {
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { inner: parking_lot::Mutex::new(value), rank, order: 0 }
    }

    /// `order` is the key by which a thread must sort locks of this rank that it holds together.
    pub const fn with_order(rank: Rank, order: u64, value: T) -> Mutex<T> {
        Mutex { inner: parking_lot::Mutex::new(value), rank, order }
    }

    #[cfg_attr(feature = "simulated", track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        held::acquire(self.rank, self.order);
        let place = Place::of(&self.inner);
        let guard = take_or_pass_on(self.rank, place, false, || self.inner.try_lock(), || self.inner.lock());
        Ranked { guard: Some(guard), place, rank: self.rank, order: self.order }
    }

    /// Tries to take the lock without blocking, so a call against the lock order cannot deadlock.
    /// The rank is recorded as held only if the call respects the order.
    #[cfg_attr(feature = "simulated", track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        machine::point(Step::Lock);
        let guard = self.inner.try_lock()?;
        held::acquire(self.rank, self.order);
        let place = Place::of(&self.inner);
        Some(Ranked { guard: Some(guard), place, rank: self.rank, order: self.order })
    }

    /// Tries to take the lock without blocking and without recording the rank: for reading a value
    /// if no other thread holds the lock.
    pub fn try_lock_unranked(&self) -> Option<parking_lot::MutexGuard<'_, T>> {
        self.inner.try_lock()
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

/// A condition variable to use with [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    #[cfg_attr(feature = "simulated", track_caller)]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        about_to_wait();
        if self.wait_in_machine(guard, None).is_none() {
            self.0.wait(guard.guard.as_mut().expect("a guard lives until it is dropped"));
        }
    }

    /// Waits at most for `timeout`. Returns whether the wait timed out.
    #[cfg_attr(feature = "simulated", track_caller)]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: std::time::Duration) -> bool {
        about_to_wait();
        self.wait_in_machine(guard, Some(timeout)).unwrap_or_else(|| {
            let guard = guard.guard.as_mut().expect("a guard lives until it is dropped");
            self.0.wait_for(guard, timeout).timed_out()
        })
    }

    /// Waits through the simulated scheduler. Returns whether the wait timed out, or `None` if the
    /// calling thread belongs to no machine.
    #[cfg_attr(feature = "simulated", track_caller)]
    #[inline]
    fn wait_in_machine<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Option<std::time::Duration>,
    ) -> Option<bool> {
        accuse_of_waiting("another thread", Some(guard.rank));
        let inner = guard.guard.take().expect("a guard lives until it is dropped");
        let mutex = parking_lot::MutexGuard::mutex(&inner);
        match machine::wait(Place::of(&self.0), guard.place, inner, timeout, || mutex.try_lock()) {
            Ok((inner, late)) => {
                guard.guard = Some(inner);
                Some(late)
            }
            Err(inner) => {
                guard.guard = Some(inner);
                None
            }
        }
    }

    #[cfg_attr(feature = "simulated", track_caller)]
    pub fn notify_one(&self) {
        if !machine::notify(Place::of(&self.0), false) {
            self.0.notify_one();
        }
    }

    #[cfg_attr(feature = "simulated", track_caller)]
    pub fn notify_all(&self) {
        if !machine::notify(Place::of(&self.0), true) {
            self.0.notify_all();
        }
    }
}

/// A [`parking_lot::RwLock`] with a rank.
#[derive(Debug)]
pub struct RwLock<T> {
    inner: parking_lot::RwLock<T>,
    rank: Rank,
    order: u64,
}

pub type ReadGuard<'a, T> = Ranked<parking_lot::RwLockReadGuard<'a, T>>;
pub type WriteGuard<'a, T> = Ranked<parking_lot::RwLockWriteGuard<'a, T>>;

impl<T> RwLock<T> {
    pub const fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock { inner: parking_lot::RwLock::new(value), rank, order: 0 }
    }

    pub const fn with_order(rank: Rank, order: u64, value: T) -> RwLock<T> {
        RwLock { inner: parking_lot::RwLock::new(value), rank, order }
    }

    #[cfg_attr(feature = "simulated", track_caller)]
    pub fn read(&self) -> ReadGuard<'_, T> {
        held::acquire(self.rank, self.order);
        let place = Place::of(&self.inner);
        let guard = take_or_pass_on(self.rank, place, true, || self.inner.try_read(), || self.inner.read());
        Ranked { guard: Some(guard), place, rank: self.rank, order: self.order }
    }

    #[cfg_attr(feature = "simulated", track_caller)]
    pub fn write(&self) -> WriteGuard<'_, T> {
        held::acquire(self.rank, self.order);
        let place = Place::of(&self.inner);
        let guard =
            take_or_pass_on(self.rank, place, false, || self.inner.try_write(), || self.inner.write());
        Ranked { guard: Some(guard), place, rank: self.rank, order: self.order }
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
