//! Files that a rename displaced and that wait for their deletion: their space is there for whoever asks, and after a crash.
#![allow(clippy::unwrap_used)]

use kedge_device::MemDevice;
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::*;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 32 << 20;
/// So long that nothing is deleted in the background while a test runs.
const NEVER: Duration = Duration::from_secs(3600);
/// As long as the line.
const LINE: u64 = 256;

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn open(device: &Arc<MemDevice>, reap_delay: Duration) -> FileSystem {
    let options = MountOptions { reap_delay, commit: NEVER, ..MountOptions::default() };
    FileSystem::open(device.clone(), clock(), options).unwrap()
}

fn fresh(reap_delay: Duration) -> (Arc<MemDevice>, FileSystem) {
    let device = Arc::new(MemDevice::new(SIZE));
    let options = FormatOptions { log_size: Some(2 << 20), ..Default::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    let fs = open(&device, reap_delay);
    (device, fs)
}

fn count(fs: &FileSystem, what: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    stats["deletions"][what].as_u64().unwrap_or_else(|| panic!("no counter {what}"))
}

fn make(fs: &FileSystem, name: &str, len: usize) -> Ino {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default()).unwrap().ino;
    assert_eq!(fs.write(ino, 0, &vec![name.as_bytes()[0]; len]).unwrap(), len);
    ino
}

fn rename(fs: &FileSystem, from: &str, to: &str) {
    fs.rename(Ino::ROOT, from.as_bytes(), Ino::ROOT, to.as_bytes(), RenameMode::Replace).unwrap();
}

/// Displaces `files` files of `len` bytes, all in place, by empty ones that it removes again.
fn displace(fs: &FileSystem, files: u64, len: usize) -> Vec<Ino> {
    let inos = (0..files).map(|i| make(fs, &format!("file{i}"), len)).collect();
    fs.sync().unwrap();
    for i in 0..files {
        make(fs, "new", 0);
        rename(fs, "new", &format!("file{i}"));
        fs.unlink(Ino::ROOT, format!("file{i}").as_bytes()).unwrap();
    }
    inos
}

/// Orphans of the checkpoint that lies on the device, or of what replay leaves.
fn orphans(device: &Arc<MemDevice>, replay: bool) -> u64 {
    let replay = replay.then(|| Arc::new(StoreReplay) as Arc<dyn kedge_fsck::Replay>);
    let report = kedge_fsck::check(device.clone(), &CheckOptions { replay, ..CheckOptions::default() });
    assert!(report.is_clean(), "{report}");
    report.counters.orphans
}

#[test]
fn what_waits_at_a_crash_is_deleted_by_the_next_mount() {
    let (device, fs) = fresh(NEVER);
    let free = fs.statfs().blocks_free;
    displace(&fs, 100, 64 << 10);
    fs.fsync(Ino::ROOT, false).unwrap();
    assert_eq!(count(&fs, "waiting"), 100, "nothing deletes them before");
    drop(fs);
    assert_eq!(orphans(&device, true), 100);

    let fs = open(&device, NEVER);
    fs.checkpoint().unwrap();
    let now = fs.statfs().blocks_free;
    assert!(now + 64 > free, "{now} blocks are free, {free} in the fresh image, 1600 were displaced");
    drop(fs);
    assert_eq!(orphans(&device, true), 0);
}

#[test]
fn a_crash_in_the_middle_of_the_line_costs_nothing() {
    let (device, fs) = fresh(NEVER);
    let free = fs.statfs().blocks_free;
    displace(&fs, 60, 64 << 10);
    fs.statfs(); // deletes them
    displace(&fs, 40, 64 << 10); // its sync makes that durable
    fs.fsync(Ino::ROOT, false).unwrap();
    drop(fs);
    assert_eq!(orphans(&device, true), 40);
    let fs = open(&device, NEVER);
    fs.checkpoint().unwrap();
    assert!(fs.statfs().blocks_free + 64 > free);
}

#[test]
fn whoever_finds_no_space_gets_what_was_displaced() {
    for how in ["write", "fallocate"] {
        let (device, fs) = fresh(NEVER);
        let len = fs.statfs().blocks_available as usize * 4096 / 10 * 6;
        displace(&fs, 1, len);
        assert_eq!(count(&fs, "waiting"), 1);
        let ino = make(&fs, "next", 0);
        if how == "write" {
            assert_eq!(fs.write(ino, 0, &vec![b'n'; len]).unwrap(), len, "what was displaced is as large");
        } else {
            fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 0, len as u64).unwrap();
        }
        assert_eq!(count(&fs, "waiting"), 0);
        fs.close().unwrap();
        assert_eq!(orphans(&device, false), 0);
    }
}

/// Fills the tree with names and attributes, removes some files, displaces others, and fills it again. Answers how many files
/// fit then.
fn refill(reap_delay: Duration) -> u64 {
    let (_device, fs) = fresh(reap_delay);
    let fits = |name: String| {
        fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default())
            .is_ok_and(|attr| fs.setxattr(attr.ino, b"user.filler", &[b'x'; 3000], XattrMode::Any).is_ok())
    };
    let name = |i: u64| format!("file{i}");
    let made = (0..100_000).take_while(|i| fits(name(*i))).count() as u64;
    assert!((2000..100_000).contains(&made), "{made} files fill the image");
    // Room for the renames, each of which asks for some.
    (0..600).for_each(|i| fs.unlink(Ino::ROOT, name(i).as_bytes()).unwrap());
    fs.checkpoint().unwrap();
    (600..1000).step_by(2).for_each(|i| rename(&fs, &name(i), &name(i + 1)));
    assert_eq!(count(&fs, "waiting"), if reap_delay.is_zero() { 0 } else { 200 });
    let again = (0..100_000).take_while(|i| fits(format!("again{i}"))).count() as u64;
    assert_eq!(count(&fs, "waiting"), 0);
    again
}

#[test]
fn names_find_room_in_the_nodes_of_what_was_displaced() {
    let (waited, at_once) = (refill(NEVER), refill(Duration::ZERO));
    assert!(waited * 20 >= at_once * 19, "{waited} files fit, {at_once} where renames delete themselves");
}

#[test]
fn statfs_counts_what_was_displaced_as_free() {
    let (_device, fs) = fresh(NEVER);
    let len = 4 << 20;
    make(&fs, "old", len);
    fs.sync().unwrap();
    let before = fs.statfs();
    make(&fs, "new", 0);
    rename(&fs, "new", "old");
    assert_eq!(count(&fs, "waiting"), 1);
    let after = fs.statfs();
    assert_eq!(count(&fs, "waiting"), 0);
    assert_eq!(after.inodes - after.inodes_free, before.inodes - before.inodes_free);
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    let after = fs.statfs();
    assert!(after.blocks_free + 16 > before.blocks_free + len as u64 / 4096, "{after:?}, {before:?} before");
}

#[test]
fn sync_and_close_end_with_an_empty_line() {
    let (device, fs) = fresh(NEVER);
    displace(&fs, 20, 8 << 10);
    assert_eq!(count(&fs, "waiting"), 20);
    fs.sync().unwrap();
    assert_eq!((count(&fs, "waiting"), count(&fs, "in_background")), (0, 20));
    displace(&fs, 20, 8 << 10);
    fs.close().unwrap();
    assert_eq!(orphans(&device, false), 0);
}

#[test]
fn a_full_line_makes_renames_delete_by_themselves() {
    let (device, fs) = fresh(NEVER);
    displace(&fs, LINE + 30, 4 << 10);
    assert_eq!((count(&fs, "waiting"), count(&fs, "refused_by_the_line")), (LINE, 30));
    fs.fsync(Ino::ROOT, false).unwrap();
    drop(fs);
    assert_eq!(orphans(&device, true), LINE);
}

#[test]
fn without_a_delay_there_is_no_line() {
    let (device, fs) = fresh(Duration::ZERO);
    displace(&fs, 10, 4 << 10);
    assert_eq!((count(&fs, "waiting"), count(&fs, "in_background")), (0, 0));
    fs.fsync(Ino::ROOT, false).unwrap();
    drop(fs);
    assert_eq!(orphans(&device, true), 0);
}

#[test]
fn the_line_moves_by_itself() {
    let (_device, fs) = fresh(Duration::from_millis(1));
    let inos = displace(&fs, 50, 4 << 10);
    let clock = clock();
    let end = clock.monotonic() + Duration::from_secs(60);
    while count(&fs, "in_background") < 50 {
        assert!(clock.monotonic() < end, "{} still wait", count(&fs, "waiting"));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(count(&fs, "waiting"), 0);
    assert!(inos.iter().all(|ino| fs.getattr(*ino).is_err()));
}

#[test]
fn who_waits_is_gone_for_everybody_and_who_is_open_is_not() {
    let (device, fs) = fresh(NEVER);
    let closed = displace(&fs, 1, 5)[0];
    assert!(matches!(fs.getattr(closed), Err(Error::NotFound)));
    assert!(matches!(fs.read(closed, 0, &mut [0; 5]), Err(Error::NotFound)));
    assert!(matches!(fs.write(closed, 0, b"x"), Err(Error::NotFound)));
    assert!(matches!(fs.link(closed, Ino::ROOT, b"back"), Err(Error::NotFound)));

    let opened = make(&fs, "opened", 5);
    fs.pin(opened).unwrap();
    make(&fs, "new", 0);
    rename(&fs, "new", "opened");
    assert_eq!(count(&fs, "waiting"), 1, "the open one is not in the line");
    fs.sync().unwrap();
    let mut bytes = [0; 5];
    assert_eq!((fs.read(opened, 0, &mut bytes).unwrap(), &bytes), (5, b"ooooo"));
    fs.unpin(opened, 1);
    assert!(fs.getattr(opened).is_err());

    // Pinned while it waits: the last pin deletes it.
    let late = displace(&fs, 1, 5)[0];
    fs.pin(late).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.getattr(late).unwrap().nlink, 0);
    fs.unpin(late, 1);
    assert!(fs.getattr(late).is_err());
    fs.close().unwrap();
    assert_eq!(orphans(&device, false), 0);
}
