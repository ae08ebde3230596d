use crate::load::{CHUNKS_AHEAD, COPIES, READ_BLOCKS};
use crate::test_device::{TestDevice, plan, plan_with_copies, write_frozen};
use crate::{Alloc, FreeCounts, NodeClass, Waited};
use kedge_base::lock::RwLock;
use kedge_base::{BlockNo, CorruptKind, Error, Extent, Generation, Ino, Lsn, spawn_named};
use kedge_device::sim::DistantDevice;
use kedge_format::alloc::GROUP_BLOCKS;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const SMALLEST: u64 = 4096;

fn smallest() -> Alloc {
    Alloc::format(&plan(SMALLEST, 1024))
}

fn is_no_space<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::NoSpace))
}

/// Allocates single blocks and applies their records, until none is left.
fn fill(alloc: &Alloc) -> Vec<Extent> {
    let mut all = Vec::new();
    loop {
        match alloc.alloc_data(BlockNo(0), 1, None) {
            Ok(e) => {
                alloc.apply_alloc(e).unwrap();
                all.push(e);
            }
            Err(Error::NoSpace) => return all,
            Err(e) => panic!("{e}"),
        }
    }
}

fn checkpoint(alloc: &Alloc, device: &TestDevice, generation: &mut Generation) {
    let frozen = alloc.freeze();
    write_frozen(device, &frozen, *generation);
    alloc.written(frozen);
    alloc.checkpoint_durable(*generation);
    *generation = generation.next();
}

#[test]
fn goals_make_neighbours() {
    let alloc = Alloc::format(&plan(3 * GROUP_BLOCKS, 1024));
    let dir = Ino(9);
    let first = alloc.alloc_data(alloc.goal_for(Ino(100), dir), 3, None).unwrap();
    let mut end = first.end();
    for blocks in [1, 1, 7, 100, 1] {
        let next = alloc.alloc_data(end, blocks, None).unwrap();
        assert_eq!(next, Extent::new(end, blocks));
        end = next.end();
    }
    assert_eq!(alloc.goal_for(Ino(101), dir), end, "the next file of a directory follows");
    let groups: std::collections::BTreeSet<u64> =
        (0..64).map(|i| alloc.goal_for(Ino(1), Ino(i * 64)).0 / GROUP_BLOCKS).collect();
    assert_eq!(groups.len(), 3, "directories spread");
}

#[test]
fn runs_are_long_and_stay_inside_a_group() {
    let alloc = Alloc::format(&plan(4 * GROUP_BLOCKS, 1024));
    let e = alloc.alloc_data(BlockNo(2 * GROUP_BLOCKS), u64::MAX, None).unwrap();
    assert_eq!(e, Extent::new(BlockNo(2 * GROUP_BLOCKS), GROUP_BLOCKS));
    let e = alloc.alloc_data(BlockNo(2 * GROUP_BLOCKS - 20), 1000, None).unwrap();
    assert_eq!(e, Extent::new(BlockNo(2 * GROUP_BLOCKS - 20), 20), "continues at the goal");
    let e = alloc.alloc_data(BlockNo(2 * GROUP_BLOCKS - 3), 1000, None).unwrap();
    assert_eq!(e.blocks, 1000, "a run elsewhere beats scraps");
}

#[test]
fn goals_outside_the_image_are_hints_too() {
    let alloc = smallest();
    for goal in [0, 5, SMALLEST, u64::MAX] {
        alloc.alloc_data(BlockNo(goal), 2, None).unwrap();
    }
}

#[test]
fn reservations_hold_to_the_last_block() {
    let alloc = smallest();
    // Frees single blocks with gaps between them, so that no free run is longer than one block.
    let all = fill(&alloc);
    let (gone, _kept): (Vec<_>, Vec<_>) = all.iter().partition(|e| e.start.0 % 2 == 0);
    for e in &gone {
        alloc.apply_free(*e, Lsn(1)).unwrap();
    }
    assert!(is_no_space(alloc.reserve_data(1)), "not durable yet");
    alloc.durable(Lsn(1));
    let available = alloc.available_data();
    assert_eq!(available, gone.len() as u64);
    assert!(is_no_space(alloc.reserve_data(available + 1)));
    let mut reservation = alloc.reserve_data(available).unwrap();
    assert!(is_no_space(alloc.alloc_data(BlockNo(0), 1, None)), "all is promised");
    let mut half = reservation.split(available / 2);
    half.merge(reservation.split(3));
    assert_eq!(half.blocks() + reservation.blocks(), available);
    reservation.give_back(1);
    assert_eq!(alloc.available_data(), 1);
    alloc.alloc_data(BlockNo(0), 9, None).unwrap();
    for r in [&mut half, &mut reservation] {
        while r.blocks() > 0 {
            let before = r.blocks();
            let e = alloc.alloc_data(BlockNo(0), u64::MAX, Some(r)).unwrap();
            assert_eq!(r.blocks(), before - e.blocks);
        }
    }
    let counts = alloc.free_counts();
    assert_eq!((counts.free, counts.reserved), (0, 0));
}

#[test]
fn dropped_reservations_return() {
    let alloc = smallest();
    let before = alloc.available_data();
    drop(alloc.reserve_data(before).unwrap());
    assert_eq!(alloc.available_data(), before);
    let e = alloc.alloc_data(BlockNo(0), 10, None).unwrap();
    alloc.release_data(Extent::new(e.start, 4));
    alloc.release_data(Extent::new(BlockNo(e.start.0 + 4), 6));
    assert_eq!(alloc.available_data(), before);
}

#[test]
fn records_that_cannot_be_are_corrupt() {
    let alloc = smallest();
    let data_start = plan(SMALLEST, 1024).data_start;
    let corrupt = |r: Result<(), Error>, at: u64| match r {
        Err(Error::Corrupt { block, .. }) => assert_eq!(block, BlockNo(at)),
        other => panic!("{other:?}"),
    };
    let e = alloc.alloc_data(BlockNo(0), 8, None).unwrap();
    alloc.apply_alloc(e).unwrap();
    corrupt(alloc.apply_alloc(Extent::new(BlockNo(e.start.0 + 2), 1)), e.start.0 + 2);
    corrupt(alloc.apply_alloc(Extent::new(BlockNo(e.start.0 + 9), 1)), e.start.0 + 9);
    corrupt(alloc.apply_free(Extent::new(e.start, 9), Lsn(1)), e.end().0);
    for bad in
        [(0, 1), (data_start.0 - 1, 2), (SMALLEST - 1, 2), (SMALLEST, 1), (e.start.0, 0), (u64::MAX, 2)]
    {
        corrupt(alloc.apply_alloc(Extent::new(BlockNo(bad.0), bad.1)), bad.0);
        corrupt(alloc.apply_free(Extent::new(BlockNo(bad.0), bad.1), Lsn(1)), bad.0);
    }
    let current = Generation(1);
    let node = alloc.alloc_node(BlockNo(0)).unwrap();
    corrupt(alloc.apply_alloc(Extent::new(BlockNo(node.0 + 4), 1)), node.0 + 4);
    corrupt(alloc.free_node(BlockNo(node.0 + 1), current, current), node.0 + 1);
    corrupt(alloc.free_node(BlockNo(node.0 + 4), current, current), node.0 + 4);
    corrupt(alloc.free_node(BlockNo(0), current, current), 0);
    corrupt(alloc.free_node(BlockNo(u64::MAX - 3), current, current), u64::MAX - 3);
    alloc.free_node(node, current, current).unwrap();
    corrupt(alloc.free_node(node, current, current), node.0);
}

#[test]
fn data_frees_wait_for_the_log() {
    let alloc = smallest();
    let e = alloc.alloc_data(BlockNo(0), 100, None).unwrap();
    alloc.apply_alloc(e).unwrap();
    let part = |i, n| Extent::new(BlockNo(e.start.0 + i), n);
    alloc.apply_free(part(50, 50), Lsn(200)).unwrap();
    alloc.apply_free(part(0, 50), Lsn(100)).unwrap();
    assert_eq!(alloc.free_counts().pending_data, 100);
    alloc.durable(Lsn(99));
    assert_eq!(alloc.free_counts().pending_data, 100);
    alloc.durable(Lsn(150));
    assert_eq!(alloc.free_counts().pending_data, 50);
    assert_eq!(alloc.alloc_data(e.start, 100, None).unwrap(), part(0, 50));
    alloc.durable(Lsn(120));
    assert_eq!(alloc.free_counts().pending_data, 50, "never goes back");
    alloc.durable(Lsn(200));
    assert_eq!(alloc.free_counts().pending_data, 0);
}

#[test]
fn nodes_wait_for_their_checkpoint() {
    let alloc = smallest();
    let (g1, g2) = (Generation(1), Generation(2));
    let a = alloc.alloc_node(BlockNo(0)).unwrap();
    let b = alloc.alloc_node(BlockNo(0)).unwrap();
    assert_eq!(b.0, a.0 + 4, "slots of one generation are neighbours");
    let pool = alloc.free_counts().pool;
    alloc.free_node(a, g1, g1).unwrap();
    assert_eq!(alloc.free_counts().pool, pool + 1, "born in this generation: at once");
    assert_eq!(alloc.alloc_node(a).unwrap(), a);
    alloc.free_node(a, g1, g2).unwrap();
    assert_eq!((alloc.free_counts().pool, alloc.free_counts().pending_nodes), (pool, 1));
    assert_ne!(alloc.alloc_node(a).unwrap(), a);
    alloc.checkpoint_durable(g1);
    assert_eq!(alloc.free_counts().pending_nodes, 1, "checkpoint 1 reads it");
    alloc.checkpoint_durable(g2);
    assert_eq!(alloc.free_counts().pending_nodes, 0);
    assert_eq!(alloc.alloc_node(a).unwrap(), a);
}

#[test]
fn no_thread_waits_for_a_promise_that_is_kept() {
    let alloc = smallest();
    fill(&alloc);
    let promise = alloc.reserve_nodes(2, NodeClass::Promised).unwrap().expect("there are some");
    assert_eq!(alloc.wait_for_nodes(Duration::ZERO), Waited::TimedOut, "the promise may be returned soon");
    let promise = promise.keep();
    assert_eq!(alloc.wait_for_nodes(Duration::ZERO), Waited::NothingHeld);
    let other = alloc.reserve_nodes(1, NodeClass::Promised).unwrap().expect("there are more");
    assert_eq!(alloc.wait_for_nodes(Duration::ZERO), Waited::TimedOut);
    drop((other, promise));
    assert_eq!(alloc.free_counts().promised_nodes, 0);
    assert_eq!(alloc.wait_for_nodes(Duration::ZERO), Waited::NothingHeld);
}

/// A promised slot exists although promises are made and returned without a lock, while data takes
/// all slots that the pool can spare.
#[test]
fn a_promised_slot_is_there_whatever_data_takes() {
    const SLOTS: u32 = 3;
    let alloc = Arc::new(Alloc::format(&plan(GROUP_BLOCKS, 1024)));
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let alloc = alloc.clone();
            let class = if i % 2 == 0 { NodeClass::Normal } else { NodeClass::Reclaim };
            let work = move || {
                let mut served = 0;
                for _ in 0..2_000 {
                    let Some(promise) = alloc.reserve_nodes(SLOTS, class).ok().flatten() else {
                        alloc.wait_for_nodes(Duration::from_millis(1));
                        continue;
                    };
                    let take = |_| alloc.alloc_node(BlockNo(0)).expect("the slot was promised");
                    let nodes: Vec<BlockNo> = (0..SLOTS).map(take).collect();
                    let back = |node| alloc.free_node(node, Generation(1), Generation(1)).unwrap();
                    nodes.into_iter().for_each(back);
                    drop(promise);
                    served += 1;
                }
                served
            };
            spawn_named("operation", work).unwrap()
        })
        .collect();
    fill(&alloc);
    let served: Vec<u32> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(served.iter().all(|served| *served > 0), "{served:?}");
    assert_eq!(alloc.free_counts().promised_nodes, 0);
    assert_eq!(alloc.wait_for_nodes(Duration::ZERO), Waited::NothingHeld);
}

#[test]
fn classes_share_the_pool_as_promised() {
    let alloc = smallest();
    fill(&alloc);
    let FreeCounts { pool, protected, pending_nodes: 0, .. } = alloc.free_counts() else { panic!() };
    assert_eq!(pool, protected + protected / 4, "the floor stays when data takes all it can");
    let normal = |n| alloc.reserve_nodes(n, NodeClass::Normal);
    let working = (pool - protected) as u32;
    assert!(is_no_space(normal(working + 1)));
    let r = normal(working).unwrap().expect("the working part serves it");
    assert!(normal(1).unwrap().is_none(), "it returns with the promise");
    let promised = |n| alloc.reserve_nodes(n, NodeClass::Promised);
    let reclaim = protected as u32 / 2;
    assert!(promised(reclaim + 1).unwrap().is_none(), "the reclaim slots must stay");
    let kept = promised(reclaim).unwrap().expect("accepted data has a part");
    let all = alloc.reserve_nodes(reclaim, NodeClass::Reclaim).unwrap().expect("the last part");
    assert_eq!(alloc.free_counts().promised_nodes, pool);
    drop((r, kept, all));
    assert_eq!(alloc.free_counts().promised_nodes, 0);
    assert!(is_no_space(alloc.reserve_nodes(pool as u32 + 1, NodeClass::Reclaim)));
    let node = alloc.alloc_node(BlockNo(0)).unwrap();
    alloc.free_node(node, Generation(1), Generation(2)).unwrap();
    assert!(normal(working).unwrap().is_none(), "a checkpoint would help");
    assert!(is_no_space(normal(working + 1)), "it would not");
    alloc.checkpoint_durable(Generation(2));
    assert!(normal(working).unwrap().is_some());
}

/// When the tree grows over many generations, the pool becomes large. When the tree shrinks,
/// surplus slots return to data.
#[test]
fn surplus_slots_return_to_data() {
    let alloc = Alloc::format(&plan(GROUP_BLOCKS, 1024));
    let mut born = Vec::new();
    for _ in 0..2000 {
        born.push(alloc.alloc_node(BlockNo(0)).unwrap());
    }
    for node in born {
        alloc.free_node(node, Generation(1), Generation(2)).unwrap();
    }
    alloc.checkpoint_durable(Generation(2));
    alloc.checkpoint_durable(Generation(3));
    let counts = alloc.free_counts();
    assert!(counts.pool <= 2 * counts.protected, "{counts:?}");
    assert_eq!(counts.free + 4 * counts.pool, counts.total);
}

fn one_delete(
    alloc: &Alloc,
    device: &TestDevice,
    tree: &mut [(BlockNo, Generation)],
    generation: &mut Generation,
    rng: &mut StdRng,
    lsn: u64,
) {
    let mut rounds = 0;
    let reservation = loop {
        match alloc.reserve_nodes(10, NodeClass::Reclaim).expect("deletes always work") {
            Some(r) => break r,
            None => {
                rounds += 1;
                assert!(rounds <= 2, "a checkpoint helps");
                alloc.durable(Lsn(lsn));
                checkpoint(alloc, device, generation);
            }
        }
    };
    for _ in 0..10 {
        let (addr, born) = &mut tree[rng.random_range(0..60)];
        if *born != *generation {
            let copy = alloc.alloc_node(*addr).expect("reserved");
            alloc.free_node(*addr, *born, *generation).unwrap();
            (*addr, *born) = (copy, *generation);
        }
    }
    drop(reservation);
}

#[test]
fn a_full_image_can_be_emptied() {
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let alloc = smallest();
        let device = TestDevice::new(SMALLEST);
        let mut generation = Generation(1);
        let mut tree = Vec::new();
        for _ in 0..60 {
            tree.push((alloc.alloc_node(BlockNo(0)).unwrap(), generation));
        }
        checkpoint(&alloc, &device, &mut generation);
        let mut files = fill(&alloc);
        let greedy = seed % 2 == 0;
        let mut lsn = 0;
        while !files.is_empty() && lsn < 4000 {
            lsn += 1;
            let victim = files.swap_remove(rng.random_range(0..files.len()));
            one_delete(&alloc, &device, &mut tree, &mut generation, &mut rng, lsn - 1);
            alloc.apply_free(victim, Lsn(lsn)).unwrap();
            if greedy && lsn % 3 == 0 {
                // A concurrent writer takes every block as soon as it is free.
                alloc.durable(Lsn(lsn));
                files.extend(fill(&alloc));
            }
        }
        alloc.durable(Lsn(lsn));
        checkpoint(&alloc, &device, &mut generation);
        if !greedy {
            let counts = alloc.free_counts();
            assert_eq!(counts.free + 4 * counts.pool, counts.total - 4 * 60, "seed {seed}");
        }
        alloc.cells.iter().for_each(|c| c.lock().check());
    }
}

/// On a full image with an empty pool, blocks freed by deletions refill the pool before data gets
/// any.
#[test]
fn a_bled_pool_is_refilled_first() {
    let alloc = smallest();
    let files = fill(&alloc);
    let before = alloc.free_counts().pool;
    for _ in 0..before {
        alloc.alloc_node(BlockNo(0)).unwrap();
    }
    assert!(is_no_space(alloc.alloc_node(BlockNo(0))));
    assert!(is_no_space(alloc.reserve_nodes(1, NodeClass::Reclaim)));
    let mut sorted = files.clone();
    sorted.sort();
    let (gone, kept) = sorted.split_at(40);
    for e in gone {
        alloc.apply_free(*e, Lsn(5)).unwrap();
    }
    assert!(alloc.reserve_nodes(1, NodeClass::Reclaim).unwrap().is_none(), "the log has to be forced");
    alloc.durable(Lsn(5));
    let counts = alloc.free_counts();
    assert!(counts.pool >= 8, "{counts:?}");
    // Single free blocks cannot become slots, so data may have them although the pool is short.
    for e in kept.iter().step_by(2) {
        alloc.apply_free(*e, Lsn(6)).unwrap();
    }
    alloc.durable(Lsn(6));
    drop(alloc.reserve_data(alloc.available_data()).unwrap());
}

fn sample(geometry: &kedge_format::superblock::Geometry) -> (TestDevice, Alloc, Vec<BlockNo>) {
    let device = TestDevice::new(geometry.total_blocks);
    let alloc = Alloc::format(geometry);
    let mut rng = StdRng::seed_from_u64(5);
    let mut written = Vec::new();
    for generation in 1..4 {
        for _ in 0..20 {
            let goal = BlockNo(rng.random_range(0..geometry.total_blocks));
            let e = alloc.alloc_data(goal, rng.random_range(1..500), None).unwrap();
            alloc.apply_alloc(e).unwrap();
            alloc.alloc_node(goal).unwrap();
        }
        let frozen = alloc.freeze();
        written = write_frozen(&device, &frozen, Generation(generation));
        alloc.written(frozen);
    }
    (device, alloc, written)
}

#[test]
fn many_groups_survive_a_reload() {
    let geometry = plan(600 * GROUP_BLOCKS + 77, 1024);
    assert!(geometry.index_blocks > 1);
    let (device, alloc, _) = sample(&geometry);
    let loaded = Alloc::load(&device, &geometry, Generation(3)).unwrap();
    for (a, b) in alloc.cells.iter().zip(loaded.cells.iter()) {
        let owned = a.lock().owned.clone();
        let b = b.lock();
        assert!(owned == b.owned);
        b.check();
    }
    assert_eq!(alloc.free_counts().owned_free, loaded.free_counts().owned_free);
    assert_eq!(loaded.free_counts().free, loaded.free_counts().owned_free);
    loaded.replay_done();
    assert!(loaded.free_counts().pool > 0);
    let untouched = loaded.freeze();
    assert_eq!(untouched.groups(), 0, "nothing changed, nothing to write");
    write_frozen(&device, &untouched, Generation(4));
    loaded.written(untouched);
    Alloc::load(&device, &geometry, Generation(4)).unwrap();
    Alloc::load(&device, &geometry, Generation(3)).unwrap();
}

#[test]
fn bitmaps_are_read_side_by_side() {
    let geometry = plan(4000 * GROUP_BLOCKS, 1024);
    let (device, ..) = sample(&geometry);
    let device = DistantDevice::new(Arc::new(device), std::time::Duration::ZERO);
    let loaded = Alloc::load(&device, &geometry, Generation(3)).unwrap();
    assert_eq!(loaded.cells.len(), 4000);
    let index = geometry.index_blocks.div_ceil(READ_BLOCKS);
    // The image has sixteen chunks of groups; reads of eight are in flight at a time.
    let (rounds, requests) = (device.rounds() - index, device.requests() - index);
    assert!(rounds <= 4, "{rounds} round trips");
    assert!((16..=32).contains(&requests), "{requests} reads");
    assert!(device.in_flight_max() <= CHUNKS_AHEAD * COPIES, "{}", device.in_flight_max());
}

#[test]
fn flipped_bits_are_corrupt() {
    let geometry = plan(10 * GROUP_BLOCKS - 3, 1024);
    let (device, _, written) = sample(&geometry);
    let mut rng = StdRng::seed_from_u64(11);
    let index = geometry.index_start[1];
    for &block in &written {
        let bits = (0..40).map(|_| rng.random_range(0..4096 * 8)).chain([0, 4096 * 8 - 1]);
        for bit in bits.collect::<Vec<usize>>() {
            let flip = |b: usize| device.blocks.lock().get_mut(&block.0).unwrap()[b / 8] ^= 1 << (b % 8);
            flip(bit);
            match Alloc::load(&device, &geometry, Generation(3)) {
                Err(Error::Corrupt { kind, block: at, .. }) => {
                    assert_eq!(at, block);
                    let want = if block == index { CorruptKind::AllocIndex } else { CorruptKind::Bitmap };
                    assert_eq!(kind, want);
                }
                Err(e) => panic!("block {block} bit {bit}: {e}"),
                Ok(_) => panic!("block {block} bit {bit}: loaded"),
            }
            flip(bit);
        }
    }
    Alloc::load(&device, &geometry, Generation(3)).unwrap();
    assert!(matches!(Alloc::load(&device, &geometry, Generation(1)), Err(Error::Corrupt { .. })));
}

/// Bitmaps and index agree with each other but violate the format.
#[test]
fn impossible_states_are_corrupt() {
    use kedge_device::Device;
    use kedge_format::alloc::{GroupEntry, bitmap_crc, encode_index_block};
    let geometry = plan(SMALLEST, 1024);
    let load = |bitmap: &[u8], free: u32, entries: usize| {
        let device = TestDevice::new(SMALLEST);
        let entry = GroupEntry { bitmap_crc: bitmap_crc(0, bitmap), free_blocks: free, copy: 0 };
        let mut buf = kedge_base::IoBuf::zeroed(1);
        let entries = vec![entry; entries];
        encode_index_block(&geometry.uuid, Generation(1), 0, &entries, buf.as_mut_bytes());
        device.write(geometry.index_start[1].byte_offset(), &buf, false).unwrap();
        let buf = kedge_base::IoBuf::from_bytes(bitmap);
        device.write(geometry.bitmap_start[0].byte_offset(), &buf, false).unwrap();
        match Alloc::load(&device, &geometry, Generation(1)) {
            Ok(_) => "loaded".to_owned(),
            Err(Error::Corrupt { what, .. }) => what.to_string(),
            Err(e) => panic!("{e}"),
        }
    };
    let mut bitmap = vec![0u8; 4096];
    for b in (0..geometry.data_start.0 as usize).chain(SMALLEST as usize..32768) {
        bitmap[b / 8] |= 1 << (b % 8);
    }
    let free = (SMALLEST - geometry.data_start.0) as u32;
    assert_eq!(load(&bitmap, free, 1), "loaded");
    assert!(load(&bitmap, free + 1, 1).contains("the index says"));
    assert!(load(&bitmap, free, 2).contains("names 2 groups"));
    assert!(load(&bitmap, free, 0).contains("names 0 groups"));
    bitmap[0] ^= 1;
    assert!(load(&bitmap, free + 1, 1).contains("format owns"));
    bitmap[0] ^= 1;
    *bitmap.last_mut().unwrap() ^= 0x80;
    assert!(load(&bitmap, free + 1, 1).contains("format owns"));
}

#[test]
fn held_blocks_are_kept_for_their_records() {
    let geometry = plan(SMALLEST, 1024);
    let device = TestDevice::new(SMALLEST);
    let mut generation = Generation(1);
    let alloc = Alloc::format(&geometry);
    let old = alloc.alloc_data(BlockNo(3000), 8, None).unwrap();
    alloc.apply_alloc(old).unwrap();
    checkpoint(&alloc, &device, &mut generation);

    let alloc = Alloc::load(&device, &geometry, Generation(1)).unwrap();
    // The records allocate all remaining blocks except ten slots; one block is allocated, freed and
    // allocated again.
    let first = geometry.data_start.0 + 40;
    let all =
        [Extent::new(BlockNo(first), old.start.0 - first), Extent::new(old.end(), SMALLEST - old.end().0)];
    let free = alloc.free_counts().free;
    for e in all.iter().chain([&Extent::new(old.start, 1), &all[0]]) {
        alloc.hold_for_replay(*e).unwrap();
    }
    assert_eq!(alloc.free_counts().free, free - all[0].blocks - all[1].blocks);
    for _ in 0..10 {
        assert!(alloc.alloc_node(BlockNo(0)).unwrap().0 < first);
    }
    assert!(is_no_space(alloc.alloc_node(BlockNo(0))));
    alloc.apply_alloc(all[0]).unwrap();
    alloc.apply_free(all[0], Lsn(1)).unwrap();
    assert!(is_no_space(alloc.alloc_node(BlockNo(0))), "still held");
    alloc.apply_alloc(all[0]).unwrap();
    alloc.apply_free(old, Lsn(2)).unwrap();
    let counts = alloc.free_counts();
    assert_eq!(
        (counts.free, counts.pool),
        (3, 1),
        "no record takes seven of them again, and the pool is short"
    );
    alloc.replay_done();
    assert_eq!(alloc.free_counts().free + 4 * alloc.free_counts().pool, 8 + all[1].blocks);
    alloc.cells.iter().for_each(|c| c.lock().check());
}

/// After the log has filled and emptied a full image repeatedly, replay has as much free space as
/// the original run had.
#[test]
fn a_hold_ends_with_the_last_record_that_takes_the_blocks() {
    let geometry = plan(SMALLEST, 1024);
    let device = TestDevice::new(SMALLEST);
    let mut generation = Generation(1);
    checkpoint(&Alloc::format(&geometry), &device, &mut generation);
    let alloc = Alloc::load(&device, &geometry, Generation(1)).unwrap();
    let all = Extent::new(geometry.data_start, SMALLEST - geometry.data_start.0);
    let half = Extent::new(all.start, all.blocks / 2);
    for e in [all, half, all] {
        alloc.hold_for_replay(e).unwrap();
    }
    for (lsn, e) in [(1, all), (2, half), (3, all)] {
        assert!(is_no_space(alloc.alloc_node(BlockNo(0))), "before record {lsn}");
        alloc.apply_alloc(e).unwrap();
        alloc.apply_free(e, Lsn(lsn)).unwrap();
    }
    alloc.alloc_node(BlockNo(0)).expect("no record takes the blocks again, though replay is not over");
    alloc.replay_done();
    alloc.cells.iter().for_each(|c| c.lock().check());
}

/// Replay from the last cut needs as many slots as the tree has used at most since then. So data
/// gets none of these slots before the next checkpoint is durable, but the tree may reuse them at
/// once.
#[test]
fn slots_that_the_tree_used_since_the_cut_are_not_for_data() {
    let alloc = smallest();
    let nodes: Vec<BlockNo> = (0..300).map(|_| alloc.alloc_node(BlockNo(0)).unwrap()).collect();
    let others = alloc.free_counts();
    for node in &nodes {
        alloc.free_node(*node, Generation(1), Generation(1)).unwrap();
    }
    assert_eq!(fill(&alloc).len() as u64, others.free + 4 * others.pool, "all but what the tree used");
    assert!(is_no_space(alloc.reserve_data(1)));
    assert!(alloc.available_after_checkpoint() >= 4 * 200, "a checkpoint returns slots");
    let again: Vec<BlockNo> = (0..300).map(|_| alloc.alloc_node(BlockNo(0)).unwrap()).collect();
    for node in again {
        alloc.free_node(node, Generation(1), Generation(1)).unwrap();
    }
    let promise = alloc.available_after_checkpoint();
    alloc.checkpoint_durable(Generation(1));
    assert_eq!(alloc.available_data(), promise);
    drop(alloc.reserve_data(promise).unwrap());
    alloc.cells.iter().for_each(|c| c.lock().check());
}

#[test]
#[should_panic(expected = "neither written nor abandoned")]
fn one_checkpoint_at_a_time() {
    let alloc = smallest();
    let _first = alloc.freeze();
    let _second = alloc.freeze();
}

fn claim(taken: &[AtomicU8], e: Extent) {
    (e.start.0..e.end().0).for_each(|b| assert_eq!(taken[b as usize].swap(1, SeqCst), 0, "block {b}"));
}

fn unclaim(taken: &[AtomicU8], e: Extent) {
    (e.start.0..e.end().0).for_each(|b| assert_eq!(taken[b as usize].swap(0, SeqCst), 1, "block {b}"));
}

/// Threads allocate, apply and free blocks at random, with checkpoints in between. No block has two
/// owners, and none is lost.
#[test]
fn many_threads() {
    let geometry = plan(2 * GROUP_BLOCKS + 1000, 20000);
    let alloc = Arc::new(Alloc::format(&geometry));
    // The image is nearly full, so that the threads compete for the last blocks.
    let room = alloc.reserve_data(2000).unwrap();
    while let Ok(e) = alloc.alloc_data(BlockNo(0), 5000, None) {
        alloc.apply_alloc(e).unwrap();
    }
    drop(room);
    let taken: Arc<Vec<AtomicU8>> = Arc::new((0..geometry.total_blocks).map(|_| AtomicU8::new(0)).collect());
    let gate = Arc::new(RwLock::new(kedge_base::lock::Rank::EpochGuard, Generation(1)));
    let lsn = Arc::new(AtomicU64::new(1));
    let before = alloc.free_counts();
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let (alloc, taken, gate, lsn) = (alloc.clone(), taken.clone(), gate.clone(), lsn.clone());
            let body = move || {
                let mut rng = StdRng::seed_from_u64(t);
                let (mut files, mut nodes) = (Vec::new(), Vec::<(BlockNo, Generation)>::new());
                for _ in 0..6000 {
                    match rng.random_range(0..10) {
                        0..5 => {
                            let goal = BlockNo(rng.random_range(0..geometry.total_blocks));
                            let want = rng.random_range(1..40);
                            let Ok(mut r) = alloc.reserve_data(want) else { continue };
                            while r.blocks() > 0 {
                                let e = alloc.alloc_data(goal, r.blocks(), Some(&mut r)).unwrap();
                                claim(&taken, e);
                                if rng.random_bool(0.2) {
                                    unclaim(&taken, e);
                                    alloc.release_data(e);
                                } else {
                                    let _g = gate.read();
                                    alloc.apply_alloc(e).unwrap();
                                    files.push(e);
                                }
                            }
                        }
                        5..8 if !files.is_empty() => {
                            let e = files.swap_remove(rng.random_range(0..files.len()));
                            let g = gate.read();
                            unclaim(&taken, e);
                            let at = Lsn(lsn.fetch_add(1, SeqCst));
                            alloc.apply_free(e, at).unwrap();
                            drop(g);
                            if rng.random_bool(0.3) {
                                alloc.durable(at);
                            }
                        }
                        _ => {
                            let Ok(Some(_r)) = alloc.reserve_nodes(3, NodeClass::Reclaim) else { continue };
                            let g = gate.read();
                            for _ in 0..2 {
                                let node = alloc.alloc_node(BlockNo(0)).unwrap();
                                claim(&taken, Extent::new(node, 4));
                                nodes.push((node, *g));
                            }
                            while nodes.len() > 5 {
                                let (node, born) = nodes.swap_remove(rng.random_range(0..nodes.len()));
                                unclaim(&taken, Extent::new(node, 4));
                                alloc.free_node(node, born, *g).unwrap();
                            }
                        }
                    }
                }
                let g = gate.read();
                for e in files {
                    unclaim(&taken, e);
                    alloc.apply_free(e, Lsn(0)).unwrap();
                }
                for (node, born) in nodes {
                    unclaim(&taken, Extent::new(node, 4));
                    alloc.free_node(node, born, *g).unwrap();
                }
            };
            spawn_named(&format!("alloc-{t}"), body).unwrap()
        })
        .collect();
    let device = TestDevice::new(geometry.total_blocks);
    while threads.iter().any(|t| !t.is_finished()) {
        let mut current = gate.write();
        let (generation, frozen) = (*current, alloc.freeze());
        *current = current.next();
        drop(current);
        write_frozen(&device, &frozen, generation);
        let loaded = Alloc::load(&device, &geometry, generation).unwrap();
        assert_eq!(loaded.free_counts().owned_free, frozen.free_blocks());
        alloc.written(frozen);
        alloc.checkpoint_durable(generation);
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    alloc.durable(Lsn(u64::MAX));
    alloc.checkpoint_durable(*gate.read());
    let after = alloc.free_counts();
    assert_eq!((after.pending_data, after.pending_nodes, after.reserved), (0, 0, 0));
    assert_eq!(after.owned_free, before.owned_free);
    assert_eq!(after.free + 4 * after.pool, before.free + 4 * before.pool);
    alloc.cells.iter().for_each(|c| c.lock().check());
}

#[test]
fn bad_blocks_are_nobodys_until_the_image_is_closed() {
    let alloc = smallest();
    let before = alloc.free_counts().available;
    let e = alloc.alloc_data(BlockNo(2000), 10, None).unwrap();
    alloc.apply_alloc(e).unwrap();
    let bad = Extent::new(BlockNo(e.start.0 + 3), 2);
    assert!(alloc.quarantine(bad));
    assert_eq!(alloc.bad_blocks(), 2);
    alloc.apply_free(e, Lsn(1)).unwrap();
    alloc.durable(Lsn(1));
    let counts = alloc.free_counts();
    assert_eq!((counts.available, counts.pending_data), (before - 2, 0));
    let handed_out = fill(&alloc);
    let is_bad = |e: &Extent| bad.start <= e.start && e.start < bad.end();
    assert!(!handed_out.iter().any(is_bad), "a bad block was handed out");
    let rest = Extent::new(handed_out[0].start, handed_out[0].blocks);
    assert!(!alloc.quarantine(Extent::new(rest.start, 256)), "a device that is bad as a whole");
}

#[test]
fn what_is_given_back_as_a_promise_is_nobody_elses() {
    let alloc = smallest();
    let mut promise = alloc.reserve_data(5).unwrap();
    let e = alloc.alloc_data(BlockNo(0), 5, Some(&mut promise)).unwrap();
    fill(&alloc);
    let renewed = alloc.unplace_data(e).unwrap();
    assert_eq!(renewed.blocks(), 5);
    assert!(is_no_space(alloc.alloc_data(BlockNo(0), 1, None)));
    drop(renewed);
    assert_eq!(alloc.alloc_data(BlockNo(0), 5, None).unwrap(), e);
}

/// Tests reason 9 of the crate's documentation.
#[test]
fn blocks_that_a_resize_added_are_free_only_once_its_checkpoint_is_written() {
    let geometry = plan(SMALLEST, 1024);
    let alloc = Alloc::format(&geometry);
    let write = |generation| {
        let frozen = alloc.freeze();
        let writes = frozen.writes(geometry.uuid, generation);
        (frozen, writes)
    };
    let (frozen, _) = write(Generation(2));
    alloc.written(frozen);
    alloc.checkpoint_durable(Generation(2));
    fill(&alloc);
    let new = geometry.grown(2 * GROUP_BLOCKS * 4096).unwrap();
    let maps = new.moved_maps();
    assert_eq!(maps.start, SMALLEST, "the maps are the first new blocks");
    alloc.prepare_growth(&new);
    alloc.grow(&new);
    let (frozen, writes) = write(Generation(3));
    assert_eq!(frozen.geometry(), &new);
    assert_eq!(frozen.groups(), 2, "the bitmaps of all groups are written");
    for (block, buf) in writes {
        assert!(maps.start <= block.0 && block.0 + buf.blocks() as u64 <= maps.end, "{block:?}");
    }
    assert!(is_no_space(alloc.alloc_data(BlockNo(SMALLEST), 1, None)));
    alloc.written(frozen);
    alloc.checkpoint_durable(Generation(3));
    let taken = fill(&alloc);
    assert!(taken.len() as u64 > GROUP_BLOCKS);
    assert!(taken.iter().all(|e| e.end().0 <= maps.start || maps.end <= e.start.0));
    let in_maps = Extent::new(BlockNo(maps.start), 1);
    assert!(alloc.apply_free(in_maps, Lsn(1)).is_err(), "a record cannot free the maps");
    alloc.cells.iter().for_each(|c| c.lock().check());
}

#[test]
fn no_copy_of_the_superblock_is_handed_out_and_the_old_last_block_is_free_after_a_growth() {
    let device = TestDevice::new(3 * GROUP_BLOCKS * 4096);
    let geometry = plan_with_copies(GROUP_BLOCKS, 1024);
    let alloc = Alloc::format(&geometry);
    let mut generation = Generation(2);
    checkpoint(&alloc, &device, &mut generation);
    let over_copy =
        |taken: &[Extent], block: BlockNo| taken.iter().any(|e| e.start <= block && block < e.end());
    let mut taken = fill(&alloc);
    let copies: Vec<BlockNo> = geometry.copies().collect();
    assert_eq!(copies, [4096, 8192, 16384, GROUP_BLOCKS - 1].map(BlockNo));
    for copy in &copies {
        assert!(!over_copy(&taken, *copy), "{copy}");
        assert!(alloc.apply_free(Extent::new(*copy, 1), Lsn(1)).is_err(), "a record cannot free {copy}");
        assert!(alloc.apply_alloc(Extent::new(*copy, 1)).is_err(), "a record cannot allocate {copy}");
    }
    let new = geometry.grown(2 * GROUP_BLOCKS * 4096).unwrap();
    assert!(new.moved_maps().contains(&GROUP_BLOCKS), "a power of two that the maps cover");
    alloc.prepare_growth(&new);
    alloc.grow(&new);
    checkpoint(&alloc, &device, &mut generation);
    taken.extend(fill(&alloc));
    assert!(over_copy(&taken, BlockNo(GROUP_BLOCKS - 1)), "files may use the old last block");
    assert!(new.copies().all(|copy| !over_copy(&taken, copy)));
    checkpoint(&alloc, &device, &mut generation);
    let loaded = Alloc::load(&device, &new, Generation(generation.0 - 1)).unwrap();
    assert_eq!(loaded.free_counts().owned_free, alloc.free_counts().owned_free);
    alloc.cells.iter().for_each(|c| c.lock().check());
}
