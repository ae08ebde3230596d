//! The device fails one request, or answers it late: whoever is answered gets an error, nobody is lied to.
//!
//! 1. A failed flush or log write shuts the file system down: every later change and fsync answers EIO.
//! 2. A failed data write is told to the fsync of that file and to nobody else; a failed read to its reader.
//! 3. Whatever was acknowledged before and after is there after a remount, with or without a power failure.
//! 4. A request that is late is no fault: nobody gets an error. What was acknowledged by the time it waits is there if power
//!    fails then, so nobody was answered on its behalf before it was done.

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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Much longer than all that an operation does in memory.
const LATE: Duration = Duration::from_millis(20);
/// Between two looks at whether a request waits.
const POLL: Duration = Duration::from_micros(200);
const LIMIT: Duration = Duration::from_secs(120);
const OPS: usize = 60;

#[derive(Clone, Copy, Debug)]
enum Failure {
    Plain(OpKind),
    Torn,
    Short,
    LostFlush,
    /// No failure: answered after [`LATE`].
    Late(OpKind),
}

/// What came of a run.
#[derive(Clone, Copy, Default)]
struct Met {
    /// There was an `nth` request.
    struck: bool,
    /// Power failed while it was late.
    cut: bool,
}

/// A power failure while a request is late: how many operations had been acknowledged just before and after, and the medium.
type Cut = (usize, usize, MemDevice);

/// Waits for the request that is late, and takes the medium as a power failure leaves it then.
struct Watch {
    acked: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Option<Cut>>,
}

impl Watch {
    fn start(device: &Arc<SimDevice>, seed: u64) -> Result<Watch, String> {
        let (acked, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (device, count, end) = (device.clone(), acked.clone(), over.clone());
        let body = move || {
            while device.held_up() == 0 {
                if end.load(Ordering::SeqCst) {
                    return None;
                }
                std::thread::sleep(POLL);
            }
            let before = count.load(Ordering::SeqCst);
            let medium = device.crash(seed);
            Some((before, count.load(Ordering::SeqCst), medium))
        };
        let thread = kedge_base::spawn_named("power", body).map_err(|e| e.to_string())?;
        Ok(Watch { acked, over, thread })
    }

    fn stop(self) -> Result<Option<Cut>, String> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|p| rig::panic_text(&*p))
    }
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
            Failure::Late(kind) => plan.delay(kind, nth, LATE),
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

fn one_fault(
    setup: &Setup,
    (medium, mut model): (MemDevice, Model),
    failure: Failure,
    (seed, nth): (u64, u64),
    ops: usize,
) -> Result<Met, String> {
    let device = Arc::new(SimDevice::new(medium));
    device.stop_recording();
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup)?;
    device.set_plan(failure.plan(nth, seed));
    let late = matches!(failure, Failure::Late(_));
    let watch = if late { Some(Watch::start(&device, seed)?) } else { None };
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
        if outcome == Outcome::Failed(errno::EIO) && !late {
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
                    return Ok(Met { struck: true, cut: false });
                }
                if let Op::Open { .. } | Op::Close { .. } | Op::Tmpfile { .. } = op {
                    return Ok(Met { struck: true, cut: false });
                }
            }
            continue;
        }
        if !expected.allows(&outcome) {
            return Err(format!("{op:?} answers {outcome:?}, expected {:?}", expected.outcome));
        }
        model = after;
        history.push(op, outcome, expected.effect, model.clone());
        if let Some(watch) = &watch {
            watch.acked.store(history.len(), Ordering::SeqCst);
        }
    }
    let counts = device.op_counts();
    let struck = match failure {
        Failure::Plain(OpKind::Read) | Failure::Late(OpKind::Read) => counts.reads,
        Failure::Plain(OpKind::Write) | Failure::Late(OpKind::Write) | Failure::Torn | Failure::Short => {
            counts.writes
        }
        Failure::Plain(OpKind::Flush) | Failure::Late(OpKind::Flush) | Failure::LostFlush => counts.flushes,
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
    let cut = watch.map_or(Ok(None), Watch::stop)?;
    let met = Met { struck, cut: cut.is_some() };
    let mut media = vec![
        ("power failure", device.crash(seed), done, done),
        ("end of the process", device.view(), done, done),
    ];
    media.extend(cut.map(|(from, to, medium)| ("power failure while it was late", medium, from, to)));
    let _ = exec.fs.shutdown(false);
    drop(exec);
    for (end, medium, acked, begun) in media {
        let said = |e: String| format!("after the fault and {end}: {e}");
        rig::fsck(medium.fork()).map_err(said)?;
        let device = Arc::new(SimDevice::new(medium));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup).map_err(said)?;
        // The probe of a file system that was not shut down after all.
        let _ = fs.unlink(Ino::ROOT, b"\x01probe");
        check_state(&fs, &history, begun, &history.persists_before(acked))
            .map_err(|v| said(v.to_string()))?;
        fs.close().map_err(|e| said(format!("close: {e}")))?;
        rig::fsck(device.view()).map_err(said)?;
    }
    Ok(met)
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
            Ok(Ok(met)) => struck += u32::from(met.struck),
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

/// Every request of a workload fails once, in each way, and is late once.
#[test]
fn every_request_fails_once() {
    const WAYS: [Failure; 9] = [
        Failure::Plain(OpKind::Read),
        Failure::Plain(OpKind::Write),
        Failure::Torn,
        Failure::Short,
        Failure::Plain(OpKind::Flush),
        Failure::LostFlush,
        Failure::Late(OpKind::Read),
        Failure::Late(OpKind::Write),
        Failure::Late(OpKind::Flush),
    ];
    // With the debug assertions on, the same few times.
    let all = seeds(if cfg!(debug_assertions) { 2 } else { 20 });
    let (mut faults, mut late, mut cut) = (0, 0, 0);
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
                match within(LIMIT, &what, body) {
                    Ok(Ok(met)) if met.struck => {
                        *if matches!(way, Failure::Late(_)) { &mut late } else { &mut faults } += 1;
                        cut += usize::from(met.cut);
                    }
                    Ok(Ok(_)) => break,
                    Ok(Err(e)) => panic!("{what}: {e}"),
                    Err(panic) => panic!("{what}: panic: {}", rig::panic_text(&*panic)),
                }
            }
        }
    }
    println!(
        "{} workloads, {faults} faults, {late} late requests, {cut} power failures meanwhile: nothing lost, no panic, \
         no hang",
        all.len()
    );
    assert!(faults > 50 * all.len(), "{faults} faults are not every request");
    assert!(late > 20 * all.len() && cut > late / 2, "{cut} power failures in {late} late requests");
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

/// One request of many writers is late: the others go on meanwhile, and who waits for it has not been answered when power fails.
#[test]
fn a_late_request_under_writers() {
    use kedge_sim::backend::{Backend, InProcess};
    use kedge_sim::writers::{Writers, verify_after};
    let mut went_on = 0;
    let all = seeds(24);
    for &seed in &all {
        let what = format!("KEDGE_SEED={seed}");
        let result = within(LIMIT, &what, move || -> Result<u64, String> {
            let setup = Setup::cramped();
            let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
            device.stop_recording();
            let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
            let kind = [OpKind::Write, OpKind::Flush][(seed % 2) as usize];
            device.set_plan(FaultPlan::new(seed).delay(kind, seed * 7, 5 * LATE));
            let backend: Arc<dyn Backend> = Arc::new(InProcess(fs.clone()));
            let writers = Writers::start(&backend, 4, "w", seed).map_err(|e| e.to_string())?;
            while device.held_up() == 0 {
                std::thread::sleep(POLL);
            }
            let start = writers.operations();
            // Somewhere in the delay, so that the others have had time to come to what they may not pass.
            std::thread::sleep(LATE * (seed % 4) as u32);
            let acked = writers.snapshot();
            let medium = device.crash(seed);
            let begun = writers.snapshot();
            let went_on = writers.operations() - start;
            let end = writers.stop();
            if !end.errors().is_empty() {
                return Err(format!("a late request is no error: {:?}", end.errors()));
            }
            verify_after(&InProcess(fs.clone()), &end, &end)?;
            fs.close().map_err(|e| format!("close: {e}"))?;
            rig::fsck(medium.fork())?;
            let medium: Arc<dyn Device> = Arc::new(medium);
            let fs = FileSystem::open(medium, Arc::new(ManualClock::default()), setup.mount.clone());
            verify_after(&InProcess(fs.map_err(|e| e.to_string())?), &acked, &begun)?;
            Ok(went_on)
        });
        went_on += u64::from(result.unwrap_or_else(|e| panic!("{what}: {e}")) > 0);
    }
    println!("{} late requests, in {went_on} of them others went on", all.len());
    assert!(all.len() == 1 || went_on > 0, "a late request holds up everybody");
}
