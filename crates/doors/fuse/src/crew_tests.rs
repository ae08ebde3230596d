use super::*;
use crate::placement::PlacementMode;
use kedge_base::spawn_named;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

/// A worker in a thread of its own, and the news that it has a turn.
fn takes_turn(crew: &Arc<Crew>, worker: usize) -> (JoinHandle<bool>, Receiver<()>) {
    let (tell, told) = channel();
    let crew = crew.clone();
    let thread = spawn_named("worker", move || {
        let taken = crew.take_turn(worker);
        tell.send(()).unwrap();
        taken
    });
    (thread.unwrap(), told)
}

#[test]
fn one_receives_until_it_passes_its_turn_on() {
    let crew = Arc::new(Crew::new(3, 1, None));
    assert!(crew.take_turn(0));
    let (second, told) = takes_turn(&crew, 1);
    // What happens one after another in one thread is not too early for the other.
    crew.feel_pressure(PRESSURE);
    assert!(!crew.leave_if_spare(0), "the last receiver stays");
    assert!(told.try_recv().is_err() && crew.holds_turn(0));
    crew.pass_on(0);
    assert!(second.join().unwrap());
    assert!(!crew.holds_turn(0) && crew.holds_turn(1));
    crew.pass_on(0);
    assert_eq!(crew.counts.passed.get(), 1, "only a turn that is held is passed on");
    assert_eq!(crew.state.lock().receivers, 1);
}

/// Nobody came during many short waits. Then one comes.
#[test]
fn a_turn_that_nobody_needed_is_kept() {
    let crew = Crew::new(2, 1, None);
    let (began, ended) = (Duration::ZERO, Duration::from_micros(80));
    while crew.counts.kept.get() == 0 {
        assert!(crew.counts.passed.get() < 100, "the turn is passed on without end");
        assert!(crew.holds_turn(0) || crew.take_turn(0));
        crew.begin(0);
        let wait = crew.about_to_wait(0, began);
        assert_eq!(crew.holds_turn(0), wait.kept);
        crew.waited(wait, ended, false);
        crew.end(0);
    }
    crew.begin(0);
    let wait = crew.about_to_wait(0, began);
    assert!(wait.kept && crew.holds_turn(0));
    crew.begin(0);
    crew.waited(wait, ended, true);
    crew.about_to_wait(0, began);
    assert!(!crew.holds_turn(0));
}

#[test]
fn pressure_calls_one_more_and_quiet_sends_it_away() {
    let crew = Arc::new(Crew::new(4, 2, None));
    assert!(crew.take_turn(0));
    let (second, told) = takes_turn(&crew, 1);
    crew.feel_pressure(PRESSURE - 1);
    assert!(told.try_recv().is_err());
    crew.feel_pressure(PRESSURE);
    assert!(second.join().unwrap());
    crew.feel_pressure(PRESSURE);
    assert_eq!(crew.state.lock().receivers_wanted, 2, "no more than there may be");
    assert!(crew.leave_if_spare(0));
    assert!(!crew.leave_if_spare(1));
    assert!(!crew.holds_turn(0) && crew.holds_turn(1));
    let state = crew.state.lock();
    assert_eq!((state.receivers, state.receivers_wanted), (1, 1));
}

/// A worker that waits and does not say so loses its turn, and the watcher comes to rest although
/// the worker still waits.
#[test]
fn the_watcher_takes_the_turn_of_a_worker_that_hangs() {
    let crew = Arc::new(Crew::new(2, 1, None));
    let watcher = {
        let crew = crew.clone();
        spawn_named("watcher", move || crew.watch()).unwrap()
    };
    assert!(crew.take_turn(0));
    crew.begin(0);
    assert!(crew.take_turn(1), "it is taken from the first");
    assert!(!crew.holds_turn(0));
    assert_eq!((crew.counts.taken.get(), crew.counts.passed.get()), (1, 0));
    for _ in 0..5000 {
        if !crew.watched.load(SeqCst) {
            break;
        }
        kedge_base::pause(Duration::from_millis(2));
    }
    assert!(!crew.watched.load(SeqCst), "there is nothing to watch any more");
    // It wakes again for the next request.
    crew.begin(1);
    crew.end(0);
    assert!(crew.take_turn(0));
    assert_eq!(crew.counts.taken.get(), 2);
    crew.close();
    watcher.join().unwrap();
    assert!(!crew.take_turn(1), "the connection has ended");
}

/// Requests that come and go lose no turn however long they last together.
#[test]
fn a_busy_worker_keeps_its_turn() {
    let crew = Crew::new(2, 1, None);
    assert!(crew.take_turn(0));
    let mut seen = [0, 0];
    for _ in 0..10 {
        crew.begin(0);
        assert!(crew.look(&mut crew.state.lock(), &mut seen));
        crew.end(0);
    }
    assert!(crew.look(&mut crew.state.lock(), &mut seen), "it was busy until now");
    assert!(!crew.look(&mut crew.state.lock(), &mut seen));
    assert!(crew.holds_turn(0));
    crew.begin(0);
    assert!(crew.look(&mut crew.state.lock(), &mut seen));
    assert!(!crew.look(&mut crew.state.lock(), &mut seen), "served for a whole tick");
    assert!(!crew.holds_turn(0));
}

#[test]
fn patience_follows_the_pauses() {
    let micros = Duration::from_micros;
    let mut patience = Patience::new(2);
    assert!(!patience.lasts(Duration::ZERO), "at first it sleeps");
    for _ in 0..20 {
        patience.slept(micros(30));
    }
    assert!(patience.lasts(micros(49)) && !patience.lasts(micros(50)), "polls no longer than that");
    for _ in 0..20 {
        patience.slept(micros(10_000));
    }
    assert!(!patience.lasts(Duration::ZERO), "an idle mount does not poll");
    patience.slept(micros(30));
    assert!(patience.lasts(Duration::ZERO));
    patience.lost_processor();
    assert!(!patience.lasts(Duration::ZERO), "others need the processor");

    let mut alone = Patience::new(1);
    alone.slept(micros(30));
    assert!(!alone.lasts(Duration::ZERO), "with one processor the client could not ask meanwhile");
}

/// The companion receives when it is to, others while it serves something long, and again others
/// when it is not to receive any more.
#[test]
fn the_companion_and_the_others_receive_in_turn() {
    let crew = Arc::new(Crew::new(2, 1, Some(Placement::new(PlacementMode::Auto))));
    let companion = crew.companion().unwrap();
    assert_eq!(companion, 2);
    assert!(crew.take_turn(0));
    let (thread, told) = takes_turn(&crew, companion);
    assert!(!crew.hand_over(0), "it is not to receive yet");
    // It is ready when it waits.
    while crew.state.lock().companion_away {
        std::thread::yield_now();
    }
    crew.set_companion(&crew.state.lock(), true);
    assert!(told.try_recv().is_err(), "the turn is held");
    assert!(crew.hand_over(0));
    assert!(thread.join().unwrap() && crew.holds_turn(companion));
    assert!(!crew.hand_over(companion));
    // It waits for a device in its request: another worker receives, and gives the turn back.
    let (thread, _told) = takes_turn(&crew, 1);
    crew.pass_on(companion);
    assert!(thread.join().unwrap());
    assert!(!crew.hand_over(1), "it is not back");
    let (thread, _told) = takes_turn(&crew, companion);
    while crew.state.lock().companion_away {
        std::thread::yield_now();
    }
    assert!(crew.hand_over(1));
    assert!(thread.join().unwrap());
    let (thread, _told) = takes_turn(&crew, 0);
    crew.set_companion(&crew.state.lock(), false);
    assert!(crew.hand_over(companion));
    assert!(thread.join().unwrap());
    assert_eq!(crew.state.lock().receivers, 1);
}
