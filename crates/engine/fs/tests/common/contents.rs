//! Files of an image in memory, for the tests of how their data is stored.

use kedge_base::SystemClock;
use kedge_device::MemDevice;
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::{FileSystem, Ino, MountOptions};
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;

pub fn open(device: &Arc<MemDevice>) -> FileSystem {
    FileSystem::open(device.clone(), Arc::new(SystemClock::default()), MountOptions::default()).unwrap()
}

/// What fsck finds, data included.
pub fn check(device: &MemDevice) -> kedge_fsck::Report {
    let replay = Some(Arc::new(StoreReplay) as Arc<dyn kedge_fsck::Replay>);
    let options = CheckOptions { replay, data: true, findings_max: 1 << 20, ..CheckOptions::default() };
    kedge_fsck::check(Arc::new(device.fork()), &options)
}

#[track_caller]
pub fn assert_clean(device: &MemDevice) {
    let report = check(device);
    assert!(report.is_clean(), "{report}");
}

pub fn noise(rng: &mut SmallRng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.random()).collect()
}

/// The bytes of a file, of which those that are not in memory are read from the device.
pub fn contents(fs: &FileSystem, ino: Ino) -> Vec<u8> {
    let mut data = vec![0xee; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read_uncached(ino, 0, &mut data).unwrap(), data.len());
    data
}
