//! Images in memory, for tests that need no special device.

use kedge_base::{ManualClock, SystemClock};
use kedge_device::MemDevice;
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::{FileSystem, Ino, MountOptions, Owner};
use rand::Rng;
use rand::rngs::SmallRng;
use std::fmt::Debug;
use std::sync::Arc;

pub fn open(device: &Arc<MemDevice>) -> FileSystem {
    FileSystem::open(device.clone(), Arc::new(SystemClock::default()), MountOptions::default()).unwrap()
}

/// Opens the file system with a clock that stands still, so that no thread does anything when time
/// passes.
pub fn open_still(device: &Arc<MemDevice>) -> FileSystem {
    FileSystem::open(device.clone(), Arc::new(ManualClock::default()), MountOptions::default()).unwrap()
}

/// Runs fsck, including the verification of data.
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

#[track_caller]
pub fn errno<T: Debug>(result: kedgefs::Result<T>) -> i32 {
    result.unwrap_err().errno()
}

pub fn noise(rng: &mut SmallRng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.random()).collect()
}

/// Writes to the start of a file. Creates the file if it does not exist.
pub fn put(fs: &FileSystem, dir: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = match fs.lookup(dir, name.as_bytes()) {
        Ok(attr) => attr.ino,
        Err(_) => fs.create(dir, name.as_bytes(), 0o644, Owner::default()).unwrap().ino,
    };
    assert_eq!(fs.write(ino, 0, data).unwrap(), data.len());
    ino
}

/// The bytes of a file. Bytes that are not in memory are read from the device.
pub fn contents(fs: &FileSystem, ino: Ino) -> Vec<u8> {
    let mut data = vec![0xee; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read_uncached(ino, 0, &mut data).unwrap(), data.len());
    data
}

/// The names in a directory, sorted. Reads one entry at a time, like a caller with a small buffer.
pub fn names(fs: &FileSystem, dir: Ino) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let before = cookie;
        fs.readdir(dir, cookie, &mut |entry| {
            cookie = entry.cookie;
            if entry.name != b"." && entry.name != b".." {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            }
            false
        })
        .unwrap();
        if cookie == before {
            names.sort();
            return names;
        }
    }
}
