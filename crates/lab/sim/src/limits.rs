//! Limits and crashes: a state after a power failure has the limits from before a change or from
//! after it. Their counts are exact, and no directory has more than its limit ever allowed.
//!
//! The counts are compared by fsck, and by a walk through the mounted image. The most that a
//! directory may have is its maximum, or what it had when the maximum was set, if that was more.

use crate::ops::OWNER;
use crate::rig::{self, Setup};
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_device::sim::{SimDevice, StatePlan};
use kedgefs::{Error, FallocateMode, FileKind, FileSystem, Ino, Limit, RenameMode, SetAttr, SetLimit};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// The directories that get limits: `a`, `a/b` inside it, and `c`.
const DIRS: [&str; 3] = ["/a", "/a/b", "/c"];
const FILES: u32 = 6;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        dir: usize,
        file: u32,
        offset: u64,
        len: usize,
    },
    /// Writes few bytes, which an fsync puts into the log.
    Small {
        dir: usize,
        file: u32,
        offset: u64,
    },
    Truncate {
        dir: usize,
        file: u32,
        size: u64,
    },
    Allocate {
        dir: usize,
        file: u32,
        offset: u64,
        len: u64,
    },
    Punch {
        dir: usize,
        file: u32,
        offset: u64,
        len: u64,
    },
    Unlink {
        dir: usize,
        file: u32,
    },
    Move {
        dir: usize,
        file: u32,
        to: usize,
    },
    Fsync {
        dir: usize,
        file: u32,
    },
    Sync,
    Checkpoint,
    Set {
        dir: usize,
        blocks: u64,
        files: u64,
    },
    Remove {
        dir: usize,
    },
    /// Makes and removes a directory with a limit.
    Passing,
    Fork,
    DeleteFork,
}

/// The maxima of a directory, in bytes and files, and the most that it may have after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    max: (u64, u64),
    bytes: u64,
    files: u64,
}

type Bounds = BTreeMap<&'static str, Bound>;

fn said(e: Error) -> String {
    e.to_string()
}

/// Checks every crash state that `plan` selects, of `steps` random steps. Returns their number.
pub fn check(seed: u64, steps: usize, plan: StatePlan) -> Result<usize, String> {
    let setup = Setup { image: 24 << 20, ..crate::explore::setup() };
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let a = fs.mkdir(Ino::ROOT, b"a", 0o755, OWNER).map_err(said)?.ino;
    let b = fs.mkdir(a, b"b", 0o755, OWNER).map_err(said)?.ino;
    let c = fs.mkdir(Ino::ROOT, b"c", 0o755, OWNER).map_err(said)?.ino;
    let dirs = [a, b, c];
    fs.sync().map_err(said)?;
    device.mark(0);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut bounds = vec![Bounds::new()];
    let mut done = Vec::new();
    let mut forked = false;
    for n in 0..steps {
        let step = choose(&mut random, &mut forked);
        take(&fs, &dirs, step).map_err(|e| format!("seed {seed}, step {n}, {step:?}: {e}"))?;
        let mut bound = bounds.last().expect("the first").clone();
        foresee(&fs, &dirs, step, &mut bound)?;
        live(&fs, &bound).map_err(|e| format!("seed {seed}, after step {n}, {step:?}: {e}"))?;
        bounds.push(bound);
        done.push(step);
        device.mark(n as u64 + 1);
    }
    fs.close().map_err(|e| format!("close: {e}"))?;
    drop(fs);
    let mut count = 0;
    let recording = device.recording();
    for state in recording.states(plan) {
        // Before the first mark the directories do not exist.
        let Some(mark) = state.mark.map(|mark| mark as usize) else { continue };
        count += 1;
        let around = done[..(mark + 1).min(done.len())].iter().rev().take(12).collect::<Vec<_>>();
        let place = format!(
            "seed {seed}, state {count}, after event {}, {:?}, step {mark}; last steps first: {around:?}",
            state.at, state.choice
        );
        let later = &bounds[(mark + 1).min(bounds.len() - 1)];
        judge(state.medium, &setup, (&bounds[mark], later), count % 4 == 0)
            .map_err(|e| format!("{e}\n{place}"))?;
    }
    Ok(count)
}

fn choose(random: &mut SmallRng, forked: &mut bool) -> Step {
    let dir = random.random_range(0..DIRS.len());
    let file = random.random_range(0..FILES);
    let offset = random.random_range(0..30) * 2000;
    let len = random.random_range(1..50_000);
    match random.random_range(0..100) {
        0..10 => Step::Set { dir, blocks: random.random_range(1..40), files: random.random_range(2..12) },
        10..12 => Step::Remove { dir },
        12..15 => Step::Passing,
        15..18 => {
            *forked = !*forked;
            if *forked { Step::Fork } else { Step::DeleteFork }
        }
        18..24 => Step::Sync,
        24..28 => Step::Checkpoint,
        28..38 => Step::Fsync { dir, file },
        38..48 => Step::Unlink { dir, file },
        48..53 => Step::Truncate { dir, file, size: offset },
        53..57 => Step::Allocate { dir, file, offset, len: len as u64 },
        57..60 => Step::Punch { dir, file, offset, len: len as u64 },
        60..63 => Step::Move { dir, file, to: random.random_range(0..DIRS.len()) },
        63..75 => Step::Small { dir, file, offset },
        _ => Step::Write { dir, file, offset, len },
    }
}

/// Accepts the refusals that a step may meet.
fn allowed(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::OverLimit | Error::CrossLimit | Error::NotFound) => Ok(()),
        other => other,
    }
}

fn take(fs: &FileSystem, dirs: &[Ino; 3], step: Step) -> Result<(), Error> {
    let name = |file: u32| format!("f{file}").into_bytes();
    let find = |dir: usize, file: u32| Ok::<_, Error>(fs.lookup(dirs[dir], &name(file))?.ino);
    let make = |dir: usize, file: u32| match find(dir, file) {
        Err(Error::NotFound) => Ok(fs.create(dirs[dir], &name(file), 0o644, OWNER)?.ino),
        found => found,
    };
    let all = |max| SetLimit { bytes: Some(max), files: Some(max) };
    let outcome = match step {
        Step::Write { dir, file, offset, len } => {
            make(dir, file).and_then(|ino| fs.write(ino, offset, &vec![file as u8 + 1; len])).map(drop)
        }
        Step::Small { dir, file, offset } => make(dir, file).and_then(|ino| {
            fs.write(ino, offset, b"a few bytes")?;
            fs.fsync(ino, true)
        }),
        Step::Truncate { dir, file, size } => find(dir, file)
            .and_then(|ino| fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)),
        Step::Allocate { dir, file, offset, len } => make(dir, file)
            .and_then(|ino| fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, offset, len)),
        Step::Punch { dir, file, offset, len } => {
            find(dir, file).and_then(|ino| fs.fallocate(ino, FallocateMode::PunchHole, offset, len))
        }
        Step::Unlink { dir, file } => fs.unlink(dirs[dir], &name(file)),
        Step::Move { dir, file, to } => {
            fs.rename(dirs[dir], &name(file), dirs[to], &name(0), RenameMode::Replace)
        }
        Step::Fsync { dir, file } => find(dir, file).and_then(|ino| fs.fsync(ino, false)),
        Step::Sync => fs.sync(),
        Step::Checkpoint => fs.checkpoint(),
        Step::Set { dir, blocks, files } => {
            let set = SetLimit { bytes: Some(Some(blocks * BLOCK)), files: Some(Some(files)) };
            fs.set_limit(dirs[dir], set).map(drop)
        }
        Step::Remove { dir } => fs.set_limit(dirs[dir], all(None)).map(drop),
        Step::Passing => {
            let dir = fs.mkdir(Ino::ROOT, b"passing", 0o755, OWNER)?.ino;
            fs.set_limit(dir, all(Some(1 << 20)))?;
            let ino = fs.create(dir, b"file", 0o644, OWNER)?.ino;
            fs.write(ino, 0, &[1; 5000])?;
            fs.unlink(dir, b"file")?;
            fs.rmdir(Ino::ROOT, b"passing")
        }
        Step::Fork => fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).map(drop),
        Step::DeleteFork => fs.delete_tree(Ino::ROOT, b"fork"),
    };
    allowed(outcome)
}

/// Computes the bounds after a step. A limit and the limits around it hold together, so each is
/// checked by itself.
fn foresee(fs: &FileSystem, dirs: &[Ino; 3], step: Step, bounds: &mut Bounds) -> Result<(), String> {
    match step {
        Step::Set { dir, blocks, files } => {
            let limit = fs.limit_of(dirs[dir]).map_err(said)?.ok_or("a limit that was set is not there")?;
            let max = (blocks * BLOCK, files);
            let bound = Bound { max, bytes: max.0.max(limit.bytes), files: max.1.max(limit.files) };
            bounds.insert(DIRS[dir], bound);
        }
        Step::Remove { dir } => drop(bounds.remove(DIRS[dir])),
        _ => {}
    }
    Ok(())
}

/// Returns the limits of the first tree by path, without those of a passing directory.
fn limits(fs: &FileSystem) -> Result<BTreeMap<String, Limit>, String> {
    let mut limits = BTreeMap::new();
    for limit in fs.limits() {
        let path = String::from_utf8_lossy(&fs.path_of(limit.dir).map_err(said)?).into_owned();
        if DIRS.contains(&path.as_str()) {
            limits.insert(path, limit);
        }
    }
    Ok(limits)
}

fn live(fs: &FileSystem, bounds: &Bounds) -> Result<(), String> {
    for (path, limit) in limits(fs)? {
        let bound = bounds.get(path.as_str()).ok_or_else(|| format!("{path} has a limit: {limit:?}"))?;
        if limit.bytes > bound.bytes || limit.files > bound.files {
            return Err(format!("{path} is above its limit: {limit:?}, {bound:?}"));
        }
    }
    Ok(())
}

/// Counts bytes and inodes of a directory and everything below it, in its tree only.
fn recount(fs: &FileSystem, dir: Ino) -> Result<(u64, u64), String> {
    let mut seen = BTreeSet::from([dir]);
    let (mut dirs, mut sectors) = (vec![dir], 0);
    while let Some(at) = dirs.pop() {
        let mut found = Vec::new();
        fs.readdir(at, 2, &mut |entry| {
            found.push((entry.ino, entry.kind));
            true
        })
        .map_err(said)?;
        for (ino, kind) in found {
            if ino.tree() == dir.tree() && seen.insert(ino) {
                sectors += fs.getattr(ino).map_err(said)?.blocks;
                if kind == FileKind::Directory {
                    dirs.push(ino);
                }
            }
        }
    }
    Ok((sectors * 512, seen.len() as u64))
}

fn judge(medium: MemDevice, setup: &Setup, around: (&Bounds, &Bounds), far: bool) -> Result<(), String> {
    rig::fsck(medium.fork())?;
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup)?;
    let found = limits(&fs)?;
    let has = |bounds: &Bounds| {
        bounds.len() == found.len()
            && found.iter().all(|(path, limit)| {
                let max = (limit.bytes_max, limit.files_max);
                bounds.get(path.as_str()).is_some_and(|b| max == (Some(b.max.0), Some(b.max.1)))
            })
    };
    if !has(around.0) && !has(around.1) {
        return Err(format!("limits {found:?} instead of {:?} or {:?}", around.0, around.1));
    }
    for (path, limit) in &found {
        let really = recount(&fs, limit.dir)?;
        if (limit.bytes, limit.files) != really {
            return Err(format!("{path} counts {limit:?}, and has {really:?}"));
        }
        let bounds = [around.0, around.1].map(|bounds| bounds.get(path.as_str()));
        let most = |of: fn(&Bound) -> u64| bounds.into_iter().flatten().map(of).max().unwrap_or(0);
        if limit.bytes > most(|b| b.bytes) || limit.files > most(|b| b.files) {
            return Err(format!("{path} is above its limit: {limit:?}, {bounds:?}"));
        }
    }
    for limit in fs.limits().iter().filter(|limit| limit.dir.tree() != 0) {
        let really = recount(&fs, limit.dir)?;
        if (limit.bytes, limit.files) != really {
            return Err(format!("a fork counts {limit:?}, and has {really:?}"));
        }
    }
    if far { go_on(&fs, &found).and_then(|()| rig::fsck(device.view())) } else { Ok(()) }
}

/// Fills each limit after the recovery: exactly what is left can be written.
fn go_on(fs: &FileSystem, limits: &BTreeMap<String, Limit>) -> Result<(), String> {
    for limit in limits.values() {
        let now = || fs.limit_of(limit.dir).map_err(said)?.ok_or_else(|| "a limit is gone".to_owned());
        let ino = match fs.create(limit.dir, b"filler", 0o644, OWNER) {
            Err(Error::OverLimit) => continue,
            made => made.map_err(said)?.ino,
        };
        let left = now()?.bytes_max.unwrap_or(0).saturating_sub(now()?.bytes);
        let data = vec![9; left as usize + 10_000];
        match fs.write(ino, 0, &data) {
            Ok(written) if written as u64 <= left => {}
            Err(Error::OverLimit) => {}
            other => return Err(format!("a write into a limit with {left} bytes left: {other:?}")),
        }
        if now()?.inside.is_none() && now()?.bytes < now()?.bytes_max.unwrap_or(0) {
            return Err(format!("refused below the maximum: {:?}", now()?));
        }
    }
    fs.sync().map_err(said)?;
    fs.close().map_err(said)
}
