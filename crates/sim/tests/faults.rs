//! The device fails one request: whoever is answered gets an error, nobody is lied to.
//!
//! 1. A failed flush or log write shuts the file system down: every later change and fsync answers EIO.
//! 2. A failed data write is told to the fsync of that file and to nobody else; a failed read to its reader.
//! 3. Whatever was acknowledged before and after is there after a remount, with or without a power failure.

mod common;

use common::seeds;
use kedge_base::ManualClock;
use kedge_device::sim::{FaultPlan, OpKind, SimDevice};
use kedge_device::{Device, MemDevice};
use kedge_sim::crash::{History, Promise, check_state};
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::model::{Model, Persist};
use kedge_sim::ops::{Executor, OWNER, Op, Outcome, errno};
use kedge_sim::rig::{self, Setup, within};
use kedgefs::{FileSystem, Ino};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const OPS: usize = 60;

#[derive(Clone, Copy, Debug)]
enum Failure {
    Plain(OpKind),
    Torn,
    Short,
    LostFlush,
}

impl Failure {
    fn plan(self, nth: u64, seed: u64) -> FaultPlan {
        let plan = FaultPlan::new(seed);
        match self {
            Failure::Plain(kind) => plan.fail(kind, nth, errno::EIO),
            Failure::Torn => plan.torn_write(nth, errno::EIO),
            // Less than a block, or most of a large write.
            Failure::Short => {
                plan.short_write(nth, if seed.is_multiple_of(2) { 512 } else { 12 << 10 }, errno::EIO)
            }
            Failure::LostFlush => plan.lose_flush(nth, errno::EIO),
        }
    }
}

/// A used image, so that there is something to read.
fn start(setup: &Setup, seed: u64) -> Result<(MemDevice, Model), String> {
    let profile = Profile { remounts: 0, ..Profile::default() };
    let mut rig = rig::Rig::new(setup.clone())?;
    let mut generator = Generator::new(seed, profile);
    for _ in 0..80 {
        let op = generator.next(&rig.model);
        rig.step(&op)?;
    }
    rig.step(&Op::Remount)?;
    rig.exec.fs.close().map_err(|e| format!("close: {e}"))?;
    Ok((rig.device.view(), rig.model))
}

fn is_shut_down(fs: &FileSystem) -> bool {
    fs.create(Ino::ROOT, b"\x01probe", 0o600, OWNER).is_err_and(|e| e.errno() == errno::EIO)
}

/// Every change and fsync must be refused.
fn check_shut_down(fs: &FileSystem) -> Result<(), String> {
    for i in 0..3 {
        let name = format!("\x01probe {i}");
        let refusals = [
            fs.create(Ino::ROOT, name.as_bytes(), 0o600, OWNER).map(|_| ()),
            fs.mkdir(Ino::ROOT, name.as_bytes(), 0o700, OWNER).map(|_| ()),
            fs.fsync(Ino::ROOT, false),
            fs.sync(),
        ];
        for (j, refusal) in refusals.into_iter().enumerate() {
            match refusal {
                Err(e) if e.errno() == errno::EIO => {}
                other => return Err(format!("after the shutdown, call {j} answers {other:?}")),
            }
        }
    }
    Ok(())
}

/// Answers whether there was an `nth` request to fail.
fn one_fault(
    setup: &Setup,
    (medium, mut model): (MemDevice, Model),
    failure: Failure,
    (seed, nth): (u64, u64),
    ops: usize,
) -> Result<bool, String> {
    let device = Arc::new(SimDevice::new(medium));
    device.stop_recording();
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup)?;
    device.set_plan(failure.plan(nth, seed));
    let mut exec = Executor::new(fs);
    let profile = Profile { remounts: 0, persists: 250, ..Profile::default() };
    let mut generator = Generator::new(seed ^ 0xfa17, profile);
    let mut history = History::new(model.clone(), Promise::LastChange);
    let mut down = false;
    while history.len() < ops && !down {
        let op = generator.next(&model);
        let mut after = model.clone();
        let Some(expected) = after.apply(&op) else { continue };
        let outcome = exec.apply(&op);
        if outcome == Outcome::Failed(errno::EIO) {
            down = is_shut_down(&exec.fs);
            if down {
                // Whether it took effect is open: it is the operation that was under way.
                history.push(op, outcome, expected.effect, after);
            } else {
                let probe = Op::Unlink { path: "\x01probe".to_owned() };
                let gone = exec.apply(&probe);
                if !gone.is_ok() {
                    return Err(format!("{op:?} answers EIO, then the probe cannot be removed: {gone:?}"));
                }
                // Not taken for done: a write may be there in part, so what follows is not to be judged.
                if !matches!(expected.effect.persist, Some(Persist::Inode { .. } | Persist::All))
                    && expected.effect.data.is_some_and(|d| d.from < d.to)
                {
                    return Ok(true);
                }
                if let Op::Open { .. } | Op::Close { .. } | Op::Tmpfile { .. } = op {
                    return Ok(true);
                }
            }
            continue;
        }
        if !expected.allows(&outcome) {
            return Err(format!("{op:?} answers {outcome:?}, expected {:?}", expected.outcome));
        }
        model = after;
        history.push(op, outcome, expected.effect, model.clone());
    }
    let counts = device.op_counts();
    let struck = match failure {
        Failure::Plain(OpKind::Read) => counts.reads,
        Failure::Plain(OpKind::Write) | Failure::Torn | Failure::Short => counts.writes,
        Failure::Plain(OpKind::Flush) | Failure::LostFlush => counts.flushes,
    } > nth;
    if down {
        check_shut_down(&exec.fs)?;
    } else if struck
        && matches!(failure, Failure::Plain(OpKind::Flush) | Failure::LostFlush)
        && !is_shut_down(&exec.fs)
        && exec.fs.sync().is_ok()
    {
        return Err("a flush failed and the file system goes on".to_owned());
    }
    let done = history.len() - usize::from(down);
    let media = [("power failure", device.crash(seed)), ("end of the process", device.view())];
    let _ = exec.fs.shutdown(false);
    drop(exec);
    for (end, medium) in media {
        let said = |e: String| format!("after the fault and {end}: {e}");
        rig::fsck(medium.fork()).map_err(said)?;
        let device = Arc::new(SimDevice::new(medium));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup).map_err(said)?;
        // The probe of a file system that was not shut down after all.
        let _ = fs.unlink(Ino::ROOT, b"\x01probe");
        check_state(&fs, &history, done, &history.persists_before(done)).map_err(|v| said(v.to_string()))?;
        fs.close().map_err(|e| said(format!("close: {e}")))?;
        rig::fsck(device.view()).map_err(said)?;
    }
    Ok(struck)
}

fn sweep(failure: Failure, setup: Setup, count: u64) {
    let mut struck = 0;
    let mut failures = Vec::new();
    let all = seeds(count);
    for &seed in &all {
        let inner = setup.clone();
        let what = format!("{failure:?} KEDGE_SEED={seed}");
        let body = move || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                start(&inner, seed)
                    .and_then(|image| one_fault(&inner, image, failure, (seed, seed % 23), OPS))
            }))
        };
        match within(LIMIT, &what, body) {
            Ok(Ok(hit)) => struck += u32::from(hit),
            Ok(Err(e)) => failures.push(format!("{what}: {e}")),
            Err(panic) => failures.push(format!("{what}: panic: {}", rig::panic_text(&*panic))),
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        all.len(),
        failures[..failures.len().min(3)].join("\n")
    );
    assert!(all.len() == 1 || struck > 0, "no fault was ever met");
}

/// Every request of a workload fails once, in each way.
#[test]
fn every_request_fails_once() {
    const WAYS: [Failure; 6] = [
        Failure::Plain(OpKind::Read),
        Failure::Plain(OpKind::Write),
        Failure::Torn,
        Failure::Short,
        Failure::Plain(OpKind::Flush),
        Failure::LostFlush,
    ];
    // With the debug assertions on, the same few times.
    let all = seeds(if cfg!(debug_assertions) { 2 } else { 20 });
    let mut runs = 0;
    for &seed in &all {
        let setup = if seed % 2 == 0 {
            Setup { promise: Promise::LastChange, ..Setup::default() }.switched(seed)
        } else {
            Setup::cramped().switched(seed)
        };
        let (medium, model) = start(&setup, seed).unwrap_or_else(|e| panic!("KEDGE_SEED={seed}: {e}"));
        for way in WAYS {
            for nth in 0.. {
                let what = format!("{way:?} KEDGE_SEED={seed}, request {nth}");
                let (setup, image) = (setup.clone(), (medium.fork(), model.clone()));
                let body = move || {
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        one_fault(&setup, image, way, (seed, nth), 2 * OPS)
                    }))
                };
                runs += 1;
                match within(LIMIT, &what, body) {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) => break,
                    Ok(Err(e)) => panic!("{what}: {e}"),
                    Err(panic) => panic!("{what}: panic: {}", rig::panic_text(&*panic)),
                }
            }
        }
    }
    println!("{} workloads, {runs} faults: nothing lost, no panic, no hang", all.len());
    assert!(runs > 50 * all.len(), "{runs} runs are not every request");
}

#[test]
fn a_failed_write() {
    sweep(Failure::Plain(OpKind::Write), Setup { promise: Promise::LastChange, ..Setup::default() }, 46);
}

#[test]
fn a_failed_write_with_a_small_log() {
    sweep(Failure::Plain(OpKind::Write), Setup::cramped(), 46);
}

#[test]
fn a_torn_write() {
    sweep(Failure::Torn, Setup::cramped(), 46);
}

#[test]
fn a_failed_flush() {
    sweep(Failure::Plain(OpKind::Flush), Setup { promise: Promise::LastChange, ..Setup::default() }, 46);
}

#[test]
fn a_flush_that_loses_writes() {
    sweep(Failure::LostFlush, Setup::cramped(), 46);
}

#[test]
fn a_failed_read() {
    sweep(Failure::Plain(OpKind::Read), Setup::cramped(), 46);
}

/// The device dies altogether under writers: all of them end with an error, and what was acknowledged is there.
#[test]
fn a_dead_device() {
    use kedge_sim::backend::{Backend, InProcess};
    use kedge_sim::writers::{Writers, verify_after};
    for seed in seeds(20) {
        let what = format!("KEDGE_SEED={seed}");
        let result = within(LIMIT, &what, move || -> Result<(), String> {
            let setup = Setup::cramped();
            let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
            device.stop_recording();
            let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
            let backend: Arc<dyn Backend> = Arc::new(InProcess(fs.clone()));
            let writers = Writers::start(&backend, 4, "w", seed).map_err(|e| e.to_string())?;
            while writers.operations() < 20 + seed * 10 {
                std::thread::sleep(Duration::from_micros(200));
            }
            device.set_plan(FaultPlan::new(seed).fail_from(seed * 3, errno::EIO));
            while !writers.ended() {
                std::thread::sleep(Duration::from_micros(200));
            }
            let end = writers.stop();
            let medium = device.crash(seed);
            let _ = fs.shutdown(false);
            rig::fsck(medium.fork())?;
            let medium: Arc<dyn Device> = Arc::new(medium);
            let fs = FileSystem::open(medium, Arc::new(ManualClock::default()), setup.mount.clone());
            verify_after(&InProcess(fs.map_err(|e| e.to_string())?), &end, &end)
        });
        result.unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}
