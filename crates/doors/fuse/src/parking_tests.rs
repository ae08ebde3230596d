use super::*;

/// An interrupt is kept for a bounded number of checks if its request is not parked, and as long as
/// its request is parked.
#[test]
fn interrupts_are_forgotten() {
    let waiting = Waiting::default();
    let mut interrupted = BTreeMap::from([(1, 0)]);
    for _ in 1..LOOKS_MAX {
        assert!(waiting.take_killed(&mut interrupted, |_| true).is_empty());
        assert_eq!(interrupted.len(), 1);
    }
    assert!(waiting.take_killed(&mut interrupted, |_| true).is_empty());
    assert!(interrupted.is_empty());
}
