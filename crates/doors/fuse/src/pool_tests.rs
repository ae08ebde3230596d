use super::*;
use crate::placement::PlacementMode;
use kedge_base::spawn_named;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

/// Lets a worker take its turn on a thread of its own. The receiver gets a message when it has the
/// turn.
fn takes_turn(pool: &Arc<WorkerPool>, worker: usize) -> (JoinHandle<bool>, Receiver<()>) {
    let (tell, told) = channel();
    let pool = pool.clone();
    let thread = spawn_named("worker", move || {
        let taken = pool.take_turn(worker);
        tell.send(()).unwrap();
        taken
    });
    (thread.unwrap(), told)
}

#[test]
fn one_receives_until_it_passes_its_turn_on() {
    let pool = Arc::new(WorkerPool::new(3..=3, 1, None));
    assert!(pool.take_turn(0));
    let (second, told) = takes_turn(&pool, 1);
    // The pool has at most one receiver, so pressure changes nothing.
    pool.feel_pressure(PRESSURE);
    assert!(!pool.leave_if_spare(0), "the last receiver stays");
    assert!(told.try_recv().is_err() && pool.holds_turn(0));
    pool.pass_on(0);
    assert!(second.join().unwrap());
    assert!(!pool.holds_turn(0) && pool.holds_turn(1));
    pool.pass_on(0);
    assert_eq!(pool.counts.passed.get(), 1, "only a turn that is held is passed on");
    assert_eq!(pool.state.lock().receivers, 1);
}

/// No request arrived during many short waits. Then one does.
#[test]
fn a_turn_that_nobody_needed_is_kept() {
    let pool = WorkerPool::new(2..=2, 1, None);
    let (began, ended) = (Duration::ZERO, Duration::from_micros(80));
    while pool.counts.kept.get() == 0 {
        assert!(pool.counts.passed.get() < 100, "the turn is passed on without end");
        assert!(pool.holds_turn(0) || pool.take_turn(0));
        pool.begin(0, 0);
        let wait = pool.about_to_wait(0, began);
        assert_eq!(pool.holds_turn(0), wait.kept);
        pool.waited(wait, ended, false);
        pool.end(0);
    }
    pool.begin(0, 0);
    let wait = pool.about_to_wait(0, began);
    assert!(wait.kept && pool.holds_turn(0));
    pool.begin(0, 0);
    pool.waited(wait, ended, true);
    pool.about_to_wait(0, began);
    assert!(!pool.holds_turn(0));
}

#[test]
fn pressure_calls_one_more_and_quiet_sends_it_away() {
    let pool = Arc::new(WorkerPool::new(4..=4, 2, None));
    assert!(pool.take_turn(0));
    let (second, told) = takes_turn(&pool, 1);
    pool.feel_pressure(PRESSURE - 1);
    assert!(told.try_recv().is_err());
    pool.feel_pressure(PRESSURE);
    assert!(second.join().unwrap());
    pool.feel_pressure(PRESSURE);
    assert_eq!(pool.state.lock().receivers_wanted, 2, "no more than there may be");
    assert!(pool.leave_if_spare(0));
    assert!(!pool.leave_if_spare(1));
    assert!(!pool.holds_turn(0) && pool.holds_turn(1));
    let state = pool.state.lock();
    assert_eq!((state.receivers, state.receivers_wanted), (1, 1));
}

/// A worker that waits without announcing it loses its turn. Then the watcher sleeps, although the
/// worker still waits.
#[test]
fn the_watcher_takes_the_turn_of_a_worker_that_hangs() {
    let pool = Arc::new(WorkerPool::new(2..=2, 1, None));
    let watcher = {
        let pool = pool.clone();
        spawn_named("watcher", move || pool.watch(&|| true, &|_| Ok(()))).unwrap()
    };
    assert!(pool.take_turn(0));
    pool.begin(0, 0);
    assert!(pool.take_turn(1), "the watcher takes the turn of worker 0");
    assert!(!pool.holds_turn(0));
    assert_eq!((pool.counts.taken.get(), pool.counts.passed.get()), (1, 0));
    for _ in 0..kedge_base::HANG.as_millis() / 2 {
        if !pool.watched.load(SeqCst) {
            break;
        }
        kedge_base::pause(Duration::from_millis(2));
    }
    assert!(!pool.watched.load(SeqCst), "there is nothing to watch any more");
    // The watcher wakes again for the next request.
    pool.begin(1, 0);
    pool.end(0);
    assert!(pool.take_turn(0));
    assert_eq!(pool.counts.taken.get(), 2);
    pool.close();
    watcher.join().unwrap();
    assert!(!pool.take_turn(1), "the connection has ended");
}

/// While all workers wait within requests, the watcher starts more of them. It starts none beyond
/// the limit, and none after a failure.
#[test]
fn workers_are_started_while_all_wait() {
    let pool = Arc::new(WorkerPool::new(2..=64, 1, None));
    let (started, news) = channel();
    let watcher = {
        let pool = pool.clone();
        let start = move |worker| {
            assert!(worker < 64);
            if worker == 12 {
                return Err(std::io::Error::other("no more threads"));
            }
            started.send(worker).unwrap();
            Ok(())
        };
        spawn_named("watcher", move || pool.watch(&|| true, &start)).unwrap()
    };
    for worker in 0..12 {
        if worker >= 2 {
            assert_eq!(news.recv_timeout(kedge_base::HANG).unwrap(), worker);
        }
        assert!(pool.take_turn(worker));
        pool.begin(worker, 0);
        pool.pass_on(worker);
    }
    while pool.workers_max.load(Relaxed) > 12 {
        kedge_base::pause(Duration::from_millis(2));
    }
    assert_eq!(pool.started(), 12);
    assert!(pool.lacking(&pool.state.lock()).is_empty());
    pool.close();
    watcher.join().unwrap();
}

/// No worker is started if one waits for a turn or receives.
#[test]
fn no_worker_is_started_while_one_can_receive() {
    let pool = Arc::new(WorkerPool::new(2..=3, 1, None));
    assert_eq!(pool.lacking(&pool.state.lock()), 2..3, "none receives and none waits");
    assert!(pool.take_turn(0));
    assert!(pool.lacking(&pool.state.lock()).is_empty());
    let (second, _told) = takes_turn(&pool, 1);
    while pool.state.lock().waiting == 0 {
        std::thread::yield_now();
    }
    pool.slots[0].turn.store(false, Relaxed);
    pool.state.lock().receivers = 0;
    assert!(pool.lacking(&pool.state.lock()).is_empty(), "a worker waits for a turn");
    pool.close();
    assert!(!second.join().unwrap());
    let fixed = WorkerPool::new(2..=2, 1, None);
    assert!(fixed.lacking(&fixed.state.lock()).is_empty(), "a fixed number of workers stays");
}

/// A worker keeps its turn while each single request is short, however long they take together.
#[test]
fn a_busy_worker_keeps_its_turn() {
    let pool = WorkerPool::new(2..=2, 1, None);
    assert!(pool.take_turn(0));
    let mut seen = [0, 0];
    for _ in 0..10 {
        pool.begin(0, 0);
        assert!(pool.look(&mut pool.state.lock(), &mut seen));
        pool.end(0);
    }
    assert!(pool.look(&mut pool.state.lock(), &mut seen), "workers have served since the last tick");
    assert!(!pool.look(&mut pool.state.lock(), &mut seen));
    assert!(pool.holds_turn(0));
    pool.begin(0, 0);
    assert!(pool.look(&mut pool.state.lock(), &mut seen));
    assert!(!pool.look(&mut pool.state.lock(), &mut seen), "served for a whole tick");
    assert!(!pool.holds_turn(0));
}

#[test]
fn patience_follows_the_pauses() {
    let micros = Duration::from_micros;
    let mut adaptive_poll = AdaptivePoll::new(2);
    assert!(!adaptive_poll.lasts(Duration::ZERO), "the first pause is a sleep");
    for _ in 0..20 {
        adaptive_poll.slept(micros(30));
    }
    assert!(adaptive_poll.lasts(micros(49)) && !adaptive_poll.lasts(micros(50)), "polls no longer than that");
    for _ in 0..20 {
        adaptive_poll.slept(micros(10_000));
    }
    assert!(!adaptive_poll.lasts(Duration::ZERO), "an idle mount does not poll");
    adaptive_poll.slept(micros(30));
    assert!(adaptive_poll.lasts(Duration::ZERO));
    adaptive_poll.lost_processor();
    assert!(!adaptive_poll.lasts(Duration::ZERO), "others need the processor");

    let mut alone = AdaptivePoll::new(1);
    alone.slept(micros(30));
    assert!(!alone.lasts(Duration::ZERO), "with one processor the client could not ask meanwhile");
}

/// The companion receives when it must, others while it serves a long request, and others again
/// when it must not receive any more.
#[test]
fn the_companion_and_the_others_receive_in_turn() {
    let pool = Arc::new(WorkerPool::new(2..=2, 1, Some(Placement::new(PlacementMode::Auto))));
    let companion = pool.companion().unwrap();
    assert_eq!(companion, 2);
    assert!(pool.take_turn(0));
    let (thread, told) = takes_turn(&pool, companion);
    assert!(!pool.hand_over(0), "the companion must not receive yet");
    // The companion is ready when it waits for its turn.
    while pool.state.lock().companion_away {
        std::thread::yield_now();
    }
    pool.set_companion(&pool.state.lock(), true);
    assert!(told.try_recv().is_err(), "the turn is held");
    assert!(pool.hand_over(0));
    assert!(thread.join().unwrap() && pool.holds_turn(companion));
    assert!(!pool.hand_over(companion));
    // The companion waits for a device within its request: another worker receives, then returns
    // the turn.
    let (thread, _told) = takes_turn(&pool, 1);
    pool.pass_on(companion);
    assert!(thread.join().unwrap());
    assert!(!pool.hand_over(1), "the companion still waits");
    let (thread, _told) = takes_turn(&pool, companion);
    while pool.state.lock().companion_away {
        std::thread::yield_now();
    }
    assert!(pool.hand_over(1));
    assert!(thread.join().unwrap());
    let (thread, _told) = takes_turn(&pool, 0);
    pool.set_companion(&pool.state.lock(), false);
    assert!(pool.hand_over(companion));
    assert!(thread.join().unwrap());
    assert_eq!(pool.state.lock().receivers, 1);
}

/// On an idle mount the companion sleeps in the kernel with the turn. If programs begin to compute,
/// it would get no time to receive the next request.
#[test]
fn the_companion_of_an_idle_mount_loses_its_turn() {
    let pool = Arc::new(WorkerPool::new(2..=2, 1, Some(Placement::new(PlacementMode::On))));
    let companion = pool.companion().unwrap();
    let (first, _told) = takes_turn(&pool, 0);
    assert!(first.join().unwrap());
    let (thread, _told) = takes_turn(&pool, companion);
    while pool.state.lock().companion_away {
        std::thread::yield_now();
    }
    pool.set_companion(&pool.state.lock(), true);
    assert!(pool.hand_over(0) && thread.join().unwrap());
    let watcher = {
        let pool = pool.clone();
        spawn_named("watcher", move || pool.watch(&|| false, &|_| Ok(()))).unwrap()
    };
    pool.begin(companion, 0);
    pool.end(companion);
    kedge_base::pause(4 * TICK * IDLE_TICKS);
    assert!(pool.holds_turn(companion), "no other worker waits for the turn");
    let (other, _told) = takes_turn(&pool, 1);
    assert!(other.join().unwrap() && !pool.holds_turn(companion));
    while pool.watched.load(SeqCst) {
        std::thread::yield_now();
    }
    // The companion may receive one more request.
    pool.begin(companion, 0);
    assert!(pool.companion_serves() && pool.watched.load(SeqCst));
    pool.end(companion);
    assert!(!pool.companion_serves());
    pool.close();
    watcher.join().unwrap();
}
