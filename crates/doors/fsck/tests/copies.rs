//! Copies of the superblock: images whose beginning, end, middle or slots are overwritten, and what
//! a repair brings back.
//!
//! Each file holds bytes that its inode number determines, so that a lost block (zeros) differs
//! from a foreign one.

use crate::common::{clock, open, with_replay};
use kedge_base::{BLOCK_SIZE, BlockNo, Generation, IoBuf};
use kedge_device::sim::{Event, SimDevice, StatePlan};
use kedge_device::{Device, MemDevice};
use kedge_format::superblock::{COUNTER_MAX, INCOMPAT_COPIES, SLOTS, Superblock};
use kedge_fsck::{Ending, FindingKind, RepairKind, RepairMode, RepairOptions, RepairReport, Report, repair};
use kedgefs::{FileKind, FileSystem, FormatOptions, Ino, Owner};
use std::collections::BTreeMap;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn make(size: u64, log: Option<u64>, id: u128) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    format(&device, size, log, id);
    device
}

fn format(device: &Arc<MemDevice>, size: u64, log_size: Option<u64>, id: u128) {
    let uuid = Some(uuid::Uuid::from_u128(id));
    let options =
        FormatOptions { size: Some(size), log_size, uuid, overwrite: true, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
}

fn byte(ino: Ino, block: u64) -> u8 {
    ((ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block.wrapping_mul(0xff51_afd7_ed55_8ccd)) >> 32) as u8 | 1
}

fn pattern(ino: Ino, blocks: u64) -> Vec<u8> {
    (0..blocks).flat_map(|block| vec![byte(ino, block); BLOCK_SIZE]).collect()
}

/// Makes `count` files of up to 24 blocks, 40 in each directory.
fn load(fs: &FileSystem, top: Ino, prefix: &str, count: u64) {
    let mut dir = top;
    for i in 0..count {
        if i % 40 == 0 {
            dir = fs.mkdir(top, format!("{prefix}dir{i}").as_bytes(), 0o755, OWNER).unwrap().ino;
        }
        let ino = fs.create(dir, format!("{prefix}{i}").as_bytes(), 0o644, OWNER).unwrap().ino;
        assert!(fs.write(ino, 0, &pattern(ino, 1 + i % 24)).unwrap() > 0);
    }
}

/// The content of each file below `top`, by inode number.
fn files(fs: &FileSystem, top: Ino) -> BTreeMap<u64, Vec<u8>> {
    let (mut out, mut todo) = (BTreeMap::new(), vec![top]);
    while let Some(dir) = todo.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 0, &mut |e| {
            entries.push((e.ino, e.kind, e.name.to_vec()));
            true
        })
        .unwrap();
        for (ino, kind, name) in entries {
            match kind {
                _ if matches!(&name[..], b"." | b"..") => {}
                FileKind::Directory => todo.push(ino),
                _ => {
                    let mut data = vec![0xee; fs.getattr(ino).unwrap().size as usize];
                    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
                    drop(out.insert(ino.0, data));
                }
            }
        }
    }
    out
}

fn files_on(device: &MemDevice) -> BTreeMap<u64, Vec<u8>> {
    files(&open(Arc::new(device.fork())).unwrap(), Ino::ROOT)
}

fn zero(device: &MemDevice, from: u64, to: u64) {
    device.discard(from, to - from).unwrap();
}

fn zero_slots(device: &MemDevice) {
    SLOTS.iter().for_each(|slot| zero(device, slot.byte_offset(), slot.byte_offset() + BLOCK));
}

fn check(device: &MemDevice) -> Report {
    kedge_fsck::check(Arc::new(device.fork()), &with_replay())
}

fn run(device: &Arc<MemDevice>, mode: RepairMode) -> RepairReport {
    repair(device.clone(), &RepairOptions { force: true, ..RepairOptions::new(mode) })
}

/// Repairs the image, and asserts that the result is clean and usable.
fn repaired(device: &Arc<MemDevice>) -> RepairReport {
    let report = run(device, RepairMode::Full);
    assert_eq!(report.ending, Ending::Repaired, "{report}");
    assert_eq!(report.count(RepairKind::SuperblockRestored), 1, "{report}");
    let after = check(device);
    assert!(after.is_clean(), "{after}");
    let fs = open(Arc::new(device.fork())).unwrap();
    let ino = fs.create(Ino::ROOT, b"used", 0o644, OWNER).unwrap().ino;
    assert!(fs.write(ino, 0, &pattern(ino, 30)).unwrap() > 0);
    fs.fsync(ino, false).unwrap();
    fs.close().unwrap();
    report
}

/// Returns how many files of `before` are complete in `after`, and how many lack blocks. Asserts
/// that no byte is another file's.
fn compare(before: &BTreeMap<u64, Vec<u8>>, after: &BTreeMap<u64, Vec<u8>>) -> (usize, usize) {
    let (mut whole, mut partial) = (0, 0);
    for (ino, data) in after {
        let own = (0..).zip(data.chunks(BLOCK_SIZE)).all(|(block, bytes)| {
            bytes.iter().all(|b| *b == byte(Ino(*ino), block)) || bytes.iter().all(|b| *b == 0)
        });
        assert!(own, "inode {ino} shows bytes of another");
        match before.get(ino) {
            Some(was) if was == data => whole += 1,
            _ => partial += 1,
        }
    }
    (whole, partial)
}

fn newest_copy(device: &MemDevice) -> (BlockNo, Superblock) {
    let blocks = device.geometry().size / BLOCK;
    let read = |place: BlockNo| {
        let bytes = device.bytes(place.byte_offset(), BLOCK_SIZE);
        Some((place, Superblock::decode_copy(&bytes, place, blocks).ok()?))
    };
    let all = kedge_format::copies::places_on(blocks).filter_map(read);
    all.max_by_key(|(_, sb)| sb.checkpoint.generation).unwrap()
}

fn put_copy(device: &MemDevice, place: BlockNo, sb: &Superblock) {
    let mut block = IoBuf::zeroed(1);
    sb.encode_copy(block.as_mut_bytes());
    device.write(place.byte_offset(), &block, false).unwrap();
}

#[test]
fn the_first_16_mib_are_zero() {
    // From 64 MiB on, the log covers the first 16 MiB, so no file is lost.
    for size in [64 * MIB, 200 * MIB, 1 << 30, 1 << 40] {
        let device = make(size, None, 1);
        let fs = open(device.clone()).unwrap();
        load(&fs, Ino::ROOT, "a", 150);
        fs.close().unwrap();
        let before = files_on(&device);
        zero(&device, 0, 16 * MIB);
        assert!(open(Arc::new(device.fork())).is_err(), "a mount uses no copy");
        let found = check(&device);
        assert_eq!(found.count(FindingKind::SuperblockMissing), 1, "{found}");
        let report = repaired(&device);
        assert!(report.count(RepairKind::LogGivenUp) == 0, "{report}");
        assert!(report.to_string().contains("when the image was unmounted"), "{report}");
        assert_eq!(files_on(&device), before, "{size}");
    }
}

#[test]
fn the_first_16_mib_are_zero_and_hold_nodes_and_data() {
    for (size, log, count) in [(24 * MIB, MIB, 100), (64 * MIB, MIB, 500), (200 * MIB, 4 * MIB, 1500)] {
        let device = make(size, Some(log), 1);
        let fs = open(device.clone()).unwrap();
        for part in 0..10 {
            load(&fs, Ino::ROOT, &format!("p{part}"), count / 10);
            fs.checkpoint().unwrap();
        }
        fs.close().unwrap();
        let before = files_on(&device);
        zero(&device, 0, 16 * MIB);
        let report = repaired(&device);
        let (whole, partial) = compare(&before, &files_on(&device));
        // The report lists the lost nodes.
        assert!(report.count(RepairKind::NodeDropped) > 0, "{report}");
        println!("{size}: of {} files {whole} are whole, {partial} in part", before.len());
    }
}

#[test]
fn the_root_and_all_bitmaps_are_lost() {
    let device = make(64 * MIB, Some(MIB), 1);
    let fs = open(device.clone()).unwrap();
    for part in 0..5 {
        load(&fs, Ino::ROOT, &format!("p{part}"), 200);
        fs.sync().unwrap();
        fs.checkpoint().unwrap();
    }
    // Leaves of deleted files stay on the device.
    for dir in [0, 40, 80] {
        let dir = fs.lookup(Ino::ROOT, format!("p2dir{dir}").as_bytes()).unwrap().ino;
        let mut names = Vec::new();
        fs.readdir(dir, 0, &mut |e| {
            names.push(e.name.to_vec());
            true
        })
        .unwrap();
        names.iter().filter(|name| name.len() > 2).for_each(|name| fs.unlink(dir, name).unwrap());
    }
    fs.checkpoint().unwrap();
    load(&fs, Ino::ROOT, "last", 200);
    fs.close().unwrap();
    let before = files_on(&device);
    let (_, sb) = newest_copy(&device);
    assert!(sb.checkpoint.root_level > 0);
    zero(&device, 0, sb.geometry.data_start.byte_offset());
    let root = sb.checkpoint.root.byte_offset();
    zero(&device, root, root + 4 * BLOCK);
    let report = repaired(&device);
    let after = files_on(&device);
    let (whole, _) = compare(&before, &after);
    println!("of {} files {whole} are whole, of {} found", before.len(), after.len());
    assert!(report.count(RepairKind::NodeSalvaged) > 10, "{report}");
    assert_eq!(whole, before.len(), "{report}");
}

#[test]
fn the_last_16_mib_are_zero() {
    for size in [64 * MIB, 200 * MIB, 1 << 30] {
        let device = make(size, None, 1);
        let fs = open(device.clone()).unwrap();
        load(&fs, Ino::ROOT, "a", 100);
        fs.close().unwrap();
        let before = files_on(&device);
        zero(&device, size - 16 * MIB, size);
        // The slots are valid, so the image mounts; fsck reports the damaged copy.
        assert_eq!(files_on(&device), before);
        let found = check(&device);
        assert_eq!(found.count(FindingKind::SuperblockCopyBad), 1, "{found}");
        let report = run(&device, RepairMode::Preen);
        assert_eq!((report.ending, report.exit_code), (Ending::Repaired, 1), "{report}");
        assert!(check(&device).is_clean());
        assert_eq!(files_on(&device), before);
        // Each of the two copies is sufficient.
        for lost in 0..2 {
            let device = Arc::new(device.fork());
            let place = newest_copy(&device).1.geometry.current_copies().nth(lost).unwrap();
            zero(&device, place.byte_offset(), place.byte_offset() + BLOCK);
            zero_slots(&device);
            repaired(&device);
            assert_eq!(files_on(&device), before);
        }
    }
}

#[test]
fn a_crash_and_both_slots_are_lost() {
    let device = make(64 * MIB, None, 1);
    let fs = open(device.clone()).unwrap();
    load(&fs, Ino::ROOT, "a", 60);
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    load(&fs, Ino::ROOT, "b", 60);
    fs.sync().unwrap();
    let crashed = Arc::new(device.fork());
    let before = files_on(&crashed);
    assert_eq!(before.len(), 120);
    zero_slots(&crashed);
    let preened = run(&crashed, RepairMode::Preen);
    assert_eq!((preened.ending, preened.exit_code), (Ending::Left, 4), "{preened}");
    assert!(preened.to_string().contains("fsck -y"), "{preened}");
    let report = repaired(&crashed);
    assert_eq!(report.count(RepairKind::LogReplayed), 1, "{report}");
    assert_eq!(files_on(&crashed), before, "the log is whole, so nothing is lost");

    // Without the log, the checkpoint's files survive, and the report says that later changes are
    // lost.
    zero(&device, 0, 16 * MIB);
    let report = repaired(&device);
    assert!(report.to_string().contains("the rest is lost"), "{report}");
    let after = files_on(&device);
    assert!(after.len() >= 60 && after.iter().all(|(ino, data)| before[ino] == *data), "{}", after.len());
}

#[test]
fn forks_come_back() {
    for lost in [0, 16 * MIB] {
        let device = make(64 * MIB, None, 1);
        let fs = open(device.clone()).unwrap();
        load(&fs, Ino::ROOT, "a", 100);
        let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
        fs.fork(Ino::ROOT, Ino::ROOT, b"kept", true).unwrap();
        load(&fs, fork, "b", 30);
        load(&fs, Ino::ROOT, "c", 30);
        fs.close().unwrap();
        let before = files_on(&device);
        assert_eq!(before.len(), 360);
        match lost {
            0 => zero_slots(&device),
            _ => zero(&device, 0, lost),
        }
        repaired(&device);
        assert_eq!(files_on(&device), before);
        let fs = open(device.clone()).unwrap();
        let fork = fs.lookup(Ino::ROOT, b"fork").unwrap().ino;
        let kept = fs.lookup(Ino::ROOT, b"kept").unwrap().ino;
        assert_eq!((files(&fs, fork).len(), files(&fs, kept).len()), (130, 100));
        assert!(fs.create(kept, b"x", 0o644, OWNER).is_err(), "a snapshot stays one");
        fs.close().unwrap();
        assert!(check(&device).is_clean());
    }
}

#[test]
fn a_bad_copy_in_an_image_with_forks_is_written_again() {
    let device = make(64 * MIB, None, 1);
    let fs = open(device.clone()).unwrap();
    fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap();
    fs.close().unwrap();
    zero(&device, 48 * MIB, 64 * MIB);
    assert_eq!(check(&device).count(FindingKind::SuperblockCopyBad), 1);
    let report = run(&device, RepairMode::Preen);
    assert_eq!((report.ending, report.exit_code), (Ending::Repaired, 1), "{report}");
    assert!(check(&device).is_clean());
}

#[test]
fn an_image_that_grew() {
    for (small, large) in [(40, 300), (128, 129), (100, 128), (128, 2000), (100, 100)] {
        let device = make(small * MIB, None, 1);
        let fs = open(device.clone()).unwrap();
        load(&fs, Ino::ROOT, "a", 100);
        fs.resize(Some(large * MIB)).unwrap();
        load(&fs, Ino::ROOT, "b", 100);
        fs.close().unwrap();
        assert!(check(&device).is_clean(), "{}", check(&device));
        let before = files_on(&device);
        let data_start = newest_copy(&device).1.geometry.data_start;
        for end in [SLOTS[1].byte_offset() + BLOCK, data_start.byte_offset().min(16 * MIB)] {
            let device = Arc::new(device.fork());
            zero(&device, 0, end);
            repaired(&device);
            assert_eq!(files_on(&device), before, "{small} to {large}");
        }
    }
}

#[test]
fn a_device_that_is_larger_than_the_image() {
    let device = Arc::new(MemDevice::new(500 * MIB));
    format(&device, 100 * MIB, None, 1);
    let fs = open(device.clone()).unwrap();
    load(&fs, Ino::ROOT, "a", 50);
    fs.close().unwrap();
    let before = files_on(&device);
    zero(&device, 0, 16 * MIB);
    repaired(&device);
    assert_eq!(files_on(&device), before);
}

#[test]
fn old_copies_lead_to_newer_leaves() {
    let device = make(64 * MIB, Some(4 * MIB), 1);
    let fs = open(device.clone()).unwrap();
    load(&fs, Ino::ROOT, "a", 100);
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    let old = newest_copy(&device).1;
    for part in 0..6 {
        load(&fs, Ino::ROOT, &format!("p{part}"), 80);
        fs.sync().unwrap();
        fs.checkpoint().unwrap();
    }
    fs.close().unwrap();
    let before = files_on(&device);
    for place in old.geometry.current_copies() {
        put_copy(&device, place, &old);
    }
    assert!(check(&device).is_clean(), "copies may be older than the slots");
    zero_slots(&device);
    let report = repaired(&device);
    let (whole, partial) = compare(&before, &files_on(&device));
    println!("of {} files {whole} are whole, {partial} in part\n{report}", before.len());
    assert!(whole * 10 >= before.len() * 9 && partial == 0, "{whole} {partial}: {report}");
}

#[test]
fn copies_of_two_images_are_not_mixed() {
    let device = make(64 * MIB, None, 1);
    open(device.clone()).unwrap().close().unwrap();
    let (_, mine) = newest_copy(&device);
    let mut other = mine.clone();
    other.geometry.uuid = uuid::Uuid::from_u128(2);
    other.checkpoint.generation = Generation(mine.checkpoint.generation.0 + 100);
    let last = mine.geometry.copies().last().unwrap();
    put_copy(&device, last, &other);
    let found = check(&device);
    assert_eq!(found.count(FindingKind::SuperblockCopyBad), 1, "{found}");
    assert!(found.to_string().contains("of another image"), "{found}");
    assert!(files_on(&device).is_empty(), "the slots win");

    let lost = Arc::new(device.fork());
    zero_slots(&lost);
    let report = run(&lost, RepairMode::Full);
    assert_eq!(report.ending, Ending::Left, "{report}");
    assert!(report.to_string().contains("cannot be known"), "{report}");

    assert_eq!(run(&device, RepairMode::Preen).ending, Ending::Repaired);
    assert!(check(&device).is_clean());
}

#[test]
fn a_copy_forged_in_the_log_is_left_out() {
    // A user can choose bytes of a log write, and the log of this image includes block 4096.
    let device = make(1 << 30, None, 1);
    open(device.clone()).unwrap().close().unwrap();
    let (_, mine) = newest_copy(&device);
    let g = &mine.geometry;
    assert!(g.log_start.0 < 4096 && 4096 < g.data_start.0);
    let forged = make(1 << 30, Some(MIB), 2);
    let mut forged = newest_copy(&forged).1;
    forged.checkpoint.generation = Generation(1 << 40);
    put_copy(&device, BlockNo(4096), &forged);
    zero_slots(&device);
    repaired(&device);
    assert_eq!(newest_copy(&device).1.geometry.uuid, forged.geometry.uuid, "it is still in the log");
    let place = g.copies().last().unwrap();
    let bytes = device.bytes(place.byte_offset(), BLOCK_SIZE);
    let copy = Superblock::decode_copy(&bytes, place, g.total_blocks).unwrap();
    assert_eq!(copy.geometry.uuid, g.uuid);
}

#[test]
fn a_device_in_other_use_is_not_overwritten() {
    let device = make(64 * MIB, None, 1);
    open(device.clone()).unwrap().close().unwrap();
    zero(&device, 0, MIB);
    let mut block = IoBuf::zeroed(1);
    block.as_mut_bytes()[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
    device.write(0, &block, false).unwrap();
    let before = device.fork();
    let report = run(&device, RepairMode::Full);
    assert_eq!(report.ending, Ending::Left, "{report}");
    assert!(report.to_string().contains("ext4"), "{report}");
    assert_eq!(device.difference_hash(&before), before.difference_hash(&before));
}

#[test]
fn formatting_erases_the_copies_of_an_older_image() {
    let device = make(200 * MIB, None, 1);
    open(device.clone()).unwrap().close().unwrap();
    format(&device, 64 * MIB, None, 2);
    zero_slots(&device);
    repaired(&device);
    assert_eq!(newest_copy(&device).1.geometry.uuid, uuid::Uuid::from_u128(2));
}

#[test]
fn an_image_without_the_feature_has_none() {
    let device = make(64 * MIB, None, 1);
    open(device.clone()).unwrap().close().unwrap();
    let (_, sb) = newest_copy(&device);
    for place in sb.geometry.copies() {
        zero(&device, place.byte_offset(), place.byte_offset() + BLOCK);
    }
    zero_slots(&device);
    let report = run(&device, RepairMode::Full);
    assert_eq!((report.ending, report.exit_code), (Ending::Left, 8), "{report}");
    // In an image without the feature, the same blocks are ordinary blocks, not copies.
    let without = kedge_format::superblock::Geometry {
        feature_incompat: sb.geometry.feature_incompat & !INCOMPAT_COPIES,
        ..sb.geometry
    };
    assert!(without.copies().next().is_none());
}

#[test]
fn crafted_copies_do_no_harm() {
    type Change = (&'static str, fn(&mut Superblock));
    let changes: &[Change] = &[
        ("generation", |sb| sb.checkpoint.generation = Generation(COUNTER_MAX)),
        ("generation 0", |sb| sb.checkpoint.generation = Generation(0)),
        ("root", |sb| sb.checkpoint.root = BlockNo(sb.geometry.total_blocks - 8)),
        ("level", |sb| sb.checkpoint.root_level = 16),
        ("nodes", |sb| sb.checkpoint.nodes = COUNTER_MAX),
        ("next ino", |sb| sb.checkpoint.next_ino = Ino(COUNTER_MAX)),
        ("secret", |sb| sb.geometry.log_secret.0[3] ^= 1),
        ("seed", |sb| sb.geometry.hash_seed[0] ^= 1),
        ("features", |sb| sb.geometry.feature_incompat |= 1 << 40),
        ("trees", |sb| sb.geometry.feature_incompat |= kedge_format::superblock::INCOMPAT_TREES),
        ("log", |sb| sb.checkpoint.epoch = kedge_base::Epoch(COUNTER_MAX)),
        ("lsn", |sb| {
            sb.checkpoint.checkpoint_lsn = kedge_base::Lsn(COUNTER_MAX / BLOCK * BLOCK);
            sb.checkpoint.tail_lsn = sb.checkpoint.checkpoint_lsn;
        }),
        ("shorter", |sb| sb.geometry.total_blocks -= 1),
    ];
    let device = make(64 * MIB, None, 1);
    let fs = open(device.clone()).unwrap();
    load(&fs, Ino::ROOT, "a", 50);
    fs.close().unwrap();
    let before = files_on(&device);
    let (_, sb) = newest_copy(&device);
    for (name, change) in changes {
        let device = Arc::new(device.fork());
        let mut crafted = sb.clone();
        change(&mut crafted);
        crafted.checkpoint.clean = false;
        for place in sb.geometry.copies() {
            put_copy(&device, place, &crafted);
        }
        check(&device);
        assert_eq!(files_on(&device), before, "{name}: a mount uses the slots");
        zero_slots(&device);
        check(&device);
        let report = run(&device, RepairMode::Full);
        if report.ending == Ending::Repaired {
            assert!(check(&device).is_clean(), "{name}");
            compare(&before, &files_on(&device));
        }
        println!("{name}: {:?} {}", report.ending, report.message);
    }
    // One bit of each copy is flipped.
    for at in 0..408 {
        let device = Arc::new(device.fork());
        for place in sb.geometry.copies() {
            device.corrupt(place.byte_offset() + at, |bytes| bytes[0] ^= 1 << (at % 8));
        }
        zero_slots(&device);
        assert_eq!(run(&device, RepairMode::Full).ending, Ending::Left, "byte {at}");
    }
}

/// After a crash at any moment of a repair from a copy, the next repair has the same result.
#[test]
fn an_interrupted_repair_is_run_again() {
    let mut states = 0;
    for lost in ["slots", "root and bitmaps", "slots, in use"] {
        let device = make(24 * MIB, Some(MIB), 1);
        let fs = open(device.clone()).unwrap();
        load(&fs, Ino::ROOT, "a", 150);
        fs.sync().unwrap();
        fs.checkpoint().unwrap();
        load(&fs, Ino::ROOT, "b", 20);
        match lost {
            "slots, in use" => fs.sync().unwrap(),
            _ => fs.close().unwrap(),
        }
        let damaged = device.fork();
        let (_, sb) = newest_copy(&damaged);
        zero_slots(&damaged);
        if lost == "root and bitmaps" {
            zero(&damaged, 0, sb.geometry.log_start.byte_offset());
            zero(&damaged, sb.checkpoint.root.byte_offset(), sb.checkpoint.root.byte_offset() + 4 * BLOCK);
        }
        let sim = Arc::new(SimDevice::new(damaged));
        let report = repair(sim.clone(), &RepairOptions::new(RepairMode::Full));
        assert_eq!(report.ending, Ending::Repaired, "{lost}: {report}");
        let done = files_on(&sim.view());
        assert!(done.len() >= 170, "{lost}: {} files", done.len());
        let plan = StatePlan { subsets: 3, samples: 4, torn: 2, at_marks_only: false, seed: 7 };
        for state in sim.recording().states(plan) {
            let device = Arc::new(state.medium.fork());
            let again = run(&device, RepairMode::Full);
            assert!(matches!(again.ending, Ending::Repaired | Ending::Clean), "{lost}, {state:?}: {again}");
            let now = files_on(&device);
            assert!(now == done, "{lost}, {state:?}: {} of {} files, {again}", now.len(), done.len());
            assert!(check(&device).is_clean(), "{lost}, {state:?}");
            states += 1;
        }
    }
    println!("{states} states");
    assert!(states > 50, "only {states} states");
}

/// Both slots are lost in each crash state. A repair from a copy of the last checkpoint restores
/// what a mount would have found.
#[test]
fn slots_are_lost_in_crash_states() {
    let device = make(24 * MIB, Some(MIB), 1);
    let sim = Arc::new(SimDevice::new(device.fork()));
    let fs = open(sim.clone()).unwrap();
    for part in 0..3 {
        load(&fs, Ino::ROOT, &format!("p{part}"), 30);
        fs.sync().unwrap();
        fs.checkpoint().unwrap();
    }
    fs.close().unwrap();
    let (mut equal, mut older) = (0, 0);
    let plan = StatePlan { subsets: 2, samples: 3, torn: 1, at_marks_only: false, seed: 11 };
    for state in sim.recording().states(plan) {
        let device = Arc::new(state.medium.fork());
        let found = check(&device);
        assert!(found.is_clean(), "{state:?}: {found}");
        let newest = found.superblock.unwrap().generation;
        let recovered = files_on(&device);
        let of_copy = newest_copy(&device).1.checkpoint.generation.0;
        zero_slots(&device);
        let report = run(&device, RepairMode::Full);
        assert_eq!(report.ending, Ending::Repaired, "{state:?}: {report}");
        assert!(check(&device).is_clean(), "{state:?}");
        let now = files_on(&device);
        compare(&recovered, &now);
        // After replay, the check reports the generation that the replay made.
        let in_use = newest == of_copy + 1;
        match in_use || newest == of_copy {
            true => {
                assert!(now == recovered, "{state:?}: {} of {}, {report}", now.len(), recovered.len());
                equal += 1;
            }
            false => older += 1,
        }
    }
    println!("{equal} states with a copy of the last checkpoint, {older} with an older one");
    assert!(equal > 50 && older > 0, "{equal} {older}");
}

/// The requests of one checkpoint: flushes, writes, and writes with FUA.
fn requests_of_a_checkpoint(device: MemDevice) -> [usize; 3] {
    let sim = Arc::new(SimDevice::new(device));
    let fs = open(sim.clone()).unwrap();
    load(&fs, Ino::ROOT, "a", 5);
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    let before = sim.recording().events.len();
    fs.create(Ino::ROOT, b"one", 0o644, OWNER).unwrap();
    fs.checkpoint().unwrap();
    let recording = sim.recording();
    let events = &recording.events[before..];
    let count = |wanted: fn(&Event) -> bool| events.iter().filter(|event| wanted(event)).count();
    [
        count(|event| matches!(event, Event::Flush { .. })),
        count(|event| matches!(event, Event::Write { fua: false, .. })),
        count(|event| matches!(event, Event::Write { fua: true, .. })),
    ]
}

#[test]
fn copies_cost_two_writes_for_a_checkpoint_and_no_flush() {
    let device = make(200 * MIB, None, 1);
    let with = requests_of_a_checkpoint(device.fork());
    for (i, slot) in SLOTS.iter().enumerate() {
        let bytes = device.bytes(slot.byte_offset(), BLOCK_SIZE);
        if let Ok(mut sb) = Superblock::decode(&bytes, i, 200 * MIB / BLOCK) {
            sb.geometry.feature_incompat &= !INCOMPAT_COPIES;
            let mut block = IoBuf::zeroed(1);
            sb.encode(block.as_mut_bytes());
            device.write(slot.byte_offset(), &block, false).unwrap();
        }
    }
    let [flushes, writes, durable] = requests_of_a_checkpoint(device.fork());
    assert_eq!(with, [flushes, writes + 2, durable]);
    assert!(flushes > 0 && durable > 0);
}
