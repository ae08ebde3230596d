//! Checksums of file data: they match after every kind of change, and a reader gets an error if the
//! device returns other bytes.

use crate::common::images::{assert_clean, check, contents, noise, open};
use crate::common::watched::{Watch, Watched};
use kedge_base::{BLOCK_SIZE, IoBuf, SystemClock, spawn_named};
use kedge_device::{Device, MemDevice};
use kedge_fsck::FindingKind;
use kedgefs::{
    Error, FallocateMode, FileFlags, FileSystem, FormatOptions, Ino, MountOptions, Owner, SetAttr, WriteMode,
};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn make(size: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    let options = FormatOptions { log_size: Some(4 * MIB), data_checksums: true, ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

/// Makes one random change of a file, and the same change of the expected bytes.
fn change(fs: &FileSystem, rng: &mut SmallRng, ino: Ino, shall: &mut Vec<u8>) {
    let size = shall.len() as u64;
    let at = rng.random_range(0..=size + 3 * BLOCK);
    let len = match rng.random_range(0..4) {
        0 => rng.random_range(1..600),
        1 => rng.random_range(1..3 * BLOCK),
        2 => rng.random_range(1..40 * BLOCK),
        _ => BLOCK,
    };
    let grow = |shall: &mut Vec<u8>, end: u64| shall.resize(shall.len().max(end as usize), 0);
    match rng.random_range(0..14) {
        0..=4 => {
            let data = noise(rng, len as usize);
            let mode = WriteMode::default().with_through(rng.random_range(0..4) == 0);
            assert_eq!(fs.write_with(ino, at, &data, mode).unwrap() as u64, len);
            grow(shall, at + len);
            shall[at as usize..(at + len) as usize].copy_from_slice(&data);
        }
        5 => {
            fs.setattr(ino, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
            shall.resize(at as usize, 0);
        }
        6 => {
            fs.fallocate(ino, FallocateMode::PunchHole, at, len).unwrap();
            let (from, to) = (at.min(size) as usize, (at + len).min(size) as usize);
            shall[from..to].fill(0);
        }
        7 => {
            fs.fallocate(ino, FallocateMode::ZeroRange { keep_size: false }, at, len).unwrap();
            grow(shall, at + len);
            shall[at as usize..(at + len) as usize].fill(0);
        }
        8 => {
            let keep_size = rng.random();
            fs.fallocate(ino, FallocateMode::Allocate { keep_size }, at, len).unwrap();
            if !keep_size {
                grow(shall, at + len);
            }
        }
        9 => {
            let (at, len) = (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
            if at + len < size {
                fs.fallocate(ino, FallocateMode::CollapseRange, at, len).unwrap();
                shall.drain(at as usize..(at + len) as usize);
            }
        }
        10 => {
            let (at, len) = (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
            if at < size {
                fs.fallocate(ino, FallocateMode::InsertRange, at, len).unwrap();
                shall.splice(at as usize..at as usize, std::iter::repeat_n(0, len as usize));
            }
        }
        11 => fs.sync().unwrap(),
        _ => fs.fsync(ino, rng.random()).unwrap(),
    }
}

#[test]
fn every_kind_of_change_leaves_checksums_of_what_is_there() {
    for seed in 0..6 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let device = make(128 * MIB);
        let mut fs = open(&device);
        let mut files: Vec<(Ino, Vec<u8>)> = (0..3)
            .map(|n| {
                (fs.create(Ino::ROOT, format!("f{n}").as_bytes(), 0o644, OWNER).unwrap().ino, Vec::new())
            })
            .collect();
        for step in 0..400 {
            let (ino, shall) = &mut files[rng.random_range(0..3)];
            change(&fs, &mut rng, *ino, shall);
            if step % 57 == 56 {
                fs.close().unwrap();
                assert_clean(&device);
                fs = open(&device);
                for (ino, shall) in &files {
                    assert!(contents(&fs, *ino) == *shall, "seed {seed}, step {step}: inode {ino}");
                }
            }
        }
        // Once all files are removed, nothing of them is left, including checksums.
        for n in 0..files.len() {
            fs.unlink(Ino::ROOT, format!("f{n}").as_bytes()).unwrap();
        }
        fs.close().unwrap();
        let report = check(&device);
        assert!(report.is_clean(), "{report}");
        assert_eq!((report.counters.items, report.counters.blocks_data), (1, 0), "only the root is left");
    }
}

/// The blocks of the device that have the contents of some block of `data`.
fn blocks_of(device: &MemDevice, data: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let mut block = IoBuf::zeroed(1);
    for at in 0..device.geometry().size / BLOCK {
        device.read(at * BLOCK, &mut block).unwrap();
        if data.chunks_exact(BLOCK_SIZE).any(|part| part == block.as_bytes()) {
            found.push(at);
        }
    }
    found
}

/// Flips 500 bits, one after the other. For each fiftieth fsck must name the block. With
/// `KEDGE_LONG=1` 10,000 bits, each with such a check.
#[test]
fn no_flipped_bit_reaches_a_reader() {
    let is_long = std::env::var_os("KEDGE_LONG").is_some_and(|value| value == "1");
    let (rounds, named) = if is_long { (10_000, 1) } else { (500, 50) };
    let mut rng = SmallRng::seed_from_u64(7);
    let device = make(64 * MIB);
    let fs = open(&device);
    let data = noise(&mut rng, 300 * BLOCK_SIZE);
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    let ino = fs.create(dir, b"file", 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, &data).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
    let places = blocks_of(&device, &data);
    assert_eq!(places.len(), 300);
    for round in 0..rounds {
        let at = places[rng.random_range(0..places.len())];
        let bit = rng.random_range(0..BLOCK_SIZE * 8);
        let damaged = Arc::new(device.fork());
        let mut block = IoBuf::zeroed(1);
        damaged.read(at * BLOCK, &mut block).unwrap();
        block.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        damaged.write(at * BLOCK, &block, false).unwrap();
        let fs = open(&damaged);
        let (mut good, mut bad) = (0, 0);
        for index in 0..300 {
            let mut buf = vec![0; BLOCK_SIZE];
            match fs.read_uncached(ino, index * BLOCK, &mut buf) {
                Ok(_) => {
                    assert!(
                        buf == data[index as usize * BLOCK_SIZE..][..BLOCK_SIZE],
                        "a damaged block is read"
                    );
                    good += 1;
                }
                Err(e) => {
                    assert_eq!(e.errno(), kedge_base::errno::EIO, "{e}");
                    bad += 1;
                }
            }
        }
        assert_eq!((good, bad), (299, 1), "round {round}");
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
        assert_eq!(stats["data"]["checksum_errors"], 1);
        drop(fs);
        if round % named == 0 {
            let report = check(&damaged);
            let found: Vec<_> = report.findings.iter().map(|f| (f.kind, f.block, f.paths.clone())).collect();
            assert_eq!(found, [(FindingKind::DataBad, Some(at), vec!["/dir/file".to_owned()])]);
        }
    }
}

#[test]
fn a_damaged_block_refuses_to_be_completed_and_takes_whole_blocks() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let data = noise(&mut SmallRng::seed_from_u64(1), 4 * BLOCK_SIZE);
    let ino = fs.create(Ino::ROOT, b"file", 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, &data).unwrap();
    fs.close().unwrap();
    let at = blocks_of(&device, &data[BLOCK_SIZE..2 * BLOCK_SIZE])[0];
    device.write(at * BLOCK, &IoBuf::zeroed(1), false).unwrap();
    let fs = open(&device);
    let refused = fs.write(ino, BLOCK + 10, b"some").unwrap_err();
    assert_eq!(refused.errno(), kedge_base::errno::EIO, "{refused}");
    assert!(refused.to_string().contains("checksum of file block 1"), "{refused}");
    let new = noise(&mut SmallRng::seed_from_u64(2), BLOCK_SIZE);
    fs.write(ino, BLOCK, &new).unwrap();
    fs.fsync(ino, false).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    assert!(contents(&fs, ino)[BLOCK_SIZE..2 * BLOCK_SIZE] == new);
}

/// A punch or zero range first zeroes the part of its first block. If it then fails, no byte has
/// changed: neither for readers, nor after a crash, nor after a later writeback of that block.
#[test]
fn a_failed_punch_or_zero_range_changes_no_byte() {
    for mode in [FallocateMode::PunchHole, FallocateMode::ZeroRange { keep_size: true }] {
        let device = make(64 * MIB);
        let fs = open(&device);
        let data = noise(&mut SmallRng::seed_from_u64(3), 4 * BLOCK_SIZE);
        let ino = fs.create(Ino::ROOT, b"file", 0o644, OWNER).unwrap().ino;
        fs.write(ino, 0, &data).unwrap();
        fs.close().unwrap();
        let at = blocks_of(&device, &data[2 * BLOCK_SIZE..3 * BLOCK_SIZE])[0];
        let mut block = IoBuf::from_bytes(&data[2 * BLOCK_SIZE..3 * BLOCK_SIZE]);
        block.as_mut_bytes()[4000] ^= 1;
        device.write(at * BLOCK, &block, false).unwrap();

        let fs = open(&device);
        let mut shall = data[..2 * BLOCK_SIZE].to_vec();
        let holds = |fs: &FileSystem, shall: &[u8], when: &str| {
            let mut buf = vec![0xee; 2 * BLOCK_SIZE];
            fs.read(ino, 0, &mut buf).unwrap();
            assert!(buf == shall, "{mode:?}: {when}");
        };
        let refused = fs.fallocate(ino, mode, 100, 8192).unwrap_err();
        assert_eq!(refused.errno(), kedge_base::errno::EIO, "{refused}");
        holds(&fs, &shall, "after the error");
        fs.fsync(ino, false).unwrap();
        holds(&open(&Arc::new(device.fork())), &shall, "after a crash");
        fs.write(ino, 50, b"!").unwrap();
        shall[50] = b'!';
        fs.fsync(ino, false).unwrap();
        fs.checkpoint().unwrap();
        holds(&open(&Arc::new(device.fork())), &shall, "after a writeback and a crash");
        fs.close().unwrap();
        holds(&open(&device), &shall, "after reopening");
    }
}

/// The log has a part of a block whose other bytes are damaged. After recovery the damage is still
/// detected: the block must not look whole because of the logged bytes.
#[test]
fn recovery_does_not_hide_damage() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let data = noise(&mut SmallRng::seed_from_u64(1), 4 * BLOCK_SIZE);
    let ino = fs.create(Ino::ROOT, b"file", 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, &data).unwrap();
    fs.sync().unwrap();
    fs.write(ino, 2 * BLOCK + 100, b"bytes that are in the log").unwrap();
    fs.fsync(ino, false).unwrap();
    let crashed = Arc::new(device.fork());
    fs.shutdown(false).unwrap();
    let at = blocks_of(&crashed, &data[2 * BLOCK_SIZE..3 * BLOCK_SIZE])[0];
    let mut block = IoBuf::from_bytes(&data[2 * BLOCK_SIZE..3 * BLOCK_SIZE]);
    block.as_mut_bytes()[4000] ^= 1;
    crashed.write(at * BLOCK, &block, false).unwrap();
    let report = check(&crashed);
    assert_eq!(report.count(FindingKind::DataBad), 1, "{report}");
    for _ in 0..2 {
        let fs = open(&crashed);
        let mut buf = vec![0; BLOCK_SIZE];
        let e = fs.read(ino, 2 * BLOCK, &mut buf).unwrap_err();
        assert_eq!(e.errno(), kedge_base::errno::EIO, "{e}");
        fs.read(ino, BLOCK, &mut buf).unwrap();
        assert!(buf == data[BLOCK_SIZE..2 * BLOCK_SIZE]);
        fs.close().unwrap();
    }
}

#[test]
fn files_may_be_without_checksums_from_their_first_byte_on() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let dir = fs.mkdir(Ino::ROOT, b"plain", 0o755, OWNER).unwrap().ino;
    fs.set_flags(dir, FileFlags::NOCOW).unwrap();
    let plain = fs.create(dir, b"file", 0o644, OWNER).unwrap();
    assert!(plain.flags.has(FileFlags::NOCOW), "inherited");
    let data = noise(&mut SmallRng::seed_from_u64(1), 8 * BLOCK_SIZE);
    fs.write(plain.ino, 0, &data).unwrap();
    let other = fs.create(Ino::ROOT, b"file", 0o644, OWNER).unwrap().ino;
    fs.write(other, 0, b"x").unwrap();
    for (ino, flags) in [(plain.ino, FileFlags::default()), (other, FileFlags::NOCOW)] {
        assert!(matches!(fs.set_flags(ino, flags), Err(Error::Invalid(_))), "a file with data");
    }
    fs.setattr(other, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    fs.set_flags(other, FileFlags::NOCOW).unwrap();
    fs.write(other, 0, &data).unwrap();
    fs.sync().unwrap();
    // Without checksums the data is overwritten in place.
    let places = blocks_of(&device, &data);
    fs.write(other, 0, &data).unwrap();
    fs.close().unwrap();
    assert_eq!(blocks_of(&device, &data), places);
    let report = check(&device);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counters.blocks_verified, 0);
}

#[test]
fn an_image_without_checksums_has_no_such_flag() {
    let device = Arc::new(MemDevice::new(64 * MIB));
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &FormatOptions::default()).unwrap();
    let fs = open(&device);
    let e = fs.set_flags(Ino::ROOT, FileFlags::NOCOW).unwrap_err();
    assert!(matches!(e, Error::NotSupported(_)), "{e}");
}

/// Appends until the image is full.
fn append_until_full(fs: &FileSystem, ino: Ino, shall: &mut Vec<u8>, rng: &mut SmallRng) {
    loop {
        let more = noise(rng, 16 * BLOCK_SIZE);
        match fs.write(ino, shall.len() as u64, &more) {
            Ok(n) => shall.extend_from_slice(&more[..n]),
            Err(e) => {
                assert_eq!(e.errno(), kedge_base::errno::ENOSPC, "{e}");
                break;
            }
        }
    }
}

/// Overwriting a block needs a free block. A full image refuses the overwrite at write(2), and
/// loses nothing.
#[test]
fn a_full_image_refuses_to_overwrite_and_keeps_its_data() {
    let mut rng = SmallRng::seed_from_u64(3);
    let device = make(32 * MIB);
    let fs = open(&device);
    let ino = fs.create(Ino::ROOT, b"full", 0o644, OWNER).unwrap().ino;
    let spare = fs.create(Ino::ROOT, b"spare", 0o644, OWNER).unwrap().ino;
    fs.write(spare, 0, &noise(&mut rng, 256 * BLOCK_SIZE)).unwrap();
    let mut shall = Vec::new();
    // A checkpoint frees the nodes that were replaced before it.
    for _ in 0..4 {
        append_until_full(&fs, ino, &mut shall, &mut rng);
        fs.checkpoint().unwrap();
    }
    // A background checkpoint may free blocks between the last append and the overwrite. A page
    // that is dirty has its block already, so each round overwrites another page.
    let refused = (0..100).find_map(|page| {
        append_until_full(&fs, ino, &mut shall, &mut rng);
        let at = page * BLOCK_SIZE;
        match fs.write(ino, at as u64, b"another") {
            Ok(n) => {
                shall[at..at + n].copy_from_slice(&b"another"[..n]);
                None
            }
            Err(e) => Some(e),
        }
    });
    let refused = refused.expect("an image without room refuses to overwrite");
    assert_eq!(refused.errno(), kedge_base::errno::ENOSPC, "{refused}");
    fs.sync().unwrap();
    // Frees some space, of which the tree needs a part.
    fs.unlink(Ino::ROOT, b"spare").unwrap();
    fs.sync().unwrap();
    let mut refused = 0;
    for round in 0..2000 {
        let at = rng.random_range(0..shall.len() as u64 / BLOCK) * BLOCK + rng.random_range(0..BLOCK / 2);
        let new = noise(&mut rng, 700);
        match fs.write(ino, at, &new) {
            Ok(n) => shall[at as usize..at as usize + n].copy_from_slice(&new[..n]),
            Err(e) => {
                assert_eq!(e.errno(), kedge_base::errno::ENOSPC, "{e}");
                refused += 1;
            }
        }
        if round % 7 == 0 {
            fs.fsync(ino, true).unwrap();
        }
        if round % 400 == 399 {
            fs.sync().unwrap();
        }
    }
    assert!(refused < 2000, "some writes find a block that another has given up");
    fs.close().unwrap();
    assert_clean(&device);
    assert!(contents(&open(&device), ino) == shall);
}

/// A device that calls a function before its next write.
struct Interrupted {
    below: Arc<MemDevice>,
    next: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Watch for Interrupted {
    fn device(&self) -> &dyn Device {
        &*self.below
    }

    fn before_write(&self, _fua: bool) {
        let next = self.next.lock().take();
        if let Some(next) = next {
            // Called in another thread, since the writing thread holds locks of the file.
            spawn_named("between", next).unwrap().join().unwrap();
        }
    }
}

fn fill(fs: &FileSystem, ino: Ino) {
    let mut at = fs.getattr(ino).unwrap().size.next_multiple_of(BLOCK);
    for len in [64, 8, 1] {
        while fs.write(ino, at, &vec![5; len * BLOCK_SIZE]).is_ok_and(|n| n == len * BLOCK_SIZE) {
            at += len as u64 * BLOCK;
        }
    }
}

/// If a page changes while it is being written, it needs yet another block, and keeps a promise for
/// that. So it is for a block that was written before, and for a preallocated one.
#[test]
fn a_page_that_changes_while_it_is_written_keeps_its_space() {
    for preallocated in [false, true] {
        let below = make(32 * MIB);
        let device = Arc::new(Watched(Interrupted { below: below.clone(), next: Mutex::new(None) }));
        let fs = FileSystem::open(device.clone(), Arc::new(SystemClock::default()), MountOptions::default());
        let fs = Arc::new(fs.unwrap());
        let ino = fs.create(Ino::ROOT, b"file", 0o644, OWNER).unwrap().ino;
        let filler = fs.create(Ino::ROOT, b"filler", 0o644, OWNER).unwrap().ino;
        if preallocated {
            fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 0, 4 * BLOCK).unwrap();
        } else {
            fs.write(ino, 0, &[1; 4 * BLOCK_SIZE]).unwrap();
        }
        let spare = fs.create(Ino::ROOT, b"spare", 0o644, OWNER).unwrap().ino;
        fs.write(spare, 0, &[1; 256 * BLOCK_SIZE]).unwrap();
        fs.sync().unwrap();
        fill(&fs, filler);
        fs.unlink(Ino::ROOT, b"spare").unwrap();
        fs.sync().unwrap();
        fs.write(ino, BLOCK, &[2; BLOCK_SIZE]).unwrap();
        let again = fs.clone();
        *device.next.lock() = Some(Box::new(move || {
            again.write(ino, BLOCK, &[3; BLOCK_SIZE]).unwrap();
        }));
        fs.sync().unwrap();
        assert!(device.next.lock().is_none(), "the page was written");
        fill(&fs, filler);
        fs.sync().unwrap();
        fill(&fs, filler);
        fs.sync().unwrap();
        fs.close().unwrap();
        assert_clean(&below);
        assert!(contents(&open(&below), ino)[BLOCK_SIZE..2 * BLOCK_SIZE] == [3; BLOCK_SIZE]);
    }
}
