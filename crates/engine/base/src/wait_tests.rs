use super::*;
use crate::lock::{Condvar, Mutex, Rank, RwLock};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

fn counting() -> Rc<Cell<u32>> {
    let calls = Rc::new(Cell::new(0));
    let seen = calls.clone();
    set_stand_in(move || seen.set(seen.get() + 1));
    calls
}

#[test]
fn only_the_first_wait_of_a_body_calls() {
    let calls = counting();
    about_to_wait();
    assert_eq!(calls.get(), 0, "outside of passing_on nothing runs");
    assert!(!passing_on(|| {}));
    assert_eq!(calls.get(), 0);
    assert!(passing_on(|| {
        about_to_wait();
        about_to_wait();
    }));
    assert_eq!(calls.get(), 1);
    about_to_wait();
    assert_eq!(calls.get(), 1);
    assert!(passing_on(about_to_wait));
    assert_eq!(calls.get(), 2);
}

#[test]
fn conditions_and_contended_locks_call() {
    let calls = counting();
    let free = Mutex::new(Rank::InodeMeta, ());
    assert!(!passing_on(|| drop(free.lock())), "taking a free lock does not wait");
    let condition = Condvar::new();
    assert!(passing_on(|| {
        condition.wait_for(&mut free.lock(), Duration::from_micros(1));
    }));
    assert_eq!(calls.get(), 1);

    // Other threads hold each lock until the stand-in function wakes them.
    let held = Arc::new((Mutex::new(Rank::InodeMeta, ()), RwLock::new(Rank::InodeIo, ())));
    for which in 0..3 {
        let (taken, is_taken) = std::sync::mpsc::channel();
        let (free, is_free) = std::sync::mpsc::channel::<()>();
        let mine = held.clone();
        let holder = crate::spawn_named("holder", move || {
            let _both = (mine.1.write(), mine.0.lock());
            taken.send(()).unwrap();
            is_free.recv().unwrap();
        })
        .unwrap();
        is_taken.recv().unwrap();
        set_stand_in(move || free.send(()).unwrap());
        assert!(passing_on(|| match which {
            0 => drop(held.0.lock()),
            1 => drop(held.1.read()),
            _ => drop(held.1.write()),
        }));
        holder.join().unwrap();
    }
}
