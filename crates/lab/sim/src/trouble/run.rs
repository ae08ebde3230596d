//! The workload of a run, and the phases of a run.

use super::verdict::{CLOSE, Call, Concern, Judge};
use super::{Class, Fault, Layout, Report, Scene};
use crate::ledger::{File, WORD};
use crate::ops::OWNER;
use crate::rig::{self, panic_text};
use kedge_base::JoinHandle;
use kedge_base::{HANG, ManualClock, SystemClock};
use kedge_device::sim::{Choice, FaultPlan, SimDevice};
use kedge_device::{Device, MemDevice};
use kedgefs::{Clock, Error, FileSystem, Ino, SetAttr};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Limit of a file's bytes. The files of a few threads have much more than a cramped setup caches.
const FILE_SIZE_MAX: u64 = 400 << 10;
/// Number of names that never change. With them the tree is larger than a cramped setup's cache.
const FILLERS: usize = 6000;
const LOOKS: usize = 30;
/// Limit of requests to a failing device while no call ends; more is a hot loop.
const REQUESTS_PER_CALL_MAX: u64 = 100_000;
const POLL: Duration = Duration::from_millis(1);
/// Number of polls before a held request is released, so that other requests queue after it.
const HELD_POLLS: u32 = 6;

/// The names of the entries that a thread has created.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    pub begun: BTreeSet<String>,
    pub done: BTreeSet<String>,
    pub settled: BTreeSet<String>,
}

/// Everything that was written and acknowledged up to some time.
#[derive(Clone)]
pub(super) struct Books {
    pub files: Vec<File>,
    pub entries: Vec<Entries>,
}

impl Books {
    /// Returns the steps that had begun until `later`, of which only those settled here are
    /// settled.
    fn before(&self, later: &Books) -> Books {
        Books {
            files: self.files.iter().zip(&later.files).map(|(a, b)| a.settled_of(b)).collect(),
            entries: (self.entries.iter().zip(&later.entries))
                .map(|(a, b)| Entries { settled: a.settled.clone(), ..b.clone() })
                .collect(),
        }
    }

    /// Returns the books after a successful close.
    fn all_settled(&self) -> Books {
        Books {
            files: self.files.iter().map(File::all_settled).collect(),
            entries: self.entries.iter().map(|e| Entries { settled: e.done.clone(), ..e.clone() }).collect(),
        }
    }
}

pub(super) struct Shared {
    fs: FileSystem,
    device: Arc<SimDevice>,
    inos: Vec<Ino>,
    dirs: Vec<Ino>,
    filler: Ino,
    files: Vec<Mutex<File>>,
    entries: Vec<Mutex<Entries>>,
    calls: Mutex<Vec<Call>>,
    /// For each call in progress, the number of failed requests at its start.
    under_way: Mutex<Vec<u64>>,
    ended: AtomicU64,
    findings: Mutex<Vec<(Class, String)>>,
}

impl Shared {
    fn books(&self) -> Books {
        Books {
            files: self.files.iter().map(|f| f.lock().clone()).collect(),
            entries: self.entries.iter().map(|e| e.lock().clone()).collect(),
        }
    }

    /// Makes a call. Records its concern, its result and the requests that failed during it.
    fn call<T>(
        &self,
        what: &'static str,
        concern: Concern,
        body: impl FnOnce(&FileSystem) -> Result<T, Error>,
    ) -> Option<T> {
        let (start, beside) = {
            let mut under_way = self.under_way.lock();
            let start = self.device.struck();
            under_way.push(start);
            (start, under_way.iter().copied().min().unwrap_or(start))
        };
        let result = body(&self.fs);
        let (answer, error) = match result {
            Ok(value) => (Some(value), None),
            Err(e) => (None, Some(e)),
        };
        let down = error.is_some() && shut_down(&self.fs);
        let end = self.device.struck();
        let mut under_way = self.under_way.lock();
        let own = under_way.iter().position(|at| *at == start).expect("it was added");
        under_way.swap_remove(own);
        drop(under_way);
        self.calls.lock().push(Call { what, concern, start, end, beside, error, down });
        self.ended.fetch_add(1, Ordering::Relaxed);
        answer
    }

    fn fsync(&self, file: usize, datasync: bool) -> bool {
        let mark = self.files[file].lock().mark();
        let answer = self.call("fsync", Concern::Sync(file), |fs| fs.fsync(self.inos[file], datasync));
        if answer.is_some() {
            self.files[file].lock().synced(mark);
        }
        answer.is_some()
    }

    fn sync(&self) -> bool {
        let marks: Vec<usize> = self.files.iter().map(|f| f.lock().mark()).collect();
        let entries: Vec<BTreeSet<String>> = self.entries.iter().map(|e| e.lock().done.clone()).collect();
        if self.call("sync", Concern::All, FileSystem::sync).is_none() {
            return false;
        }
        for (file, mark) in self.files.iter().zip(marks) {
            file.lock().synced(mark);
        }
        for (entry, done) in self.entries.iter().zip(entries) {
            entry.lock().settled.extend(done);
        }
        true
    }

    fn sync_dir(&self, thread: usize) {
        let done = self.entries[thread].lock().done.clone();
        let dir = self.dirs[thread];
        if self.call("fsync of a directory", Concern::Metadata, |fs| fs.fsync(dir, false)).is_some() {
            self.entries[thread].lock().settled.extend(done);
        }
    }

    fn write(&self, file: usize, rng: &mut SmallRng) {
        let len = match rng.random_range(0..10) {
            0..4 => rng.random_range(1..50) * WORD,
            4..6 => 4096,
            6..8 => rng.random_range(1..2500) * WORD,
            8 => 64 << 10,
            _ => 300 << 10,
        };
        let size = self.files[file].lock().size();
        let at = if rng.random_bool(0.5) { size } else { rng.random_range(0..FILE_SIZE_MAX / WORD) * WORD };
        let from = at.min(FILE_SIZE_MAX - len);
        // The lock is held during the call: only the owner writes, other threads read the mark.
        let bytes = self.files[file].lock().begin_write(from, len);
        let answer = self.call("write", Concern::File(file), |fs| fs.write(self.inos[file], from, &bytes));
        if let Some(written) = answer {
            self.files[file].lock().wrote(written as u64);
        }
    }

    fn truncate(&self, file: usize, rng: &mut SmallRng) {
        let size = rng.random_range(0..FILE_SIZE_MAX / WORD) * WORD;
        self.files[file].lock().begin_truncate(size);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        if self.call("truncate", Concern::File(file), |fs| fs.setattr(self.inos[file], &set)).is_some() {
            self.files[file].lock().truncated();
        }
    }

    fn entry(&self, thread: usize, number: usize) {
        let name = format!("e{number}");
        self.entries[thread].lock().begun.insert(name.clone());
        let dir = self.dirs[thread];
        let make = |fs: &FileSystem| fs.create(dir, name.as_bytes(), 0o644, OWNER);
        if self.call("create", Concern::Metadata, make).is_some() {
            self.entries[thread].lock().done.insert(name);
        }
    }

    /// Looks up names that probably are not cached.
    fn look(&self, rng: &mut SmallRng) {
        for _ in 0..LOOKS {
            let name = filler_name(rng.random_range(0..FILLERS));
            self.call("lookup", Concern::Metadata, |fs| fs.lookup(self.filler, name.as_bytes()));
        }
    }

    /// Reads and checks that the data is what was written, unless the file system is down.
    fn read(&self, file: usize) {
        let mut buf = vec![0; FILE_SIZE_MAX as usize];
        let read = |fs: &FileSystem| fs.read(self.inos[file], 0, &mut buf);
        let Some(len) = self.call("read", Concern::File(file), read) else { return };
        if let Err(e) = self.files[file].lock().all_settled().check(&buf[..len]) {
            self.findings.lock().push((Class::Lie, format!("a live read: {e}")));
        }
    }

    fn is_down(&self) -> bool {
        self.calls.lock().iter().any(|call| call.down)
    }

    fn work(&self, thread: usize, scene: &Scene, rng: &mut SmallRng) {
        for number in 0..scene.calls {
            let file = thread * scene.files + rng.random_range(0..scene.files);
            if rng.random_range(0..100) < scene.crowd {
                self.fsync(0, false);
                continue;
            }
            match rng.random_range(0..100) {
                0..42 => self.write(file, rng),
                42..58 => _ = self.fsync(file, false),
                58..64 => _ = self.fsync(file, true),
                64..72 => _ = self.fsync(rng.random_range(0..self.files.len()), false),
                72..75 => _ = self.sync(),
                75..84 => self.entry(thread, number),
                84..88 => self.sync_dir(thread),
                88..91 => self.truncate(file, rng),
                91..95 => self.look(rng),
                _ => self.read(file),
            }
            if number % 8 == 7 && self.is_down() {
                return;
            }
        }
    }
}

fn shut_down(fs: &FileSystem) -> bool {
    let info: serde_json::Value = serde_json::from_str(&fs.info_json()).expect("the file system writes JSON");
    assert!(info.get("shut_down").is_some(), "info says whether it is shut down");
    !info["shut_down"].is_null()
}

fn filler_name(number: usize) -> String {
    format!("a name that takes its share of a leaf of the tree {number}")
}

/// The image from which all runs of a scene start.
pub struct Stage {
    medium: MemDevice,
    layout: Layout,
    inos: Vec<Ino>,
    dirs: Vec<Ino>,
    filler: Ino,
}

impl Stage {
    pub fn new(scene: &Scene) -> Result<Stage, String> {
        let said = |e: Error| e.to_string();
        let device = Arc::new(SimDevice::new(rig::format(scene.setup.image, scene.setup.log)?));
        device.stop_recording();
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &scene.setup)?;
        let make = |dir: Ino, name: String| fs.create(dir, name.as_bytes(), 0o644, OWNER).map(|a| a.ino);
        let filler = fs.mkdir(Ino::ROOT, b"filler", 0o755, OWNER).map_err(said)?.ino;
        let (mut inos, mut dirs) = (Vec::new(), Vec::new());
        let every = FILLERS / (scene.threads * scene.files);
        for number in 0..FILLERS {
            make(filler, filler_name(number)).map_err(said)?;
            // The files are spread over the tree, so that no two have their inodes in one leaf.
            if number % every == 0 && inos.len() < scene.threads * scene.files {
                inos.push(make(Ino::ROOT, format!("f{}", inos.len())).map_err(said)?);
            }
        }
        for thread in 0..scene.threads {
            let dir = fs.mkdir(Ino::ROOT, format!("d{thread}").as_bytes(), 0o755, OWNER);
            dirs.push(dir.map_err(said)?.ino);
        }
        fs.close().map_err(said)?;
        let medium = device.view();
        let layout = Layout::read(&medium, scene.setup.image)?;
        Ok(Stage { medium, layout, inos, dirs, filler })
    }
}

fn open(device: Arc<SimDevice>, scene: &Scene) -> Result<FileSystem, String> {
    let mut mount = scene.setup.mount.clone();
    let clock: Arc<dyn Clock> = match scene.background {
        true => Arc::new(SystemClock::default()),
        false => Arc::new(ManualClock::default()),
    };
    if scene.background {
        mount.commit = Duration::from_millis(5);
    }
    FileSystem::open(device, clock, mount).map_err(|e| format!("open: {e}"))
}

/// Waits until `over` holds, and releases held requests. Fails if no call ends: that is a hang.
fn watch(shared: &Shared, over: impl Fn() -> bool) -> Result<(), String> {
    let mut held = 0;
    let (mut calls, mut requests, mut polls) = (0, 0, 0u32);
    while !over() {
        let (now, asked) = (shared.ended.load(Ordering::Relaxed), shared.device.op_counts().total());
        if now != calls || asked < requests {
            (calls, requests, polls) = (now, asked, 0);
        }
        polls += 1;
        if asked - requests > REQUESTS_PER_CALL_MAX {
            return Err(format!("{} requests while no call ended", asked - requests));
        }
        if POLL * polls > HANG {
            return Err(format!("after {now} calls none ends"));
        }
        held = if shared.device.held_up() > 0 { held + 1 } else { 0 };
        if held > HELD_POLLS {
            shared.device.release();
            held = 0;
        }
        std::thread::sleep(POLL);
    }
    shared.device.release();
    Ok(())
}

fn spawn<T: Send + 'static>(
    shared: &Arc<Shared>,
    body: impl FnOnce(&Shared) -> T + Send + 'static,
) -> Result<JoinHandle<T>, String> {
    let shared = shared.clone();
    kedge_base::spawn_named("trouble", move || body(&shared)).map_err(|e| e.to_string())
}

/// Runs a step of the ending on a thread of its own, so that a hang is detected.
fn watched<T: Send + 'static>(
    shared: &Arc<Shared>,
    body: impl FnOnce(&Shared) -> T + Send + 'static,
) -> Result<T, (Class, String)> {
    let thread = spawn(shared, body).map_err(|e| (Class::Other, e))?;
    watch(shared, || thread.is_finished()).map_err(|e| (Class::Hang, e))?;
    thread.join().map_err(|panic| (Class::Panic, panic_text(&*panic)))
}

/// A medium, and the books with what it must contain.
struct Medium {
    when: &'static str,
    medium: MemDevice,
    books: Books,
    /// Whether the unmount reported lost data. The image must then be marked, too.
    lossy: bool,
}

type Media = Vec<Medium>;

fn medium(when: &'static str, medium: MemDevice, books: Books) -> Medium {
    Medium { when, medium, books, lossy: false }
}

/// Runs the workload. When half of the calls have ended, takes the medium that a power failure
/// would leave.
fn workload(
    shared: &Arc<Shared>,
    scene: &Scene,
    rng: &mut SmallRng,
    media: &mut Media,
) -> Result<(), (Class, String)> {
    let mut threads = Vec::new();
    for thread in 0..scene.threads {
        let (scene, mut rng) = (scene.clone(), SmallRng::seed_from_u64(rng.random()));
        let body = move |shared: &Shared| shared.work(thread, &scene, &mut rng);
        threads.push(spawn(shared, body).map_err(|e| (Class::Other, e))?);
    }
    let half = (scene.threads * scene.calls) as u64 / 2;
    let all = || threads.iter().all(JoinHandle::is_finished);
    watch(shared, || all() || shared.ended.load(Ordering::Relaxed) >= half).map_err(|e| (Class::Hang, e))?;
    let acked = shared.books();
    let taken = shared.device.crash(rng.random());
    media.push(medium("power failure in the middle", taken, acked.before(&shared.books())));
    watch(shared, all).map_err(|e| (Class::Hang, e))?;
    for thread in threads {
        thread.join().map_err(|panic| (Class::Panic, panic_text(&*panic)))?;
    }
    Ok(())
}

fn sync_all(shared: &Shared) -> bool {
    let each = (0..shared.files.len()).map(|file| shared.fsync(file, false)).filter(|ok| !ok).count();
    let all = shared.sync();
    each == 0 && all
}

/// Runs what follows the workload: fsync, heal, fsync, close.
fn ending(shared: &Arc<Shared>, seed: u64, heal: bool, media: &mut Media) -> Result<(), (Class, String)> {
    let device = shared.device.clone();
    watched(shared, sync_all)?;
    // No thread writes any more. So the fsyncs have acknowledged everything that must survive.
    let acked = shared.books();
    let taken = device.crash(seed);
    media.push(medium("power failure after the fsyncs", taken, acked.before(&shared.books())));
    if heal {
        shared.device.heal();
        watched(shared, sync_all)?;
        let well = watched(shared, sync_all)?;
        if !well && !shared.is_down() {
            let calls = shared.calls.lock();
            let last = calls.iter().rev().find_map(|c| c.error.as_ref().map(|e| (c.what, e.to_string())));
            shared.findings.lock().push((Class::Other, format!("the device works again, but {last:?}")));
        }
        let acked = shared.books();
        media.push(medium("power failure after it healed", device.crash_as(Choice::None), acked));
    }
    let closed = watched(shared, |shared| shared.call(CLOSE, Concern::All, FileSystem::close).is_some())?;
    let books = shared.books();
    let books = if closed { books.all_settled() } else { books };
    let lossy = shared.calls.lock().last().is_some_and(|call| matches!(call.error, Some(Error::DataLost(_))));
    media.push(Medium { lossy, ..medium("the end", device.view(), books.clone()) });
    if closed || lossy {
        let taken = device.crash_as(Choice::None);
        media.push(Medium { lossy, ..medium("power failure after the end", taken, books) });
    }
    Ok(())
}

/// Runs one workload under one fault, and judges it.
pub fn run(stage: &Stage, scene: &Scene, fault: Fault, seed: u64) -> Report {
    let mut report = Report { runs: 1, ..Report::default() };
    if let Err(e) = try_run(stage, scene, fault, seed, &mut report) {
        report.find(Class::Other, e);
    }
    report
}

fn try_run(stage: &Stage, scene: &Scene, fault: Fault, seed: u64, report: &mut Report) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let device = Arc::new(SimDevice::new(stage.medium.fork()));
    device.stop_recording();
    let fs = open(device.clone(), scene)?;
    let shared = Arc::new(Shared {
        fs,
        device: device.clone(),
        inos: stage.inos.clone(),
        dirs: stage.dirs.clone(),
        filler: stage.filler,
        files: (0..stage.inos.len()).map(|number| Mutex::new(File::new(number))).collect(),
        entries: stage.dirs.iter().map(|_| Mutex::default()).collect(),
        calls: Mutex::default(),
        under_way: Mutex::default(),
        ended: AtomicU64::default(),
        findings: Mutex::default(),
    });
    // Some faults come early, some late: the range of the n-th request grows with the seed.
    let nth = rng.random_range(0..4 + 2 * (seed % 40));
    device.set_plan(fault.plan(nth, seed, stage.layout.data.clone()));
    let mut media = Vec::new();
    let ended = workload(&shared, scene, &mut rng, &mut media)
        .and_then(|()| ending(&shared, seed, !seed.is_multiple_of(4), &mut media));
    report.struck = device.struck();
    report.met = u64::from(report.struck > 0);
    if let Err((class, e)) = ended {
        report.find(class, e);
        if class == Class::Hang {
            // The threads of the run stay. The calls that ended are still checked.
            device.set_plan(FaultPlan::new(0).fail_from(0, crate::ops::errno::EIO));
        }
    }
    let calls = std::mem::take(&mut *shared.calls.lock());
    report.told = calls.iter().filter(|call| call.error.is_some()).count() as u64;
    report.shutdowns = u64::from(calls.iter().any(|call| call.down));
    report.findings.append(&mut shared.findings.lock());
    let judge = Judge { layout: &stage.layout, strikes: device.strikes(), calls: &calls };
    judge.told(report, &shared.fs.stats_json());
    let _ = shared.fs.shutdown(false);
    for medium in media {
        report.media += 1;
        let when = medium.when;
        if let Err((class, e)) = judge_medium(stage, scene, medium) {
            report.find(class, format!("{when}: {e}"));
        }
    }
    Ok(())
}

/// Recovers the medium and compares it with its books.
fn judge_medium(stage: &Stage, scene: &Scene, medium: Medium) -> Result<(), (Class, String)> {
    let other = |e: String| (Class::Other, e);
    let Medium { medium, books, lossy, .. } = medium;
    match (super::fsck(&medium), lossy) {
        (Ok(()), false) => {}
        (Err(report), true) if report.contains("data-lost") => {}
        (Ok(()), true) => {
            return Err((Class::Lie, "the unmount lost data, and the image is not marked".to_owned()));
        }
        (Err(e), _) => return Err(other(e)),
    }
    let medium: Arc<dyn Device> = Arc::new(medium);
    let fs = FileSystem::open(medium, Arc::new(ManualClock::default()), scene.setup.mount.clone())
        .map_err(|e| other(format!("open: {e}")))?;
    let mut buf = vec![0; FILE_SIZE_MAX as usize];
    for (number, file) in books.files.iter().enumerate() {
        let len =
            fs.read(stage.inos[number], 0, &mut buf).map_err(|e| other(format!("file {number}: {e}")))?;
        file.check(&buf[..len]).map_err(|e| (Class::Loss, e))?;
    }
    for (thread, entries) in books.entries.iter().enumerate() {
        let found = crate::ops::list(&fs, stage.dirs[thread]).map_err(|e| other(e.to_string()))?;
        let found: BTreeSet<String> = found.into_iter().map(|(name, _)| name).collect();
        if let Some(name) = entries.settled.difference(&found).next() {
            return Err((Class::Loss, format!("d{thread}/{name} is lost")));
        }
        if let Some(name) = found.difference(&entries.begun).next() {
            return Err((Class::Other, format!("d{thread}/{name} belongs to no thread")));
        }
    }
    fs.close().map_err(|e| other(format!("close after recovery: {e}")))
}
