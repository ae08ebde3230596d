//! Measures the rates at which the allocator serves nodes, and single blocks and runs on an empty,
//! a nearly full and a checkerboard image.

use kedge_alloc::{Alloc, NodeClass};
use kedge_base::{BLOCK_SIZE, BlockNo, Clock, Extent, Generation, Lsn, SystemClock, Timespec, spawn_named};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::superblock::Geometry;
use std::sync::Arc;

fn image(groups: u64) -> Geometry {
    let bytes = groups * GROUP_BLOCKS * BLOCK_SIZE as u64;
    let uuid = uuid::Uuid::from_u128(1);
    Geometry::plan(bytes, Geometry::default_log_bytes(bytes), "bench", uuid, [0; 16], Timespec::default())
        .expect("the plan is possible")
}

fn timed(name: &str, count: u64, body: impl FnOnce()) {
    let clock = SystemClock::default();
    let start = clock.monotonic();
    body();
    let took = clock.since(start);
    let (ns, rate) = (took.as_nanos() as f64 / count as f64, count as f64 / took.as_secs_f64() / 1e6);
    println!("{name:<52} {ns:>9.1} ns  {rate:>8.2} M/s");
}

fn singles(alloc: &Alloc, count: u64) -> Vec<Extent> {
    let mut goal = BlockNo(0);
    let mut all = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let e = alloc.alloc_data(goal, 1, None).expect("there is space");
        goal = e.end();
        all.push(e);
    }
    all
}

/// Makes an image, allocates all its blocks, and frees every `step`-th of them.
fn crowded(groups: u64, step: usize) -> Arc<Alloc> {
    let alloc = Alloc::format(&image(groups));
    let mut all = Vec::new();
    while let Ok(e) = alloc.alloc_data(BlockNo(0), GROUP_BLOCKS, None) {
        alloc.apply_alloc(e).expect("it was handed out");
        all.push(e);
    }
    for e in all {
        for block in (e.start.0..e.end().0).step_by(step) {
            alloc.apply_free(Extent::new(BlockNo(block), 1), Lsn(1)).expect("it is owned");
        }
    }
    alloc.durable(Lsn(1));
    Arc::new(alloc)
}

fn main() {
    let count = 1_000_000;
    let alloc = Alloc::format(&image(64));
    let mut all = Vec::new();
    timed("single blocks, empty 8 GiB", count, || all = singles(&alloc, count));
    timed("  apply_alloc", count, || {
        all.iter().for_each(|e| alloc.apply_alloc(*e).expect("it was handed out"));
    });
    timed("  apply_free", count, || {
        all.iter()
            .enumerate()
            .for_each(|(i, e)| alloc.apply_free(*e, Lsn(i as u64 + 1)).expect("it is owned"));
    });
    timed("  durable", count, || alloc.durable(Lsn(count)));
    timed("single blocks from a reservation", count, || {
        let mut r = alloc.reserve_data(count).expect("there is space");
        let mut goal = BlockNo(0);
        for _ in 0..count {
            goal = alloc.alloc_data(goal, 1, Some(&mut r)).expect("promised").end();
        }
    });
    let alloc = Arc::new(Alloc::format(&image(64)));
    timed("single blocks, 2 threads", count, || {
        let body = |t: u64| {
            let alloc = alloc.clone();
            spawn_named("bench", move || {
                let mut goal = BlockNo(t * 20 * GROUP_BLOCKS);
                for _ in 0..count / 2 {
                    goal = alloc.alloc_data(goal, 1, None).expect("there is space").end();
                }
            })
        };
        let threads = [1, 2].map(|t| body(t).expect("threads can be had"));
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
    });
    for (name, step) in [("one block in 1000 free", 1000), ("checkerboard", 2)] {
        for want in [1, 64] {
            let alloc = crowded(64, step);
            let count = alloc.available_data();
            let mut slowest = 0;
            let clock = SystemClock::default();
            timed(&format!("64 groups, {name}, want {want}"), count, || {
                let mut seed = 1u64;
                for _ in 0..count {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let start = clock.monotonic();
                    alloc
                        .alloc_data(BlockNo(seed % (64 * GROUP_BLOCKS)), want, None)
                        .expect("there is space");
                    slowest = slowest.max(clock.since(start).as_nanos());
                }
            });
            println!("  slowest {} µs", slowest / 1000);
        }
    }
    let alloc = Alloc::format(&image(64));
    let nodes = 200_000;
    timed("node copies: reserve, alloc, free", nodes, || {
        let mut tree: Vec<BlockNo> =
            (0..5000).map(|_| alloc.alloc_node(BlockNo(0)).expect("there is space")).collect();
        for i in 0..nodes {
            let generation = Generation(2 + i / 5000);
            let r = alloc.reserve_nodes(8, NodeClass::Normal).expect("there is space");
            let node = &mut tree[i as usize % 5000];
            let copy = alloc.alloc_node(*node).expect("there is space");
            alloc.free_node(*node, Generation(generation.0 - 1), generation).expect("it is owned");
            *node = copy;
            drop(r);
            if i % 5000 == 4999 {
                alloc.checkpoint_durable(generation);
            }
        }
    });
    let alloc = Alloc::format(&image(8192));
    timed("freeze of 8192 dirty groups, per group", 8192, || {
        let frozen = alloc.freeze();
        alloc.abandon(frozen);
    });
}
