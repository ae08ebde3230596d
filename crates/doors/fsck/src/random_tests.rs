//! Random damage never causes a panic, and damage to the structures of the checkpoint is always
//! reported.

use crate::damage_tests::run;
use crate::test_image::{Built, Image, write};
use kedge_base::{BLOCK_SIZE, BlockNo};
use kedge_format::node::{NODE_BLOCKS, NODE_SIZE, NodeMut};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind};

const SEED: u64 = 0x6b65646765667363;

/// The blocks of the newest checkpoint's structures.
fn structure(built: &Built) -> Vec<BlockNo> {
    let nodes = built.nodes.iter().flatten();
    let mut blocks: Vec<BlockNo> = nodes.flat_map(|n| (0..NODE_BLOCKS).map(|i| BlockNo(n.0 + i))).collect();
    blocks.extend([BlockNo(0), BlockNo(16), built.index]);
    blocks.extend(&built.bitmaps);
    blocks
}

/// Checks a damaged fork of `built`; a panic is reported with the case's seed.
fn damaged(built: &Built, seed: u64, damage: impl FnOnce(&Built, &mut SmallRng)) -> crate::Report {
    let copy = Built {
        device: built.device.fork(),
        superblock: built.superblock.clone(),
        nodes: built.nodes.clone(),
        index: built.index,
        bitmaps: built.bitmaps.clone(),
    };
    damage(&copy, &mut SmallRng::seed_from_u64(seed));
    catch_unwind(AssertUnwindSafe(|| run(&copy))).unwrap_or_else(|_| panic!("panic with seed {seed:#x}"))
}

#[test]
fn damaged_structures_are_noticed() {
    let built = Image::sample().build();
    let blocks = structure(&built);
    for case in 0..500 {
        let seed = SEED ^ case << 8;
        let mut zeroed = false;
        let report = damaged(&built, seed, |built, random| {
            let block = blocks[random.random_range(0..blocks.len())];
            zeroed = random.random_range(0..4) == 0;
            if zeroed {
                let was = built.device.bytes(block.byte_offset(), BLOCK_SIZE);
                // The unused middle of a node is zero already.
                zeroed = was.iter().any(|&b| b != 0);
                write(&built.device, block, &[0; BLOCK_SIZE]);
            } else {
                let (byte, bit) = (random.random_range(0..BLOCK_SIZE), random.random_range(0..8));
                built.device.corrupt(block.byte_offset() + byte as u64, |b| b[0] ^= 1 << bit);
                zeroed = true;
            }
        });
        assert!(!zeroed || !report.is_clean(), "seed {seed:#x}: {report}");
    }
}

#[test]
fn damage_elsewhere_on_the_device_is_none() {
    let built = Image::sample().build();
    let blocks = structure(&built);
    for case in 0..200 {
        let seed = SEED ^ case << 8;
        let report = damaged(&built, seed, |built, random| {
            let block = BlockNo(random.random_range(0..built.superblock.geometry.total_blocks));
            if !blocks.contains(&block) {
                built.device.corrupt(block.byte_offset() + random.random_range(0..BLOCK_SIZE) as u64, |b| {
                    b[0] ^= 0x55;
                });
            }
        });
        assert!(report.is_clean(), "seed {seed:#x}: {report}");
    }
}

/// Faults that no checksum detects: bytes of up to four nodes are changed and the nodes sealed
/// again.
#[test]
fn nodes_with_valid_checksums_and_hostile_content_never_panic() {
    let built = Image::sample().build();
    let nodes: Vec<BlockNo> = built.nodes.iter().flatten().copied().collect();
    let mut noticed = 0;
    for case in 0..1500 {
        let report = damaged(&built, SEED ^ case << 8, |built, random| {
            for _ in 0..1 + random.random_range(0..4) {
                let at = nodes[random.random_range(0..nodes.len())];
                let mut bytes = built.device.bytes(at.byte_offset(), NODE_SIZE);
                for _ in 0..1 + random.random_range(0..3) {
                    // Half of the changes hit the slots and values.
                    let place = match random.random_range(0..4) {
                        0 => random.random_range(0..64),
                        1 => random.random_range(0..64 + 16 * 21),
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
                write(&built.device, at, &bytes);
            }
        });
        noticed += !report.is_clean() as u32;
    }
    assert!(noticed > 1000, "only {noticed} of 1500 were noticed: most changes must hit bytes in use");
}

#[test]
fn garbage_is_refused_without_a_panic() {
    let mut random = SmallRng::seed_from_u64(SEED);
    for size in [0u64, 4096, 16 * 4096, 17 * 4096, 1 << 20] {
        let device = kedge_device::MemDevice::new(size);
        for block in 0..size / 4096 {
            device.corrupt(block * 4096, |bytes| bytes.iter_mut().for_each(|b| *b = random.random()));
        }
        let report = crate::check_checkpoint(&device, &crate::CheckOptions::default(), &mut |_| {});
        assert_eq!(report.exit_code(), 8, "{size} bytes: {report}");
    }
}
