use super::*;

#[test]
fn downward_is_fine_and_ranks_are_given_back() {
    let gate = RwLock::new(Rank::EpochGuard, ());
    let log = Mutex::new(Rank::LogState, 1);
    for _ in 0..2 {
        let _g = gate.read();
        assert_eq!(*log.lock(), 1);
    }
}

#[test]
fn ascending_order_within_a_rank_is_fine() {
    let a = Mutex::with_order(Rank::InodeIo, 1, ());
    let b = Mutex::with_order(Rank::InodeIo, 2, ());
    let _a = a.lock();
    let _b = b.lock();
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order")]
fn upward_is_refused() {
    let log = Mutex::new(Rank::LogState, ());
    let gate = RwLock::new(Rank::EpochGuard, ());
    let _l = log.lock();
    let _g = gate.read();
}
