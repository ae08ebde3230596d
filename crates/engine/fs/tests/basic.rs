//! Basic operations in one process: names, data, fsync, reopening, crashing.

use crate::common::images::{assert_clean, open_still};
use kedge_device::MemDevice;
use kedgefs::*;
use std::sync::Arc;

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn fresh(size: u64) -> (Arc<MemDevice>, FileSystem) {
    let device = Arc::new(MemDevice::new(size));
    FileSystem::format(
        device.clone(),
        clock(),
        &FormatOptions { log_size: Some(1 << 20), ..Default::default() },
    )
    .unwrap();
    let fs = FileSystem::open(device.clone(), clock(), MountOptions::default()).unwrap();
    (device, fs)
}

fn content(fs: &FileSystem, ino: Ino) -> Vec<u8> {
    let size = fs.getattr(ino).unwrap().size as usize;
    let mut buf = vec![0; size];
    assert_eq!(fs.read(ino, 0, &mut buf).unwrap(), size);
    buf
}

fn names(fs: &FileSystem, dir: Ino) -> Vec<String> {
    let mut out = Vec::new();
    fs.readdir(dir, 0, &mut |e| {
        out.push(String::from_utf8_lossy(e.name).into_owned());
        true
    })
    .unwrap();
    out.sort();
    out
}

/// A kernel caches what it reads itself, so its reads leave nothing in memory here; reads of a
/// program do. Both return data that is newer than the device.
#[test]
fn an_uncached_read_leaves_nothing_in_memory() {
    let (device, fs) = fresh(32 << 20);
    let ino = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    let mut bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8 ^ (i >> 8) as u8).collect();
    fs.write(ino, 0, &bytes).unwrap();
    fs.close().unwrap();
    let fs = open_still(&device);
    let reads = |fs: &FileSystem| -> u64 {
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
        stats["data"]["reads"].as_u64().unwrap()
    };
    let uncached = |fs: &FileSystem, offset: usize, len: usize| {
        let mut buf = vec![0xff; len];
        let n = fs.read_uncached(ino, offset as u64, &mut buf).unwrap();
        buf.truncate(n);
        buf
    };
    for from_device in 1..=2 {
        assert_eq!(uncached(&fs, 0, 200_000), bytes);
        assert_eq!(reads(&fs), from_device);
    }
    assert_eq!(uncached(&fs, 4095, 5000), bytes[4095..9095]);
    assert_eq!(uncached(&fs, 99_999, 10), bytes[99_999..]);
    // One page that is only in memory, between pages on the device.
    fs.write(ino, 50_000, &[7; 100]).unwrap();
    bytes[50_000..50_100].fill(7);
    assert_eq!(uncached(&fs, 0, 200_000), bytes);
    // From here on the pages are cached.
    assert_eq!(content(&fs, ino), bytes);
    let before = reads(&fs);
    assert_eq!(content(&fs, ino), bytes);
    assert_eq!(uncached(&fs, 0, 200_000), bytes);
    assert_eq!(reads(&fs), before);
}

#[test]
fn a_closed_image_comes_back_as_it_was() {
    let (device, fs) = fresh(32 << 20);
    let d = fs.mkdir(Ino::ROOT, b"d", 0o755, Owner::default()).unwrap();
    for i in 0..500u32 {
        let f = fs.create(d.ino, format!("f{i}").as_bytes(), 0o644, Owner::default()).unwrap();
        fs.write(f.ino, 0, &i.to_le_bytes().repeat(i as usize)).unwrap();
    }
    fs.symlink(d.ino, b"s", b"target", Owner::default()).unwrap();
    fs.setxattr(d.ino, b"user.a", b"v", XattrMode::Any).unwrap();
    fs.close().unwrap();
    let fs = open_still(&device);
    let d = fs.lookup(Ino::ROOT, b"d").unwrap();
    assert_eq!(names(&fs, d.ino).len(), 503);
    for i in 0..500u32 {
        let f = fs.lookup(d.ino, format!("f{i}").as_bytes()).unwrap();
        assert_eq!(content(&fs, f.ino), i.to_le_bytes().repeat(i as usize));
    }
    let s = fs.lookup(d.ino, b"s").unwrap();
    assert_eq!(fs.readlink(s.ino).unwrap(), b"target");
    assert_eq!(fs.getxattr(d.ino, b"user.a").unwrap(), b"v");
    fs.close().unwrap();
}

#[test]
fn fsynced_data_survives_dropping_the_file_system() {
    let (device, fs) = fresh(32 << 20);
    let small = fs.create(Ino::ROOT, b"small", 0o644, Owner::default()).unwrap();
    fs.write(small.ino, 0, b"hello").unwrap();
    fs.fsync(small.ino, false).unwrap();
    let big = fs.create(Ino::ROOT, b"big", 0o644, Owner::default()).unwrap();
    let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i / 7) as u8).collect();
    fs.write(big.ino, 0, &bytes).unwrap();
    fs.fsync(big.ino, true).unwrap();
    fs.write(small.ino, 5, b" world").unwrap();
    fs.fsync(small.ino, true).unwrap();
    drop(fs);
    let fs = open_still(&device);
    let small = fs.lookup(Ino::ROOT, b"small").unwrap();
    assert_eq!(content(&fs, small.ino), b"hello world");
    let big = fs.lookup(Ino::ROOT, b"big").unwrap();
    assert_eq!(content(&fs, big.ino), bytes);
    fs.close().unwrap();
}

#[test]
fn renames_move_replace_and_exchange() {
    let (device, fs) = fresh(32 << 20);
    let a = fs.mkdir(Ino::ROOT, b"a", 0o755, Owner::default()).unwrap();
    let b = fs.mkdir(Ino::ROOT, b"b", 0o755, Owner::default()).unwrap();
    let f = fs.create(a.ino, b"f", 0o644, Owner::default()).unwrap();
    let g = fs.create(b.ino, b"g", 0o644, Owner::default()).unwrap();
    fs.rename(a.ino, b"f", b.ino, b"g", RenameMode::Replace).unwrap();
    assert_eq!(fs.lookup(b.ino, b"g").unwrap().ino, f.ino);
    assert!(fs.getattr(g.ino).is_err());
    assert!(matches!(fs.rename(Ino::ROOT, b"a", a.ino, b"x", RenameMode::Replace), Err(Error::Invalid(_))));
    fs.rename(Ino::ROOT, b"a", b.ino, b"a", RenameMode::Replace).unwrap();
    assert_eq!(fs.getattr(Ino::ROOT).unwrap().nlink, 3);
    assert_eq!(fs.getattr(b.ino).unwrap().nlink, 3);
    fs.rename(b.ino, b"a", b.ino, b"g", RenameMode::Exchange).unwrap();
    assert_eq!(fs.lookup(b.ino, b"a").unwrap().ino, f.ino);
    fs.fsync(b.ino, false).unwrap();
    drop(fs);
    let fs = open_still(&device);
    assert_eq!(names(&fs, b.ino), [".", "..", "a", "g"]);
    fs.close().unwrap();
}

#[test]
fn closing_puts_log_resident_data_in_place() {
    let (device, fs) = fresh(32 << 20);
    let mut inos = Vec::new();
    for i in 0..300u32 {
        let f = fs.create(Ino::ROOT, format!("f{i}").as_bytes(), 0o644, Owner::default()).unwrap();
        fs.write(f.ino, 0, &[i as u8; 100]).unwrap();
        fs.fsync(f.ino, false).unwrap();
        inos.push(f.ino);
    }
    fs.close().unwrap();
    let report = kedge_fsck::check(device.clone(), &kedge_fsck::CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    assert!(report.superblock.as_ref().unwrap().clean);
    let fs = open_still(&device);
    for (i, ino) in inos.iter().enumerate() {
        assert_eq!(content(&fs, *ino), [i as u8; 100]);
    }
}

fn cached_pages(fs: &FileSystem) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    stats["cache"]["pages"].as_u64().unwrap()
}

/// Large writes add 256 pages at a time. Evicting one page for each operation would be too slow.
#[test]
fn a_stream_of_large_writes_keeps_the_page_budget() {
    let (device, fs) = fresh(128 << 20);
    fs.close().unwrap();
    let cache_size = 8 << 20;
    let options = MountOptions { cache_size, ..Default::default() };
    let fs = FileSystem::open(device.clone(), clock(), options).unwrap();
    let f = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap();
    let pages_max = cache_size / 8 * 3 / 4096;
    for mib in 0..64u64 {
        fs.write(f.ino, mib << 20, &vec![mib as u8; 1 << 20]).unwrap();
        let pages = cached_pages(&fs);
        assert!(pages <= pages_max + 512, "{pages} pages after {mib} MiB, {pages_max} are allowed");
    }
    let mut back = vec![0; 1 << 20];
    for mib in 0..64u64 {
        assert_eq!(fs.read(f.ino, mib << 20, &mut back).unwrap(), 1 << 20);
        assert!(back.iter().all(|b| *b == mib as u8));
    }
    assert!(cached_pages(&fs) <= pages_max + 512);
    fs.close().unwrap();
}

/// All three caches shrink at once to what must stay. What was dropped is read again; dirty pages
/// and nodes are dropped when they have been written.
#[test]
fn a_smaller_cache_gives_memory_back_and_loses_nothing() {
    const FILES: u64 = 8_000;
    let (device, fs) = fresh(256 << 20);
    fs.close().unwrap();
    let options = MountOptions { cache_size: 128 << 20, ..Default::default() };
    let fs = FileSystem::open(device, clock(), options).unwrap();
    for n in 0..FILES {
        let name = format!("a file with a long name {n:08}");
        let file = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default()).unwrap();
        fs.write(file.ino, 0, &n.to_le_bytes()).unwrap();
    }
    let cache = |key: &str| {
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
        stats["cache"][key].as_u64().unwrap()
    };
    let small = 2 << 20;
    assert!(cache("tree_bytes") > small / 2, "the nodes fit: {}", cache("tree_bytes"));
    assert!(cache("inodes") >= FILES && cache("pages") == FILES);
    assert_eq!((cache("tree_bytes_max"), cache("times_given_back")), (64 << 20, 0));
    fs.set_cache_size(small);
    assert_eq!((cache("tree_bytes_max"), cache("times_given_back")), (small / 2, 1));
    assert_eq!((cache("pages_max"), cache("inodes_max")), (512, 1024));
    // Dirty pages and nodes stay until they have been written.
    fs.sync().unwrap();
    fs.set_cache_size(small);
    assert!(cache("pages") <= 512 + 64, "{} pages", cache("pages"));
    assert!(cache("inodes") <= 1024 + 64, "{} inodes", cache("inodes"));
    for _ in 0..6000 {
        if cache("tree_bytes") <= small {
            break;
        }
        kedge_base::pause(std::time::Duration::from_millis(10));
        fs.set_cache_size(small);
    }
    assert!(cache("tree_bytes") <= small, "{} bytes of nodes", cache("tree_bytes"));
    for n in 0..FILES {
        let name = format!("a file with a long name {n:08}");
        let file = fs.lookup(Ino::ROOT, name.as_bytes()).unwrap();
        let mut back = [0; 8];
        assert_eq!(fs.read(file.ino, 0, &mut back).unwrap(), 8);
        assert_eq!(u64::from_le_bytes(back), n);
    }
    fs.set_cache_size(128 << 20);
    assert_eq!(cache("times_given_back"), 1);
    fs.close().unwrap();
}

/// A client of an NFS server may send any cookie.
#[test]
fn nothing_follows_the_largest_cookie() {
    let (_, fs) = fresh(16 << 20);
    fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap();
    let mut names = 0;
    fs.readdir(Ino::ROOT, u64::MAX, &mut |_| {
        names += 1;
        true
    })
    .unwrap();
    assert_eq!(names, 0);
    fs.close().unwrap();
}

/// A record with such a time could not be read again: every later record of the inode would fail.
#[test]
fn a_time_with_too_many_nanoseconds_is_refused() {
    let (_device, fs) = fresh(32 << 20);
    let ino = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap().ino;
    fs.write(ino, 0, &[1; 100]).unwrap();
    let before = fs.getattr(ino).unwrap();
    let bad = Timespec { sec: 0, nsec: 1_000_000_000 };
    let sets = [
        SetAttr { atime: Some(SetTime::At(bad)), ..SetAttr::default() },
        SetAttr { mtime: Some(SetTime::At(bad)), size: Some(7), ..SetAttr::default() },
        SetAttr { ctime: Some(bad), mtime: Some(SetTime::Now), ..SetAttr::default() },
        SetAttr { mtime: Some(SetTime::At(bad)), mode: Some(0o600), ..SetAttr::default() },
    ];
    for set in sets {
        assert_eq!(fs.setattr(ino, &set).unwrap_err().errno(), 22, "{set:?}");
    }
    assert_eq!(fs.getattr(ino).unwrap(), before);
    let last = Timespec { sec: -1, nsec: 999_999_999 };
    fs.setattr(ino, &SetAttr { mtime: Some(SetTime::At(last)), ..SetAttr::default() }).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.getattr(ino).unwrap().mtime, last);
    fs.close().unwrap();
}

/// fsck finds a NUL in the name of an attribute or in the target of a link damaged.
#[test]
fn names_of_attributes_and_targets_of_links_have_no_nul() {
    let (device, fs) = fresh(32 << 20);
    let owner = Owner::default();
    let ino = fs.create(Ino::ROOT, b"f", 0o644, owner).unwrap().ino;
    let name = b"user.a\0b";
    let errno = |result: Result<()>| result.unwrap_err().errno();
    assert_eq!(errno(fs.setxattr(ino, name, b"value", XattrMode::Any)), 22);
    assert_eq!(errno(fs.getxattr(ino, name).map(drop)), 22);
    assert_eq!(errno(fs.removexattr(ino, name)), 22);
    assert_eq!(errno(fs.symlink(Ino::ROOT, b"link", b"to\0", owner).map(drop)), 22);
    assert_eq!(errno(fs.symlink_nameless(Ino::ROOT, b"to\0", owner).map(drop)), 22);
    let tree = fs.receive(None, Ino::ROOT, b"received").unwrap();
    assert_eq!(errno(tree.make(Ino(5), Ino::ROOT, b"link", 0o120_777, 0, b"to\0")), 22);
    tree.make(Ino(5), Ino::ROOT, b"f", 0o100_644, 0, b"").unwrap();
    assert_eq!(errno(tree.set_xattr(Ino(5), name, Some(b"value"))), 22);
    tree.abandon().unwrap();
    assert_eq!(fs.listxattr(ino).unwrap(), Vec::<Vec<u8>>::new());
    fs.close().unwrap();
    assert_clean(&device);
}
