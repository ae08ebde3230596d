//! Free space is discarded. After no crash does a file have a discarded block.

use kedge_base::ManualClock;
use kedge_device::Device;
use kedge_device::sim::{Event, SimDevice, StatePlan};
use kedge_sim::discard::{self, Giver};
use kedge_sim::ops::OWNER;
use kedge_sim::rig;
use kedgefs::{FileSystem, Ino, MountOptions};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    let failed = (0..4_u64 << 20).step_by(256 << 10).map(Giver::FailedTrim);
    for giver in [Giver::Trim, Giver::Background].into_iter().chain(failed) {
        let states = discard::check(giver, StatePlan::default()).unwrap_or_else(|e| panic!("{giver:?}: {e}"));
        println!("{giver:?}: {states} crash states");
        assert!(states > 20, "{giver:?}: {states}");
    }
}

/// Writers, deletions, trims and background discards run together, and power fails at any event.
/// Every file that was synced and whose deletion has not begun survives, and every file has its own
/// bytes.
#[test]
fn no_crash_under_load_finds_a_discarded_block_in_a_file() {
    let (device, fs, _) = opened(MountOptions { discard: true, ..MountOptions::default() });
    device.stop_recording();
    let stop = Arc::new(AtomicBool::new(false));
    let begin = |name: &str, mut step: Box<dyn FnMut(&FileSystem) + Send>| {
        let (fs, stop) = (fs.clone(), stop.clone());
        let turns = move || {
            while !stop.load(Ordering::Relaxed) {
                step(&fs);
            }
        };
        kedge_base::spawn_named(name, turns).unwrap()
    };
    let lists: [Arc<Mutex<BTreeSet<u32>>>; 3] = Default::default();
    let mut threads = Vec::new();
    for (list, first) in lists.iter().zip([0, 1_000_000, 2_000_000]) {
        let (list, mut next) = (list.clone(), first);
        threads.push(begin(
            "writer",
            Box::new(move |fs| {
                let ino = fs.create(Ino::ROOT, &name(next), 0o644, OWNER).unwrap().ino;
                fs.write(ino, 0, &content(next)).unwrap();
                fs.fsync(ino, false).unwrap();
                list.lock().insert(next);
                next += 1;
                if next - first > 20 {
                    let old = next - 20;
                    // The deletion is recorded before it begins: after a crash it may be done or
                    // not.
                    list.lock().remove(&old);
                    fs.unlink(Ino::ROOT, &name(old)).unwrap();
                }
            }),
        ));
    }
    threads.push(begin("trim", Box::new(|fs| assert!(fs.trim(0, u64::MAX, 0).is_ok()))));
    threads.push(begin("discard", Box::new(|fs| fs.discard_now())));
    let synced = || -> BTreeSet<u32> {
        lists.iter().flat_map(|list| list.lock().iter().copied().collect::<Vec<_>>()).collect()
    };
    let mut judged = 0;
    for seed in 0..40 {
        let before = synced();
        let medium = device.crash(seed);
        let after = synced();
        rig::fsck(medium.fork()).unwrap_or_else(|e| panic!("crash {seed}: {e}"));
        let crashed = Arc::new(SimDevice::new(medium));
        let clock = Arc::new(ManualClock::default());
        let found = rig::open(&crashed, &clock, &kedge_sim::explore::setup()).unwrap();
        for number in before.intersection(&after) {
            let there = found.lookup(Ino::ROOT, &name(*number));
            assert!(there.is_ok_and(|attr| attr.size == LEN as u64), "crash {seed}: {number} was synced");
        }
        let mut names = Vec::new();
        found
            .readdir(Ino::ROOT, 0, &mut |entry| {
                names.extend((entry.cookie > 2).then(|| (entry.name.to_vec(), entry.ino)));
                true
            })
            .unwrap();
        for (name, ino) in names {
            let number: u32 = String::from_utf8(name).unwrap().parse().unwrap();
            let mut is = vec![0; LEN];
            let n = found.read(ino, 0, &mut is).unwrap();
            let own = content(number);
            let whole = before.contains(&number) && after.contains(&number);
            let foreign = is[..n].iter().zip(&own).position(|(is, own)| is != own && (whole || *is != 0));
            assert_eq!(foreign, None, "crash {seed}: {number} has bytes of a discarded block");
            judged += 1;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
    assert!(stats["data"]["discarded_blocks"].as_u64().unwrap() > 0, "{stats:#}");
    assert!(judged > 200, "{judged} files judged");
    println!("40 crashes, {judged} files");
}

const LEN: usize = 48 << 10;

fn name(number: u32) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn content(number: u32) -> Vec<u8> {
    (0..LEN as u32).map(|i| (i.wrapping_mul(number | 1) >> 3) as u8 | 1).collect()
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
    // A trim skips free ranges shorter than its minimum, and a range past the end is an error.
    assert_eq!(fs.trim(0, u64::MAX, 1 << 40).unwrap(), 0);
    assert_eq!(fs.trim(size, 1, 0).unwrap_err().errno(), 22);
    fs.close().unwrap();
    rig::fsck(device.crash_as(kedge_device::sim::Choice::All)).unwrap();
}

/// Each freed range is discarded once.
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

/// A full image is full because of its files, not because blocks are being discarded.
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
