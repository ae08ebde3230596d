use super::*;
use kedge_base::spawn_named;
use std::sync::atomic::AtomicUsize;

fn shut_both(gate: &Gate) {
    gate.shut(Door::Change);
    gate.shut(Door::Work);
    gate.set_frozen(1);
}

#[test]
fn who_is_inside_is_waited_for_and_may_enter_again() {
    let gate = Arc::new(Gate::new());
    let (entered, enter) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let inner = gate.clone();
    let change = spawn_named("change", move || {
        let _outer = inner.change();
        entered.send(()).unwrap();
        left.recv().unwrap();
        // The door is closed here. If this entry waited, the thread would wait for itself.
        drop(inner.change());
        assert!(inner.try_change().is_some());
        assert_eq!(inner.changes_inside(), 1, "counted once");
    });
    enter.recv().unwrap();
    let closing = gate.clone();
    let freeze = spawn_named("freeze", move || closing.shut(Door::Change)).unwrap();
    while gate.phase() == Phase::Open {
        std::thread::yield_now();
    }
    assert!(gate.try_change().is_none() && gate.work().is_some() && gate.try_work().is_none());
    assert!(!freeze.is_finished());
    leave.send(()).unwrap();
    freeze.join().unwrap();
    change.unwrap().join().unwrap();
    assert_eq!(gate.changes_inside(), 0);
}

#[test]
fn what_waits_goes_on_once() {
    let gate = Arc::new(Gate::new());
    let calls = Arc::new(AtomicUsize::new(0));
    let later = || -> Option<Thawed> {
        let calls = calls.clone();
        Some(Box::new(move || {
            calls.fetch_add(1, SeqCst);
        }))
    };
    drop(gate.change_or(later).expect("open"));
    gate.open_if_frozen();
    shut_both(&gate);
    assert!(gate.change_or(later).is_none() && gate.change_or(later).is_none());
    assert!(gate.work().is_none(), "there is nothing to do");
    assert_eq!(gate.since(), Some(1));
    let waiting = gate.clone();
    let thread = spawn_named("change", move || drop(waiting.change())).unwrap();
    assert_eq!(calls.load(SeqCst), 0);
    gate.open();
    thread.join().unwrap();
    assert_eq!((calls.load(SeqCst), gate.since()), (2, None));
    gate.open();
    assert_eq!(calls.load(SeqCst), 2);
    assert!(gate.change_or(later).is_some() && gate.try_work().is_some());
}

/// Many threads make changes and do work. While both doors are closed, no thread is inside.
#[test]
fn nobody_is_inside_a_shut_gate() {
    const ROUNDS: usize = 200;
    let gate = Arc::new(Gate::new());
    let (inside, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let served: Arc<[AtomicUsize; 8]> = Arc::default();
    let threads: Vec<_> = (0..8)
        .map(|i| {
            let (gate, inside, stop, served) = (gate.clone(), inside.clone(), stop.clone(), served.clone());
            spawn_named("inside", move || {
                while stop.load(SeqCst) == 0 {
                    if i % 2 == 0 {
                        let _change = gate.change();
                        inside.fetch_add(1, SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    } else if let Some(_work) = gate.work() {
                        inside.fetch_add(1, SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    }
                    served[i].fetch_add(1, SeqCst);
                }
            })
            .unwrap()
        })
        .collect();
    let all_served = || served.iter().all(|n| n.load(SeqCst) > 0);
    for round in 0.. {
        if round >= ROUNDS && all_served() {
            break;
        }
        let single = gate.single();
        shut_both(&gate);
        for _ in 0..20 {
            assert_eq!(inside.load(SeqCst), 0, "round {round}");
            std::thread::yield_now();
        }
        gate.open();
        drop(single);
        std::thread::yield_now();
    }
    stop.store(1, SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(inside.load(SeqCst), 0);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "lock order")]
fn a_change_with_a_lock_held_is_noticed_while_the_gate_is_open() {
    let lock = Mutex::new(Rank::InodeMeta, ());
    let _held = lock.lock();
    drop(Gate::new().change());
}
