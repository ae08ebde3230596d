use super::*;
use std::sync::mpsc::channel;

#[test]
fn the_processor_is_field_39_whatever_the_name_is() {
    let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
    let stat = format!("17 (a b) c) R (x) {}", fields[1..].join(" "));
    // The name, up to the last bracket, may contain what looks like other fields.
    assert_eq!(processor_in(&stat.replace(" R (x) ", " R ")), Some(39));
    assert_eq!(processor_in("17 (name) R 1 2"), None);
    assert_eq!(processor_in(""), None);
    assert_eq!(processor_of(0), None);
    assert!(processor_of(rustix::thread::gettid().as_raw_nonzero().get() as u32).is_some());
}

/// Runs `body` on a new thread, whose policy and processors it may change.
fn in_a_thread(body: impl FnOnce(&Arc<Companion>) + Send + 'static) {
    spawn_named("companion", move || body(&Arc::default())).unwrap().join().unwrap();
}

fn own_set() -> CpuSet {
    sched_getaffinity(None).unwrap()
}

fn own_policy() -> i32 {
    let tid = rustix::thread::gettid().as_raw_nonzero();
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(38).unwrap().parse().unwrap()
}

#[test]
fn it_goes_to_the_processor_on_which_its_client_is() {
    in_a_thread(|companion| {
        let allowed = own_set();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        let last = (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).unwrap();
        let mut follower = Follower::new(companion).unwrap();
        assert_eq!(own_policy(), libc::SCHED_OTHER, "the policy until the first turn");
        follower.begins();
        assert_eq!(own_policy(), libc::SCHED_IDLE);
        // The client stays on one processor until the test sends it to another.
        let (go, gone) = channel::<usize>();
        let (tell, told) = channel();
        let client = kedge_base::spawn_named("client", move || {
            for cpu in gone {
                let mut set = CpuSet::new();
                set.set(cpu);
                sched_setaffinity(None, &set).unwrap();
                tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            }
        });
        for cpu in [first, last, first] {
            go.send(cpu).unwrap();
            let tid = told.recv().unwrap();
            follower.begins();
            let mut now = Duration::ZERO;
            while companion.processor() != Some(cpu as u32) {
                now += Follower::SAMPLE_MIN;
                assert!(now < Follower::SAMPLE_MIN * 100_000, "the companion stays elsewhere");
                follower.slept(now);
                follower.received(tid, || now);
                std::thread::yield_now();
            }
            let set = own_set();
            assert!(set.is_set(cpu) && set.count() == 1);
        }
        drop(go);
        client.unwrap().join().unwrap();
        companion.release();
        assert_eq!(own_set(), allowed, "all processors of the process");
        assert_eq!(companion.processor(), None);
    });
}

#[test]
fn a_client_that_cannot_be_seen_moves_nothing() {
    in_a_thread(|companion| {
        let before = own_set();
        let _follower = Follower::new(companion).unwrap();
        Sampler { companion: companion.clone(), other: None }.sample(0);
        assert_eq!((companion.unseen.get(), companion.moves.get()), (1, 0));
        assert_eq!(own_set(), before);
    });
}

/// Requests are served while the sampler waits for the client.
#[test]
fn requests_go_on_while_a_sample_waits() {
    in_a_thread(|companion| {
        let (clients, waits) = sync_channel(1);
        let mut follower = Follower::of(companion, clients);
        for round in 1..100 {
            follower.served = Follower::SERVED;
            follower.received(7, || Follower::SAMPLE_MIN * round);
        }
        assert_eq!(waits.try_iter().count(), 1, "one sample is pending, others are dropped");
    });
}

#[test]
fn its_waits_for_a_processor_can_be_read() {
    let companion: Arc<Companion> = Arc::default();
    let thread = {
        let companion = companion.clone();
        kedge_base::spawn_named("companion", move || {
            let follower = Follower::new(&companion).unwrap();
            assert!(companion.is_there() && companion.standing().is_some_and(|now| now.runnable));
            drop(follower);
        })
    };
    thread.unwrap().join().unwrap();
    assert!(!companion.is_there());
}

/// With two processors, a companion that sleeps between its client's requests binds itself to the
/// other one.
#[test]
fn short_sleeps_lead_it_to_the_other_of_two_processors() {
    let allowed = own_set();
    if allowed.count() != 2 {
        return;
    }
    in_a_thread(|companion| {
        let mut follower = Follower::new(companion).unwrap();
        let (short, long) = (Follower::SLEEP_SHORT / 2, Follower::SLEEP_SHORT * 2);
        let mut now = Duration::from_secs(1);
        let mut request = |follower: &mut Follower<'_>, sleep: Option<Duration>| {
            if let Some(sleep) = sleep {
                follower.slept(now);
                now += sleep;
            }
            follower.received(0, || now);
        };
        let first = (0..CpuSet::MAX_CPU as u32).find(|cpu| own_set().is_set(*cpu as usize)).unwrap();
        companion.bind(first);
        for _ in 0..10 {
            request(&mut follower, Some(long));
            request(&mut follower, Some(short));
            request(&mut follower, None);
        }
        assert_eq!(companion.processor(), Some(first), "pauses of the client and single sleeps");
        (0..2).for_each(|_| request(&mut follower, Some(short)));
        let other = companion.processor();
        assert!(other.is_some_and(|other| other != first));
        (0..Follower::AWAKE).for_each(|_| request(&mut follower, None));
        (0..2).for_each(|_| request(&mut follower, Some(short)));
        assert_eq!(companion.processor(), Some(first), "the client went back");
        // On neither processor do the sleeps end.
        let before = companion.moves.get();
        (0..10_000).for_each(|_| request(&mut follower, Some(short)));
        let moves = companion.moves.get() - before;
        assert!((5..25).contains(&moves), "{moves} changes in one second");
    });
}

/// CAP_SYS_NICE gives the right. A helper thread tries it, so that the companion need not.
#[test]
fn the_right_to_release_the_companion_is_found_without_using_it() {
    in_a_thread(|_| {
        let may = may_release();
        let tid = rustix::thread::gettid();
        sys::set_policy(tid, libc::SCHED_IDLE).unwrap();
        assert_eq!(sys::set_policy(tid, libc::SCHED_OTHER).is_ok(), may);
    });
}
