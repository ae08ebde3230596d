//! An image becomes smaller while it is in use: what lies beyond the new end moves.

use crate::common::images::{assert_clean, open};
use kedge_base::{IoBuf, SystemClock};
use kedge_device::{Device, MemDevice};
use kedge_format::alloc::GROUP_BLOCKS;
use kedgefs::{FallocateMode, FileFlags, FileSystem, FormatOptions, Ino, MountOptions, Owner};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const MIB: u64 = 1 << 20;
const GROUP: u64 = GROUP_BLOCKS * 4096;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn make_with(size: u64, options: FormatOptions) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    let options = FormatOptions { size: Some(size), log_size: Some(4 * MIB), ..options };
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

fn make(size: u64) -> Arc<MemDevice> {
    make_with(size, FormatOptions::default())
}

fn size(fs: &FileSystem) -> u64 {
    fs.statfs().blocks * 4096
}

fn content(i: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (i as usize + at / 4096 + at) as u8).collect()
}

fn create(fs: &FileSystem, dir: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = fs.create(dir, name.as_bytes(), 0o644, OWNER).unwrap().ino;
    assert_eq!(fs.write(ino, 0, data).unwrap(), data.len());
    fs.fsync(ino, false).unwrap();
    ino
}

fn has(fs: &FileSystem, name: &str, data: &[u8]) {
    has_in(fs, Ino::ROOT, name, data);
}

fn has_in(fs: &FileSystem, dir: Ino, name: &str, data: &[u8]) {
    let ino = fs.lookup(dir, name.as_bytes()).unwrap().ino;
    assert_eq!(fs.getattr(ino).unwrap().size, data.len() as u64, "{name}");
    let mut is = vec![0; data.len()];
    assert_eq!(fs.read(ino, 0, &mut is).unwrap(), is.len());
    assert!(is == data, "{name}");
}

/// Fills the image and keeps only each `nth` file of 64 KiB, so that files are left everywhere.
fn scatter(fs: &FileSystem, nth: u64) -> Vec<u64> {
    let mut files = 0;
    while fs.statfs().blocks_available > 256 {
        create(fs, Ino::ROOT, &files.to_string(), &content(files, 65_536));
        files += 1;
    }
    let (kept, gone): (Vec<u64>, Vec<u64>) = (0..files).partition(|i| i % nth == nth - 1);
    gone.iter().for_each(|i| fs.unlink(Ino::ROOT, i.to_string().as_bytes()).unwrap());
    kept
}

fn all_there(fs: &FileSystem, kept: &[u64]) {
    kept.iter().for_each(|i| has(fs, &i.to_string(), &content(*i, 65_536)));
}

#[test]
fn an_image_shrinks_to_the_size_that_it_names_and_keeps_its_files() {
    for group_sizes in [64 * MIB, 3 * GROUP + 20 * MIB] {
        let device = make(group_sizes);
        let fs = open(&device);
        let kept = scatter(&fs, 8);
        fs.sync().unwrap();
        let refused = fs.resize(Some(15 * MIB)).unwrap_err();
        assert_eq!(refused.errno(), 22, "{refused}");
        let smallest = fs.smallest();
        assert!(refused.to_string().contains(&format!("the smallest size is {smallest}")), "{refused}");
        assert!(smallest < group_sizes / 2, "{smallest}");
        assert_eq!(size(&fs), group_sizes);
        // Two steps, the second to the smallest possible size.
        for to in [group_sizes / 4 * 3, fs.smallest()] {
            let free = fs.statfs().blocks_free;
            let went = (size(&fs) - to) / 4096;
            assert_eq!(fs.resize(Some(to)).unwrap(), to);
            assert_eq!((size(&fs), device.geometry().size), (to, to));
            assert!(fs.statfs().blocks_free + went <= free + 1024, "{:?}, {free}", fs.statfs());
            assert_clean(&device);
            all_there(&fs, &kept);
        }
        // The smaller image works as before.
        fs.unlink(Ino::ROOT, kept[0].to_string().as_bytes()).unwrap();
        fs.sync().unwrap();
        create(&fs, Ino::ROOT, "new", &content(7, 20_000));
        drop(fs);
        let fs = open(&device);
        assert_eq!(fs.resize(Some(group_sizes)).unwrap(), group_sizes);
        all_there(&fs, &kept[1..]);
        has(&fs, "new", &content(7, 20_000));
        create(&fs, Ino::ROOT, "large", &content(9, 8 << 20));
        fs.close().unwrap();
        assert_clean(&device);
    }
}

/// Allocation maps in the data area stay, return to their place before the log, or move to free
/// blocks.
#[test]
fn moved_maps_lie_below_the_new_end() {
    let device = make(32 * MIB);
    let fs = open(&device);
    create(&fs, Ino::ROOT, "first", &content(1, 3 << 20));
    let sizes = [
        3 * GROUP,           // the maps move to the end of the first 32 MiB
        9 * GROUP + 3 * MIB, // the maps move to the end of the three groups
        6 * GROUP,           // the maps stay, and become shorter
        2 * GROUP + 5 * MIB, // the maps lie beyond the new end, and move
        4 * GROUP + 9 * MIB, // the maps move again
        GROUP / 2,           // the maps move back before the log
        5 * GROUP,
        24 * MIB,
    ];
    for (i, to) in sizes.into_iter().enumerate() {
        let name = format!("file {i}");
        assert_eq!(fs.resize(Some(to)).unwrap(), to, "step {i}");
        assert_clean(&device);
        create(&fs, Ino::ROOT, &name, &content(i as u64, 1 << 20));
        has(&fs, "first", &content(1, 3 << 20));
        assert_clean(&device);
    }
    fs.close().unwrap();
    let fs = open(&device);
    assert_eq!(size(&fs), 24 * MIB);
    for i in 0..sizes.len() {
        has(&fs, &format!("file {i}"), &content(i as u64, 1 << 20));
    }
}

/// Moves files with and without checksums, preallocated blocks, and bytes that are only in the log.
#[test]
fn all_kinds_of_blocks_move() {
    let device = make_with(64 * MIB, FormatOptions { data_checksums: true, ..FormatOptions::default() });
    let fs = open(&device);
    let filler = create(&fs, Ino::ROOT, "filler", &content(0, 38 << 20));
    let summed = create(&fs, Ino::ROOT, "summed", &content(1, 3 << 20));
    let plain_dir = fs.mkdir(Ino::ROOT, b"plain", 0o755, OWNER).unwrap().ino;
    fs.set_flags(plain_dir, FileFlags::NOCOW).unwrap();
    let plain = create(&fs, plain_dir, "plain", &content(2, 1 << 20));
    let empty = create(&fs, Ino::ROOT, "empty", &[]);
    fs.fallocate(empty, FallocateMode::Allocate { keep_size: false }, 0, 2 << 20).unwrap();
    fs.write(empty, 1 << 20, &content(3, 10_000)).unwrap();
    fs.fallocate(empty, FallocateMode::Allocate { keep_size: true }, 2 << 20, 40_960).unwrap();
    fs.sync().unwrap();
    let blocks = fs.getattr(empty).unwrap().blocks;
    // These bytes are in the log and have no block yet.
    fs.write(summed, 5_000, &[9; 100]).unwrap();
    fs.fsync(summed, false).unwrap();
    // These bytes are dirty and not in the log.
    fs.write(plain, 7_000, &[8; 100]).unwrap();
    let times = fs.getattr(empty).unwrap();
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    let _ = filler;
    assert_eq!(fs.resize(Some(28 * MIB)).unwrap(), 28 * MIB);
    assert_clean(&device);
    let left = Arc::new(device.fork());
    drop(fs);
    for device in [left, device] {
        let fs = open(&device);
        let mut summed = content(1, 3 << 20);
        summed[5_000..5_100].fill(9);
        has(&fs, "summed", &summed);
        let mut is = vec![0; 1 << 20];
        assert_eq!(fs.read(plain, 0, &mut is).unwrap(), is.len());
        let mut bytes = content(2, 1 << 20);
        bytes[7_000..7_100].fill(8);
        assert!(is == bytes, "it was synced with the shrink");
        let mut bytes = vec![0; 2 << 20];
        bytes[1 << 20..][..10_000].copy_from_slice(&content(3, 10_000));
        has(&fs, "empty", &bytes);
        let now = fs.getattr(empty).unwrap();
        assert_eq!((now.blocks, now.mtime, now.ctime), (blocks, times.mtime, times.ctime));
        fs.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let device = make(64 * MIB);
    let fs = open(&device);
    fs.freeze().unwrap();
    assert_eq!(fs.resize(Some(32 * MIB)).unwrap_err().errno(), 16);
    fs.thaw().unwrap();
    assert!(fs.resize(Some(15 * MIB)).unwrap_err().to_string().contains("the smallest size is"));
    // These blocks belong to a snapshot too.
    create(&fs, Ino::ROOT, "filler", &content(0, 35 << 20));
    create(&fs, Ino::ROOT, "kept", &content(1, 1 << 20));
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.fork(Ino::ROOT, Ino::ROOT, b"monday", true).unwrap();
    let refused = fs.resize(Some(32 * MIB)).unwrap_err();
    assert!(refused.errno() == 22 && refused.to_string().contains("monday"), "{refused}");
    assert_eq!((size(&fs), device.geometry().size), (64 * MIB, 64 * MIB));
    // After the refusal the limit is gone: the whole image can be used.
    create(&fs, Ino::ROOT, "large", &content(5, 45 << 20));
    fs.unlink(Ino::ROOT, b"large").unwrap();
    fs.delete_tree(Ino::ROOT, b"monday").unwrap();
    fs.reclaim().unwrap();
    assert_eq!(fs.resize(Some(32 * MIB)).unwrap(), 32 * MIB);
    fs.close().unwrap();
    assert_clean(&device);
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), Arc::new(SystemClock::default()), read_only).unwrap();
    assert_eq!(fs.resize(Some(30 * MIB)).unwrap_err().errno(), 30);
}

/// Files that share blocks beyond the new end share their copies below it afterwards.
#[test]
fn clones_move_together() {
    let device = make(64 * MIB);
    let fs = open(&device);
    create(&fs, Ino::ROOT, "filler", &content(0, 35 << 20));
    let mut bytes = vec![content(1, 3 << 20); 4];
    let source = create(&fs, Ino::ROOT, "0", &bytes[0]);
    let clones: Vec<Ino> = (1..4).map(|n| create(&fs, Ino::ROOT, &n.to_string(), &[])).collect();
    clones.iter().for_each(|clone| fs.clone_file(source, *clone).unwrap());
    // Some blocks are not shared by all files any more, and one range is a clone of a part.
    for at in (0..40).map(|n| n * 65_536) {
        fs.write(clones[0], at, &[9; 4096]).unwrap();
        bytes[1][at as usize..][..4096].fill(9);
    }
    let range = 1 << 20..2 << 20;
    fs.clone_range(source, range.start, clones[1], 0, range.end - range.start).unwrap();
    let part = bytes[0][range.start as usize..range.end as usize].to_vec();
    bytes[2][..part.len()].copy_from_slice(&part);
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.sync().unwrap();
    let used = |fs: &FileSystem| fs.statfs().blocks - fs.statfs().blocks_free;
    let before = used(&fs);
    assert_eq!(fs.resize(Some(32 * MIB)).unwrap(), 32 * MIB);
    // The maps and the log do not take more. A file that no longer shared would add 768 blocks.
    assert!(used(&fs) < before + 100, "{} blocks, {before} before", used(&fs));
    for (n, bytes) in bytes.iter().enumerate() {
        has(&fs, &n.to_string(), bytes);
    }
    // Changes of one file do not affect the others.
    fs.write(source, 0, &[5; 8192]).unwrap();
    bytes[0][..8192].fill(5);
    fs.unlink(Ino::ROOT, b"3").unwrap();
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    for (n, bytes) in bytes[..3].iter().enumerate() {
        has(&fs, &n.to_string(), bytes);
    }
    fs.close().unwrap();
}

/// The blocks within the image that contain only this byte.
fn places(device: &MemDevice, byte: u8) -> Vec<u64> {
    let mut buf = IoBuf::zeroed(1);
    let mut found = Vec::new();
    for block in 0..device.geometry().size / 4096 {
        device.read(block * 4096, &mut buf).unwrap();
        if buf.as_bytes().iter().all(|is| *is == byte) {
            found.push(block);
        }
    }
    found
}

/// Blocks of a point cannot move. The error names the trees that have the point, and comes before
/// anything has moved.
#[test]
fn blocks_of_forks_are_refused_by_name() {
    let device = make(64 * MIB);
    let fs = open(&device);
    fs.fork(Ino::ROOT, Ino::ROOT, b"before", true).unwrap();
    create(&fs, Ino::ROOT, "filler", &content(0, 35 << 20));
    create(&fs, Ino::ROOT, "shared", &content(1, 1 << 20));
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.sync().unwrap();
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    fs.fork(fork, fork, b"inner", true).unwrap();
    // Below the new end only blocks of the filler are free, so `own` is beyond the end until it
    // moves.
    create(&fs, Ino::ROOT, "filler", &content(0, 36 << 20));
    create(&fs, Ino::ROOT, "own", &vec![0xa7; 1 << 20]);
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.sync().unwrap();
    let own = places(&device, 0xa7);
    assert!(own.len() == 256 && own[0] >= 8192, "{own:?}");
    let refused = fs.resize(Some(32 * MIB)).unwrap_err();
    assert!(refused.to_string().ends_with("until these are deleted: fork, inner"), "{refused}");
    assert_eq!((size(&fs), places(&device, 0xa7)), (64 * MIB, own));
    has(&fs, "shared", &content(1, 1 << 20));
    assert_clean(&device);
    // The shrink frees the space of deleted trees first.
    fs.delete_tree(fork, b"inner").unwrap();
    fs.delete_tree(Ino::ROOT, b"fork").unwrap();
    assert_eq!(fs.resize(Some(32 * MIB)).unwrap(), 32 * MIB);
    assert_eq!(places(&device, 0xa7).len(), 256);
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    has(&fs, "shared", &content(1, 1 << 20));
    has(&fs, "own", &vec![0xa7; 1 << 20]);
}

/// Files, clones and nodes that only a fork or only the first tree has move. Blocks that files of
/// the tree shared are still shared.
#[test]
fn what_a_tree_has_alone_moves() {
    let device = make(64 * MIB);
    let fs = open(&device);
    create(&fs, Ino::ROOT, "shared", &content(1, 1 << 20));
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    fs.fork(fork, Ino::ROOT, b"snapshot", true).unwrap();
    create(&fs, Ino::ROOT, "filler", &content(0, 40 << 20));
    for (n, dir) in [Ino::ROOT, fork].into_iter().enumerate() {
        let n = n as u64;
        for i in 0..60 {
            create(&fs, dir, &format!("{i}"), &content(i + n, 40_000));
        }
        let source = create(&fs, dir, "cloned", &content(70 + n, 500_000));
        let clone = create(&fs, dir, "clone", &[]);
        fs.clone_file(source, clone).unwrap();
    }
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.sync().unwrap();
    let used = |fs: &FileSystem| fs.statfs().blocks - fs.statfs().blocks_free;
    let before = used(&fs);
    assert_eq!(fs.resize(Some(32 * MIB)).unwrap(), 32 * MIB);
    assert_clean(&device);
    // The maps do not take more. Two files that no longer shared would add 244 blocks.
    assert!(used(&fs) < before + 100, "{} blocks, {before} before", used(&fs));
    drop(fs);
    let fs = open(&device);
    let fork = fs.lookup(Ino::ROOT, b"fork").unwrap().ino;
    for (n, dir) in [Ino::ROOT, fork].into_iter().enumerate() {
        let n = n as u64;
        has_in(&fs, dir, "shared", &content(1, 1 << 20));
        for i in 0..60 {
            has_in(&fs, dir, &format!("{i}"), &content(i + n, 40_000));
        }
        has_in(&fs, dir, "cloned", &content(70 + n, 500_000));
        has_in(&fs, dir, "clone", &content(70 + n, 500_000));
    }
    fs.close().unwrap();
    assert_clean(&device);
}

/// Files are written, fsynced, renamed and deleted while the image shrinks and grows. Then the
/// process dies.
#[test]
fn writers_go_on_while_the_image_shrinks() {
    let device = make(3 * GROUP);
    let fs = open(&device);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4u64)
        .map(|w| {
            let (fs, stop) = (fs.clone(), stop.clone());
            kedge_base::spawn_named("writer", move || {
                let mut files = 0u64;
                while !stop.load(SeqCst) {
                    let (name, len) = (format!("{w}-{files}"), 1 + (files as usize * 7919) % 300_000);
                    create(&fs, Ino::ROOT, &name, &content(files, len));
                    files += 1;
                    if files > 20 {
                        fs.unlink(Ino::ROOT, format!("{w}-{}", files - 20).as_bytes()).unwrap();
                    }
                }
                files
            })
            .unwrap()
        })
        .collect();
    for round in 0..6 {
        for to in [GROUP + 5 * MIB, 64 * MIB, 48 * MIB + 4096 * round, 3 * GROUP] {
            assert_eq!(fs.resize(Some(to)).unwrap(), to);
            assert_clean(&device);
        }
    }
    assert_eq!(fs.resize(Some(52 * MIB)).unwrap(), 52 * MIB);
    stop.store(true, SeqCst);
    let made: Vec<u64> = writers.into_iter().map(|w| w.join().unwrap()).collect();
    let left = Arc::new(device.fork());
    drop(fs);
    assert_clean(&left);
    let fs = open(&left);
    assert_eq!(size(&fs), 52 * MIB);
    for (w, files) in made.iter().enumerate() {
        assert!(*files > 20, "{files}");
        for i in files - 18..*files {
            has(&fs, &format!("{w}-{i}"), &content(i, 1 + (i as usize * 7919) % 300_000));
        }
    }
}

/// In an image with a tree of many nodes, the nodes beyond the end move, although the node cache is
/// small.
#[test]
fn nodes_beyond_the_end_move() {
    let device = make(2 * GROUP);
    let small = MountOptions { cache_size: 16 << 20, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), Arc::new(SystemClock::default()), small).unwrap();
    fs.fork(Ino::ROOT, Ino::ROOT, b"fork", true).unwrap();
    create(&fs, Ino::ROOT, "filler", &content(0, 120 << 20));
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    for i in 0..20_000 {
        fs.create(dir, format!("a file with a long name that fills nodes {i}").as_bytes(), 0o644, OWNER)
            .unwrap();
    }
    fs.sync().unwrap();
    // Makes the table of trees get nodes beyond the new end too.
    fs.rename_tree(Ino::ROOT, b"fork", Ino::ROOT, b"snapshot").unwrap();
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    let to = 64 * MIB;
    assert_eq!(fs.resize(Some(to)).unwrap(), to);
    assert_clean(&device);
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    assert!(fs.lookup(dir, b"a file with a long name that fills nodes 19999").is_ok());
}
