//! Free space goes back to the device, and no crash finds a discarded block that a file still has.
#![allow(clippy::unwrap_used)]

use kedge_base::ManualClock;
use kedge_device::Device;
use kedge_device::sim::{Event, SimDevice, StatePlan};
use kedge_sim::discard;
use kedge_sim::ops::OWNER;
use kedge_sim::rig;
use kedgefs::{FileSystem, Ino, MountOptions};
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn opened(options: MountOptions) -> (Arc<SimDevice>, FileSystem, Arc<ManualClock>) {
    let mut setup = kedge_sim::explore::setup();
    setup.mount = MountOptions { cache_size: setup.mount.cache_size, commit: setup.mount.commit, ..options };
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log).unwrap()));
    let clock = Arc::new(ManualClock::default());
    let fs = rig::open(&device, &clock, &setup).unwrap();
    (device, fs, clock)
}

fn fill(fs: &FileSystem, name: &[u8], len: usize) -> Ino {
    let ino = fs.create(Ino::ROOT, name, 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, &vec![7; len]).unwrap();
    fs.fsync(ino, false).unwrap();
    ino
}

/// Bytes discarded by the requests so far.
fn discarded(device: &SimDevice) -> u64 {
    let events = device.recording();
    events.events.iter().map(|e| if let Event::Discard { len, .. } = e { *len } else { 0 }).sum()
}

#[test]
fn no_crash_finds_a_discarded_block_in_a_file() {
    let states = discard::check(StatePlan::default()).unwrap_or_else(|e| panic!("{e}"));
    println!("{states} crash states");
    assert!(states > 20, "{states}");
}

#[test]
fn a_trim_takes_what_is_free_and_nothing_else() {
    let (device, fs, _) = opened(MountOptions::default());
    let kept = fill(&fs, b"kept", 2 * MIB);
    fill(&fs, b"gone", 4 * MIB);
    fs.unlink(Ino::ROOT, b"gone").unwrap();
    let size = device.geometry().size;
    let bytes = fs.trim(0, u64::MAX, 0).unwrap();
    assert_eq!(bytes, discarded(&device));
    assert!(bytes >= 4 * MIB as u64 && bytes < size - 2 * MIB as u64, "{bytes} of {size}");
    let mut read = vec![0; 2 * MIB];
    assert_eq!(fs.read(kept, 0, &mut read).unwrap(), read.len());
    assert!(read.iter().all(|b| *b == 7));
    // Runs that are too short stay, and a range behind the end is refused.
    assert_eq!(fs.trim(0, u64::MAX, 1 << 40).unwrap(), 0);
    assert_eq!(fs.trim(size, 1, 0).unwrap_err().errno(), 22);
    fs.close().unwrap();
    rig::fsck(device.crash_as(kedge_device::sim::Choice::All)).unwrap();
}

/// What is freed is discarded once.
#[test]
fn discard_in_the_background_takes_fresh_frees_only() {
    let (device, fs, _) = opened(MountOptions { discard: true, ..MountOptions::default() });
    fill(&fs, b"a", 4 * MIB);
    fs.discard_now();
    let before = discarded(&device);
    fs.unlink(Ino::ROOT, b"a").unwrap();
    fs.discard_now();
    let first = discarded(&device) - before;
    assert!((4 * MIB as u64..6 * MIB as u64).contains(&first), "{first}");
    fs.discard_now();
    assert!(discarded(&device) - before - first < MIB as u64, "nothing was freed since but nodes");
    let off = kedgefs::Switches { discard: Some(false), ..Default::default() };
    fs.remount(&off).unwrap();
    fill(&fs, b"b", 4 * MIB);
    fs.unlink(Ino::ROOT, b"b").unwrap();
    let before = discarded(&device);
    fs.discard_now();
    assert_eq!(discarded(&device), before);
}

/// A full image is full, and not because blocks are being discarded.
#[test]
fn a_trim_refuses_no_writer_space() {
    let (_, fs, _) = opened(MountOptions::default());
    let ino = fs.create(Ino::ROOT, b"f", 0o644, OWNER).unwrap().ino;
    let chunk = vec![1; 64 << 10];
    let fill = |ino| {
        let mut at = 0;
        while let Ok(n) = fs.write(ino, at, &chunk) {
            at += n as u64;
        }
        at
    };
    let room = fill(ino);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.sync().unwrap();
    let trimmer = {
        let fs = fs.clone();
        kedge_base::spawn_named("trim", move || {
            (0..50).map(|_| fs.trim(0, u64::MAX, 0).unwrap()).sum::<u64>()
        })
    };
    let again = fs.create(Ino::ROOT, b"g", 0o644, OWNER).unwrap().ino;
    let second = fill(again);
    assert!(trimmer.unwrap().join().unwrap() > 0);
    assert!(second + (1 << 20) >= room, "{second} bytes fit where {room} had been");
}
