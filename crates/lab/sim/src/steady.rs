//! Power fails during background checkpoints while fsyncs continue. Recovery must find the previous
//! checkpoint or the new one, and the log that matches it.
//!
//! The number of fsyncs during a checkpoint must not depend on thread scheduling. So the device
//! holds each write of a superblock slot until files were created and fsynced past the cut. Every
//! run then detects an engine that breaks a rule before the slot is durable.

use crate::ops::OWNER;
use crate::rig::{self, Setup};
use kedge_base::{BLOCK_SIZE, ManualClock};
use kedge_device::MemDevice;
use kedge_device::sim::{Choice, Event, FaultPlan, OpKind, SimDevice};
use kedge_format::superblock::SLOTS;
use kedgefs::{FileSystem, Ino};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

const CHECKPOINTS: u64 = 4;
/// Number of files that are created and fsynced while a slot write is held.
const BESIDE: u64 = 20;
/// Percentage of the log. With less free, no file is created until the slot write is held:
/// otherwise the files could need space that only the end of the held checkpoint frees.
const FREE_MIN: u64 = 40;
/// Limit of files, which fill the log ten times.
const FILES_MAX: u64 = 8000;
const CRASHES: usize = 60;
const BYTES: usize = 3000;

fn said(what: &str) -> impl Fn(kedgefs::Error) -> String {
    move |e| format!("{what}: {e}")
}

fn count(fs: &FileSystem, path: &str) -> Result<u64, String> {
    let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).map_err(|e| e.to_string())?;
    stats.pointer(path).and_then(|v| v.as_u64()).ok_or(format!("no counter {path}"))
}

/// Makes an fsynced file with bytes of its own, and three empty ones, which need tree nodes.
fn make(fs: &FileSystem, i: u64) -> Result<(), String> {
    for part in ["a", "b", "c"] {
        fs.create(Ino::ROOT, format!("{i}{part}").as_bytes(), 0o644, OWNER).map_err(said("create"))?;
    }
    let file = fs.create(Ino::ROOT, i.to_string().as_bytes(), 0o644, OWNER).map_err(said("create"))?.ino;
    fs.write(file, 0, &[i as u8; BYTES]).map_err(said("write"))?;
    fs.fsync(file, false).map_err(said("fsync"))
}

/// A load on a recording device.
struct Load {
    device: Arc<SimDevice>,
    fs: FileSystem,
    made: u64,
}

impl Load {
    fn make(&mut self) -> Result<(), String> {
        make(&self.fs, self.made)?;
        self.made += 1;
        self.device.mark(self.made);
        if self.made < FILES_MAX { Ok(()) } else { Err("too few checkpoints in the background".into()) }
    }

    /// Creates files until the write of a slot by the background thread is held.
    fn until_held(&mut self) -> Result<(), String> {
        while self.device.held_up() == 0 {
            if count(&self.fs, "/log/free_percent")? >= FREE_MIN {
                self.make()?;
            } else {
                std::thread::sleep(Duration::from_millis(1));
                self.fs.sync().map_err(said("sync"))?; // fails if the engine has shut down
            }
        }
        Ok(())
    }

    fn checkpoints(&self) -> Result<u64, String> {
        count(&self.fs, "/transactions/checkpoints")
    }

    /// Creates files during a checkpoint whose slot is held; then lets the checkpoint finish.
    fn beside(&mut self) -> Result<(), String> {
        let before = self.checkpoints()?;
        (0..BESIDE).try_for_each(|_| self.make())?;
        self.device.release();
        while self.checkpoints()? == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Checks crashes before and after each slot write, and at random events.
pub fn check() -> Result<(), String> {
    let setup = Setup { image: 96 << 20, log: 2 << 20, ..Setup::default() };
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    // Formatting is over, and nothing else is written between the two slots.
    let area = SLOTS[0].byte_offset()..SLOTS[1].byte_offset() + BLOCK_SIZE as u64;
    let plan = (0..CHECKPOINTS).fold(FaultPlan::new(0), |plan, nth| plan.hold(OpKind::Write, nth));
    device.set_plan(plan.only_in(area));
    let mut load = Load { device: device.clone(), fs, made: 0 };
    for _ in 0..CHECKPOINTS {
        load.until_held().and_then(|()| load.beside()).inspect_err(|_| device.heal())?;
    }
    let background = count(&load.fs, "/checkpoint/by_cause/background")?;
    let recording = device.recording();
    let _ = load.fs.shutdown(false);
    let slots = slots(&recording.events);
    if slots.len() < CHECKPOINTS as usize || background < CHECKPOINTS {
        return Err(format!("{} slots, {background} checkpoints in the background", slots.len()));
    }
    let mut rng = SmallRng::seed_from_u64(9);
    let end = recording.events.len();
    let mut points: Vec<usize> = (0..CRASHES).map(|_| rng.random_range(end / 4..=end)).collect();
    // Just before a slot is written, the log has grown longest, and recovery still needs the
    // previous checkpoint.
    points.extend(slots.iter().flat_map(|at| [at.saturating_sub(10), at.saturating_sub(1), *at, at + 1]));
    for at in points {
        let choice = if rng.random() { Choice::None } else { Choice::Torn(rng.random()) };
        let acked = recording.events[..at].iter().rev().find_map(|event| match event {
            Event::Mark(made) => Some(*made),
            _ => None,
        });
        recovered(recording.state(at, choice), &setup, acked.unwrap_or(0))
            .map_err(|e| format!("event {at}, {choice:?}, {acked:?} files: {e}"))?;
    }
    Ok(())
}

/// Returns the indexes of the events that write slots.
fn slots(events: &[Event]) -> Vec<usize> {
    let is_slot = |event: &Event| match event {
        Event::Write { offset, .. } => SLOTS.iter().any(|slot| slot.byte_offset() == *offset),
        _ => false,
    };
    (0..events.len()).filter(|&at| is_slot(&events[at])).collect()
}

fn recovered(medium: MemDevice, setup: &Setup, acked: u64) -> Result<(), String> {
    rig::fsck(medium.fork())?;
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup)?;
    for i in 0..acked {
        let file = fs.lookup(Ino::ROOT, i.to_string().as_bytes()).map_err(said("look up an fsynced file"))?;
        let mut bytes = [0; BYTES + 1];
        let read = fs.read(file.ino, 0, &mut bytes).map_err(said("read"))?;
        if read != BYTES || bytes[..BYTES] != [i as u8; BYTES] {
            return Err(format!("fsynced file {i} has {read} bytes, or others"));
        }
    }
    make(&fs, FILES_MAX)?;
    fs.close().map_err(said("close"))?;
    rig::fsck(device.crash_as(Choice::All))
}
