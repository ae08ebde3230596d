//! Repairs of images that only the format's encoders have made: after each kind of fault, after
//! random damage, and after crashes during the repair.

use super::*;
use crate::damage_tests::all_cases;
use crate::slots::read_slots;
use crate::test_image::{Built, Image, write};
use crate::tree::{NodeRef, stream_items};
use kedge_base::{BLOCK_SIZE, BlockNo, Ino, ManualClock};
use kedge_device::MemDevice;
use kedge_device::sim::{SimDevice, StatePlan};
use kedge_format::item::{Dentry, ExtentItem, Orphan};
use kedge_format::node::{NODE_SIZE, NodeMut};
use kedge_format::{FileKind, InodeCore, ItemKind, Key};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn options(mode: RepairMode) -> RepairOptions {
    let clock = Arc::new(ManualClock::default());
    RepairOptions { force: true, clock, ..RepairOptions::new(mode) }
}

fn repaired(device: &Arc<MemDevice>, mode: RepairMode) -> RepairReport {
    repair(device.clone(), &options(mode))
}

fn checked(device: &MemDevice) -> Report {
    crate::check_checkpoint(device, &CheckOptions::default(), &mut |_| {})
}

/// All items of the newest checkpoint.
fn items(device: &MemDevice) -> BTreeMap<Key, Vec<u8>> {
    let mut reader = Reader::new(device);
    let sb = read_slots(&mut reader, &mut Findings::new(0)).expect("a valid slot");
    let mut state = State::new(sb.geometry.groups(), Findings::new(0));
    let leaves = tree::walk_inner(&sb, &mut reader, &mut state, &mut |_, _| {});
    let leaves = tree::valid_leaves(&sb, &mut reader, &mut state, &leaves);
    let mut out = BTreeMap::new();
    let visit = |_: &NodeRef, key: Key, value: &[u8], _: bool| {
        out.insert(key, value.to_vec());
        Ok(())
    };
    stream_items(&sb, &mut reader, &leaves, visit, &mut |_, _| {}).expect("valid leaves stay valid");
    out
}

/// Asserts that a repair left a clean image or refused, and that a second check finds no error.
#[track_caller]
fn assert_ends_clean(device: &MemDevice, report: &RepairReport, what: &str) {
    if report.before.superblock.is_none() {
        assert_eq!(report.ending, Ending::Left, "{what}: {report}");
        assert!(report.exit_code & 12 != 0 && !report.message.is_empty(), "{what}: {report}");
        return;
    }
    assert!(matches!(report.ending, Ending::Repaired | Ending::Clean), "{what}: {report}");
    assert_eq!(report.exit_code, (report.ending == Ending::Repaired) as i32, "{what}: {report}");
    let again = checked(device);
    assert!(again.is_clean() && again.warnings == 0, "{what}: {report}\nthen: {again}");
    assert!(again.superblock.is_some_and(|sb| sb.clean), "{what}");
}

#[test]
fn every_fault_is_repaired() {
    for case in all_cases() {
        let mut image = Image::sample();
        (case.prepare)(&mut image);
        let built = image.build();
        (case.damage)(&built);
        let device = Arc::new(built.device);
        let report = repaired(&device, RepairMode::Full);
        assert_ends_clean(&device, &report, case.name);
        assert!(report.before.errors + report.before.warnings > 0, "{}: {report}", case.name);
        // A fault of one item loses no other item: everything outside invalid nodes is kept.
        use FindingKind::{KeyOrder, NodeBad, NodeMisplaced, NodeShared};
        let nodes = [KeyOrder, NodeBad, NodeMisplaced, NodeShared];
        if report.before.superblock.is_some() && !case.expect.iter().any(|kind| nodes.contains(kind)) {
            assert!(items(&device).len() >= 620, "{}: {report}", case.name);
        }
    }
}

#[test]
fn preening_repairs_what_is_safe_and_leaves_the_rest_untouched() {
    let (mut safe, mut left) = (0, 0);
    for case in all_cases() {
        let mut image = Image::sample();
        (case.prepare)(&mut image);
        let built = image.build();
        (case.damage)(&built);
        let before = built.device.fork();
        let device = Arc::new(built.device);
        let report = repaired(&device, RepairMode::Preen);
        // This image has no log to replay, which is reported too. If a counter is exhausted, no log
        // is replayed.
        let harmless = |kind: &FindingKind| {
            !matches!(kind, FindingKind::SuperblockCleanWithLog | FindingKind::SuperblockCounter)
                && (NOT_OF_THE_TREE.contains(kind) || SAFE_OF_THE_TREE.contains(kind))
        };
        if case.expect.iter().all(harmless) {
            assert_ends_clean(&device, &report, case.name);
            assert_eq!(report.exit_code, 1, "{}: {report}", case.name);
            safe += 1;
        } else {
            assert_eq!(report.ending, Ending::Left, "{}: {report}", case.name);
            assert!(report.exit_code & 12 != 0, "{}: {report}", case.name);
            assert_eq!(
                device.difference_hash(&before),
                before.difference_hash(&before),
                "{}: something was written",
                case.name
            );
            left += 1;
        }
    }
    assert!(safe >= 15 && left >= 30, "{safe} were safe, {left} left");
}

#[test]
fn a_clean_image_is_skipped_and_left_as_it_is() {
    let device = Arc::new(Image::sample().build().device);
    let before = device.fork();
    for force in [false, true] {
        let options = RepairOptions { force, ..options(RepairMode::Full) };
        let report = repair(device.clone(), &options);
        let ending = if force { Ending::Clean } else { Ending::Skipped };
        assert_eq!((report.ending, report.exit_code), (ending, 0), "{report}");
    }
    assert_eq!(device.difference_hash(&before), before.difference_hash(&before));
}

#[test]
fn a_destroyed_leaf_costs_nothing_that_lies_elsewhere() {
    let built = Image::sample().build();
    let whole = items(&built.device);
    for (i, leaf) in built.nodes[0].iter().enumerate() {
        let lost: Vec<Key> = {
            let bytes = built.device.bytes(leaf.byte_offset(), NODE_SIZE);
            let view = kedge_format::node::NodeView::trusted(&bytes);
            view.iter().map(|(key, _)| key).collect()
        };
        let device = Arc::new(built.device.fork());
        write(&device, *leaf, &[0xa5; NODE_SIZE]);
        let report = repaired(&device, RepairMode::Full);
        assert_ends_clean(&device, &report, &format!("leaf {i}"));
        assert_eq!(report.count(RepairKind::NodeDropped), 1, "{report}");
        let after = items(&device);
        for (key, value) in &whole {
            // A file whose core was kept retains each extent, attribute and target outside the lost
            // leaf.
            let kept = [ItemKind::Extent, ItemKind::Xattr, ItemKind::Symlink].map(|k| k as u8);
            if kept.contains(&key.kind) && !lost.contains(key) {
                assert_eq!(after.get(key), Some(value), "leaf {i}: {key}\n{report}");
            }
            let is_core = key.kind == ItemKind::Inode as u8 && !lost.iter().any(|l| l.ino == key.ino);
            if is_core {
                let (was, is) = (InodeCore::decode(value).unwrap(), InodeCore::decode(&after[key]).unwrap());
                assert_eq!((was.mode, was.blocks), (is.mode, is.blocks), "leaf {i}: {key}");
            }
        }
        let names = after.values().filter(|v| Dentry::decode(v).is_ok()).count();
        assert!(names >= 207 - lost.len(), "leaf {i}: {names} names");
    }
}

/// A value without one of its parts is dropped as a whole, and no other attribute with it.
#[test]
fn a_value_that_lacks_a_part_goes_as_a_whole() {
    let mut image = Image::sample();
    image.xattr(10, "user.large", &[7; 60_000]);
    let head = image.xattr_key(10, "user.large");
    let slots = head.offset..head.offset + 16;
    let built = image.build();
    let whole = items(&built.device);
    let is_large = |key: &Key| key.ino == 10 && key.kind == head.kind && slots.contains(&key.offset);
    let mut cut = 0;
    for leaf in &built.nodes[0] {
        let bytes = built.device.bytes(leaf.byte_offset(), NODE_SIZE);
        let view = kedge_format::node::NodeView::trusted(&bytes);
        let lost: Vec<Key> = view.iter().map(|(key, _)| key).collect();
        let device = Arc::new(built.device.fork());
        write(&device, *leaf, &[0xa5; NODE_SIZE]);
        let report = repaired(&device, RepairMode::Full);
        assert_ends_clean(&device, &report, &format!("{leaf}"));
        let after = items(&device);
        let large = after.keys().filter(|key| is_large(key)).count();
        let expected = if lost.iter().any(is_large) { 0 } else { 16 };
        assert_eq!(large, expected, "{leaf}: {report}");
        cut += (expected == 0) as u32;
        for key in whole.keys().filter(|key| key.kind == head.kind && !is_large(key) && !lost.contains(key)) {
            assert_eq!(after.get(key), whole.get(key), "{leaf}: {key}");
        }
    }
    assert!(cut > 2, "the value lies in {cut} leaves");
}

#[test]
fn leaves_below_a_destroyed_node_are_found_again() {
    let built = Image::sample().build();
    let whole = items(&built.device);
    let inner: Vec<BlockNo> = built.nodes[1..].iter().flatten().copied().collect();
    assert!(inner.len() >= 4);
    for node in inner {
        let device = Arc::new(built.device.fork());
        write(&device, node, &[0xa5; NODE_SIZE]);
        let report = repaired(&device, RepairMode::Full);
        assert_ends_clean(&device, &report, &format!("node {node}"));
        assert!(report.count(RepairKind::NodeSalvaged) > 1, "{report}");
        assert_eq!(report.count(RepairKind::NodeDropped), 1, "{report}");
        assert!(items(&device) == whole, "node {node}: {report}");
    }
}

/// A stale leaf in blocks that were then allocated to a file and not written is not salvaged.
#[test]
fn stale_leaves_stay_out() {
    let mut image = Image::sample();
    let stale = BlockNo(image.next_data.next_multiple_of(4) + 4);
    image.next_data = stale.0 + 4;
    image.file(300, 1, &[]);
    image.extent(300, 0, ExtentItem { start: stale, blocks: 4, unwritten: true, birth: 0, counted: false });
    image.core(300, |c| c.blocks = 4);
    image.name(3, "fallocated", 300, FileKind::Regular);
    // A generation that the blocks had in the tree before, and one that no node of the tree has.
    for generation in [1, 5] {
        let mut image = Image { items: image.items.clone(), ..Image::sample() };
        image.next_data = stale.0 + 4;
        let (uuid, secret) = (image.geometry.uuid, image.geometry.log_secret);
        let built = image.build();
        let whole = items(&built.device);
        let mut bytes = vec![0; NODE_SIZE];
        let mut node = NodeMut::init(&mut bytes, &uuid, stale, Generation(generation), 0);
        let dead = InodeCore { mode: FileKind::Regular.mode_bits() | 0o600, ..InodeCore::default() };
        node.append(&Key::inode(Ino(1000)), &dead.encode());
        node.seal(&secret);
        write(&built.device, stale, &bytes);
        write(&built.device, built.nodes.last().unwrap()[0], &[0; NODE_SIZE]);
        let device = Arc::new(built.device);
        let report = repaired(&device, RepairMode::Full);
        assert_ends_clean(&device, &report, "stale");
        assert!(items(&device) == whole, "{report}");
    }
}

#[test]
fn inodes_without_a_name_go_to_lost_and_found() {
    let mut image = Image::sample();
    image.file(400, 1, &[(0, 2)]);
    image.directory(401, 3);
    image.name(401, "below", 100, FileKind::Regular);
    image.core(100, |c| c.nlink = 2);
    // A regular file already has the name lost+found.
    image.file(402, 1, &[]);
    image.name(1, "lost+found", 402, FileKind::Regular);
    let device = Arc::new(image.build().device);
    let report = repaired(&device, RepairMode::Full);
    assert_ends_clean(&device, &report, "unnamed");
    assert_eq!(report.count(RepairKind::Reattached), 2, "{report}");
    assert_eq!(report.count(RepairKind::LostFoundMade), 1, "{report}");
    let all = items(&device);
    let names: BTreeMap<Vec<u8>, u64> =
        all.values().filter_map(|v| Dentry::decode(v).ok()).map(|d| (d.name.to_vec(), d.ino.0)).collect();
    assert_eq!((names[&b"#400"[..]], names[&b"#401"[..]]), (400, 401));
    let place = names[&b"lost+found.1"[..]];
    let core = |ino: u64| InodeCore::decode(&all[&Key::inode(Ino(ino))]).unwrap();
    assert_eq!((core(place).size, core(place).nlink, core(place).parent), (2, 3, Ino(1)));
    assert_eq!((core(401).parent, core(401).nlink, core(401).size), (Ino(place), 2, 1));
    // Repair again: the directory of the first repair is reused.
    let again = repaired(&device, RepairMode::Full);
    assert_eq!(again.ending, Ending::Clean, "{again}");
}

/// A user who makes `/lost+found` must not be able to read lost files of others.
#[test]
fn only_a_directory_of_root_alone_is_used_again() {
    for (uid, mode, reused) in [(0, 0o700, true), (1000, 0o700, false), (0, 0o755, false), (0, 0o2710, false)]
    {
        let mut image = Image::sample();
        image.directory(402, 1);
        image.name(1, "lost+found", 402, FileKind::Directory);
        image.core(1, |c| c.nlink += 1);
        image.core(402, |c| (c.uid, c.mode) = (uid, FileKind::Directory.mode_bits() | mode));
        image.file(400, 1, &[]);
        let device = Arc::new(image.build().device);
        let report = repaired(&device, RepairMode::Full);
        assert_ends_clean(&device, &report, "unnamed");
        assert_eq!(report.count(RepairKind::Reattached), 1, "{report}");
        let made = report.count(RepairKind::LostFoundMade);
        assert_eq!(made, u64::from(!reused), "uid {uid}, mode {mode:o}: {report}");
        let core = |ino: u64| InodeCore::decode(&items(&device)[&Key::inode(Ino(ino))]).unwrap();
        assert_eq!(core(402).size, reused as u64, "uid {uid}, mode {mode:o}");
        if !reused {
            let all = items(&device);
            let found =
                all.values().filter_map(|v| Dentry::decode(v).ok()).find(|d| d.name == b"lost+found.1");
            let place = core(found.expect("another directory").ino.0);
            assert_eq!((place.uid, place.mode & 0o777, place.size), (0, 0o700, 1));
        }
    }
}

#[test]
fn shared_blocks_stay_with_the_first_owner() {
    let mut image = Image::sample();
    let mine = ExtentItem::decode(&image.items[&Key::new(Ino(10), ItemKind::Extent, 0)]).unwrap();
    // Three blocks of inode 10 lie in the middle of a later file's extent of five blocks.
    let start = BlockNo(mine.start.0 - 1);
    image.file(300, 1, &[]);
    image.extent(300, 7, ExtentItem { start, blocks: 5, unwritten: false, birth: 0, counted: false });
    image.core(300, |c| c.blocks = 5);
    image.name(3, "thief", 300, FileKind::Regular);
    let device = Arc::new(image.build().device);
    let report = repaired(&device, RepairMode::Full);
    assert_ends_clean(&device, &report, "shared");
    assert_eq!(report.count(RepairKind::ExtentDropped), 1, "{report}");
    let all = items(&device);
    let whole = ExtentItem::decode(&all[&Key::new(Ino(10), ItemKind::Extent, 0)]).unwrap();
    assert_eq!(whole, mine);
    let left = ExtentItem::decode(&all[&Key::new(Ino(300), ItemKind::Extent, 7)]).unwrap();
    assert_eq!((left.start, left.blocks), (start, 1), "the block before the theft");
    assert!(!all.contains_key(&Key::new(Ino(300), ItemKind::Extent, 8)));
}

#[test]
fn an_inode_without_core_is_made_up_from_its_items() {
    let mut image = Image::sample();
    image.remove(Key::inode(Ino(3)));
    image.remove(Key::inode(Ino(1)));
    image.remove(Key::inode(Ino(10)));
    let device = Arc::new(image.build().device);
    let report = repaired(&device, RepairMode::Full);
    assert_ends_clean(&device, &report, "headless");
    assert_eq!(report.count(RepairKind::InodeRemade), 3, "{report}");
    assert_eq!(report.count(RepairKind::Reattached), 0, "{report}");
    let all = items(&device);
    let dir = InodeCore::decode(&all[&Key::inode(Ino(3))]).unwrap();
    assert_eq!((dir.kind(), dir.size, dir.parent), (Some(FileKind::Directory), 201, Ino(2)));
    let file = InodeCore::decode(&all[&Key::inode(Ino(10))]).unwrap();
    assert_eq!((file.kind(), file.size, file.nlink), (Some(FileKind::Regular), 10 * 4096, 2));
}

#[test]
fn orphans_stay_orphans() {
    let mut image = Image::sample();
    image.put(Key::orphan(Ino(100)), Orphan::Unlinked.encode());
    let device = Arc::new(image.build().device);
    let report = repaired(&device, RepairMode::Preen);
    assert_ends_clean(&device, &report, "orphans");
    let all = items(&device);
    assert!(!all.contains_key(&Key::orphan(Ino(100))), "named: no orphan");
    assert!(all.contains_key(&Key::orphan(Ino(14))) && all.contains_key(&Key::inode(Ino(14))));
}

#[test]
fn without_room_for_another_tree_nothing_changes() {
    let mut image = Image::sample();
    image.core(100, |c| c.nlink = 9);
    // Fallocated files own all blocks that the other files leave free, except the area before the
    // data.
    let g = image.geometry.clone();
    let mut free: Vec<(u64, u64)> = Vec::new();
    let mut at = g.data_start.0 + 44 * 4;
    while at < g.total_blocks {
        let end = if at < image.next_data - 213 { g.data_start.0 + 4096 } else { (at / 32768 + 1) * 32768 };
        let end = end.min(g.total_blocks);
        free.push((at, end - at));
        at = if end == g.data_start.0 + 4096 { image.next_data } else { end };
    }
    for (i, (start, blocks)) in (0u64..).zip(free) {
        let ino = 500 + i;
        image.file(ino, 1, &[]);
        let (start, blocks) = (BlockNo(start), blocks as u32);
        image.extent(ino, 0, ExtentItem { start, blocks, unwritten: true, birth: 0, counted: false });
        image.core(ino, |c| c.blocks = blocks as u64);
    }
    // Keep the number of items, and so the tree's size: the files above replace these.
    for ino in 290..300 {
        image.remove(Key::inode(Ino(ino)));
    }
    let device = Arc::new(image.build().device);
    let (before, bytes) = (checked(&device), items(&device));
    assert!(before.counters.blocks_free < 100, "{before}");
    let report = repaired(&device, RepairMode::Full);
    assert_eq!((report.ending, report.exit_code), (Ending::Unclean, 4), "{report}");
    assert!(report.message.contains("space"), "{report}");
    assert_eq!(checked(&device).counts, before.counts);
    assert_eq!(items(&device), bytes);
}

/// Makes one to four faults: changes nodes and seals them again, so that checksums match, or
/// destroys nodes, bitmaps and slots.
fn hit(built: &Built, device: &MemDevice, random: &mut SmallRng) {
    let nodes: Vec<BlockNo> = built.nodes.iter().flatten().copied().collect();
    for _ in 0..1 + random.random_range(0..4) {
        let at = nodes[random.random_range(0..nodes.len())];
        match random.random_range(0..8) {
            0 => write(device, at, &[0; NODE_SIZE]),
            1 => {
                write(
                    device,
                    built.bitmaps[random.random_range(0..built.bitmaps.len())],
                    &[0x5a; BLOCK_SIZE],
                );
            }
            2 => write(device, built.index, &[0; BLOCK_SIZE]),
            3 => write(device, BlockNo(16), &[1; BLOCK_SIZE]),
            4 => {
                let other = nodes[random.random_range(0..nodes.len())];
                let bytes = device.bytes(other.byte_offset(), NODE_SIZE);
                write(device, at, &bytes);
            }
            _ => {
                let mut bytes = device.bytes(at.byte_offset(), NODE_SIZE);
                for _ in 0..1 + random.random_range(0..6) {
                    let place = match random.random_range(0..3) {
                        0 => 64 + random.random_range(0..16 * 21),
                        _ => NODE_SIZE - 1 - random.random_range(0..1200),
                    };
                    bytes[place] = match random.random_range(0..4) {
                        0 => 0xff,
                        1 => 0,
                        2 => bytes[place].wrapping_add(1),
                        _ => random.random(),
                    };
                }
                NodeMut::trusted(&mut bytes).seal(&Default::default());
                write(device, at, &bytes);
            }
        }
    }
}

#[test]
fn random_damage_ends_clean() {
    const SEED: u64 = 0x7265_7061_6972;
    let mut image = Image::sample();
    (10..13).for_each(|ino| image.xattr(ino, "user.large", &[7; 40_000]));
    let built = image.build();
    let mut repaired_count = 0;
    for case in 0..1000u64 {
        let seed = SEED ^ case << 16;
        let device = Arc::new(built.device.fork());
        hit(&built, &device, &mut SmallRng::seed_from_u64(seed));
        let report = catch_unwind(AssertUnwindSafe(|| repaired(&device, RepairMode::Full)))
            .unwrap_or_else(|_| panic!("panic with seed {seed:#x}"));
        assert_ends_clean(&device, &report, &format!("seed {seed:#x}"));
        repaired_count += (report.ending == Ending::Repaired) as u32;
    }
    assert!(repaired_count > 700, "only {repaired_count} of 1000 had something to repair");
}

#[test]
fn a_crash_in_a_repair_leaves_the_old_image_or_the_new() {
    const SEED: u64 = 0x63_7261_7368;
    let built = Image::sample().build();
    let mut states = 0;
    for case in 0..6u64 {
        let seed = SEED ^ case << 16;
        let damaged = built.device.fork();
        hit(&built, &damaged, &mut SmallRng::seed_from_u64(seed));
        let old = checked(&damaged);
        let sim = Arc::new(SimDevice::new(damaged));
        let report = repair(sim.clone(), &options(RepairMode::Full));
        assert!(matches!(report.ending, Ending::Repaired | Ending::Clean), "seed {seed:#x}: {report}");
        let plan = StatePlan { subsets: 4, samples: 4, torn: 3, at_marks_only: false, seed };
        let recording = sim.recording();
        for state in recording.states(plan) {
            let now = checked(&state.medium);
            let is_old = now.counts == old.counts && !now.is_clean();
            assert!(is_old || now.is_clean(), "seed {seed:#x}, {state:?}:\n{now}\nbefore: {old}");
            let device = Arc::new(state.medium.fork());
            let again = repaired(&device, RepairMode::Full);
            assert_ends_clean(&device, &again, &format!("seed {seed:#x}, {state:?}"));
            states += 1;
        }
    }
    assert!(states > 60, "only {states} states");
}
