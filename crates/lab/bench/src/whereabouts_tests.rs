use super::*;

#[test]
fn a_thread_is_read_as_proc_shows_it() {
    let mut stat: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
    stat[39 - 3] = "5".into();
    let stat = format!("17 (a name) of (two words)) {}", stat.join(" "));
    let status = "Name:\ta\nvoluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t4\n";
    let sched = "se.sum_exec_runtime   :   1.5\nse.nr_migrations      :          7\n";
    let look = Look { ran: 900, cpu: 5, migrations: 7, switches: 34 };
    assert_eq!(Look::parse(&stat, "900 20 3\n", status, sched), Some(look));
    assert_eq!(Look::parse(&stat, "900 20 3\n", status, ""), Some(Look { migrations: 0, ..look }));
    assert_eq!(Look::parse("17 (a) 1 2", "900 20 3\n", status, sched), None);
}

fn ran(doings: &[(usize, u64)]) -> Doings {
    Doings { ran: doings.iter().copied().collect(), ..Doings::default() }
}

#[test]
fn together_is_a_likelihood() {
    let together = |clients: &[(usize, u64)], server: &[(usize, u64)]| {
        Whereabouts { clients: ran(clients), server: ran(server), seconds: 1.0 }.together()
    };
    assert_eq!(together(&[(0, 10)], &[(0, 3)]), 100.0);
    assert_eq!(together(&[(0, 10)], &[(1, 3)]), 0.0);
    assert_eq!(together(&[(0, 5), (1, 5)], &[(0, 7), (1, 7)]), 50.0);
    assert!(together(&[(0, 5)], &[]).is_nan(), "no server");
}

#[test]
fn only_what_happens_in_the_round_counts() {
    let look = |ran, cpu, switches| Look { ran, cpu, migrations: switches / 2, switches };
    let mut group = Group::default();
    group.see(1, look(1000, 0, 10), false);
    group.see(1, look(1500, 1, 14), true);
    group.see(2, look(40, 1, 2), true);
    let ran = BTreeMap::from([(0, 0), (1, 540)]);
    assert_eq!(group.doings, Doings { ran, migrations: 3, switches: 6 });
}

#[test]
fn a_watch_sees_work_and_pinned_threads_are_in_one_place() {
    let clock = SystemClock::default();
    let work = move || {
        let began = clock.monotonic();
        while clock.since(began) < Duration::from_millis(100) {}
    };
    let before = sched_getaffinity(None).expect("asked");
    let pinned = Pinned::new(None).expect("pinned");
    let watch = Watch::start(None).expect("started");
    let threads = [0, 1].map(|_| spawn_named("busy", work).expect("started"));
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let seen = watch.end();
    let there = seen.clients.ran.get(&pinned.cpu).copied().unwrap_or(0);
    assert!(there > 20_000_000, "{seen:?}");
    assert!(seen.server.ran.is_empty() && seen.together().is_nan());
    drop(pinned);
    assert_eq!(sched_getaffinity(None).expect("asked"), before);
}
