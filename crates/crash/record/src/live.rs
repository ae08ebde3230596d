//! A mount that can lose power at any time, and whose calls can be made to fail by rules.
//!
//! All calls since the last crash are kept in memory. A crash chooses a state that the model allows
//! after these calls, makes the file system hold that state, and continues from there. Nothing is
//! unmounted.
//!
//! # Generations
//! After a crash, open files can no longer be used, as after a restart of the machine. The kernel
//! identifies inodes by number. So the number that the kernel gets has the count of crashes in its
//! upper bits, and a request for an inode of an earlier generation returns EIO. Only the root
//! directory keeps its number. So each open of a directory gets the generation as its handle, and a
//! listing or an fsync of the root with a handle of an earlier generation returns EIO too. The
//! kernel may cache nothing on these mounts and looks up each name again, so programs that start
//! after the crash see the new state.
//!
//! sync(2) and syncfs(2) arrive without a handle. After a crash they apply to the new state,
//! whatever descriptor they were called with.
//!
//! # The gate
//! Each operation holds the gate for reading while it runs; a crash holds it for writing. So a
//! crash happens between two operations, never inside one.
//!
//! An fsync completes without the gate; otherwise no crash could precede its completion. The log
//! decides whether it succeeds: the crash cuts the log under the log's lock and builds the state
//! from what is in it, and an fsync appends its success under the same lock. If the append comes
//! first, its bytes are in the state. If the cut comes first, the append is refused and the fsync
//! fails. The generation alone cannot decide: it changes before or after the cut, and an fsync
//! between the two would succeed although its bytes are lost. It only makes more fsyncs fail: one
//! that a crash overtakes fails even if its bytes survive, since its caller would not have survived
//! to see the result.
//!
//! If the state cannot be built (for lack of room, say), the tree is neither old nor new: from then
//! on every operation fails, and the error gives the reason.

use crate::lazy::Kept;
use crate::log::Log;
use crate::recording::{Recording, cut_off as stale};
use crate::rules::{Action, Crash, Kill, Like, Lose, On, Rule, Rules};
use crate::tree::{baseline, restore, set_size, write_all};
use kedge_base::spawn_named;
use kedge_crash::describe::Paths;
use kedge_crash::edit::Edit;
use kedge_crash::state::Body;
use kedge_crash::{Call, History, Model, Pick, Recipe, Torn, Trace};
use kedge_fuse::{Done, Ops, caller};
use kedgefs::{Attr, Error, FileSystem, Ino, Result};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const GENERATION_SHIFT: u32 = 48;
const GENERATION_MAX: u64 = u16::MAX as u64;
/// The most lost calls that the reply to a crash names. All are counted.
const NAMED_MAX: usize = 100;
/// The most levels of directories in a path; deeper paths are truncated.
const DEPTH_MAX: usize = 256;
/// The most names that are kept in memory. At the limit all are dropped, and the kernel's next
/// lookups refill them.
const NAMES_MAX: usize = 1 << 20;

/// The result of a crash.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Crashed {
    /// The number of crashes of this mount, including this one.
    pub crashes: u64,
    pub model: String,
    /// The calls that were lost, entirely or in part. Only the first are listed; `lost_count`
    /// counts all.
    pub lost: Vec<String>,
    pub lost_count: u64,
    /// The number of earlier calls that counted as durable because too many were kept in memory.
    pub forgotten: u64,
    /// Which bytes of the last page survive, if a write was torn.
    pub torn: Option<String>,
    /// Why the tree could not be built. Every operation fails from then on.
    pub error: Option<String>,
}

/// The data that the gate protects.
struct World {
    recording: Recording,
    log: Arc<Log>,
    forgotten: u64,
    failed: Option<String>,
}

struct Inner {
    fs: FileSystem,
    gate: RwLock<World>,
    /// The number of crashes so far. It changes only while the gate is held for writing.
    generation: AtomicU64,
    rules: Mutex<Rules>,
    /// The directory and the name of each inode that the kernel has looked up.
    names: Mutex<HashMap<Ino, (Ino, Vec<u8>)>>,
    /// The last crash, and a condition variable that signals it.
    last: Mutex<Option<Crashed>>,
    crashed: Condvar,
    /// The most bytes of calls that are kept in memory.
    history_max: u64,
}

/// The file or directory of an fsync.
#[derive(Clone, Copy)]
struct Synced {
    ino: Ino,
    /// The handle that its open returned, if known.
    handle: Option<u64>,
    datasync: bool,
}

/// A mount that can lose power; see the module.
#[derive(Clone)]
pub struct Live(Arc<Inner>);

impl Live {
    /// Takes a file system whose present contents count as durable. At most `history_max` bytes of
    /// calls are kept in memory.
    pub fn new(fs: FileSystem, history_max: u64) -> Result<Live> {
        let log = Arc::new(Log::in_memory(baseline(&fs, &[])?));
        let recording = Recording::plain(fs.clone(), log.clone());
        let world = World { recording, log, forgotten: 0, failed: None };
        Ok(Live(Arc::new(Inner {
            fs,
            gate: RwLock::new(world),
            generation: AtomicU64::new(0),
            rules: Mutex::default(),
            names: Mutex::default(),
            last: Mutex::default(),
            crashed: Condvar::new(),
            history_max,
        })))
    }

    pub fn add_rule(&self, rule: Rule) {
        self.0.rules.lock().add(rule);
    }

    pub fn clear_rules(&self) {
        self.0.rules.lock().clear();
    }

    /// Each rule, with the number of calls that it matched and the number of times that it was
    /// applied.
    pub fn rules(&self) -> Vec<(String, u64, u64)> {
        self.0.rules.lock().list()
    }

    /// Waits up to `time` until there have been `crashes` crashes. Returns the last crash.
    pub fn wait(&self, crashes: u64, time: Duration) -> Option<Crashed> {
        let mut last = self.0.last.lock();
        let is_early = |last: &mut Option<Crashed>| last.as_ref().map_or(0, |l| l.crashes) < crashes;
        let late = self.0.crashed.wait_while_for(&mut last, is_early, time).timed_out();
        if late { None } else { last.clone() }
    }

    /// Loses what is not persistent. First kills the processes in `kill`, under the gate, so that
    /// none of their calls comes in between.
    pub fn crash(&self, crash: &Crash, kill: &[i32]) -> Crashed {
        self.crash_but(crash, kill, &[], &|_, _| ())
    }

    /// Crashes like [`Live::crash`], but the parts of writes in `kept` survive if their files do.
    /// Before any other operation it calls `then` with the paths of those files that do not
    /// survive.
    pub fn crash_but(
        &self,
        crash: &Crash,
        kill: &[i32],
        kept: &[Kept],
        then: &dyn Fn(&Crashed, &[Vec<u8>]),
    ) -> Crashed {
        let inner = &self.0;
        let mut missing = Vec::new();
        let mut world = inner.gate.write();
        kill.iter().for_each(|pid| end(*pid));
        let generation = inner.generation.load(Ordering::Relaxed) + 1;
        let mut told = Crashed {
            crashes: generation,
            model: crash.model.name.to_owned(),
            lost: Vec::new(),
            lost_count: 0,
            forgotten: std::mem::take(&mut world.forgotten),
            torn: None,
            error: None,
        };
        if world.failed.is_none() {
            world.failed = match generation {
                // Otherwise the inode numbers that the kernel still holds from the first generation
                // would become valid again.
                n if n > GENERATION_MAX => Some("too many crashes of one mount: mount it again".to_owned()),
                _ => {
                    let lost = inner.lose(&mut world, crash, &mut told).and_then(|()| {
                        bytes::keep(inner, kept, &mut missing)?;
                        if kept.is_empty() {
                            Ok(())
                        } else {
                            inner.fs.sync().and_then(|()| inner.begin(&mut world))
                        }
                    });
                    lost.err().map(|e| e.to_string())
                }
            };
        }
        told.error = world.failed.clone();
        inner.names.lock().clear();
        inner.generation.store(generation, Ordering::Relaxed);
        *inner.last.lock() = Some(told.clone());
        inner.crashed.notify_all();
        then(&told, &missing);
        told
    }

    /// Enters the gate for an operation. The lock is recursive, since readdir looks up entries
    /// while it runs. An operation that had to wait for a crash fails: it was made before power
    /// failed, and its process may be dead.
    fn enter(&self) -> Result<RwLockReadGuard<'_, World>> {
        let generation = self.0.generation.load(Ordering::Relaxed);
        let world = self.0.gate.read_recursive();
        let is_late = self.0.generation.load(Ordering::Relaxed) != generation;
        if is_late || world.failed.is_some() { Err(stale()) } else { Ok(world) }
    }

    /// Converts an inode number of the kernel to the file system's number.
    fn real(&self, ino: Ino) -> Result<Ino> {
        if ino == Ino::ROOT {
            return Ok(ino);
        }
        match ino.0 >> GENERATION_SHIFT == self.0.generation.load(Ordering::Relaxed) {
            true => Ok(without_generation(ino)),
            false => Err(stale()),
        }
    }

    /// Converts the inode number of a request with an open file. The handle determines the
    /// generation only for the root, whose number never changes.
    fn real_opened(&self, ino: Ino, handle: Option<u64>) -> Result<Ino> {
        let generation = self.0.generation.load(Ordering::Relaxed);
        match ino == Ino::ROOT && handle.is_some_and(|handle| handle != generation) {
            true => Err(stale()),
            false => self.real(ino),
        }
    }

    /// Converts an inode number to the number that the kernel gets.
    fn shown(&self, ino: Ino) -> Ino {
        match ino {
            Ino::ROOT => ino,
            ino => Ino(ino.0 | self.0.generation.load(Ordering::Relaxed) << GENERATION_SHIFT),
        }
    }

    fn shown_attr(&self, attr: Attr) -> Attr {
        Attr { ino: self.shown(attr.ino), ..attr }
    }

    fn learn(&self, dir: Ino, name: &[u8], ino: Ino) {
        let mut names = self.0.names.lock();
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert(ino, (dir, name.to_vec()));
    }

    /// The path of an inode below the mount, or of a name in a directory.
    pub(crate) fn path(&self, ino: Ino, name: Option<&[u8]>) -> Vec<u8> {
        let names = self.0.names.lock();
        let mut parts: Vec<&[u8]> = name.into_iter().collect();
        let mut next = without_generation(ino);
        while next != Ino::ROOT && parts.len() < DEPTH_MAX {
            let Some((dir, name)) = names.get(&next) else { break };
            parts.push(name);
            next = *dir;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    fn meet(&self, on: On, about: &[(Ino, Option<&[u8]>)]) -> Option<Action> {
        if self.0.rules.lock().is_empty() {
            return None;
        }
        let paths: Vec<Vec<u8>> = about.iter().map(|(ino, name)| self.path(*ino, *name)).collect();
        self.0.rules.lock().meet(on, &paths)
    }

    /// Runs a call that changes something, unless a rule lets it fail or crash.
    fn change<T>(
        &self,
        on: On,
        about: &[(Ino, Option<&[u8]>)],
        run: impl FnOnce(&World) -> Result<T>,
    ) -> Result<T> {
        let action = self.meet(on, about);
        match action {
            Some(Action::Fail { errno, .. }) => return Err(Error::Injected(errno)),
            Some(Action::Crash { crash, after: false, kill }) => {
                self.crash(&crash, &processes(kill, caller()));
                return Err(stale());
            }
            _ => {}
        }
        let result = self.enter().and_then(|world| run(&world));
        if let Some(Action::Crash { crash, after: true, kill }) = action {
            self.crash(&crash, &processes(kill, caller()));
            return Err(stale());
        }
        self.forget();
        result
    }

    /// Counts all calls as durable if too many are kept in memory.
    fn forget(&self) {
        let inner = &self.0;
        let is_full = |world: &World| world.log.lock().bytes > inner.history_max;
        if !is_full(&inner.gate.read_recursive()) {
            return;
        }
        let mut world = inner.gate.write();
        if is_full(&world) && world.failed.is_none() {
            let full = world.log.clone();
            if let Err(e) = inner.begin(&mut world) {
                full.cut();
                world.failed = Some(e.to_string());
                return;
            }
            let calls = full.settle().iter().rev().take_while(|e| e.call != Call::Baseline).count();
            tracing::warn!("the history is full: {calls} calls are taken as durable");
            world.forgotten += calls as u64;
        }
    }

    /// Makes the completion fail if a crash came since, even if the cut log contains the fsync.
    fn unless_crashed(&self, done: Done) -> Done {
        let inner = self.0.clone();
        let generation = inner.generation.load(Ordering::Relaxed);
        Box::new(move |result| {
            let is_late = inner.generation.load(Ordering::Relaxed) != generation;
            done(if is_late { Err(stale()) } else { result });
        })
    }

    fn fsync(&self, of: Synced, crash_after: Option<(Crash, Vec<i32>)>, done: Done) {
        let live = self.clone();
        let finish: Done = Box::new(move |result| {
            let Some((crash, kill)) = crash_after else { return done(result) };
            // Use a separate thread: the present one may hold up the log, for which a crash waits.
            let crashing = spawn_named("kedge-crash", move || {
                live.crash(&crash, &kill);
                // `done` fails now, because of the crash: the caller did not survive to see
                // success.
                done(result);
            });
            if let Err(e) = crashing {
                tracing::error!("no crash: a thread cannot be started: {e}");
            }
        });
        let entered = self.enter().and_then(|world| Ok((world, self.real_opened(of.ino, of.handle)?)));
        match entered {
            Ok((world, real)) => world.recording.fsync_async(real, of.datasync, finish),
            Err(e) => finish(Err(e)),
        }
    }
}

fn without_generation(ino: Ino) -> Ino {
    Ino(ino.0 & ((1 << GENERATION_SHIFT) - 1))
}

fn end(pid: i32) {
    use rustix::process::{Pid, Signal, kill_process};
    match Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL)) {
        Some(Ok(()) | Err(rustix::io::Errno::SRCH)) | None => {}
        Some(Err(e)) => tracing::error!("process {pid} cannot be killed: {e}"),
    }
}

fn processes(kill: Option<Kill>, caller: u32) -> Vec<i32> {
    let pid = match kill {
        Some(Kill::Process(pid)) => Some(pid),
        // SIGKILL to a thread's number kills its whole process.
        Some(Kill::Caller) if caller > 0 => i32::try_from(caller).ok(),
        Some(Kill::Caller) | None => None,
    };
    pid.into_iter().collect()
}

/// The files that may be open without a name: those made so (`O_TMPFILE`), and those that lost a
/// name. Each may have another one, or be closed.
fn nameless(events: &[kedge_crash::Event]) -> Vec<Ino> {
    let is_left = |event: &kedge_crash::Event| match event.call {
        Call::Tmpfile { ino, .. } | Call::Remove { ino, is_dir: false, .. } => Some(Ino(ino)),
        Call::Rename { victim, exchange: false, .. } => victim.map(Ino),
        _ => None,
    };
    let left: BTreeSet<Ino> = events.iter().filter(|event| event.ok()).filter_map(is_left).collect();
    left.into_iter().collect()
}

impl Inner {
    /// Starts a new history with the current contents. No call of the present one is lost.
    fn begin(&self, world: &mut World) -> Result<()> {
        let mut open = Vec::new();
        world.log.look(|events| open = nameless(events));
        self.begin_with(world, &open)
    }

    /// Starts a new history with the current contents, which may include these nameless files.
    fn begin_with(&self, world: &mut World, nameless: &[Ino]) -> Result<()> {
        world.log = Arc::new(Log::in_memory(baseline(&self.fs, nameless)?));
        world.recording = Recording::plain(self.fs.clone(), world.log.clone());
        Ok(())
    }

    fn lose(&self, world: &mut World, crash: &Crash, told: &mut Crashed) -> Result<()> {
        let trace = Trace { events: world.log.cut() };
        let history = History::new(&trace, crash.model);
        let at = *history.points().end();
        let recipe = match crash.lose {
            Lose::All => Recipe::new(at, Pick::Durable),
            Lose::Random(seed) => Recipe::new(at, Pick::Sample(seed)),
            Lose::Torn => torn(&history, at, told),
        };
        let paths = Paths::of(&trace);
        let missing = recipe.torn.as_ref().map(|t| t.micro);
        let mut lost: Vec<u32> = history.lost(&recipe);
        lost.extend(missing);
        let mut calls: Vec<u32> = lost.into_iter().map(|n| history.micros[n as usize].event).collect();
        calls.sort_unstable();
        calls.dedup();
        told.lost_count = calls.len() as u64;
        let named = calls.iter().take(NAMED_MAX);
        told.lost = named.map(|n| paths.call(*n as usize, &trace.events[*n as usize])).collect();
        restore(&self.fs, &history.state(&recipe))?;
        // No open file of before the crash can be used any more.
        self.begin_with(world, &[])
    }

    /// Applies to a file's pages what a failed fsync does on file system `like`; see [`Like`].
    fn drop_dirty(&self, world: &World, ino: Ino, like: Like) -> Result<()> {
        let model = Model::by_name(match like {
            Like::Ext4 => "ext4",
            Like::Xfs => "xfs",
            Like::Btrfs => "btrfs",
        })
        .expect("these models exist");
        let mut reverted = None;
        world.log.revise(ino.0, |events| {
            let trace = Trace { events: std::mem::take(events) };
            let history = History::new(&trace, model);
            let at = *history.points().end();
            let disk = history.state(&Recipe::new(at, Pick::Durable));
            let on_disk = disk.node(ino.0).and_then(|node| match &node.body {
                Body::File(file) => Some(file.clone()),
                _ => None,
            });
            let on_disk = on_disk.unwrap_or_default();
            let is_lost = |event: u32| history.of_event(event).any(|n| !history.is_durable(n, at));
            let start = *history.points().start();
            let lost: Vec<u32> = (start..at).filter(|event| is_lost(*event)).collect();
            *events = trace.events;
            for event in lost {
                let event = &mut events[event as usize];
                let Call::Write { ino: of, offset, data, .. } = &mut event.call else {
                    // If the file reverts to its old size, the truncate that set the new size is
                    // dropped as well.
                    if like == Like::Btrfs
                        && matches!(event.call, Call::Truncate { ino: of, .. } if of == ino.0)
                    {
                        event.errno = kedge_base::errno::EIO;
                    }
                    continue;
                };
                if *of != ino.0 {
                    continue;
                }
                let old = |offset: u64, data: &mut [u8]| {
                    let there = on_disk.read(offset, data);
                    data[there..].fill(0);
                };
                match like {
                    Like::Ext4 => old(*offset, data),
                    Like::Xfs => {
                        let room =
                            usize::try_from(on_disk.size.saturating_sub(*offset)).unwrap_or(usize::MAX);
                        data.truncate(room);
                        old(*offset, data);
                        if data.is_empty() {
                            event.errno = kedge_base::errno::EIO;
                        }
                    }
                    Like::Btrfs => event.errno = kedge_base::errno::EIO,
                }
            }
            reverted = (like == Like::Btrfs).then_some(on_disk);
        });
        if let Some(file) = reverted {
            set_size(&self.fs, ino, 0)?;
            file.pieces().try_for_each(|(at, bytes)| write_all(&self.fs, ino, at, bytes))?;
            set_size(&self.fs, ino, file.size)?;
        }
        Ok(())
    }
}

/// The state that loses only a part of the last page written.
fn torn(history: &History, at: u32, told: &mut Crashed) -> Recipe {
    let last = (0..history.micros.len() as u32).rev().find(|n| history.may_tear(*n, at));
    let Some(micro) = last else { return Recipe::new(at, Pick::All) };
    let Edit::Data { page, at: start, ref bytes, .. } = history.micros[micro as usize].edit else {
        unreachable!("only bytes are torn")
    };
    let (first, end) =
        (usize::from(start) / 512, (usize::from(start) + bytes.as_slice().len()).div_ceil(512));
    let cut = first.midpoint(end).max(first);
    told.torn = Some(format!("of the page at byte {}, what is before byte {}", page * 4096, cut * 512));
    let torn = (cut > 0).then_some(Torn::new(micro, 0..cut));
    match torn {
        Some(torn) => Recipe { at, pick: Pick::All, torn: Some(torn) },
        // A write within one sector is atomic, so it is lost entirely.
        None => Recipe::new(at, Pick::Lose(vec![micro])),
    }
}

#[path = "live_bytes.rs"]
mod bytes;
#[path = "live_ops.rs"]
mod ops;
pub use bytes::{LostBytes, Unsynced};
