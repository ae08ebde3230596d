//! The machine itself: it repeats a seed exactly, detects threads that wait forever and shows their
//! stacks, is fair, and costs little.

use kedge_base::lock::{Condvar, Mutex, Rank, device_point};
use kedge_base::machine::{self, Step};
use kedge_base::{Clock, JoinHandle, SystemClock, pause, spawn_named};
use kedge_sched::machine::Why;
use kedge_sched::run::{Config, Run, run};
use kedge_sched::scenarios;
use kedge_sched::strategy::Plan;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const PLANS: [Plan; 3] =
    [Plan::Random, Plan::Pct { depth: 2, length: 200 }, Plan::Pct { depth: 5, length: 200 }];

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    spawn_named(name, body).expect("a test can start a thread")
}

fn why(run: &Run) -> &Why {
    &run.account.failure.as_ref().unwrap_or_else(|| panic!("{:?}", run.result)).why
}

#[test]
fn a_seed_repeats_a_run_of_each_scenario_to_the_byte() {
    for scenario in scenarios::ALL {
        for seed in 0..6 {
            for plan in &PLANS {
                let (first, second) = ((scenario.play)(seed, plan), (scenario.play)(seed, plan));
                assert_eq!(
                    (first.account.trace, first.account.steps, first.result),
                    (second.account.trace, second.account.steps, second.result),
                    "{} seed {seed} {plan:?}",
                    scenario.name
                );
                assert_eq!(first.account.schedule, second.account.schedule);
            }
        }
    }
}

#[test]
fn a_recorded_schedule_repeats_a_run() {
    let scenario = scenarios::named("freeze").expect("a scenario");
    for seed in 0..10 {
        let first = (scenario.play)(seed, &Plan::Random);
        let again = (scenario.play)(seed, &Plan::Replay(first.account.schedule.clone()));
        assert_eq!(first.account.trace, again.account.trace, "seed {seed}");
    }
}

#[test]
fn seeds_differ() {
    let scenario = scenarios::named("freeze").expect("a scenario");
    let traces = (0..20).map(|seed| (scenario.play)(seed, &Plan::Random).account.trace);
    assert!(traces.collect::<BTreeSet<_>>().len() > 15, "the order follows the seed");
}

/// Two threads wait for each other forever.
#[test]
fn threads_that_wait_for_one_another_are_named_with_their_stacks() {
    let run = run(&Config::new(1, Plan::Random), || {
        let slots = Arc::new([(); 2].map(|()| (Mutex::new(Rank::Leaf, false), Condvar::new())));
        for (me, other) in [(0, 1), (1, 0)] {
            let slots = slots.clone();
            thread(["romeo", "juliet"][me], move || {
                let mut given = slots[other].0.lock();
                while !*given {
                    slots[other].1.wait(&mut given);
                }
                drop(given);
                *slots[me].0.lock() = true;
                slots[me].1.notify_all();
            });
        }
        Ok(())
    });
    assert_eq!(why(&run), &Why::AllWait);
    let text = run.result.expect_err("a deadlock");
    for part in ["thread romeo waits for", "thread juliet waits for", "tests/machine.rs"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

/// The waiter checks its condition and then takes the lock a second time for its wait. A wake-up
/// between the two is lost in some orders.
#[test]
fn a_lost_wake_up_is_found() {
    let body = || {
        let slot = Arc::new((Mutex::new(Rank::Leaf, false), Condvar::new()));
        let waiter = slot.clone();
        let waits = thread("waiter", move || {
            if !*waiter.0.lock() {
                let mut flag = waiter.0.lock();
                waiter.1.wait(&mut flag);
            }
        });
        *slot.0.lock() = true;
        slot.1.notify_all();
        waits.join().map_err(|_| "panicked".to_owned())
    };
    for plan in [Plan::Random, Plan::Pct { depth: 2, length: 20 }] {
        let runs = (0..200).map(|seed| run(&Config::new(seed, plan.clone()), body));
        let found = runs.filter(|run| run.account.failure.is_some()).inspect(|run| {
            assert_eq!(why(run), &Why::AllWait);
        });
        let count = found.count();
        assert!((1..200).contains(&count), "{plan:?}: {count} of 200");
    }
}

#[cfg(debug_assertions)]
#[test]
fn a_lock_held_across_a_wait_is_found() {
    let waits = run(&Config::new(1, Plan::Random), || {
        let guard = Mutex::new(Rank::EpochGuard, ());
        let slot = (Mutex::new(Rank::Leaf, ()), Condvar::new());
        let _held = guard.lock();
        slot.1.wait_for(&mut slot.0.lock(), Duration::from_millis(1));
        Ok(())
    });
    assert!(matches!(why(&waits), Why::WaitsWithLock(what) if what.contains("EpochGuard")), "{waits:?}");
    let reads = run(&Config::new(1, Plan::Random), || {
        let state = Mutex::new(Rank::LogState, ());
        let _held = state.lock();
        device_point(true);
        Ok(())
    });
    assert!(matches!(why(&reads), Why::WaitsWithLock(what) if what.contains("LogState")), "{reads:?}");
}

#[test]
fn a_run_without_an_end_is_ended() {
    let config = Config { steps_max: 5000, ..Config::new(1, Plan::Random) };
    let run = run(&config, || {
        loop {
            machine::spin();
        }
    });
    assert_eq!(why(&run), &Why::NoEnd);
}

#[test]
fn a_thread_that_waits_after_the_first_has_ended_is_found() {
    let run = run(&Config::new(1, Plan::Random), || {
        thread("left", || {
            let slot = (Mutex::new(Rank::Leaf, ()), Condvar::new());
            slot.1.wait(&mut slot.0.lock());
        });
        Ok(())
    });
    assert_eq!(why(&run), &Why::AllWait);
    assert_eq!(run.account.failure.expect("asserted").threads.len(), 1);
}

#[test]
fn a_panic_is_the_result() {
    let run = run(&Config::new(1, Plan::Random), || panic!("of the body"));
    assert_eq!(run.result, Err("panic: of the body".to_owned()));
}

/// Sleeps of hours take virtual time only.
#[test]
fn sleeps_take_virtual_time() {
    let config = Config { time_max: Duration::from_secs(24 * 3600), ..Config::new(1, Plan::Random) };
    let run = run(&config, || {
        let clock = SystemClock::default();
        let start = clock.monotonic();
        let naps = [3, 1, 2].map(|hours| thread("sleeper", move || pause(Duration::from_secs(hours * 3600))));
        for nap in naps {
            nap.join().map_err(|_| "panicked".to_owned())?;
        }
        let slept = clock.since(start).as_secs();
        if slept == 3 * 3600 { Ok(()) } else { Err(format!("{slept} seconds")) }
    });
    assert_eq!(run.result, Ok(()));
}

/// A random plan gives each of four threads that never wait its share of the steps.
#[test]
fn chance_is_fair() {
    const STEPS: u64 = 2000;
    let mut firsts = [0u32; 4];
    for seed in 0..100 {
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let seen = order.clone();
        let run = run(&Config::new(seed, Plan::Random), move || {
            let threads = [0usize, 1, 2, 3].map(|i| {
                let seen = seen.clone();
                thread("runner", move || {
                    (0..STEPS).for_each(|_| machine::point(Step::Atomic));
                    seen.lock().push(i);
                })
            });
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            Ok(())
        });
        assert_eq!(run.result, Ok(()));
        firsts[order.lock()[0]] += 1;
    }
    println!("first of four to end, in 100 runs: {firsts:?}");
    assert!(firsts.iter().all(|count| (8..60).contains(count)), "{firsts:?}");
}

/// Prints how many steps and switches the machine makes in a second.
#[test]
fn steps_and_switches_are_counted() {
    const STEPS: u64 = 20_000;
    let clock = SystemClock::default();
    for (what, threads) in [("steps without a switch", 1), ("steps of two threads", 2)] {
        let start = clock.monotonic();
        let run = run(&Config::new(3, Plan::Random), move || {
            let body = || (0..STEPS).for_each(|_| _ = machine::spin());
            let all: Vec<_> = (0..threads).map(|_| thread("runner", body)).collect();
            all.into_iter().for_each(|thread| thread.join().expect("no panic"));
            Ok(())
        });
        let took = clock.since(start).as_secs_f64();
        assert!(run.account.steps >= threads * STEPS, "{}", run.account.steps);
        assert!(threads == 1 || run.account.switches > STEPS / 2, "{}", run.account.switches);
        println!(
            "{what}: {:.0} steps/s, {:.0} switches/s",
            run.account.steps as f64 / took,
            run.account.switches as f64 / took
        );
    }
}
