//! Promises of blocks: each page that is not clean can be written in place, however full the image
//! becomes, and no page has a promise that it does not need.

use crate::cache::pages::Which;
use crate::extents::{self, Place};
use crate::{
    Error, FallocateMode, FileSystem, FormatOptions, Ino, ManualClock, MountOptions, Owner, Result, SetAttr,
    SetLimit, XattrMode,
};
use kedge_device::MemDevice;
use kedge_device::sim::{FaultPlan, OpKind, SimDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const KEEP_SIZE: FallocateMode = FallocateMode::Allocate { keep_size: true };

fn fresh(options: FormatOptions) -> FileSystem {
    let device = Arc::new(MemDevice::new(32 * MIB));
    let clock = Arc::new(ManualClock::default());
    let options = FormatOptions { log_size: Some(2 * MIB), ..options };
    FileSystem::format(device.clone(), clock.clone(), &options).unwrap();
    FileSystem::open(device, clock, MountOptions::default()).unwrap()
}

fn create(door: &FileSystem, name: &str) -> Ino {
    door.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default()).unwrap().ino
}

/// Fills the rest of the image with a file.
fn fill(door: &FileSystem) {
    let (ino, mut at, mut len) = (create(door, "filler"), 0, MIB);
    while len >= BLOCK {
        match door.write(ino, at, &vec![3; len as usize]) {
            Ok(n) => at += n as u64,
            Err(_) => len /= 2,
        }
    }
}

/// The number of blocks that are promised to the pages of a file. Checks that these are the pages
/// that are not clean and whose blocks must not be overwritten, or that have no blocks.
#[track_caller]
fn promised(door: &FileSystem, ino: Ino) -> u64 {
    let (fs, inode) = (&door.fs, door.fs.inodes().get(ino).unwrap());
    let _io = inode.io.read();
    let _wb = inode.wb.lock();
    let unclean = inode.pages.lock().unclean(Which::All, 0..u64::MAX, usize::MAX);
    let needs = |index: &u64| {
        let map = extents::map(fs.engine().store(), &inode, *index, 1).unwrap();
        matches!(map[0].place, Place::Hole | Place::Shared(..))
    };
    let needing: Vec<u64> = unclean.into_iter().filter(needs).collect();
    let pages = inode.pages.lock();
    let having: Vec<u64> =
        pages.map.iter().filter(|(_, page)| page.backing.is_reserved()).map(|(at, _)| *at).collect();
    assert_eq!(having, needing, "pages with a promise, and those that need one");
    assert_eq!(pages.promised(), having.len() as u64);
    pages.promised()
}

#[test]
fn a_preallocation_leaves_the_promises_of_pages_over_shared_extents() {
    let door = fresh(FormatOptions::default());
    let ino = create(&door, "f");
    door.fallocate(ino, KEEP_SIZE, 0, 16 * BLOCK).unwrap();
    door.fork(Ino::ROOT, Ino::ROOT, b"snapshot", true).unwrap();
    door.write(ino, 3 * BLOCK, b"dirty").unwrap();
    door.write(ino, 20 * BLOCK, b"in a hole").unwrap();
    assert_eq!(promised(&door, ino), 2);
    door.fallocate(ino, KEEP_SIZE, 0, 32 * BLOCK).unwrap();
    assert_eq!(promised(&door, ino), 1);
    door.fsync(ino, false).unwrap();
    door.fallocate(ino, KEEP_SIZE, 0, 32 * BLOCK).unwrap();
    assert_eq!(promised(&door, ino), 1, "the page is log-resident");
    fill(&door);
    door.checkpoint().unwrap();
    assert_eq!(promised(&door, ino), 0);
    assert_eq!(door.fs.inodes().get(ino).unwrap().pages.lock().logged_count(), 0);
    door.close().unwrap();
}

/// The cut block at the end of a file is in the source range of a clone that makes the file longer.
#[test]
fn a_cut_block_that_is_cloned_within_its_file_is_promised_another_block() {
    for snapshot in [false, true] {
        let door = fresh(FormatOptions::default());
        let ino = create(&door, "f");
        door.write(ino, 0, &[7; 65_536 + 5]).unwrap();
        door.sync().unwrap();
        if snapshot {
            door.fork(Ino::ROOT, Ino::ROOT, b"snapshot", true).unwrap();
        }
        door.clone_range(ino, 65_536, ino, 65_536 + BLOCK, 5).unwrap();
        assert_eq!(promised(&door, ino), 1);
        fill(&door);
        door.checkpoint().unwrap();
        assert_eq!(promised(&door, ino), 0);
        assert_eq!(door.fs.inodes().get(ino).unwrap().pages.lock().logged_count(), 0);
        let mut shall = vec![7; 65_536 + 5];
        shall.resize(65_536 + BLOCK as usize, 0);
        shall.extend([7; 5]);
        let mut is = vec![1; shall.len() + 1];
        assert_eq!(door.read_uncached(ino, 0, &mut is).unwrap(), shall.len());
        assert!(is[..shall.len()] == shall[..]);
        door.close().unwrap();
    }
}

/// On a nearly full image a preallocation uses the blocks that the file's own pages have promised.
#[test]
fn a_preallocation_finds_the_blocks_that_the_file_was_promised() {
    let door = fresh(FormatOptions::default());
    let ino = create(&door, "f");
    fill(&door);
    let filler = door.lookup(Ino::ROOT, b"filler").unwrap().ino;
    door.fallocate(filler, FallocateMode::PunchHole, 0, 1000 * BLOCK).unwrap();
    door.sync().unwrap();
    let store = door.fs.engine().store();
    drop(store.reserve_data(1).unwrap());
    let len = store.alloc().available_data() * 4 / 5 * BLOCK;
    assert_eq!(door.write(ino, 0, &vec![7; len as usize]).unwrap() as u64, len);
    let beyond = door.fallocate(ino, KEEP_SIZE, 0, 2 * len).unwrap_err();
    assert_eq!(beyond.errno(), 28, "{beyond}");
    door.write(ino, 0, &vec![8; len as usize]).unwrap();
    door.fallocate(ino, KEEP_SIZE, 0, len).unwrap();
    assert_eq!(promised(&door, ino), 0);
    assert_eq!(door.getattr(ino).unwrap().blocks, len / 512);
    door.close().unwrap();
}

/// The record that takes the data of a small file out of the tree needs nodes that are not in
/// memory. Each read fails in turn.
#[test]
fn a_file_that_stays_in_the_tree_keeps_no_promise() {
    let (device, clock) =
        (Arc::new(SimDevice::new(MemDevice::new(32 * MIB))), Arc::new(ManualClock::default()));
    let options = FormatOptions { log_size: Some(2 * MIB), inline_max: 1000, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &options).unwrap();
    let options = MountOptions { cache_size: 128 << 10, ..MountOptions::default() };
    let door = FileSystem::open(device.clone(), clock, options).unwrap();
    let sparse = create(&door, "sparse");
    for n in 0..3000 {
        door.write(sparse, 2 * n * BLOCK, &[1; BLOCK as usize]).unwrap();
    }
    let outer = door.mkdir(Ino::ROOT, b"outer", 0o755, Owner::default()).unwrap().ino;
    let inner = door.mkdir(outer, b"inner", 0o755, Owner::default()).unwrap().ino;
    let limit = SetLimit { bytes: Some(Some(MIB)), ..SetLimit::default() };
    door.set_limit(outer, limit).unwrap();
    let ino = door.create(inner, b"f", 0o644, Owner::default()).unwrap().ino;
    // The attributes are between the inode and its data in the tree.
    for n in 0..12 {
        door.setxattr(ino, format!("user.{n}").as_bytes(), &[5; 3900], XattrMode::Any).unwrap();
    }
    door.write(ino, 0, b"small").unwrap();
    door.sync().unwrap();
    door.checkpoint().unwrap();
    let held = || {
        let inode = door.fs.inodes().get(ino).unwrap();
        let pages = inode.pages.lock();
        pages.charge.as_ref().map_or(0, |charge| charge.held_blocks())
    };
    let mut failed = 0;
    for nth in 0.. {
        // These reads evict the nodes that the record needs.
        for n in 0..1000 {
            door.read_uncached(sparse, 6 * n * BLOCK, &mut [0]).unwrap();
        }
        device.set_plan(FaultPlan::new(nth).fail(OpKind::Read, nth, 5));
        let taken_out = door.fallocate(ino, KEEP_SIZE, 0, BLOCK);
        let struck = device.struck() > 0;
        device.set_plan(FaultPlan::default());
        if !struck {
            taken_out.unwrap();
            break;
        }
        if taken_out.is_err() {
            failed += 1;
            assert_eq!((promised(&door, ino), held()), (0, 0), "read {nth}");
        }
    }
    assert!(failed > 1, "the record's own read must be among {failed}");
    // The inode now counts for another limit.
    door.set_limit(inner, limit).unwrap();
    door.write(ino, 0, b"as small").unwrap();
    door.write(ino, 4 * BLOCK, b"new block").unwrap();
    door.sync().unwrap();
    assert_eq!((promised(&door, ino), held()), (0, 0));
    door.close().unwrap();
}

/// Makes a random change of a file.
fn change(door: &FileSystem, rng: &mut SmallRng, [file, other]: [Ino; 2], longest: u64) -> Result<()> {
    let (at, len) = (rng.random_range(0..longest), rng.random_range(1..longest / 3));
    let (block, blocks) = (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
    let to = rng.random_range(0..longest) / BLOCK * BLOCK;
    let keep_size = rng.random();
    match rng.random_range(0..18) {
        0..4 => door.write(file, at, &vec![7; len as usize]).map(drop),
        4..6 => door.write(file, at, &[8; 100]).and_then(|_| door.fsync(file, false)),
        6 => door.fsync(file, true),
        7..9 => door.fallocate(file, FallocateMode::Allocate { keep_size }, at, len),
        9 => door.fallocate(file, FallocateMode::PunchHole, at, len),
        10 => door.fallocate(file, FallocateMode::ZeroRange { keep_size }, at, len),
        11 => door.fallocate(file, FallocateMode::CollapseRange, block, blocks),
        12 => door.fallocate(file, FallocateMode::InsertRange, block, BLOCK),
        13 => door.setattr(file, &SetAttr { size: Some(at), ..SetAttr::default() }).map(drop),
        14 => {
            let mut write = door.atomic(file)?;
            write.write_at(at, &[9; 6000])?;
            write.write_at(to, b"small")?;
            write.commit()
        }
        15 => door.clone_range(file, block, other, to, 0),
        16 => {
            let size = door.getattr(file)?.size;
            door.clone_range(file, size / 2 / BLOCK * BLOCK, file, size.next_multiple_of(BLOCK) + to, 0)
        }
        _ => door.clone_file(file, other),
    }
}

fn random_changes(seed: u64, options: FormatOptions) {
    const LONGEST: u64 = 48 * BLOCK;
    let door = fresh(options);
    let mut rng = SmallRng::seed_from_u64(seed);
    let files = ["a", "b", "c"].map(|name| create(&door, name));
    for step in 0..300 {
        let pair = [files[rng.random_range(0..3)], files[rng.random_range(0..3)]];
        // In the short range a file may be small enough for the tree.
        let longest = if rng.random() { LONGEST } else { 1500 };
        match change(&door, &mut rng, pair, longest) {
            Ok(()) | Err(Error::Invalid(_)) => {}
            Err(e) => panic!("seed {seed}, step {step}: {e}"),
        }
        for ino in files {
            promised(&door, ino);
        }
        match rng.random_range(0..30) {
            0 => door.checkpoint().unwrap(),
            1 => door.sync().unwrap(),
            2 => {
                let name = format!("snapshot {step}");
                door.fork(Ino::ROOT, Ino::ROOT, name.as_bytes(), true).unwrap();
            }
            _ => {}
        }
        for ino in files {
            let size = door.getattr(ino).unwrap().size;
            if size > 4 * LONGEST {
                door.setattr(ino, &SetAttr { size: Some(size / 4), ..SetAttr::default() }).unwrap();
            }
        }
    }
    fill(&door);
    door.sync().unwrap();
    door.checkpoint().unwrap();
    for ino in files {
        assert_eq!(promised(&door, ino), 0, "seed {seed}");
    }
    door.close().unwrap();
}

#[test]
fn random_changes_keep_the_promises_that_they_need() {
    for seed in 0..10 {
        random_changes(seed, FormatOptions::default());
        random_changes(100 + seed, FormatOptions { inline_max: 1000, ..FormatOptions::default() });
    }
}

#[test]
fn random_changes_with_checksums_keep_the_promises_that_they_need() {
    for seed in 200..206 {
        let options = FormatOptions { data_checksums: true, inline_max: 1000, ..FormatOptions::default() };
        random_changes(seed, options);
    }
}
