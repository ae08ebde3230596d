use super::*;
use crate::{FormatParams, OpenOptions, format, read_superblock};
use kedge_base::{Clock, ManualClock};
use kedge_device::MemDevice;

/// The background thread may have been woken before the close, and come to run between the last checkpoint and the end of
/// the log.
#[test]
fn a_checkpoint_that_comes_after_the_last_leaves_the_clean_mark() {
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
    store.checkpoint(CheckpointCause::Request).unwrap();
    assert!(!read_superblock(&*device).unwrap().0.checkpoint.clean, "in use");
    store.checkpoint_clean().unwrap();
    let closed = read_superblock(&*device).unwrap().0.checkpoint;
    assert!(closed.clean);
    assert!(store.checkpoint(CheckpointCause::Background).is_err());
    assert_eq!(read_superblock(&*device).unwrap().0.checkpoint, closed);
}
