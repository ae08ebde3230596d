//! Without any fsync, a crash loses no work that had completed more than `commit` before it (G14),
//! under any load.
//!
//! The test uses real time and real threads, since it tests the timer. A writer records when each
//! of its operations completed. Power fails at a random moment, and everything old enough must be
//! recovered. `SLACK` is much shorter than `COMMIT`, so that a timer fails the test if it is one
//! interval late or restarts with every request. On a busy machine, the lateness measured on
//! another thread is added several times, since the timer's work passes through several threads.

mod common;

use common::seeds;
use kedge_base::{Clock, HANG, SystemClock};
use kedge_device::sim::SimDevice;
use kedge_sim::ops::{Fill, OWNER, list};
use kedge_sim::rig::{self, within};
use kedgefs::{FileSystem, Ino, MountOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const COMMIT: Duration = Duration::from_millis(1500);
const SLACK: Duration = Duration::from_millis(700);
/// Number of threads, one after another, that may each have to wait for a processor.
const HOPS: u32 = 8;
/// Limit of measurements for each seed until one is in time. The delay of a busy machine does not
/// repeat, a late timer does.
const TRIES: usize = 3;
/// Pause between operations. Faster operations would fill a log write. That would be issued at once
/// and hide a late timer.
const PAUSE: Duration = Duration::from_millis(8);
const IMAGE: u64 = 256 << 20;
const LOG: u64 = 32 << 20;

/// What the writer does besides creating files.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Names, links and renames, which use only the log.
    Metadata,
    /// Small files and overwrites, which leave dirty pages.
    Data,
    /// More dirty pages than the cache holds, so that the flusher runs constantly.
    Flood,
    /// Idle for most of the first interval, then a flood: the timer must not start with the flood.
    LateFlood,
}

/// When an operation completed, and its visible effect: the bytes of a file.
struct Done {
    at: Duration,
    name: String,
    fill: u32,
    len: usize,
}

fn run_load(
    fs: &FileSystem,
    clock: &SystemClock,
    load: Load,
    stop: &AtomicBool,
) -> Result<Vec<Done>, String> {
    let said = |e: kedgefs::Error| e.to_string();
    let flood = fs.create(Ino::ROOT, b"flood", 0o644, OWNER).map_err(said)?.ino;
    let mut done = Vec::new();
    for number in 0u32.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let len = if matches!(load, Load::Metadata) { 0 } else { 1 + (number as usize * 977) % 9000 };
        let (first, name) = (format!("new{number}"), format!("f{number}"));
        let ino = fs.create(Ino::ROOT, first.as_bytes(), 0o644, OWNER).map_err(said)?.ino;
        if len > 0 {
            fs.write(ino, 0, &Fill::Seed(number).bytes(0, len)).map_err(said)?;
        }
        let replace = kedgefs::RenameMode::Replace;
        fs.rename(Ino::ROOT, first.as_bytes(), Ino::ROOT, name.as_bytes(), replace).map_err(said)?;
        done.push(Done { at: clock.monotonic(), name, fill: number, len });
        let flooding = match load {
            Load::Flood => true,
            Load::LateFlood => clock.monotonic() > COMMIT * 4 / 5,
            _ => false,
        };
        if flooding {
            let at = u64::from(number) % 64 * (1 << 20);
            fs.write(flood, at, &vec![number as u8; 1 << 20]).map_err(said)?;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(done)
}

/// Returns the names and bytes that were recovered.
fn recovered(fs: &FileSystem) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let said = |e: kedgefs::Error| e.to_string();
    let mut found = BTreeMap::new();
    for (name, _) in list(fs, Ino::ROOT).map_err(said)? {
        if !name.starts_with('f') || name == "flood" {
            continue;
        }
        let attr = fs.lookup(Ino::ROOT, name.as_bytes()).map_err(said)?;
        let mut bytes = vec![0; attr.size as usize];
        let read = fs.read(attr.ino, 0, &mut bytes).map_err(said)?;
        bytes.truncate(read);
        found.insert(name, bytes);
    }
    Ok(found)
}

/// Returns how much older than the crash the youngest lost work was. It may be at most `COMMIT`
/// plus the slack.
fn lost_age(load: Load, commit: Duration, seed: u64) -> Result<Duration, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let device = Arc::new(SimDevice::new(rig::format(IMAGE, LOG)?));
    device.stop_recording();
    let clock = SystemClock::default();
    let options = MountOptions { commit, cache_size: 16 << 20, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), Arc::new(clock), options).map_err(|e| e.to_string())?;
    let stop = Arc::new(AtomicBool::new(false));
    let (inner, inner_stop) = (fs.clone(), stop.clone());
    let writer = kedge_base::spawn_named("writer", move || run_load(&inner, &clock, load, &inner_stop))
        .map_err(|e| e.to_string())?;
    // From before the second tick until after the third. With `LateFlood`, before the first tick of
    // a timer that starts only with the flood.
    let span = if matches!(load, Load::LateFlood) { COMMIT / 4 } else { COMMIT * 2 };
    let at = COMMIT + SLACK + Duration::from_millis(100) + rng.random_range(Duration::ZERO..span);
    std::thread::sleep(at.saturating_sub(clock.monotonic()));
    let crash = clock.monotonic();
    let medium = device.crash(rng.random());
    stop.store(true, Ordering::Relaxed);
    // Power is off: what the writer and the timer still do has no effect.
    let done = writer.join().map_err(|p| rig::panic_text(&*p))??;
    let _ = fs.shutdown(false);
    rig::fsck(medium.fork())?;
    let fs = FileSystem::open(Arc::new(medium), Arc::new(clock), MountOptions::default())
        .map_err(|e| e.to_string())?;
    let found = recovered(&fs)?;
    let before = done.iter().filter(|d| d.at < crash).count();
    if before < 20 {
        return Err(format!("the writer did only {before} operations"));
    }
    let whole = |d: &Done| found.get(&d.name).is_some_and(|b| *b == Fill::Seed(d.fill).bytes(0, d.len));
    let oldest = done.iter().find(|d| d.at < crash && !whole(d));
    Ok(oldest.map_or(Duration::ZERO, |d| crash.saturating_sub(d.at)))
}

fn check(load: Load) {
    for seed in seeds(4) {
        let what = format!("KEDGE_SEED={seed} {load:?}");
        let mut measured = Vec::new();
        let in_time = (0..TRIES).any(|_| {
            let run = || within(HANG, &what, move || lost_age(load, COMMIT, seed));
            let (lost, late) = rig::with_lateness(run);
            let lost = lost.unwrap_or_else(|e| panic!("{what}: {e}"));
            println!("{what}: work of the last {lost:?} is lost; the machine was {late:?} late");
            measured.push((lost, late));
            lost <= COMMIT + SLACK + late * HOPS
        });
        assert!(in_time, "{what}: the age of lost work, and the machine's delay: {measured:?}");
    }
}

#[test]
fn names_are_durable_in_time() {
    check(Load::Metadata);
}

#[test]
fn small_files_are_durable_in_time() {
    check(Load::Data);
}

#[test]
fn a_flood_of_dirty_pages_does_not_delay_the_timer() {
    check(Load::Flood);
}

#[test]
fn a_flood_does_not_start_the_timer_anew() {
    check(Load::LateFlood);
}

/// Proves that the test can fail: with a timer that never fires, everything is lost.
#[test]
fn without_a_timer_work_is_lost() {
    let hour = Duration::from_secs(3600);
    let lost = within(HANG, "no timer", move || lost_age(Load::Metadata, hour, 1));
    let lost = lost.expect("runs");
    assert!(lost > COMMIT + SLACK, "{lost:?}");
}
