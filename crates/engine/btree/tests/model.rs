//! Compares the tree with a sorted map: random operations, evictions and freezes. Each frozen state
//! is also opened as a second tree.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Checkpoint, World};
use kedge_btree::{Key, Pins, TreeLock};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

#[derive(Debug, Clone)]
enum Act {
    Put {
        at: u64,
        len: usize,
    },
    /// Puts a run of ascending or descending keys.
    PutRun {
        at: u64,
        count: u64,
        len: usize,
        down: bool,
    },
    Update {
        at: u64,
    },
    Delete {
        at: u64,
    },
    DeleteRun {
        at: u64,
        count: u64,
    },
    Look {
        at: u64,
    },
    Scan {
        at: u64,
        count: u64,
        stop: usize,
    },
    Pin {
        at: u64,
    },
    Cache {
        nodes: usize,
    },
    Freeze,
    /// Writes the nodes of the frozen generation and opens the frozen state as a second tree.
    Write,
    Finish,
    Check,
}

struct Run {
    world: World,
    model: BTreeMap<Key, Vec<u8>>,
    /// The checkpoint in progress, the model's contents at its freeze, and whether its nodes are
    /// written.
    frozen: Option<(Checkpoint, BTreeMap<Key, Vec<u8>>, bool)>,
    pins: Vec<Pins>,
    keys: u64,
    stamp: u8,
}

/// Returns key number `n`. Keys have the order of their numbers, with gaps.
fn key(n: u64) -> Key {
    Key { ino: n / 64, kind: (n / 16 % 4) as u8 * 2, offset: n % 16 * 1000 }
}

impl Run {
    fn new(lock: TreeLock, keys: u64, cache_nodes: usize) -> Run {
        Run {
            world: World::with_lock(lock, cache_nodes * 16384),
            model: BTreeMap::new(),
            frozen: None,
            pins: Vec::new(),
            keys,
            stamp: 0,
        }
    }

    fn put(&mut self, n: u64, len: usize) {
        self.stamp = self.stamp.wrapping_add(1);
        let (key, value) = (key(n % self.keys), vec![self.stamp; len]);
        let replaced = self.world.tree.put(key, &value).unwrap();
        assert_eq!(replaced, self.model.insert(key, value).is_some());
    }

    fn delete(&mut self, n: u64) {
        let key = key(n % self.keys);
        assert_eq!(self.world.tree.delete(key).unwrap(), self.model.remove(&key).is_some());
    }

    fn look(&self, at: u64) {
        let key = key(at % self.keys);
        // Check also a key that is never in the tree.
        for key in [key, Key { offset: key.offset + 1, ..key }] {
            let owned = |(k, v): (&Key, &Vec<u8>)| (*k, v.clone());
            let tree = &self.world.tree;
            assert!(tree.get(key).unwrap().as_ref() == self.model.get(&key));
            assert_eq!(tree.contains(key).unwrap(), self.model.contains_key(&key));
            assert!(tree.next_at_or_after(key).unwrap() == self.model.range(key..).next().map(owned));
            assert!(tree.prev_at_or_before(key).unwrap() == self.model.range(..=key).next_back().map(owned));
        }
    }

    fn scan(&self, at: u64, count: u64, stop: usize) {
        let (from, to) = (key(at % self.keys), key(at % self.keys + count));
        let mut found = Vec::new();
        self.world
            .tree
            .scan(from, to, &mut |k, v| {
                // The callback of a scan may call the tree.
                assert_eq!(self.world.tree.get(k).unwrap().unwrap(), v);
                found.push((k, v.to_vec()));
                if found.len() == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        let want: Vec<_> =
            self.model.range(from..=to).take(stop.max(1)).map(|(k, v)| (*k, v.clone())).collect();
        if stop > 0 {
            assert!(found == want);
        } else {
            assert!(found.iter().map(|(k, v)| (k, v)).eq(self.model.range(from..=to)));
        }
    }

    fn write_and_reopen(&mut self) {
        let Some((checkpoint, snapshot, written)) = &mut self.frozen else {
            return;
        };
        self.world.write(checkpoint);
        *written = true;
        let again = self.world.open_frozen(checkpoint, 3 * 16384).unwrap();
        assert!(again.contents() == *snapshot, "what was frozen is what is on the device");
        again.check();
        // The reopened tree must accept changes.
        again.tree.put(key(1), b"again").unwrap();
        assert_eq!(again.tree.get(key(1)).unwrap().unwrap(), b"again");
        again.check();
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Put { at, len } => self.put(at, len),
            Act::PutRun { at, count, len, down } => {
                (0..count).for_each(|i| self.put(if down { at + count - i } else { at + i }, len));
            }
            Act::Update { at } => {
                let key = key(at % self.keys);
                let found = self.world.tree.update(key, |v| v.iter_mut().for_each(|b| *b ^= 0x55)).unwrap();
                let model = self.model.get_mut(&key);
                assert_eq!(found, model.is_some());
                if let Some(value) = model {
                    value.iter_mut().for_each(|b| *b ^= 0x55);
                }
            }
            Act::Delete { at } => self.delete(at),
            Act::DeleteRun { at, count } => (at..at + count).for_each(|n| self.delete(n)),
            Act::Look { at } => self.look(at),
            Act::Scan { at, count, stop } => self.scan(at, count, stop),
            Act::Pin { at } => {
                if self.pins.len() > 3 {
                    self.pins.clear();
                }
                let keys = [key(at % self.keys), key((at + 40) % self.keys)];
                self.pins.push(self.world.tree.pin(&keys).unwrap());
            }
            Act::Cache { nodes } => self.world.tree.set_cache_bytes(nodes * 16384),
            Act::Freeze if self.frozen.is_none() => {
                self.frozen = Some((self.world.freeze(), self.model.clone(), false));
            }
            Act::Freeze => {}
            Act::Write => self.write_and_reopen(),
            Act::Finish => {
                if self.frozen.as_ref().is_some_and(|f| !f.2) {
                    self.write_and_reopen();
                }
                if let Some((checkpoint, _, _)) = self.frozen.take() {
                    self.world.finish(checkpoint);
                }
            }
            Act::Check => {
                let found = self.world.check();
                assert_eq!(found.items, self.model.len() as u64);
            }
        }
    }

    /// Removes all items at the end. Only a root may then be allocated.
    fn end(mut self) {
        assert!(self.world.contents() == self.model);
        self.act(Act::Check);
        self.act(Act::Finish);
        self.act(Act::Freeze);
        self.act(Act::Finish);
        self.act(Act::Check);
        self.pins.clear();
        self.world.tree.set_cache_bytes(0);
        assert_eq!(self.world.totals.dirty_bytes(), 0);
        let left = self.world.tree.cached_bytes();
        assert!(left < 24_000, "all but the root pointer can be evicted, {left} bytes are left");
        assert!(self.world.contents() == self.model);
        self.world.tree.set_cache_bytes(1 << 30);
        let before = self.world.check();
        for n in 0..self.keys {
            self.delete(n);
        }
        let found = self.world.check();
        assert_eq!(found.items, 0);
        assert!(
            found.nodes.len() <= 1 + before.nodes.len() / 20,
            "{} of {} nodes left",
            found.nodes.len(),
            before.nodes.len()
        );
    }
}

fn value_len() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(112), 2 => 0..40usize, 2 => 200..1500usize, 1 => Just(4352)]
}

fn act(keys: u64) -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..keys, value_len()).prop_map(|(at, len)| Act::Put { at, len }),
        6 => (0..keys, 1..200u64, value_len(), any::<bool>())
            .prop_map(|(at, count, len, down)| Act::PutRun { at, count, len, down }),
        2 => (0..keys).prop_map(|at| Act::Update { at }),
        3 => (0..keys).prop_map(|at| Act::Delete { at }),
        3 => (0..keys, 1..300u64).prop_map(|(at, count)| Act::DeleteRun { at, count }),
        3 => (0..keys).prop_map(|at| Act::Look { at }),
        2 => (0..keys, 0..300u64, 0..100usize).prop_map(|(at, count, stop)| Act::Scan { at, count, stop }),
        1 => (0..keys).prop_map(|at| Act::Pin { at }),
        1 => (0..20usize).prop_map(|nodes| Act::Cache { nodes }),
        3 => Just(Act::Freeze),
        1 => Just(Act::Write),
        2 => Just(Act::Finish),
        1 => Just(Act::Check),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_tree_behaves_like_a_sorted_map(acts in proptest::collection::vec(act(2000), 1..80), cache in 0..12usize) {
        for &lock in TreeLock::ALL {
            let mut run = Run::new(lock, 2000, cache);
            for act in &acts {
                run.act(act.clone());
            }
            run.end();
        }
    }
}

/// With large values a tree of several levels needs only few items.
#[test]
fn a_high_tree_behaves_like_a_sorted_map() {
    for (seed, &lock) in (1u64..).zip(TreeLock::ALL) {
        println!("seed {seed}, {lock}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let keys = 6000;
        let mut run = Run::new(lock, keys, 40);
        for step in 0..120 {
            let (at, count) = (rng.random_range(0..keys), rng.random_range(1..400));
            let big = rng.random_range(2000..=4352);
            run.act(match rng.random_range(0..10) {
                0..=3 => Act::PutRun { at, count, len: big, down: rng.random() },
                4 => Act::PutRun { at, count, len: rng.random_range(0..300), down: false },
                5 | 6 => Act::DeleteRun { at, count: count * 2 },
                7 => Act::Scan { at, count, stop: 0 },
                8 => Act::Freeze,
                _ => Act::Finish,
            });
            for _ in 0..200 {
                let at = rng.random_range(0..keys);
                match rng.random_range(0..4) {
                    0 => run.act(Act::Delete { at }),
                    1 => run.act(Act::Look { at }),
                    _ => run.act(Act::Put { at, len: big }),
                }
            }
            if step % 10 == 0 {
                run.act(Act::Check);
            }
        }
        assert!(run.world.tree.root().2 >= 2, "high enough to split inner nodes");
        run.end();
    }
}
