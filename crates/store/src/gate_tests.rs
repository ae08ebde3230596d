use super::*;
use kedge_base::spawn_named;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Two numbers that are equal whenever nobody is inside.
#[derive(Default)]
struct Pair(AtomicU64, AtomicU64);

#[test]
fn nobody_is_inside_while_it_is_closed() {
    let shared = Arc::new((Gate::new(), Pair::default()));
    let inside: Vec<_> = (0..2 * STRIPES)
        .map(|_| {
            let shared = shared.clone();
            let body = move || {
                let (gate, pair) = &*shared;
                for _ in 0..500 {
                    let _pass = gate.enter();
                    pair.0.fetch_add(1, Relaxed);
                    std::thread::yield_now();
                    pair.1.fetch_add(1, Relaxed);
                }
            };
            spawn_named("inside", body).expect("start a thread")
        })
        .collect();
    let (gate, pair) = &*shared;
    let all = 2 * STRIPES as u64 * 500;
    loop {
        let _closed = gate.close();
        let (a, b) = (pair.0.load(Relaxed), pair.1.load(Relaxed));
        assert_eq!(a, b, "somebody is inside");
        if a == all {
            break;
        }
    }
    inside.into_iter().for_each(|t| t.join().expect("no panic"));
}
