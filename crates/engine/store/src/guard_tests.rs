#![allow(clippy::disallowed_methods)]

use super::*;
use kedge_base::spawn_named;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Two numbers that are equal whenever no thread is inside the guard.
#[derive(Default)]
struct Pair(AtomicU64, AtomicU64);

#[test]
fn nobody_is_inside_while_it_is_closed() {
    let shared = Arc::new((EpochGuard::new(), Pair::default()));
    let inside: Vec<_> = (0..2 * STRIPES)
        .map(|_| {
            let shared = shared.clone();
            let body = move || {
                let (guard, pair) = &*shared;
                for _ in 0..500 {
                    let _pass = guard.enter();
                    pair.0.fetch_add(1, Relaxed);
                    std::thread::yield_now();
                    pair.1.fetch_add(1, Relaxed);
                }
            };
            spawn_named("inside", body).expect("start a thread")
        })
        .collect();
    let (guard, pair) = &*shared;
    let all = 2 * STRIPES as u64 * 500;
    loop {
        let _closed = guard.close();
        let (a, b) = (pair.0.load(Relaxed), pair.1.load(Relaxed));
        assert_eq!(a, b, "somebody is inside");
        if a == all {
            break;
        }
    }
    inside.into_iter().for_each(|t| t.join().expect("no panic"));
}

#[test]
fn who_was_inside_is_waited_for_and_who_comes_later_is_not() {
    let guard = Arc::new(EpochGuard::new());
    let (entered, wait_entered) = std::sync::mpsc::channel();
    let (leave, wait_leave) = std::sync::mpsc::channel::<()>();
    let left = Arc::new(AtomicU64::new(0));
    let inside = {
        let (guard, left) = (guard.clone(), left.clone());
        let body = move || {
            let pass = guard.enter();
            entered.send(()).expect("somebody listens");
            wait_leave.recv().expect("told to leave");
            left.store(1, Relaxed);
            drop(pass);
        };
        spawn_named("inside", body).expect("start a thread")
    };
    wait_entered.recv().expect("it enters");
    let waits = {
        let (guard, left) = (guard.clone(), left.clone());
        let body = move || {
            guard.wait_for_those_inside();
            left.load(Relaxed)
        };
        spawn_named("waits", body).expect("start a thread")
    };
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waits.is_finished());
    leave.send(()).expect("it listens");
    assert_eq!(waits.join().expect("no panic"), 1, "it has left");
    inside.join().expect("no panic");
    guard.wait_for_those_inside();
    drop(guard.enter());
}
