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

#[test]
fn the_list_of_ranks_is_the_lock_order() {
    assert!(Rank::ALL.windows(2).all(|pair| pair[0] < pair[1]), "the list does not ascend");
    // The ranks that allow waiting for the device come first; all later ranks forbid it.
    let io: Vec<bool> = Rank::ALL.iter().map(|rank| rank.may_wait_for_io()).collect();
    assert!(io.windows(2).all(|pair| pair[0] || !pair[1]), "{io:?}");
    assert!(!Rank::EpochGuard.may_wait_for_io() && Rank::InodeMeta.may_wait_for_io());
    assert_eq!(order_table().lines().count(), 2 + Rank::ALL.len());
    assert!(Rank::ALL.iter().all(|rank| !rank.guards().contains('|')));
}
