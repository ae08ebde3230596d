//! Btrfs, "kill btrfs_clear_path_blocking": 16 threads create 1.6 million empty files in as many
//! directories, and dbench runs with 16 clients, before and after the change.
//!
//! `pingpong` is the old behaviour: the latches of a path spin, become blocking and go back to
//! spinning. `blocking` is the new one: they never go back. The two differ in nothing else, so
//! their comparison measures the change. `rwlock` and `optimistic` are later steps: reader-writer
//! latches, and inner nodes that are read without latches.

use super::cpu::Cpu;
use super::dbench::{self, Load};
use super::{LIBRARY_IMAGE, Part, Run, contestant};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Published, Round};
use crate::counters::Counters;
use crate::library::{Host, Library, Target, Work, files_per_second, in_threads, make_files};
use crate::mounts::{self, Mounted};
use crate::parse;
use crate::report::{Reading, Section};
use anyhow::{Context, Result};
use kedge_base::HistogramSnapshot;
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::histogram_text;
use kedgefs::{FormatOptions, Ino, MountOptions, Owner, TreeLock};
use serde_json::Value;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

pub(super) const THREADS: usize = 16;
const FEW_THREADS: [usize; 4] = [1, 2, 4, 16];
/// Bytes of cache: enough that nothing is read again, since latches are measured.
const CACHE: u64 = 3 << 30;
/// Bytes of the image for each file. ext4 makes one inode for each 16 KiB, and a round must not use
/// up all inodes.
const BYTES_PER_FILE: u64 = 32 << 10;

const RATE: &str = "files";
const WALL: &str = "wall time";
const THROUGHPUT: &str = "throughput";
/// The number that the announcement's probe counts; see `LatchKind::calls`.
const WRITE_CALLS: &str = "write lock calls";
const READ_CALLS: &str = "read lock calls";
const LONGEST: &str = "longest wait";

pub(super) const PUBLISHED_CREATE: &[Published] = &[
    Published { metric: WALL, figures: &[147.307, 62.273] },
    Published { metric: "user time", figures: &[12.839, 15.802] },
    Published { metric: "system time", figures: &[822.831, 496.495] },
    Published { metric: WRITE_CALLS, figures: &[2_467_493.0, 1_332_101.0] },
    Published { metric: READ_CALLS, figures: &[6_746_238.0, 6_857_393.0] },
    // The upper bounds of the last rows of the published histograms.
    Published { metric: LONGEST, figures: &[1023.0, 127.0] },
];
pub(super) const PUBLISHED_LOAD: &[Published] =
    &[Published { metric: THROUGHPUT, figures: &[158.363, 449.52] }];

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if run.does(Part::Process) {
        if run.place.root {
            run.need(&["mkfs.ext4", "mkfs.btrfs", "mount", "umount", "truncate", "mkdir"])?;
        }
        old_and_new(run)?;
        by_threads(run)?;
        others(run)?;
    }
    if run.does(Part::Mount) {
        run.need(&["fs_mark", "truncate", "mkdir"])?;
        on_the_mount(run)?;
    }
    run.note(
        "Published: Btrfs, a machine that is not described. Compare the changes, not the figures.".into(),
    );
    run.note(format!("{WRITE_CALLS}, {READ_CALLS}: calls of the function that waits as long as it takes, without conversions and without tries that succeed, as a probe of btrfs_tree_lock and btrfs_tree_read_lock counts them. The announcement's histograms show all calls; ours show waits, spinning included."));
    run.note("The announcement says that the \"95% max latency\" of write locks fell from above 500 to about 100 ms. In its histograms the 95th percentile is in the first row, 0 to 1 ms, before and after; 500 and 100 ms are near the ends of their last rows, which stand here as the longest wait.".into());
    Ok(())
}

pub(super) fn metrics(first: Metric) -> Vec<Metric> {
    vec![
        first,
        Metric::new(WALL, "s", Better::Lower),
        Metric::new("user time", "s", Better::Lower),
        Metric::new("system time", "s", Better::Lower),
        Metric::new(WRITE_CALLS, "", Better::Lower),
        Metric::new(READ_CALLS, "", Better::Lower),
        Metric::new("write latches taken", "", Better::Lower),
        Metric::new("read latches taken", "", Better::Lower),
        Metric::new("latches waited for", "", Better::Lower),
        Metric::new("wake-ups", "", Better::Lower),
        Metric::new("95 % of waits to write", "ms", Better::Lower),
        Metric::new(LONGEST, "ms", Better::Lower),
        Metric::new("conversions between spinning and blocking", "", Better::Neither),
        Metric::new("descents started over", "", Better::Neither),
    ]
}

const KINDS: [&str; 4] = ["write_leaf", "write_inner", "read_leaf", "read_inner"];

/// The values of the latch metrics, from the counters of a file system that was made for the round.
pub(super) fn latch_values(counters: &Counters) -> Result<[f64; 10]> {
    let get = |kind: &str, what: &str| counters.get(&format!("tree/latches/{kind}/{what}"));
    let sum = |kinds: &[&str], what: &str| kinds.iter().map(|kind| get(kind, what)).sum::<Result<f64>>();
    let longest = KINDS.iter().map(|kind| get(kind, "wait_ns/max")).collect::<Result<Vec<f64>>>()?;
    Ok([
        sum(&KINDS[..2], "calls")?,
        sum(&KINDS[2..], "calls")?,
        sum(&KINDS[..2], "acquisitions")?,
        sum(&KINDS[2..], "acquisitions")?,
        sum(&KINDS, "wait_ns/count")?,
        sum(&KINDS, "wakeups")?,
        waits_to_write(counters)?.quantile(0.95) as f64 / 1e6,
        longest.into_iter().fold(0.0, f64::max) / 1e6,
        counters.get("tree/conversions")?,
        counters.get("tree/restarts")?,
    ])
}

/// The waits for write latches, of leaves and inner nodes together.
fn waits_to_write(counters: &Counters) -> Result<HistogramSnapshot> {
    let mut all = HistogramSnapshot::default();
    for kind in &KINDS[..2] {
        let path = format!("tree/latches/{kind}/wait_ns");
        all.max = all.max.max(counters.get(&format!("{path}/max"))? as u64);
        let buckets = counters.list(&format!("{path}/histogram"))?;
        all.buckets.resize(all.buckets.len().max(buckets.len()), 0);
        all.buckets.iter_mut().zip(buckets).for_each(|(sum, n)| *sum += n as u64);
    }
    all.count = all.buckets.iter().sum();
    Ok(all)
}

/// The waits in funclatency's format, for the kinds of latches that had waits.
fn histograms(stats: &str) -> Result<Vec<String>> {
    let stats: Value = serde_json::from_str(stats).context("read the counters")?;
    let tree = &stats["tree"];
    let mut lines = Vec::new();
    for kind in KINDS {
        let latch = &tree["latches"][kind];
        let buckets: Vec<u64> =
            latch["wait_us_histogram"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        if !buckets.is_empty() {
            let lock = tree["lock"].as_str().unwrap_or("?");
            lines.push(format!("# waits, tree_lock={lock}, {}", kind.replace('_', " latch of ")));
            lines.extend(histogram_text("usecs", &buckets).lines().map(str::to_owned));
        }
    }
    Ok(lines)
}

/// Runs `body` on a new library.
fn fresh<R>(run: &Run<'_>, tree_lock: TreeLock, body: impl FnOnce(&Library) -> Result<R>) -> Result<R> {
    run.settings.interrupt.check()?;
    let image = run.place.shell.dir.join(LIBRARY_IMAGE);
    let device = FileDevice::create(&image, run.settings.size, OpenOptions::default())?;
    let options = MountOptions { tree_lock, cache_size: CACHE, ..MountOptions::default() };
    let library = Library::on(device, &FormatOptions::default(), options)?;
    let answer = body(&library);
    // The library is not closed: closing would write contents that are not needed.
    drop(library);
    std::fs::remove_file(image)?;
    answer
}

const MODES: [(&str, TreeLock); 4] = [
    ("pingpong", TreeLock::Pingpong),
    ("blocking", TreeLock::Blocking),
    ("rwlock", TreeLock::Rwlock),
    ("optimistic", TreeLock::Optimistic),
];

fn mode_contestants<'c>(
    modes: &[(&'static str, TreeLock)],
    body: impl Fn(TreeLock, u64) -> Result<Round> + Clone + 'c,
) -> Vec<Contestant<'c>> {
    modes
        .iter()
        .map(|(name, lock)| {
            let (lock, body) = (*lock, body.clone());
            Contestant::new(name, move |amount| body(lock, amount))
        })
        .collect()
}

/// Each thread creates its files in `dirs` directories of its own, one after the other, as fs_mark
/// does with `-D`. The directories are made before the time counts.
pub(super) fn make_spread(library: &Library, threads: usize, dirs: u64, each: u64) -> Result<Duration> {
    let fs = library.fs();
    let mut made: Vec<Vec<Ino>> = Vec::new();
    for thread in 0..threads {
        let top = library.make_dir(&format!("work{thread}"))?;
        let dir = |i: u64| Ok(fs.mkdir(top, format!("{i:04x}").as_bytes(), 0o755, Owner::default())?.ino);
        made.push((0..dirs).map(dir).collect::<Result<_>>()?);
    }
    let (took, _) = in_threads(threads, |thread| {
        let (library, dirs) = (library.clone(), std::mem::take(&mut made[thread]));
        move || {
            (0..each).try_for_each(|i| {
                library.create(&dirs[i as usize % dirs.len()], &format!("t{thread}f{i:07}"))
            })
        }
    })?;
    Ok(took)
}

/// Creates the files. With `dirs` each thread has that number of directories, otherwise one.
fn create(
    run: &Run<'_>,
    lock: TreeLock,
    threads: usize,
    dirs: Option<u64>,
    each: u64,
) -> Result<(Round, String)> {
    fresh(run, lock, |library| {
        let cpu = Cpu::now()?;
        let took = match dirs {
            Some(dirs) => make_spread(library, threads, dirs, each)?,
            None => make_files(library, Work::Empty, threads, each)?,
        };
        let took = took.as_secs_f64();
        let cpu = cpu.since()?;
        let stats = library.fs().stats_json();
        let mut values = vec![(threads as u64 * each) as f64 / took, took, cpu.user, cpu.system];
        values.extend(latch_values(&Counters::parse(&stats)?)?);
        let where_to = dirs.map_or("a directory".into(), |n| format!("{n} directories"));
        let command =
            format!("# tree_lock={lock}; {threads} threads, {where_to} and {each} empty files each");
        Ok((Round { values, command }, stats))
    })
}

fn old_and_new(run: &mut Run<'_>) -> Result<()> {
    let each = run.work(10_000, 100_000);
    let seconds = run.pick(1, 4);
    let shown: RefCell<Vec<(TreeLock, String)>> = RefCell::default();
    let keep = |lock: TreeLock, stats: String| {
        let mut shown = shown.borrow_mut();
        shown.retain(|(l, _)| *l != lock);
        shown.push((lock, stats));
    };
    let (load, clients) = (Arc::new(Load::installed()?), run.clients());
    let this = &*run;
    let creation = |lock: TreeLock, each: u64| {
        // As in the announcement: ten files in each directory.
        let (round, stats) = create(this, lock, THREADS, Some((each / 10).max(1)), each)?;
        keep(lock, stats);
        Ok(round)
    };
    let mut created = run.plan.hold(Contest {
        title: format!("{} empty files, {THREADS} threads", each * THREADS as u64),
        metrics: metrics(Metric::new(RATE, "/s", Better::Higher)),
        amount: Amount::Warmed { pilot: each / 10, amount: each },
        goal: None,
        contestants: mode_contestants(&MODES, creation),
    })?;
    created.published = PUBLISHED_CREATE.to_vec();
    let loading = |lock: TreeLock, seconds: u64| {
        fresh(this, lock, |library| {
            let cpu = Cpu::now()?;
            let sum =
                dbench::run(library, &load, clients, Duration::from_secs(seconds), &this.settings.interrupt)?;
            let cpu = cpu.since()?;
            let mut values = vec![sum.throughput, seconds as f64, cpu.user, cpu.system];
            values.extend(latch_values(&Counters::of(library.fs())?)?);
            let command =
                format!("# tree_lock={lock}; dbench's load file in {clients} threads for {seconds} s");
            Ok(Round { values, command })
        })
    };
    let mut loaded = run.plan.hold(Contest {
        title: format!("dbench's load, {clients} threads"),
        metrics: metrics(Metric::new(THROUGHPUT, "MB/s", Better::Higher)),
        amount: Amount::Warmed { pilot: 1, amount: seconds },
        goal: None,
        contestants: mode_contestants(&MODES, loading),
    })?;
    loaded.published = PUBLISHED_LOAD.to_vec();
    let mut setup = vec!["# A new image for each round. The waits of the last one:".to_owned()];
    for (_, stats) in shown.into_inner() {
        setup.extend(histograms(&stats)?);
    }
    run.bars.extend(bars(&created));
    run.bars.push(Bar::new(&loaded, "throughput, blocking by pingpong", "", Want::AtLeast(2.83), |at| {
        at(1, THROUGHPUT) / at(0, THROUGHPUT)
    }));
    run.sections.push(Section {
        title: "Latches before and after, the library in this process".into(),
        setup,
        outcomes: vec![created, loaded],
        reading: Reading::Change,
    });
    Ok(())
}

fn by_threads(run: &mut Run<'_>) -> Result<()> {
    let files = run.work(60_000, 600_000);
    let mut outcomes = Vec::new();
    for threads in FEW_THREADS {
        let this = &*run;
        let creation =
            move |lock: TreeLock, each: u64| create(this, lock, threads, None, each).map(|(round, _)| round);
        let each = files / threads as u64;
        outcomes.push(run.plan.hold(Contest {
            title: format!("empty files, {threads} thread{}", if threads == 1 { "" } else { "s" }),
            metrics: metrics(Metric::new(RATE, "/s", Better::Higher)),
            amount: Amount::Warmed { pilot: each / 10, amount: each },
            goal: None,
            contestants: mode_contestants(&MODES[2..], creation),
        })?);
    }
    let bars = outcomes.iter().map(|outcome| {
        Bar::new(outcome, "files/s, optimistic by rwlock", "", Want::AtLeast(1.0), |at| {
            at(1, RATE) / at(0, RATE)
        })
    });
    run.bars.extend(bars);
    run.sections.push(Section {
        title: "By the number of threads".into(),
        setup: vec![],
        outcomes,
        reading: Reading::Change,
    });
    Ok(())
}

/// Creates the same files on other file systems, for comparison.
fn others(run: &mut Run<'_>) -> Result<()> {
    if !run.place.root {
        run.note("Left out: tmpfs, ext4 and Btrfs (it takes root to mount them).".into());
        return Ok(());
    }
    let (shell, size, written) = (&run.place.shell, run.settings.size, run.settings.written);
    let each = (size / BYTES_PER_FILE).min(run.work(48_000, 240_000)) / THREADS as u64;
    let ext4 = run.made(Mounted::ext4(shell, size, written))?;
    let btrfs = run.made(Mounted::btrfs(shell, size, written))?;
    let tmpfs = run.made(Mounted::tmpfs(shell))?;
    let body = |mounted: &Mounted<'_>, each: u64| {
        let rate = files_per_second(&Host(mounted.path()), Work::Empty, THREADS, each)?;
        let command = format!(
            "# std::fs in {}: {THREADS} threads, a directory and {each} empty files each",
            mounted.name()
        );
        Ok(Round { values: vec![rate], command })
    };
    let this = &*run;
    let mut contestants = vec![contestant("ext4", &ext4, body)];
    contestants.push(Contestant::new("KedgeFS", move |each| {
        let (mut round, _) = create(this, TreeLock::default(), THREADS, None, each)?;
        round.values.truncate(1);
        Ok(round)
    }));
    contestants.push(contestant("Btrfs", &btrfs, body));
    contestants.push(contestant("tmpfs", &tmpfs, body));
    let outcome = run.plan.hold(Contest {
        title: format!("{} empty files, {THREADS} threads", each * THREADS as u64),
        metrics: vec![Metric::new(RATE, "/s", Better::Higher)],
        amount: Amount::Warmed { pilot: (each / 10).max(1), amount: each },
        goal: None,
        contestants,
    })?;
    run.bars.push(Bar::new(&outcome, "KedgeFS's files/s by ext4's", "", Want::AtLeast(8.0), |at| {
        at(1, RATE) / at(0, RATE)
    }));
    run.end([ext4, btrfs, tmpfs]);
    let mut setup = mounts::ext4_lines(size, written);
    setup.extend(mounts::btrfs_lines(size, written));
    setup.extend(mounts::tmpfs_lines());
    run.sections.push(Section {
        title: "For scale: others, through std::fs".into(),
        setup,
        outcomes: vec![outcome],
        reading: Reading::Change,
    });
    Ok(())
}

/// Runs fs_mark as announced, on a new mount for each round, for comparison: each creation switches
/// between client and server several times.
fn on_the_mount(run: &mut Run<'_>) -> Result<()> {
    let each = run.work(200, 1_000);
    let this = &*run;
    let body = |lock: TreeLock, each: u64| {
        this.settings.interrupt.check()?;
        let shell = &this.place.shell;
        let lines = [
            mounts::make_file("kedge", this.settings.size, false),
            "kedge mkfs kedge.img".into(),
            "mkdir kedge".into(),
            format!("kedge mount -o tree_lock={lock},cache_size=3G kedge.img kedge"),
        ];
        let mounted = Mounted::kedge_by(shell, &lines)?;
        let dirs: String = (0..THREADS).map(|i| format!(" -d kedge/{i}")).collect();
        let fs_mark = format!("fs_mark -D {} -S0 -n {each} -s 0 -L 1 -k{dirs}", (each / 10).max(1));
        let rate = parse::fs_mark(&shell.run(&fs_mark)?)?;
        let counters = Counters::of_mount(shell, mounted.name())?;
        mounted.end()?;
        let mut values = vec![rate];
        values.extend(latch_values(&counters)?);
        Ok(Round { values, command: format!("{}; {fs_mark}", lines[3]) })
    };
    let mut metrics = metrics(Metric::new(RATE, "/s", Better::Higher));
    metrics.drain(1..4);
    let outcome = run.plan.hold(Contest {
        title: format!("fs_mark, {} empty files, {THREADS} directories", each * THREADS as u64),
        metrics,
        amount: Amount::Warmed { pilot: (each / 5).max(10), amount: each },
        goal: None,
        contestants: mode_contestants(&MODES, body),
    })?;
    run.sections.push(Section {
        title: "fs_mark on the mount, for scale".into(),
        setup: vec![],
        outcomes: vec![outcome],
        reading: Reading::Change,
    });
    Ok(())
}

/// The bars of the published change; the last one is that of the default latch.
pub(super) fn bars(created: &Outcome) -> Vec<Bar> {
    let times = |at: &dyn Fn(usize, &str) -> f64, metric: &str| at(1, metric) / at(0, metric);
    vec![
        Bar::new(created, "files/s, blocking by pingpong", "", Want::AtLeast(2.37), |at| times(at, RATE)),
        Bar::change(created, WRITE_CALLS, Want::AtMost(-46.0)),
        Bar::new(created, "longest wait, blocking by pingpong", "", Want::AtMost(0.125), |at| {
            times(at, LONGEST)
        }),
        Bar::new(created, "files/s, optimistic", "/s", Want::AtLeast(500_000.0), |at| at(3, RATE)),
    ]
}

#[cfg(test)]
#[path = "tree_lock_tests.rs"]
mod tests;
