//! The flusher threads, shared by all file systems of the process: they make changes durable that
//! no caller has synced.
//!
//! A *member* is an open file system. It is due when its commit interval is over, or when it was
//! woken because too much is dirty. A worker thread then runs one *turn* of it ([`Flushed::turn`]).
//! Threads wait for the end of intervals in real time. The work of a turn, and the wait until the
//! next one, are determined by the member's own clock.
//!
//! # Scheduling
//! 1. At most [`AT_WORK_MAX`] members have a turn at the same time. The other due members wait, in
//!    the order in which they became due. More turns would only take processors and bandwidth from
//!    threads that wait for an fsync.
//! 2. A worker whose turn takes longer than [`HANGING`] counts as *hanging*: its device may never
//!    complete a request. The worker no longer counts for rule 1. So a member waits at most
//!    [`HANGING`] for each [`AT_WORK_MAX`] members that were due before it, and a device that hangs
//!    holds up no other member.
//! 3. One idle worker is kept while any member has none assigned. It is started when the last idle
//!    worker takes a turn, not when that turn hangs: by then no thread would be left to detect it.
//!    A single member needs one thread.
//! 4. By rules 1 to 3 there is at most one thread for each hanging worker, and three more. When
//!    hanging workers return, those above three end at once. An idle worker that rule 3 does not
//!    need ends after [`LINGER`].
//! 5. At most one worker is assigned to a member at a time.
//!
//! If the system cannot create a thread for rule 3, opening a file system fails. A turn runs
//! nevertheless, and the next turn or wake-up tries again.
//!
//! # Lifetimes
//! The pool has a weak reference to a file system, and a strong one only during a turn. A thread
//! that closes the file system does not wait for the turn, but no later turn begins. A panic in a
//! turn removes only this member from the pool, since the worker also serves the others. If the
//! user drops a file system during a turn, the worker drops the last reference, as part of the
//! turn, so that this drop may hang as well.

use kedge_base::atomic::{AtomicBool, Ordering};
use kedge_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use kedge_base::{Clock, SystemClock, machine, spawn_named};
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

/// The most turns at the same time, not counting those that hang. Two, because while one waits for
/// its device, another can use the processor and other devices.
const AT_WORK_MAX: usize = 2;
/// The most threads that do not hang: those with turns, and one idle worker.
const THREADS_MAX: usize = AT_WORK_MAX + 1;
/// A turn that takes longer counts as hanging. Far above what a healthy device takes for a flush,
/// far below a commit interval.
const HANGING: Duration = Duration::from_millis(200);
/// How long an idle worker that is not needed stays. Starting one for each of many successive
/// passes would cost more.
const LINGER: Duration = Duration::from_secs(1);
/// Name of the threads. The system shows 15 characters.
const NAME: &str = "kedge-flusher";

/// What a flusher thread calls for an open file system.
pub(crate) trait Flushed: Send + Sync {
    /// Runs one turn. `over`: the commit interval is over; otherwise the member was woken. `last`:
    /// start of the last periodic turn, on the member's clock. Returns the time until the next
    /// periodic turn.
    fn turn(&self, last: &mut Duration, over: bool) -> Duration;

    /// Called after a panic in a turn, with its message. No further turn follows.
    fn panicked(&self, words: &str);
}

/// The pool of the process.
static FLUSHERS: LazyLock<Flushers> = LazyLock::new(|| Flushers::new(spawn, HANGING));

fn spawn(pool: &'static Flushers) -> io::Result<()> {
    spawn_named(NAME, || pool.work()).map(drop)
}

/// A pool of flusher threads; see the module's head.
pub(crate) struct Flushers {
    clock: SystemClock,
    state: Mutex<State>,
    /// Signalled when idle workers must check whether a member is due.
    changed: Condvar,
    spawn: fn(&'static Flushers) -> io::Result<()>,
    hanging: Duration,
}

#[derive(Default)]
struct State {
    next_id: u64,
    members: BTreeMap<u64, Entry>,
    /// Number of workers without a turn, including those that are starting.
    free: usize,
    /// Start of each running turn, by member. Closed members are included.
    turns: BTreeMap<u64, Duration>,
}

struct Entry {
    member: Arc<Member>,
    target: Weak<dyn Flushed>,
    /// Start of the last periodic turn, on the member's clock.
    last: Duration,
    /// End of the commit interval, on the pool's clock.
    deadline: Duration,
    woken: Option<Duration>,
    busy: bool,
}

impl Entry {
    fn due(&self) -> Duration {
        self.woken.map_or(self.deadline, |woken| woken.min(self.deadline))
    }
}

/// A file system's membership in the pool.
pub(crate) struct Member {
    pool: &'static Flushers,
    id: u64,
    /// Set from a wake-up to the start of the next turn. A writer that finds it set need not take
    /// the pool's lock, which all file systems share.
    asked: AtomicBool,
}

/// One turn of a file system. A worker runs it without the pool's lock.
struct Turn {
    id: u64,
    target: Weak<dyn Flushed>,
    last: Duration,
    over: bool,
}

/// The next action of an idle worker.
enum Next {
    Take(u64),
    /// Wait until that time on the pool's clock; `None`: until a signal.
    Wait(Option<Duration>),
}

impl Member {
    /// Makes a member of the pool of the process, or of that of a simulated machine.
    pub(crate) fn new() -> Arc<Member> {
        let own = machine::own(|| Flushers::new(spawn, HANGING));
        own.unwrap_or_else(|| &FLUSHERS).member()
    }

    /// Adds the member to the pool. Its first interval starts at `now`, on the member's clock.
    pub(crate) fn join(
        self: &Arc<Self>,
        target: Weak<dyn Flushed>,
        now: Duration,
        interval: Duration,
    ) -> io::Result<()> {
        let mut state = self.pool.state.lock();
        let real = self.pool.clock.monotonic();
        let entry = Entry {
            member: self.clone(),
            target,
            last: now,
            deadline: real.saturating_add(interval),
            // A wake-up before the member joined counts too.
            woken: self.asked.load(Ordering::Acquire).then_some(real),
            busy: false,
        };
        state.members.insert(self.id, entry);
        if state.free > 0 {
            self.pool.changed.notify_one();
            return Ok(());
        }
        let started = self.pool.start(&mut state);
        if started.is_err() {
            state.members.remove(&self.id);
        }
        started
    }

    /// Removes the member from the pool, so that no further turn begins. Does not wait for a
    /// running turn.
    pub(crate) fn leave(&self) {
        if self.pool.state.lock().members.remove(&self.id).is_some() {
            // Fewer workers may be needed, which idle ones must check.
            self.pool.changed.notify_all();
        }
    }

    /// Requests a turn.
    pub(crate) fn wake(&self) {
        if self.asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.pool.state.lock();
        let now = self.pool.clock.monotonic();
        let Some(entry) = state.members.get_mut(&self.id) else { return };
        entry.woken.get_or_insert(now);
        if state.free > 0 {
            self.pool.changed.notify_one();
        } else {
            let started = self.pool.start_if_needed(&mut state);
            drop(state);
            warn_of(started);
        }
    }
}

impl State {
    /// Whether some member has no worker assigned, so that an idle worker must be kept.
    fn unattended(&self) -> bool {
        self.members.values().any(|m| !m.busy)
    }

    /// For each turn that does not hang yet, the time from which on it hangs.
    fn at_work(&self, now: Duration, hanging: Duration) -> impl Iterator<Item = Duration> {
        self.turns.values().map(move |since| *since + hanging).filter(move |hangs| *hangs > now)
    }

    fn next(&self, now: Duration, hanging: Duration) -> Next {
        let waiting = self.members.iter().filter(|(_, m)| !m.busy);
        let Some((due, id)) = waiting.map(|(id, m)| (m.due(), *id)).min() else { return Next::Wait(None) };
        if due > now {
            Next::Wait(Some(due))
        } else if self.at_work(now, hanging).count() < AT_WORK_MAX {
            Next::Take(id)
        } else {
            Next::Wait(self.at_work(now, hanging).min())
        }
    }

    fn begin(&mut self, id: u64, now: Duration) -> Turn {
        self.free -= 1;
        self.turns.insert(id, now);
        let entry = self.members.get_mut(&id).expect("chosen from the members under the same lock");
        entry.busy = true;
        entry.woken = None;
        // Synchronizes with the threads that woke the member: they rely on this turn to see their
        // stores.
        entry.member.asked.swap(false, Ordering::AcqRel);
        Turn { id, target: entry.target.clone(), last: entry.last, over: entry.deadline <= now }
    }

    /// Ends a turn. `left`: time until the next periodic turn; `None` if the member gets no further
    /// turn.
    fn end(&mut self, turn: &Turn, left: Option<Duration>, now: Duration) {
        self.free += 1;
        self.turns.remove(&turn.id);
        match (left, self.members.get_mut(&turn.id)) {
            (Some(left), Some(entry)) => {
                entry.busy = false;
                entry.last = turn.last;
                entry.deadline = now.saturating_add(left);
            }
            (None, Some(_)) => drop(self.members.remove(&turn.id)),
            (_, None) => {}
        }
    }
}

impl Flushers {
    fn new(spawn: fn(&'static Flushers) -> io::Result<()>, hanging: Duration) -> Flushers {
        Flushers {
            clock: SystemClock::default(),
            state: Mutex::new(Rank::Leaf, State::default()),
            changed: Condvar::new(),
            spawn,
            hanging,
        }
    }

    fn member(&'static self) -> Arc<Member> {
        let mut state = self.state.lock();
        state.next_id += 1;
        Arc::new(Member { pool: self, id: state.next_id, asked: AtomicBool::new(false) })
    }

    /// Starts a worker. Called with the lock held, so that no member relies on a worker that then
    /// cannot be started.
    fn start(&'static self, state: &mut State) -> io::Result<()> {
        (self.spawn)(self)?;
        state.free += 1;
        Ok(())
    }

    /// Starts an idle worker if rule 3 requires one.
    fn start_if_needed(&'static self, state: &mut State) -> io::Result<()> {
        if state.free == 0 && state.unattended() { self.start(state) } else { Ok(()) }
    }

    /// The body of a worker thread.
    fn work(&'static self) {
        let mut state = self.state.lock();
        let mut idle_since = self.clock.monotonic();
        loop {
            let now = self.clock.monotonic();
            let until = match state.next(now, self.hanging) {
                Next::Take(id) => {
                    state = self.take(state, id, now);
                    idle_since = self.clock.monotonic();
                    // Ends this worker if rule 4 requires it.
                    if state.at_work(idle_since, self.hanging).count() + state.free > THREADS_MAX {
                        break;
                    }
                    continue;
                }
                Next::Wait(until) => until,
            };
            let needed = state.free == 1 && state.unattended();
            let leave = idle_since + LINGER;
            if !needed && leave <= now {
                break;
            }
            let until = if needed { until } else { Some(until.map_or(leave, |until| until.min(leave))) };
            match until {
                Some(until) => drop(self.changed.wait_for(&mut state, until.saturating_sub(now))),
                None => self.changed.wait(&mut state),
            }
        }
        state.free -= 1;
        // This worker no longer waits for deadlines, so another one must.
        self.changed.notify_all();
    }

    /// Runs a turn of the member.
    fn take<'a>(
        &'static self,
        mut state: MutexGuard<'a, State>,
        id: u64,
        now: Duration,
    ) -> MutexGuard<'a, State> {
        let mut turn = state.begin(id, now);
        let started = self.start_if_needed(&mut state);
        if state.free > 0 {
            // This worker no longer waits for deadlines, so another one must.
            self.changed.notify_all();
        }
        drop(state);
        warn_of(started);
        let left = carry_out(&mut turn);
        let mut state = self.state.lock();
        state.end(&turn, left, self.clock.monotonic());
        state
    }
}

fn warn_of(started: io::Result<()>) {
    if let Err(e) = started {
        tracing::warn!("no further flusher thread: {e}");
    }
}

/// Runs a turn. Returns the time until the next periodic turn; `None` if the file system was
/// dropped or the turn has panicked.
fn carry_out(turn: &mut Turn) -> Option<Duration> {
    // Unwind safe: after a panic only `panicked`, which shuts the file system down, touches the
    // member's state; its locks were released by the unwinding. That call, and dropping the last
    // reference to the file system, may panic too, hence the outer `catch_unwind`.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let target = turn.target.upgrade()?;
        match catch_unwind(AssertUnwindSafe(|| target.turn(&mut turn.last, turn.over))) {
            Ok(left) => Some(left),
            Err(panic) => {
                target.panicked(words_of(&*panic));
                None
            }
        }
    }));
    outcome.unwrap_or_else(|panic| {
        tracing::error!("a file system's end panicked: {}", words_of(&*panic));
        None
    })
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

#[cfg(test)]
#[path = "flushers_tests.rs"]
mod tests;
