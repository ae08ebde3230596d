use super::give_up_device;
use kedge_base::SystemClock;
use kedge_device::{FileDevice, OpenOptions, WatchedDevice};
use std::sync::Arc;

#[test]
fn a_device_that_is_given_up_is_closed_although_the_process_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let options = OpenOptions::default();
    let file = FileDevice::create(&path, 1 << 20, options).unwrap();
    let device = WatchedDevice::new(file, Arc::new(SystemClock::default()));
    assert!(FileDevice::open(&path, options).is_err(), "the device holds its lock");
    give_up_device(&device);
    FileDevice::open(&path, options).expect("the device is closed");
    drop(device);
}
