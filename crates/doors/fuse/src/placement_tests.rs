use super::*;

/// A load whose rate depends on the mode, with a watcher that ticks every 5 ms.
struct Load {
    trials: Trials,
    now: Duration,
    received: u64,
    /// Pauses of the receiver for 100 requests.
    pauses: u64,
    /// Requests of another thread than the one before, for 100 requests.
    changes: u64,
    seen: Seen,
    on: bool,
}

impl Load {
    const TICK: Duration = Duration::from_millis(5);

    fn new() -> Load {
        let trials = Trials::new(PlacementMode::Auto, Moment { at: Duration::ZERO, received: 0 });
        let (now, seen) = (Duration::ZERO, Seen::default());
        Load { trials, now, received: 0, pauses: 100, changes: 2, seen, on: false }
    }

    /// Runs the load with these rates. Returns how long the companion received.
    fn run(&mut self, time: Duration, with: u64, without: u64) -> Duration {
        let (end, mut by_companion) = (self.now + time, Duration::ZERO);
        while self.now < end {
            self.now += Self::TICK;
            let rate = if self.on { with } else { without };
            let requests = rate * Self::TICK.as_millis() as u64 / 1000;
            self.received += requests;
            self.seen.pauses += requests * self.pauses / 100;
            self.seen.changes += requests * self.changes / 100;
            by_companion += if self.on { Self::TICK } else { Duration::ZERO };
            self.on = self.trials.tick(Moment { at: self.now, received: self.received }, self.seen);
        }
        by_companion
    }
}

#[test]
fn the_companion_receives_where_it_receives_more() {
    let mut load = Load::new();
    load.run(Duration::from_millis(300), 60_000, 30_000);
    assert!(load.on);
    let time = Duration::from_secs(60);
    assert!(load.run(time, 60_000, 30_000) > time * 97 / 100, "a trial is rare");
    let counts = load.trials.counts;
    assert!((3..10).contains(&counts.trials), "{counts:?}");
    assert!(counts.rate_with > 50_000 && counts.rate_without < 35_000, "{counts:?}");
}

/// If clients keep the receiver busy, no thread is woken, and a trial would only cost time.
#[test]
fn a_crowd_of_clients_is_not_measured() {
    let mut load = Load::new();
    load.pauses = 20;
    let time = Duration::from_secs(60);
    assert_eq!(load.run(time, 20_000, 80_000), Duration::ZERO);
    assert_eq!(load.trials.counts.trials, 0);
    load.pauses = 90;
    load.run(time, 60_000, 30_000);
    assert!(load.on, "the load of one client is sparse");
}

/// A program that removes files with the companion is followed by several that create some, at the
/// same rate of requests. Then the first program runs again.
#[test]
fn one_client_and_several_have_decisions_of_their_own() {
    let mut load = Load::new();
    load.run(Duration::from_secs(100), 90_000, 60_000);
    assert!(load.on);
    load.changes = 80;
    let (time, trials) = (Duration::from_secs(2), load.trials.counts.trials);
    let by_companion = load.run(time, 90_000, 145_000);
    assert!(by_companion < time * 5 / 100, "{by_companion:?}: one window, and a part of a trial");
    assert!(load.trials.counts.trials > trials, "a load that lasts is measured");
    load.changes = 2;
    assert!(load.run(time, 90_000, 60_000) > time * 97 / 100, "the decision is remembered");
}

#[test]
fn a_load_of_changing_kind_makes_no_trials_without_pause() {
    let mut load = Load::new();
    let mut by_companion = Duration::ZERO;
    for window in 0..1000 {
        load.changes = if window % 2 == 0 { 2 } else { 80 };
        by_companion += load.run(WINDOW, 20_000, 30_000);
    }
    assert!(by_companion < load.now / 20, "{by_companion:?}");
}

/// A mode that is much slower is left within a tick or two.
#[test]
fn a_trial_that_is_lost_ends_early() {
    let mut load = Load::new();
    let time = Duration::from_millis(900);
    assert!(load.run(time, 10_000, 60_000) <= 2 * Load::TICK);
    assert_eq!(load.trials.counts.trials, 1);
    assert!(!load.on);
}

/// If programs compute on every processor, the companion stops receiving at once, and there are no
/// trials.
#[test]
fn busy_processors_end_the_role_of_the_companion() {
    let mut load = Load::new();
    load.run(Duration::from_millis(300), 60_000, 30_000);
    assert!(load.on);
    let trials = load.trials.counts.trials;
    for _ in 0..1000 {
        load.now += Load::TICK;
        load.received += 100;
        assert!(!load.trials.busy(Moment { at: load.now, received: load.received }, load.seen));
    }
    assert_eq!(load.trials.counts.trials, trials);
    load.on = false;
    load.run(Duration::from_millis(300), 60_000, 30_000);
    assert!(load.on, "the processors are idle again");
}

#[test]
fn no_gain_leaves_all_as_it_was() {
    let mut load = Load::new();
    let time = Duration::from_secs(60);
    assert!(load.run(time, 31_000, 30_000) < time / 100, "3 percent are noise");
    assert!(!load.on && load.trials.counts.trials > 2);
}

/// After repeated results the next trial is half a minute away. A change of the rate starts it
/// earlier.
#[test]
fn another_load_is_measured_soon() {
    let mut load = Load::new();
    load.run(Duration::from_secs(120), 60_000, 30_000);
    assert!(load.on);
    load.run(Duration::from_millis(500), 8_000, 20_000);
    assert!(!load.on);
}

#[test]
fn an_idle_or_slow_mount_makes_no_trial() {
    let mut load = Load::new();
    assert_eq!(load.run(Duration::from_secs(60), 1_000, 1_000), Duration::ZERO);
    assert_eq!(load.trials.counts.trials, 0);
    // A trial ends without a decision if the load disappears.
    load.run(Duration::from_millis(50), 60_000, 30_000);
    assert!(load.trials.trial.is_some());
    assert!(!load.trials.idle() && load.trials.trial.is_none());
}

#[test]
fn starvation_ends_it_for_a_while() {
    let mut load = Load::new();
    load.run(Duration::from_millis(300), 60_000, 30_000);
    assert!(load.on);
    let starve = |load: &mut Load| {
        load.trials.starved(Moment { at: load.now, received: load.received }, load.seen);
        load.on = false;
    };
    starve(&mut load);
    assert_eq!(load.run(STARVED_MIN * 9 / 10, 60_000, 30_000), Duration::ZERO);
    load.run(Duration::from_secs(1), 60_000, 30_000);
    assert!(load.on, "one busy moment costs little");
    assert_eq!(load.trials.counts.starved, 1);
    // The processor is always busy.
    for _ in 0..12 {
        starve(&mut load);
        while !load.on {
            load.run(Load::TICK, 60_000, 30_000);
        }
    }
    starve(&mut load);
    assert_eq!(load.run(STARVED_MAX * 9 / 10, 60_000, 30_000), Duration::ZERO);
    load.run(20 * STARVED_MAX, 60_000, 30_000);
    starve(&mut load);
    load.run(STARVED_MIN + Duration::from_secs(1), 60_000, 30_000);
    assert!(load.on, "after a long quiet time the rest is short again");
}

#[test]
fn without_trials_only_starvation_ends_it() {
    let start = Moment { at: Duration::from_secs(1), received: 0 };
    let mut trials = Trials::new(PlacementMode::On, start);
    assert!(trials.tick(start, Seen::default()) && trials.idle());
    trials.starved(start, Seen::default());
    let after = |rest: Duration| Moment { at: start.at + rest, received: 0 };
    assert!(!trials.tick(after(STARVED_MIN / 2), Seen::default()));
    assert!(trials.tick(after(STARVED_MIN), Seen::default()));
}

#[test]
fn starvation_is_to_wait_for_a_processor_and_to_serve_little() {
    let moment = |millis: u64, received| Moment { at: Duration::from_millis(millis), received };
    let standing =
        |millis, ran, runnable| Standing { waited: Duration::from_millis(millis), ran: (ran, ran), runnable };
    let mut look = Starvation::default();
    assert!(!look.look(moment(0, 0), standing(0, 1, true)), "there is nothing to compare with");
    assert!(!look.look(moment(5, 3), standing(1, 2, true)));
    assert!(look.look(moment(10, 6), standing(5, 3, true)));
    // Clients on the companion's processor run between its requests.
    assert!(!look.look(moment(15, 500), standing(9, 4, true)));
    // The kernel adds a wait only when it ends, so the present wait is visible only in `runnable`.
    assert!(look.look(moment(20, 500), standing(9, 4, true)));
    assert!(!look.look(moment(25, 500), standing(9, 4, false)), "the companion sleeps");
    assert!(!look.look(moment(30, 500), standing(9, 4, true)), "the companion was just woken");
    let remedies = [false, true, true, false, true].map(|starves| look.remedy(starves));
    use Remedy::{Leave, None, Release};
    assert_eq!(remedies, [None, Leave, Release, None, Leave]);
    look.forget();
    assert_eq!(look.remedy(true), Leave);
    assert!(!look.look(moment(35, 500), standing(14, 4, true)));
}
