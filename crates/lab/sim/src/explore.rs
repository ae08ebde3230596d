//! Checks every state that a crash during a workload can leave.
//!
//! A workload runs once, in this process, on a recording device over a fork of one formatted image.
//! The recording gives the media: at each event all subsets of the unflushed writes (a sample if
//! there are many), torn writes, and FUA writes torn before they completed. Some media differ only
//! in blocks that recovery and checks do not read (`courses.rs`). The first of them is
//! 1. inspected: if it is marked clean, its log is empty; then opened, and fsck checks the
//!    checkpoint that recovery left;
//! 3. used (a sample of the media): a file is created and removed in every directory, on every
//!    second medium all names are removed, and the image is closed and checked by fsck again;
//! 4. crashed again at each write of its own recovery (a sample), and recovered again: the same
//!    tree must result.
//!
//! The result of the walk is then compared with the oracle for the operations that had returned
//! before the crash.
//!
//! The recording is reproducible: the clock is a counter, one thread does all the work, and the
//! engine's own threads are idle (the commit interval is an hour, and no workload fills the log).

use crate::courses::{Courses, Reads, Traced};
use crate::crash::{History, Promise, check_view};
use crate::model::Model;
use crate::ops::{Executor, OWNER, Op, Outcome};
use crate::rig::{self, Setup, panic_text};
use crate::view::{Found, View};
use crate::workload::{DEVICE, IMAGE, Workload};
use kedge_base::{BLOCK_SIZE, ManualClock};
use kedge_device::sim::{Event, FaultPlan, Recording, SimDevice, StatePlan};
use kedge_device::{Device, MemDevice};
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_fsck::{CheckOptions, Replay, StoreReplay};
use kedgefs::{FileKind, FileSystem, Ino, MountOptions};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How thoroughly to explore.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Media for each event of the operations.
    pub states: StatePlan,
    /// Media for each event of the final checkpoint, when the file system is closed.
    pub closing: StatePlan,
    /// One of this many different recoveries is also crashed at each of its writes.
    pub recovery_every: u64,
    /// After one of this many different recoveries the file system is used.
    pub use_every: u64,
}

impl Plan {
    pub fn thorough(seed: u64) -> Plan {
        let states = StatePlan { subsets: 1 << 10, samples: 64, torn: 3, at_marks_only: false, seed };
        Plan {
            states,
            closing: StatePlan { subsets: 16, samples: 12, ..states },
            recovery_every: 1,
            use_every: 1,
        }
    }

    /// The plan for longer workloads, whose media are mostly those of shorter ones with few
    /// additions.
    pub fn quick(seed: u64) -> Plan {
        let plan = Plan::thorough(seed);
        let closing = StatePlan { subsets: 4, samples: 4, torn: 1, ..plan.states };
        let states = StatePlan { torn: 2, ..plan.states };
        Plan { states, closing, recovery_every: 4, use_every: 4 }
    }
}

/// The counts of an exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub workloads: u64,
    /// Number of crash states: the media at all points, including crashes during recovery.
    pub states: u64,
    /// Number of recoveries that were run. Media share one if they agree in all blocks that the
    /// recovery and its checks read.
    pub distinct: u64,
    /// Number of crash states during recovery.
    pub recovery: u64,
    pub violations: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.workloads += other.workloads;
        self.states += other.states;
        self.distinct += other.distinct;
        self.recovery += other.recovery;
        self.violations += other.violations;
    }
}

/// A state that is not allowed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub workload: Workload,
    /// The seed of the mount's switches, if they were set by one.
    pub switched: Option<u64>,
    /// The number of the crash state in the enumeration; `None` if the workload itself failed.
    pub state: Option<u64>,
    /// The event at which the crash happens.
    pub at: String,
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VIOLATION --workload {}", self.workload.id)?;
        if let Some(seed) = self.switched {
            write!(f, " --switched --seed {seed}")?;
        }
        if let Some(state) = self.state {
            write!(f, " --state {state}")?;
        }
        write!(f, "\n{}{}\n{}", self.workload, self.at, self.what)
    }
}

/// The result of recovering one medium: the tree, or the error.
pub type Recovered = Result<View, String>;

/// A recovery's result and its number. Equal trees have the same number while they are remembered.
#[derive(Clone)]
struct Known {
    number: u64,
    recovered: Arc<Recovered>,
}

/// The recording of a workload.
struct Run {
    recording: Recording,
    history: History,
}

/// See the module. Each thread has its own explorer.
pub struct Explorer {
    setup: Setup,
    base: MemDevice,
    plan: Plan,
    /// Faults of the device while the workload runs.
    faults: FaultPlan,
    /// Seed of the mount's switches; `None` for the defaults.
    switched: Option<u64>,
    /// A hash of `setup`.
    setting: u64,
    recovered: Arc<Mutex<Memory>>,
    pub tally: Tally,
}

/// A map with two generations. The older one is dropped when the younger one is full.
struct Recent<T> {
    young: HashMap<u64, T>,
    old: HashMap<u64, T>,
    max: usize,
}

impl<T: Clone> Recent<T> {
    fn new(max: usize) -> Recent<T> {
        Recent { young: HashMap::new(), old: HashMap::new(), max }
    }

    fn get(&mut self, hash: u64) -> Option<T> {
        if let Some(known) = self.young.get(&hash) {
            return Some(known.clone());
        }
        let known = self.old.remove(&hash)?;
        self.put(hash, known.clone());
        Some(known)
    }

    fn put(&mut self, hash: u64, known: T) {
        if self.young.len() >= self.max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, known);
    }
}

/// Results of recoveries by hash of the medium. Workloads that begin alike share them, and so do
/// threads. Many media have the same tree, which is kept once.
pub struct Memory {
    media: Recent<Known>,
    /// Results by hash of the tree.
    trees: Recent<Known>,
    courses: Courses<Known>,
    next_number: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        let (media, trees) = (Recent::new(MEDIA_MAX), Recent::new(TREES_MAX));
        Memory { media, trees, courses: Courses::default(), next_number: 0 }
    }
}

/// Limit of media in one generation.
const MEDIA_MAX: usize = 100_000;
/// Limit of trees in one generation, each of about ten KiB.
const TREES_MAX: usize = 20_000;

impl Memory {
    /// Returns the result for the same medium, or for one that differs only in blocks that a
    /// recovery with this setting does not read.
    fn find(&mut self, setting: u64, hash: u64, medium: &MemDevice) -> Option<Known> {
        if let Some(known) = self.media.get(hash) {
            return Some(known);
        }
        let known = self.courses.find(setting, medium)?;
        self.media.put(hash, known.clone());
        Some(known)
    }

    /// Returns the result with its number.
    fn known(&mut self, recovered: Recovered) -> Known {
        let tree = recovered.as_ref().ok().map(View::fingerprint);
        if let Some(known) = tree.and_then(|tree| self.trees.get(tree))
            && *known.recovered == recovered
        {
            return known;
        }
        self.next_number += 1;
        let known = Known { number: self.next_number, recovered: Arc::new(recovered) };
        if let Some(tree) = tree {
            self.trees.put(tree, known.clone());
        }
        known
    }
}

/// The setup of a small image without background activity.
pub fn setup() -> Setup {
    let mount = MountOptions {
        commit: std::time::Duration::from_secs(3600),
        cache_size: 4 << 20,
        ..MountOptions::default()
    };
    Setup {
        image: IMAGE,
        log: 1 << 20,
        mount,
        promise: Promise::Prefix,
        compare_every: usize::MAX,
        far: false,
        encrypted: false,
        checksums: false,
        inline_max: 0,
    }
}

fn setting(setup: &Setup) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{setup:?}").hash(&mut hasher);
    hasher.finish()
}

/// The image from which all workloads start. `inline`: whether it keeps the data of small files in
/// the tree.
pub fn base_image(inline: bool) -> Result<MemDevice, String> {
    let setup = setup();
    let inline_max = if inline { kedge_format::inline::INLINE_MAX as u64 } else { 0 };
    rig::format_within(DEVICE, setup.image, setup.log, inline_max)
}

impl Explorer {
    pub fn new(base: &MemDevice, plan: Plan) -> Explorer {
        let (setup, faults, tally) = (setup(), FaultPlan::default(), Tally::default());
        let (base, setting, recovered) = (base.fork(), setting(&setup), Arc::default());
        Explorer { setup, base, plan, faults, switched: None, setting, recovered, tally }
    }

    /// Shares results with other explorers that have the same plan.
    pub fn sharing(mut self, recovered: &Arc<Mutex<Memory>>) -> Explorer {
        self.recovered = recovered.clone();
        self
    }

    /// Sets the switches of each workload's mount by `seed` and the workload, since every
    /// combination of switches must be crash-safe.
    pub fn switched(mut self, seed: Option<u64>) -> Explorer {
        self.switched = seed;
        self
    }

    /// Runs workloads on a device that acknowledges flushes without performing them. If an
    /// exploration finds no violation there, it proves nothing.
    pub fn on_lying_device(mut self) -> Explorer {
        self.faults = FaultPlan::new(0).lying();
        self
    }

    /// Explores one workload and returns the first violation. With `only`, checks only this state.
    pub fn explore(&mut self, workload: &Workload, only: Option<u64>) -> Option<Box<Failure>> {
        self.tally.workloads += 1;
        let mut at = (None, String::new());
        if let Some(seed) = self.switched {
            self.setup = setup().switched(seed.wrapping_add(workload.id.mixed()));
            self.setting = setting(&self.setup);
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            let run = self.record(workload)?;
            self.judge_all(workload, &run, only, &mut at)
        }));
        let what = match result {
            Ok(Ok(())) => return None,
            Ok(Err(what)) => what,
            Err(panic) => format!("panic: {}", panic_text(&*panic)),
        };
        self.tally.violations += 1;
        Some(Box::new(Failure {
            workload: workload.clone(),
            switched: self.switched,
            state: at.0,
            at: at.1,
            what,
        }))
    }

    /// Runs the operations, then closes the file system. Each mark in the recording is the number
    /// of operations that have returned.
    fn record(&self, workload: &Workload) -> Result<Run, String> {
        let device = Arc::new(SimDevice::new(self.base.fork()));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &self.setup)?;
        device.set_plan(self.faults.clone());
        device.mark(0);
        let mut exec = Executor::new(fs);
        let mut model = Model::new();
        let mut history = History::new(model.clone(), self.setup.promise);
        for op in &workload.ops {
            let expected = model.apply(op).ok_or_else(|| format!("{op:?} is not specified"))?;
            let outcome = exec.apply(op);
            if !expected.allows(&outcome) {
                return Err(format!("{op:?} answers {outcome:?}, expected {:?}", expected.outcome));
            }
            history.push(op.clone(), outcome, expected.effect, model.clone());
            device.mark(history.len() as u64);
        }
        let expected = model.apply(&Op::Remount).ok_or("a remount is specified")?;
        exec.fs.close().map_err(|e| format!("close: {e}"))?;
        history.push(Op::Remount, Outcome::Done, expected.effect, model);
        device.mark(history.len() as u64);
        Ok(Run { recording: device.recording(), history })
    }

    fn judge_all(
        &mut self,
        workload: &Workload,
        run: &Run,
        only: Option<u64>,
        crash: &mut (Option<u64>, String),
    ) -> Result<(), String> {
        let closing = workload.ops.len() as u64;
        let (mut judged, mut judged_trees) = (HashSet::new(), HashSet::new());
        let mut states = run.recording.states(self.plan.states).from_mark(workload.settled as u64);
        let mut number = 0;
        while let Some(state) = states.next() {
            let mark = state.mark.expect("the states begin at a mark");
            if mark == closing {
                states.set_plan(self.plan.closing);
            }
            number += 1;
            if only.is_some_and(|only| only != number) {
                continue;
            }
            self.tally.states += 1;
            let hash = state.medium.difference_hash(&self.base);
            if !judged.insert((hash, mark)) {
                continue;
            }
            *crash = (Some(number), format!("{state:?}"));
            let known = self.recover(hash, &state.medium);
            let view = (*known.recovered).as_ref().map_err(Clone::clone)?;
            // Equal trees after the same number of operations have the same verdict.
            if !judged_trees.insert((known.number, mark)) {
                continue;
            }
            let done = mark as usize;
            check_view(Ok(view), &run.history, done, &run.history.persists_before(done))
                .map_err(|violation| violation.to_string())?;
        }
        Ok(())
    }

    /// Recovers a medium, or returns the remembered result of a recovery that would be the same.
    fn recover(&mut self, hash: u64, medium: &MemDevice) -> Known {
        if let Some(known) = self.recovered.lock().find(self.setting, hash, medium) {
            return known;
        }
        self.tally.distinct += 1;
        let reads = Reads::of(medium);
        let recovered = self.recover_anew(medium, &reads);
        let mut memory = self.recovered.lock();
        let known = memory.known(recovered);
        memory.media.put(hash, known.clone());
        memory.courses.learn(self.setting, medium, reads.lock().runs(), known.clone());
        known
    }

    /// Recovers a medium. Notes in `reads` all blocks on which the result depends.
    fn recover_anew(&mut self, medium: &MemDevice, reads: &Arc<Mutex<Reads>>) -> Recovered {
        mark_is_true(medium, reads)?;
        let (device, traced, fs) = self.open(medium, reads)?;
        let recording = device.recording();
        fsck(&device, &traced, "after recovery")?;
        let view = View::of(&fs)?;
        // The hash chooses the samples, so that every run makes the same choices.
        let hash = reads.lock().hash_on(medium);
        if hash.is_multiple_of(self.plan.use_every) {
            exercise(&fs, &view, (hash / self.plan.use_every) & 1 == 0)?;
            fs.close().map_err(|e| format!("close after recovery: {e}"))?;
            fsck(&device, &traced, "after recovery, use and close")?;
        }
        drop(fs);
        if (hash >> 8).is_multiple_of(self.plan.recovery_every) {
            self.crash_recovery(&recording, &view, reads)?;
        }
        Ok(view)
    }

    fn open(
        &self,
        medium: &MemDevice,
        reads: &Arc<Mutex<Reads>>,
    ) -> Result<(Arc<SimDevice>, Arc<Traced>, FileSystem), String> {
        let device = Arc::new(SimDevice::new(medium.fork()));
        let traced = Arc::new(Traced::new(device.clone(), reads.clone()));
        let fs = rig::open_on(traced.clone(), &Arc::new(ManualClock::default()), &self.setup)?;
        Ok((device, traced, fs))
    }

    /// Crashes a recovery at each of its writes. The second recovery must find the same tree as the
    /// first.
    fn crash_recovery(
        &mut self,
        recording: &Recording,
        view: &View,
        reads: &Arc<Mutex<Reads>>,
    ) -> Result<(), String> {
        // A torn write leaves a part of the block's earlier content, on which the result then
        // depends.
        for event in &recording.events {
            match event {
                Event::Write { offset, data, .. } => {
                    reads.lock().note(*offset, data.blocks() * BLOCK_SIZE as u64);
                }
                Event::WriteZeroes { offset, len, .. } | Event::Discard { offset, len, .. } => {
                    reads.lock().note(*offset, *len);
                }
                Event::Flush { .. } | Event::FlushLost { .. } | Event::Mark(_) => {}
            }
        }
        let plan = StatePlan { subsets: 0, samples: 2, torn: 1, ..self.plan.states };
        let mut seen = HashSet::from([recording.base.difference_hash(&self.base)]);
        for state in recording.states(plan) {
            self.tally.states += 1;
            self.tally.recovery += 1;
            if !seen.insert(state.medium.difference_hash(&self.base)) {
                continue;
            }
            self.tally.distinct += 1;
            let said = |e: String| format!("in recovery, {state:?}: {e}");
            let (device, traced, fs) = self.open(&state.medium, reads).map_err(said)?;
            fsck(&device, &traced, "after the second recovery").map_err(said)?;
            let again = View::of(&fs).map_err(said)?;
            same_view(view, &again).map_err(said)?;
        }
        Ok(())
    }
}

/// Checks that no log follows the tail of a slot that is marked clean.
fn mark_is_true(medium: &MemDevice, reads: &Arc<Mutex<Reads>>) -> Result<(), String> {
    let blocks = medium.geometry().size / BLOCK_SIZE as u64;
    let slot = |slot: usize| {
        reads.lock().note(SLOTS[slot].byte_offset(), BLOCK_SIZE as u64);
        let bytes = medium.bytes(SLOTS[slot].byte_offset(), BLOCK_SIZE);
        Superblock::decode(&bytes, slot, blocks).ok()
    };
    let newest = slot(0).into_iter().chain(slot(1)).max_by_key(|sb| sb.checkpoint.generation);
    let Some(sb) = newest.filter(|sb| sb.checkpoint.clean) else { return Ok(()) };
    match StoreReplay.log_writes(&Traced::new(Arc::new(medium.fork()), reads.clone()), &sb) {
        Ok(0) => Ok(()),
        Ok(writes) => Err(format!("the image is marked clean, and {writes} log writes follow")),
        Err(e) => Err(format!("the image is marked clean, and its log cannot be read: {e}")),
    }
}

/// Checks the newest checkpoint on the device without replay.
fn fsck(device: &SimDevice, traced: &Traced, when: &str) -> Result<(), String> {
    let now = Arc::new(traced.now(Arc::new(device.view())));
    let report = kedge_fsck::check(now, &CheckOptions::default());
    if report.is_clean() { Ok(()) } else { Err(format!("fsck {when}: {report}")) }
}

/// Creates and removes a file in every directory. With `empty`, then removes everything.
fn exercise(fs: &FileSystem, view: &View, empty: bool) -> Result<(), String> {
    let dirs = view.inodes.iter().filter(|(_, found)| found.attr.kind == FileKind::Directory);
    for (dir, found) in dirs {
        let said = |call: &'static str| {
            let path = &found.path;
            move |e: kedgefs::Error| format!("{path}: {call} after recovery fails: {e}")
        };
        fs.create(*dir, b"new", 0o644, OWNER).map_err(said("create"))?;
        fs.unlink(*dir, b"new").map_err(said("unlink"))?;
    }
    if empty { remove_all(fs, view, Ino::ROOT, 0) } else { Ok(()) }
}

fn remove_all(fs: &FileSystem, view: &View, dir: Ino, depth: u32) -> Result<(), String> {
    let found = &view.inodes[&dir];
    for (name, child) in &found.entries {
        let is_dir = view.inodes[child].attr.kind == FileKind::Directory;
        if is_dir && depth < 16 {
            remove_all(fs, view, *child, depth + 1)?;
        }
        let removed = if is_dir { fs.rmdir(dir, name.as_bytes()) } else { fs.unlink(dir, name.as_bytes()) };
        removed.map_err(|e| format!("{}: removing {name:?} after recovery fails: {e}", found.path))?;
    }
    Ok(())
}

/// Whether two recoveries of one medium found the same tree.
fn same_view(first: &View, second: &View) -> Result<(), String> {
    let (a, b): (&BTreeMap<Ino, Found>, _) = (&first.inodes, &second.inodes);
    if !a.keys().eq(b.keys()) {
        return Err(format!("inodes {:?}, the first recovery found {:?}", b.keys(), a.keys()));
    }
    for (x, y) in a.values().zip(b.values()) {
        let same = x.attr == y.attr && x.target == y.target && x.xattrs == y.xattrs && x.entries == y.entries;
        if !same || x.content != y.content {
            return Err(format!(
                "{}: not as the first recovery found it: {:?} {:?}, first {:?} {:?}",
                y.path, y.attr, y.entries, x.attr, x.entries
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "explore_tests.rs"]
mod tests;
