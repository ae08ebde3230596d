//! Many threads: writers with keys of their own, readers of all keys, and checkpoints that briefly
//! stop the writers.
#![allow(clippy::unwrap_used)]

mod common;

use common::World;
use kedge_base::spawn_named;
use kedge_btree::{Key, TreeLock};
use parking_lot::RwLock;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Returns a key of a writer. Neighbouring keys belong to different writers, so that writers meet
/// in the leaves.
fn key(writer: u64, n: u64) -> Key {
    Key { ino: n / 16, kind: writer as u8, offset: n % 16 }
}

fn value(writer: u64, n: u64, stamp: u64) -> Vec<u8> {
    let len = 24 + (n * 37 + stamp * 11) as usize % 700;
    let mut value = vec![stamp as u8; len];
    value[..8].copy_from_slice(&writer.to_le_bytes());
    value[8..16].copy_from_slice(&n.to_le_bytes());
    value[16..24].copy_from_slice(&stamp.to_le_bytes());
    value
}

fn verify(key: Key, value: &[u8]) {
    let at = |i: usize| u64::from_le_bytes(value[i * 8..i * 8 + 8].try_into().unwrap());
    let (writer, n, stamp) = (at(0), at(1), at(2));
    assert_eq!((key.kind as u64, key.ino * 16 + key.offset), (writer, n), "a value under its own key");
    assert!(value[24..].iter().all(|b| *b == stamp as u8), "no torn value");
}

struct Shared {
    world: World,
    /// Held shared by a writer during each operation, and exclusively by a freeze.
    gate: RwLock<()>,
    stop: AtomicBool,
    checkpoints: AtomicU64,
    /// Whether any reader has found an item.
    read: AtomicBool,
}

impl Shared {
    /// Returns whether the other threads have done something beside the writers, however loaded the
    /// machine is.
    fn all_took_part(&self) -> bool {
        self.checkpoints.load(Relaxed) > 1 && self.read.load(Relaxed)
    }
}

/// Maximum number of repetitions of the writers' work while they wait for the other threads.
const OPS_TIMES_MAX: u64 = 1000;

fn write_loop(shared: &Shared, writer: u64, keys: u64, ops: u64, seed: u64) -> BTreeMap<Key, Vec<u8>> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let tree = &shared.world.tree;
    let mut done = 0;
    while done < ops || !shared.all_took_part() && done < ops * OPS_TIMES_MAX {
        let (start, run) = (rng.random_range(0..keys), rng.random_range(1..60));
        let kind = rng.random_range(0..10);
        for n in start..(start + run).min(keys) {
            let key = key(writer, n);
            let _pass = shared.gate.read();
            match kind {
                0..=5 => {
                    let value = value(writer, n, done);
                    assert_eq!(tree.put(key, &value).unwrap(), model.insert(key, value).is_some());
                }
                6 => {
                    let restamp = |value: &mut [u8]| {
                        value[16..24].copy_from_slice(&done.to_le_bytes());
                        value[24..].fill(done as u8);
                    };
                    let model = model.get_mut(&key);
                    assert_eq!(tree.update(key, restamp).unwrap(), model.is_some());
                    if let Some(value) = model {
                        restamp(value);
                    }
                }
                7 => assert!(tree.get(key).unwrap().as_ref() == model.get(&key)),
                _ => assert_eq!(tree.delete(key).unwrap(), model.remove(&key).is_some()),
            }
            done += 1;
        }
    }
    model
}

fn read_loop(shared: &Shared, writers: u64, keys: u64, seed: u64) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let tree = &shared.world.tree;
    let mut seen = 0;
    while !shared.stop.load(Acquire) {
        if seen > 0 {
            shared.read.store(true, Relaxed);
        }
        let at = key(rng.random_range(0..writers), rng.random_range(0..keys));
        match rng.random_range(0..4) {
            0 => {
                let mut last = None;
                tree.scan(at, Key { ino: at.ino + 20, ..at }, &mut |key, value| {
                    verify(key, value);
                    assert!(last.is_none_or(|l| l < key) && key >= at);
                    last = Some(key);
                    seen += 1;
                    ControlFlow::Continue(())
                })
                .unwrap();
            }
            1 => {
                if let Some((key, value)) = tree.next_at_or_after(at).unwrap() {
                    assert!(key >= at);
                    verify(key, &value);
                }
            }
            2 => {
                if let Some((key, value)) = tree.prev_at_or_before(at).unwrap() {
                    assert!(key <= at);
                    verify(key, &value);
                }
            }
            _ => {
                let _pins = tree.pin(&[at]).unwrap();
                seen += tree.get_with(at, |value| verify(at, value)).unwrap().is_some() as u64;
            }
        }
    }
    seen
}

fn checkpoint_loop(shared: &Shared) {
    while !shared.stop.load(Acquire) {
        let checkpoint = {
            let _alone = shared.gate.write();
            shared.world.freeze()
        };
        shared.world.write(&checkpoint);
        // The device holds a complete tree, whatever the writers do at the same time.
        let again = shared.world.open_frozen(&checkpoint, 32 * 16384).unwrap();
        again.check();
        again.contents().iter().for_each(|(key, value)| verify(*key, value));
        shared.world.finish(checkpoint);
        shared.checkpoints.fetch_add(1, Relaxed);
    }
}

fn stress(lock: TreeLock, cache_nodes: usize, writers: u64, readers: u64, keys: u64, ops: u64, seed: u64) {
    println!("seed {seed}, {lock}");
    let shared = Arc::new(Shared {
        world: World::with_lock(lock, cache_nodes * 16384),
        gate: RwLock::new(()),
        stop: AtomicBool::new(false),
        checkpoints: AtomicU64::new(0),
        read: AtomicBool::new(false),
    });
    let spawn_writer = |w: u64| {
        let shared = shared.clone();
        spawn_named("writer", move || write_loop(&shared, w, keys, ops, seed + w)).unwrap()
    };
    let spawn_reader = |r: u64| {
        let shared = shared.clone();
        spawn_named("reader", move || read_loop(&shared, writers, keys, seed + 100 + r)).unwrap()
    };
    let writing: Vec<_> = (0..writers).map(spawn_writer).collect();
    let reading: Vec<_> = (0..readers).map(spawn_reader).collect();
    let checkpoints = {
        let shared = shared.clone();
        spawn_named("checkpoint", move || checkpoint_loop(&shared)).unwrap()
    };
    let results: Vec<_> = writing.into_iter().map(|t| t.join()).collect();
    shared.stop.store(true, Release);
    let read: u64 = reading.into_iter().map(|t| t.join().unwrap()).sum();
    checkpoints.join().unwrap();
    let model: BTreeMap<Key, Vec<u8>> = results.into_iter().flat_map(|r| r.unwrap()).collect();
    assert!(shared.world.contents() == model);
    let found = shared.world.check();
    assert_eq!(found.items, model.len() as u64);
    assert!(read > 0 && shared.checkpoints.load(Relaxed) > 1);
    let stats = shared.world.tree.stats();
    println!(
        "{} checkpoints, {} copies, {} splits, {} merges, {} evictions, {} restarts",
        shared.checkpoints.load(Relaxed),
        stats.copies.get(),
        stats.splits.get(),
        stats.merges.get(),
        stats.evictions.get(),
        stats.restarts.get()
    );
}

/// Whether the test runs under Miri, an interpreter that needs as much time for a thousandth of the
/// work.
const MIRI: bool = cfg!(miri);

fn in_memory(lock: TreeLock) {
    if MIRI {
        return stress(lock, 100_000, 2, 1, 200, 150, 11);
    }
    stress(lock, 100_000, 4, 2, 4000, 40_000, 11);
}

fn with_a_small_cache(lock: TreeLock) {
    if MIRI {
        return stress(lock, 30, 2, 1, 200, 150, 12);
    }
    stress(lock, 30, 4, 2, 4000, 20_000, 12);
}

fn in_few_leaves(lock: TreeLock) {
    if MIRI {
        return stress(lock, 10, 3, 1, 40, 150, 13);
    }
    stress(lock, 10, 8, 4, 60, 10_000, 13);
}

macro_rules! under_each_lock {
    ($($name:ident: $lock:ident;)*) => {
        $(mod $name {
            use super::TreeLock;

            #[test]
            fn writers_readers_and_checkpoints_in_memory() {
                super::in_memory(TreeLock::$lock);
            }

            #[test]
            fn writers_readers_and_checkpoints_with_a_small_cache() {
                super::with_a_small_cache(TreeLock::$lock);
            }

            #[test]
            fn writers_in_few_leaves() {
                super::in_few_leaves(TreeLock::$lock);
            }
        })*
    };
}

under_each_lock! {
    optimistic: Optimistic;
    rwlock: Rwlock;
}

#[cfg(feature = "historic")]
under_each_lock! {
    blocking: Blocking;
    pingpong: Pingpong;
}
