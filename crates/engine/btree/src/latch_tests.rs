use super::*;
use kedge_base::{Clock, ManualClock, Timespec, spawn_named};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::mpsc::channel;
use std::time::Duration;

fn meter() -> Arc<Meter> {
    Arc::new(Meter::new(Arc::new(ManualClock::default())))
}

fn taken(meter: &Meter, lock: TreeLock) -> [u64; 4] {
    meter.stats.report(lock).kinds.map(|k| k.acquisitions)
}

#[test]
fn acquisitions_are_counted_per_operation() {
    for &lock in TreeLock::ALL {
        let (meter, latch) = (meter(), Latch::new(lock, false, 1));
        let inner = Latch::new(lock, true, ());
        let watch = LatchWatch::new(&meter);
        for _ in 0..3 {
            assert_eq!(latch.read(&watch, |v| *v), 1);
        }
        latch.write(&watch, |v| *v = 2);
        assert_eq!(latch.try_write(&watch, |v| *v), Some(2));
        inner.write(&watch, |_| ());
        assert_eq!(taken(&meter, lock), [0; 4], "the operation still runs");
        drop(watch);
        let report = meter.stats.report(lock);
        assert_eq!(report.waits(), 0);
        let conversions = match lock {
            // Each write converts its latch to blocking and back.
            #[cfg(feature = "historic")]
            TreeLock::Pingpong => 6,
            #[cfg(feature = "historic")]
            TreeLock::Blocking => 3,
            _ => 0,
        };
        assert_eq!(taken(&meter, lock), [3, 0, 2, 1], "read leaf, read inner, write leaf, write inner");
        assert_eq!(report.conversions, conversions);
        // One of the three writes was a try. A try does not count as a call in a tree whose
        // descents hold paths.
        assert_eq!(report.calls(), if lock.holds_paths() { 5 } else { 6 });
    }
}

/// A clock that records whether it was read. A latch reads the clock just before it waits.
#[derive(Default)]
struct Looked(AtomicU64);

impl Clock for Looked {
    fn now(&self) -> Timespec {
        Timespec::default()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.fetch_add(700, AcqRel))
    }
}

#[test]
fn only_waits_are_timed() {
    for &lock in TreeLock::ALL {
        let clock = Arc::new(Looked::default());
        let meter = Arc::new(Meter::new(clock.clone()));
        let latch = Arc::new(Latch::new(lock, false, 0));
        let (started, has_started) = channel();
        let writer = {
            let (meter, latch) = (meter.clone(), latch.clone());
            spawn_named("writer", move || {
                latch.write(&LatchWatch::new(&meter), |v| {
                    started.send(()).expect("the test waits");
                    while clock.0.load(Acquire) == 0 {
                        std::hint::spin_loop();
                    }
                    *v = 1;
                });
            })
            .expect("a thread starts")
        };
        has_started.recv().expect("the writer runs");
        let watch = LatchWatch::new(&meter);
        assert_eq!(latch.try_write(&watch, |_| ()), None);
        latch.read(&watch, |v| assert_eq!(*v, 1));
        writer.join().expect("no panic");
        let report = meter.stats.report(lock);
        let waits = &report.kinds[0].wait_ns;
        assert_eq!((waits.count, waits.sum), (1, 700));
        assert_eq!(report.waits(), 1, "a try does not wait");
    }
}

#[test]
fn a_writer_waits_for_a_visible_reader() {
    let meter = meter();
    let latch = Arc::new(Latch::new(TreeLock::Optimistic, false, 0));
    let watch = LatchWatch::new(&meter);
    for _ in 0..20 {
        latch.read_visibly(&watch, |v| assert_eq!(*v, 0));
    }
    drop(watch);
    assert_eq!(taken(&meter, TreeLock::Optimistic)[0], 16, "later reads bypass the latch");
    let (started, has_started) = channel();
    let watch = LatchWatch::new(&meter);
    let writer = latch.read_visibly(&watch, |v| {
        let (meter, latch) = (meter.clone(), latch.clone());
        let writer = spawn_named("writer", move || {
            started.send(()).expect("the test waits");
            latch.write(&LatchWatch::new(&meter), |v| *v = 1);
        })
        .expect("a thread starts");
        has_started.recv().expect("the writer runs");
        // The yields give the test time to detect, at least in some rounds, a writer that does not
        // wait.
        (0..100).for_each(|_| std::thread::yield_now());
        assert_eq!(*v, 0);
        writer
    });
    writer.join().expect("no panic");
    latch.read_visibly(&watch, |v| assert_eq!(*v, 1));
}
