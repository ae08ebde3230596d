//! Clones: files that share blocks without visible effects, and what is freed when the sharing
//! ends.

use crate::common::images::{assert_clean, noise, open, put};
use kedge_base::{BLOCK_SIZE, SystemClock};
use kedge_device::MemDevice;
use kedge_format::superblock::INCOMPAT_CLONES;
use kedgefs::{
    Error, FallocateMode, FileFlags, FileSystem, FormatOptions, Ino, MountOptions, Owner, SetAttr, SetLimit,
    WriteMode,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn make_with(size: u64, options: FormatOptions) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

fn make(size: u64) -> Arc<MemDevice> {
    make_with(size, FormatOptions { log_size: Some(4 * MIB), ..FormatOptions::default() })
}

fn new(fs: &FileSystem, name: &str) -> Ino {
    fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER).unwrap().ino
}

fn contents(fs: &FileSystem, ino: Ino) -> Vec<u8> {
    let mut data = vec![0xee; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read_uncached(ino, 0, &mut data).unwrap(), data.len());
    data
}

fn free(fs: &FileSystem) -> u64 {
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    fs.checkpoint().unwrap();
    fs.statfs().blocks_free
}

fn truncate(fs: &FileSystem, ino: Ino, size: u64) {
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// Fills the image with the file `filler`, but for less than 64 KiB.
fn fill(fs: &FileSystem) {
    let (filler, mut filled) = (new(fs, "filler"), 0);
    while let Ok(n) = fs.write(filler, filled, &[3; 65536]) {
        filled += n as u64;
    }
}

#[test]
fn a_clone_and_its_source_go_their_own_ways() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let old = noise(&mut SmallRng::seed_from_u64(1), 3 * MIB as usize + 100);
    let source = put(&fs, Ino::ROOT, "source", &old);
    let before = free(&fs);
    let target = new(&fs, "target");
    fs.clone_file(source, target).unwrap();
    assert!(contents(&fs, target) == old);
    assert_eq!(fs.getattr(target).unwrap().blocks, fs.getattr(source).unwrap().blocks);
    let cloned = free(&fs);
    assert!(before - cloned <= 8, "{before} {cloned}");

    fs.write(target, MIB, &vec![2; MIB as usize]).unwrap();
    fs.write(source, 10, b"source").unwrap();
    let expect = |fs: &FileSystem| {
        let mut shall = old.clone();
        shall[MIB as usize..2 * MIB as usize].fill(2);
        assert!(contents(fs, target) == shall);
        let mut shall = old.clone();
        shall[10..16].copy_from_slice(b"source");
        assert!(contents(fs, source) == shall);
    };
    expect(&fs);
    let apart = free(&fs);
    assert!((257..270).contains(&(cloned - apart)), "{cloned} {apart}");
    assert_clean(&device);
    expect(&open(&Arc::new(device.fork())));
    fs.unlink(Ino::ROOT, b"source").unwrap();
    // This frees the blocks that the target has overwritten, and the first block.
    let gone = free(&fs);
    assert!((257..270).contains(&(gone - apart)), "{gone} {apart}");
    assert_clean(&device);
    fs.unlink(Ino::ROOT, b"target").unwrap();
    let none = free(&fs);
    assert!(none - gone >= 3 * MIB / BLOCK, "{none} {gone}");
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn an_image_gets_the_feature_with_the_first_clone() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let source = put(&fs, Ino::ROOT, "source", &[1; 8192]);
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    let features =
        |device: &MemDevice| kedge_store::read_superblock(device).unwrap().0.geometry.feature_incompat;
    assert_eq!(features(&device) & INCOMPAT_CLONES, 0);
    let target = new(&fs, "target");
    assert!(fs.clone_range(source, 1, target, 0, BLOCK).is_err());
    assert_eq!(features(&device) & INCOMPAT_CLONES, 0, "a refused clone leaves none");
    fs.clone_file(source, target).unwrap();
    assert_ne!(features(&device) & INCOMPAT_CLONES, 0);
    fs.close().unwrap();
    assert_ne!(features(&device) & INCOMPAT_CLONES, 0);
    let fs = open(&device);
    assert_eq!(contents(&fs, target), [1; 8192]);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn ranges_that_cannot_be_shared() {
    let device = make_with(64 * MIB, FormatOptions { immutable: true, ..FormatOptions::default() });
    let fs = open(&device);
    let source = put(&fs, Ino::ROOT, "source", &[1; 10_000]);
    let target = put(&fs, Ino::ROOT, "target", &[2; 20_000]);
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    let errno = |source, offset, target, to, len| {
        fs.clone_range(source, offset, target, to, len).map_err(|e| e.errno())
    };
    assert_eq!(errno(source, 1, target, 0, BLOCK), Err(22));
    assert_eq!(errno(source, 0, target, 1, BLOCK), Err(22));
    assert_eq!(errno(source, 0, target, 0, 100), Err(22), "neither end");
    assert_eq!(errno(source, 0, target, 0, 10_000), Err(22), "not the end of the target");
    assert_eq!(errno(source, 0, target, 0, 3 * BLOCK), Err(22), "beyond the source");
    assert_eq!(errno(source, 1 << 40, target, 0, BLOCK), Err(22));
    assert_eq!(errno(source, u64::MAX - 4095, target, 0, BLOCK), Err(27));
    assert_eq!(errno(source, 0, target, u64::MAX - 4095, BLOCK), Err(27));
    assert_eq!(errno(source, 0, target, (1 << 55) - BLOCK, BLOCK), Err(27));
    assert_eq!(errno(target, 0, target, BLOCK, 2 * BLOCK), Err(22), "they overlap");
    assert_eq!(errno(dir, 0, target, 0, BLOCK), Err(21));
    assert_eq!(errno(source, 0, dir, 0, BLOCK), Err(21));
    assert_eq!(errno(Ino(999_999), 0, target, 0, BLOCK), Err(2));
    assert_eq!(contents(&fs, target), [2; 20_000]);
    fs.set_flags(target, FileFlags::APPEND).unwrap();
    assert_eq!(errno(source, 0, target, 0, BLOCK), Err(1));
    fs.set_flags(target, FileFlags::default()).unwrap();
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    let other = fs.lookup(fork, b"target").unwrap().ino;
    assert_eq!(errno(source, 0, other, 0, BLOCK), Err(18));
    // These ranges can be cloned.
    fs.clone_range(source, 0, target, 4 * BLOCK, 10_000).unwrap();
    let mut shall = vec![2; 16_384];
    shall.resize(26_384, 1);
    assert!(contents(&fs, target) == shall);
    fs.clone_range(target, 0, target, 3 * BLOCK, 3 * BLOCK).unwrap();
    shall.copy_within(..12_288, 12_288);
    assert!(contents(&fs, target) == shall);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn sixty_five_thousand_references_to_one_block() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let source = put(&fs, Ino::ROOT, "source", &[7; BLOCK_SIZE]);
    let before = free(&fs);
    let target = new(&fs, "target");
    // Doubles the file each time, with a clone of all that it has.
    fs.clone_range(source, 0, target, 0, BLOCK).unwrap();
    let mut blocks = 1;
    while blocks < 65_000 {
        let more = blocks.min(65_000 - blocks);
        fs.clone_range(target, 0, target, blocks * BLOCK, more * BLOCK).unwrap();
        blocks += more;
    }
    assert_eq!(fs.getattr(target).unwrap().size, 65_000 * BLOCK);
    fs.sync().unwrap();
    assert_clean(&device);
    let shared = free(&fs);
    assert!(before - shared < 2600, "nodes only, no data: {before} {shared}");
    let read = contents(&fs, target);
    assert!(read.iter().all(|byte| *byte == 7));
    for block in [0, 1, 777, 64_999] {
        fs.write(target, block * BLOCK, &[8; BLOCK_SIZE]).unwrap();
    }
    fs.unlink(Ino::ROOT, b"source").unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    let read = contents(&fs, target);
    for (block, bytes) in read.chunks(BLOCK_SIZE).enumerate() {
        let shall = if [0, 1, 777, 64_999].contains(&block) { 8 } else { 7 };
        assert!(bytes.iter().all(|byte| *byte == shall), "block {block}");
    }
    truncate(&fs, target, 0);
    assert!(free(&fs) > before, "the source is gone too");
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn an_extent_across_many_counts() {
    let device = make(128 * MIB);
    let fs = open(&device);
    let blocks = 6000;
    let old = noise(&mut SmallRng::seed_from_u64(2), blocks * BLOCK_SIZE);
    let empty = free(&fs);
    let source = put(&fs, Ino::ROOT, "source", &old);
    let target = new(&fs, "target");
    fs.clone_file(source, target).unwrap();
    let again = new(&fs, "again");
    // Every second block gets another count than its neighbours.
    for block in (0..blocks as u64).step_by(2) {
        fs.write(target, block * BLOCK, &[9]).unwrap();
    }
    fs.sync().unwrap();
    assert_clean(&device);
    fs.clone_file(source, again).unwrap();
    assert!(contents(&fs, again) == old);
    fs.sync().unwrap();
    assert_clean(&device);
    let collapse = fs.fallocate(source, FallocateMode::CollapseRange, BLOCK, 5000 * BLOCK);
    assert_eq!(collapse.unwrap_err().errno(), 27, "too many for a record");
    fs.fallocate(source, FallocateMode::CollapseRange, BLOCK, 100 * BLOCK).unwrap();
    fs.fallocate(again, FallocateMode::PunchHole, 0, 3000 * BLOCK).unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    truncate(&fs, source, 100);
    fs.sync().unwrap();
    assert_clean(&device);
    for name in [&b"source"[..], b"again", b"target"] {
        fs.unlink(Ino::ROOT, name).unwrap();
    }
    let after = free(&fs);
    assert!(empty - after <= 16, "{empty} {after}");
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn an_overwrite_of_shared_blocks_needs_space_and_says_so_at_once() {
    let device = make(32 * MIB);
    let fs = open(&device);
    let source = put(&fs, Ino::ROOT, "source", &vec![1; 4 * MIB as usize]);
    let target = new(&fs, "target");
    fs.clone_file(source, target).unwrap();
    fill(&fs);
    fs.sync().unwrap();
    let mut written = 0;
    let error = loop {
        match fs.write(target, written, &[2; 65536]) {
            Ok(n) => written += n as u64,
            Err(e) => break e,
        }
    };
    assert_eq!(error.errno(), 28);
    assert!(written < 2 * MIB, "{written}");
    fs.sync().unwrap();
    assert!(contents(&fs, source).iter().all(|byte| *byte == 1));
    let read = contents(&fs, target);
    assert!(read[..written as usize].iter().all(|byte| *byte == 2));
    assert!(read[written as usize..].iter().all(|byte| *byte == 1));
    // In a full image files can be removed and overwritten.
    fs.unlink(Ino::ROOT, b"source").unwrap();
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.write(target, 0, &vec![4; 4 * MIB as usize]).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}

/// Pages in unwritten blocks that a snapshot shares are promised other blocks. A preallocation,
/// which allocates nothing there, leaves them their promises.
#[test]
fn a_preallocation_takes_no_promise_of_a_page_in_shared_blocks() {
    let device = make(32 * MIB);
    let fs = open(&device);
    let ino = new(&fs, "file");
    let preallocate = || fs.fallocate(ino, FallocateMode::Allocate { keep_size: true }, 0, 4 * MIB).unwrap();
    preallocate();
    fs.fork(Ino::ROOT, Ino::ROOT, b"snapshot", true).unwrap();
    // Some pages become log-resident, and others are dirty.
    let mut rng = SmallRng::seed_from_u64(6);
    let mut shall = vec![0; 4 * MIB as usize];
    for block in (0..64).step_by(2) {
        let bytes = noise(&mut rng, 100);
        shall[block * BLOCK_SIZE..][..100].copy_from_slice(&bytes);
        fs.write(ino, block as u64 * BLOCK, &bytes).unwrap();
        fs.fsync(ino, false).unwrap();
    }
    let dirty = noise(&mut rng, 4 * MIB as usize - 64 * BLOCK_SIZE);
    shall[64 * BLOCK_SIZE..].copy_from_slice(&dirty);
    fs.write(ino, 64 * BLOCK, &dirty).unwrap();
    preallocate();
    fill(&fs);
    fs.sync().unwrap();
    // Recovery has a block for each page that is only in the log.
    let crashed = Arc::new(device.fork());
    assert!(contents(&open(&crashed), ino) == shall);
    assert_clean(&crashed);
    fs.checkpoint().unwrap();
    assert!(contents(&fs, ino) == shall);
    fs.close().unwrap();
    assert_clean(&device);
}

/// Clones within files make the files longer, and their sources end with the cut blocks at the ends
/// of the files. The zeros in these blocks, which are shared then, are only in the log when the
/// image is full and the power fails.
#[test]
fn cut_blocks_that_are_cloned_within_their_files_survive_a_crash_of_a_full_image() {
    let device = make(32 * MIB);
    let fs = open(&device);
    let old = noise(&mut SmallRng::seed_from_u64(8), BLOCK_SIZE + 5);
    let inos: Vec<Ino> = (0..500).map(|n| put(&fs, Ino::ROOT, &n.to_string(), &old)).collect();
    fs.sync().unwrap();
    for ino in &inos {
        fs.clone_range(*ino, 0, *ino, 2 * BLOCK, 0).unwrap();
    }
    let mut shall = old.clone();
    shall.resize(2 * BLOCK_SIZE, 0);
    shall.extend(&old);
    fill(&fs);
    fs.sync().unwrap();
    let crashed = Arc::new(device.fork());
    let again = open(&crashed);
    assert!(inos.iter().all(|ino| contents(&again, *ino) == shall));
    drop(again);
    assert_clean(&crashed);
    fs.checkpoint().unwrap();
    assert!(inos.iter().all(|ino| contents(&fs, *ino) == shall));
    fs.close().unwrap();
    assert_clean(&device);
}

/// The first record of a clone within a file makes the file longer, so the source no longer ends
/// with it.
#[test]
fn a_clone_of_many_records_within_a_file_ends_where_the_file_ended() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let ino = new(&fs, "file");
    let mut rng = SmallRng::seed_from_u64(7);
    for n in 0..300 {
        fs.write(ino, 2 * n * BLOCK, &noise(&mut rng, BLOCK_SIZE)).unwrap();
    }
    fs.write(ino, 600 * BLOCK, b"cut 5").unwrap();
    let mut shall = contents(&fs, ino);
    fs.clone_range(ino, 0, ino, 601 * BLOCK, 0).unwrap();
    let old = shall.clone();
    shall.resize(601 * BLOCK_SIZE, 0);
    shall.extend(old);
    assert!(contents(&fs, ino) == shall);
    fs.sync().unwrap();
    assert_clean(&device);
    assert!(contents(&open(&Arc::new(device.fork())), ino) == shall);
    // Bytes after the end of the clone do not show when the file grows.
    truncate(&fs, ino, 1202 * BLOCK);
    shall.resize(1202 * BLOCK_SIZE, 0);
    assert!(contents(&fs, ino) == shall);
    fs.close().unwrap();
    assert_clean(&device);
}

/// Sets the flag when it is dropped.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A log is cloned while a program appends to it.
#[test]
fn a_clone_of_a_file_that_grows_has_its_start() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let (source, target) = (new(&fs, "source"), new(&fs, "target"));
    for n in 0..300 {
        fs.write(source, 2 * n * BLOCK, &[7; BLOCK_SIZE]).unwrap();
    }
    let start = fs.getattr(source).unwrap().size;
    let old = contents(&fs, source);
    let (end, appends) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = start;
            while !end.load(Ordering::Relaxed) {
                at += fs.write(source, at, &[8; 33]).unwrap() as u64;
                appends.fetch_add(1, Ordering::Relaxed);
                // A clone waits until the source is clean for a moment.
                kedge_base::pause(std::time::Duration::from_millis(10));
            }
        });
        // If an assertion fails, the other thread ends too.
        let _ended = Ended(&end);
        let mut clones = 0;
        while clones < 20 || appends.load(Ordering::Relaxed) < 100 {
            fs.clone_file(source, target).unwrap();
            let is = contents(&fs, target);
            assert!(is.starts_with(&old), "{} bytes", is.len());
            assert!(is[start as usize..].iter().all(|byte| *byte == 8));
            // Bytes of the source after the end of the target do not show.
            let size = is.len() as u64;
            truncate(&fs, target, size + BLOCK);
            assert!(contents(&fs, target)[size as usize..].iter().all(|byte| *byte == 0));
            clones += 1;
        }
    });
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_clone_of_a_file_to_itself_is_checked_like_others() {
    let device = make_with(64 * MIB, FormatOptions { immutable: true, ..FormatOptions::default() });
    let fs = open(&device);
    let file = put(&fs, Ino::ROOT, "file", b"kept");
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    let errno = |fs: &FileSystem, ino| fs.clone_file(ino, ino).map_err(|e| e.errno());
    assert_eq!(errno(&fs, file), Ok(()));
    assert_eq!(contents(&fs, file), b"kept");
    assert_eq!(errno(&fs, Ino(999_999)), Err(2));
    assert_eq!(errno(&fs, dir), Err(21));
    fs.set_flags(file, FileFlags::IMMUTABLE).unwrap();
    assert_eq!(errno(&fs, file), Err(1));
    fs.close().unwrap();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::open(device, Arc::new(SystemClock::default()), options).unwrap();
    assert_eq!(errno(&fs, file), Err(30));
}

#[test]
fn each_reference_counts_for_a_limit() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let source = put(&fs, Ino::ROOT, "source", &vec![1; MIB as usize]);
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    let limit = SetLimit { bytes: Some(Some(3 * MIB / 2)), ..SetLimit::default() };
    fs.set_limit(dir, limit).unwrap();
    let target = fs.create(dir, b"a", 0o644, OWNER).unwrap().ino;
    fs.clone_file(source, target).unwrap();
    assert_eq!(fs.limit_of(dir).unwrap().unwrap().bytes, MIB);
    let other = fs.create(dir, b"b", 0o644, OWNER).unwrap().ino;
    fs.write(other, 0, b"kept").unwrap();
    assert_eq!(fs.clone_file(source, other).unwrap_err().errno(), 122);
    assert_eq!(contents(&fs, other), b"kept", "after a clone that was refused");
    fs.clone_range(source, 0, other, 0, MIB / 2).unwrap();
    assert_eq!(fs.limit_of(dir).unwrap().unwrap().bytes, 3 * MIB / 2);
    // The range replaces as many blocks, so the limit allows it.
    fs.clone_range(source, MIB / 2, other, 0, MIB / 2).unwrap();
    fs.unlink(dir, b"a").unwrap();
    assert_eq!(fs.limit_of(dir).unwrap().unwrap().bytes, MIB / 2);
    fs.close().unwrap();
    assert_clean(&device);
}

/// While two files of different lengths are cloned to a third, a reader sees one or the other.
#[test]
fn a_clone_of_a_file_is_one_change_for_readers() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let sources = [vec![1; 9000], vec![2; 70_000]];
    let inos = [put(&fs, Ino::ROOT, "one", &sources[0]), put(&fs, Ino::ROOT, "two", &sources[1])];
    let target = put(&fs, Ino::ROOT, "target", &sources[0]);
    let (end, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut found = vec![0; 80_000];
            while !end.load(Ordering::Relaxed) {
                let read = fs.read(target, 0, &mut found).unwrap();
                assert!(sources.iter().any(|source| *source == found[..read]), "{read} bytes");
                let size = fs.getattr(target).unwrap().size as usize;
                assert!(sources.iter().any(|source| source.len() == size), "{size} bytes");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut clones = 0;
        while clones < 300 || reads.load(Ordering::Relaxed) < 300 {
            fs.clone_file(inos[clones % 2], target).unwrap();
            clones += 1;
        }
        end.store(true, Ordering::Relaxed);
    });
    fs.close().unwrap();
    assert_clean(&device);
}

/// Clones files with more extents, more counts or more checksums than one record takes.
#[test]
fn clones_of_files_that_no_record_holds_are_whole() {
    for data_checksums in [false, true] {
        let options = FormatOptions { log_size: Some(8 * MIB), data_checksums, ..FormatOptions::default() };
        let device = make_with(128 * MIB, options);
        let fs = open(&device);
        let mut rng = SmallRng::seed_from_u64(5);
        let [few, many, long, target] = ["few", "many", "long", "target"].map(|name| new(&fs, name));
        fs.write(few, 0, &noise(&mut rng, 50_000)).unwrap();
        for n in 0..400 {
            fs.write(many, n * 3 * BLOCK, &noise(&mut rng, 5000)).unwrap();
        }
        fs.write(long, 0, &noise(&mut rng, 20 * MIB as usize)).unwrap();
        truncate(&fs, long, 21 * MIB);
        for source in [few, many, few, long, many, long, few] {
            fs.clone_file(source, target).unwrap();
            assert_eq!(contents(&fs, target), contents(&fs, source));
            fs.fsync(target, false).unwrap();
            // Gives single blocks of the source's extents other counts.
            for n in 0..300 {
                fs.clone_range(source, n % 12 * BLOCK, target, (1000 + 2 * n) * BLOCK, BLOCK).unwrap();
            }
        }
        fs.close().unwrap();
        assert_clean(&device);
    }
}

/// The files of a tree with their expected contents.
struct Model {
    root: Ino,
    files: BTreeMap<String, Vec<u8>>,
}

impl Model {
    fn ino(&self, fs: &FileSystem, name: &str) -> Ino {
        fs.lookup(self.root, name.as_bytes()).unwrap().ino
    }

    fn verify(&self, fs: &FileSystem, seed: u64, step: usize) {
        for (name, shall) in &self.files {
            let is = contents(fs, self.ino(fs, name));
            let first = is.iter().zip(shall).position(|(a, b)| a != b);
            assert!(
                is == *shall,
                "seed {seed}, step {step}: {name} differs at byte {first:?}, \
                size {} for {}",
                is.len(),
                shall.len()
            );
        }
    }

    /// Makes one random change.
    fn change(&mut self, fs: &FileSystem, rng: &mut SmallRng) {
        let name = format!("f{}", rng.random_range(0..5));
        if !self.files.contains_key(&name) {
            fs.create(self.root, name.as_bytes(), 0o644, OWNER).unwrap();
            self.files.insert(name, Vec::new());
            return;
        }
        let ino = self.ino(fs, &name);
        let size = self.files[&name].len() as u64;
        let at = rng.random_range(0..=size + 2 * BLOCK);
        let len = match rng.random_range(0..3) {
            0 => rng.random_range(1..600),
            1 => rng.random_range(1..3 * BLOCK),
            _ => rng.random_range(1..30 * BLOCK),
        };
        let blocks = |n: u64| n / BLOCK * BLOCK;
        match rng.random_range(0..22) {
            0..=4 => {
                let data = noise(rng, len as usize);
                let mode = WriteMode::default().with_through(rng.random_range(0..4) == 0);
                assert_eq!(fs.write_with(ino, at, &data, mode).unwrap() as u64, len);
                let shall = self.files.get_mut(&name).unwrap();
                shall.resize(shall.len().max((at + len) as usize), 0);
                shall[at as usize..(at + len) as usize].copy_from_slice(&data);
            }
            5 => {
                truncate(fs, ino, at);
                self.files.get_mut(&name).unwrap().resize(at as usize, 0);
            }
            6 | 7 => {
                let mode = match rng.random_range(0..2) {
                    0 => FallocateMode::PunchHole,
                    _ => FallocateMode::ZeroRange { keep_size: true },
                };
                fs.fallocate(ino, mode, at, len).unwrap();
                let shall = self.files.get_mut(&name).unwrap();
                let end = ((at + len) as usize).min(shall.len());
                shall[(at as usize).min(end)..end].fill(0);
            }
            8 => {
                fs.fallocate(ino, FallocateMode::Allocate { keep_size: true }, at, len).unwrap();
            }
            9 => {
                let (at, len) = (blocks(at), blocks(len).max(BLOCK));
                if at + len < size {
                    fs.fallocate(ino, FallocateMode::CollapseRange, at, len).unwrap();
                    self.files.get_mut(&name).unwrap().drain(at as usize..(at + len) as usize);
                }
            }
            10 => {
                let (at, len) = (blocks(at), blocks(len).max(BLOCK));
                if at < size {
                    fs.fallocate(ino, FallocateMode::InsertRange, at, len).unwrap();
                    let shall = self.files.get_mut(&name).unwrap();
                    shall.splice(at as usize..at as usize, vec![0; len as usize]);
                }
            }
            11 => {
                fs.unlink(self.root, name.as_bytes()).unwrap();
                self.files.remove(&name);
            }
            12 => fs.fsync(ino, rng.random_range(0..2) == 0).unwrap(),
            13 => fs.checkpoint().unwrap(),
            _ => self.clone_some(fs, rng, &name, ino),
        }
        // Keeps the small images of the test from becoming full.
        if self.files.values().map(Vec::len).sum::<usize>() > 6 * MIB as usize {
            let largest = self.files.iter().max_by_key(|(_, data)| data.len()).unwrap().0.clone();
            truncate(fs, self.ino(fs, &largest), 0);
            self.files.get_mut(&largest).unwrap().clear();
        }
    }

    fn clone_some(&mut self, fs: &FileSystem, rng: &mut SmallRng, name: &str, ino: Ino) {
        let other = self.files.keys().nth(rng.random_range(0..self.files.len())).unwrap().clone();
        let source = self.ino(fs, &other);
        let data = self.files[&other].clone();
        if rng.random_range(0..3) == 0 {
            fs.clone_file(source, ino).unwrap();
            self.files.insert(name.to_owned(), data);
            return;
        }
        let from = rng.random_range(0..=data.len() as u64) / BLOCK * BLOCK;
        let to = rng.random_range(0..=self.files[name].len() as u64 + 3 * BLOCK) / BLOCK * BLOCK;
        let mut len = rng.random_range(0..20) * BLOCK;
        if from + len >= data.len() as u64 {
            len = data.len() as u64 - from; // up to the end of the source
        }
        let shall = self.files.get_mut(name).unwrap();
        let is_whole = len.is_multiple_of(BLOCK);
        let overlaps = source == ino
            && from < (to + len).next_multiple_of(BLOCK)
            && to < (from + len).next_multiple_of(BLOCK);
        if len == 0 || overlaps || !is_whole && to + len < shall.len() as u64 {
            return;
        }
        fs.clone_range(source, from, ino, to, len).unwrap();
        shall.resize(shall.len().max((to + len) as usize), 0);
        shall[to as usize..(to + len) as usize].copy_from_slice(&data[from as usize..(from + len) as usize]);
    }
}

fn random_changes(seed: u64, data_checksums: bool, steps: usize) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut device = make_with(
        96 * MIB,
        FormatOptions { log_size: Some(4 * MIB), data_checksums, ..FormatOptions::default() },
    );
    let mut fs = open(&device);
    let empty = free(&fs);
    let mut trees = vec![Model { root: Ino::ROOT, files: BTreeMap::new() }];
    for step in 0..steps {
        let which = rng.random_range(0..trees.len());
        trees[which].change(&fs, &mut rng);
        match rng.random_range(0..60) {
            0 if trees.len() < 4 => {
                let name = format!("fork{step}");
                let root = fs.fork(trees[which].root, Ino::ROOT, name.as_bytes(), false).unwrap().ino;
                let files = trees[which].files.clone();
                trees.push(Model { root, files });
            }
            1 if trees.len() > 1 => {
                let gone = trees.remove(rng.random_range(1..trees.len()));
                let name = fs.path_of(gone.root).unwrap();
                fs.delete_tree(Ino::ROOT, name.strip_prefix(b"/").unwrap_or(&name)).unwrap();
                if rng.random_range(0..2) == 0 {
                    fs.reclaim().unwrap();
                }
            }
            2 => {
                fs.sync().unwrap();
                assert_clean(&device);
                trees.iter().for_each(|tree| tree.verify(&fs, seed, step));
            }
            3 => {
                // A copy of the device is opened, as after the death of the process. The sync
                // before it preserves everything.
                fs.sync().unwrap();
                drop(fs);
                device = Arc::new(device.fork());
                fs = open(&device);
                trees.iter().for_each(|tree| tree.verify(&fs, seed, step));
            }
            _ => {}
        }
    }
    trees.iter().for_each(|tree| tree.verify(&fs, seed, steps));
    while trees.len() > 1 {
        let gone = trees.pop().unwrap();
        let name = fs.path_of(gone.root).unwrap();
        fs.delete_tree(Ino::ROOT, name.strip_prefix(b"/").unwrap_or(&name)).unwrap();
        fs.reclaim().unwrap();
    }
    fs.sync().unwrap();
    assert_clean(&device);
    trees[0].verify(&fs, seed, steps);
    for name in trees[0].files.keys() {
        fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    }
    fs.reclaim().unwrap();
    let after = free(&fs);
    assert!(empty - after <= 24, "seed {seed}: {empty} blocks were free, {after} are");
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn random_changes_are_those_of_copies() {
    for seed in 0..12 {
        random_changes(seed, false, 400);
    }
}

#[test]
fn random_changes_with_checksums_are_those_of_copies() {
    for seed in 100..106 {
        random_changes(seed, true, 400);
    }
}

#[test]
fn only_one_of_the_files_has_checksums() {
    let device = make_with(
        64 * MIB,
        FormatOptions { log_size: Some(4 * MIB), data_checksums: true, ..FormatOptions::default() },
    );
    let fs = open(&device);
    let source = put(&fs, Ino::ROOT, "source", &[1; 8192]);
    let target = new(&fs, "target");
    fs.set_flags(target, FileFlags::NOCOW).unwrap();
    assert!(matches!(fs.clone_file(source, target), Err(Error::Invalid(_))));
    let other = new(&fs, "other");
    fs.clone_file(source, other).unwrap();
    fs.write(other, 100, b"x").unwrap();
    fs.sync().unwrap();
    assert_eq!(contents(&fs, source), [1; 8192]);
    fs.close().unwrap();
    assert_clean(&device);
}
