//! The latch algorithms under the model checker: the crate's own source files, compiled with the
//! checker's atomics. The checker runs every interleaving of these small models, with every value
//! that the memory model allows a load to see.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, dead_code)]

#[path = "../src/epoch.rs"]
mod epoch;
#[path = "../src/pingpong/lock.rs"]
mod pingpong;
#[path = "../src/routes.rs"]
mod routes;
#[path = "../src/visible.rs"]
mod visible;

/// The checker's version of the module `src/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    pub(crate) fn relax(_looks: &mut u32) {
        loom::thread::yield_now();
    }

    #[derive(Debug, Default)]
    pub(crate) struct WaitQueue {
        mutex: loom::sync::Mutex<()>,
        condvar: loom::sync::Condvar,
    }

    impl WaitQueue {
        pub fn sleep(&self, done: impl Fn() -> bool) -> u64 {
            let mut woken = 0;
            let mut guard = self.mutex.lock().unwrap();
            while !done() {
                guard = self.condvar.wait(guard).unwrap();
                woken += 1;
            }
            woken
        }

        pub fn wake_all(&self) {
            drop(self.mutex.lock().unwrap());
            self.condvar.notify_all();
        }
    }

    #[derive(Debug)]
    pub(crate) struct Locked<T>(loom::sync::Mutex<T>);

    impl<T> Locked<T> {
        pub fn new(value: T) -> Locked<T> {
            Locked(loom::sync::Mutex::new(value))
        }

        pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            f(&mut self.0.lock().unwrap())
        }
    }
}

use epoch::Epochs;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread;
use pingpong::{Grip, HasPing, Mode, PingLock};
use routes::{Bounds, Look, Routes};
use visible::{Bias, Readers};

/// Maximum number of preemptions in the interleavings that the checker explores. More would take
/// too long, and hardly any bug needs more.
const SWITCHES: usize = 3;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(SWITCHES);
    builder.check(body);
}

/// Fills the table with consistent words: every key starts with the word of its child.
fn publish(routes: &Routes, stamp: u64) {
    let bounds = Bounds { low: [stamp, 0, 0], high: Some([stamp + 100, 0, 0]) };
    routes.publish(&bounds, 2, 0..2, |i| ([stamp + 10 * i as u64, 0, 0], stamp + i as u64));
}

#[test]
fn a_look_sees_one_version() {
    model(|| {
        let routes = Arc::new(Routes::new(2));
        publish(&routes, 1000);
        let writer = {
            let routes = routes.clone();
            thread::spawn(move || publish(&routes, 1050))
        };
        // The key belongs to the second child in the old version and to the first child in the new
        // version. A mix of the two would return the first child of the old version or the second
        // child of the new version.
        match routes.look(&[1052, 0, 0]) {
            Look::Child(child) => assert!(child == 1001 || child == 1050, "child {child}"),
            look => assert_eq!(look, Look::Torn),
        }
        writer.join().unwrap();
        assert_eq!(routes.look(&[1052, 0, 0]), Look::Child(1050));
        assert_eq!(routes.look(&[1000, 0, 0]), Look::Stale);
    });
}

#[test]
fn what_a_route_leads_to_is_initialised() {
    model(|| {
        let routes = Arc::new(Routes::new(2));
        let child = Arc::new(UnsafeCell::new(0));
        let writer = {
            let (routes, child) = (routes.clone(), child.clone());
            thread::spawn(move || {
                // SAFETY: the checker itself asserts that no other thread accesses the cell at the
                // same time.
                child.with_mut(|c| unsafe { *c = 7 });
                publish(&routes, 1);
            })
        };
        if let Look::Child(_) = routes.look(&[5, 0, 0]) {
            // SAFETY: the checker itself asserts that no other thread writes the cell at the same
            // time.
            assert_eq!(child.with(|c| unsafe { *c }), 7);
        }
        writer.join().unwrap();
    });
}

/// Asserts on drop that no thread is reading the object.
struct Thing(Arc<UnsafeCell<u64>>);

impl Drop for Thing {
    fn drop(&mut self) {
        // SAFETY: the checker itself asserts that no other thread accesses the cell at the same
        // time.
        self.0.with_mut(|v| unsafe { *v = u64::MAX });
    }
}

#[test]
fn nothing_is_dropped_under_a_reader() {
    model(|| {
        let epochs = Arc::new(Epochs::<Thing>::new(1));
        let cell = Arc::new(UnsafeCell::new(7));
        // 1 while readers can find the object; 0 once it is unreachable.
        let visible = Arc::new(AtomicU64::new(1));
        let writer = {
            let (epochs, cell, visible) = (epochs.clone(), cell.clone(), visible.clone());
            thread::spawn(move || {
                visible.store(0, Relaxed);
                epochs.retire([Thing(cell)]);
                epochs.collect();
            })
        };
        {
            let _active = epochs.enter(0);
            if visible.load(Relaxed) == 1 {
                // SAFETY: the checker itself asserts that no other thread writes the cell at the
                // same time.
                assert_eq!(cell.with(|v| unsafe { *v }), 7);
            }
        }
        writer.join().unwrap();
        epochs.collect();
        // SAFETY: the checker itself asserts that no other thread writes the cell at the same time.
        assert_eq!(cell.with(|v| unsafe { *v }), u64::MAX, "without readers everything retired goes");
    });
}

/// Runs `body` in a second thread of the model.
fn beside<T: 'static>(shared: &Arc<T>, body: impl FnOnce(Arc<T>) + 'static) -> thread::JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || body(shared))
}

struct Guarded {
    lock: PingLock,
    value: UnsafeCell<u64>,
}

impl HasPing for Arc<Guarded> {
    fn ping(&self) -> &PingLock {
        &self.lock
    }
}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded { lock: PingLock::default(), value: UnsafeCell::new(0) })
    }

    fn add(&self) {
        // SAFETY: the checker itself asserts that no other thread accesses the cell at the same
        // time.
        self.value.with_mut(|v| unsafe { *v += 1 });
    }

    fn get(&self) -> u64 {
        // SAFETY: the checker itself asserts that no other thread writes the cell at the same time.
        self.value.with(|v| unsafe { *v })
    }
}

#[test]
fn writers_exclude_each_other_through_conversions() {
    model(|| {
        let guarded = Guarded::new();
        let other = beside(&guarded, |guarded| {
            let (mut grip, _) = Grip::take(guarded.clone(), Mode::Write);
            grip.set_blocking();
            guarded.add();
            grip.clear_blocking();
            guarded.add();
        });
        {
            let (_grip, _) = Grip::take(guarded.clone(), Mode::Write);
            guarded.add();
        }
        other.join().unwrap();
        let (_grip, _) = Grip::take(guarded.clone(), Mode::Read);
        assert_eq!(guarded.get(), 3);
    });
}

#[test]
fn a_sleeper_is_woken_by_who_unlocks_blocking() {
    model(|| {
        let guarded = Guarded::new();
        let other = beside(&guarded, |guarded| {
            let (mut grip, _) = Grip::take(guarded.clone(), Mode::Write);
            grip.set_blocking();
            guarded.add();
        });
        {
            let (_grip, _) = Grip::take(guarded.clone(), Mode::Read);
            let seen = guarded.get();
            assert!(seen <= 1);
        }
        other.join().unwrap();
    });
}

#[test]
fn a_writer_waits_for_a_blocking_reader() {
    model(|| {
        let guarded = Guarded::new();
        let reader = beside(&guarded, |guarded| {
            let (mut grip, _) = Grip::take(guarded.clone(), Mode::Read);
            grip.set_blocking();
            let seen = guarded.get();
            grip.clear_blocking();
            assert_eq!(guarded.get(), seen);
        });
        match Grip::spin_take(guarded.clone(), Mode::Write) {
            Ok(_grip) => guarded.add(),
            Err(guarded) => {
                let (_grip, _) = Grip::take(guarded.clone(), Mode::Write);
                guarded.add();
            }
        }
        reader.join().unwrap();
        assert_eq!(guarded.get(), 1);
    });
}

/// The simplest latch with a bias: a lock, a value and [`Bias`].
struct Biased {
    bias: Bias,
    readers: Readers,
    latch: loom::sync::RwLock<()>,
    value: UnsafeCell<u64>,
}

impl Biased {
    fn read(&self, slot: usize) -> u64 {
        if let Some(_visible) = self.bias.enter(&self.readers, slot) {
            // SAFETY: the checker itself asserts that no thread writes the cell at the same time.
            return self.value.with(|v| unsafe { *v });
        }
        let _guard = self.latch.read().unwrap();
        self.bias.note_read();
        // SAFETY: the checker itself asserts that no thread writes the cell at the same time.
        self.value.with(|v| unsafe { *v })
    }

    fn write(&self) {
        let _guard = self.latch.write().unwrap();
        self.bias.revoke(&self.readers);
        // SAFETY: the checker itself asserts that no other thread accesses the cell at the same
        // time.
        self.value.with_mut(|v| unsafe { *v += 1 });
    }
}

fn biased(slots: usize, reads: usize) -> Arc<Biased> {
    let biased = Arc::new(Biased {
        bias: Bias::default(),
        readers: Readers::new(slots),
        latch: loom::sync::RwLock::new(()),
        value: UnsafeCell::new(0),
    });
    (0..reads).for_each(|_| assert_eq!(biased.read(0), 0));
    biased
}

#[test]
fn visible_readers_and_writers_exclude_each_other() {
    model(|| {
        let latch = biased(1, 16);
        let writer = beside(&latch, |latch| latch.write());
        assert!(latch.read(0) <= 1);
        assert!(latch.read(0) <= 1);
        writer.join().unwrap();
        assert_eq!(latch.read(0), 1);
    });
}

#[test]
fn a_latch_becomes_biased_beside_readers_and_writers() {
    model(|| {
        let latch = biased(2, 15);
        let writer = beside(&latch, |latch| latch.write());
        let reader = beside(&latch, |latch| assert!(latch.read(1) <= 1));
        assert!(latch.read(0) <= 1);
        writer.join().unwrap();
        reader.join().unwrap();
    });
}
