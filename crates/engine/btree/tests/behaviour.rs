//! Tests of the tree, one property each.
#![allow(clippy::unwrap_used)]

mod common;

use common::{SECRET, World};
use kedge_base::{BlockNo, CorruptKind, Error, Result};
use kedge_btree::{Key, Tree};
use kedge_format::item::VALUE_MAX;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn key(n: u64) -> Key {
    Key { ino: n, kind: 1, offset: 0 }
}

const PLENTY: usize = 1 << 30;

#[test]
fn ascending_insertions_leave_full_leaves() {
    let world = World::new(PLENTY);
    for n in 0..20_000 {
        world.tree.put(key(n), &[1; 112]).unwrap();
    }
    let found = world.check();
    let full = found.leaf_bytes as f64 / (found.leaves as f64 * 16320.0);
    assert!(full > 0.98, "leaves are {full} full");
}

#[test]
fn interleaved_ascending_ranges_leave_full_leaves() {
    let world = World::new(PLENTY);
    for n in 0..3000 {
        for range in 0..8 {
            world.tree.put(key(range << 32 | n), &[1; 112]).unwrap();
        }
    }
    let found = world.check();
    let full = found.leaf_bytes as f64 / (found.leaves as f64 * 16320.0);
    assert!(full > 0.93, "leaves are {full} full");
}

#[test]
fn a_sequence_in_the_middle_of_a_leaf_leaves_full_leaves() {
    let world = World::new(PLENTY);
    for n in 0..40 {
        world.tree.put(key(n << 40), &[1; 112]).unwrap();
    }
    for n in 1..5000 {
        world.tree.put(key(20 << 40 | n), &[1; 112]).unwrap();
    }
    let found = world.check();
    let full = found.leaf_bytes as f64 / (found.leaves as f64 * 16320.0);
    assert!(full > 0.95, "leaves are {full} full");
}

#[test]
fn a_value_that_is_too_long_is_refused() {
    let world = World::new(PLENTY);
    assert!(matches!(world.tree.put(key(1), &[0; VALUE_MAX + 1]), Err(Error::ItemTooLarge { .. })));
    world.tree.put(key(1), &[0; VALUE_MAX]).unwrap();
    assert_eq!(world.check().items, 1);
}

#[test]
fn a_change_of_nothing_copies_nothing() {
    let world = World::new(PLENTY);
    world.tree.put(key(1), b"one").unwrap();
    world.checkpoint();
    assert!(!world.tree.delete(key(2)).unwrap());
    assert!(!world.tree.update(key(2), |_| panic!("there is no such item")).unwrap());
    assert_eq!(world.tree.stats().copies.get(), 0);
    assert!(world.tree.freeze().is_empty());
}

#[test]
fn a_failed_allocation_leaves_the_tree_as_it_was() {
    let world = World::new(PLENTY);
    for n in 0..2000 {
        world.tree.put(key(n * 2), &[1; 500]).unwrap();
    }
    world.checkpoint();
    let before = world.contents();
    let need = world.tree.nodes_per_put_max();
    for quota in 0..need {
        for n in (1..4000).step_by(302) {
            world.space.quota.store(quota, Relaxed);
            let done = world.tree.put(key(n), &[2; 4000]);
            world.space.quota.store(u64::MAX, Relaxed);
            match done {
                Ok(_) => assert!(world.tree.delete(key(n)).unwrap()),
                Err(error) => assert!(matches!(error, Error::NoSpace)),
            }
            world.check();
            assert!(world.contents() == before, "quota {quota}, key {n}");
        }
        world.checkpoint();
    }
    world.space.quota.store(need, Relaxed);
    world.tree.put(key(1), &[2; 4000]).unwrap();
}

#[test]
fn pinned_leaves_stay_and_follow_their_keys() {
    let world = World::new(PLENTY);
    for n in 0..2000 {
        world.tree.put(key(n * 10), &[1; 500]).unwrap();
    }
    world.checkpoint();
    let keys = [key(30), key(7_000), key(15_555)];
    let pins = world.tree.pin(&keys).unwrap();
    world.tree.set_cache_bytes(0);
    let small = world.tree.cached_bytes();
    assert!(small < 8 * 20_000, "only the pinned paths are left, not {small} bytes");
    let reads = || world.device.reads.load(Relaxed);
    let before = reads();
    for k in keys {
        world.tree.get(k).unwrap();
        // These insertions suffice to copy and split the pinned leaves.
        for n in 0..200 {
            world.tree.put(Key { offset: n, ..k }, &[2; 300]).unwrap();
        }
    }
    assert_eq!(reads(), before, "no IO for pinned keys");
    world.checkpoint();
    world.tree.set_cache_bytes(0);
    for k in keys {
        world.tree.get(k).unwrap();
    }
    assert_eq!(reads(), before, "the pins followed the copies");
    drop(pins);
    world.tree.set_cache_bytes(0);
    world.tree.get(keys[0]).unwrap();
    assert!(reads() > before);
    world.check();
}

#[test]
fn a_tree_larger_than_its_cache_stays_within_it() {
    let world = World::new(64 * 16384);
    for n in 0..30_000u64 {
        world.tree.put(key(n * 0x9E37_79B9 % 30_011), &[1; 200]).unwrap();
        if n % 2000 == 1999 {
            world.checkpoint();
        }
    }
    world.checkpoint();
    let mut high = 0;
    for n in 0..30_000u64 {
        world.tree.get(key(n * 7919 % 30_011)).unwrap();
        high = high.max(world.tree.cached_bytes());
    }
    assert!(high < 80 * 16384, "{high} bytes in memory");
    assert!(world.tree.stats().evictions.get() > 10_000);
    world.check();
}

#[test]
fn neighbours_are_found_across_empty_and_missing_leaves() {
    let world = World::new(PLENTY);
    for n in 0..5000 {
        world.tree.put(key(n), &[1; 200]).unwrap();
    }
    for n in 1000..4000 {
        world.tree.delete(key(n)).unwrap();
    }
    assert_eq!(world.tree.next_at_or_after(key(1000)).unwrap().unwrap().0, key(4000));
    assert_eq!(world.tree.prev_at_or_before(key(3999)).unwrap().unwrap().0, key(999));
    assert_eq!(world.tree.next_at_or_after(key(5000)).unwrap(), None);
    assert_eq!(world.tree.prev_at_or_before(Key { ino: 0, kind: 0, offset: 9 }).unwrap(), None);
    let found = world.check();
    assert!(found.nodes.len() < 45, "{} nodes for 2000 items", found.nodes.len());
}

#[test]
fn a_scan_may_delete_what_it_visits() {
    let world = World::new(PLENTY);
    for n in 0..5000 {
        world.tree.put(key(n), &[1; 200]).unwrap();
    }
    let mut seen = 0;
    world
        .tree
        .scan(Key::MIN, Key::MAX, &mut |k, _| {
            seen += 1;
            assert!(world.tree.delete(k).unwrap());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, 5000);
    let found = world.check();
    assert_eq!((found.items, found.nodes.len(), world.tree.root().2), (0, 1, 0), "an empty root is left");
}

/// The read is slow: when it returns, the node has moved, its old blocks no longer hold a node, and
/// its successor has been evicted. If the reader held a latch across the read, the test would hang.
#[test]
fn a_node_that_moves_while_it_is_read_is_read_again() {
    let world = Arc::new(World::new(PLENTY));
    for n in 0..1000 {
        world.tree.put(key(n), &[1; 300]).unwrap();
    }
    world.checkpoint();
    world.checkpoint();
    for n in (0..1000).step_by(10) {
        world.tree.set_cache_bytes(0);
        let same = world.clone();
        let meanwhile = move || {
            same.tree.put(key(n), &[2; 300]).unwrap();
            same.checkpoint();
            same.tree.set_cache_bytes(0);
        };
        *world.device.meanwhile.lock() = Some(Box::new(meanwhile));
        assert_eq!(world.tree.get(key(n)).unwrap().unwrap(), [2; 300]);
    }
    world.check();
}

#[test]
fn a_failed_read_fails_the_operation_and_nothing_else() {
    let world = World::new(PLENTY);
    for n in 0..3000 {
        world.tree.put(key(n), &[1; 300]).unwrap();
    }
    let checkpoint = world.freeze();
    world.write(&checkpoint);
    let again = world.open_frozen(&checkpoint, 4 * 16384).unwrap();
    let quota = again.device.quota.as_ref().unwrap();
    let mut failed = 0;
    for n in 0..3000 {
        // The cache has room for four nodes, so each leaf is read repeatedly, and some reads fail.
        quota.store(n % 3, Relaxed);
        let n = n * 7919 % 3000;
        let done = match n % 4 {
            0 => again.tree.get(key(n)).map(|v| assert_eq!(v.unwrap(), [1; 300])),
            1 => again.tree.put(key(n), &[1; 300]).map(|replaced| assert!(replaced)),
            2 => again.tree.pin(&[key(n), key(2999 - n)]).map(drop),
            _ => again.tree.prev_at_or_before(key(n)).map(|found| assert_eq!(found.unwrap().0, key(n))),
        };
        if let Err(error) = done {
            assert!(matches!(error, Error::Io { .. }), "{error}");
            failed += 1;
        }
        if n % 10 == 0 {
            again.checkpoint();
        }
    }
    assert!(failed > 300, "{failed} failures");
    quota.store(u64::MAX, Relaxed);
    again.check();
    assert!(again.contents() == world.contents());
}

/// Reads all items through a tree opened on a device with one wrong bit.
fn read_all(tree: Result<Tree>) -> Result<usize> {
    Ok(tree?.keys()?.len())
}

#[test]
fn any_flipped_bit_on_the_device_is_noticed() {
    let world = World::new(PLENTY);
    for n in 0..1500 {
        world.tree.put(key(n), &[n as u8; 300]).unwrap();
    }
    let checkpoint = world.freeze();
    world.write(&checkpoint);
    let addrs: Vec<BlockNo> = checkpoint.owned.keys().copied().collect();
    assert!(addrs.len() > 30);
    let open = || world.open_frozen(&checkpoint, PLENTY).map(|w| w.tree);
    assert_eq!(read_all(open()).unwrap(), 1500);
    let flip = |addr: BlockNo, bit: usize| {
        world.device.nodes.lock().get_mut(&addr).expect("written")[bit / 8] ^= 1 << (bit % 8);
    };
    for (round, addr) in addrs.iter().enumerate() {
        // Covers every node, with different bits for each; for one node, covers all bits of the
        // header.
        let bits: Vec<usize> = if round == 3 {
            (0..64 * 8).collect()
        } else {
            (0..12).map(|i| (round * 7907 + i * 10_007) % (16384 * 8)).collect()
        };
        for bit in bits {
            flip(*addr, bit);
            match read_all(open()) {
                Err(Error::Corrupt { kind: CorruptKind::Node, block, .. }) => assert_eq!(block, *addr),
                other => panic!("bit {bit} of node {addr}: {other:?}"),
            }
            flip(*addr, bit);
        }
    }
    // A misplaced write: the device has another node's bytes at the address.
    let lost = world.device.nodes.lock().clone();
    let (a, b) = (addrs[5], addrs[6]);
    let other = lost[&b].clone();
    world.device.nodes.lock().insert(a, other);
    assert!(matches!(read_all(open()), Err(Error::Corrupt { block, .. }) if block == a));
}

#[test]
fn a_well_formed_node_with_foreign_keys_is_refused() {
    use kedge_format::node::{Child, NodeMut};
    let world = World::new(PLENTY);
    for n in 0..500 {
        world.tree.put(key(n), &[n as u8; 300]).unwrap();
    }
    let checkpoint = world.freeze();
    world.write(&checkpoint);
    let victim = {
        let nodes = world.device.nodes.lock();
        let root = kedge_format::node::NodeView::trusted(&nodes[&checkpoint.frozen.root]);
        let Child { addr, .. } = root.child(2);
        addr
    };
    {
        let mut nodes = world.device.nodes.lock();
        let mut node = NodeMut::trusted(nodes.get_mut(&victim).unwrap());
        node.set_key(0, &Key::MIN);
        node.seal(&SECRET);
    }
    let open = world.open_frozen(&checkpoint, PLENTY).map(|w| w.tree);
    assert!(matches!(read_all(open), Err(Error::Corrupt { block, .. }) if block == victim));
}

/// Makes a tree of three levels and opens it again, so that only its root is in memory.
fn cold(cache_bytes: usize) -> (World, World) {
    let world = World::new(PLENTY);
    for n in 0..120_000 {
        world.tree.put(key(n), &[1; 300]).unwrap();
    }
    let checkpoint = world.freeze();
    world.write(&checkpoint);
    let cold = world.open_frozen(&checkpoint, cache_bytes).unwrap();
    world.finish(checkpoint);
    assert_eq!(cold.tree.height(), 3);
    (world, cold)
}

#[test]
fn leaves_are_read_in_ahead_with_a_batch_for_each_level() {
    let (_world, cold) = cold(PLENTY);
    let keys: Vec<Key> = (0..100).map(|n| key(n * 1200)).collect();
    cold.tree.prefetch(&keys);
    let batches = cold.device.batches.lock().clone();
    assert_eq!(batches.len(), 2, "{batches:?}");
    assert_eq!(batches[1], 100, "each leaf once: {batches:?}");
    let reads = cold.device.reads.load(Relaxed);
    for key in &keys {
        assert_eq!(cold.tree.get(*key).unwrap().unwrap(), [1; 300]);
    }
    assert_eq!(cold.device.reads.load(Relaxed), reads, "they are in memory");
    // Nodes that are in memory are not read again.
    cold.tree.prefetch(&keys);
    assert_eq!(cold.device.batches.lock().len(), 2);
}

#[test]
fn a_node_that_cannot_be_read_ahead_is_the_error_of_who_needs_it() {
    let (_world, cold) = cold(PLENTY);
    let quota = cold.device.quota.as_ref().unwrap();
    // The quota of successful reads covers the inner nodes and half of the leaves.
    quota.store(60, Relaxed);
    let keys: Vec<Key> = (0..100).map(|n| key(n * 1200)).collect();
    cold.tree.prefetch(&keys);
    assert_eq!(quota.load(Relaxed), 0);
    let (mut there, mut failed) = (0, 0);
    for key in &keys {
        match cold.tree.get(*key) {
            Ok(found) => there += usize::from(found.is_some()),
            Err(Error::Io { .. }) => failed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(there > 0 && failed > 0 && there + failed == 100, "{there} {failed}");
    quota.store(u64::MAX, Relaxed);
    assert!(cold.tree.get(keys[99]).unwrap().is_some());
    cold.check();
}

#[test]
fn reading_ahead_fills_a_quarter_of_the_cache_at_most() {
    let (_world, cold) = cold(64 * 16384);
    let before = cold.device.reads.load(Relaxed);
    let keys: Vec<Key> = (0..1000).map(|n| key(n * 120)).collect();
    cold.tree.prefetch(&keys);
    assert_eq!(cold.device.reads.load(Relaxed) - before, 16);
}

/// Every node of the last checkpoint that extends beyond a block is found and copied, at each
/// level, and no other node is.
#[test]
fn nodes_beyond_a_block_are_found_and_renewed() {
    for end in [0, 100] {
        let world = World::new(PLENTY);
        for n in 0..60_000 {
            world.tree.put(key(n), &[1; 112]).unwrap();
        }
        world.checkpoint();
        let before = world.contents();
        let old = world.tree.generation();
        let beyond = || {
            let nodes = world.check().nodes;
            nodes.iter().filter(|node| node.generation < old && node.addr.0 + 4 > end).count()
        };
        assert!(beyond() > 0, "some lie beyond {end}");
        let (mut at, mut paths) = (Key::MIN, 0);
        while let Some(key) = world.tree.node_beyond(at, BlockNo(end)).unwrap() {
            assert!(key >= at);
            world.tree.renew(key).unwrap();
            (at, paths) = (key, paths + 1);
        }
        assert_eq!(beyond(), 0);
        assert!(paths <= world.check().nodes.len());
        assert_eq!(world.tree.node_beyond(Key::MIN, BlockNo(end)).unwrap(), None);
        assert!(world.contents() == before);
        world.checkpoint();
        world.check();
    }
}
