//! The machine in virtual time: processors, locks, sleeps and wake-ups take as long as they must.
//! Costs are fixed except in the last test, so each time is exact.

use kedge_base::lock::{Condvar, Mutex, Rank, RwLock};
use kedge_base::machine::{self, Step};
use kedge_base::{Clock, JoinHandle, SystemClock, pause, spawn_named};
use kedge_sched::timing::{Clockwork, Computing, Hardware, Kind, Profile, Table, compute, mark, run};
use std::sync::Arc;
use std::time::Duration;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

const FREE: Computing = Computing::Fixed(Duration::ZERO);

type Work = Arc<dyn Fn(&Clockwork, usize) + Send + Sync>;

/// Returns the virtual time from the start of the threads to the end of the last one, and the
/// profile.
fn took(hardware: Hardware, computing: Computing, threads: usize, work: Work) -> (Duration, Profile) {
    let ran = run(hardware, computing, move |machine| {
        let clock = SystemClock::default();
        mark();
        let start = clock.monotonic();
        let all: Vec<JoinHandle<()>> = (0..threads)
            .map(|i| {
                let (machine, work) = (machine.clone(), work.clone());
                spawn_named("worker", move || work(&machine, i)).expect("a test can start a thread")
            })
            .collect();
        all.into_iter().for_each(|thread| thread.join().expect("no panic"));
        (clock.since(start), mark().0)
    });
    ran.expect("the run ends").result
}

fn computing(time: Duration) -> Work {
    Arc::new(move |machine, _| compute(machine, time))
}

#[test]
fn threads_share_a_processor_and_run_side_by_side_on_two() {
    let on = |processors| took(Hardware::ideal(processors), FREE, 2, computing(ms(10))).0;
    assert_eq!([on(1), on(2), on(4)], [ms(20), ms(10), ms(10)]);
    let (time, profile) = took(Hardware::ideal(3), FREE, 12, computing(ms(5)));
    assert_eq!(time, ms(20));
    assert_eq!(profile.time("worker", Kind::Computing), ms(60));
}

#[test]
fn the_wall_clock_advances_in_ticks() {
    let hardware = Hardware { tick: ms(4).as_nanos() as u64, ..Hardware::ideal(1) };
    let ran = run(hardware, FREE, |_| {
        let clock = SystemClock::default();
        let stamps = (0..9).map(|_| {
            pause(ms(1));
            clock.now()
        });
        let mut stamps: Vec<_> = stamps.collect();
        stamps.dedup();
        (stamps, clock.monotonic())
    });
    let (stamps, monotonic) = ran.expect("the run ends").result;
    assert_eq!(stamps.iter().map(|stamp| stamp.nsec).collect::<Vec<_>>(), [0, 4_000_000, 8_000_000]);
    assert_eq!(monotonic, ms(9), "intervals have no ticks");
}

#[test]
fn a_slice_ends_and_others_run() {
    let ends = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = ends.clone();
    let work: Work = Arc::new(move |machine, i| {
        (0..100).for_each(|_| compute(machine, if i == 0 { us(100) } else { us(10) }));
        seen.lock().push((i, SystemClock::default().monotonic()));
    });
    took(Hardware::ideal(1), FREE, 2, work);
    let ends = ends.lock().clone();
    // The thread with little work ends although the other began first and never waits.
    assert_eq!((ends[0].0, ends[1].0), (1, 0));
    assert!(ends[0].1 < ms(4), "{ends:?}");
    assert_eq!(ends[1].1, ms(11));
}

#[test]
fn a_lock_serialises_and_its_waits_are_named() {
    let lock = Arc::new(Mutex::new(Rank::Leaf, ()));
    let work: Work = Arc::new(move |machine, _| {
        (0..10).for_each(|_| {
            let _held = lock.lock();
            compute(machine, ms(1));
        });
    });
    let (time, profile) = took(Hardware::ideal(8), FREE, 4, work);
    assert_eq!(time, ms(40));
    let row = profile.rows.iter().find(|row| row.kind == Kind::Lock).expect("threads waited");
    assert!(row.site.expect("known").file().ends_with("tests/timing.rs"), "{row:?}");
    // The lock goes to a thread that is awake. So in the best case three threads wait for 10, 20
    // and 30 ms.
    assert!(profile.time("worker", Kind::Lock) >= ms(60), "{:?}", profile.rows);
}

#[test]
fn readers_share_a_lock_and_a_writer_excludes_them() {
    let with = |writers: usize| {
        let lock = Arc::new(RwLock::new(Rank::Leaf, ()));
        let work: Work = Arc::new(move |machine, i| {
            if i < writers {
                let _held = lock.write();
                compute(machine, ms(1));
            } else {
                let _held = lock.read();
                compute(machine, ms(1));
            }
        });
        took(Hardware::ideal(8), FREE, 8, work).0
    };
    assert_eq!([with(0), with(1), with(8)], [ms(1), ms(2), ms(8)]);
}

#[test]
fn a_waiter_that_spins_gets_the_lock_without_a_wake_up() {
    let hardware = Hardware { spin: 3000, wake_latency: 50_000, ..Hardware::ideal(2) };
    let with = |held: Duration| {
        let lock = Arc::new(Mutex::new(Rank::Leaf, ()));
        let work: Work = Arc::new(move |machine, _| {
            let _held = lock.lock();
            compute(machine, held);
        });
        took(hardware, FREE, 2, work).0
    };
    // Two wake-ups: of the threads at the start, and of the joining thread. The waiter spins.
    assert_eq!(with(us(2)), us(50 + 2 + 2 + 50));
    // The lock is held too long for spinning: the waiter sleeps, and runs after another wake-up.
    assert_eq!(with(us(10)), us(50 + 10 + 50 + 10 + 50));
}

#[test]
fn sleeps_end_at_their_moment_and_need_no_processor() {
    let work: Work = Arc::new(|_, i| pause(ms(10 + i as u64)));
    assert_eq!(took(Hardware::ideal(1), FREE, 8, work.clone()).0, ms(17));
    // Three wake-ups: of the thread at its start, after its sleep, and of the joining thread.
    let hardware = Hardware { wake_latency: 5000, ..Hardware::ideal(8) };
    let (time, profile) = took(hardware, FREE, 8, work);
    assert_eq!(time, ms(17) + us(15));
    assert_eq!(profile.time("worker", Kind::WakeUp), us(80));
}

#[test]
fn a_wait_with_a_limit_ends_by_time_or_by_a_wake_up() {
    let slot = Arc::new((Mutex::new(Rank::Leaf, false), Condvar::new()));
    let work: Work = Arc::new(move |machine, i| {
        if i == 0 {
            compute(machine, ms(3));
            *slot.0.lock() = true;
            slot.1.notify_all();
            return;
        }
        let mut given = slot.0.lock();
        assert!(slot.1.wait_for(&mut given, ms(1)), "nothing wakes it in the first millisecond");
        assert!(!slot.1.wait_for(&mut given, ms(100)) && *given);
        assert_eq!(SystemClock::default().monotonic(), ms(3));
    });
    assert_eq!(took(Hardware::ideal(2), FREE, 2, work).0, ms(3));
}

#[test]
fn switches_wake_ups_and_cache_lines_cost_what_they_are_said_to() {
    let hardware = Hardware { switch: 700, ..Hardware::ideal(1) };
    let sleeps: Work = Arc::new(|_, _| (0..10).for_each(|_| pause(us(1))));
    // Two switches: to the thread, and back to the joining one. The switch to idle is shorter than
    // the sleep.
    let (time, _) = took(hardware, FREE, 1, sleeps);
    assert_eq!(time, us(10) + Duration::from_nanos(2 * 700));

    let hardware = Hardware { transfer: 100, ..Hardware::ideal(4) };
    let value = Arc::new(kedge_base::atomic::AtomicU64::new(0));
    let shared = value.clone();
    let adds: Work = Arc::new(move |_, _| {
        (0..1000).for_each(|_| _ = shared.fetch_add(1, kedge_base::atomic::Ordering::AcqRel));
    });
    // All four threads change one line, so each addition waits for the one before it.
    let (time, profile) = took(hardware, Computing::Fixed(Duration::from_nanos(10)), 4, adds);
    assert_eq!(value.load(kedge_base::atomic::Ordering::Relaxed), 4000);
    assert!(time > us(390) && time <= us(405), "{time:?}");
    assert!(profile.time("worker", Kind::CacheLine) > us(1400), "{:?}", profile.rows);
}

/// A thread that uses a line at 51 µs does not wait for one that uses it at 100 µs, although the
/// second thread reached that time by loads, which do not pass the turn on.
#[test]
fn a_cache_line_goes_to_the_thread_that_comes_first() {
    use kedge_base::atomic::{AtomicU64, Ordering::AcqRel};
    #[repr(align(64))]
    #[derive(Default)]
    struct Line(AtomicU64);
    let lines: Arc<Vec<Line>> = Arc::new((0..51).map(|_| Line::default()).collect());
    let (wanted, ended) = (lines.clone(), Arc::new(parking_lot::Mutex::new(Duration::ZERO)));
    let end = ended.clone();
    let work: Work = Arc::new(move |machine, i| {
        let (first, others) = lines.split_first().expect("there are lines");
        match i {
            0 => others.iter().for_each(|line| _ = line.0.fetch_add(1, AcqRel)),
            1 => {
                compute(machine, us(50));
                others.iter().for_each(|line| _ = line.0.load(kedge_base::atomic::Ordering::Acquire));
                first.0.fetch_add(1, AcqRel);
            }
            _ => {
                compute(machine, us(51));
                let start = SystemClock::default().monotonic();
                first.0.fetch_add(1, AcqRel);
                *end.lock() = SystemClock::default().monotonic().saturating_sub(start);
            }
        }
    });
    let hardware = Hardware { transfer: 1000, ..Hardware::ideal(4) };
    took(hardware, FREE, 3, work);
    assert_eq!(*ended.lock(), Duration::ZERO, "the line was fresh");
    assert_eq!(wanted[0].0.load(kedge_base::atomic::Ordering::Relaxed), 2);
}

/// A spinning thread sees the change, and does not keep the only processor from the other thread.
#[test]
fn a_spinning_thread_waits_for_another() {
    for processors in [1, 2] {
        let flag = Arc::new(kedge_base::atomic::AtomicBool::new(false));
        let work: Work = Arc::new(move |machine, i| {
            if i == 1 {
                compute(machine, us(200));
                flag.store(true, kedge_base::atomic::Ordering::Release);
            }
            while !flag.load(kedge_base::atomic::Ordering::Acquire) {
                machine::spin();
            }
        });
        let (time, profile) = took(Hardware::ideal(processors), FREE, 2, work);
        assert!(time >= us(200) && time < us(220), "{processors}: {time:?}");
        assert_eq!(profile.time("worker", Kind::Spin) > us(150), processors == 2);
    }
}

#[test]
fn fixed_costs_repeat_a_run() {
    let once = || {
        let lock = Arc::new(Mutex::new(Rank::Leaf, 0u64));
        let work: Work = Arc::new(move |_, i| {
            for round in 0..200u64 {
                *lock.lock() += 1;
                (0..(i as u64 + round) % 7).for_each(|_| machine::point(Step::Atomic));
            }
        });
        let hardware = Hardware {
            switch: 1100,
            wake: 900,
            wake_latency: 4000,
            transfer: 60,
            spin: 2500,
            ..Hardware::ideal(3)
        };
        let (time, profile) = took(hardware, Computing::Fixed(Duration::from_nanos(130)), 8, work);
        (time, profile.total(Kind::Lock), profile.total(Kind::RunQueue), profile.total(Kind::Computing))
    };
    let first = once();
    assert!(first.1 > Duration::ZERO && first.2 > Duration::ZERO, "{first:?}");
    assert_eq!(first, once());
}

#[test]
fn threads_that_wait_forever_end_the_run() {
    let ran = run(Hardware::ideal(2), FREE, |_| {
        let slot = (Mutex::new(Rank::Leaf, ()), Condvar::new());
        slot.1.wait(&mut slot.0.lock());
    });
    let why = ran.expect_err("nothing wakes it");
    assert!(why.contains("main") && why.contains("tests/timing.rs"), "{why}");
}

/// Uses that much processor time of this thread.
fn burn(time: Duration) {
    use rustix::time::{ClockId, clock_gettime};
    let now = || {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    let start = now();
    while now().saturating_sub(start) < time {
        std::hint::black_box(0);
    }
}

/// Measured computing is processor time, so other programs on the machine do not count. Costs
/// learnt on one processor hold on two.
#[test]
fn measured_computing_is_processor_time_and_is_learnt() {
    let table = Arc::new(Table::default());
    let work: Work = Arc::new(|_, _| {
        (0..20).for_each(|_| {
            burn(ms(1));
            machine::point(Step::Atomic);
        });
    });
    let (time, _) = took(Hardware::ideal(1), Computing::Measured(table.clone()), 2, work.clone());
    assert!(time >= ms(40) && time < ms(60), "{time:?}");
    assert!(table.pairs() >= 2);
    let (both, profile) = took(Hardware::ideal(2), Computing::Learnt(table), 2, work);
    assert!(both >= ms(18) && both < ms(32), "{both:?}");
    assert!(profile.time("worker", Kind::Computing) >= ms(36), "{:?}", profile.rows);
}
