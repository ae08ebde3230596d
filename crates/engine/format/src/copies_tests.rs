use super::*;
use crate::superblock::{CheckpointState, IMAGE_MAX, IMAGE_MIN, INCOMPAT_COPIES, Superblock};
use kedge_base::{BLOCK_SIZE, Epoch, Generation, Ino, Lsn, Timespec};

const BLOCK: u64 = BLOCK_SIZE as u64;
const MIB: u64 = 1 << 20;

fn geometry(bytes: u64) -> Geometry {
    let log = Geometry::default_log_bytes(bytes);
    Geometry::plan(bytes, log, "", uuid::Uuid::from_u128(7), [1; 16], Timespec::default()).unwrap()
}

fn superblock(geometry: Geometry, generation: u64) -> Superblock {
    let root = BlockNo(geometry.data_start.0);
    let checkpoint = CheckpointState {
        generation: Generation(generation),
        root,
        root_generation: Generation(1),
        root_level: 0,
        checkpoint_lsn: Lsn(0),
        tail_lsn: Lsn(0),
        epoch: Epoch(0),
        next_ino: Ino(2),
        inodes: 1,
        free_blocks: 0,
        nodes: 1,
        clean: true,
        written_sec: 0,
        losses: None,
        trees: None,
    };
    Superblock { geometry, checkpoint }
}

#[test]
fn a_copy_lies_in_the_upper_half_and_one_at_the_end() {
    for bytes in [IMAGE_MIN, 24 * MIB, 100 * MIB, 128 * MIB, 129 * MIB, 1 << 30, 3 << 40, IMAGE_MAX] {
        let g = geometry(bytes);
        let all: Vec<u64> = g.copies().map(|block| block.0).collect();
        let current: Vec<u64> = g.current_copies().map(|block| block.0).collect();
        assert_eq!(current.last(), Some(&(bytes / BLOCK - 1)), "{bytes}");
        assert!(all.ends_with(&current) && all.is_sorted(), "{bytes}: {all:?}");
        assert!(all.iter().all(|block| *block >= g.data_start.0), "{bytes}: {all:?}");
        if bytes > 32 * MIB {
            assert!(current[0] >= g.total_blocks / 2 && current[0] < g.total_blocks - 1, "{bytes}: {all:?}");
        }
        let found: Vec<u64> = places_on(g.total_blocks).map(|block| block.0).collect();
        assert!(all.iter().all(|block| found.contains(block)), "a search reads every place");
        let without = Geometry { feature_incompat: g.feature_incompat & !INCOMPAT_COPIES, ..g };
        assert_eq!(without.copies().count(), 0);
    }
}

#[test]
fn a_growth_moves_only_the_last_place() {
    let small = geometry(100 * MIB);
    let large = small.grown(5 << 30).unwrap();
    let (before, after): (Vec<_>, Vec<_>) = (small.copies().collect(), large.copies().collect());
    assert!(before[..before.len() - 1].iter().all(|block| after.contains(block)));
    assert!(!after.contains(before.last().unwrap()));
    assert_eq!(after.last(), Some(&BlockNo((5 << 30) / BLOCK - 1)));
}

#[test]
fn no_place_lies_in_moved_maps() {
    // The allocation maps move to the first new block, whose number is a power of two.
    let small = geometry(128 * MIB);
    let large = small.grown(1 << 40).unwrap();
    assert_eq!(large.moved_maps().start, 128 * MIB / BLOCK);
    assert!(large.copies().all(|block| !large.moved_maps().contains(&block.0)));
    let mut runs: Vec<(u64, u64)> = large.format_runs().filter(|(_, blocks)| *blocks > 0).collect();
    runs.sort_unstable();
    assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "runs overlap: {runs:?}");
}

#[test]
fn overlap_is_that_of_the_places() {
    let g = geometry(100 * MIB);
    let places: Vec<u64> = g.copies().map(|block| block.0).collect();
    for start in (g.data_start.0..g.total_blocks).step_by(7) {
        for blocks in [1, 2, 64, 5000] {
            let end = (start + blocks).min(g.total_blocks);
            let expected = places.iter().any(|place| (start..end).contains(place));
            assert_eq!(overlap(start, end, g.data_start.0, g.total_blocks), expected, "{start} to {end}");
        }
    }
}

#[test]
fn a_copy_is_valid_at_its_places_only_and_is_no_slot() {
    let sb = superblock(geometry(100 * MIB), 7);
    let blocks = sb.geometry.total_blocks;
    let mut bytes = vec![0; BLOCK_SIZE];
    sb.encode_copy(&mut bytes);
    for place in sb.geometry.copies() {
        assert_eq!(Superblock::decode_copy(&bytes, place, blocks).unwrap(), sb);
    }
    assert!(Superblock::decode_copy(&bytes, BlockNo(4095), blocks).is_err());
    assert!(Superblock::decode(&bytes, 1, blocks).is_err());
    assert!(Superblock::has_copy_magic(&bytes) && !Superblock::has_magic(&bytes));
    let last = sb.geometry.copies().last().unwrap();
    assert!(Superblock::decode_copy(&bytes, last, blocks - 1).is_err(), "the device is too short");
    sb.encode(&mut bytes);
    assert!(Superblock::decode_copy(&bytes, last, blocks).is_err(), "a slot is not a copy");
    for at in (0..512).step_by(3) {
        sb.encode_copy(&mut bytes);
        bytes[at] ^= 0x10;
        assert!(Superblock::decode_copy(&bytes, last, blocks).is_err(), "byte {at}");
    }
    let mut over = sb.clone();
    over.checkpoint.root = BlockNo(1 << 14);
    over.encode_copy(&mut bytes);
    assert!(Superblock::decode_copy(&bytes, last, blocks).is_err(), "a root over a copy");
}
