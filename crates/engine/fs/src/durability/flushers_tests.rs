//! The pool with members whose turns the test controls.
#![allow(clippy::disallowed_methods)]

use super::*;
use kedge_base::HANG;
use std::sync::atomic::AtomicUsize;

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(10);

fn pool_of(hanging: Duration) -> &'static Flushers {
    Box::leak(Box::new(Flushers::new(spawn, hanging)))
}

#[track_caller]
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let clock = SystemClock::default();
    while !condition() {
        assert!(clock.monotonic() < HANG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[derive(Default)]
struct Seen {
    order: parking_lot::Mutex<Vec<&'static str>>,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A member whose turns do not end while its gate is closed.
struct Fake {
    name: &'static str,
    seen: Arc<Seen>,
    closed: parking_lot::Mutex<bool>,
    opened: parking_lot::Condvar,
    inside: AtomicBool,
    turns: AtomicUsize,
    interval: Duration,
    panics: bool,
    words: parking_lot::Mutex<Option<String>>,
}

impl Fake {
    fn new(name: &'static str, seen: &Arc<Seen>, interval: Duration) -> Fake {
        Fake {
            name,
            seen: seen.clone(),
            closed: parking_lot::Mutex::new(false),
            opened: parking_lot::Condvar::new(),
            inside: AtomicBool::new(false),
            turns: AtomicUsize::new(0),
            interval,
            panics: false,
            words: parking_lot::Mutex::new(None),
        }
    }

    fn join(self, pool: &'static Flushers) -> (Arc<Fake>, Arc<Member>) {
        let (fake, member) = (Arc::new(self), pool.member());
        join(&fake, &member).unwrap();
        (fake, member)
    }

    /// Makes turns wait until `open`.
    fn close(self) -> Fake {
        *self.closed.lock() = true;
        self
    }

    fn open(&self) {
        *self.closed.lock() = false;
        self.opened.notify_all();
    }

    fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    fn is_inside(&self) -> bool {
        self.inside.load(Ordering::SeqCst)
    }
}

fn join(fake: &Arc<Fake>, member: &Arc<Member>) -> io::Result<()> {
    let weak: Weak<dyn Flushed> = Arc::downgrade(&(fake.clone() as Arc<dyn Flushed>));
    member.join(weak, Duration::ZERO, fake.interval)
}

impl Flushed for Fake {
    fn turn(&self, _: &mut Duration, _: bool) -> Duration {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two threads at one member");
        self.seen.order.lock().push(self.name);
        let now = self.seen.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.seen.most.fetch_max(now, Ordering::SeqCst);
        let mut closed = self.closed.lock();
        while *closed {
            self.opened.wait(&mut closed);
        }
        self.seen.now.fetch_sub(1, Ordering::SeqCst);
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
        assert!(!self.panics, "on purpose");
        self.interval
    }

    fn panicked(&self, words: &str) {
        *self.words.lock() = Some(words.into());
    }
}

/// Returns the number of threads. Checks that at most three do not hang.
#[track_caller]
fn threads(pool: &Flushers) -> usize {
    let state = pool.state.lock();
    let at_work = state.at_work(pool.clock.monotonic(), pool.hanging).count();
    assert!(at_work <= 2 && at_work + state.free <= 3, "{at_work} at work, {} free", state.free);
    state.free + state.turns.len()
}

#[test]
fn two_members_at_most_have_a_turn_side_by_side() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let members: Vec<_> = (0..8).map(|_| Fake::new("m", &seen, Duration::ZERO).join(pool)).collect();
    for (fake, _) in &members {
        wait_for("ten turns of each", || threads(pool) <= 3 && fake.turns() >= 10);
    }
    assert!(seen.most.load(Ordering::SeqCst) <= 2);
    members.iter().for_each(|(_, member)| member.leave());
}

#[test]
fn both_places_are_used() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let a = Fake::new("a", &seen, SOON).close().join(pool);
    let b = Fake::new("b", &seen, SOON).close().join(pool);
    wait_for("both have a turn", || a.0.is_inside() && b.0.is_inside());
    a.0.open();
    b.0.open();
}

#[test]
fn who_was_due_first_goes_first() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let blocked = ["x", "y"].map(|name| Fake::new(name, &seen, HOUR).close().join(pool));
    blocked.iter().for_each(|(_, member)| member.wake());
    wait_for("both places are taken", || blocked.iter().all(|(fake, _)| fake.is_inside()));
    let [a, b, c] = ["a", "b", "c"].map(|name| Fake::new(name, &seen, HOUR).join(pool));
    for member in [&c.1, &a.1, &b.1, &c.1] {
        member.wake();
        std::thread::sleep(Duration::from_millis(2)); // the clock moves on
    }
    seen.order.lock().clear();
    blocked[0].0.open();
    wait_for("each had a turn", || [&a, &b, &c].iter().all(|(fake, _)| fake.turns() == 1));
    assert_eq!(*seen.order.lock(), ["c", "a", "b"]);
    blocked[1].0.open();
}

#[test]
fn those_that_hang_hold_up_nobody() {
    let (pool, seen) = (pool_of(Duration::from_millis(50)), Arc::new(Seen::default()));
    let hung: Vec<_> = (0..6).map(|_| Fake::new("hung", &seen, SOON).close().join(pool)).collect();
    let well = Fake::new("well", &seen, SOON).join(pool);
    wait_for("all six hang", || hung.iter().all(|(fake, _)| fake.is_inside()));
    let before = well.0.turns();
    wait_for("the seventh has its turns", || threads(pool) > 6 && well.0.turns() > before + 5);
    assert!(threads(pool) <= 6 + 3);
    hung.iter().for_each(|(fake, _)| fake.open());
    wait_for("those that hung go on", || threads(pool) > 0 && hung.iter().all(|(fake, _)| fake.turns() > 5));
    // On a busy machine slow turns may count as hanging for a while, so surplus threads are
    // awaited.
    wait_for("what is too many has ended", || threads(pool) <= 3);
    hung.iter().chain([&well]).for_each(|(_, member)| member.leave());
}

#[test]
fn one_member_needs_one_thread() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let (fake, member) = Fake::new("m", &seen, Duration::ZERO).join(pool);
    wait_for("turns", || {
        assert_eq!(threads(pool), 1);
        fake.turns() > 100
    });
    member.leave();
}

#[test]
fn a_wakeup_during_a_turn_leads_to_another_one() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let (fake, member) = Fake::new("m", &seen, HOUR).close().join(pool);
    member.wake();
    wait_for("a turn", || fake.is_inside());
    member.wake();
    member.wake();
    fake.open();
    wait_for("another turn", || fake.turns() == 2);
    member.wake();
    wait_for("and one more", || fake.turns() == 3);
}

#[test]
fn a_wakeup_before_joining_counts() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let (fake, member) = (Arc::new(Fake::new("m", &seen, HOUR)), pool.member());
    member.wake();
    join(&fake, &member).unwrap();
    wait_for("a turn", || fake.turns() == 1);
    member.wake();
    wait_for("another turn", || fake.turns() == 2);
}

#[test]
fn a_panic_ends_one_member() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let (bad, _member) = Fake { panics: true, ..Fake::new("bad", &seen, SOON) }.join(pool);
    wait_for("the panic is told", || bad.words.lock().is_some());
    assert!(bad.words.lock().as_ref().unwrap().contains("on purpose"));
    let (good, member) = Fake::new("good", &seen, SOON).join(pool);
    wait_for("the other goes on", || good.turns() > 5);
    assert_eq!(bad.turns(), 1);
    assert_eq!(pool.state.lock().members.len(), 1);
    member.leave();
}

#[test]
fn who_leaves_during_a_turn_has_no_other_and_is_dropped() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let (fake, member) = Fake::new("m", &seen, SOON).close().join(pool);
    wait_for("a turn", || fake.is_inside());
    member.leave();
    member.wake();
    let weak = Arc::downgrade(&fake);
    fake.open();
    drop(fake);
    wait_for("it is dropped", || weak.strong_count() == 0);
    wait_for("the thread ends", || threads(pool) == 0);
    assert_eq!(*seen.order.lock(), ["m"]);
}

#[test]
fn who_is_dropped_leaves() {
    let (pool, seen) = (pool_of(HOUR), Arc::new(Seen::default()));
    let (fake, _member) = Fake::new("m", &seen, SOON).join(pool);
    drop(fake);
    wait_for("the pool is empty", || pool.state.lock().members.is_empty() && threads(pool) == 0);
}

static NO_THREADS: AtomicBool = AtomicBool::new(true);

fn spawn_sometimes(pool: &'static Flushers) -> io::Result<()> {
    if NO_THREADS.load(Ordering::SeqCst) { Err(io::Error::from_raw_os_error(11)) } else { spawn(pool) }
}

#[test]
fn without_a_thread_nobody_joins() {
    let pool: &'static Flushers = Box::leak(Box::new(Flushers::new(spawn_sometimes, HOUR)));
    let seen = Arc::new(Seen::default());
    let (a, member) = (Arc::new(Fake::new("a", &seen, HOUR).close()), pool.member());
    assert!(join(&a, &member).is_err());
    assert!(pool.state.lock().members.is_empty());

    NO_THREADS.store(false, Ordering::SeqCst);
    join(&a, &member).unwrap();
    NO_THREADS.store(true, Ordering::SeqCst);
    let (b, other) = Fake::new("b", &seen, HOUR).join(pool); // the thread is there
    // The turn runs even if no thread can be started for the other member. The other member's next
    // wake-up starts one as soon as that is possible.
    member.wake();
    wait_for("a turn", || a.is_inside());
    NO_THREADS.store(false, Ordering::SeqCst);
    other.wake();
    wait_for("a turn of the other", || b.turns() == 1);
    a.open();
}
