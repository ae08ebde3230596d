//! Deterministic races: one thread stops at a mark in the engine ([`kedge_base::broken::pause`]),
//! another thread runs meanwhile, then the first continues.
//!
//! The marks apply to the whole process, so only one race runs at a time.

use crate::ops::OWNER;
use crate::rig::{self, Setup};
use kedge_base::ManualClock;
use kedge_base::broken::pause::{self, Point};
use kedge_device::sim::{Choice, SimDevice};
use kedgefs::{Error, FallocateMode, FileSystem, Ino, MountOptions, SetAttr, SetTime};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Files that are looked up to evict others from the smallest inode cache.
const CROWD: u32 = 3000;
const BLOCK: u64 = kedge_base::BLOCK_SIZE as u64;
/// Extents of a file whose truncate takes two steps.
const EXTENTS: u64 = 600;

/// A file system with the smallest caches.
pub struct Stage {
    pub setup: Setup,
    pub device: Arc<SimDevice>,
    pub fs: FileSystem,
}

fn text(e: Error) -> String {
    e.to_string()
}

impl Stage {
    pub fn new() -> Result<Stage, String> {
        let mount = MountOptions { cache_size: 1 << 20, ..Setup::default().mount };
        let setup = Setup { image: 64 << 20, log: 8 << 20, mount, ..Setup::default() };
        let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
        device.stop_recording();
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
        Ok(Stage { setup, device, fs })
    }

    /// Creates a durable empty file. A file with cached pages would stay in the inode cache.
    fn file(&self, name: &str) -> Result<Ino, String> {
        let ino = self.fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER).map_err(text)?.ino;
        self.fs.sync().map_err(text)?;
        Ok(ino)
    }

    fn crowd(&self) -> Result<(), String> {
        (0..CROWD).try_for_each(|i| {
            self.fs.create(Ino::ROOT, format!("crowd{i}").as_bytes(), 0o644, OWNER).map_err(text).map(drop)
        })?;
        self.fs.checkpoint().map_err(text)
    }

    /// Evicts every unused inode from the cache.
    fn push_out(&self) -> Result<(), String> {
        // Two passes, since an inode that was used since the last pass of eviction survives one
        // more.
        for i in (0..CROWD).chain(0..CROWD) {
            self.fs.lookup(Ino::ROOT, format!("crowd{i}").as_bytes()).map_err(text)?;
        }
        Ok(())
    }

    /// Makes every second block of the file durable: more extents than one record of a truncate
    /// removes.
    fn scatter(&self, ino: Ino) -> Result<(), String> {
        for i in 0..EXTENTS {
            self.fs.write(ino, 2 * i * BLOCK, &[0xee; BLOCK as usize]).map_err(text)?;
        }
        self.fs.fsync(ino, false).map_err(text)
    }

    /// Checks that the file system works, and is clean after it was closed.
    fn judge(self) -> Result<(), String> {
        self.fs.sync().map_err(|e| format!("sync: {e}"))?;
        self.fs.close().map_err(|e| format!("close: {e}"))?;
        rig::fsck(self.device.view())
    }

    /// Runs `first` until it stops at `point`, then `second` until it ends or waits for another
    /// thread's read of an inode. If `second` has ended, runs `after`. Then lets all continue.
    /// Returns the results of `first` and `second`.
    fn beside<A: Send, B: Send>(
        &self,
        point: Point,
        first: impl FnOnce(&FileSystem) -> A + Send,
        second: impl FnOnce(&FileSystem) -> B + Send,
        after: impl FnOnce() -> Result<(), String>,
    ) -> Result<(A, B), String> {
        let nap = || std::thread::sleep(Duration::from_millis(1));
        pause::hold_next(point);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| first(&self.fs));
            while !pause::is_held(point) && !first.is_finished() {
                nap();
            }
            let result = if pause::is_held(point) { Ok(()) } else { Err(format!("not at {point:?}")) };
            let awaited = pause::passed(Point::InodeAwaited);
            let second = scope.spawn(|| second(&self.fs));
            while !second.is_finished() && pause::passed(Point::InodeAwaited) == awaited {
                nap();
            }
            let result = result.and_then(|()| if second.is_finished() { after() } else { Ok(()) });
            pause::release(point);
            let panicked = |_| "panicked".to_owned();
            let (first, second) = (first.join().map_err(panicked), second.join().map_err(panicked));
            result.and_then(|()| Ok((first?, second?)))
        })
    }
}

/// A file is deleted while another thread, which changes its access time, reads the inode from the
/// tree. The file does not reappear, and the change is harmless.
pub fn deleted_while_read() -> Result<(), String> {
    let stage = Stage::new()?;
    let ino = stage.file("f")?;
    stage.crowd()?;
    stage.push_out()?;
    let access = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
    let touch = |fs: &FileSystem| fs.setattr(ino, &access);
    let unlink = |fs: &FileSystem| fs.unlink(Ino::ROOT, b"f");
    let (touched, unlinked) = stage.beside(Point::InodeRead, touch, unlink, || Ok(()))?;
    unlinked.map_err(|e| format!("unlink: {e}"))?;
    if !matches!(touched, Ok(_) | Err(Error::NotFound)) {
        return Err(format!("setattr: {touched:?}"));
    }
    let found = stage.fs.getattr(ino);
    stage.judge()?;
    match found {
        Err(Error::NotFound) => Ok(()),
        other => Err(format!("a deleted inode is back: {other:?}")),
    }
}

/// A file gets a second name and is evicted while another thread reads its inode from the tree.
/// Both names count, and the file survives the removal of one.
pub fn linked_while_read() -> Result<(), String> {
    let stage = Stage::new()?;
    let ino = stage.file("f")?;
    stage.crowd()?;
    stage.push_out()?;
    let link = |fs: &FileSystem| fs.link(ino, Ino::ROOT, b"g");
    let (read, linked) = stage.beside(Point::InodeRead, |fs| fs.getattr(ino), link, || stage.push_out())?;
    read.map_err(|e| format!("getattr: {e}"))?;
    linked.map_err(|e| format!("link: {e}"))?;
    let nlink = stage.fs.getattr(ino).map_err(text)?.nlink;
    if nlink != 2 {
        return Err(format!("two names, link count {nlink}"));
    }
    stage.fs.unlink(Ino::ROOT, b"g").map_err(text)?;
    let left = stage.fs.lookup(Ino::ROOT, b"f").map_err(|e| format!("the other name: {e}"))?;
    if (left.ino, left.nlink) != (ino, 1) {
        return Err(format!("the other name: {left:?}"));
    }
    stage.judge()
}

fn cut(ino: Ino) -> impl FnOnce(&FileSystem) -> kedgefs::Result<()> + Send {
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    move |fs| fs.setattr(ino, &set).map(drop)
}

fn name_it(ino: Ino) -> impl FnOnce(&FileSystem) -> kedgefs::Result<()> + Send {
    move |fs| fs.link(ino, Ino::ROOT, b"f").map(drop)
}

/// A nameless file gets a name between two steps of its truncate.
pub fn linked_between_truncate_steps() -> Result<(), String> {
    let stage = Stage::new()?;
    let ino = stage.fs.tmpfile(Ino::ROOT, 0o644, OWNER).map_err(text)?.ino;
    stage.scatter(ino)?;
    let (cut, linked) = stage.beside(Point::TruncateStep, cut(ino), name_it(ino), || Ok(()))?;
    linked.map_err(|e| format!("link: {e}"))?;
    cut.map_err(|e| format!("truncate: {e}"))?;
    let found = stage.fs.lookup(Ino::ROOT, b"f").map_err(text)?;
    if (found.nlink, found.size, found.blocks) != (1, 0, 0) {
        return Err(format!("{found:?}"));
    }
    stage.judge()
}

/// A nameless file gets a name between two steps of its truncate. Power fails when the name is
/// durable and the truncate is not finished: truncated bytes do not reappear, even when the file
/// grows.
pub fn linked_between_truncate_steps_then_crash() -> Result<(), String> {
    let stage = Stage::new()?;
    let ino = stage.fs.tmpfile(Ino::ROOT, 0o644, OWNER).map_err(text)?.ino;
    stage.scatter(ino)?;
    let mut medium = None;
    let (_, linked) = stage.beside(Point::TruncateStep, cut(ino), name_it(ino), || {
        stage.fs.fsync(ino, false).map_err(text)?;
        medium = Some(stage.device.crash_as(Choice::None));
        Ok(())
    })?;
    linked.map_err(|e| format!("link: {e}"))?;
    let medium = medium.ok_or("the link waited for the truncate")?;
    let _ = stage.fs.shutdown(false);
    rig::fsck(medium.fork())?;
    let device = Arc::new(SimDevice::new(medium));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &stage.setup)?;
    let found = fs.lookup(Ino::ROOT, b"f").map_err(|e| format!("fsynced with its name: {e}"))?;
    let size = 2 * EXTENTS * BLOCK;
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map_err(text)?;
    let mut bytes = vec![0; size as usize];
    fs.read(ino, 0, &mut bytes).map_err(text)?;
    if let Some(at) = bytes.iter().position(|b| *b != 0) {
        return Err(format!("byte {at} was cut off and is back"));
    }
    if (found.nlink, found.size, found.blocks) != (1, 0, 0) {
        return Err(format!("cut to nothing: {found:?}"));
    }
    Stage { fs, device, setup: stage.setup }.judge()
}

/// Runs `change` after the record of the truncate's last step was built, and before it is
/// committed.
fn beside_the_last_step(
    stage: &Stage,
    ino: Ino,
    change: impl FnOnce(&FileSystem) -> kedgefs::Result<()> + Send,
) -> Result<(), String> {
    let change = |fs: &FileSystem| {
        pause::hold_next(Point::Removal);
        pause::release(Point::TruncateStep);
        while !pause::is_held(Point::Removal) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let changed = change(fs);
        pause::release(Point::Removal);
        changed
    };
    let (cut, changed) = stage.beside(Point::TruncateStep, cut(ino), change, || Ok(()))?;
    changed.map_err(|e| format!("beside the truncate: {e}"))?;
    cut.map_err(|e| format!("truncate: {e}"))
}

/// A file loses its last name during the last step of its truncate. Its last unpin frees it.
pub fn unlinked_beside_the_last_truncate_step() -> Result<(), String> {
    let stage = Stage::new()?;
    let ino = stage.file("f")?;
    stage.scatter(ino)?;
    stage.fs.pin(ino).map_err(text)?;
    beside_the_last_step(&stage, ino, |fs| fs.unlink(Ino::ROOT, b"f"))?;
    stage.fs.sync().map_err(text)?;
    rig::fsck(stage.device.crash_as(Choice::None)).map_err(|e| format!("after a crash: {e}"))?;
    stage.fs.unpin(ino, 1);
    match stage.fs.getattr(ino) {
        Err(Error::NotFound) => stage.judge(),
        other => Err(format!("not deleted: {other:?}")),
    }
}

/// A nameless file gets a name during the last step of its truncate.
pub fn linked_beside_the_last_truncate_step() -> Result<(), String> {
    let stage = Stage::new()?;
    let ino = stage.fs.tmpfile(Ino::ROOT, 0o644, OWNER).map_err(text)?.ino;
    stage.scatter(ino)?;
    beside_the_last_step(&stage, ino, name_it(ino))?;
    let found = stage.fs.lookup(Ino::ROOT, b"f").map_err(text)?;
    if (found.nlink, found.size, found.blocks) != (1, 0, 0) {
        return Err(format!("{found:?}"));
    }
    stage.judge()
}

/// The record that removes blocks from a file fails: bytes that were written there and are still
/// dirty remain in the file.
pub fn failed_removals_keep_the_bytes() -> Result<(), String> {
    type Removal = fn(&FileSystem, Ino) -> kedgefs::Result<()>;
    let removals: [(&str, Removal); 3] = [
        ("truncate", |fs, ino| cut(ino)(fs)),
        ("punch", |fs, ino| fs.fallocate(ino, FallocateMode::PunchHole, 0, 2 * BLOCK)),
        ("zero", |fs, ino| fs.fallocate(ino, FallocateMode::ZeroRange { keep_size: true }, 0, 2 * BLOCK)),
    ];
    for (name, removal) in removals {
        let stage = Stage::new()?;
        let ino = stage.file("f")?;
        let (bytes, mut found) = ([0xab; 3 * BLOCK as usize], [0; 3 * BLOCK as usize]);
        stage.fs.write(ino, 0, &bytes).map_err(text)?;
        // The file has its blocks and its size, so the next write is an overwrite that stays in
        // memory.
        stage.fs.sync().map_err(text)?;
        let bytes = bytes.map(|b| b ^ 0xff);
        stage.fs.write(ino, 0, &bytes).map_err(text)?;
        let stop = |fs: &FileSystem| fs.shutdown(false);
        let (removed, _) = stage.beside(Point::Removal, |fs| removal(fs, ino), stop, || Ok(()))?;
        if removed.is_ok() {
            return Err(format!("{name}: succeeds on a file system that is shut down"));
        }
        let count = stage.fs.read(ino, 0, &mut found).map_err(text)?;
        if (count, found) != (bytes.len(), bytes) {
            return Err(format!("{name} failed, and {count} bytes are left, first {:#x}", found[0]));
        }
    }
    Ok(())
}

// ----- many threads, a cache too small for their files, and slow reads -----

const THREADS: usize = 4;
/// Number of files of each thread. All together do not fit in the cache.
const OWN: usize = 800;

/// The state in which a thread left one of its files.
#[derive(Clone, Copy)]
struct Own {
    ino: Ino,
    mode: u32,
    second_name: bool,
}

/// A thread that changes its own files, and reads and touches files of all threads.
struct Actor<'a> {
    fs: &'a FileSystem,
    me: usize,
    rng: SmallRng,
    own: Vec<Option<Own>>,
    /// Inode numbers of all files of all threads, including removed ones.
    inos: &'a [AtomicU64],
    /// For each thread, the index in `inos` of the file on which it works, or worked last.
    watched: &'a [AtomicUsize],
}

impl Actor<'_> {
    fn name(&self, file: usize, second: bool) -> Vec<u8> {
        format!("{}-{file}{}", self.me, if second { "-second" } else { "" }).into_bytes()
    }

    /// Chooses a file of this thread, preferably one that another thread is using.
    fn pick(&mut self) -> usize {
        let mine = self.me * OWN..(self.me + 1) * OWN;
        let watched = self.watched.iter().map(|at| at.load(Ordering::SeqCst)).find(|at| mine.contains(at));
        watched.map_or_else(|| self.rng.random_range(0..OWN), |at| at - mine.start)
    }

    fn step(&mut self) -> Result<(), String> {
        let file = self.pick();
        let said = |what: &str, e: Error| format!("{what} {file}: {e}");
        match (self.own[file], self.rng.random_range(0..10)) {
            (_, 0..4) => self.touch_any()?,
            (None, _) => {
                let made = self.fs.create(Ino::ROOT, &self.name(file, false), 0o600, OWNER);
                let ino = made.map_err(|e| said("create", e))?.ino;
                self.own[file] = Some(Own { ino, mode: 0o600, second_name: false });
                self.inos[self.me * OWN + file].store(ino.0, Ordering::SeqCst);
            }
            (Some(own), 4) => {
                for second in [false, true].into_iter().take(1 + own.second_name as usize) {
                    self.fs.unlink(Ino::ROOT, &self.name(file, second)).map_err(|e| said("unlink", e))?;
                }
                self.own[file] = None;
            }
            (Some(own), 5..7) => {
                let name = self.name(file, true);
                if own.second_name {
                    self.fs.unlink(Ino::ROOT, &name).map_err(|e| said("unlink", e))?;
                } else {
                    self.fs.link(own.ino, Ino::ROOT, &name).map_err(|e| said("link", e))?;
                }
                self.own[file] = Some(Own { second_name: !own.second_name, ..own });
            }
            (Some(own), _) => {
                let mode = 0o600 | self.rng.random_range(0..0o100);
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.fs.setattr(own.ino, &set).map_err(|e| said("chmod", e))?;
                self.own[file] = Some(Own { mode, ..own });
            }
        }
        self.check(file)
    }

    /// Reads any thread's file, or changes its access time.
    fn touch_any(&mut self) -> Result<(), String> {
        let at = self.rng.random_range(0..self.inos.len());
        self.watched[self.me].store(at, Ordering::SeqCst);
        let ino = Ino(self.inos[at].load(Ordering::SeqCst));
        if ino.0 == 0 {
            return Ok(());
        }
        let set = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
        let touched = if self.rng.random() { self.fs.getattr(ino) } else { self.fs.setattr(ino, &set) };
        match touched {
            Ok(_) | Err(Error::NotFound) => Ok(()),
            Err(e) => Err(format!("inode {ino}: {e}")),
        }
    }

    /// Checks that the file is as this thread, its owner, left it.
    fn check(&self, file: usize) -> Result<(), String> {
        let found = match (self.fs.lookup(Ino::ROOT, &self.name(file, false)), self.own[file]) {
            (Err(Error::NotFound), None) => return Ok(()),
            (Ok(found), Some(own)) => (found, own),
            other => return Err(format!("file {file}: {:?}, {:?}", other.0, other.1.map(|own| own.ino))),
        };
        let (found, own) = found;
        let wanted = (own.ino, own.mode, 1 + own.second_name as u32);
        let is = (found.ino, found.mode & 0o7777, found.nlink);
        if is == wanted { Ok(()) } else { Err(format!("file {file}: {is:?}, not {wanted:?}")) }
    }
}

/// Runs random operations of several threads. Returns how often an inode was read from the tree,
/// and how often another thread waited for such a read.
pub fn small_cache(seed: u64, steps: usize) -> Result<(u64, u64), String> {
    let stage = Stage::new()?;
    let inos: Vec<AtomicU64> = (0..THREADS * OWN).map(|_| AtomicU64::new(0)).collect();
    let watched: Vec<_> = (0..THREADS).map(|_| AtomicUsize::new(usize::MAX)).collect();
    let before = (pause::passed(Point::InodeRead), pause::passed(Point::InodeAwaited));
    pause::stall(Point::InodeRead, Duration::from_millis(2), 8);
    let fs = &stage.fs;
    let run = |me: usize| {
        let rng = SmallRng::seed_from_u64(seed * THREADS as u64 + me as u64);
        let mut actor = Actor { fs, me, rng, own: vec![None; OWN], inos: &inos, watched: &watched };
        (0..steps).try_for_each(|at| actor.step().map_err(|e| format!("step {at}: {e}")))?;
        (0..OWN).try_for_each(|file| actor.check(file).map_err(|e| format!("at the end: {e}")))
    };
    let result = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(move || run(me))).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        results.into_iter().enumerate().try_for_each(|(me, result)| {
            let result = result.map_err(|_| "panicked".to_owned()).and_then(|done| done);
            result.map_err(|e| format!("seed {seed}, thread {me}: {e}"))
        })
    });
    pause::release(Point::InodeRead);
    result?;
    stage.judge()?;
    Ok((pause::passed(Point::InodeRead) - before.0, pause::passed(Point::InodeAwaited) - before.1))
}
