//! The loads of the experiments on a device that is defined only by its speed. They run on real
//! threads and on simulated ones, and give the same metrics.

use super::disk::{Speed, TimedDisk};
use crate::Interrupt;
use crate::contest::{Better, Metric, Published};
use crate::counters::Counters;
use crate::library::{Library, Work, in_threads, make_files};
use crate::reproduce::dbench::{self, Load as Script};
use crate::reproduce::{
    Experiment, checkpoint, fdatasync, marks, overwrite, rename, tracking, tree_lock, writeback,
};
use crate::times::Times;
use anyhow::{Context, Result, bail, ensure};
use kedge_base::{Clock, SystemClock};
use kedgefs::{DirtyTracking, FormatOptions, Ino, MountOptions, Owner, Switches, TreeLock};
use std::sync::Arc;
use std::time::Duration;

/// The disks of the published experiments are not known, so this is a device on which only the
/// flush matters. Its flush takes as long as that of the device in the parts `model`.
pub const SPEED: Speed = Speed {
    latency: Duration::from_micros(20),
    depth: 32,
    bytes_per_second: 2_000_000_000,
    flush: Duration::from_millis(1),
};
const IMAGE: u64 = 4 << 30;
const CACHE: u64 = 2 << 30;
const BLOCK: [u8; 4096] = [0x6b; 4096];

/// A load of an experiment, and the rules under which it runs.
pub struct Load {
    pub name: &'static str,
    pub title: &'static str,
    pub rules: &'static [&'static str],
    pub metrics: fn() -> Vec<Metric>,
    pub published: &'static [Published],
    /// Runs the load under a rule, with this amount of work.
    play: fn(&str, Amount) -> Result<Vec<f64>>,
}

/// The amount of work of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    Short,
    Full,
}

impl Amount {
    fn pick<T>(self, short: T, full: T) -> T {
        if self == Amount::Full { full } else { short }
    }
}

impl Load {
    pub fn play(&self, rule: &str, amount: Amount) -> Result<Vec<f64>> {
        let values = (self.play)(rule, amount)?;
        ensure!(values.len() == (self.metrics)().len(), "a value for each metric of {}", self.name);
        Ok(values)
    }
}

pub fn of(experiment: Experiment) -> Vec<&'static Load> {
    let names: &[&str] = match experiment {
        Experiment::TreeLock => &["creates", "dbench-latches"],
        Experiment::Rename => &["dbench-renames"],
        Experiment::Fdatasync => &["overwrites-1", "overwrites-4"],
        Experiment::Checkpoint => &["S1", "S3", "S5"],
        Experiment::Writeback => &["small-files"],
        Experiment::Sync => &["storm-empty", "storm-full"],
    };
    names.iter().map(|name| named(name).expect("it is listed")).collect()
}

pub fn named(name: &str) -> Result<&'static Load> {
    LOADS.iter().find(|load| load.name == name).with_context(|| format!("no load {name}"))
}

const LOADS: &[Load] = &[
    Load {
        name: "creates",
        title: "empty files, 16 threads",
        rules: &["pingpong", "blocking", "rwlock", "optimistic"],
        metrics: || latch_metrics("files", "/s"),
        published: tree_lock::PUBLISHED_CREATE,
        play: creates,
    },
    Load {
        name: "dbench-latches",
        title: "dbench's load, 16 threads",
        rules: &["pingpong", "blocking", "rwlock", "optimistic"],
        metrics: || latch_metrics("throughput", "MB/s"),
        published: tree_lock::PUBLISHED_LOAD,
        play: dbench_latches,
    },
    Load {
        name: "dbench-renames",
        title: "dbench's load, 16 threads",
        rules: &["sync", "lazy"],
        metrics: rename::metrics,
        published: rename::PUBLISHED,
        play: dbench_renames,
    },
    Load {
        name: "overwrites-1",
        title: "1 thread",
        rules: &fdatasync::RULES,
        metrics: fdatasync::metrics,
        published: fdatasync::PUBLISHED,
        play: |rule, amount| overwrites(rule, amount, 1),
    },
    Load {
        name: "overwrites-4",
        title: "4 threads, own files",
        rules: &fdatasync::RULES,
        metrics: fdatasync::metrics,
        published: fdatasync::PUBLISHED,
        play: |rule, amount| overwrites(rule, amount, 4),
    },
    Load {
        name: "S1",
        title: "S1, fsync before close, 32 threads",
        rules: &checkpoint::OPTIONS,
        metrics: checkpoint_metrics,
        published: checkpoint::PLAN[1].published,
        play: |rule, amount| marked(rule, amount, 1),
    },
    Load {
        name: "S3",
        title: "S3, fsync afterwards, in reverse, 32 threads",
        rules: &checkpoint::OPTIONS,
        metrics: checkpoint_metrics,
        published: checkpoint::PLAN[3].published,
        play: |rule, amount| marked(rule, amount, 3),
    },
    Load {
        name: "S5",
        title: "S5, fsync afterwards, 32 threads",
        rules: &checkpoint::OPTIONS,
        metrics: checkpoint_metrics,
        published: checkpoint::PLAN[5].published,
        play: |rule, amount| marked(rule, amount, 5),
    },
    Load {
        name: "small-files",
        title: "files of 4 KiB, 8 threads",
        rules: &["noplug", "plug"],
        metrics: || {
            vec![
                Metric::new("files", "/s", Better::Higher),
                Metric::new("device writes per second", "/s", Better::Lower),
                Metric::new("device writes", "", Better::Lower),
            ]
        },
        published: writeback::PUBLISHED,
        play: small_files,
    },
    Load {
        name: "storm-empty",
        title: "a storm of syncs, 8 threads, A empty",
        rules: &["shared", "per_sb"],
        metrics: storm_metrics,
        published: &[],
        play: |rule, amount| storm(rule, amount, false),
    },
    Load {
        name: "storm-full",
        title: "a storm of syncs, 8 threads, A full",
        rules: &["shared", "per_sb"],
        metrics: storm_metrics,
        published: &[],
        play: |rule, amount| storm(rule, amount, true),
    },
    Load {
        name: "own-creates",
        title: "empty files, 64 threads, a directory each",
        rules: &["default"],
        metrics: own_metrics,
        published: &[],
        play: own_creates,
    },
    Load {
        name: "grown-creates",
        title: "empty files, 64 threads, a directory of 512 files each",
        rules: &["default"],
        metrics: own_metrics,
        published: &[],
        play: grown_creates,
    },
    Load {
        name: "own-fsyncs",
        title: "files of 4 KiB with fsync, 64 threads, one directory",
        rules: &["default"],
        metrics: own_metrics,
        published: &[],
        play: own_fsyncs,
    },
    Load {
        name: "own-lookups",
        title: "lookups of existing names, 64 threads",
        rules: &["default"],
        metrics: own_metrics,
        published: &[],
        play: own_lookups,
    },
];

/// The loads that show which lock of KedgeFS is the first that stops scaling.
pub const OWN: [&str; 4] = ["own-creates", "grown-creates", "own-fsyncs", "own-lookups"];

fn library(options: MountOptions, format: &FormatOptions) -> Result<Library> {
    let disk = TimedDisk::new(IMAGE, SPEED).context("start the device's thread")?;
    Library::on(Arc::new(disk), format, options)
}

fn usual(options: MountOptions) -> Result<Library> {
    library(options, &FormatOptions::default())
}

/// An interrupt that never comes: if a run must end early, its process is killed.
fn never() -> Interrupt {
    Interrupt::new(|_| {})
}

/// The latch metrics without processor time: a simulated thread has none of its own.
fn latch_metrics(first: &'static str, unit: &'static str) -> Vec<Metric> {
    let mut metrics = tree_lock::metrics(Metric::new(first, unit, Better::Higher));
    metrics.retain(|metric| !matches!(&*metric.name, "user time" | "system time"));
    metrics
}

fn creates(rule: &str, amount: Amount) -> Result<Vec<f64>> {
    let each = amount.pick(300, 1500);
    let tree_lock: TreeLock = parsed(rule)?;
    let library = usual(MountOptions { tree_lock, cache_size: CACHE, ..MountOptions::default() })?;
    // As in the announcement: ten files in each directory.
    let took = tree_lock::make_spread(&library, tree_lock::THREADS, each / 10, each)?.as_secs_f64();
    let mut values = vec![(tree_lock::THREADS as u64 * each) as f64 / took, took];
    values.extend(tree_lock::latch_values(&Counters::of(library.fs())?)?);
    library.close()?;
    Ok(values)
}

fn parsed<T: std::str::FromStr>(rule: &str) -> Result<T> {
    rule.parse().ok().with_context(|| format!("no rule {rule}"))
}

fn dbench_latches(rule: &str, amount: Amount) -> Result<Vec<f64>> {
    let time = Duration::from_millis(amount.pick(60, 250));
    let library =
        usual(MountOptions { tree_lock: parsed(rule)?, cache_size: CACHE, ..MountOptions::default() })?;
    let script = Arc::new(Script::installed()?);
    let sum = dbench::run(&library, &script, rename::CLIENTS, time, &never())?;
    let mut values = vec![sum.throughput, time.as_secs_f64()];
    values.extend(tree_lock::latch_values(&Counters::of(library.fs())?)?);
    library.close()?;
    Ok(values)
}

fn dbench_renames(rule: &str, amount: Amount) -> Result<Vec<f64>> {
    let time = Duration::from_millis(amount.pick(200, 1000));
    let library = usual(MountOptions { cache_size: CACHE, ..MountOptions::default() })?;
    let script = Arc::new(Script::installed()?);
    library.fs().set_options(&format!("new_name={rule}"))?;
    let before = Counters::of(library.fs())?;
    let sum = dbench::run(&library, &script, rename::CLIENTS, time, &never())?;
    let values = rename::values(&sum, &before, &Counters::of(library.fs())?)?;
    library.close()?;
    Ok(values)
}

fn overwrites(rule: &str, amount: Amount, threads: usize) -> Result<Vec<f64>> {
    let time = Duration::from_millis(amount.pick(200, 1000));
    let size = 4 << 20;
    let library = usual(MountOptions::default())?;
    let files = (0..threads).map(|i| overwrite::library_file(&library, &format!("f{i}"), size));
    let files: Vec<_> = files.collect::<Result<_>>()?;
    library.sync()?;
    library.fs().set_options(&format!("fdatasync={rule}"))?;
    let before = Counters::of(library.fs())?;
    let sum = overwrite::run(&files, size, threads, time, 1, &never())?;
    let values = fdatasync::values(&sum, Some((before, Counters::of(library.fs())?)))?;
    library.close()?;
    Ok(values)
}

fn checkpoint_metrics() -> Vec<Metric> {
    let mut metrics = checkpoint::metrics();
    metrics.retain(|metric| !matches!(&*metric.name, checkpoint::BUSY | checkpoint::CPU));
    metrics
}

fn marked(rule: &str, amount: Amount, mode: usize) -> Result<Vec<f64>> {
    // The log is small in proportion to the files, so that it wraps.
    let (log_mib, each) = amount.pick((1, 40), (2, 150));
    let mut options = MountOptions::default();
    rule.parse::<Switches>()?.apply(&mut options);
    let format = FormatOptions { log_size: Some(log_mib << 20), ..FormatOptions::default() };
    let library = library(options, &format)?;
    let before = Counters::of(library.fs())?;
    let sum = marks::run(&library, mode, each, &never())?;
    let after = Counters::of(library.fs())?;
    library.close()?;
    checkpoint::values_of(&sum, &before, &after)
}

fn small_files(rule: &str, amount: Amount) -> Result<Vec<f64>> {
    const THREADS: usize = 8;
    let each = amount.pick(200, 1500);
    let plug = match rule {
        "plug" => true,
        "noplug" => false,
        other => bail!("no rule {other}"),
    };
    // The cache is so small that writeback runs all the time.
    let options = MountOptions { plug, cache_size: 32 << 20, ..MountOptions::default() };
    let library = usual(options)?;
    let dirs: Vec<Ino> = (0..THREADS)
        .map(|i| Ok(library.fs().mkdir(Ino::ROOT, format!("{i}").as_bytes(), 0o755, Owner::default())?.ino))
        .collect::<Result<_>>()?;
    library.sync()?;
    let before = Counters::of(library.fs())?;
    let clock = SystemClock::default();
    let start = clock.monotonic();
    in_threads(THREADS, |thread| {
        let (library, dir) = (library.clone(), dirs[thread]);
        move || {
            (0..each).try_for_each(|i| {
                library.create_written(&dir, &format!("{thread:02x}~{i:08x}"), &BLOCK).map(drop)
            })
        }
    })?;
    library.sync()?;
    let took = clock.since(start).as_secs_f64();
    let writes = Counters::of(library.fs())?.since(&before, "device/writes")?;
    library.close()?;
    Ok(vec![(each * THREADS as u64) as f64 / took, writes / took, writes])
}

fn storm_metrics() -> Vec<Metric> {
    vec![
        Metric::new("syncs per second", "/s", Better::Higher),
        Metric::new("average sync", "ms", Better::Lower),
        Metric::new("99 % of syncs", "ms", Better::Lower),
        Metric::new("inodes cached by A", "", Better::Neither),
    ]
}

fn storm(rule: &str, amount: Amount, full: bool) -> Result<Vec<f64>> {
    const THREADS: usize = 8;
    let (inodes, each) = amount.pick((2_000, 5), (20_000, 20));
    let tracking: DirtyTracking = parsed(rule)?;
    let options = MountOptions { dirty_tracking: tracking, cache_size: CACHE, ..MountOptions::default() };
    let (a, b) = (usual(options.clone())?, usual(options)?);
    let cached = tracking::fill(&a, if full { inodes } else { 0 })?;
    let (took, answers) = in_threads(THREADS, |thread| {
        let (a, b) = (a.clone(), b.clone());
        move || {
            let (clock, mut times) = (SystemClock::default(), Times::default());
            for i in 0..each {
                tracking::write_small(b.fs(), Ino::ROOT, &format!("storm{thread}~{i}"))?;
                times.time(&clock, || a.sync().and_then(|()| b.sync()))?;
            }
            Ok(times)
        }
    })?;
    let mut times = Times::default();
    answers.into_iter().for_each(|own| times.merge(own));
    a.close()?;
    b.close()?;
    Ok(vec![times.count() / took.as_secs_f64(), times.average(), times.quantile(0.99), cached])
}

const OWN_THREADS: usize = 64;

fn own_metrics() -> Vec<Metric> {
    vec![
        Metric::new("operations", "/s", Better::Higher),
        Metric::new("99.9 % of operations", "ms", Better::Lower),
        Metric::new("log writes", "", Better::Neither),
        Metric::new("checkpoints", "", Better::Neither),
    ]
}

/// Runs the same operation in each thread. Returns the values of the metrics.
fn own(
    library: &Library,
    each: u64,
    operation: impl Fn(&Library, usize, u64) -> Result<()> + Clone + Send + 'static,
) -> Result<Vec<f64>> {
    let before = Counters::of(library.fs())?;
    let (took, answers) = in_threads(OWN_THREADS, |thread| {
        let (library, operation) = (library.clone(), operation.clone());
        move || {
            let (clock, mut times) = (SystemClock::default(), Times::default());
            for i in 0..each {
                times.time(&clock, || operation(&library, thread, i))?;
            }
            Ok(times)
        }
    })?;
    let mut times = Times::default();
    answers.into_iter().for_each(|own| times.merge(own));
    let after = Counters::of(library.fs())?;
    library.close()?;
    Ok(vec![
        times.count() / took.as_secs_f64(),
        times.quantile(0.999),
        after.since(&before, "log/writes")?,
        after.since(&before, "transactions/checkpoints")?,
    ])
}

fn named_dirs(library: &Library) -> Result<Arc<Vec<Ino>>> {
    let dir =
        |i: usize| Ok(library.fs().mkdir(Ino::ROOT, format!("{i}").as_bytes(), 0o755, Owner::default())?.ino);
    Ok(Arc::new((0..OWN_THREADS).map(dir).collect::<Result<_>>()?))
}

fn own_creates(_: &str, amount: Amount) -> Result<Vec<f64>> {
    let library = usual(MountOptions { cache_size: CACHE, ..MountOptions::default() })?;
    let dirs = named_dirs(&library)?;
    creates_in(&library, dirs, amount)
}

fn creates_in(library: &Library, dirs: Arc<Vec<Ino>>, amount: Amount) -> Result<Vec<f64>> {
    own(library, amount.pick(50, 300), move |library, thread, i| {
        let name = format!("t{thread}f{i:07}");
        library.fs().create(dirs[thread], name.as_bytes(), 0o644, Owner::default())?;
        Ok(())
    })
}

/// [`own_creates`] in directories whose names and inodes fill whole leaves.
fn grown_creates(_: &str, amount: Amount) -> Result<Vec<f64>> {
    const FILES: u64 = 512;
    let library = usual(MountOptions { cache_size: CACHE, ..MountOptions::default() })?;
    let dirs = named_dirs(&library)?;
    for dir in dirs.iter() {
        for i in 0..FILES {
            library.fs().create(*dir, format!("f{i:07}").as_bytes(), 0o644, Owner::default())?;
        }
    }
    creates_in(&library, dirs, amount)
}

fn own_fsyncs(_: &str, amount: Amount) -> Result<Vec<f64>> {
    let library = usual(MountOptions { cache_size: CACHE, ..MountOptions::default() })?;
    own(&library, amount.pick(10, 60), move |library, thread, i| {
        let ino = library.create_written(&Ino::ROOT, &format!("t{thread}f{i:07}"), &BLOCK)?;
        Ok(library.fs().fsync(ino, false)?)
    })
}

fn own_lookups(_: &str, amount: Amount) -> Result<Vec<f64>> {
    const FILES: u64 = 4000;
    let library = usual(MountOptions { cache_size: CACHE, ..MountOptions::default() })?;
    make_files(&library, Work::Empty, 1, FILES)?;
    let dir = library.fs().lookup(Ino::ROOT, b"work0")?.ino;
    own(&library, amount.pick(200, 1500), move |library, thread, i| {
        let at = (i * 2_654_435_761 + thread as u64 * 97) % FILES;
        library.fs().lookup(dir, format!("t0f{at:07}").as_bytes())?;
        Ok(())
    })
}
