//! Btrfs, "kill btrfs_clear_path_blocking": 1.6 million empty files by 16 threads in as many
//! directories, and dbench with 16 clients, before and after.
//!
//! `pingpong` is the old way: the latches of a path spin, become blocking ones and go back.
//! `rwlock` is the way after: they never go back. `optimistic` is ours: inner nodes are read
//! without latches.

use super::cpu::Cpu;
use super::{LIBRARY_IMAGE, Part, Run, contestant, mix};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Published, Round};
use crate::counters::Counters;
use crate::library::{Host, Library, Work, files_per_second, make_files};
use crate::mounts::{self, Mounted};
use crate::report::{Reading, Section};
use anyhow::{Context, Result};
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::histogram_text;
use kedgefs::{FormatOptions, MountOptions, TreeLock};
use serde_json::Value;
use std::cell::RefCell;

const THREADS: usize = 16;
const FEW_THREADS: [usize; 4] = [1, 2, 4, 16];
/// Nothing is to be read again: latches are the subject.
const CACHE: u64 = 3 << 30;
/// ext4 makes one inode for each 16 KiB; a round must leave some.
const BYTES_PER_FILE: u64 = 32 << 10;

const RATE: &str = "files";
const WALL: &str = "wall time";
const THROUGHPUT: &str = "throughput";
const WRITE_LOCKS: &str = "write latches taken";
const READ_LOCKS: &str = "read latches taken";
const LONGEST: &str = "longest wait";

const PUBLISHED_CREATE: &[Published] = &[
    Published { metric: WALL, figures: &[147.307, 62.273] },
    Published { metric: "user time", figures: &[12.839, 15.802] },
    Published { metric: "system time", figures: &[822.831, 496.495] },
    Published { metric: WRITE_LOCKS, figures: &[2_467_493.0, 1_332_101.0] },
    Published { metric: READ_LOCKS, figures: &[6_746_238.0, 6_857_393.0] },
    // The ends of their last rows.
    Published { metric: LONGEST, figures: &[1023.0, 127.0] },
];
const PUBLISHED_MIX: &[Published] = &[Published { metric: THROUGHPUT, figures: &[158.363, 449.52] }];

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if !run.does(Part::Process) {
        run.note("Left out: all but the library in process, which is where latches are met.".into());
        return Ok(());
    }
    if run.place.root {
        run.need(&["mkfs.ext4", "mkfs.btrfs", "mount", "umount", "truncate", "mkdir"])?;
    }
    old_and_new(run)?;
    by_threads(run)?;
    others(run)?;
    run.note("Published: Btrfs, a machine that is not described. Compare the changes, not the figures. Its latches are counted by calls of btrfs_tree_lock and btrfs_tree_read_lock, all of which its histograms show; ours show those that had to wait.".into());
    Ok(())
}

fn metrics(first: Metric) -> Vec<Metric> {
    vec![
        first,
        Metric::new(WALL, "s", Better::Lower),
        Metric::new("user time", "s", Better::Lower),
        Metric::new("system time", "s", Better::Lower),
        Metric::new(WRITE_LOCKS, "", Better::Lower),
        Metric::new(READ_LOCKS, "", Better::Lower),
        Metric::new("latches waited for", "", Better::Lower),
        Metric::new("wake-ups", "", Better::Lower),
        Metric::new(LONGEST, "ms", Better::Lower),
        Metric::new("conversions between spinning and blocking", "", Better::Neither),
        Metric::new("descents started over", "", Better::Neither),
    ]
}

const KINDS: [&str; 4] = ["write_leaf", "write_inner", "read_leaf", "read_inner"];

/// Of a file system that was made for the round.
fn latch_values(counters: &Counters) -> Result<[f64; 7]> {
    let get = |kind: &str, what: &str| counters.get(&format!("tree/latches/{kind}/{what}"));
    let sum = |kinds: &[&str], what: &str| kinds.iter().map(|kind| get(kind, what)).sum::<Result<f64>>();
    let longest = KINDS.iter().map(|kind| get(kind, "wait_ns/max")).collect::<Result<Vec<f64>>>()?;
    Ok([
        sum(&KINDS[..2], "acquisitions")?,
        sum(&KINDS[2..], "acquisitions")?,
        sum(&KINDS, "wait_ns/count")?,
        sum(&KINDS, "wakeups")?,
        longest.into_iter().fold(0.0, f64::max) / 1e6,
        counters.get("tree/conversions")?,
        counters.get("tree/restarts")?,
    ])
}

/// Waits in funclatency's manner, of those kinds that were waited for.
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

/// A library of its own for the round.
fn fresh<R>(run: &Run<'_>, tree_lock: TreeLock, body: impl FnOnce(&Library) -> Result<R>) -> Result<R> {
    run.settings.interrupt.check()?;
    let image = run.place.shell.dir.join(LIBRARY_IMAGE);
    let device = FileDevice::create(&image, run.settings.size, OpenOptions::default())?;
    let options = MountOptions { tree_lock, cache_size: CACHE, ..MountOptions::default() };
    let library = Library::on(device, &FormatOptions::default(), options)?;
    let answer = body(&library);
    // Its contents are not needed, and closing would write all of them.
    drop(library);
    std::fs::remove_file(image)?;
    answer
}

const MODES: [(&str, TreeLock); 3] =
    [("pingpong", TreeLock::Pingpong), ("rwlock", TreeLock::Rwlock), ("optimistic", TreeLock::Optimistic)];

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

fn create(run: &Run<'_>, lock: TreeLock, threads: usize, each: u64) -> Result<(Round, String)> {
    fresh(run, lock, |library| {
        let cpu = Cpu::now()?;
        let took = make_files(library, Work::Empty, threads, each)?.as_secs_f64();
        let cpu = cpu.since()?;
        let stats = library.fs().stats_json();
        let mut values = vec![(threads as u64 * each) as f64 / took, took, cpu.user, cpu.system];
        values.extend(latch_values(&Counters::parse(&stats)?)?);
        let command =
            format!("# tree_lock={lock}; {threads} threads, a directory and {each} empty files each");
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
    let this = &*run;
    let creation = |lock: TreeLock, each: u64| {
        let (round, stats) = create(this, lock, THREADS, each)?;
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
    let mixing = |lock: TreeLock, seconds: u64| {
        fresh(this, lock, |library| {
            let cpu = Cpu::now()?;
            let sum = mix::run(library, THREADS, seconds, &this.settings.interrupt)?;
            let cpu = cpu.since()?;
            let mut values = vec![sum.throughput, seconds as f64, cpu.user, cpu.system];
            values.extend(latch_values(&Counters::of(library.fs())?)?);
            let command = format!("# tree_lock={lock}; dbench's mix in {THREADS} threads for {seconds} s");
            Ok(Round { values, command })
        })
    };
    let mut mixed = run.plan.hold(Contest {
        title: format!("dbench's mix, {THREADS} threads"),
        metrics: metrics(Metric::new(THROUGHPUT, "MB/s", Better::Higher)),
        amount: Amount::Warmed { pilot: 1, amount: seconds },
        goal: None,
        contestants: mode_contestants(&MODES, mixing),
    })?;
    mixed.published = PUBLISHED_MIX.to_vec();
    let mut setup = vec!["# A new image for each round. The waits of the last one:".to_owned()];
    for (_, stats) in shown.into_inner() {
        setup.extend(histograms(&stats)?);
    }
    run.bars.extend(bars(&created));
    run.sections.push(Section {
        title: "Latches before and after, the library in this process",
        setup,
        outcomes: vec![created, mixed],
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
            move |lock: TreeLock, each: u64| create(this, lock, threads, each).map(|(round, _)| round);
        let each = files / threads as u64;
        outcomes.push(run.plan.hold(Contest {
            title: format!("empty files, {threads} thread{}", if threads == 1 { "" } else { "s" }),
            metrics: metrics(Metric::new(RATE, "/s", Better::Higher)),
            amount: Amount::Warmed { pilot: each / 10, amount: each },
            goal: None,
            contestants: mode_contestants(&MODES[1..], creation),
        })?);
    }
    let bars = outcomes.iter().map(|outcome| {
        Bar::new(outcome, "files/s, optimistic by rwlock", "", Want::AtLeast(1.0), |at| {
            at(1, RATE) / at(0, RATE)
        })
    });
    run.bars.extend(bars);
    run.sections.push(Section {
        title: "By the number of threads",
        setup: vec![],
        outcomes,
        reading: Reading::Change,
    });
    Ok(())
}

/// The same files elsewhere, for scale.
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
        let (mut round, _) = create(this, TreeLock::default(), THREADS, each)?;
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
        title: "For scale: others, through std::fs",
        setup,
        outcomes: vec![outcome],
        reading: Reading::Change,
    });
    Ok(())
}

/// The mix has none: it is shown for the counts.
fn bars(created: &Outcome) -> Vec<Bar> {
    let times = |at: &dyn Fn(usize, &str) -> f64, metric: &str| at(1, metric) / at(0, metric);
    vec![
        Bar::new(created, "files/s, rwlock by pingpong", "", Want::AtLeast(2.37), |at| times(at, RATE)),
        Bar::change(created, WRITE_LOCKS, Want::AtMost(-46.0)),
        Bar::new(created, "longest wait, rwlock by pingpong", "", Want::AtMost(0.125), |at| {
            times(at, LONGEST)
        }),
        Bar::new(created, "files/s, optimistic", "/s", Want::AtLeast(500_000.0), |at| at(2, RATE)),
    ]
}

#[cfg(test)]
#[path = "tree_lock_tests.rs"]
mod tests;
