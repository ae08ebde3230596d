//! statfs reports correct numbers: for a new image, while data waits for blocks, and immediately
//! after a file is deleted.

use kedge_device::MemDevice;
use kedgefs::{FileSystem, FormatOptions, Ino, ManualClock, MountOptions, Owner};
use std::sync::Arc;

const BLOCKS: u64 = 2048;
/// Blocks that a file takes besides its data: some nodes.
const SLACK: u64 = 64;

fn new() -> FileSystem {
    let (device, clock) = (Arc::new(MemDevice::new(64 << 20)), Arc::new(ManualClock::default()));
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    FileSystem::open(device, clock, MountOptions::default()).unwrap()
}

/// The numbers of free and of available blocks.
fn room(fs: &FileSystem) -> (u64, u64) {
    let st = fs.statfs();
    assert!(st.blocks_available <= st.blocks_free, "{st:?}");
    assert!(st.blocks_free <= st.blocks, "{st:?}");
    assert!(st.inodes_free <= st.inodes, "{st:?}");
    (st.blocks_free, st.blocks_available)
}

#[test]
fn free_space_is_told_at_once() {
    let fs = new();
    let (free, available) = room(&fs);
    assert!(available > free / 2, "{available} of {free} blocks");
    let file = fs.create(Ino::ROOT, b"file", 0o644, Owner::default()).unwrap();
    fs.write(file.ino, 0, &vec![1; (BLOCKS * 4096) as usize]).unwrap();
    // With delayed allocation, promised blocks do not count as free.
    let is_used = |when: &str| {
        let (free_now, available_now) = room(&fs);
        for (then, now) in [(free, free_now), (available, available_now)] {
            let used = then.saturating_sub(now);
            assert!((BLOCKS..BLOCKS + SLACK).contains(&used), "{when}: {used} blocks used");
        }
    };
    is_used("written");
    fs.fsync(file.ino, false).unwrap();
    is_used("synced");
    fs.checkpoint().unwrap();
    is_used("after a checkpoint");
    // The blocks are free without a sync, a write or any other operation.
    fs.unlink(Ino::ROOT, b"file").unwrap();
    let (free_now, available_now) = room(&fs);
    assert!(free_now + SLACK >= free, "{free_now} of {free} blocks are free again");
    assert!(available_now + SLACK >= available, "{available_now} of {available} blocks are available again");
    // All blocks that were reported available can be allocated.
    let file = fs.create(Ino::ROOT, b"all", 0o644, Owner::default()).unwrap();
    let bytes = vec![2; 1 << 20];
    let mut at = 0;
    while at / 4096 + 256 <= available_now {
        assert_eq!(
            fs.write(file.ino, at, &bytes).unwrap(),
            bytes.len(),
            "at block {} of {available_now}",
            at / 4096
        );
        at += bytes.len() as u64;
    }
    fs.fsync(file.ino, false).unwrap();
    room(&fs);
    fs.close().unwrap();
}

/// Promises to operations of many threads do not count as used space. No operation is refused, and
/// statfs shows most of the image as free all the time.
#[test]
fn a_crowd_is_not_refused_on_a_small_image() {
    const THREADS: u64 = 200;
    let fs = new();
    let (_, available) = room(&fs);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("{thread}-{round}");
                    let file = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default()).unwrap();
                    assert_eq!(fs.write(file.ino, 0, &[1; 4096]).unwrap(), 4096);
                    fs.fsync(file.ino, false).unwrap();
                    fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
                    let now = room(fs).1;
                    assert!(now > available / 2, "{now} of {available} blocks");
                }
            });
        }
    });
}
