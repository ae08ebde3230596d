use super::*;
use crate::checkpoint::test_log::{checkpoints, filled, put, store, take, used};
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn operations_near_a_full_log_wait_longer_for_a_device_that_takes_long() {
    let waited = |durable_write: Duration| {
        let store = store(Some(50));
        store.device.latency().record(LatencyKind::DurableWrite, durable_write);
        let _most = take(&store, 0.95);
        store.throttle();
        let delays = store.stats().throttle_ns.snapshot();
        assert_eq!(delays.count, 1);
        Duration::from_nanos(delays.max)
    };
    let (near, far) = (waited(Duration::from_micros(20)), waited(Duration::from_millis(20)));
    assert!(near > Duration::ZERO && near <= THROTTLE_MAX, "{near:?}");
    assert!(far >= 9 * near && far <= Duration::from_millis(40), "{far:?}, near: {near:?}");
}

#[test]
fn operations_are_slowed_down_when_the_log_is_nearly_full_and_later_with_smaller_percentages() {
    let slowed = |percent, part| {
        let store = store(Some(percent));
        let _most = take(&store, part);
        store.throttle();
        store.stats().throttle_ns.snapshot().count
    };
    assert_eq!((slowed(50, 0.86), slowed(50, 0.89)), (0, 1));
    assert_eq!((slowed(25, 0.86), slowed(25, 0.89)), (0, 1));
    assert_eq!((slowed(10, 0.94), slowed(10, 0.96)), (0, 1));
    assert_eq!((slowed(2, 0.98), slowed(2, 0.995)), (0, 1));
}

/// Fills the log record by record without a checkpoint. Returns the used fraction at which a
/// background checkpoint would start with this percentage.
fn begins_at(percent: u8) -> f64 {
    let store = store(None);
    // The percentage is set only for the check: a commit that saw it would wake the background
    // thread.
    loop {
        store.checkpoint.async_percent.store(percent as u32, Relaxed);
        let begins = store.log_below_threshold();
        store.checkpoint.async_percent.store(0, Relaxed);
        if begins || used(&store) > 0.995 {
            return used(&store);
        }
        put(&store);
    }
}

#[test]
fn each_percentage_begins_elsewhere() {
    let mut last = 1.0;
    for percent in [1, 5, 12, 25, 50, 75, 87, 92, 97, 99] {
        let at = begins_at(percent);
        let wanted = 1.0 - percent as f64 / 100.0;
        assert!((at - wanted).abs() < 0.01 && at < last, "{percent}: {at}");
        last = at;
    }
}

#[test]
fn a_switch_to_noasync_starts_no_checkpoint_and_one_to_async_only_if_the_log_needs_it() {
    let store = filled(0.4);
    let wished = || store.requests.wanted();
    let before = checkpoints(&store);
    for percent in [None, Some(50), Some(55), None] {
        store.set_async_checkpoint(percent);
        assert_eq!((wished(), checkpoints(&store)), (None, before), "{percent:?}");
    }
    while used(&store) < 0.7 {
        put(&store);
    }
    store.set_async_checkpoint(None);
    assert_eq!((wished(), checkpoints(&store)), (None, before), "the log is fuller than the default allows");
    store.set_async_checkpoint(Some(50));
    while checkpoints(&store) == before {
        std::thread::yield_now();
    }
    assert_eq!(store.stats.checkpoints[CheckpointCause::Background as usize].get(), 1);
}

/// A checkpoint is requested, but `noasync_checkpoint` is in force before the thread can start it.
#[test]
fn a_wish_for_a_checkpoint_lapses_with_a_switch_to_noasync() {
    let store = filled(0.7);
    let before = checkpoints(&store);
    store.wake_checkpoint(CheckpointCause::Background);
    while store.requests.wanted().is_some() {
        std::thread::yield_now();
    }
    assert_eq!(checkpoints(&store), before);
    store.wake_checkpoint(CheckpointCause::DirtyNodes);
    while checkpoints(&store) == before {
        std::thread::yield_now();
    }
}
