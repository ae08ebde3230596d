use super::*;
use kedge_base::HANG;
use kedge_base::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::sync::mpsc;

/// Waits until `what` holds, or fails.
fn until(what: impl Fn() -> bool) {
    let rounds = (HANG.as_millis() / 5) as u32;
    assert!(
        (0..rounds).any(|_| {
            kedge_base::pause(std::time::Duration::from_millis(5));
            what()
        }),
        "it does not come about"
    );
}

/// Each caller gets the result of a round that begins after its call, since the running round may
/// have passed its data. How many callers share a round depends on when they begin to wait.
#[test]
fn no_caller_shares_the_round_that_runs_when_it_arrives() {
    let rounds = Arc::new(Rounds::new());
    let (begun, arrived) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (go, wait) = mpsc::channel::<()>();
    let (first, count) = (rounds.clone(), begun.clone());
    let first = kedge_base::spawn_named("first", move || {
        first.share(|| {
            let number = count.fetch_add(1, SeqCst);
            wait.recv().expect("the test goes on");
            number
        })
    })
    .expect("a thread");
    until(|| begun.load(SeqCst) == 1);
    let others: Vec<_> = (0..8)
        .map(|_| {
            let (rounds, count, arrived) = (rounds.clone(), begun.clone(), arrived.clone());
            kedge_base::spawn_named("other", move || {
                arrived.fetch_add(1, SeqCst);
                rounds.share(|| count.fetch_add(1, SeqCst))
            })
            .expect("a thread")
        })
        .collect();
    until(|| arrived.load(SeqCst) == 8);
    go.send(()).expect("the first round waits");
    assert_eq!(first.join().expect("no panic"), 0);
    for other in others {
        assert!(other.join().expect("no panic") > 0, "a caller shared the round that ran");
    }
    assert!(begun.load(SeqCst) >= 2);
    // No round is running any more, so a call begins one at once.
    let before = begun.load(SeqCst);
    assert_eq!(rounds.share(|| before + 100), before + 100);
}

/// A round that panics has no result. The callers that waited for it run one of their own.
#[test]
fn a_round_that_panics_is_followed_by_another() {
    let rounds = Arc::new(Rounds::new());
    let dying = rounds.clone();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        dying.share(|| -> u64 { panic!("for the test") })
    }));
    assert!(panicked.is_err());
    assert_eq!(rounds.share(|| 7), 7);
}
