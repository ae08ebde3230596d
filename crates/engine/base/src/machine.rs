//! The interface to a simulated scheduler: with the feature `simulated`, a [`Machine`] decides
//! which of its threads runs. Without the feature every function of this module is empty and its
//! types have no size, so a release build contains none of this code. Never enable the feature in a
//! program that keeps data.
//!
//! A thread started by [`crate::spawn_named`] belongs to the machine of the thread that started it.
//! A thread without a machine runs as usual, even in a build with the feature. Exactly one thread
//! of a machine runs at a time. Another thread can run only at a call of this module's functions;
//! locks, condition variables, atomic operations, sleeps and the ends of threads make these calls.
//!
//! The locks remain locks of the operating system. But a simulated thread never blocks in one: it
//! only tries the lock, and if the lock is taken, the machine suspends the thread ([`take`]).

use std::panic::Location;
use std::time::Duration;

/// What a thread is about to do, or has just done, when the scheduler may switch to another thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Step {
    /// The thread is about to take a lock.
    Lock,
    /// The thread has released a lock.
    Unlock,
    /// The thread is about to execute an atomic operation.
    Atomic,
    /// The thread has woken waiters of a condition variable.
    Notify,
    /// The thread is about to check again a value that another thread must change.
    Spin,
    /// The thread has started another thread.
    Spawn,
    /// The thread is about to make a request to a device.
    Device,
}

/// A scheduler. In all methods `me` is the number of the calling thread, which is the running
/// thread of the machine. A `place` is the address of the lock or condition variable on which
/// threads wait.
pub trait Machine: Send + Sync + 'static {
    /// May run other threads before it returns.
    fn step(&self, me: usize, what: Step);
    /// Suspends the calling thread until `place` is woken or virtual time reaches `until`. Returns
    /// whether `until` came first.
    fn wait(&self, me: usize, place: usize, until: Option<Duration>) -> bool;
    /// Makes one waiter of `place`, or all, runnable. The calling thread continues to run.
    fn wake(&self, place: usize, all: bool);
    /// Returns the virtual time.
    fn now(&self) -> Duration;
    /// Returns the virtual time as a wall clock shows it; it may advance in ticks.
    fn wall(&self) -> Duration {
        self.now()
    }
    /// Registers a new thread, which does not run yet, and returns its number.
    fn add(&self, name: &str) -> usize;
    /// Removes a thread registered by [`Machine::add`] that the operating system could not start.
    fn forget(&self, thread: usize);
    /// Called first by a new thread; returns when the scheduler runs the thread for the first time.
    fn enter(&self, me: usize);
    /// Called last by a thread that ends.
    fn leave(&self, me: usize);
    /// Suspends the calling thread until `thread` has ended.
    fn join(&self, me: usize, thread: usize);
    /// Ends the simulated run and reports the rule that the calling thread breaks.
    fn accuse(&self, me: usize, what: String);
    /// Reports the source location of the thread's next call into the machine.
    fn at(&self, _me: usize, _site: &'static Location<'static>) {}
    /// Called instead of [`Machine::step`] before the thread tries a lock.
    fn lock(&self, me: usize, _place: usize) {
        self.step(me, Step::Lock);
    }
    /// Called instead of [`Machine::step`] before an atomic operation on `_address`.
    fn touch(&self, me: usize, _address: usize, _writes: bool) {
        self.step(me, Step::Atomic);
    }
    /// Suspends the thread, which found the lock taken, until the lock may be free.
    fn blocked(&self, me: usize, place: usize, _shared: bool) {
        self.wait(me, place, None);
    }
    /// Called while the thread still holds the lock, which it releases as soon as this returns.
    fn releasing(&self, _me: usize, _place: usize) {}
    /// Called when the thread has released the lock. The calling thread continues to run.
    fn freed(&self, _me: usize, place: usize) {
        self.wake(place, true);
    }
    /// Adds a value to the trace of the run. Two runs with equal traces took the same course.
    fn note(&self, value: u64);
    /// Returns the run's value of the type `key`, which `make` creates at the first call. It
    /// replaces a static of the process.
    fn own(
        &self,
        key: std::any::TypeId,
        make: &mut dyn FnMut() -> &'static (dyn std::any::Any + Send + Sync),
    ) -> &'static (dyn std::any::Any + Send + Sync);
}

#[cfg(feature = "simulated")]
pub use on::*;

#[cfg(feature = "simulated")]
mod on {
    use super::{Machine, Step};
    use std::any::{Any, TypeId};
    use std::cell::RefCell;
    use std::panic::Location;
    use std::sync::Arc;
    use std::time::Duration;

    /// The identity of a simulated thread: its machine and its number there.
    #[derive(Clone)]
    pub struct Seat {
        pub machine: Arc<dyn Machine>,
        pub thread: usize,
    }

    thread_local! {
        static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
    }

    /// Returns the calling thread's seat. Returns `None` without a machine, and while the thread's
    /// local storage is torn down, when the thread has already left its machine.
    pub fn seat() -> Option<Seat> {
        SEAT.try_with(|seat| seat.borrow().clone()).ok().flatten()
    }

    /// Assigns the calling thread to a machine, or with `None` to no machine.
    pub fn sit(seat: Option<Seat>) {
        SEAT.set(seat);
    }

    /// An object on which threads wait: its address, and the source location that named it.
    #[derive(Clone, Copy, Debug)]
    pub struct Place(usize, &'static Location<'static>);

    impl Place {
        #[track_caller]
        pub fn of<T: ?Sized>(thing: &T) -> Place {
            Place(address(thing), Location::caller())
        }
    }

    fn address<T: ?Sized>(thing: &T) -> usize {
        std::ptr::from_ref(thing).cast::<()>().addr()
    }

    /// Does what [`point`] does, before an atomic operation on `thing`.
    #[track_caller]
    pub fn touch<T>(thing: &T, writes: bool) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.at(thread, Location::caller());
            machine.touch(thread, address(thing), writes);
        }
    }

    /// Lets the scheduler switch to another thread.
    #[track_caller]
    pub fn point(what: Step) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.at(thread, Location::caller());
            machine.step(thread, what);
        }
    }

    /// Ends the simulated run if `what` returns the description of a broken rule.
    pub fn accuse(what: impl FnOnce() -> Option<String>) {
        if let Some(Seat { machine, thread }) = seat()
            && let Some(what) = what()
        {
            machine.accuse(thread, what);
        }
    }

    /// Does what [`point`] does, for a thread that is about to check again a value that another
    /// thread must change. Returns `false` if the thread belongs to no machine.
    #[track_caller]
    pub fn spin() -> bool {
        let simulated = seat();
        if let Some(Seat { machine, thread }) = &simulated {
            machine.at(*thread, Location::caller());
            machine.step(*thread, Step::Spin);
        }
        simulated.is_some()
    }

    /// Takes the lock at `place` as soon as `try_take` succeeds. Returns `None` if the thread
    /// belongs to no machine and must block in the lock itself.
    pub fn take<G>(place: Place, shared: bool, mut try_take: impl FnMut() -> Option<G>) -> Option<G> {
        locking(place);
        seat()?;
        try_take().or_else(|| take_later(place, shared, try_take))
    }

    /// Called before the calling thread tries the lock at `place`.
    pub fn locking(place: Place) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.at(thread, place.1);
            machine.lock(thread, place.0);
        }
    }

    /// Does what [`take`] does, for a lock that was just found taken.
    pub fn take_later<G>(place: Place, shared: bool, mut try_take: impl FnMut() -> Option<G>) -> Option<G> {
        let Seat { machine, thread } = seat()?;
        loop {
            machine.blocked(thread, place.0, shared);
            if let Some(guard) = try_take() {
                return Some(guard);
            }
        }
    }

    /// Called before the calling thread releases the lock at `place`, which it holds.
    pub fn releasing(place: Place) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.at(thread, place.1);
            machine.releasing(thread, place.0);
        }
    }

    /// Called after the lock at `place` has been released.
    pub fn released(place: Place) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.freed(thread, place.0);
            machine.step(thread, Step::Unlock);
        }
    }

    /// Releases the lock at `lock` by dropping `guard` and waits for the condition variable, in one
    /// atomic step; then takes the lock again. Returns whether the wait timed out, or `Err(guard)`
    /// if the thread belongs to no machine.
    pub fn wait<G>(
        condition: Place,
        lock: Place,
        guard: G,
        timeout: Option<Duration>,
        mut try_take: impl FnMut() -> Option<G>,
    ) -> Result<(G, bool), G> {
        let Some(Seat { machine, thread }) = seat() else { return Err(guard) };
        let until = timeout.map(|time| machine.now().saturating_add(time));
        machine.at(thread, condition.1);
        machine.releasing(thread, lock.0);
        drop(guard);
        machine.freed(thread, lock.0);
        let late = machine.wait(thread, condition.0, until);
        let taken = try_take().or_else(|| take_later(lock, false, try_take));
        Ok((taken.expect("a thread stays in its machine"), late))
    }

    /// Wakes one or all waiters of the condition variable. Returns `false` if the thread belongs to
    /// no machine.
    pub fn notify(condition: Place, all: bool) -> bool {
        let simulated = seat();
        if let Some(Seat { machine, thread }) = &simulated {
            machine.at(*thread, condition.1);
            machine.wake(condition.0, all);
            machine.step(*thread, Step::Notify);
        }
        simulated.is_some()
    }

    /// Returns the virtual time, or `None` without a machine.
    pub fn now() -> Option<Duration> {
        seat().map(|seat| seat.machine.now())
    }

    /// Returns the virtual time of wall clocks, or `None` without a machine.
    pub fn wall() -> Option<Duration> {
        seat().map(|seat| seat.machine.wall())
    }

    /// Lets virtual time pass. Returns `false` if the thread belongs to no machine.
    #[track_caller]
    pub fn sleep(time: Duration) -> bool {
        let Some(Seat { machine, thread }) = seat() else { return false };
        machine.at(thread, Location::caller());
        let until = machine.now().saturating_add(time);
        // No thread wakes the place with address 0, so only the time ends the wait.
        while !machine.wait(thread, 0, Some(until)) {}
        true
    }

    /// Returns the thread's number in its machine, or `None` without a machine.
    pub fn thread_number() -> Option<usize> {
        seat().map(|seat| seat.thread)
    }

    /// Adds a value to the trace of the run.
    pub fn note(value: u64) {
        if let Some(seat) = seat() {
            seat.machine.note(value);
        }
    }

    /// Returns the simulated run's own instance of what is otherwise a static of the process; the
    /// first call creates it. It is never freed, because its users expect a `'static` value.
    /// Returns `None` without a machine.
    pub fn own<T: Any + Send + Sync>(make: fn() -> T) -> Option<&'static T> {
        let seat = seat()?;
        let mut leaked = || -> &'static (dyn Any + Send + Sync) { Box::leak(Box::new(make())) };
        seat.machine.own(TypeId::of::<T>(), &mut leaked).downcast_ref()
    }
}

#[cfg(not(feature = "simulated"))]
pub use off::*;

/// Empty versions of the functions, for builds without the feature.
#[cfg(not(feature = "simulated"))]
mod off {
    use super::Step;
    use std::time::Duration;

    #[derive(Clone, Copy, Debug)]
    pub struct Place;
    const _: () = assert!(size_of::<Place>() == 0, "lock guards contain a Place, which must take no space");

    impl Place {
        #[inline(always)]
        pub const fn of<T: ?Sized>(_: &T) -> Place {
            Place
        }
    }

    #[inline(always)]
    pub const fn point(_: Step) {}

    #[inline(always)]
    pub fn accuse(_: impl FnOnce() -> Option<String>) {}

    #[inline(always)]
    pub const fn spin() -> bool {
        false
    }

    #[inline(always)]
    pub const fn touch<T>(_: &T, _: bool) {}

    #[inline(always)]
    pub const fn locking(_: Place) {}

    #[inline(always)]
    pub const fn releasing(_: Place) {}

    #[inline(always)]
    pub fn take_later<G>(_: Place, _: bool, _: impl FnMut() -> Option<G>) -> Option<G> {
        None
    }

    #[inline(always)]
    pub fn take<G>(_: Place, _: bool, _: impl FnMut() -> Option<G>) -> Option<G> {
        None
    }

    #[inline(always)]
    pub const fn released(_: Place) {}

    #[inline(always)]
    pub fn wait<G>(
        _: Place,
        _: Place,
        guard: G,
        _: Option<Duration>,
        _: impl FnMut() -> Option<G>,
    ) -> Result<(G, bool), G> {
        Err(guard)
    }

    #[inline(always)]
    pub const fn notify(_: Place, _: bool) -> bool {
        false
    }

    #[inline(always)]
    pub const fn now() -> Option<Duration> {
        None
    }

    #[inline(always)]
    pub const fn wall() -> Option<Duration> {
        None
    }

    #[inline(always)]
    pub const fn sleep(_: Duration) -> bool {
        false
    }

    #[inline(always)]
    pub const fn thread_number() -> Option<usize> {
        None
    }

    #[inline(always)]
    pub const fn note(_: u64) {}

    #[inline(always)]
    pub fn own<T>(_: fn() -> T) -> Option<&'static T> {
        None
    }
}
