//! A tree much larger than the cache: evicting and rereading inodes makes no rename or fsync slower
//! or less safe.
//!
//! The engine must remember exactly what an evicted inode still has to make durable. If it
//! remembers too little, an fsync reports false success; if too much, an fsync or rename forces the
//! log for nothing.

use kedge_base::ManualClock;
use kedge_device::sim::{Choice, SimDevice};
use kedge_sim::ops::OWNER;
use kedge_sim::rig;
use kedgefs::{FileSystem, Ino, MountOptions, RenameMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const DIRS: u64 = 100;
/// Files in each directory. In an optimised build there are a million in all.
const FILES: u64 = if cfg!(debug_assertions) { 300 } else { 10_000 };
const CACHE: u64 = if cfg!(debug_assertions) { 1 << 20 } else { 16 << 20 };
const IMAGE: u64 = 2 << 30;
const LOG: u64 = 64 << 20;
/// Files that are fsynced, evicted and renamed.
const CHOSEN: usize = 300;

fn open(device: &Arc<SimDevice>) -> FileSystem {
    let mount =
        MountOptions { commit: Duration::from_secs(3600), cache_size: CACHE, ..MountOptions::default() };
    let setup = rig::Setup { mount, ..rig::Setup::default() };
    rig::open(device, &Arc::new(ManualClock::default()), &setup).unwrap()
}

fn count(fs: &FileSystem, what: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    what.split('.').fold(&stats, |v, key| &v[key]).as_u64().unwrap_or_else(|| panic!("no counter {what}"))
}

fn name(file: u64) -> Vec<u8> {
    format!("file {file}").into_bytes()
}

/// Evicts inodes: looks up files all over the tree until they fill the cache.
fn push_out(fs: &FileSystem, rng: &mut SmallRng, dirs: &[Ino]) {
    for _ in 0..(CACHE / 256).max(4096) {
        let dir = dirs[rng.random_range(0..dirs.len())];
        // Some of the names were renamed away.
        let _ = fs.lookup(dir, &name(rng.random_range(0..FILES)));
    }
}

#[test]
fn a_small_cache_makes_no_rename_force_and_no_fsync_lie() {
    let device = Arc::new(SimDevice::new(rig::format(IMAGE, LOG).unwrap()));
    device.stop_recording();
    let fs = open(&device);
    let seed = 0x6b65_6467;
    let mut rng = SmallRng::seed_from_u64(seed);
    let dirs: Vec<Ino> = (0..DIRS)
        .map(|i| fs.mkdir(Ino::ROOT, format!("dir {i}").as_bytes(), 0o755, OWNER).unwrap().ino)
        .collect();
    let mut chosen: BTreeSet<(usize, u64)> = BTreeSet::new();
    while chosen.len() < CHOSEN {
        chosen.insert((rng.random_range(0..dirs.len()), rng.random_range(0..FILES)));
    }
    for (i, dir) in dirs.iter().enumerate() {
        for file in 0..FILES {
            let ino = fs.create(*dir, &name(file), 0o644, OWNER).unwrap().ino;
            if chosen.contains(&(i, file)) {
                fs.fsync(ino, false).unwrap();
            }
        }
    }
    assert!(count(&fs, "cache.inodes") * 2 < DIRS * FILES, "most of the inodes are evicted");

    // The inode was fsynced since the last checkpoint, evicted and read again. Giving it a new name
    // then forces no log.
    let forces = ["rename", "fsync", "commit_timer"].map(|cause| count(&fs, &format!("log.forces.{cause}")));
    for &(dir, file) in &chosen {
        fs.rename(dirs[dir], &name(file), dirs[(dir + 1) % dirs.len()], b"moved", RenameMode::Replace)
            .unwrap();
    }
    let after = ["rename", "fsync", "commit_timer"].map(|cause| count(&fs, &format!("log.forces.{cause}")));
    assert_eq!(after, forces, "a rename forces nothing");

    // The inode was evicted with a new name that is not durable. So fsync must force the log, once.
    let survivors: BTreeSet<usize> = chosen.iter().map(|(dir, _)| (dir + 1) % dirs.len()).collect();
    push_out(&fs, &mut rng, &dirs);
    let mut writes = count(&fs, "log.writes");
    for (nth, &dir) in survivors.iter().enumerate() {
        let moved = fs.lookup(dirs[dir], b"moved").unwrap().ino;
        fs.fsync(moved, false).unwrap();
        if nth == 0 {
            let medium = Arc::new(SimDevice::new(device.crash_as(Choice::None)));
            let survived = open(&medium);
            assert_eq!(survived.lookup(dirs[dir], b"moved").unwrap().ino, moved, "an fsync that lied");
            survived.close().unwrap();
            writes = count(&fs, "log.writes");
        }
    }
    assert_eq!(count(&fs, "log.writes"), writes, "the first force took all names along");

    // The inode was durable, evicted and read again. So there is nothing to force.
    push_out(&fs, &mut rng, &dirs);
    for &dir in &survivors {
        let moved = fs.lookup(dirs[dir], b"moved").unwrap().ino;
        fs.fsync(moved, false).unwrap();
    }
    assert_eq!(count(&fs, "log.writes"), writes, "an evicted inode that is durable forces nothing");

    rig::fsck(device.crash_as(Choice::None)).unwrap();
    fs.close().unwrap();
}
