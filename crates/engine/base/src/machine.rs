//! The seam to simulated processors: with the feature `simulated`, a [`Machine`] decides which of
//! its threads runs. Without the feature every function here is empty and no type has a size, so a
//! release contains nothing of it. Never enable the feature in a program that keeps data.
//!
//! A thread belongs to the machine that started it ([`crate::spawn_named`] inherits it); a thread
//! without a machine runs as usual, also in a build with the feature. Exactly one thread of a
//! machine runs at a time. It gives its turn away only in the functions of this module: locks,
//! condition variables, atomic operations, sleeps and the ends of threads call them.
//!
//! A lock stays the lock of the operating system. A simulated thread never waits inside of it: it
//! tries, and the machine makes it wait when the lock is taken ([`take`]).

use std::panic::Location;
use std::time::Duration;

/// What a thread is about to do when it may lose its turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Step {
    /// Takes a lock.
    Lock,
    /// Has released a lock.
    Unlock,
    /// An atomic operation.
    Atomic,
    /// Has woken waiters of a condition variable.
    Notify,
    /// Looks again at what another thread must change.
    Spin,
    /// Has started a thread.
    Spawn,
    /// A request of a device.
    Device,
}

/// A scheduler. `me` is the number of the calling thread, which has the turn.
pub trait Machine: Send + Sync + 'static {
    /// Another thread may run before this returns.
    fn step(&self, me: usize, what: Step);
    /// Gives the turn away until the place is woken, or until that time. Returns whether the time
    /// came first.
    fn wait(&self, me: usize, place: usize, until: Option<Duration>) -> bool;
    /// Lets one thread, or all, that wait for the place run again. The caller keeps the turn.
    fn wake(&self, place: usize, all: bool);
    /// Virtual time.
    fn now(&self) -> Duration;
    /// Virtual time as wall clocks show it, which may advance in ticks.
    fn wall(&self) -> Duration {
        self.now()
    }
    /// A new thread, which waits for its turn: its number.
    fn add(&self, name: &str) -> usize;
    /// The new thread could not be started.
    fn forget(&self, thread: usize);
    /// Called by the new thread: returns when it has its first turn.
    fn enter(&self, me: usize);
    /// Called at the end of the thread.
    fn leave(&self, me: usize);
    /// Gives the turn away until that thread has ended.
    fn join(&self, me: usize, thread: usize);
    /// Ends the run: the thread breaks a rule.
    fn accuse(&self, me: usize, what: String);
    /// The next call of the thread comes from this place of the source.
    fn at(&self, _me: usize, _site: &'static Location<'static>) {}
    /// [`Machine::step`] before a lock is tried.
    fn lock(&self, me: usize, _place: usize) {
        self.step(me, Step::Lock);
    }
    /// [`Machine::step`] before an atomic operation on that address.
    fn touch(&self, me: usize, _address: usize, _writes: bool) {
        self.step(me, Step::Atomic);
    }
    /// The thread found the lock taken: gives the turn away until the lock may be free.
    fn blocked(&self, me: usize, place: usize, _shared: bool) {
        self.wait(me, place, None);
    }
    /// The thread still holds the lock, and releases it as soon as this returns.
    fn releasing(&self, _me: usize, _place: usize) {}
    /// The thread has released the lock. It keeps the turn.
    fn freed(&self, _me: usize, place: usize) {
        self.wake(place, true);
    }
    /// Adds to the trace of the run, which shows whether two runs are the same.
    fn note(&self, value: u64);
    /// A value of the run, instead of one of the process: by its type.
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

    /// A thread of a machine.
    #[derive(Clone)]
    pub struct Seat {
        pub machine: Arc<dyn Machine>,
        pub thread: usize,
    }

    thread_local! {
        static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
    }

    /// The calling thread's place in a machine. `None` also while the thread's storage is torn
    /// down, when it has left its machine.
    pub fn seat() -> Option<Seat> {
        SEAT.try_with(|seat| seat.borrow().clone()).ok().flatten()
    }

    /// Makes the calling thread one of a machine, or of none.
    pub fn sit(seat: Option<Seat>) {
        SEAT.set(seat);
    }

    /// What threads wait for: an address, and where it was named in the source.
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

    /// [`point`] before an atomic operation.
    #[track_caller]
    pub fn touch<T>(thing: &T, writes: bool) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.at(thread, Location::caller());
            machine.touch(thread, address(thing), writes);
        }
    }

    /// The thread may lose its turn here.
    #[track_caller]
    pub fn point(what: Step) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.at(thread, Location::caller());
            machine.step(thread, what);
        }
    }

    /// Ends the run if the thread breaks a rule: `what` then says which.
    pub fn accuse(what: impl FnOnce() -> Option<String>) {
        if let Some(Seat { machine, thread }) = seat()
            && let Some(what) = what()
        {
            machine.accuse(thread, what);
        }
    }

    /// [`point`] of a thread that looks again at what another thread must change. `false`: the
    /// thread belongs to no machine.
    #[track_caller]
    pub fn spin() -> bool {
        let simulated = seat();
        if let Some(Seat { machine, thread }) = &simulated {
            machine.at(*thread, Location::caller());
            machine.step(*thread, Step::Spin);
        }
        simulated.is_some()
    }

    /// Takes the lock at the place as soon as `try_take` succeeds. `None`: the thread belongs to no
    /// machine, and has to wait in the lock.
    pub fn take<G>(place: Place, shared: bool, mut try_take: impl FnMut() -> Option<G>) -> Option<G> {
        locking(place);
        seat()?;
        try_take().or_else(|| take_later(place, shared, try_take))
    }

    /// The calling thread is about to try the lock at the place.
    pub fn locking(place: Place) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.at(thread, place.1);
            machine.lock(thread, place.0);
        }
    }

    /// [`take`] of a lock that was just found taken.
    pub fn take_later<G>(place: Place, shared: bool, mut try_take: impl FnMut() -> Option<G>) -> Option<G> {
        let Seat { machine, thread } = seat()?;
        loop {
            machine.blocked(thread, place.0, shared);
            if let Some(guard) = try_take() {
                return Some(guard);
            }
        }
    }

    /// The calling thread holds the lock at the place and is about to release it.
    pub fn releasing(place: Place) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.at(thread, place.1);
            machine.releasing(thread, place.0);
        }
    }

    /// The lock at the place has been released.
    pub fn released(place: Place) {
        if let Some(Seat { machine, thread }) = seat() {
            machine.freed(thread, place.0);
            machine.step(thread, Step::Unlock);
        }
    }

    /// Releases the lock at `lock` by dropping `guard` and waits for the condition variable, in one
    /// step; then takes the lock again. Returns whether the time came first. `Err(guard)`: the
    /// thread belongs to no machine.
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

    /// Wakes waiters of the condition variable. `false`: the thread belongs to no machine.
    pub fn notify(condition: Place, all: bool) -> bool {
        let simulated = seat();
        if let Some(Seat { machine, thread }) = &simulated {
            machine.at(*thread, condition.1);
            machine.wake(condition.0, all);
            machine.step(*thread, Step::Notify);
        }
        simulated.is_some()
    }

    /// Virtual time; `None` without a machine.
    pub fn now() -> Option<Duration> {
        seat().map(|seat| seat.machine.now())
    }

    /// The virtual time of wall clocks; `None` without a machine.
    pub fn wall() -> Option<Duration> {
        seat().map(|seat| seat.machine.wall())
    }

    /// Lets virtual time pass. `false`: the thread belongs to no machine.
    #[track_caller]
    pub fn sleep(time: Duration) -> bool {
        let Some(Seat { machine, thread }) = seat() else { return false };
        machine.at(thread, Location::caller());
        let until = machine.now().saturating_add(time);
        // No thread wakes a place at address 0.
        while !machine.wait(thread, 0, Some(until)) {}
        true
    }

    /// The number of the thread in its machine; `None` without one.
    pub fn thread_number() -> Option<usize> {
        seat().map(|seat| seat.thread)
    }

    /// Adds to the trace of the run.
    pub fn note(value: u64) {
        if let Some(seat) = seat() {
            seat.machine.note(value);
        }
    }

    /// A value that belongs to the run, where a process has one for all: made at the first call. It
    /// is never freed, because its users have it for the time of the process. `None` without a
    /// machine.
    pub fn own<T: Any + Send + Sync>(make: fn() -> T) -> Option<&'static T> {
        let seat = seat()?;
        let mut leaked = || -> &'static (dyn Any + Send + Sync) { Box::leak(Box::new(make())) };
        seat.machine.own(TypeId::of::<T>(), &mut leaked).downcast_ref()
    }
}

#[cfg(not(feature = "simulated"))]
pub use off::*;

/// Nothing: the feature is off.
#[cfg(not(feature = "simulated"))]
mod off {
    use super::Step;
    use std::time::Duration;

    #[derive(Clone, Copy, Debug)]
    pub struct Place;
    const _: () = assert!(size_of::<Place>() == 0, "guards of locks keep one");

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
