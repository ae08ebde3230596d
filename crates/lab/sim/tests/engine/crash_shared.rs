//! Threads rename, link, unlink and exchange in the same directories while power fails.
//!
//! Each thread owns files whose names are in shared directories. All threads also exchange and move
//! the files of a common pool. Afterwards
//! 1. an owned file has its bytes, and the names of one of its states since its last acknowledged
//!    fsync: each change took effect as a whole or not at all (link and exchange have intermediate
//!    states);
//! 2. every file of the pool exists once: an exchange or a move never loses or duplicates one;
//! 3. fsck finds nothing, and the whole tree can be read.

use crate::common::seeds;
use kedge_base::{HANG, ManualClock};
use kedge_device::sim::{FaultPlan, SimDevice};
use kedge_sim::ops::OWNER;
use kedge_sim::rig::{self, Setup, within};
use kedge_sim::view::View;
use kedgefs::{FileSystem, Ino, RenameMode};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const THREADS: usize = 6;
const FILES: usize = 3;
const DIRS: usize = 3;
const POOL: usize = 5;

type Name = (usize, String);

/// A file and all sets of names that it had. The last set may not have been reached.
#[derive(Clone)]
struct Owned {
    ino: Ino,
    /// Index of the state at the last acknowledged fsync.
    acked: usize,
    states: Vec<BTreeSet<Name>>,
}

struct Shared {
    fs: FileSystem,
    dirs: [Ino; DIRS],
    stop: AtomicBool,
    operations: AtomicU64,
}

fn mark(ino: Ino) -> [u8; 64] {
    [ino.0 as u8 | 1; 64]
}

impl Shared {
    fn make(&self, dir: usize, name: &str) -> Result<Ino, kedgefs::Error> {
        let ino = self.fs.create(self.dirs[dir], name.as_bytes(), 0o644, OWNER)?.ino;
        self.fs.write(ino, 0, &mark(ino))?;
        Ok(ino)
    }

    fn rename(&self, from: &Name, to: &Name, mode: RenameMode) -> Result<(), kedgefs::Error> {
        self.fs.rename(self.dirs[from.0], from.1.as_bytes(), self.dirs[to.0], to.1.as_bytes(), mode)
    }

    /// One operation of a thread on its own files.
    fn own(
        &self,
        files: &Mutex<Vec<Owned>>,
        thread: usize,
        rng: &mut SmallRng,
    ) -> Result<(), kedgefs::Error> {
        let (a, b) = (rng.random_range(0..FILES), rng.random_range(0..FILES));
        let now = |i: usize| files.lock()[i].states.last().expect("never empty").clone();
        let (names, others) = (now(a), now(b));
        let first = names.first().expect("never nameless").clone();
        let fresh = (rng.random_range(0..DIRS), format!("t{thread}-{}", rng.random_range(0..1u32 << 30)));
        let ino = files.lock()[a].ino;
        let push = |i: usize, state: &BTreeSet<Name>| files.lock()[i].states.push(state.clone());
        let mut next = names.clone();
        match rng.random_range(0..10) {
            0..3 => {
                next.remove(&first);
                next.insert(fresh.clone());
                push(a, &next);
                self.rename(&first, &fresh, RenameMode::NoReplace)
            }
            3..5 if names.len() < 4 => {
                next.insert(fresh.clone());
                push(a, &next);
                self.fs.link(ino, self.dirs[fresh.0], fresh.1.as_bytes()).map(|_| ())
            }
            5 if names.len() > 1 => {
                next.remove(&first);
                push(a, &next);
                self.fs.unlink(self.dirs[first.0], first.1.as_bytes())
            }
            6 if a != b => {
                let second = others.first().expect("never nameless").clone();
                let mut after = others.clone();
                next.remove(&first);
                next.insert(second.clone());
                after.remove(&second);
                after.insert(first.clone());
                push(a, &next);
                push(b, &after);
                self.rename(&first, &second, RenameMode::Exchange)
            }
            _ => {
                self.fs.fsync(ino, false)?;
                let file = &mut files.lock()[a];
                file.acked = file.states.len() - 1;
                Ok(())
            }
        }
    }

    /// One operation on the pool, whose files any thread may have moved meanwhile.
    fn pool(&self, rng: &mut SmallRng) -> Result<(), kedgefs::Error> {
        let mut any = || (rng.random_range(0..DIRS), format!("pool-{}", rng.random_range(0..2 * POOL)));
        let (from, to) = (any(), any());
        let mode = if rng.random_bool(0.5) { RenameMode::Exchange } else { RenameMode::NoReplace };
        match self.rename(&from, &to, mode) {
            Err(kedgefs::Error::NotFound | kedgefs::Error::Exists) => Ok(()),
            other => other,
        }
    }
}

fn check(view: &View, dirs: &[Ino], files: &[Vec<Owned>], pool: &BTreeSet<Ino>) -> Result<(), String> {
    let names_of = |ino: Ino| -> BTreeSet<Name> {
        let entries = |dir: usize| view.inodes[&dirs[dir]].entries.iter().map(move |entry| (dir, entry));
        let all = (0..DIRS).flat_map(entries);
        all.filter(|(_, (_, child))| **child == ino).map(|(dir, (name, _))| (dir, name.clone())).collect()
    };
    for file in files.iter().flatten() {
        let found = names_of(file.ino);
        let allowed = &file.states[file.acked..];
        if !allowed.contains(&found) {
            return Err(format!("inode {} has the names {found:?}, it had {allowed:?}", file.ino));
        }
        if view.inodes[&file.ino].content.read(0, 64) != mark(file.ino) {
            return Err(format!("inode {}: bytes that were durable are lost", file.ino));
        }
    }
    for ino in pool {
        let found = names_of(*ino);
        if found.len() != 1 {
            return Err(format!("inode {ino} of the pool has the names {found:?}"));
        }
    }
    let all: usize = dirs.iter().map(|dir| view.inodes[dir].entries.len()).sum();
    let known: usize = files.iter().flatten().map(|f| names_of(f.ino).len()).sum::<usize>() + pool.len();
    if all == known { Ok(()) } else { Err(format!("{all} names, {known} of them of known files")) }
}

fn run(setup: &Setup, seed: u64, lying: bool) -> Result<u64, String> {
    let said = |e: kedgefs::Error| e.to_string();
    let mut rng = SmallRng::seed_from_u64(seed);
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    device.stop_recording();
    let clock = Arc::new(ManualClock::default());
    let fs = rig::open(&device, &clock, setup)?;
    let mut dirs = [Ino::ROOT; DIRS];
    for (i, dir) in dirs.iter_mut().enumerate() {
        *dir = fs.mkdir(Ino::ROOT, format!("shared{i}").as_bytes(), 0o755, OWNER).map_err(said)?.ino;
    }
    let shared = Arc::new(Shared { fs, dirs, stop: AtomicBool::default(), operations: AtomicU64::default() });
    let mut pool = BTreeSet::new();
    for n in 0..POOL {
        pool.insert(shared.make(n % DIRS, &format!("pool-{n}")).map_err(said)?);
    }
    let mut lists = Vec::new();
    for thread in 0..THREADS {
        let mut files = Vec::new();
        for n in 0..FILES {
            let name = (n % DIRS, format!("t{thread}-first{n}"));
            let ino = shared.make(name.0, &name.1).map_err(said)?;
            files.push(Owned { ino, acked: 0, states: vec![BTreeSet::from([name])] });
        }
        lists.push(Arc::new(Mutex::new(files)));
    }
    shared.fs.sync().map_err(said)?;
    if lying {
        device.set_plan(FaultPlan::new(0).lying());
    }
    let mut threads = Vec::new();
    for (thread, files) in lists.iter().cloned().enumerate() {
        let (shared, mut rng) = (shared.clone(), SmallRng::seed_from_u64(rng.random()));
        let body = move || {
            while !shared.stop.load(Ordering::Relaxed) {
                match rng.random_bool(0.7) {
                    true => shared.own(&files, thread, &mut rng)?,
                    false => shared.pool(&mut rng)?,
                }
                shared.operations.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), kedgefs::Error>(())
        };
        threads.push(kedge_base::spawn_named("shared", body).map_err(|e| e.to_string())?);
    }
    let enough = rng.random_range(50..1500);
    while shared.operations.load(Ordering::Relaxed) < enough && !threads.iter().all(|t| t.is_finished()) {
        std::thread::sleep(Duration::from_micros(200));
    }
    let snapshot = |lists: &[Arc<Mutex<Vec<Owned>>>]| -> Vec<Vec<Owned>> {
        lists.iter().map(|l| l.lock().clone()).collect()
    };
    // The threads continue meanwhile: what was acknowledged is recorded before the failure, what
    // had begun after it.
    let mut files = snapshot(&lists);
    let medium = device.crash(rng.random());
    shared.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|p| rig::panic_text(&*p))?.map_err(|e| format!("a thread ends: {e}"))?;
    }
    for (file, later) in files.iter_mut().flatten().zip(snapshot(&lists).into_iter().flatten()) {
        file.states = later.states;
    }
    let operations = shared.operations.load(Ordering::Relaxed);
    let _ = shared.fs.shutdown(false);
    rig::fsck(medium.fork())?;
    let fs = rig::open(&Arc::new(SimDevice::new(medium)), &clock, setup)?;
    check(&View::of(&fs)?, &dirs, &files, &pool)?;
    fs.close().map_err(said)?;
    Ok(operations)
}

fn run_all(setup: fn() -> Setup, count: u64) {
    let mut operations = 0;
    for seed in seeds(count) {
        let what = format!("KEDGE_SEED={seed}");
        let setup = setup().switched(seed);
        match within(HANG, &what, move || run(&setup, seed, false)) {
            Ok(n) => operations += n,
            Err(e) => panic!("{what}: {e}"),
        }
    }
    println!("{operations} operations");
}

#[test]
fn names_in_shared_directories_survive_a_power_failure() {
    run_all(Setup::default, 80);
}

#[test]
fn names_in_shared_directories_survive_a_power_failure_with_a_small_log() {
    run_all(Setup::cramped, 80);
}

/// On a device that ignores flushes fsync cannot keep its promise, and the check detects that.
#[test]
fn a_lying_device_is_found_out() {
    let found = (1..=10).filter(|seed| run(&Setup::default(), *seed, true).is_err()).count();
    assert!(found > 5, "{found} of 10 runs fail on a device that ignores flushes");
}
