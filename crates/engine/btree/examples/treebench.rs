//! Rates of a tree in memory: `cargo run --release -p kedge-btree --example treebench [items]`.

use kedge_base::{BlockNo, Clock, CorruptKind, Error, Generation, IoBuf, Result, SystemClock, spawn_named};
use kedge_btree::{Key, NodeIo, NodeSpace, Tree, TreeConfig};
use kedge_format::ItemKind;
use kedge_format::logwrite::LogSecret;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct NoIo;

impl NodeIo for NoIo {
    fn read_node(&self, addr: BlockNo) -> Result<IoBuf> {
        Err(Error::corrupt(CorruptKind::Node, addr, "everything is in memory"))
    }
}

struct Bump(AtomicU64);

impl NodeSpace for Bump {
    fn alloc_node(&self, _near: BlockNo) -> Result<BlockNo> {
        Ok(BlockNo(self.0.fetch_add(4, Relaxed)))
    }

    fn free_node(&self, _addr: BlockNo, _born: Generation) {}
}

fn tree() -> Tree {
    let config = TreeConfig::new(uuid::Uuid::nil(), LogSecret::default(), 8 << 30);
    Tree::create(Arc::new(NoIo), Arc::new(Bump(AtomicU64::new(4))), config, Generation(1)).expect("no IO")
}

fn key(n: u64) -> Key {
    Key { ino: n, kind: ItemKind::Inode as u8, offset: 0 }
}

/// Processor time of this thread, for machines that run other work too. Infinite on systems that do
/// not report it.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos: Option<f64> = text.split(' ').next().and_then(|n| n.parse().ok());
    nanos.map_or(f64::INFINITY, |n| n / 1e9)
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn timed(clock: &SystemClock, what: &str, ops: u64, body: impl FnOnce()) {
    let (start, cpu) = (clock.monotonic(), cpu_seconds());
    body();
    let (took, cpu) = (clock.since(start), cpu_seconds() - cpu);
    let rate = ops as f64 / took.as_secs_f64();
    print!("{what:34} {:8.0} k/s {:8.0} ns/op", rate / 1e3, 1e9 / rate);
    // Not printed where other threads did the work.
    if cpu > took.as_secs_f64() / 10.0 {
        print!("; in processor time {:8.0} k/s", ops as f64 / cpu / 1e3);
    }
    println!();
}

fn threads(clock: &SystemClock, tree: &Arc<Tree>, what: &str, ops: u64, body: fn(&Tree, u64, u64)) {
    for count in [1u64, 2, 4] {
        timed(clock, &format!("{what}, {count} threads"), ops * count, || {
            let all: Vec<_> = (0..count)
                .map(|t| {
                    let tree = tree.clone();
                    spawn_named("bench", move || body(&tree, t, ops)).expect("a thread starts")
                })
                .collect();
            all.into_iter().for_each(|t| t.join().expect("no panic"));
        });
    }
}

fn main() {
    let items: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let clock = SystemClock::default();
    let value = [7u8; 112];
    let ascending = Arc::new(tree());
    let put = |tree: &Tree, n: u64| {
        tree.put(key(n), &value).expect("room and no IO");
    };
    timed(&clock, "put ascending", items, || (0..items).for_each(|n| put(&ascending, n)));
    let found = ascending.check().expect("sound");
    println!(
        "  {} nodes, leaves {:.1} % full",
        found.nodes.len(),
        found.leaf_bytes as f64 / found.leaves as f64 / 163.2
    );
    let per_node = |bytes: usize| bytes / found.nodes.len();
    println!(
        "  {} bytes per node counted, {} resident",
        per_node(ascending.cached_bytes()),
        per_node(resident())
    );
    let interleaved = tree();
    timed(&clock, "put ascending in 16 ranges", items, || {
        (0..items).for_each(|n| put(&interleaved, (n % 16) << 40 | n));
    });
    drop(interleaved);

    let random = tree();
    let mut rng = SmallRng::seed_from_u64(1);
    let order: Vec<u64> = (0..items).map(|_| rng.random()).collect();
    timed(&clock, "put random", items, || order.iter().for_each(|n| put(&random, *n)));
    let found = random.check().expect("sound");
    println!(
        "  {} nodes, leaves {:.1} % full",
        found.nodes.len(),
        found.leaf_bytes as f64 / found.leaves as f64 / 163.2
    );
    timed(&clock, "replace random", items, || order.iter().for_each(|n| put(&random, *n)));
    let frozen = random.freeze();
    let bytes = frozen.len() as u64 * 16384;
    timed(&clock, "seal frozen nodes (MB)", bytes >> 10, || assert!(frozen.nodes().count() > 0));
    random.written(frozen);
    timed(&clock, "replace random, copying", items, || order.iter().for_each(|n| put(&random, *n)));
    timed(&clock, "delete random", items, || {
        order.iter().for_each(|n| assert!(random.delete(key(*n)).expect("no IO")));
    });
    println!("  {} nodes left", random.node_count());
    drop(random);

    let mut rng = SmallRng::seed_from_u64(2);
    timed(&clock, "get random", items, || {
        (0..items).for_each(|_| {
            let found = ascending.get_with(key(rng.random_range(0..items)), |v| v[0]).expect("no IO");
            assert_eq!(found, Some(7));
        });
    });
    timed(&clock, "get random, to a Vec", items, || {
        (0..items).for_each(|_| {
            assert!(ascending.get(key(rng.random_range(0..items))).expect("no IO").is_some());
        });
    });
    timed(&clock, "get ascending", items, || {
        (0..items).for_each(|n| assert!(ascending.get_with(key(n), |v| v[0]).expect("no IO").is_some()));
    });
    timed(&clock, "update random", items, || {
        (0..items).for_each(|_| {
            assert!(ascending.update(key(rng.random_range(0..items)), |v| v[1] += 1).expect("no IO"));
        });
    });
    let mut seen = 0;
    timed(&clock, "scan", items, || {
        ascending
            .scan(Key::MIN, Key::MAX, &mut |_, _| {
                seen += 1;
                ControlFlow::Continue(())
            })
            .expect("no IO");
    });
    assert_eq!(seen, items);
    threads(&clock, &ascending, "get random", items / 2, |tree, t, ops| {
        let mut rng = SmallRng::seed_from_u64(t);
        (0..ops).for_each(|_| {
            tree.get_with(key(rng.random_range(0..ops)), |v| v[0]).expect("no IO");
        });
    });
    threads(&clock, &ascending, "put ascending in own range", items / 4, |tree, t, ops| {
        let base = tree.node_count() << 32 | (t + 1) << 56;
        (0..ops).for_each(|n| assert!(!tree.put(key(base | n), &[7; 112]).expect("no IO")));
    });
    let latches = ascending.latches();
    println!(
        "latches: {} taken, {} waited for, {} restarts",
        latches.acquisitions(),
        latches.waits(),
        latches.restarts
    );
}
