//! No operation needs more log space or tree nodes than it has reserved, and no thread waits for
//! either while it holds some. The debug build asserts both at each commit. These tests make the
//! records that need the most.

#![allow(clippy::disallowed_methods)]

use kedge_base::{HANG, spawn_named};
use kedge_device::MemDevice;
use kedgefs::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

fn new(size: u64, log: u64) -> Arc<FileSystem> {
    open(&formatted(size, log))
}

fn formatted(size: u64, log: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    let options = FormatOptions { log_size: Some(log), ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

fn open(device: &Arc<MemDevice>) -> Arc<FileSystem> {
    let clock = Arc::new(SystemClock::default());
    Arc::new(FileSystem::open(device.clone(), clock, MountOptions::default()).unwrap())
}

fn create(fs: &FileSystem, name: &str) -> Ino {
    fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default()).unwrap().ino
}

/// Like a database that preallocates: the middle block of each file is only in the log. Writing it
/// in place splits an unwritten extent into three.
#[test]
fn logged_middles_of_unwritten_extents_fit_one_pass() {
    let fs = new(256 * MIB, 16 * MIB);
    for n in 0..256 {
        let ino = create(&fs, &format!("{n}"));
        fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 0, 3 * BLOCK).unwrap();
        fs.write(ino, BLOCK, &[(n % 255) as u8 + 1; BLOCK as usize]).unwrap();
        fs.fsync(ino, false).unwrap();
    }
    // The same number of extents in a single file, whose pass reserves only for its own pages.
    let ino = create(&fs, "pieces");
    for n in 0..200 {
        fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 8 * n * BLOCK, 3 * BLOCK).unwrap();
        fs.write(ino, (8 * n + 1) * BLOCK, &[7; 100]).unwrap();
        fs.fsync(ino, false).unwrap();
    }
    fs.checkpoint().unwrap();
    fs.close().unwrap();
}

/// Runs `bodies` in threads. Fails if they do not end, since that is a deadlock.
fn all_end(what: &str, bodies: Vec<Box<dyn FnOnce() + Send>>) {
    let (count, left) = (bodies.len(), Arc::new(AtomicUsize::new(bodies.len())));
    let failed = Arc::new(AtomicBool::new(false));
    for body in bodies {
        let (left, failed) = (left.clone(), failed.clone());
        let run = move || {
            failed.fetch_or(
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err(),
                Ordering::SeqCst,
            );
            left.fetch_sub(1, Ordering::SeqCst);
        };
        spawn_named("one of many", run).unwrap();
    }
    const POLL: Duration = Duration::from_millis(50);
    for _ in 0..HANG.as_millis() / POLL.as_millis() {
        if left.load(Ordering::SeqCst) == 0 {
            assert!(!failed.load(Ordering::SeqCst), "{what}: a thread has failed");
            return;
        }
        std::thread::sleep(POLL);
    }
    panic!("{what}: {} of {count} threads hang", left.load(Ordering::SeqCst));
}

/// A file in which every second block has an extent of its own.
fn fragmented(fs: &FileSystem, name: &str, extents: u64) -> Ino {
    let ino = create(fs, name);
    for n in 0..extents {
        fs.write(ino, 2 * n * BLOCK, &[1; 4096]).unwrap();
    }
    fs.fsync(ino, false).unwrap();
    ino
}

#[test]
fn many_truncates_of_one_fragmented_file_end() {
    const THREADS: u64 = 32;
    let fs = new(256 * MIB, MIB);
    for round in 0..4 {
        let ino = fragmented(&fs, &format!("fragmented {round}"), 24_000);
        let start = Arc::new(Barrier::new(THREADS as usize));
        let mut bodies: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        for n in 0..THREADS {
            let (fs, start) = (fs.clone(), start.clone());
            bodies.push(Box::new(move || {
                start.wait();
                for size in [(THREADS - n) * 1400 * BLOCK, (n % 3) * BLOCK] {
                    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
                }
            }));
        }
        for n in 0..4 {
            let fs = fs.clone();
            bodies.push(Box::new(move || {
                for m in 0..50 {
                    create(&fs, &format!("beside {round} {n} {m}"));
                }
            }));
        }
        all_end("truncate and create", bodies);
    }
}

/// Fills the rest of the image with one file.
fn fill(fs: &FileSystem, name: &str) -> Ino {
    let ino = create(fs, name);
    let (mut at, mut len) = (0, MIB);
    while len >= BLOCK {
        match fs.write(ino, at, &vec![3; len as usize]) {
            Ok(n) => at += n as u64,
            Err(_) => len /= 2,
        }
    }
    ino
}

/// Makes files with two names, each of which fills a leaf of the tree.
fn apart(fs: &FileSystem, count: u64) {
    for n in 0..count {
        let ino = create(fs, &format!("apart {n}"));
        fs.link(ino, Ino::ROOT, format!("second {n}").as_bytes()).unwrap();
        for m in 0..3 {
            fs.setxattr(ino, format!("user.{m}").as_bytes(), &[1; 3900], XattrMode::Any).unwrap();
        }
    }
}

/// Makes a file whose extents are in about 100 leaves of the tree, each more than a quarter full.
/// Returns the file, and the offset of a hole in each of these leaves.
fn spread(fs: &FileSystem, name: &str) -> (Ino, Vec<u64>) {
    // Extents that are created in descending order leave half-full leaves, with some 200 extents
    // each.
    const LEAF: u64 = 200;
    const END: u64 = 24_000;
    let (ino, mut end) = (create(fs, name), END);
    for count in [10_000, 6_000, 3_500, 1_500] {
        for n in (end - count..end).rev() {
            fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 2 * n * BLOCK, BLOCK).unwrap();
        }
        // Frees space for the next extents. More holes would make leaves merge. The punched blocks
        // are adjacent, since no node would fit between single blocks.
        for n in (end - count..end).filter(|n| n % 16 < 7) {
            fs.fallocate(ino, FallocateMode::PunchHole, 2 * n * BLOCK, BLOCK).unwrap();
        }
        fs.checkpoint().unwrap();
        end -= count;
    }
    let holes = (end / LEAF + 1..END / LEAF).map(|leaf| 2 * (leaf * LEAF / 16 * 16 + 3) * BLOCK);
    (ino, holes.collect())
}

/// Fills holes in more leaves of the tree than there are free nodes. If one pass of writeback
/// copied all of these leaves, the pool of nodes would be empty, and no operation could free space.
#[test]
fn a_full_image_can_be_emptied_after_fills_of_many_leaves() {
    let fs = new(64 * MIB, 2 * MIB);
    apart(&fs, 45);
    let (wide, holes) = spread(&fs, "wide");
    assert!(holes.len() > 96, "more than the free nodes of a full image: {}", holes.len());
    let other = fill(&fs, "other");
    fs.sync().unwrap();
    fs.fallocate(other, FallocateMode::PunchHole, 0, 200 * BLOCK).unwrap();
    fs.checkpoint().unwrap();
    for hole in &holes {
        fs.write(wide, *hole, &[9; 4096]).unwrap();
    }
    // Each of these changes copies a leaf, whose old node returns to the pool with the next
    // checkpoint.
    for n in 0..30 {
        let ino = fs.lookup(Ino::ROOT, format!("apart {n}").as_bytes()).unwrap().ino;
        fs.setattr(ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    }
    fs.fsync(wide, false).unwrap();
    fs.checkpoint().unwrap();
    for hole in holes {
        let mut is = [0; 4096];
        assert_eq!(fs.read(wide, hole, &mut is).unwrap(), 4096);
        assert!(is == [9; 4096], "the fill at {hole}");
    }
    for n in 0..45 {
        fs.unlink(Ino::ROOT, format!("second {n}").as_bytes()).unwrap();
    }
    fs.setattr(other, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    fs.unlink(Ino::ROOT, b"wide").unwrap();
    fs.unlink(Ino::ROOT, b"other").unwrap();
    let again = create(&fs, "again");
    fs.write(again, 0, &vec![1; 16 << 20]).unwrap();
    fs.sync().unwrap();
    fs.close().unwrap();
}

/// Writeback joins extents while readers run: a write between two extents makes one out of three.
/// Readers see no hole where there is data, and no extents that overlap.
#[test]
fn readers_beside_writeback_see_whole_records() {
    const BLOCKS: u64 = 400;
    const FILES: u64 = 30;
    let device = formatted(128 * MIB, 4 * MIB);
    let fs = open(&device);
    let inos: Vec<Ino> = (0..FILES).map(|n| create(&fs, &format!("{n}"))).collect();
    for ino in &inos {
        fs.fallocate(*ino, FallocateMode::Allocate { keep_size: false }, 0, BLOCKS * BLOCK).unwrap();
        for at in (0..BLOCKS).step_by(2) {
            fs.write(*ino, at * BLOCK, &[7; BLOCK as usize]).unwrap();
        }
        fs.fsync(*ino, false).unwrap();
    }
    fs.close().unwrap();
    // After the open nothing is cached, so readers search the extents of all blocks that are not
    // rewritten.
    let fs = open(&device);
    let current = Arc::new(AtomicUsize::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let reader = |first: u64| {
        let (fs, over, current, inos) = (fs.clone(), over.clone(), current.clone(), inos.clone());
        let read = move || {
            let (mut buf, mut at) = ([0; BLOCK as usize], first);
            while !over.load(Ordering::SeqCst) {
                at = (at + 2) % BLOCKS;
                let ino = inos[current.load(Ordering::SeqCst)];
                let n = fs.read_uncached(ino, at * BLOCK, &mut buf).unwrap();
                assert!(buf[..n] == [7; BLOCK as usize], "a block of data reads as a hole");
            }
        };
        spawn_named("reader", read).unwrap()
    };
    let readers = [0, 100, 200].map(reader);
    for (n, ino) in inos.iter().enumerate() {
        current.store(n, Ordering::SeqCst);
        for at in (1..BLOCKS).step_by(2) {
            fs.write(*ino, at * BLOCK, &[7; BLOCK as usize]).unwrap();
        }
        fs.fsync(*ino, true).unwrap();
    }
    over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.join().unwrap();
    }
    fs.close().unwrap();
}

/// A write larger than the free space writes as much as fits, as on other file systems.
#[test]
fn a_write_that_does_not_fit_is_short() {
    let fs = new(64 * MIB, MIB);
    let ino = create(&fs, "file");
    fill(&fs, "other");
    // Some blocks become free, but fewer than the write needs.
    fs.fallocate(fs.lookup(Ino::ROOT, b"other").unwrap().ino, FallocateMode::PunchHole, 0, 255 * BLOCK)
        .unwrap();
    fs.sync().unwrap();
    let bytes: Vec<u8> = (0..MIB).map(|n| (n % 251) as u8).collect();
    let written = fs.write(ino, 0, &bytes).unwrap();
    assert!((200 * BLOCK as usize..bytes.len()).contains(&written), "{written} bytes");
    assert!(
        matches!(fs.write(ino, written as u64, &bytes), Err(e) if e.errno() == kedge_base::errno::ENOSPC),
        "the rest"
    );
    // A write of the kernel from its cache is written as a whole or refused.
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    fs.sync().unwrap();
    let whole = WriteMode::default().with_whole(true);
    assert!(matches!(fs.write_with(ino, 0, &bytes, whole), Err(e) if e.errno() == kedge_base::errno::ENOSPC));
    let written = fs.write(ino, 0, &bytes).unwrap();
    fs.fsync(ino, false).unwrap();
    let mut is = vec![0; written];
    assert_eq!(fs.read(ino, 0, &mut is).unwrap(), written);
    assert!(is == bytes[..written]);
    fs.close().unwrap();
}

/// An insertion also moves preallocated blocks beyond the end of the file.
#[test]
fn an_insertion_moves_nothing_beyond_the_largest_size() {
    let fs = new(64 * MIB, MIB);
    let ino = create(&fs, "file");
    let last = (1u64 << 55) - 2 * BLOCK;
    fs.write(ino, 0, &[1; 3 * BLOCK as usize]).unwrap();
    fs.fallocate(ino, FallocateMode::Allocate { keep_size: true }, last - 8 * BLOCK, 4 * BLOCK).unwrap();
    let insert = |blocks| fs.fallocate(ino, FallocateMode::InsertRange, BLOCK, blocks * BLOCK);
    insert(3).unwrap();
    assert!(matches!(insert(3), Err(Error::FileTooLarge)));
    assert_eq!(fs.getattr(ino).unwrap().size, 6 * BLOCK, "nothing was changed");
    insert(1).unwrap();
    fs.close().unwrap();
}
