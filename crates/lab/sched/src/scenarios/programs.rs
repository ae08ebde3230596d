//! Small random programs: two to four threads with a few operations each on few names and files,
//! and a thread that checkpoints, syncs, freezes or evicts. The reference model judges the results,
//! and the crash oracle judges crashes at random moments.
//!
//! Operations on data name files by handles. A path would be resolved before the operation, and a
//! rename between the two would be no fault.

use super::stage::{self, Stage, text};
use crate::history::{Calls, Crash, Recorder};
use crate::run::{Run, explore};
use crate::strategy::Plan;
use kedge_base::{pause, spawn_named};
use kedge_device::MemDevice;
use kedge_device::sim::Choice;
use kedge_sim::model::Model;
use kedge_sim::ops::{Executor, Falloc, Fill, Op, Outcome, Rename, Target};
use kedge_sim::rig::{self, Setup};
use kedge_sim::view::View;
use kedgefs::FileSystem;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::LazyLock;
use std::time::Duration;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Number of files that exist at the start. Each has a handle of its number.
const FILES: u8 = 3;
const CRASHES: usize = 2;
/// The approximate virtual time of a run.
const SPAN: Duration = Duration::from_millis(1);

static IMAGE: LazyLock<MemDevice> = LazyLock::new(|| {
    let setup = stage::setup();
    rig::format(setup.image, setup.log).expect("an image in memory can be formatted")
});

/// What the additional thread does while the others run.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Checkpoint,
    Evict,
    Freeze,
    Sync,
    Nothing,
}

struct Program {
    setup: Setup,
    before: Vec<Op>,
    threads: Vec<Vec<Op>>,
    beside: Beside,
    crashes: Vec<(Duration, Choice)>,
    disk: u64,
}

fn program(seed: u64) -> Program {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut before = Vec::new();
    for file in 0..FILES {
        let path = NAMES[file as usize].to_owned();
        before.push(Op::Create { path: path.clone(), mode: 0o644 });
        before.push(Op::Open { path, handle: file });
        if rng.random() {
            let len = rng.random_range(1..9000);
            before.push(Op::Write {
                on: Target::Handle(file),
                offset: 0,
                len,
                fill: Fill::Byte(0x10 + file),
            });
        }
    }
    if rng.random() {
        before.push(Op::Sync);
    }
    // The judge examines each order of the operations, so their number is small.
    let (count, most) = [(2, 3), (2, 4), (3, 2), (4, 1)][rng.random_range(0..4)];
    let mut number = 0;
    let mut ops =
        |rng: &mut SmallRng| (0..rng.random_range(1..=most)).map(|_| op(rng, &mut number)).collect();
    let threads = (0..count).map(|_| ops(&mut rng)).collect();
    let beside = match rng.random_range(0..6) {
        0 | 1 => Beside::Checkpoint,
        2 => Beside::Evict,
        3 => Beside::Freeze,
        4 => Beside::Sync,
        _ => Beside::Nothing,
    };
    let mut crash = || {
        let when = rng.random_range(Duration::ZERO..SPAN);
        let choice = if rng.random() { Choice::None } else { Choice::Torn(rng.random()) };
        (when, choice)
    };
    let crashes = (0..CRASHES).map(|_| crash()).collect();
    let setup = stage::setup().switched(rng.random());
    // The image of all programs has one format, whatever the switches choose.
    let mut setup = Setup { checksums: false, ..setup };
    if rng.random_ratio(1, 3) {
        // With a short interval the flushers write back during the run, too.
        setup.mount.commit = Duration::from_millis(rng.random_range(1..5));
    }
    Program { setup, before, threads, beside, crashes, disk: rng.random() }
}

fn op(rng: &mut SmallRng, number: &mut u8) -> Op {
    *number += 1;
    let on = Target::Handle(rng.random_range(0..FILES));
    let mut name = || NAMES[rng.random_range(0..NAMES.len())].to_owned();
    let (path, other) = (name(), name());
    let offset = rng.random_range(0..3) * 3000;
    match rng.random_range(0..22) {
        0..5 => Op::Write { on, offset, len: rng.random_range(1..9000), fill: Fill::Byte(0x40 + *number) },
        5..8 => Op::Fsync { on },
        8 => Op::Fdatasync { on },
        9 | 10 => Op::Truncate { on, size: offset },
        11 => Op::Fallocate { on, how: Falloc::Punch, offset, len: 4096 },
        12 | 13 => Op::Unlink { path },
        14 => Op::Create { path, mode: 0o600 },
        15 | 16 => Op::Rename { from: path, to: other, how: Rename::Replace },
        17 | 18 => Op::Chmod { on, mode: 0o600 + u32::from(*number) },
        19 => Op::Read { on, offset, len: 5000 },
        20 => Op::Readdir { path: ".".to_owned() },
        _ => Op::Sync,
    }
}

/// What a run leaves for its judge.
struct Left {
    setup: Setup,
    start: Model,
    calls: Calls,
    found: View,
    medium: MemDevice,
    crashes: Vec<Crash>,
}

fn disturb(fs: &FileSystem, beside: Beside) -> Result<(), String> {
    match beside {
        Beside::Checkpoint => fs.checkpoint().map_err(text("checkpoint")),
        Beside::Sync => fs.sync().map_err(text("sync")),
        Beside::Evict => {
            fs.set_cache_size(0);
            Ok(())
        }
        Beside::Freeze => {
            fs.freeze().map_err(text("freeze"))?;
            pause(Duration::from_micros(50));
            fs.thaw().map_err(text("thaw"))
        }
        Beside::Nothing => Ok(()),
    }
}

fn executor(fs: &FileSystem) -> Result<Executor, String> {
    let mut exec = Executor::new(fs.clone());
    for handle in 0..FILES {
        let path = NAMES[handle as usize].to_owned();
        match exec.apply(&Op::Open { path, handle }) {
            Outcome::Done => {}
            other => return Err(format!("open: {other:?}")),
        }
    }
    Ok(exec)
}

fn body(seed: u64) -> Result<Left, String> {
    let Program { setup, before, threads, beside, crashes, disk } = program(seed);
    let stage = Stage::open(IMAGE.fork(), &setup.mount, disk)?;
    explore(false);
    let mut start = Model::new();
    let mut exec = Executor::new(stage.fs.clone());
    for op in &before {
        let outcome = exec.apply(op);
        if !start.apply(op).is_some_and(|expected| expected.allows(&outcome)) {
            return Err(format!("{op:?}: {outcome:?}"));
        }
    }
    // The oracle assumes that the state at the start is durable.
    stage.fs.sync().map_err(text("sync"))?;
    let mut rng = SmallRng::seed_from_u64(disk);
    start.forget_atimes();
    let recorder = Recorder::default();
    let mut started = Vec::new();
    let execs: Result<Vec<Executor>, String> = threads.iter().map(|_| executor(&stage.fs)).collect();
    for (i, (ops, mut exec)) in threads.into_iter().zip(execs?).enumerate() {
        let recorder = recorder.clone();
        let work = move || {
            ops.iter().for_each(|op| drop(recorder.apply(i, &mut exec, op)));
            Ok(())
        };
        started.push(stage::start(&mut rng, &format!("thread-{i}"), SPAN, work)?);
    }
    let fs = stage.fs.clone();
    started.push(stage::start(&mut rng, "beside", SPAN, move || disturb(&fs, beside))?);
    explore(true);
    let mut cuts = Vec::new();
    for (when, choice) in crashes {
        let (device, recorder) = (stage.device.clone(), recorder.clone());
        let cut = move || {
            pause(when);
            recorder.crash(&device, choice)
        };
        cuts.push(spawn_named("crash", cut).map_err(|e| e.to_string())?);
    }
    for thread in started {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    let crashes: Result<Vec<Crash>, _> = cuts.into_iter().map(|cut| cut.join()).collect();
    explore(false);
    let calls = recorder.calls();
    let found = View::of(&stage.fs)?;
    drop(exec);
    let medium = stage.close()?;
    Ok(Left { setup, start, calls, found, medium, crashes: crashes.map_err(|_| "a crash panicked")? })
}

fn judge(left: Left) -> Result<(), String> {
    let Left { setup, start, calls, found, medium, crashes } = left;
    calls.judge(&start, &found)?;
    rig::fsck(medium)?;
    for crash in crashes {
        let fs = stage::recovered(crash.medium.fork(), &setup).map_err(|e| format!("after a crash: {e}"))?;
        crash.judge(&start, &fs)?;
        fs.close().map_err(text("close after a crash"))?;
    }
    Ok(())
}

pub fn play(seed: u64, plan: &Plan) -> Run {
    LazyLock::force(&IMAGE);
    stage::play(seed, plan, move || body(seed), judge)
}
