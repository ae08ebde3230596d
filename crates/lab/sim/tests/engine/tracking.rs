//! Ways to track dirty inodes: each obeys the rules of [`DirtySet`], and sync keeps its promise
//! with each.

use crate::common::seeds;
use kedge_base::{Clock, ManualClock};
use kedge_device::sim::{Choice, SimDevice};
use kedge_sim::deltas::Deltas;
use kedge_sim::rig;
use kedgefs::{
    DirtyHandle, DirtySet, FileSystem, Ino, MountOptions, OldestFirst, OwnSet, Owner, WritebackOrder,
};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const INODES: u64 = 120;

fn numbers(handles: &[DirtyHandle]) -> BTreeSet<Ino> {
    let inos: BTreeSet<Ino> = handles.iter().map(DirtyHandle::ino).collect();
    assert_eq!(inos.len(), handles.len(), "each once");
    inos
}

/// Makes random calls and compares the set with a plain map.
fn keeps_the_rules(set: &dyn DirtySet, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut model: BTreeMap<Ino, Duration> = BTreeMap::new();
    for step in 0..600 {
        let ino = Ino(rng.random_range(1..=INODES));
        match rng.random_range(0..10) {
            0..5 if !model.contains_key(&ino) => {
                let since = Duration::from_secs(step);
                model.insert(ino, since);
                set.add(DirtyHandle::detached(ino, since));
            }
            0..7 => {
                model.remove(&ino);
                set.remove(ino);
            }
            7 => {
                let all = set.all(&OldestFirst);
                assert_eq!(numbers(&all), model.keys().copied().collect(), "nothing is forgotten");
                assert!(all.iter().all(|handle| model[&handle.ino()] == handle.since()));
            }
            _ => {
                let every = rng.random_range(1..5);
                let busy = |ino: Ino| ino.0.is_multiple_of(every);
                let max = rng.random_range(1..40);
                let batch = set.batch(max, &busy, &OldestFirst);
                let inos = numbers(&batch);
                assert!(inos.len() <= max);
                assert!(inos.iter().all(|ino| model.contains_key(ino)), "nothing clean is written");
                let free = model.keys().any(|ino| !busy(*ino));
                assert_eq!(inos.is_empty(), !free, "writeback continues while some inode is not busy");
                for ino in inos.iter().copied().collect::<Vec<_>>().choose_multiple(&mut rng, 3) {
                    model.remove(ino);
                    set.remove(*ino);
                }
            }
        }
        assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
    }
    // A pass that writes the inodes that it is given must end.
    for _ in 0..model.len() {
        for handle in set.batch(8, &|_| false, &OldestFirst) {
            set.remove(handle.ino());
            model.remove(&handle.ino());
        }
    }
    assert!(set.is_empty() && model.is_empty());
}

#[test]
fn each_way_of_tracking_keeps_the_rules() {
    for seed in seeds(100) {
        keeps_the_rules(&OwnSet::default(), seed);
        keeps_the_rules(&Deltas::default(), seed);
    }
}

/// Wraps a set, counts its calls, and loses inodes if `forgets` is set.
#[derive(Default)]
struct Watched {
    set: Deltas,
    forgets: bool,
    batches: AtomicUsize,
    syncs: AtomicUsize,
}

impl DirtySet for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn add(&self, inode: DirtyHandle) {
        if !(self.forgets && inode.ino().0.is_multiple_of(7)) {
            self.set.add(inode);
        }
    }

    fn remove(&self, ino: Ino) {
        self.set.remove(ino);
    }

    fn len(&self) -> usize {
        self.set.len()
    }

    fn all(&self, order: &dyn WritebackOrder) -> Vec<DirtyHandle> {
        self.syncs.fetch_add(1, Relaxed);
        self.set.all(order)
    }

    fn batch(&self, max: usize, busy: &dyn Fn(Ino) -> bool, order: &dyn WritebackOrder) -> Vec<DirtyHandle> {
        let batch = self.set.batch(max, busy, order);
        self.batches.fetch_add(!batch.is_empty() as usize, Relaxed);
        batch
    }
}

/// The sets that the mount options made, so that tests can inspect them.
static MADE: Mutex<Vec<Arc<Watched>>> = Mutex::new(Vec::new());

fn made(forgets: bool) -> Arc<dyn DirtySet> {
    let set = Arc::new(Watched { forgets, ..Watched::default() });
    MADE.lock().push(set.clone());
    set
}

/// Returns the number of files that are lost by a crash after a sync.
fn lost_after_a_sync(make: fn() -> Arc<dyn DirtySet>) -> usize {
    const FILES: u8 = 60;
    let device = Arc::new(SimDevice::new(rig::format(64 << 20, 8 << 20).unwrap()));
    let clock = Arc::new(ManualClock::default());
    let options = MountOptions { dirty_set: Some(make), cache_size: 4 << 20, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), clock.clone(), options).unwrap();
    let info: serde_json::Value = serde_json::from_str(&fs.info_json()).unwrap();
    assert_eq!(info["options"]["dirty_tracking"], "watched");
    let content = |i: u8| vec![i; 100 << 10];
    for i in 0..FILES {
        let file = fs.create(Ino::ROOT, &[b'a' + i % 26, b'0' + i / 26], 0o644, Owner::default()).unwrap();
        fs.write(file.ino, 0, &content(i)).unwrap();
        clock.advance(Duration::from_millis(1));
    }
    fs.sync().unwrap();
    let medium = device.recording().state(device.recording().events.len(), Choice::None);
    let _ = fs.shutdown(false);
    rig::fsck(medium.fork()).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let fs = FileSystem::open(Arc::new(medium), clock, MountOptions::default()).unwrap();
    (0..FILES)
        .filter(|i| {
            let file = fs.lookup(Ino::ROOT, &[b'a' + i % 26, b'0' + i / 26]).unwrap();
            let mut found = vec![0xee; 200 << 10];
            let read = fs.read(file.ino, 0, &mut found).unwrap();
            found[..read] != content(*i)
        })
        .count()
}

/// The files do not fit into the cache: background writeback writes what the set yields, and sync
/// the rest.
#[test]
fn a_program_may_bring_its_own_tracking() {
    assert_eq!(lost_after_a_sync(|| made(false)), 0);
    let set = MADE.lock().iter().find(|set| !set.forgets).unwrap().clone();
    assert!(set.batches.load(Relaxed) > 0 && set.syncs.load(Relaxed) > 0);
    assert!(set.is_empty());
}

/// Proves that the check above can fail: sync depends on the set.
#[test]
fn what_a_set_forgets_is_lost() {
    assert!(lost_after_a_sync(|| made(true)) > 0);
}
