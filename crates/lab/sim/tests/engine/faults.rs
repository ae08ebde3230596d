//! The device fails one request, or fails permanently in one place or altogether, or completes a
//! request late. Affected callers get an error, and no caller gets a false success. The media are
//! checked at the end of each run.
//!
//! 1. A failed flush or log write shuts the file system down: every later change and fsync returns
//!    EIO.
//! 2. A failed data write is reported by the fsync of that file and by no other call; a failed read
//!    by its reader. So a call other than an fsync or sync fails only if a request failed during
//!    the call, or after a shutdown.
//! 3. Everything acknowledged before and after is present after a remount, with or without a power
//!    failure.
//! 4. A late request is no fault: no call gets an error. If power fails while the request is held,
//!    everything acknowledged by then survives, so no call returned success before its request
//!    completed.

use crate::common::seeds;
use kedge_base::JoinHandle;
use kedge_base::{HANG, ManualClock};
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
use std::time::Duration;

/// How long the request is late: longer than an operation takes in memory, so that other threads
/// get as far as they may.
const LATE: Duration = Duration::from_millis(20);
/// Interval between two checks whether a request is held.
const POLL: Duration = Duration::from_micros(200);
const OPS: usize = 60;

#[derive(Clone, Copy, Debug)]
enum Failure {
    Plain(OpKind),
    Torn,
    Short,
    LostFlush,
    /// The first block of the request fails from then on.
    Bad(OpKind),
    /// All later requests of this kind fail, too.
    From(OpKind),
    /// The host has no space for blocks that were never written.
    HostFull,
    /// No failure: the request completes only after power has failed and the medium is taken.
    Late(OpKind),
}

/// The result of a run.
#[derive(Clone, Copy, Default)]
struct Met {
    /// Whether there was an `nth` request.
    struck: bool,
    /// Whether power failed while the request was late.
    cut: bool,
    requests: u64,
    media: u64,
}

/// A power failure while a request is late: the numbers of operations acknowledged just before and
/// after it, and the medium.
type Cut = (usize, usize, MemDevice);

/// Waits until the request is held, and takes the medium that a power failure would leave then.
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
            let after = count.load(Ordering::SeqCst);
            device.release();
            Some((before, after, medium))
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
            // Less than a block reaches the medium, or most of a large write.
            Failure::Short => {
                plan.short_write(nth, if seed.is_multiple_of(2) { 512 } else { 12 << 10 }, errno::EIO)
            }
            Failure::LostFlush => plan.lose_flush(nth, errno::EIO),
            Failure::Bad(kind) => plan.bad_block(kind, nth, errno::EIO),
            Failure::From(kind) => plan.fail_kind_from(kind, nth, errno::EIO),
            Failure::HostFull => plan.host_full(nth),
            Failure::Late(kind) => plan.hold(kind, nth),
        }
    }
}

/// Makes a used image, so that there is data to read.
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
    let info: serde_json::Value = serde_json::from_str(&fs.info_json()).expect("the file system writes JSON");
    !info["shut_down"].is_null()
}

/// Checks that every change and fsync is refused.
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
    let (mut down, mut under_way) = (false, false);
    let mut tries = 0;
    while history.len() < ops && tries < 10 * ops && !under_way {
        tries += 1;
        let op = generator.next(&model);
        let mut after = model.clone();
        let Some(expected) = after.apply(&op) else { continue };
        let failed_before = device.struck();
        let outcome = exec.apply(&op);
        let failed =
            matches!(outcome, Outcome::Failed(errno::EIO | errno::ENOSPC)) && !expected.allows(&outcome);
        if failed && !late {
            down = is_shut_down(&exec.fs);
            let syncs = matches!(expected.effect.persist, Some(Persist::Inode { .. } | Persist::All));
            if !down && !syncs && device.struck() == failed_before {
                return Err(format!("{op:?} answers {outcome:?} and no request has failed during it"));
            }
            let changes = expected.effect.ordered || expected.effect.data.is_some();
            let handles = matches!(op, Op::Open { .. } | Op::Close { .. } | Op::Tmpfile { .. });
            // The medium may contain an operation that was in progress when power failed, or not. A
            // failed change counts as such an operation. It must be the last one, since the oracle
            // would take later ones for completed.
            if down || changes || handles {
                history.push(op, outcome, expected.effect, after);
                under_way = true;
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
        Failure::Late(OpKind::Read) => counts.reads > nth,
        Failure::Late(OpKind::Write) => counts.writes > nth,
        Failure::Late(OpKind::Flush) => counts.flushes > nth,
        _ => device.struck() > 0,
    };
    if down {
        check_shut_down(&exec.fs)?;
    } else if struck
        && matches!(
            failure,
            Failure::Plain(OpKind::Flush) | Failure::From(OpKind::Flush) | Failure::LostFlush
        )
        && !is_shut_down(&exec.fs)
        && exec.fs.sync().is_ok()
    {
        return Err("a flush failed and the file system did not shut down".to_owned());
    }
    let done = history.len() - usize::from(under_way);
    let cut = watch.map_or(Ok(None), Watch::stop)?;
    if late {
        // A thread of the engine may make the request only now, when no watch would release it.
        device.heal();
    }
    let media = 2 + u64::from(cut.is_some());
    let met = Met { struck, cut: cut.is_some(), requests: device.struck(), media };
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
        match within(HANG, &what, body) {
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

/// Sums over many runs.
#[derive(Default)]
struct Counts {
    runs: u64,
    requests: u64,
    late: u64,
    cut: u64,
    media: u64,
}

impl Counts {
    fn print(&self, what: &str) {
        let Counts { runs, requests, late, cut, media } = self;
        println!(
            "{what}: {runs} runs, {requests} requests struck, {late} late, {cut} power failures meanwhile, {media} media judged: \
             0 losses, 0 lies, 0 hangs, 0 panics"
        );
    }
}

/// Lets the failure begin at every request of a workload in turn, or at every `stride`-th.
fn enumerate(
    setup: &Setup,
    start: &(MemDevice, Model),
    way: Failure,
    (seed, stride): (u64, usize),
    counts: &mut Counts,
) {
    for nth in (seed % stride as u64..).step_by(stride) {
        let what = format!("{way:?} KEDGE_SEED={seed}, request {nth}");
        let (setup, image) = (setup.clone(), (start.0.fork(), start.1.clone()));
        let body = move || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                one_fault(&setup, image, way, (seed, nth), 2 * OPS)
            }))
        };
        match within(HANG, &what, body) {
            Ok(Ok(met)) => {
                counts.runs += 1;
                counts.requests += met.requests;
                counts.media += met.media;
                counts.cut += u64::from(met.cut);
                if !met.struck {
                    return;
                }
                counts.late += u64::from(matches!(way, Failure::Late(_)));
            }
            Ok(Err(e)) => panic!("{what}: {e}"),
            Err(panic) => panic!("{what}: panic: {}", rig::panic_text(&*panic)),
        }
    }
}

/// Each request of a workload fails once in each way, and is late once.
#[test]
fn every_request_fails_once() {
    const WAYS: [Failure; 15] = [
        Failure::Plain(OpKind::Read),
        Failure::Plain(OpKind::Write),
        Failure::Torn,
        Failure::Short,
        Failure::Plain(OpKind::Flush),
        Failure::LostFlush,
        Failure::Bad(OpKind::Read),
        Failure::Bad(OpKind::Write),
        Failure::From(OpKind::Read),
        Failure::From(OpKind::Write),
        Failure::From(OpKind::Flush),
        Failure::HostFull,
        Failure::Late(OpKind::Read),
        Failure::Late(OpKind::Write),
        Failure::Late(OpKind::Flush),
    ];
    // A build with debug assertions is slower, and runs fewer seeds.
    let all = seeds(if cfg!(debug_assertions) { 2 } else { 20 });
    let mut counts = Counts::default();
    for &seed in &all {
        let setup = if seed % 2 == 0 {
            Setup { promise: Promise::LastChange, ..Setup::default() }.switched(seed)
        } else {
            Setup::cramped().switched(seed)
        };
        let image = start(&setup, seed).unwrap_or_else(|e| panic!("KEDGE_SEED={seed}: {e}"));
        WAYS.into_iter().for_each(|way| enumerate(&setup, &image, way, (seed, 1), &mut counts));
    }
    counts.print("every request");
    let of_each = all.len() as u64;
    assert!(counts.requests > 50 * of_each, "{} faults are not every request", counts.requests);
    let Counts { late, cut, .. } = counts;
    assert!(late > 20 * of_each && cut > late / 10 * 9, "{cut} power failures in {late} late requests");
}

/// Adds names that do not change, so that the tree is larger than its cache.
fn filled(setup: &Setup, (medium, mut model): (MemDevice, Model)) -> Result<(MemDevice, Model), String> {
    let device = Arc::new(SimDevice::new(medium));
    device.stop_recording();
    let mut exec = Executor::new(rig::open(&device, &Arc::new(ManualClock::default()), setup)?);
    let mut ops = vec![Op::Mkdir { path: "filler".into(), mode: 0o755 }];
    let name = |n: usize| format!("filler/{n:04} {}", "a long name ".repeat(15));
    ops.extend((0..1200).map(|n| Op::Create { path: name(n), mode: 0o644 }));
    for op in &ops {
        let expected = model.apply(op).ok_or("a filler is unspecified")?;
        let outcome = exec.apply(op);
        if !expected.allows(&outcome) {
            return Err(format!("{op:?} answers {outcome:?}"));
        }
    }
    exec.fs.close().map_err(|e| e.to_string())?;
    Ok((device.view(), model))
}

/// The same with constant reads of tree nodes: each read fails, once or permanently.
#[test]
fn every_request_fails_once_with_a_tree_larger_than_its_cache() {
    const WAYS: [Failure; 4] = [
        Failure::Plain(OpKind::Read),
        Failure::Bad(OpKind::Read),
        Failure::From(OpKind::Read),
        Failure::Bad(OpKind::Write),
    ];
    let (all, stride) = if cfg!(debug_assertions) { (seeds(1), 11) } else { (seeds(6), 2) };
    let mut counts = Counts::default();
    for &seed in &all {
        let mut setup = Setup::cramped().switched(seed);
        setup.mount.cache_size = 512 << 10;
        let image = start(&setup, seed).and_then(|image| filled(&setup, image));
        let image = image.unwrap_or_else(|e| panic!("KEDGE_SEED={seed}: {e}"));
        WAYS.into_iter().for_each(|way| enumerate(&setup, &image, way, (seed, stride), &mut counts));
    }
    counts.print("every request, a large tree");
    assert!(counts.requests > 20 * all.len() as u64, "{} faults: the tree is not read", counts.requests);
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

/// The device fails completely while writers run. All writers end with an error, and everything
/// acknowledged survives.
#[test]
fn a_dead_device() {
    use kedge_sim::backend::{Backend, InProcess};
    use kedge_sim::writers::{Writers, verify_after};
    for seed in seeds(20) {
        let what = format!("KEDGE_SEED={seed}");
        let result = within(HANG, &what, move || -> Result<(), String> {
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

/// One request is late while many writers run. The other writers continue. When power fails, no
/// call that waits for the request has returned.
#[test]
fn a_late_request_under_writers() {
    use kedge_sim::backend::{Backend, InProcess};
    use kedge_sim::writers::{Writers, verify_after};
    let mut went_on = 0;
    let all = seeds(24);
    for &seed in &all {
        let what = format!("KEDGE_SEED={seed}");
        let result = within(HANG, &what, move || -> Result<u64, String> {
            let setup = Setup::cramped();
            let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
            device.stop_recording();
            let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
            let kind = [OpKind::Write, OpKind::Flush][(seed % 2) as usize];
            device.set_plan(FaultPlan::new(seed).hold(kind, seed * 7));
            let backend: Arc<dyn Backend> = Arc::new(InProcess(fs.clone()));
            let writers = Writers::start(&backend, 4, "w", seed).map_err(|e| e.to_string())?;
            while device.held_up() == 0 {
                std::thread::sleep(POLL);
            }
            let start = writers.operations();
            // In some runs the request is released later, so that the other threads have reached
            // the operations that must not overtake it.
            std::thread::sleep(LATE * (seed % 4) as u32);
            let acked = writers.snapshot();
            let medium = device.crash(seed);
            let begun = writers.snapshot();
            let went_on = writers.operations() - start;
            device.heal();
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
    assert!(all.len() == 1 || went_on > 0, "a late request stops all threads");
}
