use super::DistinctClock;
use kedge_base::{Clock, SystemClock, spawn_named};
use std::collections::BTreeSet;
use std::sync::Arc;

#[test]
fn no_two_readings_are_equal_and_none_is_far_from_the_system_clock() {
    const EACH: usize = 20_000;
    let clock = Arc::new(DistinctClock::new());
    let before = SystemClock::default().now();
    let readers = (0..4).map(|_| {
        let clock = clock.clone();
        spawn_named("reader", move || (0..EACH).map(|_| clock.now()).collect::<Vec<_>>()).unwrap()
    });
    let readers: Vec<_> = readers.collect();
    let mut all = BTreeSet::new();
    for reader in readers {
        let readings = reader.join().unwrap();
        assert!(readings.is_sorted(), "a thread's later reading is later");
        all.extend(readings.into_iter().map(|t| (t.sec, t.nsec)));
    }
    assert_eq!(all.len(), 4 * EACH);
    assert!(*all.first().unwrap() >= (before.sec, before.nsec));
    let after = SystemClock::default().now();
    let (sec, nsec) = *all.last().unwrap();
    let ahead = (sec - after.sec) * 1_000_000_000 + i64::from(nsec) - i64::from(after.nsec);
    assert!(ahead <= 4 * EACH as i64, "{ahead} ns ahead");
}

#[test]
fn a_clock_that_is_set_back_is_followed() {
    let hour = 3_600_000_000_000;
    assert_eq!(DistinctClock::after(i64::MIN, -5), -5);
    assert_eq!(DistinctClock::after(hour, hour), hour + 1);
    assert_eq!(DistinctClock::after(hour + 7, hour), hour + 8);
    assert_eq!(DistinctClock::after(hour, hour + 1), hour + 1);
    assert_eq!(DistinctClock::after(2 * hour, hour), hour);
}
