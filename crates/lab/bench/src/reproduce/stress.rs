//! xfs/297: hundreds of clients change file system B at random and sync, while B is frozen and
//! thawed and the cache of file system A is full of clean inodes.
//!
//! The test of xfstests runs fsstress. Here its operations, as far as KedgeFS has them, run with
//! fsstress's frequencies in threads of this process. One operation in 27 is a sync of all file
//! systems of the process. Each client begins with files in its directory, so that most operations
//! find what they need.
//!
//! A freeze begins when a certain fraction of the operations is done, and holds B for a fixed time.
//! So each round has the same number of freezes, and their time can be subtracted. The time of a
//! freeze itself is that of the call.

use super::Run;
use super::cpu::Cpu;
use super::tracking::{Made, SIDES, fill, write_small};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Published, Round};
use crate::library::in_threads;
use crate::report::{Reading, Section};
use crate::times::Times;
use anyhow::{Context, Result, anyhow, ensure};
use kedge_base::{Clock, SystemClock};
use kedgefs::{DirtyTracking, FileSystem, Ino, Owner, RenameMode, SetAttr, XattrMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const THREADS: usize = 200;
const FREEZES: u64 = 10;
/// How long B stays frozen after a freeze.
const FROZEN: Duration = Duration::from_millis(20);
/// Interval of checks whether the next freeze is due.
const LOOK: Duration = Duration::from_micros(200);
const WRITE_MAX: usize = 8 << 10;
/// Limit of a file's size in bytes: all clients together stay far below the smallest image.
const SIZE_MAX: u64 = 8 << 10;
/// Number of names of a client: few, so that operations collide.
const NAMES: u32 = 24;
/// Number of files of a client at the start.
const FILES: u32 = 12;

/// Factor by which a round is shortened if the old lists are used and the cache is full.
const SHORTER: u64 = 20;

const TIME: &str = "time without the holds";
const FREEZE: &str = "freeze, median";
const FREEZE_MAX: &str = "longest freeze";

/// Seconds that xfs/297 took without and with cached inodes. The second figure is a lower bound,
/// since that run was aborted.
const PUBLISHED: &[Published] = &[Published { metric: TIME, figures: &[36.0, 900.0] }];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Write,
    Read,
    Link,
    Symlink,
    Unlink,
    Rename,
    Mkdir,
    Rmdir,
    Truncate,
    Stat,
    List,
    Setxattr,
    Fsync,
    Fdatasync,
    Sync,
}

/// The operations, with frequencies as in fsstress.
const STEPS: [(Step, u32); 16] = [
    (Step::Create, 4),
    (Step::Write, 4),
    (Step::Read, 1),
    (Step::Link, 1),
    (Step::Symlink, 2),
    (Step::Unlink, 1),
    (Step::Rename, 2),
    (Step::Mkdir, 2),
    (Step::Rmdir, 1),
    (Step::Truncate, 2),
    (Step::Stat, 1),
    (Step::List, 1),
    (Step::Setxattr, 2),
    (Step::Fsync, 1),
    (Step::Fdatasync, 1),
    (Step::Sync, 1),
];

impl Step {
    /// Whether the operation may return this error, since names are chosen at random.
    fn may_answer(self, errno: i32) -> bool {
        use Step::{
            Create, Link, Mkdir, Read, Rename, Rmdir, Setxattr, Symlink, Sync, Truncate, Unlink, Write,
        };
        match errno {
            libc::ENOENT => self != Sync,
            libc::EEXIST => matches!(self, Create | Link | Symlink | Mkdir),
            libc::EISDIR => matches!(self, Write | Read | Unlink | Rename | Truncate),
            libc::ENOTDIR => matches!(self, Rmdir | Rename),
            // EINVAL: a symlink has no bytes. EPERM: a directory has no second name.
            libc::EINVAL => matches!(self, Write | Read | Truncate),
            libc::EPERM => matches!(self, Link | Setxattr),
            _ => false,
        }
    }
}

fn pick(rng: &mut SmallRng) -> Step {
    let all = STEPS.iter().map(|(_, often)| often).sum();
    let mut at = rng.random_range(0..all);
    for (step, often) in STEPS {
        match at.checked_sub(often) {
            None => return step,
            Some(rest) => at = rest,
        }
    }
    Step::Sync
}

/// A client, which does the work of one fsstress process in its own directory.
struct Client {
    a: FileSystem,
    b: FileSystem,
    dir: Ino,
    rng: SmallRng,
}

impl Client {
    fn new(a: &FileSystem, b: &FileSystem, number: usize) -> Result<Client> {
        let dir = b.mkdir(Ino::ROOT, format!("p{number}").as_bytes(), 0o755, Owner::default())?.ino;
        for i in 0..FILES {
            write_small(b, dir, &format!("f{i}"))?;
        }
        Ok(Client { a: a.clone(), b: b.clone(), dir, rng: SmallRng::seed_from_u64(number as u64) })
    }

    fn name(&mut self) -> Vec<u8> {
        format!("f{}", self.rng.random_range(0..NAMES)).into_bytes()
    }

    /// Runs one step. Returns false if a name is taken, missing or of another kind: the step then
    /// does nothing, as in fsstress.
    fn step(&mut self, step: Step) -> Result<bool> {
        let (name, other) = (self.name(), self.name());
        match self.try_step(step, &name, &other) {
            Err(e) if step.may_answer(e.errno()) => Ok(false),
            done => done.map(|()| true).with_context(|| format!("{step:?}")),
        }
    }

    fn try_step(&mut self, step: Step, name: &[u8], other: &[u8]) -> kedgefs::Result<()> {
        let (b, dir, owner) = (&self.b, self.dir, Owner::default());
        let file = || b.lookup(dir, name).map(|attr| attr.ino);
        match step {
            Step::Create => drop(b.create(dir, name, 0o644, owner)?),
            Step::Write => {
                let data = vec![0x6b; self.rng.random_range(1..=WRITE_MAX)];
                let written = b.write(file()?, self.rng.random_range(0..SIZE_MAX), &data)?;
                if written < data.len() {
                    return Err(kedge_base::Error::NoSpace.into());
                }
            }
            Step::Read => drop(b.read(file()?, 0, &mut [0; 4096])?),
            Step::Link => drop(b.link(file()?, dir, other)?),
            Step::Symlink => drop(b.symlink(dir, name, other, owner)?),
            Step::Unlink => b.unlink(dir, name)?,
            Step::Rename => b.rename(dir, name, dir, other, RenameMode::Replace)?,
            Step::Mkdir => drop(b.mkdir(dir, name, 0o755, owner)?),
            Step::Rmdir => b.rmdir(dir, name)?,
            Step::Truncate => {
                let size = Some(self.rng.random_range(0..SIZE_MAX));
                b.setattr(file()?, &SetAttr { size, ..SetAttr::default() })?;
            }
            Step::Stat => drop(b.getattr(file()?)?),
            Step::List => b.readdir(dir, 0, &mut |_| true)?,
            Step::Setxattr => b.setxattr(file()?, b"user.stress", other, XattrMode::Any)?,
            Step::Fsync => b.fsync(file()?, false)?,
            Step::Fdatasync => b.fsync(file()?, true)?,
            Step::Sync => self.a.sync().and_then(|()| b.sync())?,
        }
        Ok(())
    }
}

/// The result of a round.
struct Stressed {
    /// Seconds, without the time for which B was frozen.
    took: f64,
    freezes: Times,
    syncs: Times,
    /// Number of steps that found what they needed.
    did: u64,
}

/// Notifies the freezing thread on drop that no more steps follow, even if a step failed.
struct Ended {
    done: Arc<AtomicU64>,
    all: u64,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.done.store(self.all, Relaxed);
    }
}

/// Runs `each` steps on B in each of `threads` clients, with [`FREEZES`] freezes meanwhile.
fn stress(run: &Run<'_>, a: &FileSystem, b: &FileSystem, threads: usize, each: u64) -> Result<Stressed> {
    let clients: Vec<Client> = (0..threads).map(|i| Client::new(a, b, i)).collect::<Result<_>>()?;
    let mut clients = clients.into_iter();
    let done = Arc::new(AtomicU64::new(0));
    let all = threads as u64 * each;
    let freezer = {
        let (b, done) = (b.clone(), done.clone());
        kedge_base::spawn_named("freezer", move || freeze_often(&b, &done, all))?
    };
    let ended = Ended { done: done.clone(), all };
    let worked = in_threads(threads, |_| {
        let client = clients.next();
        let (done, interrupt) = (done.clone(), run.settings.interrupt.clone());
        move || {
            let mut client = client.context("a client for each thread")?;
            let (clock, mut syncs, mut did) = (SystemClock::default(), Times::default(), 0);
            for _ in 0..each {
                let step = pick(&mut client.rng);
                interrupt.check()?;
                did += u64::from(match step {
                    Step::Sync => syncs.time(&clock, || client.step(step))?,
                    _ => client.step(step)?,
                });
                done.fetch_add(1, Relaxed);
            }
            Ok((syncs, did))
        }
    });
    drop(ended);
    let frozen = freezer.join().map_err(|_| anyhow!("the thread that freezes panicked"));
    let ((took, answers), (freezes, frozen)) = (worked?, frozen??);
    let (mut syncs, mut did) = (Times::default(), 0);
    for (own, steps) in answers {
        syncs.merge(own);
        did += steps;
    }
    Ok(Stressed { took: took.saturating_sub(frozen).as_secs_f64(), freezes, syncs, did })
}

/// Freezes again and again. Returns the times of the freeze calls, and the total time for which the
/// file system was frozen.
fn freeze_often(fs: &FileSystem, done: &AtomicU64, all: u64) -> Result<(Times, Duration)> {
    let (clock, mut freezes, mut frozen) = (SystemClock::default(), Times::default(), Duration::ZERO);
    for i in 1..=FREEZES {
        while done.load(Relaxed) < all * i / (FREEZES + 1) {
            clock.sleep(LOOK);
        }
        freezes.time(&clock, || fs.freeze())?;
        let since = clock.monotonic();
        clock.sleep(FROZEN);
        frozen += clock.since(since);
        fs.thaw()?;
    }
    Ok((freezes, frozen))
}

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    let inodes = run.work(100_000, 1_000_000);
    let each = run.pick(800, 1600);
    let this = &*run;
    let contestants = SIDES.map(|(name, tracking, full)| {
        Contestant::new(name, move |each| {
            let a = Made::new(this, "a.img", tracking)?;
            let b = Made::new(this, "b.img", tracking)?;
            let cached = fill(&a.library, if full { inodes } else { 0 })?;
            let part = if full && tracking == DirtyTracking::Shared { SHORTER } else { 1 };
            let own = (each / part).max(1);
            let longer = each as f64 / own as f64;
            let cpu = Cpu::now()?;
            let done = stress(this, a.library.fs(), b.library.fs(), THREADS, own)?;
            let cpu = cpu.since()?.total() * longer;
            ensure!(done.freezes.count() == FREEZES as f64, "not all freezes were made");
            a.end()?;
            b.end()?;
            let (freezes, syncs) = (&done.freezes, &done.syncs);
            let all = (THREADS as u64 * own) as f64;
            let values = vec![
                all / done.took,
                done.took * longer,
                freezes.quantile(0.5),
                freezes.quantile(0.95),
                freezes.max(),
                syncs.quantile(0.5),
                syncs.max(),
                cpu,
                done.did as f64 / all * 100.0,
            ];
            let command = format!(
                "# dirty_tracking={tracking}; A with {cached} inodes; on B {THREADS} threads, {own} operations of fsstress each, and {FREEZES} freezes of {} ms",
                FROZEN.as_millis()
            );
            Ok(Round { values, command })
        })
    });
    let mut outcome = run.plan.hold(Contest {
        title: format!("{} operations by {THREADS} threads, and {FREEZES} freezes", each * THREADS as u64),
        metrics: vec![
            Metric::new("operations", "/s", Better::Higher),
            Metric::new(TIME, "s", Better::Lower),
            Metric::new(FREEZE, "ms", Better::Lower),
            Metric::new("95 % of freezes", "ms", Better::Lower),
            Metric::new(FREEZE_MAX, "ms", Better::Lower),
            Metric::new("sync, median", "ms", Better::Lower),
            Metric::new("longest sync", "ms", Better::Lower),
            Metric::new("processor time", "s", Better::Lower),
            Metric::new("found what they needed", "%", Better::Neither),
        ],
        amount: Amount::Warmed { pilot: 5, amount: each },
        goal: None,
        contestants: contestants.into(),
    })?;
    outcome.published = PUBLISHED.to_vec();
    run.bars.extend(bars(&outcome));
    run.note(format!(
        "fsstress, shared, A full: {SHORTER} times fewer operations; their time and processor time are multiplied."
    ));
    run.sections.push(Section {
        title: "The load of xfs/297 on B beside A: fsstress and freezes".into(),
        setup: vec![],
        outcomes: vec![outcome],
        reading: Reading::Change,
    });
    Ok(())
}

fn bars(outcome: &Outcome) -> Vec<Bar> {
    let full_by_empty = |what: &'static str, metric: &'static str, most: f64| {
        Bar::new(outcome, what, "", Want::AtMost(most), move |at| at(3, metric) / at(2, metric))
    };
    vec![
        full_by_empty("time with A full by A empty, per_sb", TIME, 1.1),
        full_by_empty("a freeze with A full by A empty, per_sb", FREEZE, 1.5),
    ]
}

#[cfg(test)]
#[path = "stress_tests.rs"]
mod tests;
