use super::*;
use crate::{Class, FormatParams, Need, OpenOptions, format, read_superblock};
use kedge_base::{Clock, ManualClock};
use kedge_device::MemDevice;

/// With a log of 1 MiB.
fn fresh() -> (Arc<dyn Device>, Arc<Store>) {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(32 << 20));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let params = FormatParams {
        size: 32 << 20,
        log_size: 1 << 20,
        label: String::new(),
        uuid: uuid::Uuid::from_bytes([7; 16]),
        hash_seed: [9; 16],
        uid: 0,
        gid: 0,
    };
    format(device.clone(), clock.clone(), &params).unwrap();
    let store = Store::open(device.clone(), clock, &OpenOptions::default()).unwrap();
    (device, store)
}

/// The background thread may have been woken before the close, and come to run between the last checkpoint and the end of
/// the log.
#[test]
fn a_checkpoint_that_comes_after_the_last_leaves_the_clean_mark() {
    let (device, store) = fresh();
    store.checkpoint(CheckpointCause::Request).unwrap();
    assert!(!read_superblock(&*device).unwrap().0.checkpoint.clean, "in use");
    store.checkpoint_clean().unwrap();
    let closed = read_superblock(&*device).unwrap().0.checkpoint;
    assert!(closed.clean);
    assert!(store.checkpoint(CheckpointCause::Background).is_err());
    assert_eq!(read_superblock(&*device).unwrap().0.checkpoint, closed);
}

#[test]
fn what_is_reserved_is_not_free_to_a_checkpoint_that_rests_nor_to_who_comes_next() {
    let (_device, store) = fresh();
    let slowed = || store.stats().throttle_ns.snapshot().count;
    let need = |log_bytes| Need { log_bytes, items: 1, neighbours: 0, class: Class::Normal };
    assert!(store.has_time());
    let much = store.begin(need(600 << 10)).unwrap();
    assert!(!store.has_time(), "two thirds of the log are taken, though nothing is written");
    let most = store.begin(need(230 << 10)).unwrap();
    assert_eq!(slowed(), 0);
    store.throttle();
    assert_eq!(slowed(), 1);
    drop((much, most));
    assert!(store.has_time());
    store.throttle();
    assert_eq!(slowed(), 1, "what was given back is free at once");
}
