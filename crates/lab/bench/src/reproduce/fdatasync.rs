//! XFS, "optimise away log forces on timestamp updates for fdatasync": random overwrites with
//! fdatasync, before and after the change, compared with ext4.
//!
//! `fdatasync=relog` is the old behaviour: a write logs the new time stamps, and fdatasync forces
//! the log for everything of the inode that is not durable. `fdatasync=fields` is the new one:
//! stamps are logged, but force nothing. With KedgeFS's own `fdatasync=seq` a write does not log
//! them either.

use super::overwrite::{self, HostFile, LibraryFile, Sum, Target};
use super::{EXT4, LIBRARY_SETUP, Made, NULL, Part, Run, XFS, contestant};
use crate::bars::{Bar, Want, change};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Published, Round};
use crate::counters::Counters;
use crate::library::Library;
use crate::mounts::{self, Mounted};
use crate::report::{Reading, Section};
use anyhow::{Result, anyhow};
use kedgefs::{FormatOptions, MountOptions};
use std::cell::Cell;
use std::time::Duration;

/// The contestants, in this order. The published change is from the first to the second.
pub(super) const RULES: [&str; 3] = ["relog", "fields", SEQ_RULE];
const SEQ_RULE: &str = "seq";
/// Index of [`SEQ_RULE`] in [`RULES`].
const SEQ: usize = 2;

/// Bytes of each file before it grows.
const FILE: u64 = 16 << 20;

/// Number of threads, and whether they share one file.
const LOADS: [(usize, bool); 5] = [(1, false), (4, false), (4, true), (8, false), (8, true)];
const MODEL_LOADS: [(usize, bool); 2] = [(1, false), (4, false)];

const RATE: &str = "IOPS";
/// The published runtime is for a number of overwrites that the announcement does not name.
const RUNTIME: &str = "runtime of 1,000 overwrites";
const LATENCY: &str = "average latency";
const FORCES: &str = "log forces";
const FORCES_PER_CALL: &str = "log forces per fdatasync";
const CALLS: &str = "fdatasync calls";
const FLUSHES: &str = "data flushes";
const SHARED: &str = "flushes shared";
/// Writes with FUA, which need no flush for their own bytes.
const DURABLE: &str = "durable data writes";

/// For XFS before and after the change, and for ext4: average latency and runtime of 100 runs.
/// Forces per fdatasync are the published forces per second divided by IOPS.
pub(super) const PUBLISHED: &[Published] = &[
    Published { metric: RATE, figures: &[1000.0, 1500.0, f64::NAN, 2000.0] },
    Published { metric: RUNTIME, figures: &[2.45, 1.49, f64::NAN, 1.63] },
    Published { metric: LATENCY, figures: &[2.39, 1.46, f64::NAN, 1.59] },
    Published { metric: FORCES, figures: &[400.0, 30.0] },
    Published { metric: FORCES_PER_CALL, figures: &[0.4, 0.02] },
];

pub(super) fn metrics() -> Vec<Metric> {
    vec![
        Metric::new(RATE, "/s", Better::Higher),
        Metric::new(RUNTIME, "s", Better::Lower),
        Metric::new(LATENCY, "ms", Better::Lower),
        Metric::new("99.9 % of latencies", "ms", Better::Lower),
        Metric::new(FORCES, "/s", Better::Lower),
        Metric::new(FORCES_PER_CALL, "", Better::Lower),
        Metric::new(CALLS, "", Better::Neither),
        Metric::new(FLUSHES, "", Better::Neither),
        Metric::new(SHARED, "", Better::Neither),
        Metric::new(DURABLE, "", Better::Neither),
        Metric::new("FUA writes", "", Better::Neither),
    ]
}

pub(super) fn values(sum: &Sum, counters: Option<(Counters, Counters)>) -> Result<Vec<f64>> {
    let mut values = vec![sum.rate, 1000.0 / sum.rate, sum.latency.average(), sum.latency.quantile(0.999)];
    values.extend(match counters {
        Some((before, after)) => [
            after.forces_since(&before)? / sum.seconds,
            after.since(&before, "log/forces/fdatasync")? / sum.calls,
            sum.calls,
            after.since(&before, "device/flushes")?,
            after.since(&before, "log/data_flushes_shared")?,
            after.since(&before, "data/durable_writes")?,
            after.since(&before, "device/fua_writes")?,
        ],
        // Other file systems have no counters for these.
        None => [f64::NAN, f64::NAN, sum.calls, f64::NAN, f64::NAN, f64::NAN, f64::NAN],
    });
    Ok(values)
}

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if run.does(Part::Mount) || run.does(Part::Process) {
        run.need(&["truncate", "mkdir", "sync"])?;
        if run.place.root {
            run.need(&["mkfs.ext4", "mkfs.xfs", "mount", "umount"])?;
        } else {
            run.note("Left out: ext4 and XFS (it takes root to mount them from a loop device).".into());
        }
    }
    if run.does(Part::Process) {
        with_others(run, Part::Process)?;
    }
    if run.does(Part::Mount) {
        with_others(run, Part::Mount)?;
    }
    if run.does(Part::Model) {
        model(run)?;
    }
    run.note(
        "Published: XFS and ext4 on a machine that is not described, iops and log forces rounded. Its ext4 stands beside ours.".into(),
    );
    Ok(())
}

/// The open files of one load.
struct Files<T>(Vec<T>);

impl<T: Target> Files<T> {
    /// Creates the files of a load. Those of the previous load no longer exist.
    fn make(threads: usize, shared: bool, make: impl Fn(&str) -> Result<T>) -> Result<Files<T>> {
        let count = if shared { 1 } else { threads };
        Ok(Files(
            (0..count)
                .map(|i| make(&format!("t{threads}{}f{i}", if shared { "s" } else { "" })))
                .collect::<Result<_>>()?,
        ))
    }
}

/// The description of a round's work.
fn told(threads: usize, shared: bool, time: u64) -> String {
    format!(
        "# {}: a block appended, then random 4 KiB + fdatasync for {time} ms",
        load_title(threads, shared)
    )
}

fn load_title(threads: usize, shared: bool) -> String {
    match (threads, shared) {
        (1, _) => "1 thread".into(),
        (n, true) => format!("{n} threads, one file"),
        (n, false) => format!("{n} threads, own files"),
    }
}

fn host_contestant<'c>(
    run: &'c Run<'_>,
    name: &'static str,
    files: &'c Made<Files<HostFile>>,
    load: (usize, bool),
) -> Contestant<'c> {
    let interrupt = &run.settings.interrupt;
    let round = Cell::new(0);
    contestant(name, files, move |files: &Files<HostFile>, ms| {
        round.set(round.get() + 1);
        let sum = overwrite::run(&files.0, FILE, load.0, Duration::from_millis(ms), round.get(), interrupt)?;
        Ok(Round { values: values(&sum, None)?, command: told(load.0, load.1, ms) })
    })
}

/// The rules share the files, and each round appends to them. So each round of each rule has its
/// own offset and random sequence.
fn sequence(round: u64, rule: &str) -> u64 {
    let place = RULES.iter().position(|r| *r == rule).expect("one of the rules");
    round * RULES.len() as u64 + place as u64
}

fn library_contestant<'c>(
    run: &'c Run<'_>,
    rule: &'static str,
    library: &'c Made<Library>,
    files: &'c Made<Files<LibraryFile>>,
    load: (usize, bool),
) -> Contestant<'c> {
    let interrupt = &run.settings.interrupt;
    let round = Cell::new(0);
    contestant(rule, files, move |files: &Files<LibraryFile>, ms| {
        let library = library.as_ref().map_err(|e| anyhow!("{e}"))?;
        round.set(round.get() + 1);
        library.sync()?;
        library.fs().set_options(&format!("fdatasync={rule}"))?;
        let before = Counters::of(library.fs())?;
        let at = sequence(round.get(), rule);
        let sum = overwrite::run(&files.0, FILE, load.0, Duration::from_millis(ms), at, interrupt)?;
        let after = Counters::of(library.fs())?;
        let command = format!("# fdatasync={rule}; {}", &told(load.0, load.1, ms)[2..]);
        Ok(Round { values: values(&sum, Some((before, after)))?, command })
    })
}

fn mount_contestant<'c>(
    run: &'c Run<'_>,
    rule: &'static str,
    mounted: &'c Made<Mounted<'_>>,
    files: &'c Made<Files<HostFile>>,
    load: (usize, bool),
) -> Contestant<'c> {
    let (interrupt, shell) = (&run.settings.interrupt, &run.place.shell);
    let round = Cell::new(0);
    contestant(rule, files, move |files: &Files<HostFile>, ms| {
        let name = mounted.as_ref().map_err(|e| anyhow!("{e}"))?.name();
        round.set(round.get() + 1);
        let remount = format!("kedge remount {name} -o fdatasync={rule}");
        shell.run(&format!("sync -f {name}"))?;
        shell.run(&remount)?;
        let before = Counters::of_mount(shell, name)?;
        let at = sequence(round.get(), rule);
        let sum = overwrite::run(&files.0, FILE, load.0, Duration::from_millis(ms), at, interrupt)?;
        let after = Counters::of_mount(shell, name)?;
        let command = format!("{remount}; {}", told(load.0, load.1, ms));
        Ok(Round { values: values(&sum, Some((before, after)))?, command })
    })
}

/// Measures KedgeFS in process or on the mount, beside ext4 and XFS.
fn with_others(run: &mut Run<'_>, part: Part) -> Result<()> {
    let (size, written) = (run.settings.size, run.settings.written);
    let in_process = part == Part::Process;
    let library = match in_process {
        true => run.library(&FormatOptions::default(), MountOptions::default())?,
        false => Err("not in this part".into()),
    };
    let kedge = if in_process { Err("not in this part".into()) } else { run.kedge()? };
    let mut setup = if in_process { vec![LIBRARY_SETUP.into()] } else { mounts::kedge_lines(size, written) };
    let mut others = run.ext4_and_xfs(&mut setup)?;
    if !in_process && let Some(null) = run.null()? {
        others.push((NULL, null));
        setup.extend(mounts::null_lines());
    }
    let loads = if run.settings.quick { &LOADS[..3] } else { &LOADS };
    let mut outcomes = Vec::new();
    for load in loads.iter().copied() {
        let host = |mounted: &Made<Mounted<'_>>| {
            let mounted = mounted.as_ref().map_err(|e| anyhow!("{e}"))?;
            Files::make(load.0, load.1, |name| overwrite::host_file(&mounted.path(), name, FILE))
        };
        let mut theirs = Vec::new();
        for (name, mounted) in &others {
            theirs.push((*name, run.made(host(mounted))?));
        }
        let (ours, library_files);
        let mut contestants: Vec<Contestant<'_>> = if in_process {
            let library_ref = library.as_ref().map_err(|e| anyhow!("{e}"));
            library_files = run
                .made(library_ref.and_then(|l| {
                    Files::make(load.0, load.1, |name| overwrite::library_file(l, name, FILE))
                }))?;
            RULES.map(|rule| library_contestant(run, rule, &library, &library_files, load)).into()
        } else {
            ours = run.made(host(&kedge))?;
            RULES.map(|rule| mount_contestant(run, rule, &kedge, &ours, load)).into()
        };
        contestants.extend(theirs.iter().map(|(name, files)| host_contestant(run, name, files, load)));
        outcomes.push(hold(run, load, contestants)?);
    }
    for (outcome, load) in outcomes.iter().zip(loads) {
        let (place, better) = if in_process { ("in process", 1.5) } else { ("on the mount", 1.3) };
        let beside = (load.0 <= 4 && (in_process || !load.1)).then_some(better);
        run.bars.extend(bars(outcome, place, load.0, beside));
        if !in_process && load.1 {
            run.bars.extend(null_bars(outcome, place, run.durable_write / 1e6));
        }
    }
    run.end_library(library);
    run.end(if in_process { None } else { Some(kedge) });
    run.end(others.into_iter().map(|(_, mounted)| mounted));
    let title = match in_process {
        true => "In this process: the library; ext4 and XFS through std::fs on loop devices",
        false => "On the mount; ext4 and XFS on loop devices",
    };
    run.sections.push(Section { title: title.into(), setup, outcomes, reading: Reading::Change });
    Ok(())
}

fn hold(run: &Run<'_>, load: (usize, bool), contestants: Vec<Contestant<'_>>) -> Result<Outcome> {
    let amount = Amount::Warmed { pilot: run.pick(100, 300), amount: run.pick(300, 600) };
    let title = load_title(load.0, load.1);
    let mut outcome =
        run.plan.hold(Contest { title, metrics: metrics(), amount, goal: None, contestants })?;
    outcome.published = PUBLISHED.to_vec();
    Ok(outcome)
}

fn model(run: &mut Run<'_>) -> Result<()> {
    let library = run.model(MountOptions::default())?;
    let mut outcomes = Vec::new();
    for load in MODEL_LOADS {
        let library_ref = library.as_ref().map_err(|e| anyhow!("{e}"));
        let files = run.made(
            library_ref
                .and_then(|l| Files::make(load.0, load.1, |name| overwrite::library_file(l, name, FILE))),
        )?;
        let contestants = RULES.map(|rule| library_contestant(run, rule, &library, &files, load)).into();
        outcomes.push(hold(run, load, contestants)?);
    }
    for (outcome, load) in outcomes.iter().zip(MODEL_LOADS) {
        run.bars.extend(bars(outcome, "a flush of 1 ms", load.0, None));
        let mut runtime = Bar::change(outcome, RUNTIME, Want::AtMost(-39.0));
        runtime.what = format!("a flush of 1 ms, {}", runtime.what);
        run.bars.push(runtime);
    }
    run.end_library(library);
    run.sections.push(Section {
        title: "The library on a device in memory whose flushes and FUA writes take 1 ms".into(),
        setup: vec![],
        outcomes,
        reading: Reading::Change,
    });
    Ok(())
}

/// `beside`: the required ratio to ext4's and XFS's IOPS; `None` if these are only reported.
fn bars(outcome: &Outcome, place: &str, threads: usize, beside: Option<f64>) -> Vec<Bar> {
    let over = |at: &dyn Fn(usize, &str) -> f64| {
        change(at(SEQ, CALLS), at(SEQ, FLUSHES) + at(SEQ, DURABLE) + at(SEQ, SHARED))
    };
    let flushes = match threads {
        1 => Bar::new(
            outcome,
            "flushes and durable writes with seq, off the number of fdatasync calls",
            "%",
            Want::AtMost(1.0),
            |at| over(at).abs(),
        ),
        // Another call's flush may have covered a call's bytes before the call began. That call
        // then shares a flush without joining one.
        _ => Bar::new(
            outcome,
            "flushes and durable writes with seq, above fdatasync calls less those shared",
            "%",
            Want::AtMost(1.0),
            over,
        ),
    };
    let mut bars = vec![
        Bar::change(outcome, FORCES, Want::AtMost(-92.0)),
        flushes,
        Bar::new(outcome, "IOPS of seq by fields", "", Want::AtLeast(1.0), |at| {
            at(SEQ, RATE) / at(SEQ - 1, RATE)
        }),
    ];
    if let Some(better) = beside {
        for (name, what) in [(EXT4, "IOPS of seq by ext4's"), (XFS, "IOPS of seq by XFS's")] {
            let side = place_of(outcome, name);
            bars.push(Bar::new(outcome, what, "", Want::AtLeast(better), |at| {
                at(SEQ, RATE) / at(side, RATE)
            }));
        }
    }
    bars.iter_mut().for_each(|bar| bar.what = format!("{place}, {}", bar.what));
    bars
}

/// The index of a contestant; an index without figures if the contestant was left out.
fn place_of(outcome: &Outcome, name: &str) -> usize {
    outcome.sides.iter().position(|side| side.name == name).unwrap_or(usize::MAX)
}

/// The kernel admits one thread at a time to a file for FSYNC and for a write. So the rate of a
/// file system that keeps no data is the limit that the kernel sets. That file system waits for no
/// device: the second bar adds the time of a durable write, in seconds, to each of its calls.
fn null_bars(outcome: &Outcome, place: &str, durable_write: f64) -> Vec<Bar> {
    let null = place_of(outcome, NULL);
    let mut bars = vec![
        Bar::new(outcome, "IOPS of seq by null's", "", Want::AtLeast(0.9), |at| {
            at(SEQ, RATE) / at(null, RATE)
        }),
        Bar::new(
            outcome,
            "IOPS of seq by null's with a durable write for each call",
            "",
            Want::AtLeast(0.9),
            |at| at(SEQ, RATE) * (1.0 / at(null, RATE) + durable_write),
        ),
    ];
    bars.iter_mut().for_each(|bar| bar.what = format!("{place}, {}", bar.what));
    bars
}

#[cfg(test)]
#[path = "fdatasync_tests.rs"]
mod tests;
