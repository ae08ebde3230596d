//! Machine failures after deaths of servers. Each state that such a failure can leave, at any time
//! during several lives, must be allowed by the oracle of `kedge_sim`, as if no server had died.
//!
//! A random history of changes and fsyncs runs as requests, and in the model. A server dies at a
//! step of a request, and sometimes its successors die while they redo changes. The simulated
//! device keeps all writes, flushed or not, over all lives. For each event of its recording, a
//! sample of the subsets of the unflushed writes is checked.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::abi::{
    FallocateIn, FsyncIn, InHeader, LinkIn, MkdirIn, MknodIn, Rename2In, SetattrIn, SetxattrIn, WriteIn,
    fattr,
};
use crate::keep::steps::{break_rule, die_at, redoing};
use crate::takeover::tests::{Wire, named};
use kedge_base::ManualClock;
use kedge_device::sim::{SimDevice, StatePlan};
use kedge_device::{Device, MemDevice, WatchedDevice};
use kedge_sim::crash::{History, Promise, check_state};
use kedge_sim::explore;
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::model::Model;
use kedge_sim::ops::{Falloc, OWNER, Op, Rename, Target, XattrFlag, resolve, split};
use kedge_sim::rig;
use kedgefs::{FileSystem, MountOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fd::OwnedFd;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const HISTORIES: u64 = 12;
const OPERATIONS: usize = 40;
/// One request out of this many kills its server.
const DEATH_EVERY: u32 = 8;

/// A request as opcode, inode and arguments.
type Asked = (u32, u64, Vec<u8>);

struct Machine {
    device: Arc<SimDevice>,
    area: OwnedFd,
    fs: FileSystem,
    server: Server<FileSystem>,
    wire: Arc<Wire>,
    unique: u64,
}

fn mount() -> MountOptions {
    MountOptions { async_checkpoint: None, ..explore::setup().mount }
}

impl Machine {
    fn new(base: &MemDevice) -> Machine {
        let device = Arc::new(SimDevice::new(base.fork()));
        let area = Area::make().unwrap().fd().try_clone_to_owned().unwrap();
        let (fs, server, wire) = Machine::serve(&device, &area, &mut SmallRng::seed_from_u64(0));
        Machine { device, area, fs, server, wire, unique: 0 }
    }

    /// Begins a life. While the server redoes changes, syncs at random make some of them durable.
    fn serve(
        device: &Arc<SimDevice>,
        area: &OwnedFd,
        rng: &mut SmallRng,
    ) -> (FileSystem, Server<FileSystem>, Arc<Wire>) {
        let life = Life::begin(Area::inherited(area.try_clone().unwrap()).unwrap());
        let clock = Arc::new(ManualClock::default());
        // Each life opens the device through a `WatchedDevice` of its own, as another process
        // would.
        let below: Arc<dyn Device> = Arc::new(WatchedDevice::new(device.clone(), clock.clone()));
        let fs = match life.is_second() {
            false => FileSystem::open(below, clock, mount()).unwrap(),
            true => FileSystem::open_again(below, clock, mount(), None, |end| {
                life.recovered(end);
                Ok(())
            })
            .unwrap(),
        };
        let wire = Arc::new(Wire::default());
        let ops = Arc::new(fs.clone());
        let (server, _jobs) =
            Server::new(ops, wire.clone(), crate::FuseOptions::default(), Value::Null, Box::new(|| ()));
        let (syncs, every) = (fs.clone(), rng.random_range(1..4u32));
        let made = Cell::new(0u32);
        redoing(Some(Box::new(move || {
            made.set(made.get() + 1);
            if made.get().is_multiple_of(every) {
                syncs.sync().unwrap();
            }
        })));
        let server = server.resume(&life);
        redoing(None);
        (fs, server.unwrap(), wire)
    }

    /// The process dies. From then on its threads write nothing.
    fn die(&mut self, rng: &mut SmallRng) {
        let pending = self.device.pending();
        // Ends the threads that would end with the process.
        let _ended = self.fs.shutdown(false);
        assert_eq!(self.device.pending(), pending, "a dead server has written");
        (self.fs, self.server, self.wire) = Machine::serve(&self.device, &self.area, rng);
    }

    fn ino(&self, path: &str) -> u64 {
        resolve(&self.fs, path).unwrap().0
    }

    fn send(&self, unique: u64, (opcode, node, body): &Asked) -> i32 {
        let header = InHeader {
            opcode: *opcode,
            nodeid: *node,
            unique,
            len: 40 + body.len() as u32,
            uid: OWNER.uid,
            gid: OWNER.gid,
            ..InHeader::default()
        };
        let message = [header.as_bytes(), body].concat();
        let request = Request::parse(&message, 0).unwrap();
        let before = self.wire.0.lock().len();
        let reply = self.server.accept(&request);
        let kept = self.server.kept.clone().unwrap();
        self.server.serve_kept(&kept, &request, reply, &mut IoBuf::zeroed(1));
        while self.wire.0.lock().len() == before {
            // Another thread replies to an fsync.
            SystemClock::default().sleep(std::time::Duration::from_millis(1));
        }
        self.wire.0.lock().last().unwrap().1
    }

    /// Sends a request whose server dies at `step`.
    fn run(&mut self, asked: &Asked, step: Step, rng: &mut SmallRng) -> i32 {
        self.unique += 2;
        let unique = self.unique;
        if step != Step::Never && matches!(asked.0, op::FSYNC | op::SYNCFS) {
            // An fsync has no steps, so the server dies before it serves the request.
            self.die(rng);
            return self.send(unique | UNIQUE_RESEND, asked);
        }
        die_at(step, Box::new(|| ()));
        let served = catch_unwind(AssertUnwindSafe(|| self.send(unique, asked)));
        die_at(Step::Never, Box::new(|| ()));
        served.unwrap_or_else(|_| {
            self.die(rng);
            self.send(unique | UNIQUE_RESEND, asked)
        })
    }

    /// The request that corresponds to an operation; `None` if this test cannot send it.
    fn request(&self, op: &Op) -> Option<Asked> {
        let on = |target: &Target| match target {
            Target::Path(path) => Some(self.ino(path)),
            Target::Handle(_) => None,
        };
        let at = |path: &str| split(path).map(|(dir, name)| (self.ino(dir), name.to_owned()));
        let set = |set: SetattrIn| set.as_bytes().to_vec();
        Some(match op {
            Op::Create { path, mode } => {
                let (dir, name) = at(path)?;
                let asked = MknodIn { mode: 0o100_000 | mode, ..MknodIn::default() };
                (op::MKNOD, dir, named(asked.as_bytes(), &[&name]))
            }
            Op::Mkdir { path, mode } => {
                let (dir, name) = at(path)?;
                (op::MKDIR, dir, named(MkdirIn { mode: *mode, umask: 0 }.as_bytes(), &[&name]))
            }
            Op::Link { from, path } => {
                let ((dir, name), oldnodeid) = (at(path)?, on(from)?);
                (op::LINK, dir, named(LinkIn { oldnodeid }.as_bytes(), &[&name]))
            }
            Op::Unlink { path } => at(path).map(|(dir, name)| (op::UNLINK, dir, named(&[], &[&name])))?,
            Op::Rmdir { path } => at(path).map(|(dir, name)| (op::RMDIR, dir, named(&[], &[&name])))?,
            Op::Rename { from, to, how } => {
                let ((dir, name), (newdir, new)) = (at(from)?, at(to)?);
                let flags = match how {
                    Rename::Replace => 0,
                    Rename::NoReplace => 1,
                    Rename::Exchange => 2,
                    Rename::Whiteout => return None,
                };
                let asked = Rename2In { newdir, flags, padding: 0 };
                (op::RENAME2, dir, named(asked.as_bytes(), &[&name, &new]))
            }
            Op::Write { on: target, offset, len, fill } => {
                let asked = WriteIn { offset: *offset, size: *len, ..WriteIn::default() };
                (op::WRITE, on(target)?, [asked.as_bytes(), &fill.bytes(*offset, *len as usize)].concat())
            }
            Op::Truncate { on: target, size } => {
                let asked = SetattrIn { valid: fattr::SIZE, size: *size, ..SetattrIn::default() };
                (op::SETATTR, on(target)?, set(asked))
            }
            Op::Fallocate { on: target, how, offset, len } => {
                let mode = match how {
                    Falloc::Alloc => 0,
                    Falloc::Keep => 1,
                    Falloc::Punch => 3,
                    Falloc::Zero => 0x10,
                    Falloc::ZeroKeep => 0x11,
                    Falloc::Collapse | Falloc::Insert => return None,
                };
                let asked = FallocateIn { offset: *offset, length: *len, mode, ..FallocateIn::default() };
                (op::FALLOCATE, on(target)?, asked.as_bytes().to_vec())
            }
            Op::Chmod { on: target, mode } => {
                let asked = SetattrIn { valid: fattr::MODE, mode: *mode, ..SetattrIn::default() };
                (op::SETATTR, on(target)?, set(asked))
            }
            Op::SetXattr { on: target, name, value, how: XattrFlag::Any } => {
                let asked = SetxattrIn { size: value.len() as u32, flags: 0 };
                let body = [&named(asked.as_bytes(), &[name])[..], value.as_bytes()].concat();
                (op::SETXATTR, on(target)?, body)
            }
            Op::Fsync { on: target } | Op::Fdatasync { on: target } => {
                let fsync_flags = u32::from(matches!(op, Op::Fdatasync { .. }));
                (op::FSYNC, on(target)?, FsyncIn { fsync_flags, ..FsyncIn::default() }.as_bytes().to_vec())
            }
            Op::Sync => (op::SYNCFS, Ino::ROOT.0, vec![0; 8]),
            _ => return None,
        })
    }
}

/// Runs a history with deaths. Returns the number of device states that were checked, or a
/// violation.
fn history(seed: u64, base: &MemDevice) -> Result<usize, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let profile = Profile { names: 3, extremes: 0, remounts: 0, persists: 200, ..Profile::default() };
    let profile = Profile { offset_max: 40 << 10, write_max: 12 << 10, ..profile };
    let mut generator = Generator::new(seed, profile);
    let mut machine = Machine::new(base);
    let mut model = Model::new();
    let mut history = History::new(model.clone(), Promise::LastChange);
    machine.device.mark(0);
    let mut deaths = 0;
    while history.len() < OPERATIONS {
        let op = generator.next(&model);
        let mut after = model.clone();
        // Operations that fail are skipped: the kernel refuses most of them without a request.
        let Some(expected) = after.apply(&op).filter(|expected| expected.outcome.is_ok()) else { continue };
        let Some(asked) = machine.request(&op) else { continue };
        let step = match rng.random_ratio(1, DEATH_EVERY) {
            true => [Step::Begun, Step::Marked, Step::Made, Step::Finished][rng.random_range(0..4)],
            false => Step::Never,
        };
        let life = machine.server.kept.as_ref().unwrap().life;
        let error = machine.run(&asked, step, &mut rng);
        deaths += machine.server.kept.as_ref().unwrap().life - life;
        if error != 0 {
            return Err(format!("{op:?} returns {error}, expected {:?}", expected.outcome));
        }
        model = after;
        history.push(op, expected.outcome, expected.effect, model.clone());
        machine.device.mark(history.len() as u64);
    }
    assert!(deaths > 0, "seed {seed}: no server died");
    let states = StatePlan { subsets: 4, samples: 4, torn: 1, at_marks_only: false, seed };
    let mut judged = BTreeSet::new();
    for state in machine.device.recording().states(states) {
        let Some(done) = state.mark.map(|mark| mark as usize) else { continue };
        if !judged.insert((state.medium.difference_hash(base), done)) {
            continue;
        }
        let at = format!("{state:?}");
        rig::fsck(state.medium.fork()).map_err(|e| format!("{at}: {e}"))?;
        let clock = Arc::new(ManualClock::default());
        let fs =
            FileSystem::open(Arc::new(state.medium), clock, mount()).map_err(|e| format!("{at}: {e}"))?;
        check_state(&fs, &history, done, &history.persists_before(done))
            .map_err(|violation| format!("{at}, {deaths} deaths\n{violation}"))?;
    }
    Ok(judged.len())
}

/// Runs several histories. Returns the violations, and the number of device states that were
/// checked.
fn violations(seeds: std::ops::Range<u64>) -> (Vec<String>, usize) {
    let base = explore::base_image(false).unwrap();
    let (mut found, mut media) = (Vec::new(), 0);
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| history(seed, &base))) {
            Ok(Ok(judged)) => media += judged,
            Ok(Err(violation)) => found.push(format!("seed {seed}: {violation}")),
            Err(panic) => found.push(format!("seed {seed}: panic: {}", rig::panic_text(&*panic))),
        }
    }
    (found, media)
}

#[test]
fn a_power_failure_after_deaths_leaves_a_legal_state() {
    let seeds = rig::seed_from_env().map_or(0..HISTORIES, |seed| seed..seed + 1);
    let (found, media) = violations(seeds);
    println!("{media} media");
    assert!(found.is_empty(), "{} violations, the first: {}", found.len(), found[0]);
}

#[test]
fn broken_rules_are_seen_after_a_power_failure() {
    for rule in [Broken::UnforcedIsDurable, Broken::OlderValueAgain] {
        break_rule(rule);
        let (found, _) = violations(0..HISTORIES);
        break_rule(Broken::Nothing);
        println!("{rule:?} is caught by {} of {HISTORIES} histories", found.len());
        assert!(found.iter().any(|what| what.contains("no allowed state")), "{rule:?}: {found:?}");
    }
}
