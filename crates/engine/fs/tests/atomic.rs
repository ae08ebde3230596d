//! Atomic writes of one file: what readers see, what a commit makes durable, and when it fails.

use crate::common::images::{assert_clean, open};
use kedge_base::{BLOCK_SIZE, SystemClock, spawn_named};
use kedge_device::MemDevice;
use kedgefs::{
    Error, FallocateMode, FileFlags, FileSystem, FormatOptions, Ino, OpenOptions, Owner, SetAttr, SetLimit,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn make(size: u64, log: u64, data_checksums: bool) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    let options =
        FormatOptions { log_size: Some(log), immutable: true, data_checksums, ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

/// Opens a copy of the device as it is now, as if the process had been killed.
fn killed(device: &MemDevice) -> FileSystem {
    open(&Arc::new(device.fork()))
}

fn contents(fs: &FileSystem, ino: Ino) -> Vec<u8> {
    let mut data = vec![0xee; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
    data
}

fn put(shall: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if shall.len() < offset + data.len() {
        shall.resize(offset + data.len(), 0);
    }
    shall[offset..offset + data.len()].copy_from_slice(data);
}

#[test]
fn what_is_staged_is_seen_by_its_handle_alone_and_by_all_after_the_commit() {
    let device = make(32 * MIB, 4 * MIB, false);
    let fs = open(&device);
    let root = fs.root();
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = root.open_with("f", &options).unwrap();
    file.write_all_at(0, &[1; 10_000]).unwrap();
    file.sync_all().unwrap();

    let mut write = file.atomic().unwrap();
    assert!(write.is_empty());
    write.write_at(5000, &[2; 3000]).unwrap();
    write.write_at(20_000, &[3; 10]).unwrap();
    let mut seen = [0xee; 30_000];
    assert_eq!(write.read_at(0, &mut seen).unwrap(), 20_010);
    let mut shall = vec![1; 10_000];
    put(&mut shall, 5000, &[2; 3000]);
    put(&mut shall, 20_000, &[3; 10]);
    assert!(seen[..20_010] == shall[..]);
    assert!(contents(&fs, file.ino()) == vec![1; 10_000], "not yet");
    assert!(contents(&killed(&device), file.ino()) == vec![1; 10_000], "not yet");
    drop(write);
    assert!(contents(&fs, file.ino()) == vec![1; 10_000], "given up");

    let mut write = file.atomic().unwrap();
    write.write_at(5000, &[2; 3000]).unwrap();
    write.write_at(20_000, &[3; 10]).unwrap();
    write.commit().unwrap();
    assert!(contents(&fs, file.ino()) == shall);
    assert!(contents(&killed(&device), file.ino()) == shall);
    fs.close().unwrap();
    assert!(contents(&open(&device), file.ino()) == shall);
    assert_clean(&device.fork());
}

#[test]
fn a_commit_is_one_log_write_and_leaves_nothing_for_fsync() {
    let device = make(64 * MIB, 16 * MIB, false);
    let fs = open(&device);
    let file = fs.root().create("f").unwrap();
    file.write_all_at(0, &[1; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let writes = || {
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
        stats["log"]["writes"].as_u64().unwrap()
    };
    let before = writes();
    let mut write = file.atomic().unwrap();
    for page in 0..200 {
        write.write_at(page * BLOCK, &[2; BLOCK_SIZE]).unwrap();
    }
    write.commit().unwrap();
    assert_eq!(writes(), before + 1);
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!(writes(), before + 1);
}

/// Makes random changes of every kind, and compares with a plain array.
#[test]
fn beside_every_other_change_the_bytes_are_those_of_the_model() {
    for (seed, checksums) in (0..30u64).flat_map(|seed| [(seed, false), (seed, true)]) {
        let device = make(24 * MIB, MIB, checksums);
        let mut fs = open(&device);
        let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).unwrap().ino;
        let mut random = SmallRng::seed_from_u64(seed);
        let mut shall: Vec<u8> = Vec::new();
        for n in 0..60u8 {
            let offset = random.random_range(0..60_000usize);
            let data = vec![n + 1; random.random_range(1..20_000)];
            match random.random_range(0..100) {
                0..40 => {
                    let mut write = fs.atomic(ino).unwrap();
                    for _ in 0..random.random_range(1..6) {
                        let offset = random.random_range(0..60_000);
                        let data = vec![random.random(); random.random_range(1..9_000)];
                        write.write_at(offset as u64, &data).unwrap();
                        put(&mut shall, offset, &data);
                    }
                    write.commit().unwrap();
                    assert!(contents(&killed(&device), ino) == shall, "seed {seed}, step {n}: after a kill");
                }
                40..60 => {
                    assert_eq!(fs.write(ino, offset as u64, &data).unwrap(), data.len());
                    put(&mut shall, offset, &data);
                    // Durable, so that a later kill preserves this change too.
                    fs.fsync(ino, true).unwrap();
                }
                60..70 => {
                    fs.setattr(ino, &SetAttr { size: Some(offset as u64), ..SetAttr::default() }).unwrap();
                    shall.resize(offset, 0);
                    fs.fsync(ino, true).unwrap();
                }
                70..78 => {
                    fs.fallocate(ino, FallocateMode::PunchHole, offset as u64, data.len() as u64).unwrap();
                    let end = shall.len().min(offset + data.len());
                    if offset < end {
                        shall[offset..end].fill(0);
                    }
                    fs.fsync(ino, true).unwrap();
                }
                78..84 => {
                    let mode = FallocateMode::Allocate { keep_size: true };
                    fs.fallocate(ino, mode, offset as u64, data.len() as u64).unwrap();
                }
                84..92 => fs.checkpoint().unwrap(),
                92..95 => {
                    fs.close().unwrap();
                    fs = open(&device);
                }
                _ => fs.set_cache_size(random.random_range(1..8) << 20),
            }
            assert!(contents(&fs, ino) == shall, "seed {seed}, step {n}");
        }
        fs.close().unwrap();
        assert!(contents(&open(&device), ino) == shall, "seed {seed}");
        assert_clean(&device.fork());
    }
}

#[test]
fn more_than_the_bound_is_refused_and_the_bound_fits_each_log() {
    for log in [MIB, 2 * MIB, 16 * MIB] {
        let device = make(64 * MIB, log, false);
        let fs = open(&device);
        let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).unwrap().ino;
        let mut write = fs.atomic(ino).unwrap();
        let max = write.bytes_max();
        assert!(max >= 40 * BLOCK && max <= log, "{max} bytes with a log of {log}");
        // Every other page is written, so that each has an extent of its own.
        let pages = max / BLOCK;
        for page in 0..pages {
            write.write_at(2 * page * BLOCK, &[7; BLOCK_SIZE]).unwrap();
        }
        let refused = write.write_at(BLOCK, &[8]).unwrap_err();
        assert!(matches!(refused, Error::AtomicTooLarge(bytes) if bytes == max), "{refused}");
        assert_eq!(refused.errno(), kedge_base::errno::EFBIG);
        write.commit().unwrap();
        for _ in 0..20 {
            let mut again = fs.atomic(ino).unwrap();
            (0..pages).for_each(|page| again.write_at(2 * page * BLOCK, &[9; BLOCK_SIZE]).unwrap());
            again.commit().unwrap();
        }
        let found = contents(&killed(&device), ino);
        assert_eq!(found.len() as u64, (2 * pages - 1) * BLOCK);
        assert!(found.chunks(BLOCK_SIZE).step_by(2).all(|page| page == [9; BLOCK_SIZE]));
        fs.close().unwrap();
        assert_clean(&device.fork());
    }
}

/// Any user who may write a file can stage this.
#[test]
fn many_small_ranges_are_refused_and_harm_nothing() {
    for log in [32 * MIB, MIB] {
        let device = make(128 * MIB, log, false);
        let fs = open(&device);
        let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).unwrap().ino;
        let mut write = fs.atomic(ino).unwrap();
        let pages = write.bytes_max() / BLOCK;
        let mut shall = Vec::new();
        let mut refused = 0;
        // One byte between two ranges of a page. The record would be longer than a log write.
        for (page, n) in (0..pages).flat_map(|page| (0..30).map(move |n| (page, n))) {
            let (at, end) = (n * 136, if n == 29 { BLOCK } else { n * 136 + 135 });
            let data = vec![7; (end - at) as usize];
            match write.write_at(page * BLOCK + at, &data) {
                Ok(()) => put(&mut shall, (page * BLOCK + at) as usize, &data),
                Err(e) => {
                    assert_eq!(e.errno(), kedge_base::errno::EFBIG, "{e}");
                    refused += 1;
                }
            }
        }
        write.commit().unwrap();
        fs.create(Ino::ROOT, b"after", 0o644, OWNER).unwrap();
        assert!(refused > 0);
        assert!(contents(&killed(&device), ino) == shall, "with a log of {log}");
        fs.close().unwrap();
        assert_clean(&device.fork());
    }
}

#[test]
fn a_full_image_or_limit_refuses_the_whole_and_changes_nothing() {
    let device = make(16 * MIB, MIB, false);
    let fs = open(&device);
    let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, &[1; 8192]).unwrap();
    fs.fsync(ino, false).unwrap();
    let filler = fs.create(Ino::ROOT, b"filler", 0o644, OWNER).unwrap().ino;
    let mut at = 0;
    while let Ok(n) = fs.write(filler, at, &[2; 65_536]) {
        at += n as u64;
    }
    fs.sync().unwrap();
    let mut write = fs.atomic(ino).unwrap();
    write.write_at(4096, &[3; 100_000]).unwrap();
    assert_eq!(write.commit().unwrap_err().errno(), kedge_base::errno::ENOSPC);
    assert!(contents(&fs, ino) == vec![1; 8192]);
    assert!(contents(&killed(&device), ino) == vec![1; 8192]);
    // Pages that have a block need no new one.
    let mut write = fs.atomic(ino).unwrap();
    write.write_at(0, &[5; 8192]).unwrap();
    write.commit().unwrap();
    assert!(contents(&killed(&device), ino) == vec![5; 8192]);
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.sync().unwrap();

    let dir = fs.mkdir(Ino::ROOT, b"d", 0o755, OWNER).unwrap().ino;
    fs.set_limit(dir, SetLimit { bytes: Some(Some(64 << 10)), ..SetLimit::default() }).unwrap();
    let small = fs.create(dir, b"g", 0o644, OWNER).unwrap().ino;
    let mut write = fs.atomic(small).unwrap();
    write.write_at(0, &[4; 100_000]).unwrap();
    assert_eq!(write.commit().unwrap_err().errno(), kedge_base::errno::EDQUOT);
    assert_eq!(fs.getattr(small).unwrap().size, 0);
    let mut write = fs.atomic(small).unwrap();
    write.write_at(0, &[4; 60_000]).unwrap();
    write.commit().unwrap();
    assert!(contents(&killed(&device), small) == vec![4; 60_000]);
    fs.close().unwrap();
    assert_clean(&device.fork());
}

#[test]
fn flags_kinds_and_deletion_refuse_it() {
    let device = make(16 * MIB, MIB, false);
    let fs = open(&device);
    assert!(matches!(fs.atomic(Ino::ROOT), Err(Error::IsDirectory)));
    let fifo = fs.mknod(Ino::ROOT, b"fifo", 0o10644, 0, OWNER).unwrap().ino;
    assert!(matches!(fs.atomic(fifo), Err(Error::Invalid(_))));
    assert!(matches!(fs.atomic(Ino(1 << 40)), Err(Error::NotFound)));
    let reader = {
        fs.root().create("r").unwrap();
        fs.root().open("r").unwrap()
    };
    assert_eq!(reader.atomic().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);

    let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).unwrap().ino;
    for flag in [FileFlags::IMMUTABLE, FileFlags::APPEND] {
        let mut write = fs.atomic(ino).unwrap();
        write.write_at(0, b"no").unwrap();
        fs.set_flags(ino, flag).unwrap();
        assert!(matches!(write.commit(), Err(Error::NotPermitted(_))));
        fs.set_flags(ino, FileFlags::default()).unwrap();
    }
    // The handle keeps a file without a name alive. The file is deleted with the handle.
    let mut write = fs.atomic(ino).unwrap();
    write.write_at(0, b"last").unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    write.commit().unwrap();
    assert!(matches!(fs.getattr(ino), Err(Error::NotFound)));
    fs.close().unwrap();
    assert_clean(&device.fork());
}

#[test]
fn threads_that_write_one_file_atomically_never_mix() {
    let device = make(32 * MIB, 2 * MIB, false);
    let fs = open(&device);
    let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, &vec![0; 40 * BLOCK_SIZE]).unwrap();
    fs.fsync(ino, false).unwrap();
    let threads: Vec<_> = (1..=4u8)
        .map(|n| {
            let fs = fs.clone();
            let work = move || {
                for _ in 0..50 {
                    let mut write = fs.atomic(ino).unwrap();
                    for page in (0..40).step_by(3) {
                        write.write_at(page * BLOCK, &[n; BLOCK_SIZE]).unwrap();
                    }
                    write.commit().unwrap();
                }
            };
            spawn_named("atomic", work).unwrap()
        })
        .collect();
    for _ in 0..50 {
        let found = contents(&killed(&device), ino);
        let pages: Vec<u8> = found.chunks(BLOCK_SIZE).step_by(3).map(|page| page[0]).collect();
        assert!(pages.iter().all(|page| *page == pages[0]), "{pages:?}");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    fs.close().unwrap();
    assert_clean(&device.fork());
}
