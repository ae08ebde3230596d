//! The flusher threads, which all file systems of the process share: they make work durable which
//! nobody asked to sync.
//!
//! A *member* is an open file system. It is due when its commit interval is over, or when it was
//! woken because too much is dirty; then a worker thread gives it one *turn* ([`Flushed::turn`]).
//! Intervals are waited for in real time; what a turn does, and how long the next wait is, the
//! member says by its own clock.
//!
//! # Who works when
//! 1. At most [`AT_WORK_MAX`] members have a turn side by side; the others that are due wait, and
//!    who was due first goes first. More would only take processors and bandwidth from those whose
//!    fsyncs wait.
//! 2. A worker whose turn takes longer than [`HANGING`] counts as *hanging*: its device may never
//!    answer. It is not one of those of rule 1. So a member waits at most [`HANGING`] for each
//!    [`AT_WORK_MAX`] members that were due before it, and a device that hangs holds up nobody
//!    else.
//! 3. While a member has nobody at it, a worker waits that can take it. It is started when the last
//!    one that was free takes a turn, not when the turn hangs: then nobody would be there to
//!    notice. A single member needs one thread.
//! 4. By 1 to 3 there is at most one thread for each worker that hangs, and three. When those that
//!    hung come back, what is above three ends at once; who is free and not needed by rule 3 ends
//!    after [`LINGER`].
//! 5. Only one worker is at a member at a time.
//!
//! If the system gives no thread for rule 3, opening a file system fails; a turn is given all the
//! same, and the next turn or wake-up tries anew.
//!
//! # Lives
//! The pool knows a file system weakly and holds it only during a turn. Whoever closes it does not
//! wait for the turn, but no later one begins. A panic in a turn ends this member alone: the worker
//! is the others' too. A file system dropped by its user during a turn is dropped by the worker, as
//! part of the turn: that may hang as well.

use kedge_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use kedge_base::{Clock, SystemClock, spawn_named};
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

/// Members that have a turn side by side, without those that hang: one that waits for its device
/// leaves the processor and other devices to a second one.
const AT_WORK_MAX: usize = 2;
/// These and one that waits.
const THREADS_MAX: usize = AT_WORK_MAX + 1;
/// Far above what a healthy device takes for a flush, far below a commit interval.
const HANGING: Duration = Duration::from_millis(200);
/// How long a worker that is not needed stays: a new one for each pass of a flood would cost more.
const LINGER: Duration = Duration::from_secs(1);
/// The system shows 15 characters.
const NAME: &str = "kedge-flusher";

/// What the threads do for an open file system.
pub(crate) trait Flushed: Send + Sync {
    /// Writes back. `over`: the interval is over; else somebody woke us. `last`: when, on the
    /// member's clock, the last periodic turn began. Answers how long the wait for the next one is.
    fn turn(&self, last: &mut Duration, over: bool) -> Duration;

    /// A turn panicked with these words; there will be no more.
    fn panicked(&self, words: &str);
}

/// The pool of the process.
static FLUSHERS: LazyLock<Flushers> = LazyLock::new(|| Flushers::new(spawn, HANGING));

fn spawn(pool: &'static Flushers) -> io::Result<()> {
    spawn_named(NAME, || pool.work()).map(drop)
}

/// See the module.
pub(crate) struct Flushers {
    clock: SystemClock,
    state: Mutex<State>,
    /// A free worker has to look anew.
    changed: Condvar,
    spawn: fn(&'static Flushers) -> io::Result<()>,
    hanging: Duration,
}

#[derive(Default)]
struct State {
    next_id: u64,
    members: BTreeMap<u64, Entry>,
    /// Workers that have no turn, also those that are just starting.
    free: usize,
    /// Members that have a turn, closed ones too, and since when.
    turns: BTreeMap<u64, Duration>,
}

struct Entry {
    member: Arc<Member>,
    target: Weak<dyn Flushed>,
    /// On the member's clock.
    last: Duration,
    /// On the pool's clock: the end of the interval.
    deadline: Duration,
    woken: Option<Duration>,
    busy: bool,
}

impl Entry {
    fn due(&self) -> Duration {
        self.woken.map_or(self.deadline, |woken| woken.min(self.deadline))
    }
}

/// A file system's place in the pool, which it may take and leave.
pub(crate) struct Member {
    pool: &'static Flushers,
    id: u64,
    /// Woken, and no turn has begun since. Spares writers the pool's lock, which all file systems
    /// share.
    asked: AtomicBool,
}

/// What a worker carries out without the lock.
struct Turn {
    id: u64,
    target: Weak<dyn Flushed>,
    last: Duration,
    over: bool,
}

/// What a free worker does next.
enum Next {
    Take(u64),
    /// Until then; `None`: until something changes.
    Wait(Option<Duration>),
}

impl Member {
    /// In the pool of the process.
    pub(crate) fn new() -> Arc<Member> {
        FLUSHERS.member()
    }

    /// The first interval begins now: `now` is what the member's own clock shows.
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
            // Before it joined, too.
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

    /// No turn begins any more. One that is under way is not waited for.
    pub(crate) fn leave(&self) {
        if self.pool.state.lock().members.remove(&self.id).is_some() {
            // Perhaps fewer are needed now.
            self.pool.changed.notify_all();
        }
    }

    /// Asks for a turn.
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
    /// Whether a member has nobody at it. Then somebody has to be free for it.
    fn unattended(&self) -> bool {
        self.members.values().any(|m| !m.busy)
    }

    /// When each turn that does not hang yet will.
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
        let entry = self.members.get_mut(&id).expect("chosen from these, under one lock");
        entry.busy = true;
        entry.woken = None;
        // With what wakers did before: they rely on this turn to see it.
        entry.member.asked.swap(false, Ordering::AcqRel);
        Turn { id, target: entry.target.clone(), last: entry.last, over: entry.deadline <= now }
    }

    /// `left`: to the next periodic turn; `None`: there is none.
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

    /// Under the lock: nobody may rely on a worker that then cannot be started.
    fn start(&'static self, state: &mut State) -> io::Result<()> {
        (self.spawn)(self)?;
        state.free += 1;
        Ok(())
    }

    /// Rule 3.
    fn start_if_needed(&'static self, state: &mut State) -> io::Result<()> {
        if state.free == 0 && state.unattended() { self.start(state) } else { Ok(()) }
    }

    /// Body of a thread.
    fn work(&'static self) {
        let mut state = self.state.lock();
        let mut idle_since = self.clock.monotonic();
        loop {
            let now = self.clock.monotonic();
            let until = match state.next(now, self.hanging) {
                Next::Take(id) => {
                    state = self.take(state, id, now);
                    idle_since = self.clock.monotonic();
                    // Rule 4.
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
        // Others look after the deadlines now that this one waited for.
        self.changed.notify_all();
    }

    /// Gives the member a turn.
    fn take<'a>(
        &'static self,
        mut state: MutexGuard<'a, State>,
        id: u64,
        now: Duration,
    ) -> MutexGuard<'a, State> {
        let mut turn = state.begin(id, now);
        let started = self.start_if_needed(&mut state);
        if state.free > 0 {
            // Others look after the deadlines now that this one waited for.
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

/// Answers how long the wait for the next periodic turn is; `None`: the member is gone or has
/// panicked.
fn carry_out(turn: &mut Turn) -> Option<Duration> {
    // Unwind safe: of what a panic leaves half done nothing is used again but by `panicked`, which
    // shuts the file system down. Its locks were given back on the way. That, and dropping the last
    // reference to the file system, may panic too: hence the outer one.
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
