//! A file system on a simulated device, driven in step with the model.
//!
//! Every step compares the results. After a crash, fsck and the oracle check the recovered state,
//! and the run continues from it.

use crate::crash::{History, Promise, check_view};
use crate::deltas::Deltas;
use crate::model::Model;
use crate::ops::{Executor, Op, Outcome, print_ops};
use crate::view::{View, compare_with_handles};
use kedge_base::{BLOCK_SIZE, IoBuf, ManualClock, SystemClock};
use kedge_device::crypt::{CRYPT_AREA, Cost, CryptDevice, CryptHeader, Secret};
use kedge_device::sim::{Choice, SimDevice};
use kedge_device::{Device, LatencyKind, MemDevice};
use kedge_format::logwrite::LogSecret;
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_fsck::CheckOptions;
use kedgefs::{
    Clock, DirtyTracking, FdatasyncRule, FileSystem, FormatOptions, MountOptions, NewName, OrderWord,
    TreeLock,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Image and options of a rig.
#[derive(Clone, Debug)]
pub struct Setup {
    pub image: u64,
    pub log: u64,
    pub mount: MountOptions,
    pub promise: Promise,
    /// Number of operations after which the whole tree is compared with the model.
    pub compare_every: usize,
    /// Whether sizes that depend on the device's latency are those for a remote device.
    pub far: bool,
    /// Whether the image is encrypted. The encryption lies between the engine and the simulated
    /// device.
    pub encrypted: bool,
    /// Whether the data of files has checksums.
    pub checksums: bool,
    /// Limit in bytes of files whose data is kept in the tree.
    pub inline_max: u64,
}

impl Default for Setup {
    /// In these defaults only operations force the log: the commit interval is an hour, and a
    /// history does not fill the log enough to start a checkpoint.
    fn default() -> Self {
        Setup {
            image: 256 << 20,
            log: 16 << 20,
            mount: MountOptions {
                commit: Duration::from_secs(3600),
                cache_size: 64 << 20,
                ..MountOptions::default()
            },
            promise: Promise::Prefix,
            compare_every: 40,
            far: false,
            encrypted: false,
            checksums: false,
            inline_max: 0,
        }
    }
}

impl Setup {
    /// A setup with a log and caches so small that checkpoints, evictions and writeback happen
    /// constantly.
    pub fn cramped() -> Setup {
        let mount = MountOptions { cache_size: 2 << 20, ..Setup::default().mount };
        Setup { image: 96 << 20, log: 1 << 20, mount, promise: Promise::LastChange, ..Setup::default() }
    }

    /// Formats an image of this setup. Except for the key of an encrypted one, it is always the
    /// same. The device is full of [`GARBAGE`] before, except for that of an encrypted one, whose
    /// unwritten blocks are decrypted to garbage anyway.
    pub fn format(&self) -> Result<MemDevice, String> {
        if !self.encrypted {
            let device = Arc::new(MemDevice::filled(self.image, GARBAGE));
            format_on(device.clone(), None, self.log, self.checksums, self.inline_max)?;
            return Ok(device.fork());
        }
        let said = |e: kedge_base::Error| e.to_string();
        let below = Arc::new(MemDevice::new(CRYPT_AREA + self.image));
        let device = CryptDevice::format(below.clone(), &secret(), CHEAP).map_err(said)?;
        format_on(Arc::new(device), None, self.log, self.checksums, self.inline_max)?;
        Ok(below.fork())
    }

    /// Lets `seed` choose the mount's switches, the device's latency, whether data has checksums
    /// and whether small files are kept in the tree. Every combination must be equally safe.
    pub fn switched(mut self, seed: u64) -> Setup {
        self.far = seed / 7 % 2 == 1;
        self.checksums |= seed / 13 % 2 == 1;
        if seed / 17 % 2 == 1 {
            self.inline_max = [512, 2048][(seed / 19 % 2) as usize];
        }
        let mount = &mut self.mount;
        mount.new_name = if seed & 1 == 0 { NewName::Lazy } else { NewName::Sync };
        mount.fdatasync = match (seed & 2, seed / 5 % 2) {
            (0, _) => FdatasyncRule::Seq,
            (_, 0) => FdatasyncRule::Relog,
            _ => FdatasyncRule::Fields,
        };
        // The old rules force the log, or append to it, where the new ones do not. So a change of
        // an inode may be durable before its fsync, which then forces nothing and makes no other
        // operation durable.
        if mount.new_name == NewName::Sync || mount.fdatasync != FdatasyncRule::Seq {
            self.promise = Promise::LastChange;
        }
        mount.async_checkpoint = (seed & 4 == 0).then_some(50);
        mount.plug = seed & 8 == 0;
        mount.writeback_order = if seed & 16 == 0 { OrderWord::Oldest } else { OrderWord::Location }.order();
        mount.tree_lock = TreeLock::ALL[(seed / 3) as usize % TreeLock::ALL.len()];
        mount.dirty_set = (seed / 11 % 2 == 1).then_some(Deltas::make);
        mount.dirty_tracking = if seed & 32 == 0 { DirtyTracking::PerSb } else { DirtyTracking::Shared };
        self
    }
}

/// See the module.
pub struct Rig {
    pub setup: Setup,
    pub device: Arc<SimDevice>,
    pub clock: Arc<ManualClock>,
    pub exec: Executor,
    pub model: Model,
    /// `None` if it is not kept (until the next sync). The oracle then does not judge a crash.
    pub history: Option<History>,
    since_compare: usize,
}

fn said(what: &str) -> impl Fn(kedgefs::Error) -> String {
    move |e| format!("{what} fails: {e} (errno {})", e.errno())
}

/// The cost of opening a key slot, as low as possible, since each crash opens one.
const CHEAP: Cost = Cost { memory_kib: 8, passes: 1, lanes: 1 };

fn secret() -> Secret {
    Secret::new(b"the key of all simulated images".to_vec())
}

/// Returns the device on which the engine runs: a decrypted view if the device holds an encrypted
/// image.
pub fn unlocked(device: Arc<dyn Device>) -> Result<Arc<dyn Device>, String> {
    let said = |e: kedge_base::Error| format!("unlock: {e}");
    if !CryptHeader::is_there(&*device).map_err(said)? {
        return Ok(device);
    }
    Ok(Arc::new(CryptDevice::open(device, &secret()).map_err(said)?))
}

/// The bytes of a device before it is formatted. No workload writes a block of them. So a block
/// that a file shows before its data was written differs from everything that the file may contain.
pub const GARBAGE: u8 = 0xee;

/// Formats an image in memory, on a device full of [`GARBAGE`]. It is always the same: name hash
/// key and log secret are not random.
pub fn format(size: u64, log: u64) -> Result<MemDevice, String> {
    format_within(size, size, log, 0)
}

/// [`format()`] on a device of `room` bytes, into which the image can grow. `inline_max`: see
/// [`Setup`].
pub fn format_within(room: u64, size: u64, log: u64, inline_max: u64) -> Result<MemDevice, String> {
    let device = Arc::new(MemDevice::filled(room, GARBAGE));
    format_on(device.clone(), Some(size), log, false, inline_max)?;
    Ok(device.fork())
}

fn format_on(
    device: Arc<dyn Device>,
    of: Option<u64>,
    log: u64,
    data_checksums: bool,
    inline_max: u64,
) -> Result<(), String> {
    let size = device.geometry().size;
    let uuid = Some(uuid::Uuid::from_bytes([0x6b; 16]));
    let log_size = Some(log);
    let options = FormatOptions {
        size: of,
        log_size,
        uuid,
        immutable: true,
        data_checksums,
        inline_max,
        overwrite: true,
        ..FormatOptions::default()
    };
    FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &options).map_err(said("format"))?;
    for (i, slot) in SLOTS.iter().enumerate() {
        let mut block = IoBuf::zeroed(1);
        device.read(slot.byte_offset(), &mut block).map_err(|e| e.to_string())?;
        // A fresh image contains no hashed name yet, and may have only one valid slot.
        let Ok(mut sb) = Superblock::decode(block.as_bytes(), i, size / BLOCK_SIZE as u64) else { continue };
        sb.geometry.hash_seed = [0x5a; 16];
        sb.geometry.log_secret = LogSecret([0xc3; 16]);
        sb.encode(block.as_mut_bytes());
        device.write(slot.byte_offset(), &block, false).map_err(|e| e.to_string())?;
        sb.encode_copy(block.as_mut_bytes());
        for place in sb.geometry.current_copies() {
            device.write(place.byte_offset(), &block, false).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// A replayer for fsck that mounts the image.
struct ByMounting;

impl kedge_fsck::Replay for ByMounting {
    fn log_writes(&self, device: &dyn Device, sb: &Superblock) -> kedge_base::Result<u64> {
        kedge_fsck::Replay::log_writes(&kedge_fsck::StoreReplay, device, sb)
    }

    fn replay(&self, overlay: Arc<dyn Device>) -> kedge_base::Result<kedge_fsck::ReplaySummary> {
        let engine = |e: kedgefs::Error| match e {
            kedgefs::Error::Engine(e) => e,
            other => kedge_base::Error::invalid(other.to_string()),
        };
        let fs = FileSystem::open(overlay, Arc::new(ManualClock::default()), MountOptions::default())
            .map_err(engine)?;
        fs.close().map_err(engine)?;
        Ok(kedge_fsck::ReplaySummary::default())
    }
}

/// Runs fsck on an image whose log is replayed into memory. The image is not changed. The error
/// lists the findings.
pub fn fsck(device: MemDevice) -> Result<(), String> {
    let options = CheckOptions { replay: Some(Arc::new(ByMounting)), data: true, ..CheckOptions::default() };
    let report = kedge_fsck::check(unlocked(Arc::new(device))?, &options);
    if report.is_clean() { Ok(()) } else { Err(format!("fsck: {report}")) }
}

impl Rig {
    pub fn new(setup: Setup) -> Result<Rig, String> {
        let device = Arc::new(SimDevice::new(setup.format()?));
        device.stop_recording();
        let clock = Arc::new(ManualClock::default());
        let fs = open(&device, &clock, &setup)?;
        let model = Model::new();
        let history = Some(History::new(model.clone(), setup.promise));
        Ok(Rig { setup, device, clock, exec: Executor::new(fs), model, history, since_compare: 0 })
    }

    /// Runs one operation on the file system and on the model. Returns `Ok(None)` if it is
    /// unspecified and was skipped.
    pub fn step(&mut self, op: &Op) -> Result<Option<Outcome>, String> {
        match op {
            Op::Remount => self.remount().map(|()| Some(Outcome::Done)),
            Op::CrashRemount { seed } => self.crash(Choice::Torn(*seed)).map(|_| Some(Outcome::Done)),
            _ => self.operate(op),
        }
    }

    fn operate(&mut self, op: &Op) -> Result<Option<Outcome>, String> {
        let Some(expected) = self.model.apply(op) else { return Ok(None) };
        let outcome = self.exec.apply(op);
        if !expected.allows(&outcome) {
            return Err(format!(
                "{op:?} answers {outcome:?}, expected {:?} {:?}",
                expected.outcome, expected.or
            ));
        }
        learn_times(&mut self.model, &self.exec.fs, self.clock.now()).map_err(|e| format!("{op:?}: {e}"))?;
        if let Some(history) = &mut self.history {
            history.push(op.clone(), outcome.clone(), expected.effect, self.model.clone());
        }
        let trees = matches!(
            op,
            Op::Fork { .. } | Op::DeleteTree { .. } | Op::RollBack { .. } | Op::CommitTree { .. }
        );
        if matches!(op, Op::Sync | Op::Freeze) || trees && outcome.is_ok() {
            self.history = Some(History::new(self.model.clone(), self.setup.promise));
        }
        self.since_compare += 1;
        if self.since_compare >= self.setup.compare_every {
            self.compare()?;
        }
        Ok(Some(outcome))
    }

    /// Compares the whole tree with the model.
    pub fn compare(&mut self) -> Result<(), String> {
        self.since_compare = 0;
        compare_with_handles(&self.exec, &self.model)?;
        self.model.forget_atimes();
        Ok(())
    }

    fn remount(&mut self) -> Result<(), String> {
        self.compare()?;
        self.exec.fs.close().map_err(said("close"))?;
        fsck(self.device.view())?;
        self.exec = Executor::new(open(&self.device, &self.clock, &self.setup)?);
        self.model.forget_handles();
        self.history = Some(History::new(self.model.clone(), self.setup.promise));
        self.compare().map_err(|e| format!("after a remount: {e}"))
    }

    /// Loses power, reopens the medium that `choice` selects, and lets fsck and the oracle judge
    /// it. Returns the recovered tree.
    pub fn crash(&mut self, choice: Choice) -> Result<View, String> {
        let medium = self.device.crash_as(choice);
        self.restart(medium)
    }

    /// Continues with a medium that a crash left, as [`Rig::crash`] does.
    pub fn restart(&mut self, medium: MemDevice) -> Result<View, String> {
        // The old file system ends on the old device, so its last writes do not matter.
        let _ = self.exec.fs.shutdown(false);
        fsck(medium.fork()).map_err(|e| format!("after a crash: {e}"))?;
        self.device = Arc::new(SimDevice::new(medium));
        self.device.stop_recording();
        let fs = open(&self.device, &self.clock, &self.setup).map_err(|e| format!("after a crash: {e}"))?;
        self.exec = Executor::new(fs);
        let view = View::of(&self.exec.fs).map_err(|e| format!("after a crash: {e}"))?;
        if let Some(history) = &self.history {
            let done = history.len();
            check_view(Ok(&view), history, done, &history.persists_before(done))
                .map_err(|v| v.to_string())?;
        }
        self.model = view.to_model();
        self.history = Some(History::new(self.model.clone(), self.setup.promise));
        self.since_compare = 0;
        Ok(view)
    }

    /// Removes everything, and checks that all space becomes free.
    pub fn empty(&mut self) -> Result<(), String> {
        for handle in self.model.handles().keys().copied().collect::<Vec<_>>() {
            self.step(&Op::Close { handle })?;
        }
        for (path, id) in self.model.paths().into_iter().skip(1).rev() {
            let is_dir = self.model.inode(id).is_none_or(|inode| inode.is_dir());
            let op = if is_dir { Op::Rmdir { path } } else { Op::Unlink { path } };
            match self.step(&op)? {
                Some(Outcome::Done) => {}
                other => return Err(format!("{op:?} answers {other:?}")),
            }
        }
        self.compare()
    }
}

/// Reads the times that an operation set, and passes them to the model. They must lie between the
/// start of the clock and `to`, the end of the operation.
pub fn learn_times(model: &mut Model, fs: &FileSystem, to: kedgefs::Timespec) -> Result<(), String> {
    let start = ManualClock::default().now();
    model.learn_times((start, to), |path| {
        let ino = crate::ops::resolve(fs, path).map_err(|e| format!("{path}: {e}"))?;
        fs.getattr(ino).map_err(|e| format!("{path}: {e}"))
    })
}

/// Opens the file system on the rig's device.
pub fn open(device: &Arc<SimDevice>, clock: &Arc<ManualClock>, setup: &Setup) -> Result<FileSystem, String> {
    open_on(device.clone(), clock, setup)
}

/// [`open()`] on a device that may be a layer above the simulated device.
pub fn open_on(
    device: Arc<dyn Device>,
    clock: &Arc<ManualClock>,
    setup: &Setup,
) -> Result<FileSystem, String> {
    let clock: Arc<dyn Clock> = clock.clone();
    if setup.far {
        // The latency of a simulated device is not measured, so the value set here stays.
        for kind in LatencyKind::ALL {
            device.latency().record(kind, FAR);
            device.latency().record_interval(kind, Duration::ZERO);
        }
    }
    FileSystem::open(unlocked(device)?, clock, setup.mount.clone()).map_err(said("open"))
}

/// A latency so high that every size that depends on it has its upper bound.
const FAR: Duration = Duration::from_secs(1);

/// Runs all operations; an error or panic names the operation that caused it.
pub fn run_ops(setup: &Setup, ops: &[Op]) -> Result<Rig, String> {
    let mut at = 0;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut rig = Rig::new(setup.clone())?;
        for op in ops {
            rig.step(op)?;
            at += 1;
        }
        rig.step(&Op::Remount)?;
        Ok(rig)
    }));
    let error = match result {
        Ok(Ok(rig)) => return Ok(rig),
        Ok(Err(e)) => e,
        Err(panic) => format!("panic: {}", panic_text(&*panic)),
    };
    let op = ops.get(at).map_or_else(|| "final remount".to_owned(), |op| print_ops(std::slice::from_ref(op)));
    Err(format!("operation {at} {}: {error}", op.trim_end()))
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Runs `body` on its own thread and panics with `what` if it takes longer than `limit`: a hang
/// fails one test and does not stop the others.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (send, receive) = mpsc::channel();
    let thread = kedge_base::spawn_named("within", move || {
        let _ = send.send(body());
    })
    .expect("a test can start a thread");
    match receive.recv_timeout(limit) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: still running after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the body's value is sent before its thread ends"),
        },
    }
}

/// Returns the result of `body`, and the longest delay with which this machine woke a thread
/// meanwhile. Tests of timers subtract it, since the delay of a busy machine is no fault of the
/// timer.
pub fn with_lateness<T>(body: impl FnOnce() -> T) -> (T, Duration) {
    const NAP: Duration = Duration::from_millis(5);
    let stop = Arc::new(AtomicBool::new(false));
    let ended = stop.clone();
    let ruler = kedge_base::spawn_named("ruler", move || {
        let clock = SystemClock::default();
        let mut worst = Duration::ZERO;
        while !ended.load(Ordering::Relaxed) {
            let before = clock.monotonic();
            clock.sleep(NAP);
            worst = worst.max(clock.since(before).saturating_sub(NAP));
        }
        worst
    })
    .expect("a test can start a thread");
    let value = body();
    stop.store(true, Ordering::Relaxed);
    (value, ruler.join().expect("it does not panic"))
}

/// Reads the seed from the environment (`KEDGE_SEED`), to repeat a failure.
pub fn seed_from_env() -> Option<u64> {
    std::env::var("KEDGE_SEED").ok().map(|text| text.parse().expect("KEDGE_SEED is a number"))
}

#[cfg(test)]
#[path = "rig_tests.rs"]
mod tests;
