//! Damage of images with forks. The engine makes the images.

use super::*;
use crate::kinds::FindingKind::*;
use crate::{CheckOptions, Report, StoreReplay, check};
use kedge_base::{BLOCK_SIZE, SystemClock};
use kedge_device::MemDevice;
use kedge_format::item::ExtentItem;
use kedge_format::node::{NODE_SIZE, NodeMut, NodeView};
use kedge_format::trees::key;
use kedge_format::{ItemKind, Key};
use kedgefs::{FileSystem, FormatOptions, MountOptions, Owner};
use std::collections::BTreeSet;
use std::sync::Arc;

const OWNER: Owner = Owner { uid: 0, gid: 0 };

/// An image with 100 files, a fork in which some of them have changed, and a fork of that fork. The
/// forks are trees 1 and 3, their points 2 and 4.
fn forked() -> MemDevice {
    let device = Arc::new(MemDevice::new(64 << 20));
    let clock = || Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device.clone(), clock(), MountOptions::default()).unwrap();
    let put = |dir: Ino, i: usize| {
        let name = format!("file{i}");
        let file = fs.create(dir, name.as_bytes(), 0o644, OWNER).unwrap();
        fs.write(file.ino, 0, &vec![i as u8; 10_000]).unwrap();
    };
    (0..100).for_each(|i| put(Ino::ROOT, i));
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap();
    (100..150).for_each(|i| put(fork.ino, i));
    fs.fork(fork.ino, fork.ino, b"of a fork", false).unwrap();
    (200..210).for_each(|i| put(Ino::ROOT, i));
    fs.close().unwrap();
    drop(fs);
    device.fork()
}

fn judged(device: &MemDevice) -> Report {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    check(Arc::new(device.fork()), &options)
}

/// Changes an entry of the table, whose root is a leaf.
fn change(device: &MemDevice, number: u32, edit: impl FnOnce(&mut TreeEntry)) {
    let (sb, _) = kedge_store::read_superblock(device).unwrap();
    let root = sb.checkpoint.trees.unwrap().root;
    let mut bytes = device.bytes(root.byte_offset(), NODE_SIZE);
    let at = NodeView::trusted(&bytes).search(&key(number)).unwrap();
    let mut entry = TreeEntry::decode(NodeView::trusted(&bytes).value(at)).unwrap();
    edit(&mut entry);
    let mut node = NodeMut::trusted(&mut bytes);
    assert!(node.replace_value(at, &entry.encode()));
    node.seal(&sb.geometry.log_secret);
    for (block, new) in (root.0..).zip(bytes.chunks(BLOCK_SIZE)) {
        device.corrupt(BlockNo(block).byte_offset(), |old| old.copy_from_slice(new));
    }
}

/// Returns the kinds of findings after an edit. Also asserts that a mount refuses the image or
/// works with it, without a panic.
fn found_after(number: u32, edit: impl FnOnce(&mut TreeEntry)) -> BTreeSet<FindingKind> {
    let device = forked();
    change(&device, number, edit);
    let report = judged(&device);
    let copy = Arc::new(device.fork());
    if let Ok(fs) = FileSystem::open(copy, Arc::new(SystemClock::default()), MountOptions::default()) {
        for tree in fs.trees() {
            let _ = fs.readdir(tree.root, 0, &mut |_| true);
            let _ = fs.tree_space(tree.root);
            let _ = fs.create(tree.root, b"new", 0o644, OWNER);
        }
        let _ = fs.close();
    }
    report.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn a_forked_image_is_clean() {
    let report = judged(&forked());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn damage_of_the_table_is_found() {
    let bad = BTreeSet::from([TreesBad]);
    // Circles, and references to entries that do not exist.
    assert!(found_after(2, |e| e.point = 4).is_superset(&bad));
    assert!(found_after(4, |e| e.point = 4).is_superset(&bad));
    assert!(found_after(1, |e| e.point = 3).is_superset(&bad));
    assert!(found_after(1, |e| e.point = 99).is_superset(&bad));
    assert_eq!(found_after(1, |e| e.dir = Ino(1).in_tree(3)), bad);
    assert_eq!(found_after(3, |e| e.dir = Ino(1).in_tree(2)), bad);
    assert_eq!(found_after(3, |e| e.dir = Ino(1).in_tree(77)), bad);
    assert_eq!(found_after(3, |e| (e.dir, e.name) = (Ino::ROOT, b"fork".to_vec())), bad);
    assert!(found_after(3, |e| (e.dir, e.name) = (Ino(0), Vec::new())).is_superset(&bad));
    // Directories that do not exist in the named tree, and a file: the first inode after the root.
    assert_eq!(found_after(1, |e| e.dir = Ino(5000)), bad);
    assert_eq!(found_after(3, |e| e.dir = Ino(5000).in_tree(1)), bad);
    assert_eq!(found_after(3, |e| e.dir = Ino(2)), bad);
    // Marks above the newest birth or generation.
    assert!(found_after(1, |e| e.births_below = 1 << 20).is_superset(&bad));
    assert!(found_after(1, |e| e.nodes_below = Generation(1 << 40)).is_superset(&bad));
}

#[test]
fn blocks_with_two_owners_or_none_are_found() {
    let share = BTreeSet::from([TreesShare]);
    // With these marks the fork owns, and would free, the blocks that it shares.
    assert_eq!(found_after(1, |e| (e.births_below, e.nodes_below) = (0, Generation(0))), share);
    assert_eq!(found_after(1, |e| e.births_below = 0), share);
    assert_eq!(found_after(1, |e| e.nodes_below = Generation(0)), share);
    // With these marks no tree owns what the first tree has made since the fork.
    assert!(found_after(0, |e| e.births_below += 9).is_superset(&share));
    assert!(found_after(0, |e| e.nodes_below = Generation(e.nodes_below.0 + 9)).is_superset(&share));
}

#[test]
fn a_root_that_is_none_is_found() {
    assert!(!found_after(1, |e| e.root = BlockNo(e.root.0 + 4)).is_empty());
    assert!(!found_after(1, |e| e.root_generation = Generation(1)).is_empty());
    assert!(!found_after(1, |e| e.nodes += 1).is_empty());
    assert!(!found_after(1, |e| e.inodes += 1).is_empty());
    assert!(!found_after(1, |e| e.next_ino = 5).is_empty());
}

/// The nodes of a tree whose root is inner and has only leaves below it.
fn leaves(device: &MemDevice, root: BlockNo) -> Vec<(BlockNo, Generation)> {
    let bytes = device.bytes(root.byte_offset(), NODE_SIZE);
    let view = NodeView::trusted(&bytes);
    assert_eq!(view.level(), 1);
    (0..view.items()).map(|i| (view.child(i).addr, view.child(i).generation)).collect()
}

fn extents(device: &MemDevice, leaf: BlockNo) -> Vec<(Key, ExtentItem)> {
    let bytes = device.bytes(leaf.byte_offset(), NODE_SIZE);
    let view = NodeView::trusted(&bytes);
    let is_extent = |key: &Key| key.kind == ItemKind::Extent as u8;
    let all = view.iter().filter(|(key, _)| is_extent(key));
    all.map(|(key, value)| (key, ExtentItem::decode(value).unwrap())).collect()
}

/// An extent below a tree's marks refers to blocks that the tree's point does not use, although
/// each block still has exactly one owner.
#[test]
fn what_a_tree_shares_with_its_point_is_the_points() {
    let whole = forked();
    let (sb, _) = kedge_store::read_superblock(&whole).unwrap();
    let mut reader = Reader::new(&whole);
    let entries = read_table(&sb, &mut reader, Findings::new(9), &mut |_| {}).0;
    // An extent of the first tree that the fork does not have.
    let firsts_own =
        leaves(&whole, sb.checkpoint.root).into_iter().flat_map(|(leaf, _)| extents(&whole, leaf));
    let below = entries[&0].births_below;
    let of_first = firsts_own.map(|(_, item)| item).find(|item| item.birth >= below).unwrap();
    // The point that the fork shares with its own fork.
    let fork = &entries[&4];
    let own_leaves = leaves(&whole, fork.root).into_iter().filter(|(_, g)| *g >= fork.nodes_below);
    let mut changed = 0;
    for (leaf, _) in own_leaves {
        for (key, item) in extents(&whole, leaf) {
            let device = whole.fork();
            if item.birth >= fork.births_below {
                continue;
            }
            let others = [
                ExtentItem { start: of_first.start, ..item },
                ExtentItem { birth: item.birth ^ 1, ..item },
                ExtentItem { start: BlockNo(item.start.0 - 1), ..item },
            ];
            for other in others.into_iter().filter(|other| other.birth < fork.births_below) {
                let mut bytes = device.bytes(leaf.byte_offset(), NODE_SIZE);
                let mut node = NodeMut::trusted(&mut bytes);
                let at = node.view().search(&key).unwrap();
                assert!(node.replace_value(at, &other.encode()));
                node.seal(&sb.geometry.log_secret);
                for (block, new) in (leaf.0..).zip(bytes.chunks(BLOCK_SIZE)) {
                    device.corrupt(BlockNo(block).byte_offset(), |old| old.copy_from_slice(new));
                }
                let report = judged(&device);
                let kinds: BTreeSet<_> = report.findings.iter().map(|finding| finding.kind).collect();
                assert!(kinds.contains(&TreesShare), "{key} {other:?}: {report}");
                changed += 1;
            }
        }
    }
    assert!(changed > 10, "{changed} extents");
}
