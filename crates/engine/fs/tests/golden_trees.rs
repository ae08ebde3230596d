//! Images that an earlier build has made, with trees and with records in their logs, are read
//! correctly and can be changed. `golden.rs` tests those without trees.

use crate::common::images::{assert_clean, open_still};
use kedge_base::IoBuf;
use kedge_device::{Device, MemDevice};
use kedge_format::superblock::{
    INCOMPAT_INLINE, INCOMPAT_KNOWN, INCOMPAT_MOVED_MAPS, INCOMPAT_SUMS, Superblock,
};
use kedgefs::*;
use std::sync::Arc;

/// `examples/golden_trees.rs` describes the contents of both images and how they were made.
const TREES: &[u8] = include_bytes!("golden/v2-trees.blocks");
const ALL: &[u8] = include_bytes!("golden/v2-all.blocks");
const SIZES: [u64; 2] = [64 << 20, 8 << 30];

fn image(blocks: &[u8], size: u64) -> Arc<MemDevice> {
    let device = MemDevice::new(size);
    for entry in blocks.chunks_exact(8 + 4096) {
        let (number, block) = entry.split_at(8);
        let number = u64::from_le_bytes(number.try_into().unwrap());
        device.write(number * 4096, &IoBuf::from_bytes(block), false).unwrap();
    }
    Arc::new(device)
}

fn at(fs: &FileSystem, from: Ino, path: &str) -> Ino {
    path.split('/').fold(from, |dir, name| fs.lookup(dir, name.as_bytes()).unwrap().ino)
}

#[track_caller]
fn reads(fs: &FileSystem, path: &str, parts: &[(u8, usize)]) {
    let is = fs.getattr(at(fs, Ino::ROOT, path)).unwrap();
    let mut bytes = vec![0; is.size as usize];
    assert_eq!(fs.read(is.ino, 0, &mut bytes).unwrap(), bytes.len());
    let wanted: Vec<u8> = parts.iter().flat_map(|(byte, len)| vec![*byte; *len]).collect();
    assert!(bytes == wanted, "{path}: {} bytes instead of {}", bytes.len(), wanted.len());
}

#[track_caller]
fn says(fs: &FileSystem, path: &str, text: &[u8]) {
    let parts: Vec<(u8, usize)> = text.iter().map(|byte| (*byte, 1)).collect();
    reads(fs, path, &parts);
}

fn has_what_was_written(fs: &FileSystem) {
    for (tree, first) in [("", b'L'), ("snapshot/", b'l')] {
        reads(fs, &format!("{tree}dir/large"), &[(first, 4096), (b'l', 40_000 - 4096)]);
        reads(fs, &format!("{tree}dir/clone"), &[(b'l', 4096), (b'c', 4096), (b'l', 40_000 - 8192)]);
        reads(fs, &format!("{tree}limited/counted"), &[(b'n', 8192)]);
    }
    reads(fs, "snapshot/dir/small", &[(b's', 300)]);
    reads(fs, "dir/late clone", &[(b'L', 4096), (b'l', 40_000 - 4096)]);
    for tree in ["fork", "late"] {
        reads(fs, &format!("{tree}/dir/large"), &[(b'F', 5000), (b'l', 35_000)]);
        says(fs, &format!("{tree}/dir/new"), b"only in the fork");
    }
    let small = |start: &[u8]| [start, &[b's'; 293]].concat();
    says(fs, "dir/small", &small(b"smaller"));
    says(fs, "late/dir/small", &small(b"smaller"));
    says(fs, "fork/dir/small", &small(b"smASHer"));
    reads(fs, "limited/logged", &[(b'g', 200)]);
    assert!(matches!(fs.lookup(Ino::ROOT, b"gone"), Err(Error::NotFound)));
    assert!(matches!(fs.lookup(at(fs, Ino::ROOT, "fork/dir"), b"clone"), Err(Error::NotFound)));
    assert!(fs.lookup(at(fs, Ino::ROOT, "late/dir"), b"clone").is_ok());
    let made = fs.create(at(fs, Ino::ROOT, "snapshot"), b"new", 0o644, Owner::default());
    assert_eq!(made.unwrap_err().errno(), 30);
    let limit = fs.limit_of(at(fs, Ino::ROOT, "limited")).unwrap().unwrap();
    assert_eq!((limit.bytes_max, limit.files_max, limit.files), (Some(64 << 10), Some(5), 3));
}

#[test]
fn the_golden_images_are_read_as_they_were_meant_and_can_be_changed() {
    for (blocks, size) in [TREES, ALL].into_iter().zip(SIZES) {
        let device = image(blocks, size);
        assert_clean(&device);
        let fs = open_still(&device);
        has_what_was_written(&fs);
        let owner = Owner::default();
        let more = fs.create(at(&fs, Ino::ROOT, "late/dir"), b"more", 0o644, owner).unwrap().ino;
        fs.write(more, 0, &[b'm'; 10_000]).unwrap();
        fs.delete_tree(Ino::ROOT, b"fork").unwrap();
        fs.fork(at(&fs, Ino::ROOT, "snapshot"), Ino::ROOT, b"fork", false).unwrap();
        fs.reclaim().unwrap();
        fs.close().unwrap();
        assert_clean(&device);
        let fs = open_still(&device);
        reads(&fs, "late/dir/more", &[(b'm', 10_000)]);
        reads(&fs, "fork/dir/small", &[(b's', 300)]);
        reads(&fs, "dir/clone", &[(b'l', 4096), (b'c', 4096), (b'l', 40_000 - 8192)]);
        fs.close().unwrap();
    }
}

/// Fails if the format has a new feature without a golden image.
#[test]
fn together_they_have_every_feature_that_the_format_knows() {
    let features = |blocks: &[u8], size: u64| {
        let (mut bits, block) = (0, 8 + 4096);
        for (slot, number) in [0, 16_u64].into_iter().enumerate() {
            let entry = blocks.chunks_exact(block).find(|entry| entry[..8] == number.to_le_bytes());
            bits |= Superblock::decode(&entry.unwrap()[8..], slot, size / 4096)
                .unwrap()
                .geometry
                .feature_incompat;
        }
        bits
    };
    assert_eq!(features(ALL, SIZES[1]), INCOMPAT_KNOWN);
    let without = INCOMPAT_SUMS | INCOMPAT_MOVED_MAPS | INCOMPAT_INLINE;
    assert_eq!(features(TREES, SIZES[0]), INCOMPAT_KNOWN & !without);
}
