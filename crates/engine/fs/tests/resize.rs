//! An image grows while it is in use, also when it is full. `shrink.rs` tests shrinking.

use crate::common::images::{assert_clean, open};
use kedge_base::SystemClock;
use kedge_device::{Device, MemDevice};
use kedge_format::alloc::GROUP_BLOCKS;
use kedgefs::{Error, FileSystem, FormatOptions, Ino, MountOptions, Owner};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const MIB: u64 = 1 << 20;
const GROUP: u64 = GROUP_BLOCKS * 4096;
const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn make(size: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(size));
    let options = FormatOptions { size: Some(size), log_size: Some(4 * MIB), ..FormatOptions::default() };
    FileSystem::format(device.clone(), Arc::new(SystemClock::default()), &options).unwrap();
    device
}

fn size(fs: &FileSystem) -> u64 {
    fs.statfs().blocks * 4096
}

/// Writes files of one MiB until there is no space. Returns their number.
fn fill(fs: &FileSystem, from: u64) -> u64 {
    let mut i = from;
    loop {
        let done = fs.create(Ino::ROOT, i.to_string().as_bytes(), 0o644, OWNER).and_then(|file| {
            let data = vec![i as u8; MIB as usize];
            let n = fs.write(file.ino, 0, &data)?;
            if n < data.len() { Err(kedge_base::Error::NoSpace.into()) } else { fs.fsync(file.ino, false) }
        });
        if let Err(e) = done {
            assert_eq!(e.errno(), 28, "{e}");
            return i;
        }
        i += 1;
    }
}

fn has(fs: &FileSystem, files: std::ops::Range<u64>) {
    for i in files {
        let ino = fs.lookup(Ino::ROOT, i.to_string().as_bytes()).unwrap().ino;
        let mut is = vec![0; MIB as usize];
        assert_eq!(fs.read(ino, 0, &mut is).unwrap(), is.len());
        assert!(is.iter().all(|b| *b == i as u8), "file {i}");
    }
}

#[test]
fn a_full_image_grows_and_takes_more() {
    let device = make(32 * MIB);
    let fs = open(&device);
    let first = fill(&fs, 0);
    // The image grows within its group, then beyond it so that the maps move, then again so that
    // moved maps move.
    let mut files = first;
    for to in [48 * MIB, 3 * GROUP + 4 * MIB, 5 * GROUP + 12 * 4096 + 4 * MIB] {
        let before = fs.statfs();
        assert_eq!(fs.resize(Some(to)).unwrap(), to);
        assert_eq!(size(&fs), to);
        let gained = (to / 4096 - before.blocks) * 9 / 10;
        assert!(fs.statfs().blocks_available >= before.blocks_available + gained, "{before:?}");
        assert_clean(&device);
        let room = fs.statfs().blocks_available / 256;
        let from = files + 1;
        files = fill(&fs, from);
        let more = files - from;
        assert!(more as f64 >= room as f64 * 0.9, "{more} files, there was room for {room}");
    }
    assert_clean(&device);
    drop(fs);
    let fs = open(&device);
    assert_eq!(size(&fs), 5 * GROUP + 12 * 4096 + 4 * MIB);
    has(&fs, 0..first);
    has(&fs, files - 3..files);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let device = make(64 * MIB);
    let fs = open(&device);
    let refused = |bytes| fs.resize(Some(bytes)).unwrap_err().to_string();
    assert!(refused(15 * MIB).contains("the smallest size is"));
    assert!(refused((1 << 50) + 4096).contains("the largest is"));
    assert_eq!(fs.resize(None).unwrap(), 64 * MIB);
    fs.freeze().unwrap();
    assert!(matches!(fs.resize(Some(65 * MIB)), Err(Error::Busy(_))));
    fs.thaw().unwrap();
    assert_eq!(size(&fs), 64 * MIB);
    assert_eq!(device.geometry().size, 64 * MIB);
    fs.close().unwrap();
    assert_clean(&device);
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), Arc::new(SystemClock::default()), read_only).unwrap();
    assert_eq!(fs.resize(Some(65 * MIB)).unwrap_err().errno(), 30);
}

/// The growth leaves out a last group that would have room only for its own maps.
#[test]
fn a_group_without_room_for_more_than_its_maps_is_left_out() {
    let device = make(GROUP);
    let fs = open(&device);
    assert_eq!(fs.resize(Some(GROUP + 6 * 4096)).unwrap(), GROUP);
    assert_eq!(fs.resize(Some(GROUP + 7 * 4096)).unwrap(), GROUP + 7 * 4096);
    fs.close().unwrap();
    assert_clean(&device);
}

/// Files grow and are fsynced while the image grows again and again. Then the process dies.
#[test]
fn writers_go_on_while_the_image_grows() {
    let device = make(32 * MIB);
    let fs = open(&device);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4u64)
        .map(|w| {
            let (fs, stop) = (fs.clone(), stop.clone());
            kedge_base::spawn_named("writer", move || {
                let mut files = 0u64;
                while !stop.load(SeqCst) {
                    let name = format!("{w}-{files}");
                    let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER).unwrap().ino;
                    fs.write(ino, 0, name.repeat(1000).as_bytes()).unwrap();
                    fs.fsync(ino, false).unwrap();
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
    let mut to = 32 * MIB;
    while to < 9 * GROUP {
        to += 37 * MIB + 4096;
        assert_eq!(fs.resize(Some(to)).unwrap(), to);
        assert_clean(&device);
    }
    stop.store(true, SeqCst);
    let made: Vec<u64> = writers.into_iter().map(|w| w.join().unwrap()).collect();
    let left = Arc::new(device.fork());
    drop(fs);
    assert_clean(&left);
    let fs = open(&left);
    assert_eq!(size(&fs), to);
    for (w, files) in made.iter().enumerate() {
        assert!(*files > 0);
        for i in files.saturating_sub(18)..*files {
            let name = format!("{w}-{i}");
            let ino = fs.lookup(Ino::ROOT, name.as_bytes()).unwrap().ino;
            let mut is = vec![0; name.len() * 1000];
            assert_eq!(fs.read(ino, 0, &mut is).unwrap(), is.len());
            assert_eq!(is, name.repeat(1000).into_bytes());
        }
    }
}
