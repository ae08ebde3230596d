//! Forks and crashes: a state after a power failure has the trees from before a fork, deletion or
//! renaming, or those from after it. Each tree has all that was made durable in it. No tree ever
//! shows a change of another.
//!
//! The judge has its own model: trees are maps of files, and a fork is a deep copy. For each block
//! of a file the model has the stamps that a crash may leave, beginning with the last durable one.

use crate::ops::{OWNER, errno};
use crate::rig::{self, Setup};
use kedge_base::{Clock, ManualClock, SystemClock};
use kedge_device::MemDevice;
use kedge_device::sim::{FaultPlan, OpKind, SimDevice, StatePlan};
use kedgefs::{Error, FallocateMode, FileSystem, Ino};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Bytes of a sector, which a torn write leaves whole.
const SECTOR: usize = 512;
/// Limit of blocks in a file.
const BLOCKS: usize = 6;
const TREES_MAX: usize = 6;
const FILES_MAX: usize = 12;
const MIB: u64 = 1 << 20;
const LARGE: u64 = 24 * MIB;
const SMALL: u64 = 17 * MIB;
/// Name and length of the tree that fills the space below the small size, so that new blocks lie
/// beyond.
const FILLER: (&[u8], u64) = (b"x", 16 * MIB);

/// What a crash may leave of a file.
#[derive(Clone)]
struct File {
    /// Whether the file has its name: the durable state, then later ones.
    named: Vec<bool>,
    /// For each block the durable stamp, then later ones. Stamp 0 stands for zeros and for no
    /// block.
    stamps: [Vec<u32>; BLOCKS],
}

impl File {
    fn settle(&mut self) {
        self.stamps.iter_mut().for_each(|stamps| drop(stamps.drain(..stamps.len() - 1)));
        self.named.drain(..self.named.len() - 1);
    }

    fn is_named(&self) -> bool {
        self.named.last() == Some(&true)
    }
}

type Files = BTreeMap<u32, File>;

/// Trees by name. The first tree has the name 0.
#[derive(Clone, Default)]
struct Model(BTreeMap<u32, Files>);

impl Model {
    fn settle(&mut self) {
        for files in self.0.values_mut() {
            files.values_mut().for_each(File::settle);
            files.retain(|_, file| file.is_named());
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Writes blocks of a file, which is created if it does not exist.
    Write {
        tree: u32,
        file: u32,
        from: usize,
        to: usize,
        stamp: u32,
    },
    Unlink {
        tree: u32,
        file: u32,
    },
    Fsync {
        tree: u32,
        file: u32,
    },
    Sync,
    Checkpoint,
    Fork {
        source: u32,
        name: u32,
    },
    Delete {
        name: u32,
    },
    Rename {
        from: u32,
        to: u32,
    },
    RollBack {
        source: u32,
        name: u32,
    },
    Commit {
        fork: u32,
        name: u32,
    },
    /// Replaces the first tree by a fork of the source.
    RollBackRoot {
        source: u32,
    },
    /// Moves the fork to the place of the first tree.
    CommitRoot {
        fork: u32,
    },
    Reclaim,
    /// Makes the image smaller, unless trees prevent it, or as large as at first. While the image
    /// is large, a tree that the judge ignores has most blocks below the small size, so that new
    /// blocks lie beyond it.
    Resize {
        large: bool,
    },
    /// Makes blocks of a file share those of another. The file is created if it does not exist.
    Clone {
        tree: u32,
        source: u32,
        file: u32,
        from: usize,
        to: usize,
    },
}

/// The kinds of steps besides writes and fsyncs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steps {
    /// Operations on trees.
    Forks,
    /// Operations on trees, and clones of files.
    Clones,
    /// Operations on trees, clones of files, and changes of the image's size.
    Sizes,
}

/// Checks every crash state that `plan` selects, of `steps` random steps. Returns their number.
pub fn check(kind: Steps, seed: u64, steps: usize, plan: StatePlan) -> Result<usize, String> {
    let setup = Setup { image: LARGE, ..crate::explore::setup() };
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    if kind == Steps::Sizes {
        take(&fs, Step::Resize { large: true }).map_err(|e| format!("filler: {e}"))?;
    }
    let (mut size, mut shrinks) = (LARGE, 0);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut models = vec![Model(BTreeMap::from([(0, Files::new())]))];
    let mut done = Vec::new();
    for n in 0..steps {
        let mut model = models.last().expect("the first").clone();
        let step = choose(&mut random, kind, &model, n as u32 + 1);
        take(&fs, step).map_err(|e| format!("step {n}, {step:?}: {e}"))?;
        let now = fs.statfs().blocks * BLOCK as u64;
        shrinks += usize::from(now < size);
        size = now;
        foresee(&mut model, step);
        models.push(model);
        done.push(step);
        device.mark(n as u64 + 1);
    }
    fs.close().map_err(|e| format!("close: {e}"))?;
    drop(fs);
    if kind == Steps::Sizes && shrinks == 0 {
        return Err(format!("seed {seed}: the image never became smaller"));
    }
    let mut count = 0;
    for state in device.recording().states(plan) {
        count += 1;
        let mark = state.mark.unwrap_or(0) as usize;
        let around = done[..(mark + 1).min(done.len())].iter().rev().take(12).collect::<Vec<_>>();
        let place = format!(
            "seed {seed}, state {count}, after event {}, {:?}, step {mark}; last steps first: {around:?}",
            state.at, state.choice
        );
        let later = &models[(mark + 1).min(models.len() - 1)];
        judge(state.medium, &setup, &models[mark], later, count % 8 == 0)
            .map_err(|e| format!("{e}\n{place}"))?;
    }
    Ok(count)
}

fn choose(random: &mut SmallRng, kind: Steps, model: &Model, stamp: u32) -> Step {
    let trees: Vec<u32> = model.0.keys().copied().collect();
    let tree = trees[random.random_range(0..trees.len())];
    let named: Vec<u32> =
        model.0[&tree].iter().filter(|(_, file)| file.is_named()).map(|(name, _)| *name).collect();
    let one = |random: &mut SmallRng| named[random.random_range(0..named.len())];
    let forks = &trees[1..];
    if kind == Steps::Clones && !named.is_empty() && random.random_bool(0.25) {
        let source = one(random);
        let is_new = named.len() < FILES_MAX && random.random_bool(0.5);
        let file = if is_new { stamp } else { one(random) };
        let whole = is_new || random.random_bool(0.5);
        let from = if whole { 0 } else { random.random_range(0..BLOCKS) };
        let to = if whole { BLOCKS } else { random.random_range(from + 1..=BLOCKS) };
        if file != source {
            return Step::Clone { tree, source, file, from, to };
        }
    }
    if kind == Steps::Sizes && random.random_bool(0.1) {
        return Step::Resize { large: random.random_bool(0.5) };
    }
    match random.random_range(0..100) {
        0..12 if trees.len() < TREES_MAX => Step::Fork { source: tree, name: stamp },
        12..18 if !forks.is_empty() => Step::Delete { name: forks[random.random_range(0..forks.len())] },
        18..20 if !forks.is_empty() => {
            Step::Rename { from: forks[random.random_range(0..forks.len())], to: stamp }
        }
        20..22 if forks.len() > 1 => {
            let at = random.random_range(0..forks.len());
            let (name, other) = (forks[at], forks[(at + 1) % forks.len()]);
            match random.random_bool(0.5) {
                true => Step::RollBack { source: if other == tree { 0 } else { other }, name },
                false => Step::Commit { fork: other, name },
            }
        }
        22..24 if !forks.is_empty() => {
            let from = forks[random.random_range(0..forks.len())];
            match random.random_bool(0.5) {
                true => Step::RollBackRoot { source: from },
                false => Step::CommitRoot { fork: from },
            }
        }
        20..25 => Step::Reclaim,
        25..29 => Step::Checkpoint,
        29..33 => Step::Sync,
        33..45 if !named.is_empty() => Step::Fsync { tree, file: one(random) },
        45..50 if !named.is_empty() => Step::Unlink { tree, file: one(random) },
        _ => {
            // A new file has a name that was never used, so that after a crash a name identifies
            // the file.
            let file = if named.len() < FILES_MAX && random.random_bool(0.3) || named.is_empty() {
                stamp
            } else {
                one(random)
            };
            let whole = file == stamp || random.random_bool(0.3);
            let from = if whole { 0 } else { random.random_range(0..BLOCKS) };
            let to = if whole { BLOCKS } else { random.random_range(from + 1..=BLOCKS) };
            Step::Write { tree, file, from, to, stamp }
        }
    }
}

/// Applies the step to the model.
fn foresee(model: &mut Model, step: Step) {
    match step {
        Step::Write { tree, file, from, to, stamp } => {
            let files = model.0.get_mut(&tree).expect("chosen");
            let new = || File { named: vec![false, true], stamps: std::array::from_fn(|_| vec![0]) };
            let file = files.entry(file).or_insert_with(new);
            file.stamps[from..to].iter_mut().for_each(|stamps| stamps.push(stamp));
        }
        Step::Clone { tree, source, file, from, to } => {
            let files = model.0.get_mut(&tree).expect("chosen");
            let stamps = files[&source].stamps.clone();
            let new = || File { named: vec![false, true], stamps: std::array::from_fn(|_| vec![0]) };
            let file = files.entry(file).or_insert_with(new);
            for (old, stamps) in file.stamps.iter_mut().zip(stamps).skip(from).take(to - from) {
                old.push(*stamps.last().expect("the durable one"));
            }
        }
        Step::Unlink { tree, file } => {
            let file = model.0.get_mut(&tree).expect("chosen").get_mut(&file).expect("chosen");
            file.named.push(false);
        }
        Step::Fsync { tree, file } => {
            model.0.get_mut(&tree).expect("chosen").get_mut(&file).expect("chosen").settle();
        }
        Step::Sync | Step::Resize { .. } => model.settle(),
        // These steps may make anything durable, which the model allows already. They change no
        // content.
        Step::Checkpoint | Step::Reclaim => {}
        Step::Fork { source, name } => {
            model.settle();
            let copy = model.0[&source].clone();
            model.0.insert(name, copy);
        }
        Step::Delete { name } => {
            model.settle();
            model.0.remove(&name);
        }
        Step::RollBack { source, name } => {
            model.settle();
            let copy = model.0[&source].clone();
            model.0.insert(name, copy);
        }
        Step::RollBackRoot { source } => {
            model.settle();
            let copy = model.0[&source].clone();
            model.0.insert(0, copy);
        }
        Step::CommitRoot { fork } => {
            model.settle();
            let files = model.0.remove(&fork).expect("chosen");
            model.0.insert(0, files);
        }
        Step::Commit { fork: from, name: to } | Step::Rename { from, to } => {
            model.settle();
            let files = model.0.remove(&from).expect("chosen");
            model.0.insert(to, files);
        }
    }
}

fn name_of(kind: char, number: u32) -> Vec<u8> {
    format!("{kind}{number}").into_bytes()
}

fn root(fs: &FileSystem, tree: u32) -> Result<Ino, Error> {
    if tree == 0 { Ok(Ino::ROOT) } else { Ok(fs.lookup(Ino::ROOT, &name_of('t', tree))?.ino) }
}

fn take(fs: &FileSystem, step: Step) -> Result<(), Error> {
    match step {
        Step::Write { tree, file, from, to, stamp } => {
            let (dir, name) = (root(fs, tree)?, name_of('f', file));
            let ino = match fs.lookup(dir, &name) {
                Err(Error::NotFound) => fs.create(dir, &name, 0o644, OWNER)?.ino,
                found => found?.ino,
            };
            let bytes = stamp.to_le_bytes().repeat((to - from) * BLOCK / 4);
            fs.write(ino, (from * BLOCK) as u64, &bytes).map(drop)
        }
        Step::Clone { tree, source, file, from, to } => {
            let (dir, name) = (root(fs, tree)?, name_of('f', file));
            let source = fs.lookup(dir, &name_of('f', source))?.ino;
            let ino = match fs.lookup(dir, &name) {
                Err(Error::NotFound) => fs.create(dir, &name, 0o644, OWNER)?.ino,
                found => found?.ino,
            };
            let (at, len) = ((from * BLOCK) as u64, ((to - from) * BLOCK) as u64);
            fs.clone_range(source, at, ino, at, len)
        }
        Step::Unlink { tree, file } => fs.unlink(root(fs, tree)?, &name_of('f', file)),
        Step::Fsync { tree, file } => {
            let ino = fs.lookup(root(fs, tree)?, &name_of('f', file))?.ino;
            fs.fsync(ino, false)
        }
        Step::Sync => fs.sync(),
        Step::Checkpoint => fs.checkpoint(),
        Step::Fork { source, name } => {
            fs.fork(root(fs, source)?, Ino::ROOT, &name_of('t', name), false).map(drop)
        }
        Step::Delete { name } => fs.delete_tree(Ino::ROOT, &name_of('t', name)),
        Step::Rename { from, to } => {
            fs.rename_tree(Ino::ROOT, &name_of('t', from), Ino::ROOT, &name_of('t', to))
        }
        Step::RollBack { source, name } => {
            fs.roll_back(root(fs, source)?, Ino::ROOT, &name_of('t', name)).map(drop)
        }
        Step::Commit { fork, name } => fs.commit_tree(root(fs, fork)?, Ino::ROOT, &name_of('t', name), true),
        Step::RollBackRoot { source } => fs.roll_back_root(root(fs, source)?),
        Step::CommitRoot { fork } => fs.commit_root(root(fs, fork)?, true),
        Step::Reclaim => fs.reclaim(),
        Step::Resize { large } => resize(fs, large),
    }
}

fn resize(fs: &FileSystem, large: bool) -> Result<(), Error> {
    let (name, len) = FILLER;
    fs.sync()?;
    let filler = match fs.lookup(Ino::ROOT, name) {
        Err(Error::NotFound) => None,
        found => Some(found?.ino),
    };
    if large {
        fs.resize(Some(LARGE))?;
        if filler.is_none() {
            let root = fs.fork(Ino::ROOT, Ino::ROOT, name, false)?.ino;
            let ino = fs.create(root, name, 0o644, OWNER)?.ino;
            fs.fallocate(ino, FallocateMode::Allocate { keep_size: false }, 0, len)?;
            fs.fsync(ino, false)?;
        }
        return Ok(());
    }
    if filler.is_some() {
        fs.delete_tree(Ino::ROOT, name)?;
    }
    match fs.resize(Some(SMALL)) {
        // A *point*, the common past of two trees, has blocks beyond the new end.
        Err(e) if e.errno() == 22 => Ok(()),
        done => done.map(drop),
    }
}

fn judge(medium: MemDevice, setup: &Setup, before: &Model, after: &Model, far: bool) -> Result<(), String> {
    rig::fsck(medium.fork())?;
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup)?;
    let found = read(&fs)?;
    compare(&found, before)
        .or_else(|e| compare(&found, after).map_err(|later| format!("{e}; by the next step: {later}")))?;
    if !far {
        return Ok(());
    }
    // Freeing and overwriting blocks of one tree must not change another tree.
    let said = |e: Error| format!("after the recovery: {e}");
    fs.reclaim().map_err(said)?;
    let mut expected = found;
    let names: Vec<u32> = expected.keys().copied().collect();
    for (n, tree) in names.into_iter().enumerate() {
        let stamp = 1_000_000 + n as u32;
        if tree != 0 && n % 2 == 0 {
            take(&fs, Step::Delete { name: tree }).map_err(said)?;
            expected.remove(&tree);
            fs.reclaim().map_err(said)?;
        } else {
            for file in [7_000_000, 7_000_001] {
                take(&fs, Step::Write { tree, file, from: 0, to: BLOCKS, stamp }).map_err(said)?;
                expected
                    .get_mut(&tree)
                    .expect("just listed")
                    .insert(file, std::array::from_fn(|_| vec![stamp]));
            }
        }
        fs.sync().map_err(said)?;
    }
    let found = read(&fs)?;
    if found != expected {
        return Err(format!("after the recovery: {found:?} instead of {expected:?}"));
    }
    fs.close().map_err(said)?;
    rig::fsck(device.view())
}

/// For each file of each tree: the distinct stamps of the sectors of each block.
type Found = BTreeMap<u32, BTreeMap<u32, [Vec<u32>; BLOCKS]>>;

fn read(fs: &FileSystem) -> Result<Found, String> {
    let said = |e: Error| format!("read: {e}");
    let mut found = Found::from([(0, BTreeMap::new())]);
    let number = |name: &[u8]| -> Result<u32, String> {
        std::str::from_utf8(&name[1..]).ok().and_then(|n| n.parse().ok()).ok_or_else(|| format!("{name:?}"))
    };
    for (name, _) in entries(fs, Ino::ROOT).map_err(said)?.into_iter().filter(|(name, _)| name[0] == b't') {
        found.insert(number(&name)?, BTreeMap::new());
    }
    for (tree, files) in &mut found {
        let dir = root(fs, *tree).map_err(said)?;
        for (name, ino) in entries(fs, dir).map_err(said)?.into_iter().filter(|(name, _)| name[0] == b'f') {
            let mut bytes = vec![0; BLOCKS * BLOCK + 1];
            let len = fs.read(ino, 0, &mut bytes).map_err(said)?;
            if len > BLOCKS * BLOCK {
                return Err(format!("a file of {len} bytes"));
            }
            let mut stamps = [const { Vec::new() }; BLOCKS];
            for (stamps, block) in stamps.iter_mut().zip(bytes.chunks(BLOCK)) {
                for sector in block.chunks(SECTOR) {
                    let stamp = u32::from_le_bytes(sector[..4].try_into().expect("4 bytes"));
                    if sector.chunks(4).any(|word| word != stamp.to_le_bytes()) {
                        return Err(format!("a sector of several stamps, {stamp} first"));
                    }
                    stamps.push(stamp);
                }
                stamps.sort_unstable();
                stamps.dedup();
            }
            files.insert(number(&name)?, stamps);
        }
    }
    Ok(found)
}

fn entries(fs: &FileSystem, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>, Error> {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.push((entry.name.to_vec(), entry.ino));
        }
        true
    })?;
    Ok(entries)
}

fn compare(found: &Found, model: &Model) -> Result<(), String> {
    if !found.keys().eq(model.0.keys()) {
        let trees: Vec<_> = found.keys().collect();
        return Err(format!("trees {trees:?} instead of {:?}", model.0.keys().collect::<Vec<_>>()));
    }
    for ((tree, found), files) in found.iter().zip(model.0.values()) {
        if let Some(file) = found.keys().find(|file| !files.contains_key(file)) {
            return Err(format!("tree {tree} has file {file}, which it should not have"));
        }
        for (name, file) in files {
            let found = found.get(name);
            if !file.named.contains(&found.is_some()) {
                return Err(format!("file {name} of tree {tree}: found {found:?}"));
            }
            for (i, allowed) in file.stamps.iter().enumerate() {
                let strange = found.and_then(|stamps| stamps[i].iter().find(|s| !allowed.contains(s)));
                if let Some(stamp) = strange {
                    return Err(format!(
                        "block {i} of file {name} of tree {tree} is of step {stamp}, allowed are {allowed:?}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// The first tree is replaced. Trees that are named in it keep their paths, although its
/// directories get other inode numbers: in each state these paths exist, in the old first tree or
/// in the new one.
pub fn check_root(plan: StatePlan) -> Result<usize, String> {
    let said = |e: Error| e.to_string();
    let setup = Setup { image: 24 << 20, ..crate::explore::setup() };
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let put = |dir: Ino, byte: u8| {
        let ino = fs.create(dir, b"file", 0o644, OWNER)?.ino;
        fs.write(ino, 0, &vec![byte; 3 * BLOCK]).map(drop)
    };
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).map_err(said)?.ino;
    for n in 0..40 {
        fs.mkdir(Ino::ROOT, format!("pad{n}").as_bytes(), 0o755, OWNER).map_err(said)?;
    }
    let mkdir = |at: Ino| fs.mkdir(at, b"d", 0o755, OWNER);
    let (dir, other) = (mkdir(Ino::ROOT).map_err(said)?.ino, mkdir(fork).map_err(said)?.ino);
    if dir.local() == other.local() {
        return Err("the two directories have one number".into());
    }
    put(dir, 1).map_err(said)?;
    put(other, 2).map_err(said)?;
    let inside = fs.fork(Ino::ROOT, dir, b"tree", false).map_err(said)?.ino;
    put(inside, 3).map_err(said)?;
    fs.sync().map_err(said)?;
    device.mark(1);
    fs.roll_back_root(fork).map_err(said)?;
    device.mark(2);
    fs.reclaim().map_err(said)?;
    fs.close().map_err(said)?;
    drop(fs);
    let mut count = 0;
    for state in device.recording().states(plan) {
        let Some(mark) = state.mark else { continue };
        count += 1;
        let place = format!("state {count}, after event {}, {:?}", state.at, state.choice);
        let looked = rig::fsck(state.medium.fork()).and_then(|()| {
            let device = Arc::new(SimDevice::new(state.medium));
            let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
            let first = |at: Ino| {
                let mut byte = [0];
                fs.read(fs.lookup(at, b"file")?.ino, 0, &mut byte).map(|_| byte[0])
            };
            let dir = fs.lookup(Ino::ROOT, b"d").map_err(said)?.ino;
            let tree = fs.lookup(dir, b"tree").map_err(said)?.ino;
            let found = (first(dir).map_err(said)?, first(tree).map_err(said)?);
            let old = fs.lookup(Ino::ROOT, b"pad7").is_ok();
            match (found, old, mark) {
                ((1, 3), true, 1) | ((2, 3), false, _) => Ok(()),
                _ => Err(format!("{found:?}, the old contents: {old}, after step {mark}")),
            }
        });
        looked.map_err(|e| format!("{e}\n{place}"))?;
    }
    Ok(count)
}

/// A full image gets files in the blocks of a deleted fork, while checkpoints free these blocks.
/// Each state passes fsck, and has the files whose fsync returned.
pub fn check_reuse(plan: StatePlan) -> Result<usize, String> {
    const FILE: usize = 64 << 10;
    let said = |e: Error| e.to_string();
    let setup = Setup { image: 24 << 20, ..crate::explore::setup() };
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let put = |dir: Ino, name: String, byte: u8| {
        let ino = fs.create(dir, name.as_bytes(), 0o644, OWNER)?.ino;
        fs.write(ino, 0, &vec![byte; FILE])?;
        fs.fsync(ino, false)
    };
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).map_err(said)?.ino;
    for i in 0..64 {
        put(fork, format!("of the fork {i}"), 1).map_err(said)?;
    }
    let mut filler = 0;
    while put(Ino::ROOT, format!("filler {filler}"), 2).is_ok() {
        filler += 1;
    }
    // The device is so slow that files are created while a checkpoint is written.
    device.set_plan(FaultPlan::new(1).latency(OpKind::Write, Duration::from_millis(2)));
    fs.delete_tree(Ino::ROOT, b"fork").map_err(said)?;
    let mut made = 0;
    for attempt in 0..5000u64 {
        if made == 40 {
            break;
        }
        match put(Ino::ROOT, format!("new {made}"), 3) {
            Ok(()) => made += 1,
            Err(e) if e.errno() == errno::ENOSPC => {
                fs.unlink(Ino::ROOT, format!("new {made}").as_bytes()).or_else(unnamed).map_err(said)?;
                SystemClock::default().sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(format!("attempt {attempt}: {e}")),
        }
        device.mark(made);
    }
    if made < 40 {
        return Err(format!("only {made} files had room"));
    }
    drop(fs);
    let mut count = 0;
    for state in device.recording().states(plan) {
        count += 1;
        let place = format!("state {count}, after event {}, {:?}", state.at, state.choice);
        rig::fsck(state.medium.fork()).map_err(|e| format!("{e}\n{place}"))?;
        let device = Arc::new(SimDevice::new(state.medium));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
        for i in 0..state.mark.unwrap_or(0) {
            let ino = fs.lookup(Ino::ROOT, format!("new {i}").as_bytes()).map_err(said)?.ino;
            let mut bytes = vec![0; FILE];
            let len = fs.read(ino, 0, &mut bytes).map_err(said)?;
            if len != FILE || bytes.iter().any(|byte| *byte != 3) {
                return Err(format!("file {i} does not have its bytes\n{place}"));
            }
        }
    }
    Ok(count)
}

/// Ignores that a file was not found: its creation failed, so it has no name to remove.
fn unnamed(e: Error) -> Result<(), Error> {
    if matches!(e, Error::NotFound) { Ok(()) } else { Err(e) }
}
