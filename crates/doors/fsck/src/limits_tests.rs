//! Damage of limits. The engine makes the images.

use crate::kinds::FindingKind::{self, *};
use crate::{CheckOptions, Report, StoreReplay, check};
use kedge_base::{BLOCK_SIZE, BlockNo, Ino, SystemClock};
use kedge_device::MemDevice;
use kedge_format::limits::{LimitEntry, key};
use kedge_format::node::{NODE_SIZE, NodeMut, NodeView};
use kedgefs::{FileSystem, FormatOptions, MountOptions, Owner, SetLimit};
use std::collections::BTreeSet;
use std::sync::Arc;

const OWNER: Owner = Owner { uid: 0, gid: 0 };

/// An image with limit 1 at `outer`, limit 2 inside it at `outer/inner`, and limit 3 at `other`.
fn limited() -> MemDevice {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock = || Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device.clone(), clock(), MountOptions::default()).unwrap();
    let set = SetLimit { bytes: Some(Some(8 << 20)), files: Some(Some(100)) };
    let make = |parent: Ino, name: &[u8]| {
        let dir = fs.mkdir(parent, name, 0o755, OWNER).unwrap().ino;
        let file = fs.create(dir, b"file", 0o644, OWNER).unwrap();
        fs.write(file.ino, 0, &[7; 20_000]).unwrap();
        fs.set_limit(dir, set).unwrap();
        dir
    };
    let outer = make(Ino::ROOT, b"outer");
    make(outer, b"inner");
    make(Ino::ROOT, b"other");
    fs.close().unwrap();
    drop(fs);
    device.fork()
}

fn judged(device: &MemDevice) -> Report {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    check(Arc::new(device.fork()), &options)
}

fn found_after(number: u32, edit: impl FnOnce(&mut LimitEntry)) -> BTreeSet<FindingKind> {
    let device = limited();
    let (sb, _) = kedge_store::read_superblock(&device).unwrap();
    let root = sb.checkpoint.trees.unwrap().root;
    let mut bytes = device.bytes(root.byte_offset(), NODE_SIZE);
    let at = NodeView::trusted(&bytes).search(&key(0, number)).unwrap();
    let mut entry = LimitEntry::decode(NodeView::trusted(&bytes).value(at)).unwrap();
    edit(&mut entry);
    let mut node = NodeMut::trusted(&mut bytes);
    assert!(node.replace_value(at, &entry.encode()));
    node.seal(&sb.geometry.log_secret);
    for (block, new) in (root.0..).zip(bytes.chunks(BLOCK_SIZE)) {
        device.corrupt(BlockNo(block).byte_offset(), |old| old.copy_from_slice(new));
    }
    let report = judged(&device);
    // A mount either refuses the image or works with it.
    let copy = Arc::new(device.fork());
    if let Ok(fs) = FileSystem::open(copy, Arc::new(SystemClock::default()), MountOptions::default()) {
        for limit in fs.limits() {
            let _ = fs.create(limit.dir, b"new", 0o644, OWNER);
            let _ = fs.set_limit(limit.dir, SetLimit { bytes: Some(Some(1 << 20)), files: None });
        }
        let _ = fs.close();
    }
    report.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn an_image_with_limits_is_clean() {
    let report = judged(&limited());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn wrong_counts_are_found() {
    let wrong = BTreeSet::from([LimitWrong]);
    assert_eq!(found_after(1, |e| e.blocks += 1), wrong);
    assert_eq!(found_after(2, |e| e.inodes = 0), wrong);
    assert_eq!(found_after(3, |e| e.blocks = 0), wrong);
    // The outer limit then misses the blocks of the inner one.
    assert_eq!(found_after(2, |e| e.parent = 0), wrong);
    assert_eq!(found_after(3, |e| e.parent = 1), wrong);
    assert!(found_after(1, |e| (e.blocks_max, e.inodes_max) = (None, Some(1))).is_empty());
}

#[test]
fn impossible_limits_are_found() {
    let has_bad = |found: BTreeSet<FindingKind>| assert!(found.contains(&LimitBad), "{found:?}");
    has_bad(found_after(1, |e| e.parent = 2)); // a circle
    has_bad(found_after(1, |e| e.parent = 1));
    has_bad(found_after(3, |e| e.parent = 77));
    // An entry that cannot be decoded.
    has_bad(found_after(2, |e| e.dir = Ino(0)));
}
