//! An image that an earlier build made, with records in its log, is read as it was meant.

#![allow(clippy::unwrap_used)]

use kedge_base::IoBuf;
use kedge_device::{Device, MemDevice};
use kedgefs::*;
use std::sync::Arc;

/// See `examples/golden.rs` for how it was made and what is in it.
const GOLDEN: &[u8] = include_bytes!("golden/v1.blocks");

fn image() -> Arc<MemDevice> {
    let device = MemDevice::new(16 << 20);
    for entry in GOLDEN.chunks_exact(8 + 4096) {
        let (number, block) = entry.split_at(8);
        let number = u64::from_le_bytes(number.try_into().unwrap());
        device.write(number * 4096, &IoBuf::from_bytes(block), false).unwrap();
    }
    Arc::new(device)
}

#[test]
fn the_golden_image_is_read_as_it_was_meant() {
    let device = image();
    let options = kedge_fsck::CheckOptions {
        replay: Some(Arc::new(kedge_fsck::StoreReplay)),
        ..kedge_fsck::CheckOptions::default()
    };
    let report = kedge_fsck::check(device.clone(), &options);
    assert!(report.is_clean(), "{report}");

    let fs =
        FileSystem::open(device.clone(), Arc::new(ManualClock::default()), MountOptions::default()).unwrap();
    let dir = fs.lookup(Ino::ROOT, b"dir").unwrap();
    assert_eq!((dir.mode & 0o7777, dir.uid, dir.gid, dir.nlink), (0o750, 1000, 100, 2));
    assert_eq!(fs.getxattr(dir.ino, b"user.key").unwrap(), b"value");
    let big = fs.lookup(dir.ino, b"big").unwrap();
    assert_eq!(big.ino, fs.lookup(Ino::ROOT, b"hard").unwrap().ino);
    assert_eq!((big.nlink, big.size), (2, (1 << 20) + 13));
    let mut bytes = vec![0xff; big.size as usize];
    assert_eq!(fs.read(big.ino, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes[..40_000].iter().all(|b| *b == b'b') && bytes[40_000..1 << 20].iter().all(|b| *b == 0));
    assert_eq!(&bytes[1 << 20..], b"behind a hole");
    assert_eq!(fs.readlink(fs.lookup(Ino::ROOT, b"moved").unwrap().ino).unwrap(), b"big");
    assert!(matches!(fs.lookup(dir.ino, b"link"), Err(Error::NotFound)));
    assert!(matches!(fs.lookup(Ino::ROOT, b"gone"), Err(Error::NotFound)));
    let logged = fs.lookup(Ino::ROOT, b"logged").unwrap();
    let mut bytes = [0; 64];
    assert_eq!(fs.read(logged.ino, 0, &mut bytes).unwrap(), 26);
    assert_eq!(&bytes[..26], b"data that rides in the log");
    // root, dir, big, the symlink, logged: the orphan is gone.
    assert_eq!(fs.statfs().inodes - fs.statfs().inodes_free, 5);
    fs.close().unwrap();
    let report = kedge_fsck::check(device, &options);
    assert!(report.is_clean(), "{report}");
}
