//! An image that an earlier build has made, with records in its log, is read correctly.

use crate::common::images::{assert_clean, open_still};
use kedge_base::IoBuf;
use kedge_device::{Device, MemDevice};
use kedgefs::*;
use std::sync::Arc;

/// `examples/golden.rs` describes the contents of the image and how it was made.
const GOLDEN: &[u8] = include_bytes!("golden/v2.blocks");
/// `u::rwx,u:1000:r--,g::r-x,m::r-x,o::---`
const LIST: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255,
    16, 0, 5, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];
/// An image of version 2 with access control lists, file flags and whiteouts.
const FEATURES: &[u8] = include_bytes!("golden/v2-features.blocks");
/// The same, with large values of extended attributes.
const LARGE_XATTRS: &[u8] = include_bytes!("golden/v2-large-xattrs.blocks");
const VERSION_1: &[u8] = include_bytes!("golden/v1.blocks");

fn image(blocks: &[u8]) -> Arc<MemDevice> {
    let device = MemDevice::new(16 << 20);
    for entry in blocks.chunks_exact(8 + 4096) {
        let (number, block) = entry.split_at(8);
        let number = u64::from_le_bytes(number.try_into().unwrap());
        device.write(number * 4096, &IoBuf::from_bytes(block), false).unwrap();
    }
    Arc::new(device)
}

/// Log writes of version 1 have no keyed hash, so this version cannot verify them.
#[test]
fn an_image_of_version_1_is_refused_by_mount_fsck_and_repair_and_stays_as_it_is() {
    let device = image(VERSION_1);
    let before = device.bytes(0, 16 << 20);
    for read_only in [false, true] {
        let options = MountOptions { read_only, ..MountOptions::default() };
        let opened = FileSystem::open(device.clone(), Arc::new(ManualClock::default()), options);
        let error = opened.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("format version 1; "), "{error}");
    }
    let report = kedge_fsck::check(device.clone(), &kedge_fsck::CheckOptions::default());
    assert_eq!((report.count(kedge_fsck::FindingKind::Unsupported), report.exit_code()), (2, 8), "{report}");
    let full = kedge_fsck::RepairOptions::new(kedge_fsck::RepairMode::Full);
    let repair = kedge_fsck::repair(device.clone(), &full);
    assert_eq!((repair.ending, repair.exit_code), (kedge_fsck::Ending::Left, 8), "{repair}");
    assert!(device.bytes(0, 16 << 20) == before, "something was written");
}

#[test]
fn the_golden_image_is_read_as_it_was_meant() {
    let device = image(GOLDEN);
    assert_clean(&device);

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
    // The root, dir, big, the symlink and logged. The orphan is gone.
    assert_eq!(fs.statfs().inodes - fs.statfs().inodes_free, 5);
    // The image lacks the features of access control lists and flags. Older versions must still be
    // able to read it.
    assert!(!fs.has_acls());
    assert!(matches!(fs.set_flags(dir.ino, FileFlags::NODUMP), Err(Error::NotSupported(_))));
    for name in [acl::ACCESS, acl::DEFAULT] {
        let set = fs.setxattr(dir.ino, name, &LIST, XattrMode::Any);
        assert!(matches!(set, Err(Error::NotSupported(_))), "{set:?}");
    }
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn lists_flags_and_whiteouts_of_the_golden_images_are_read_as_they_were_meant() {
    [FEATURES, LARGE_XATTRS].into_iter().for_each(has_features);
}

fn has_features(blocks: &[u8]) {
    let device = image(blocks);
    assert_clean(&device);
    let fs = open_still(&device);
    let at = |dir: Ino, name: &[u8]| fs.lookup(dir, name).unwrap();
    let listed = at(Ino::ROOT, b"listed");
    assert_eq!((listed.mode & 0o777, fs.getxattr(listed.ino, acl::ACCESS).unwrap()), (0o750, LIST.to_vec()));
    let fixed = at(Ino::ROOT, b"fixed");
    assert_eq!(fixed.flags, FileFlags::IMMUTABLE);
    assert!(matches!(fs.unlink(Ino::ROOT, b"fixed"), Err(Error::NotPermitted(_))));
    let dir = at(Ino::ROOT, b"dir");
    assert_eq!((dir.flags, fs.getxattr(dir.ino, acl::DEFAULT).unwrap()), (FileFlags::NODUMP, LIST.to_vec()));
    let heir = at(dir.ino, b"heir");
    assert_eq!((heir.flags, heir.mode & 0o777), (FileFlags::NODUMP, 0o640));
    assert!(fs.getxattr(heir.ino, acl::ACCESS).is_ok());
    let whiteout = at(Ino::ROOT, b"below");
    assert_eq!((whiteout.kind, whiteout.rdev), (FileKind::CharDevice, 0));
    assert_eq!(at(Ino::ROOT, b"above").kind, FileKind::Regular);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn large_attributes_of_the_golden_image_are_read_as_they_were_meant() {
    let device = image(LARGE_XATTRS);
    for _ in 0..2 {
        let fs = open_still(&device);
        let value =
            |name: &[u8]| fs.getxattr(fs.lookup(Ino::ROOT, name).unwrap().ino, b"user.large").unwrap();
        assert!(value(b"listed") == [b'S'; 5000] && value(b"dir") == [b'D'; 13_000]);
        fs.close().unwrap();
        assert_clean(&device);
    }
}

/// An older version must still be able to read the image.
#[test]
fn an_image_without_the_feature_takes_no_large_values() {
    let device = image(FEATURES);
    let fs = open_still(&device);
    let dir = fs.lookup(Ino::ROOT, b"dir").unwrap().ino;
    let set = |len| fs.setxattr(dir, b"user.x", &vec![b'x'; len], XattrMode::Any);
    set(4096).unwrap();
    assert!(matches!(set(4097), Err(Error::XattrTooLarge)));
    assert_eq!(fs.getxattr(dir, b"user.x").unwrap(), [b'x'; 4096]);
    fs.close().unwrap();
    assert_clean(&device);
}
