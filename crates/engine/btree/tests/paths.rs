//! Trees that hold paths latch as btrfs did before and after "kill btrfs_clear_path_blocking". The
//! tests compare the latches that an operation takes, the latches for which it waits without a try,
//! and the conversions.
#![cfg(feature = "historic")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{World, key};
use kedge_base::{Clock, Generation, Timespec, spawn_named};
use kedge_btree::{Key, LatchReport, Tree, TreeConfig, TreeLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// Number of items that fill a root, inner nodes and leaves.
const ITEMS: u64 = 60_000;
const VALUE: [u8; 200] = [7; 200];
/// An item whose path uses the first entry of no node.
const ITEM: u64 = ITEMS - 1000;

fn fill(tree: &Tree) {
    for n in 1..ITEMS {
        tree.put(at(n), &VALUE).unwrap();
    }
    assert_eq!(tree.height(), 3);
}

/// Returns key number `n`, with gaps between the keys.
fn at(n: u64) -> Key {
    Key { ino: 2 * n, kind: 1, offset: 0 }
}

/// The difference between two reports: conversions, and acquisitions and calls by kind.
#[derive(Debug, PartialEq, Eq)]
struct Events {
    conversions: u64,
    /// In the order read leaf, read inner, write leaf, write inner.
    taken: [u64; 4],
    calls: [u64; 4],
}

fn between(before: &LatchReport, after: &LatchReport) -> Events {
    let by = |of: fn(&kedge_btree::LatchKind) -> u64| {
        std::array::from_fn(|i| of(&after.kinds[i]) - of(&before.kinds[i]))
    };
    Events {
        conversions: after.conversions - before.conversions,
        taken: by(|k| k.acquisitions),
        calls: by(|k| k.calls),
    }
}

fn events(tree: &Tree, operation: impl FnOnce(&Tree)) -> Events {
    let before = tree.latches();
    operation(tree);
    between(&before, &tree.latches())
}

/// A single thread never waits. Only the root is latched without a try first. With *pingpong* each
/// level converts the latches that the path holds to blocking and back. That is one latch at the
/// first level and two at each later level, each converted twice. A lookup also returns a blocking
/// leaf.
#[test]
fn operations_latch_the_levels_that_btrfs_latched() {
    for lock in [TreeLock::Pingpong, TreeLock::Blocking] {
        let world = World::with_lock(lock, 1 << 30);
        let tree = &world.tree;
        fill(tree);
        let path = if lock == TreeLock::Pingpong { 2 + 4 + 4 } else { 0 };
        let root_read = [0, 1, 0, 0];
        let lookup = events(tree, |t| assert!(t.contains(at(ITEM)).unwrap()));
        let want = Events { conversions: path + 1, taken: [1, 2, 0, 0], calls: root_read };
        assert_eq!(lookup, want, "{lock}: a lookup reads");
        let update = events(tree, |t| assert!(t.update(at(ITEM), |v| v[0] = 9).unwrap()));
        let want = Events { conversions: path, taken: [0, 2, 1, 0], calls: root_read };
        assert_eq!(update, want, "{lock}: an update writes the leaf");
        let insert = events(tree, |t| assert!(t.put(at(ITEM), &VALUE).unwrap()));
        let want = Events { conversions: path, taken: [0, 1, 1, 1], calls: root_read };
        assert_eq!(insert, want, "{lock}: an insertion writes the leaf and level 1");
        let delete = events(tree, |t| assert!(t.delete(at(ITEM)).unwrap()));
        let want = Events { conversions: path, taken: [0, 1, 1, 2], calls: [0, 1, 0, 1] };
        assert_eq!(delete, want, "{lock}: a deletion writes up to level 2, where the root is");
        world.check();
    }
}

/// The key becomes the first key of each node on its path, so all these nodes are latched for
/// writing. This includes the root, whose level the descent knows only after it has read the root.
#[test]
fn an_insertion_in_the_first_place_starts_over_to_latch_the_parents() {
    for lock in [TreeLock::Pingpong, TreeLock::Blocking] {
        let world = World::with_lock(lock, 1 << 30);
        fill(&world.tree);
        // The root is latched for reading to learn its level, found to need a write latch, and
        // latched again for writing.
        let first =
            events(&world.tree, |t| assert!(!t.put(Key { ino: 1, kind: 1, offset: 0 }, &[1]).unwrap()));
        // The first descent held one latch when it restarted. The second descent keeps its whole
        // path.
        let path = if lock == TreeLock::Pingpong { 2 + (2 + 4 + 6) } else { 0 };
        let want = Events { conversions: path, taken: [0, 2, 1, 2], calls: [0, 2, 0, 1] };
        assert_eq!(first, want, "{lock}");
        let reads = events(&world.tree, |t| assert!(t.contains(key(0)).is_ok()));
        assert_eq!(reads.taken, [1, 2, 0, 0], "{lock}: a lookup needs nothing for that");
        world.check();
    }
}

/// A clock that records whether it was read. A latch reads the clock just before it waits.
#[derive(Default)]
struct Looked(AtomicU64);

impl Clock for Looked {
    fn now(&self) -> Timespec {
        Timespec::default()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.fetch_add(1, AcqRel))
    }
}

/// A writer finds the leaf held by a blocking reader, and waits. The writer's path becomes blocking
/// for the wait, and becomes spinning again only with *pingpong*.
#[test]
fn who_waits_makes_its_path_blocking() {
    for lock in [TreeLock::Pingpong, TreeLock::Blocking] {
        let clock = Arc::new(Looked::default());
        let (device, space) =
            (Arc::new(common::Device::default()), Arc::new(common::Space::new(Generation(5))));
        let config = TreeConfig::new(common::UUID, common::SECRET, 1 << 30);
        let config = TreeConfig { lock, clock: clock.clone(), ..config };
        let tree = Arc::new(Tree::create(device, space, config, Arc::new(AtomicU64::new(5))).unwrap());
        fill(&tree);
        assert_eq!(clock.0.load(Acquire), 0, "one thread waits for nothing");
        let before = tree.latches();
        let writer = tree
            .get_with(at(ITEM), |_| {
                let tree = tree.clone();
                let write = move || tree.update(at(ITEM), |v| v[0] = 9).unwrap();
                let writer = spawn_named("writer", write).unwrap();
                while clock.0.load(Acquire) == 0 {
                    std::thread::yield_now();
                }
                writer
            })
            .unwrap()
            .unwrap();
        assert!(writer.join().unwrap());
        let both = between(&before, &tree.latches());
        assert_eq!(both.taken, [1, 4, 1, 0], "{lock}");
        assert_eq!(both.calls, [0, 2, 1, 0], "{lock}: two roots, and the leaf that was not free");
        // The reader's path and its leaf, and the writer's path, in which the leaf's parent became
        // blocking for the wait.
        let want = if lock == TreeLock::Pingpong { 11 + 2 + 4 + 4 + 4 } else { 1 + 1 };
        assert_eq!(both.conversions, want, "{lock}");
    }
}
