//! Limits of directory trees: what they refuse, what they count, and their state after a crash.

use crate::common::images::{assert_clean, open};
use kedge_base::SystemClock;
use kedge_device::MemDevice;
use kedgefs::{
    Error, FallocateMode, FileKind, FileSystem, FormatOptions, Ino, Limit, Owner, RenameMode, SetAttr,
    SetLimit,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn make() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(64 * MIB));
    let options = FormatOptions { size: Some(64 * MIB), log_size: Some(4 * MIB), ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

fn bytes(n: u64) -> SetLimit {
    SetLimit { bytes: Some(Some(n)), files: None }
}

fn files(n: u64) -> SetLimit {
    SetLimit { bytes: None, files: Some(Some(n)) }
}

fn dir(fs: &FileSystem, parent: Ino, name: &str) -> Ino {
    fs.mkdir(parent, name.as_bytes(), 0o755, OWNER).unwrap().ino
}

fn file(fs: &FileSystem, parent: Ino, name: &str) -> Ino {
    fs.create(parent, name.as_bytes(), 0o644, OWNER).unwrap().ino
}

fn of(fs: &FileSystem, ino: Ino) -> Limit {
    fs.limit_of(ino).unwrap().unwrap()
}

/// Counts the bytes and inodes that really exist at and below a directory.
fn recount(fs: &FileSystem, dir: Ino) -> (u64, u64) {
    let mut seen = BTreeSet::from([dir]);
    let mut dirs = vec![dir];
    let mut blocks = fs.getattr(dir).unwrap().blocks;
    while let Some(at) = dirs.pop() {
        let mut found = Vec::new();
        fs.readdir(at, 2, &mut |entry| {
            found.push((entry.ino, entry.kind));
            true
        })
        .unwrap();
        for (ino, kind) in found {
            if seen.insert(ino) {
                blocks += fs.getattr(ino).unwrap().blocks;
                if kind == FileKind::Directory {
                    dirs.push(ino);
                }
            }
        }
    }
    (blocks * 512, seen.len() as u64)
}

#[test]
fn a_limit_of_bytes_refuses_the_write_and_nothing_later() {
    let device = make();
    let fs = open(&device);
    let box_ = dir(&fs, Ino::ROOT, "box");
    fs.set_limit(box_, bytes(MIB)).unwrap();
    let a = file(&fs, box_, "a");
    let data = vec![1; 2 * MIB as usize];
    assert_eq!(fs.write(a, 0, &data).unwrap() as u64, MIB, "as much as fits");
    assert!(matches!(fs.write(a, MIB, b"x"), Err(Error::OverLimit)));
    assert_eq!(Error::OverLimit.errno(), 122);
    let b = file(&fs, box_, "b");
    assert!(matches!(fs.write(b, 0, b"x"), Err(Error::OverLimit)));
    let allocate = FallocateMode::Allocate { keep_size: false };
    assert!(matches!(fs.fallocate(b, allocate, 0, BLOCK), Err(Error::OverLimit)));
    // Existing blocks can be overwritten: while they are dirty, while they are being written, and
    // on the device.
    for _ in 0..3 {
        assert_eq!(fs.write(a, 0, &data[..MIB as usize]).unwrap() as u64, MIB);
        fs.fsync(a, false).unwrap();
    }
    assert_eq!((of(&fs, b).bytes, of(&fs, b).files), (MIB, 3));
    // Freed space can be used at once.
    fs.setattr(a, &SetAttr { size: Some(MIB - BLOCK), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.write(b, 0, &data).unwrap() as u64, BLOCK);
    fs.unlink(box_, b"a").unwrap();
    assert_eq!(fs.write(b, 0, &data).unwrap() as u64, MIB);
    let outside = file(&fs, Ino::ROOT, "outside");
    assert_eq!(fs.write(outside, 0, &data).unwrap(), data.len());
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_limit_of_files_refuses_each_kind_of_creation() {
    let device = make();
    let fs = open(&device);
    let box_ = dir(&fs, Ino::ROOT, "box");
    // The directory itself counts as one of the three.
    fs.set_limit(box_, files(3)).unwrap();
    let sub = dir(&fs, box_, "sub");
    file(&fs, sub, "a");
    let over = |result: kedgefs::Result<kedgefs::Attr>| assert!(matches!(result, Err(Error::OverLimit)));
    over(fs.create(sub, b"b", 0o644, OWNER));
    over(fs.mkdir(box_, b"b", 0o755, OWNER));
    over(fs.symlink(sub, b"b", b"target", OWNER));
    over(fs.mknod(sub, b"b", 0o010_644, 0, OWNER));
    over(fs.tmpfile(sub, 0o644, OWNER));
    let whiteout = RenameMode::Whiteout { replace: false, owner: OWNER };
    assert!(matches!(fs.rename(sub, b"a", sub, b"c", whiteout), Err(Error::OverLimit)));
    // Further names of a file do not count.
    fs.link(fs.lookup(sub, b"a").unwrap().ino, box_, b"b").unwrap();
    fs.unlink(sub, b"a").unwrap();
    over(fs.create(sub, b"c", 0o644, OWNER));
    // A deleted file counts until it is closed.
    let open_file = fs.lookup(box_, b"b").unwrap().ino;
    fs.pin(open_file).unwrap();
    fs.unlink(box_, b"b").unwrap();
    over(fs.create(sub, b"c", 0o644, OWNER));
    fs.unpin(open_file, 1);
    file(&fs, sub, "c");
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn limits_inside_one_another_both_hold() {
    let device = make();
    let fs = open(&device);
    let outer = dir(&fs, Ino::ROOT, "outer");
    let inner = dir(&fs, outer, "inner");
    let beside = file(&fs, outer, "beside");
    let within = file(&fs, inner, "within");
    let data = vec![1; MIB as usize];
    fs.set_limit(inner, bytes(MIB / 2)).unwrap();
    // The outer limit is set later. Its count includes what the inner one uses.
    assert_eq!(fs.write(within, 0, &data[..MIB as usize / 4]).unwrap() as u64, MIB / 4);
    let made = fs.set_limit(outer, bytes(MIB)).unwrap();
    assert_eq!((made.bytes, made.files, made.inside), (MIB / 4, 4, None));
    assert_eq!(of(&fs, within).inside, Some(outer));
    assert_eq!(fs.write(within, 0, &data).unwrap() as u64, MIB / 2, "the inner limit");
    assert_eq!(fs.write(beside, 0, &data).unwrap() as u64, MIB / 2, "the outer limit");
    fs.set_limit(inner, bytes(MIB)).unwrap();
    assert!(matches!(fs.write(within, MIB / 2, b"x"), Err(Error::OverLimit)));
    let (seen, all) = (fs.statfs_at(within).unwrap(), fs.statfs());
    assert_eq!((seen.blocks * BLOCK, seen.blocks_available, seen.blocks_free), (MIB, 0, 0));
    assert_eq!(fs.statfs_at(Ino::ROOT).unwrap().blocks, all.blocks);
    // A third limit is set between two existing ones.
    let deep = dir(&fs, inner, "deep");
    let deeper = dir(&fs, deep, "deeper");
    fs.set_limit(deeper, files(10)).unwrap();
    fs.set_limit(deep, files(2)).unwrap();
    assert_eq!(of(&fs, deeper).inside, Some(deep));
    assert!(matches!(fs.create(deeper, b"x", 0o644, OWNER), Err(Error::OverLimit)));
    // A limit without a maximum refuses nothing. The limits that contain it stay in force.
    let none = SetLimit { bytes: Some(None), files: Some(None) };
    fs.set_limit(deep, none).unwrap();
    file(&fs, deeper, "x");
    assert_eq!(of(&fs, deep).dir, inner);
    assert_eq!(fs.limits().len(), 3);
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    assert_eq!(fs.limits().len(), 3);
    assert_eq!((of(&fs, outer).bytes, of(&fs, outer).files), recount(&fs, outer));
}

#[test]
fn names_do_not_leave_a_limit() {
    let device = make();
    let fs = open(&device);
    let (a, b) = (dir(&fs, Ino::ROOT, "a"), dir(&fs, Ino::ROOT, "b"));
    fs.set_limit(a, files(10)).unwrap();
    let sub = dir(&fs, a, "sub");
    let inside = file(&fs, a, "inside");
    let outside = file(&fs, b, "outside");
    let mode = RenameMode::Replace;
    let crosses = |result: kedgefs::Result<()>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::CrossLimit) && error.errno() == 18, "{error}");
    };
    crosses(fs.rename(a, b"inside", b, b"x", mode));
    crosses(fs.rename(b, b"outside", sub, b"x", mode));
    crosses(fs.rename(a, b"inside", b, b"outside", RenameMode::Exchange));
    crosses(fs.link(inside, b, b"x").map(drop));
    crosses(fs.link(outside, sub, b"x").map(drop));
    fs.rename(a, b"inside", sub, b"x", mode).unwrap();
    fs.rename(sub, b"x", a, b"inside", mode).unwrap();
    // The directory with the limit may move, if the same limits contain its new name.
    fs.rename(Ino::ROOT, b"a", b, b"a", mode).unwrap();
    fs.set_limit(b, files(10)).unwrap();
    crosses(fs.rename(b, b"a", Ino::ROOT, b"a", mode));
    fs.rename(b, b"a", b, b"c", mode).unwrap();
    // A file with another name outside prevents a limit.
    fs.link(outside, b, b"second").unwrap();
    let d = dir(&fs, Ino::ROOT, "d");
    let shared = file(&fs, d, "one name");
    fs.link(shared, Ino::ROOT, b"another").unwrap();
    let refused = fs.set_limit(d, files(10)).unwrap_err();
    assert!(refused.to_string().contains("one name") && refused.errno() == 31, "{refused}");
    fs.unlink(Ino::ROOT, b"another").unwrap();
    fs.set_limit(d, files(10)).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn bad_maxima_are_refused() {
    let fs = open(&make());
    let box_ = dir(&fs, Ino::ROOT, "box");
    for bad in [bytes(0), bytes(BLOCK - 1), files(0)] {
        assert!(matches!(fs.set_limit(box_, bad), Err(Error::Invalid(_))), "{bad:?}");
    }
    let a = file(&fs, box_, "a");
    assert!(matches!(fs.set_limit(a, bytes(MIB)), Err(Error::NotDirectory)));
    assert!(fs.limits().is_empty());
    let mut at = box_;
    for level in 0..32 {
        fs.set_limit(at, files(1000)).unwrap();
        at = dir(&fs, at, &level.to_string());
    }
    assert!(matches!(fs.set_limit(at, files(1000)), Err(Error::Invalid(_))));
    assert!(matches!(fs.set_limit(Ino::ROOT, files(1000)), Err(Error::Invalid(_))));
}

#[test]
fn a_limit_below_what_is_used_refuses_what_is_new() {
    let device = make();
    let fs = open(&device);
    let a = file(&fs, Ino::ROOT, "a");
    fs.write(a, 0, &vec![1; MIB as usize]).unwrap();
    let limit = fs.set_limit(Ino::ROOT, bytes(MIB / 2)).unwrap();
    assert_eq!((limit.bytes, limit.bytes_max), (MIB, Some(MIB / 2)));
    assert!(matches!(fs.write(a, MIB, b"x"), Err(Error::OverLimit)));
    fs.write(a, 0, b"overwritten").unwrap();
    assert_eq!(fs.statfs_at(a).unwrap().blocks_free, 0);
    fs.setattr(a, &SetAttr { size: Some(MIB / 2 - BLOCK), ..SetAttr::default() }).unwrap();
    fs.write(a, MIB / 2 - BLOCK, b"x").unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_limit_goes_with_its_directory() {
    let device = make();
    let fs = open(&device);
    for round in 0..3 {
        let box_ = dir(&fs, Ino::ROOT, "box");
        fs.set_limit(box_, files(10)).unwrap();
        let inner = dir(&fs, box_, "inner");
        fs.set_limit(inner, files(10)).unwrap();
        assert_eq!(fs.limits().len(), 2, "round {round}");
        fs.rmdir(box_, b"inner").unwrap();
        fs.rmdir(Ino::ROOT, b"box").unwrap();
        fs.checkpoint().unwrap();
        assert_eq!(fs.limits(), []);
    }
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_fork_has_limits_of_its_own() {
    let device = make();
    let fs = open(&device);
    let box_ = dir(&fs, Ino::ROOT, "box");
    fs.set_limit(box_, bytes(MIB)).unwrap();
    let a = file(&fs, box_, "a");
    let data = vec![1; MIB as usize];
    fs.write(a, 0, &data).unwrap();
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    let forked_box = fs.lookup(fork, b"box").unwrap().ino;
    let forked = fs.lookup(forked_box, b"a").unwrap().ino;
    assert_eq!((of(&fs, forked).dir, of(&fs, forked).bytes), (forked_box, MIB));
    // Overwriting a shared block takes a new one, which counts in place of the old one.
    assert_eq!(fs.write(forked, 0, &data).unwrap() as u64, MIB);
    assert!(matches!(fs.write(forked, MIB, b"x"), Err(Error::OverLimit)));
    fs.sync().unwrap();
    fs.setattr(forked, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!((of(&fs, forked).bytes, of(&fs, a).bytes), (0, MIB));
    fs.set_limit(forked_box, bytes(BLOCK)).unwrap();
    assert_eq!(of(&fs, a).bytes_max, Some(MIB));
    assert_eq!(fs.limits().len(), 2);
    fs.sync().unwrap();
    assert_clean(&device);
    fs.delete_tree(Ino::ROOT, b"fork").unwrap();
    fs.reclaim().unwrap();
    assert_eq!(fs.limits().len(), 1);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn writers_side_by_side_never_pass_a_limit() {
    let device = make();
    let fs = Arc::new(open(&device));
    let outer = dir(&fs, Ino::ROOT, "outer");
    fs.set_limit(outer, bytes(4 * MIB)).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !ended.load(Ordering::Relaxed) {
                most = most.max(of(&fs, outer).bytes);
            }
            most
        });
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let fs = fs.clone();
                scope.spawn(move || {
                    let inner = dir(&fs, outer, &writer.to_string());
                    let mut rng = SmallRng::seed_from_u64(writer);
                    let mut refused = 0;
                    for round in 0..60 {
                        let name = format!("{}", round % 8);
                        let at = match fs.lookup(inner, name.as_bytes()) {
                            Ok(attr) => attr.ino,
                            Err(_) => file(&fs, inner, &name),
                        };
                        let data = vec![round as u8; rng.random_range(1..400_000)];
                        match fs.write(at, rng.random_range(0..600_000), &data) {
                            Ok(_) => {}
                            Err(Error::OverLimit) => refused += 1,
                            Err(e) => panic!("{e}"),
                        }
                        match rng.random_range(0..6) {
                            0 => fs.fsync(at, false).unwrap(),
                            1 => fs.unlink(inner, name.as_bytes()).unwrap(),
                            2 => fs.sync().unwrap(),
                            _ => {}
                        }
                    }
                    refused
                })
            })
            .collect();
        let refused: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        ended.store(true, Ordering::Relaxed);
        let most = watch.join().unwrap();
        assert!(most <= 4 * MIB, "{most}");
        assert!(refused > 0 && most > 3 * MIB, "the limit was never reached: {most}, {refused}");
    });
    assert_eq!((of(&fs, outer).bytes, of(&fs, outer).files), recount(&fs, outer));
    fs.sync().unwrap();
    assert_clean(&device);
}

/// Random operations below three limits. After each, the counts are compared with what really
/// exists. Half of the rounds end without a close.
#[test]
fn counts_are_exact_whatever_happens() {
    for seed in 0..30 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let device = make();
        let mut fs = open(&device);
        let outer = dir(&fs, Ino::ROOT, "outer");
        let inner = dir(&fs, outer, "inner");
        let other = dir(&fs, Ino::ROOT, "other");
        let dirs = [outer, inner, other];
        let mut most: BTreeMap<Ino, (u64, u64)> = BTreeMap::new();
        for step in 0..120 {
            let at = dirs[rng.random_range(0..3)];
            let name = format!("f{}", rng.random_range(0..5));
            let ino = fs.lookup(at, name.as_bytes()).map(|attr| attr.ino);
            let offset = rng.random_range(0..60) * 1000;
            let data = vec![step as u8; rng.random_range(1..60_000)];
            let over = |result: kedgefs::Result<()>| match result {
                Ok(()) | Err(Error::OverLimit) => {}
                Err(e) => panic!("seed {seed}, step {step}: {e}"),
            };
            match (rng.random_range(0..15), ino) {
                (0, _) => {
                    let max = (rng.random_range(1..40) * BLOCK, rng.random_range(4..12));
                    let set = SetLimit { bytes: Some(Some(max.0)), files: Some(Some(max.1)) };
                    let limit = fs.set_limit(at, set).unwrap();
                    // What was in use before the limit may exceed its maximum.
                    most.insert(at, (max.0.max(limit.bytes), max.1.max(limit.files)));
                }
                (1, _) if rng.random_range(0..4) == 0 => {
                    fs.set_limit(at, SetLimit { bytes: Some(None), files: Some(None) }).unwrap();
                    most.remove(&at);
                }
                (2, _) if rng.random_range(0..3) == 0 => {
                    fs.sync().unwrap();
                    if rng.random_bool(0.5) {
                        fs.close().unwrap();
                    }
                    drop(fs);
                    assert_clean(&device);
                    fs = open(&device);
                }
                (3, Ok(ino)) => fs.fsync(ino, false).unwrap(),
                (4, Ok(ino)) => {
                    let size = Some(offset);
                    fs.setattr(ino, &SetAttr { size, ..SetAttr::default() }).unwrap();
                }
                (5, Ok(ino)) => {
                    fs.fallocate(ino, FallocateMode::PunchHole, offset, data.len() as u64).unwrap();
                }
                (6, Ok(ino)) => {
                    let keep_size = rng.random_bool(0.5);
                    let mode = match rng.random_range(0..2) {
                        0 => FallocateMode::Allocate { keep_size },
                        _ => FallocateMode::ZeroRange { keep_size },
                    };
                    over(fs.fallocate(ino, mode, offset, data.len() as u64));
                }
                (7, Ok(_)) => fs.unlink(at, name.as_bytes()).unwrap(),
                (8, Ok(ino)) => drop(fs.link(ino, at, format!("l{step}").as_bytes())),
                (9, Ok(_)) => {
                    let to = dirs[rng.random_range(0..3)];
                    match fs.rename(at, name.as_bytes(), to, b"f0", RenameMode::Replace) {
                        Ok(()) | Err(Error::CrossLimit) => {}
                        Err(e) => panic!("seed {seed}, step {step}: {e}"),
                    }
                }
                (10, Ok(ino)) => {
                    over(fs.write(ino, offset, b"a few bytes for the log").map(drop));
                    fs.fsync(ino, true).unwrap();
                }
                (_, Ok(ino)) => over(fs.write(ino, offset, &data).map(drop)),
                (_, Err(_)) => over(fs.create(at, name.as_bytes(), 0o644, OWNER).map(drop)),
            }
            for (dir, (bytes, inodes)) in &mut most {
                let limit = of(&fs, *dir);
                assert_eq!(limit.dir, *dir);
                let really = recount(&fs, *dir);
                assert_eq!((limit.bytes, limit.files), really, "seed {seed}, step {step}: {limit:?}");
                assert!(limit.bytes <= *bytes && limit.files <= *inodes, "seed {seed}, step {step}");
                // Once the use is below the maximum, it must stay below.
                *bytes = (*bytes).min(limit.bytes_max.unwrap_or(u64::MAX).max(limit.bytes));
                *inodes = (*inodes).min(limit.files_max.unwrap_or(u64::MAX).max(limit.files));
            }
        }
        fs.close().unwrap();
        drop(fs);
        assert_clean(&device);
    }
}

/// A write beyond the end first zeroes the rest of the last block, which makes its page dirty.
#[test]
fn a_refused_write_beyond_the_end_leaves_nothing_that_stays_dirty() {
    let fs = open(&make());
    let d = dir(&fs, Ino::ROOT, "d");
    let ino = file(&fs, d, "f");
    fs.write(ino, 0, &[1; 5000]).unwrap();
    fs.sync().unwrap();
    fs.set_limit(d, bytes(of_space(&fs, d))).unwrap();
    let refused = fs.write(ino, MIB, b"x").unwrap_err();
    assert!(matches!(refused, Error::OverLimit), "{refused}");
    fs.sync().unwrap();
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    assert_eq!(stats["cache"]["dirty_pages"], 0);
    fs.close().unwrap();
}

/// The bytes that a directory and everything below it use.
fn of_space(fs: &FileSystem, dir: Ino) -> u64 {
    recount(fs, dir).0
}
