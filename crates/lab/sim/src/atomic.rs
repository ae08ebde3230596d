//! Atomic writes and crashes: a state after a power failure has all pieces of an atomic write or
//! none, and has each atomic write whose commit returned. Other writes, fsyncs, truncates and
//! checkpoints run in between.
//!
//! The judge has its own model: a file is a row of cells of one sector. For each cell the model has
//! the stamps that a crash may leave, beginning with the last durable one.

use crate::ops::OWNER;
use crate::rig::{self, Setup};
use kedge_base::{Clock, ManualClock, SystemClock, spawn_named};
use kedge_device::MemDevice;
use kedge_device::sim::{FaultPlan, OpKind, SimDevice, StatePlan};
use kedgefs::{Error, FileSystem, Ino, SetAttr};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a cell: a sector, which a torn write leaves whole.
const CELL: usize = 512;
const BLOCK_CELLS: usize = 4096 / CELL;
/// Limit of cells in a file.
const CELLS: usize = 8 * BLOCK_CELLS;
const FILES: usize = 3;
const NAMES: [&[u8]; FILES] = [b"a", b"b", b"c"];

/// What a crash may leave of a file. For each cell: the durable stamp, then later ones. Stamp 0
/// stands for zeros and for offsets beyond the end.
#[derive(Clone)]
struct File {
    stamps: Vec<Vec<u32>>,
}

impl File {
    fn settle(&mut self) {
        self.stamps.iter_mut().for_each(|stamps| drop(stamps.drain(..stamps.len() - 1)));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        file: usize,
        from: usize,
        to: usize,
        stamp: u32,
    },
    /// Writes several runs of cells of one file.
    Atomic {
        file: usize,
        runs: Vec<(usize, usize)>,
        stamp: u32,
    },
    /// An atomic write that is dropped without a commit.
    Abort {
        file: usize,
        stamp: u32,
    },
    Truncate {
        file: usize,
        cells: usize,
    },
    Fsync {
        file: usize,
    },
    Checkpoint,
}

/// Checks every crash state that `plan` selects, of `steps` random steps. Returns their number.
pub fn check(seed: u64, steps: usize, checksums: bool, plan: StatePlan) -> Result<usize, String> {
    let setup = Setup { checksums, ..crate::explore::setup() };
    let device = Arc::new(SimDevice::new(setup.format()?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let mut random = SmallRng::seed_from_u64(seed);
    for name in NAMES {
        fs.create(Ino::ROOT, name, 0o644, OWNER).map_err(|e| format!("create: {e}"))?;
    }
    fs.sync().map_err(|e| format!("sync: {e}"))?;
    let mut models = vec![vec![File { stamps: vec![vec![0]; CELLS] }; FILES]];
    let mut done: Vec<Step> = Vec::new();
    device.mark(0);
    for n in 0..steps {
        let mut model = models.last().expect("the first").clone();
        let step = choose(&mut random, n as u32 + 1);
        take(&fs, &step).map_err(|e| format!("step {n}, {step:?}: {e}"))?;
        foresee(&mut model, &step);
        models.push(model);
        done.push(step);
        device.mark(n as u64 + 1);
    }
    drop(fs);
    let mut count = 0;
    for state in device.recording().states(plan) {
        let Some(mark) = state.mark.map(|mark| mark as usize) else { continue };
        count += 1;
        let around = done[..(mark + 1).min(done.len())].iter().rev().take(8).collect::<Vec<_>>();
        let place = format!(
            "seed {seed}, state {count}, after event {}, {:?}, step {mark}; last steps first: {around:?}",
            state.at, state.choice
        );
        judge(state.medium, &setup, &models[mark], done.get(mark)).map_err(|e| format!("{e}\n{place}"))?;
    }
    Ok(count)
}

fn choose(random: &mut SmallRng, stamp: u32) -> Step {
    let file = random.random_range(0..FILES);
    match random.random_range(0..100) {
        0..45 => Step::Atomic { file, runs: some_runs(random), stamp },
        45..50 => Step::Abort { file, stamp },
        50..58 => Step::Truncate { file, cells: random.random_range(0..CELLS) },
        58..72 => Step::Fsync { file },
        72..80 => Step::Checkpoint,
        _ => {
            let from = random.random_range(0..CELLS);
            let to = random.random_range(from..CELLS.min(from + 3 * BLOCK_CELLS)) + 1;
            Step::Write { file, from, to, stamp }
        }
    }
}

/// Chooses runs of whole blocks or of parts of blocks, in random order.
fn some_runs(random: &mut SmallRng) -> Vec<(usize, usize)> {
    let whole = random.random_bool(0.5);
    let mut runs = Vec::new();
    for block in 0..CELLS / BLOCK_CELLS {
        if random.random_bool(0.5) {
            let first = block * BLOCK_CELLS;
            let (from, to) = match whole {
                true => (0, BLOCK_CELLS),
                false => (random.random_range(0..4), random.random_range(4..BLOCK_CELLS)),
            };
            runs.push((first + from, first + to));
        }
    }
    if runs.is_empty() {
        runs.push((0, BLOCK_CELLS));
    }
    runs.shuffle(random);
    runs
}

/// Applies the step to the model.
fn foresee(model: &mut [File], step: &Step) {
    match step {
        Step::Write { file, from, to, stamp } => {
            model[*file].stamps[*from..*to].iter_mut().for_each(|stamps| stamps.push(*stamp));
        }
        Step::Atomic { file, runs, stamp } => {
            for (from, to) in runs {
                model[*file].stamps[*from..*to].fill(vec![*stamp]);
            }
        }
        Step::Abort { .. } => {}
        Step::Truncate { file, cells } => {
            model[*file].stamps[*cells..].iter_mut().for_each(|stamps| stamps.push(0));
        }
        Step::Fsync { file } => model[*file].settle(),
        // A checkpoint may make anything durable, which the model allows already. It changes no
        // content.
        Step::Checkpoint => {}
    }
}

fn bytes(stamp: u32, from: usize, to: usize) -> Vec<u8> {
    stamp.to_le_bytes().repeat((to - from) * CELL / 4)
}

fn ino_of(fs: &FileSystem, file: usize) -> Result<Ino, Error> {
    Ok(fs.lookup(Ino::ROOT, NAMES[file])?.ino)
}

fn take(fs: &FileSystem, step: &Step) -> Result<(), Error> {
    match step {
        Step::Write { file, from, to, stamp } => {
            fs.write(ino_of(fs, *file)?, (from * CELL) as u64, &bytes(*stamp, *from, *to)).map(drop)
        }
        Step::Atomic { file, runs, stamp } => atomic(fs, ino_of(fs, *file)?, runs, *stamp),
        Step::Abort { file, stamp } => {
            let mut write = fs.atomic(ino_of(fs, *file)?)?;
            write.write_at(0, &bytes(*stamp, 0, CELLS))
        }
        Step::Truncate { file, cells } => {
            let set = SetAttr { size: Some((cells * CELL) as u64), ..SetAttr::default() };
            fs.setattr(ino_of(fs, *file)?, &set).map(drop)
        }
        Step::Fsync { file } => fs.fsync(ino_of(fs, *file)?, false),
        Step::Checkpoint => fs.checkpoint(),
    }
}

fn atomic(fs: &FileSystem, ino: Ino, runs: &[(usize, usize)], stamp: u32) -> Result<(), Error> {
    let mut write = fs.atomic(ino)?;
    for (from, to) in runs {
        write.write_at((from * CELL) as u64, &bytes(stamp, *from, *to))?;
    }
    write.commit()
}

/// Checks a medium. `next` is the step that may have been in progress.
fn judge(medium: MemDevice, setup: &Setup, model: &[File], next: Option<&Step>) -> Result<(), String> {
    rig::fsck(medium.fork())?;
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup)?;
    for (file, model) in model.iter().enumerate() {
        let found = read(&fs, file)?;
        let mut allowed = model.stamps.clone();
        match next {
            Some(Step::Atomic { file: of, runs, stamp }) if *of == file => {
                let cells = || runs.iter().flat_map(|(from, to)| *from..*to);
                let with = cells().filter(|cell| found[*cell] == *stamp).count();
                if with != 0 && with != cells().count() {
                    return Err(format!(
                        "{with} of {} cells of an atomic write: file {file}, {found:?}",
                        cells().count()
                    ));
                }
                if with > 0 {
                    cells().for_each(|cell| allowed[cell] = vec![*stamp]);
                }
            }
            Some(Step::Write { file: of, from, to, stamp }) if *of == file => {
                allowed[*from..*to].iter_mut().for_each(|stamps| stamps.push(*stamp));
            }
            Some(Step::Truncate { file: of, cells }) if *of == file => {
                allowed[*cells..].iter_mut().for_each(|stamps| stamps.push(0));
            }
            _ => {}
        }
        for (cell, (found, allowed)) in found.iter().zip(&allowed).enumerate() {
            // A cell that was never written is a hole, or beyond the end.
            let unwritten = *found == 0 && allowed.iter().all(|stamp| *stamp == 0);
            if !allowed.contains(found) && !unwritten {
                return Err(format!(
                    "cell {cell} of file {file} is of step {found}, allowed are {allowed:?}"
                ));
            }
        }
    }
    fs.close().map_err(|e| format!("close: {e}"))?;
    rig::fsck(device.view())
}

/// Returns the stamp of each cell.
fn read(fs: &FileSystem, file: usize) -> Result<Vec<u32>, String> {
    let ino = ino_of(fs, file).map_err(|e| format!("file {file}: {e}"))?;
    let mut all = vec![0; CELLS * CELL];
    let len = fs.read(ino, 0, &mut all).map_err(|e| format!("read of file {file}: {e}"))?;
    all[len..].fill(0);
    all.chunks(CELL)
        .map(|cell| {
            let stamp = u32::from_le_bytes(cell[..4].try_into().expect("4 bytes"));
            match cell.chunks(4).all(|word| word == stamp.to_le_bytes()) {
                true => Ok(stamp),
                false => Err(format!("a sector of several stamps, {stamp} first")),
            }
        })
        .collect()
}

/// One thread commits atomic writes of scattered blocks. Other threads write to and fsync the same
/// file, write it back, and make checkpoints. In each state these blocks have one stamp: that of
/// the last commit that returned, or of the next. Returns the number of states.
pub fn check_beside(seed: u64, commits: u32, plan: StatePlan) -> Result<usize, String> {
    let setup = crate::explore::setup();
    let device = Arc::new(SimDevice::new(setup.format()?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let said = |e: Error| e.to_string();
    let ino = fs.create(Ino::ROOT, NAMES[0], 0o644, OWNER).map_err(said)?.ino;
    fs.write(ino, 0, &vec![0; CELLS * CELL]).map_err(said)?;
    fs.fsync(ino, false).map_err(said)?;
    // The atomic writes have the even blocks, the other threads the odd ones.
    let runs: Vec<(usize, usize)> = (0..CELLS / BLOCK_CELLS)
        .step_by(2)
        .map(|block| (block * BLOCK_CELLS, (block + 1) * BLOCK_CELLS))
        .collect();
    device.set_plan(FaultPlan::new(seed).latency(OpKind::Write, Duration::from_micros(300)));
    let ended = Arc::new(AtomicBool::new(false));
    let mut others = Vec::new();
    for turn in 0..3u32 {
        let (fs, ended) = (fs.clone(), ended.clone());
        let work = move || -> Result<(), Error> {
            let mut n = 0;
            while !ended.load(Ordering::Relaxed) {
                n += 1;
                match turn {
                    0 => {
                        let block = 2 * (n as usize % (CELLS / BLOCK_CELLS / 2)) + 1;
                        let from = block * BLOCK_CELLS;
                        let data = bytes(n, from, from + BLOCK_CELLS);
                        fs.write(ino, (from * CELL) as u64, &data)?;
                        fs.fsync(ino, n % 2 == 0)?;
                    }
                    1 => fs.checkpoint()?,
                    _ => fs.write_back(&[ino])?,
                }
                SystemClock::default().sleep(Duration::from_micros(200));
            }
            Ok(())
        };
        others.push(spawn_named("beside", work).map_err(|e| e.to_string())?);
    }
    let committed = (1..=commits).try_for_each(|n| {
        atomic(&fs, ino, &runs, n)?;
        device.mark(n.into());
        Ok::<(), Error>(())
    });
    ended.store(true, Ordering::Relaxed);
    for other in others {
        other.join().map_err(|_| "a thread panicked".to_owned())?.map_err(said)?;
    }
    committed.map_err(said)?;
    drop(fs);
    let mut count = 0;
    for state in device.recording().states(plan) {
        let Some(mark) = state.mark else { continue };
        count += 1;
        let place = format!("seed {seed}, state {count}, after event {}, {:?}", state.at, state.choice);
        rig::fsck(state.medium.fork()).map_err(|e| format!("{e}\n{place}"))?;
        let device = Arc::new(SimDevice::new(state.medium));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
        let found = read(&fs, 0).map_err(|e| format!("{e}\n{place}"))?;
        let mut stamps: Vec<u32> = runs.iter().flat_map(|(from, to)| found[*from..*to].to_vec()).collect();
        stamps.dedup();
        let is_one = stamps.len() == 1 && [mark, mark + 1].contains(&u64::from(stamps[0]));
        if !is_one {
            return Err(format!("stamps {stamps:?} after commit {mark}\n{place}"));
        }
    }
    Ok(count)
}
