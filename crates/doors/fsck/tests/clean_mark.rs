//! A clean mark alone is not trusted: fsck also considers later log writes, as a mount does.

use crate::common::{check, clock, newest, open, slot};
use kedge_base::{BLOCK_SIZE, IoBuf};
use kedge_device::{Device, MemDevice};
use kedge_format::superblock::SLOTS;
use kedge_fsck::{Ending, FindingKind, RepairKind, RepairMode, RepairOptions, repair};
use kedgefs::{FileSystem, FormatOptions, Ino, Owner};
use std::sync::Arc;

const OWNER: Owner = Owner { uid: 0, gid: 0 };

/// An unmounted image, and the same image after the next mount has synced a file and lost power.
fn unmounted_and_used() -> (MemDevice, MemDevice) {
    let device = Arc::new(MemDevice::new(16 << 20));
    let options = FormatOptions { log_size: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    let fs = open(device.clone()).unwrap();
    fs.create(Ino::ROOT, b"old", 0o644, OWNER).unwrap();
    fs.close().unwrap();
    let unmounted = device.fork();
    let fs = open(device.clone()).unwrap();
    let file = fs.create(Ino::ROOT, b"new", 0o644, OWNER).unwrap().ino;
    fs.write(file, 0, b"synced").unwrap();
    fs.fsync(file, false).unwrap();
    let used = device.fork();
    fs.shutdown(false).unwrap();
    (unmounted, used)
}

fn put_slot(device: &MemDevice, i: usize, bytes: &[u8]) {
    device.write(SLOTS[i].byte_offset(), &IoBuf::from_bytes(bytes), false).unwrap();
}

#[test]
fn a_log_newer_than_the_clean_slot_is_a_lost_slot() {
    let (unmounted, image) = unmounted_and_used();
    assert!(check(&unmounted).is_clean() && check(&image).is_clean());
    // The device lost the slot of the last mount: both slots on the device are valid, and the newer
    // slot says "unmounted".
    for i in 0..2 {
        put_slot(&image, i, &slot(&unmounted, i));
    }
    assert!(newest(&image).unwrap().1.checkpoint.clean);
    let error = open(Arc::new(image.fork())).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("newer superblock slot"), "{error}");

    let report = check(&image);
    assert_eq!((report.count(FindingKind::ReplayFailed), report.exit_code()), (1, 4), "{report}");
    assert!(report.to_string().contains("newer superblock slot, which is lost"), "{report}");

    let device = Arc::new(image);
    let before = device.fork();
    let preened = repair(device.clone(), &RepairOptions::new(RepairMode::Preen));
    assert_eq!((preened.ending, preened.exit_code), (Ending::Left, 4), "{preened}");
    assert_eq!(device.difference_hash(&before), before.difference_hash(&before), "something was written");

    // The synced changes are dropped and reported; the state of the clean slot remains.
    let repaired = repair(device.clone(), &RepairOptions::new(RepairMode::Full));
    assert_eq!((repaired.ending, repaired.exit_code), (Ending::Repaired, 1), "{repaired}");
    assert_eq!(repaired.count(RepairKind::LogGivenUp), 1, "{repaired}");
    assert!(check(&device).is_clean());
    let fs = open(device.clone()).unwrap();
    fs.lookup(Ino::ROOT, b"old").unwrap();
    fs.lookup(Ino::ROOT, b"new").unwrap_err();
    fs.close().unwrap();
}

#[test]
fn a_log_of_the_clean_slot_itself_is_replayed() {
    let (_, image) = unmounted_and_used();
    let (i, mut sb) = newest(&image).unwrap();
    assert_eq!(sb.checkpoint.tail_lsn, sb.checkpoint.checkpoint_lsn);
    sb.checkpoint.clean = true;
    let mut block = vec![0; BLOCK_SIZE];
    sb.encode(&mut block);
    put_slot(&image, i, &block);

    let report = check(&image);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.count(FindingKind::SuperblockCleanWithLog), 1, "{report}");
    assert_eq!(report.counters.inodes, 3, "judged as a mount would leave it: {report}");

    let device = Arc::new(image);
    let preened = repair(device.clone(), &RepairOptions::new(RepairMode::Preen));
    assert_eq!((preened.ending, preened.exit_code), (Ending::Repaired, 1), "{preened}");
    let fs = open(device.clone()).unwrap();
    let file = fs.lookup(Ino::ROOT, b"new").unwrap().ino;
    let mut bytes = [0; 100];
    assert_eq!(fs.read(file, 0, &mut bytes).unwrap(), 6);
    assert_eq!(&bytes[..6], b"synced");
    fs.close().unwrap();
    assert_eq!(check(&device).warnings, 0);
}
