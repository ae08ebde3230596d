//! What the tree's kinds of latches cost: `cargo run --release -p kedge-btree --example latchbench [inserts]
//! [rounds] [lookups per insert] [threads,…]`.
//!
//! Threads insert in sixteen ranges of keys, which they share out, and look up keys of all ranges in between.
//! The kinds take turns within each round; medians over the rounds are printed.

use kedge_base::{BlockNo, Clock, CorruptKind, Error, Generation, IoBuf, Result, SystemClock, spawn_named};
use kedge_btree::{Key, LatchReport, NodeIo, NodeSpace, Tree, TreeConfig, TreeLock, histogram_text};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

const RANGES: u64 = 16;

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

fn key(range: u64, n: u64) -> Key {
    Key { ino: range << 32 | n, kind: 1, offset: 0 }
}

struct Work {
    tree: Tree,
    inserts: u64,
    lookups: u64,
    threads: u64,
}

impl Work {
    /// One thread's part of the ranges.
    fn run(&self, thread: u64) {
        let mut rng = SmallRng::seed_from_u64(thread);
        let mine: Vec<u64> = (0..RANGES).filter(|r| r % self.threads == thread).collect();
        for n in 0..self.inserts / RANGES {
            for range in &mine {
                assert!(!self.tree.put(key(*range, n), &[7; 112]).expect("no IO"));
                for _ in 0..self.lookups {
                    let at = key(rng.random_range(0..RANGES), rng.random_range(0..=n));
                    self.tree.get_with(at, |v| assert_eq!(v[0], 7)).expect("no IO");
                }
            }
        }
    }
}

struct Run {
    /// Insertions per second.
    rate: f64,
    /// Per second of processor time: for machines that have other things to do.
    cpu_rate: f64,
    latches: LatchReport,
}

/// Processor time of this thread. Infinite where the system does not tell.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos: Option<f64> = text.split(' ').next().and_then(|n| n.parse().ok());
    nanos.map_or(f64::INFINITY, |n| n / 1e9)
}

fn run(clock: &SystemClock, lock: TreeLock, inserts: u64, lookups: u64, threads: u64) -> Run {
    let config = TreeConfig { lock, ..TreeConfig::new(uuid::Uuid::nil(), 8 << 30) };
    let tree = Tree::create(Arc::new(NoIo), Arc::new(Bump(AtomicU64::new(4))), config, Generation(1));
    let work = Arc::new(Work { tree: tree.expect("no IO"), inserts, lookups, threads });
    let start = Arc::new(Barrier::new(threads as usize + 1));
    let all: Vec<_> = (0..threads)
        .map(|t| {
            let (work, start) = (work.clone(), start.clone());
            let body = move || {
                start.wait();
                let before = cpu_seconds();
                work.run(t);
                cpu_seconds() - before
            };
            spawn_named("bench", body).expect("a thread starts")
        })
        .collect();
    start.wait();
    let began = clock.monotonic();
    let cpu: f64 = all.into_iter().map(|t| t.join().expect("no panic")).sum();
    let took = (clock.monotonic() - began).as_secs_f64();
    Run { rate: inserts as f64 / took, cpu_rate: inserts as f64 / cpu, latches: work.tree.latches() }
}

/// What 999 of 1000 waits for the kind of latch that is worst off do not exceed.
fn tail(report: &LatchReport) -> u64 {
    report.kinds.iter().map(|k| k.wait_ns.quantile(0.999)).max().unwrap_or(0)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (inserts, rounds, lookups) = (number(0, 400_000), number(1, 5), number(2, 1));
    let threads: Vec<u64> = match args.get(3) {
        Some(list) => list.split(',').filter_map(|t| t.parse().ok()).collect(),
        None => vec![1, 2, 4, 16],
    };
    let clock = SystemClock::default();
    println!("{inserts} insertions, {lookups} lookups each, medians of {rounds} rounds");
    println!(
        "threads lock         insertions/s   per cpu s  acquisitions       waits     wakeups  longest ms  99.9 % us  in all ms  conversions  restarts"
    );
    for threads in threads {
        let mut runs: [Vec<Run>; 3] = Default::default();
        for round in 0..rounds as usize {
            for turn in 0..TreeLock::ALL.len() {
                let at = (round + turn) % TreeLock::ALL.len();
                runs[at].push(run(&clock, TreeLock::ALL[at], inserts, lookups, threads));
            }
        }
        for (lock, runs) in TreeLock::ALL.into_iter().zip(&runs) {
            let of = |f: &dyn Fn(&LatchReport) -> f64| median(runs.iter().map(|r| f(&r.latches)).collect());
            println!(
                "{threads:7} {lock:10} {:14.0} {:11.0} {:13.0} {:11.0} {:11.0} {:11.2} {:10.1} {:10.1} {:12.0} {:9.0}",
                median(runs.iter().map(|r| r.rate).collect()),
                median(runs.iter().map(|r| r.cpu_rate).collect()),
                of(&|r| r.acquisitions() as f64),
                of(&|r| r.waits() as f64),
                of(&|r| r.wakeups() as f64),
                of(&|r| r.longest_wait_ns() as f64 / 1e6),
                of(&|r| tail(r) as f64 / 1e3),
                of(&|r| r.kinds.iter().map(|k| k.wait_ns.sum).sum::<u64>() as f64 / 1e6),
                of(&|r| r.conversions as f64),
                of(&|r| r.restarts as f64),
            );
        }
        if std::env::var_os("HISTOGRAMS").is_some() {
            for kind in runs.iter().filter_map(|r| r.last()).flat_map(|r| &r.latches.kinds) {
                println!(
                    "{} {}\n{}",
                    kind.access,
                    kind.level,
                    histogram_text("usecs", &kind.wait_us.buckets)
                );
            }
        }
    }
}
