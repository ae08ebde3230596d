//! Power fails at random moments; the recovered state must be clean and allowed.
//!
//! 1. *One thread*: random operations run on a recording device. The oracle judges media from any
//!    event of the recording, even in the middle of an operation.
//! 2. *Many threads*: power fails while writers run. Everything acknowledged must survive. Power
//!    also fails during recovery, and the file system is used further.

use crate::common::seeds;
use kedge_base::{Clock, HANG, ManualClock};
use kedge_device::MemDevice;
use kedge_device::sim::{Choice, SimDevice};
use kedge_sim::backend::{Backend, InProcess};
use kedge_sim::crash::{History, Promise, check_state};
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::model::Model;
use kedge_sim::ops::Executor;
use kedge_sim::rig::{self, Setup, within};
use kedge_sim::writers::{Writers, verify_after};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

fn reopen(medium: MemDevice, setup: &Setup) -> Result<(Arc<SimDevice>, kedgefs::FileSystem), String> {
    rig::fsck(medium.fork())?;
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup)?;
    Ok((device, fs))
}

/// Runs operations on a recording device. Each mark is the number of operations that have returned.
fn record(
    setup: &Setup,
    profile: Profile,
    seed: u64,
    count: usize,
) -> Result<(Arc<SimDevice>, History), String> {
    let device = Arc::new(SimDevice::new(setup.format()?));
    let clock = Arc::new(ManualClock::default());
    let fs = rig::open(&device, &clock, setup)?;
    let mut exec = Executor::new(fs);
    let mut generator = Generator::new(seed, profile);
    let mut model = Model::new();
    let mut history = History::new(model.clone(), setup.promise);
    while history.len() < count {
        let op = generator.next(&model);
        let Some(expected) = model.apply(&op) else { continue };
        let outcome = exec.apply(&op);
        if !expected.allows(&outcome) {
            return Err(format!("{op:?} answers {outcome:?}, expected {:?}", expected.outcome));
        }
        rig::learn_times(&mut model, &exec.fs, clock.now()).map_err(|e| format!("{op:?}: {e}"))?;
        history.push(op, outcome, expected.effect, model.clone());
        device.mark(history.len() as u64);
    }
    let _ = exec.fs.shutdown(false);
    Ok((device, history))
}

/// Crashes at `points` random events of one recording.
fn crash_one_thread(setup: &Setup, profile: Profile, seed: u64, points: usize) -> Result<(), String> {
    let (device, history) = record(setup, profile, seed, 60)?;
    let recording = device.recording();
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xc4a5);
    for _ in 0..points {
        let at = rng.random_range(0..=recording.events.len());
        let choice = match rng.random_range(0..6) {
            0 => Choice::None,
            1 => Choice::All,
            2 => Choice::Subset(rng.random()),
            _ => Choice::Torn(rng.random()),
        };
        let done = recording.events[..at].iter().rev().find_map(|event| match event {
            kedge_device::sim::Event::Mark(n) => Some(*n as usize),
            _ => None,
        });
        let done = done.unwrap_or(0);
        let said = |e: String| format!("crash at event {at} of {}, {choice:?}: {e}", recording.events.len());
        let (recovered, fs) = reopen(recording.state(at, choice), setup).map_err(said)?;
        let persists = history.persists_before(done);
        let first = check_state(&fs, &history, done, &persists).map_err(|v| said(v.to_string()))?;
        // Recovery is repeatable: power fails again, at any event of the recovery.
        let second = recovered.recording();
        let _ = fs.shutdown(false);
        let again = rng.random_range(0..=second.events.len());
        let (_, fs) = reopen(second.crash(again, rng.random()), setup).map_err(said)?;
        let found = check_state(&fs, &history, done, &persists).map_err(|v| said(v.to_string()))?;
        if history.state(first).paths() != history.state(found).paths() {
            return Err(said(format!("recovered state {first}, after a crash in recovery state {found}")));
        }
        let _ = fs.shutdown(false);
    }
    Ok(())
}

fn run(what: &'static str, seed: u64, body: impl FnOnce() -> Result<(), String> + Send + 'static) {
    if let Err(e) = within(HANG, &format!("{what} KEDGE_SEED={seed}"), body) {
        panic!("{what} KEDGE_SEED={seed}: {e}");
    }
}

#[test]
fn random_operations_then_power_failure() {
    for seed in seeds(125) {
        let clones = if seed % 2 == 0 { 60 } else { 0 };
        let sizes = Profile { offset_max: 64 << 10, write_max: 20 << 10, ..Profile::default() };
        let profile = Profile { remounts: 0, clones, ..sizes };
        run("operations", seed, move || crash_one_thread(&Setup::default().switched(seed), profile, seed, 2));
    }
}

#[test]
fn random_operations_with_a_small_log_then_power_failure() {
    for seed in seeds(125) {
        let clones = if seed % 2 == 0 { 60 } else { 0 };
        let profile = Profile { remounts: 0, persists: 200, clones, ..Profile::default() };
        run("small log", seed, move || crash_one_thread(&Setup::cramped().switched(seed), profile, seed, 2));
    }
}

fn crash_writers(setup: &Setup, seed: u64) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let io = |e: std::io::Error| e.to_string();
    let (mut device, mut fs) = reopen(setup.format()?, setup)?;
    let mut past = Vec::new();
    for round in 0..2 {
        device.stop_recording();
        let backend: Arc<dyn Backend> = Arc::new(InProcess(fs.clone()));
        let writers = Writers::start(&backend, 8, &format!("round{round}-"), rng.random()).map_err(io)?;
        let enough = rng.random_range(20..400);
        while writers.operations() < enough && !writers.ended() {
            std::thread::sleep(Duration::from_micros(200));
        }
        let acked = writers.snapshot();
        let medium = device.crash(rng.random());
        let begun = writers.stop();
        if !begun.errors().is_empty() {
            return Err(format!("writers ended: {:?}", begun.errors()));
        }
        let _ = fs.shutdown(false);
        // Power fails during the first recovery.
        let (first, recovering) = reopen(medium, setup)?;
        let medium =
            first.recording().crash(rng.random_range(0..=first.recording().events.len()), rng.random());
        let _ = recovering.shutdown(false);
        (device, fs) = reopen(medium, setup)?;
        past.push((acked, begun));
        let backend = InProcess(fs.clone());
        for (acked, begun) in &past {
            verify_after(&backend, acked, begun).map_err(|e| format!("round {round}: {e}"))?;
        }
        // What was recovered stays: files of earlier rounds do not change from here on.
        fs.sync().map_err(|e| e.to_string())?;
    }
    fs.close().map_err(|e| format!("close: {e}"))?;
    rig::fsck(device.view())?;
    let medium = rig::unlocked(Arc::new(device.view()))?;
    let fs = kedgefs::FileSystem::open(medium, Arc::new(ManualClock::default()), setup.mount.clone());
    let fs = fs.map_err(|e| format!("open after close: {e}"))?;
    for (acked, begun) in &past {
        verify_after(&InProcess(fs.clone()), acked, begun)?;
    }
    Ok(())
}

#[test]
fn writers_then_power_failure() {
    for seed in seeds(100) {
        let setup = Setup { promise: Promise::LastChange, ..Setup::default() }.switched(seed);
        run("writers", seed, move || crash_writers(&setup, seed));
    }
}

#[test]
fn writers_with_a_small_log_then_power_failure() {
    for seed in seeds(150) {
        let mut setup = Setup::cramped().switched(seed);
        // In every second run, the operation that finds no log space runs the checkpoint.
        if seed % 2 == 0 {
            setup.mount.async_checkpoint = None;
        }
        run("writers, small log", seed, move || crash_writers(&setup, seed));
    }
}

/// The same on an encrypted image: its layer keeps the guarantees of the device, and its sectors
/// can be torn.
#[test]
fn random_operations_on_an_encrypted_image_then_power_failure() {
    for seed in seeds(16) {
        let profile = Profile { remounts: 0, persists: 200, ..Profile::default() };
        let setup = Setup { encrypted: true, ..Setup::cramped() }.switched(seed);
        run("encrypted", seed, move || crash_one_thread(&setup, profile, seed, 2));
    }
}

#[test]
fn writers_on_an_encrypted_image_then_power_failure() {
    for seed in seeds(12) {
        let setup =
            Setup { encrypted: true, promise: Promise::LastChange, ..Setup::default() }.switched(seed);
        run("writers, encrypted", seed, move || crash_writers(&setup, seed));
    }
}

/// Files with checksums: their data is never overwritten in place, and each checksum matches the
/// bytes that recovery finds.
#[test]
fn random_operations_on_files_with_checksums_then_power_failure() {
    for seed in seeds(60) {
        let profile = Profile { remounts: 0, persists: 200, ..Profile::default() };
        let setup = Setup { checksums: true, ..Setup::cramped() }.switched(seed);
        run("checksums", seed, move || crash_one_thread(&setup, profile, seed, 2));
    }
}

#[test]
fn writers_of_files_with_checksums_then_power_failure() {
    for seed in seeds(30) {
        let setup = Setup { checksums: true, promise: Promise::LastChange, ..Setup::default() };
        let setup = if seed % 2 == 0 { Setup { log: 1 << 20, ..setup } } else { setup }.switched(seed);
        run("writers, checksums", seed, move || crash_writers(&setup, seed));
    }
}

/// Sizes around the longest file whose data is kept in the tree, so that data moves into the tree
/// and out of it.
const SMALL_FILES: Profile = Profile {
    names: 5,
    depth_max: 2,
    offset_max: 2500,
    write_max: 1500,
    persists: 200,
    remounts: 0,
    crashes: 0,
    extremes: 0,
    shifts: 0,
    clones: 60,
    trees: 0,
};

#[test]
fn random_operations_on_small_files_then_power_failure() {
    for seed in seeds(120) {
        let inline_max = [512, 1024, 2048][seed as usize % 3];
        let setup = if seed % 2 == 0 { Setup::cramped() } else { Setup::default() };
        let setup = Setup { inline_max, ..setup.switched(seed) };
        run("small files", seed, move || crash_one_thread(&setup, SMALL_FILES, seed, 3));
    }
}

#[test]
fn writers_of_small_files_then_power_failure() {
    for seed in seeds(30) {
        let setup = Setup { promise: Promise::LastChange, ..Setup::default() };
        let setup = if seed % 2 == 0 { Setup { log: 1 << 20, ..setup } } else { setup }.switched(seed);
        let setup = Setup { inline_max: 2048, ..setup };
        run("writers, small files", seed, move || crash_writers(&setup, seed));
    }
}

#[test]
fn power_failure_during_a_paced_checkpoint() {
    run("steady", 0, kedge_sim::steady::check);
}

/// The shortest history: power fails on a fresh image.
#[test]
fn a_fresh_image_survives() {
    let setup = Setup::default();
    let (device, history) = record(&setup, Profile::default(), 1, 0).expect("a fresh image opens");
    for seed in 0..8 {
        let (_, fs) = reopen(device.crash(seed), &setup).expect("a fresh image is whole");
        check_state(&fs, &history, 0, &[]).expect("nothing but the root");
    }
}
