//! Btrfs, "do not commit logs and transactions during link and rename operations": dbench with 16
//! clients, before and after the change.
//!
//! `new_name=sync` is the old rule: a rename or link of an inode that was fsynced forces the log.
//! `new_name=lazy` leaves that to a later fsync. The cost of a force is mostly the device's flush,
//! which differs between disks. So one part uses a model of a device whose flush takes a
//! millisecond.

use super::dbench::{self, Load, OPERATIONS};
use super::{LIBRARY_SETUP, NULL, Part, Run, contestant};
use crate::bars::{Bar, Want, change};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Published, Round};
use crate::counters::{Counters, FORCE_CAUSES};
use crate::library::Library;
use crate::mounts::{self, Mounted};
use crate::parse;
use crate::report::{Reading, Section};
use crate::shell::Shell;
use anyhow::Result;
use kedgefs::{FormatOptions, MountOptions};
use std::sync::Arc;
use std::time::Duration;

pub(super) const CLIENTS: usize = 16;
/// Bytes of cache, enough for all files of the clients, 384 MB. They fitted into memory in the
/// published run, too, and on the mount the kernel caches them.
const CACHE: u64 = 1 << 30;
const RULES: [&str; 2] = ["sync", "lazy"];

const THROUGHPUT: &str = "throughput";
const MAX_LATENCY: &str = "worst latency";
const RENAME_AVERAGE: &str = "Rename average";
const FORCES_RENAME: &str = "log forces by rename or link";

macro_rules! published {
    ($($metric:literal: $($figure:literal),+;)*) => { &[$(Published { metric: $metric, figures: &[$($figure),+] }),*] };
}

pub(super) const PUBLISHED: &[Published] = published! {
    "throughput": 1128.35, 1201.98;
    "worst latency": 1102.255, 778.036;
    "NTCreateX average": 0.011, 0.012;
    "NTCreateX maximum": 155.088, 448.281;
    "Close average": 0.001, 0.001;
    "Close maximum": 0.243, 0.925;
    "Rename average": 2.158, 0.123;
    "Rename maximum": 1101.947, 267.183;
    "Unlink average": 0.067, 0.080;
    "Unlink maximum": 121.638, 63.433;
    "Deltree average": 2.425, 2.830;
    "Deltree maximum": 7.816, 11.144;
    "Mkdir average": 0.002, 0.003;
    "Mkdir maximum": 0.003, 0.010;
    "Qpathinfo average": 0.006, 0.006;
    "Qpathinfo maximum": 21.370, 10.288;
    "Qfileinfo average": 0.001, 0.001;
    "Qfileinfo maximum": 0.146, 0.169;
    "Qfsinfo average": 0.001, 0.002;
    "Qfsinfo maximum": 11.228, 14.039;
    "Sfileinfo average": 0.003, 0.004;
    "Sfileinfo maximum": 21.263, 2.438;
    "Find average": 0.025, 0.026;
    "Find maximum": 9.617, 10.200;
    "WriteX average": 0.011, 0.011;
    "WriteX maximum": 211.390, 200.985;
    "ReadX average": 0.003, 0.003;
    "ReadX maximum": 9.442, 10.036;
    "LockX average": 0.002, 0.002;
    "LockX maximum": 0.119, 0.076;
    "UnlockX average": 0.001, 0.001;
    "UnlockX maximum": 0.138, 0.109;
    "Flush average": 4.252, 5.015;
    "Flush maximum": 1102.249, 778.033;
};

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if run.does(Part::Mount) {
        run.need(&["dbench", "truncate", "mkdir", "sync"])?;
    }
    let parts: Vec<Part> = [Part::Process, Part::Model].into_iter().filter(|part| run.does(*part)).collect();
    let load = if parts.is_empty() { None } else { Some(Arc::new(Load::installed()?)) };
    if run.does(Part::Mount) {
        on_the_mount(run)?;
    }
    for (part, load) in parts.into_iter().zip(load.iter().cycle()) {
        in_process(run, part, load)?;
    }
    run.note("Published: Btrfs on NVMe, 12 cores, dbench -t 300 with 16 clients. Compare the changes, not the figures.".into());
    Ok(())
}

fn on_the_mount(run: &mut Run<'_>) -> Result<()> {
    let made = run.kedge()?;
    let null = run.null()?;
    let shell = &run.place.shell;
    let body = |rule: &'static str| {
        move |mounted: &Mounted<'_>, seconds: u64| {
            mounted.fresh()?;
            shell.run(&format!("kedge remount {} -o new_name={rule}", mounted.name()))?;
            let before = Counters::of_mount(shell, mounted.name())?;
            let (mut values, command) = dbench_on(shell, mounted, seconds)?;
            let after = Counters::of_mount(shell, mounted.name())?;
            values.extend(log_values(&before, &after)?);
            Ok(Round { values, command: format!("kedge remount kedge -o new_name={rule}; {command}") })
        }
    };
    let mut contestants: Vec<Contestant<'_>> = RULES.map(|rule| contestant(rule, &made, body(rule))).into();
    if let Some(null) = &null {
        contestants.push(contestant(NULL, null, |mounted: &Mounted<'_>, seconds| {
            mounted.fresh()?;
            let (mut values, command) = dbench_on(shell, mounted, seconds)?;
            // The null file system has no log, and so no values for these metrics.
            values.resize(metrics().len(), f64::NAN);
            Ok(Round { values, command })
        }));
    }
    let mut outcome = run.plan.hold(Contest {
        title: format!("dbench, {CLIENTS} clients"),
        metrics: metrics(),
        amount: Amount::Warmed { pilot: run.pick(2, 4), amount: run.pick(3, 10) },
        goal: None,
        contestants,
    })?;
    outcome.published = PUBLISHED.to_vec();
    run.bars.extend(bars(&outcome, "mount"));
    run.bars.push(above_null(&outcome));
    let mut setup = mounts::kedge_lines(run.settings.size, run.settings.written);
    setup.extend(null.iter().flat_map(|_| mounts::null_lines()));
    run.end([made].into_iter().chain(null));
    run.sections.push(Section {
        title: "dbench on the mount".into(),
        setup,
        outcomes: vec![outcome],
        reading: Reading::Change,
    });
    Ok(())
}

/// The figures that dbench prints, and the command.
fn dbench_on(shell: &Shell, mounted: &Mounted<'_>, seconds: u64) -> Result<(Vec<f64>, String)> {
    let command = format!("dbench -t {seconds} -D {}/work {CLIENTS}", mounted.name());
    let output = shell.run(&command)?;
    let sum = parse::dbench(&output)?;
    let rows = parse::dbench_operations(&output)?;
    let mut values = vec![sum.throughput, sum.max_latency];
    for name in OPERATIONS {
        let row = rows.iter().find(|r| r.0 == name).map(|r| r.1);
        values.extend(row.map_or([f64::NAN; 3], |r| [r.count, r.average, r.max]));
    }
    Ok((values, command))
}

/// The published change without the cost of the kernel, which is also the cost of the null file
/// system.
fn above_null(outcome: &Outcome) -> Bar {
    let what = "Rename average, less the null file system's";
    let mut bar = Bar::new(outcome, what, "%", Want::AtMost(-94.0), |at| {
        let own = |side| at(side, RENAME_AVERAGE) - at(RULES.len(), RENAME_AVERAGE);
        // If null is as slow as the old rule, the remaining time shows nothing.
        if own(0) > 0.0 { change(own(0), own(1)) } else { f64::NAN }
    });
    bar.what = format!("mount, {}", bar.what);
    bar
}

/// Measures in process: on an image file, or on the modelled device.
fn in_process(run: &mut Run<'_>, part: Part, load: &Arc<Load>) -> Result<()> {
    let options = MountOptions { cache_size: CACHE, ..MountOptions::default() };
    let (made, place, title, setup) = match part {
        Part::Model => (
            run.model(options)?,
            "process, flush of 1 ms",
            "dbench's load on a device in memory whose flushes and FUA writes take 1 ms",
            vec!["# cache_size=1G".into()],
        ),
        _ => (
            run.library(&FormatOptions::default(), options)?,
            "process",
            "dbench's load in this process, on the library",
            vec![LIBRARY_SETUP.into(), "# cache_size=1G".into()],
        ),
    };
    let clients = if part == Part::Model { CLIENTS } else { run.clients() };
    let interrupt = &run.settings.interrupt;
    let body = |rule: &'static str| {
        move |library: &Library, seconds: u64| {
            let fs = library.fs();
            library.sync()?;
            fs.set_options(&format!("new_name={rule}"))?;
            let before = Counters::of(fs)?;
            let sum = dbench::run(library, load, clients, Duration::from_secs(seconds), interrupt)?;
            let values = values(&sum, &before, &Counters::of(fs)?)?;
            let command =
                format!("# new_name={rule}; dbench's load file in {clients} threads for {seconds} s");
            Ok(Round { values, command })
        }
    };
    let mut outcome = run.plan.hold(Contest {
        title: format!("dbench's load, {clients} threads"),
        metrics: metrics(),
        amount: Amount::Warmed { pilot: run.pick(1, 4), amount: run.pick(2, 16) },
        goal: None,
        contestants: RULES.map(|rule| contestant(rule, &made, body(rule))).into(),
    })?;
    outcome.published = PUBLISHED.to_vec();
    run.bars.extend(bars(&outcome, place));
    run.end_library(made);
    run.sections.push(Section {
        title: title.into(),
        setup,
        outcomes: vec![outcome],
        reading: Reading::Change,
    });
    Ok(())
}

pub(super) fn metrics() -> Vec<Metric> {
    let mut metrics =
        vec![Metric::new(THROUGHPUT, "MB/s", Better::Higher), Metric::new(MAX_LATENCY, "ms", Better::Lower)];
    for name in OPERATIONS {
        metrics.push(Metric::new(format!("{name} count"), "", Better::Neither));
        metrics.push(Metric::new(format!("{name} average"), "ms", Better::Lower));
        metrics.push(Metric::new(format!("{name} maximum"), "ms", Better::Lower));
    }
    for cause in FORCE_CAUSES {
        metrics.push(match cause {
            "rename" => Metric::new(FORCES_RENAME, "", Better::Lower),
            cause => Metric::new(format!("log forces by {}", cause.replace('_', " ")), "", Better::Neither),
        });
    }
    metrics.push(Metric::new("rename without the way to it, average", "ms", Better::Lower));
    metrics.push(Metric::new("fsync without the way to it, average", "ms", Better::Lower));
    metrics.push(Metric::new("log writes", "", Better::Neither));
    metrics.push(Metric::new("device flushes", "", Better::Neither));
    metrics
}

/// The values that the load gives in this process.
pub(super) fn values(sum: &dbench::Sum, before: &Counters, after: &Counters) -> Result<Vec<f64>> {
    let mut values = vec![sum.throughput, sum.max_latency];
    for times in &sum.operations {
        values.extend([times.count(), times.average(), times.max()]);
    }
    values.extend(log_values(before, after)?);
    Ok(values)
}

fn log_values(before: &Counters, after: &Counters) -> Result<Vec<f64>> {
    let forces = FORCE_CAUSES.iter().map(|cause| after.since(before, &format!("log/forces/{cause}")));
    let mut values = forces.collect::<Result<Vec<f64>>>()?;
    values.extend(["rename", "fsync"].map(|operation| after.average_since(before, operation)));
    values.push(after.since(before, "log/writes")?);
    values.push(after.since(before, "device/flushes")?);
    Ok(values)
}

pub(super) fn bars(outcome: &Outcome, place: &str) -> Vec<Bar> {
    let mut bars = vec![
        Bar::new(outcome, "log forces by rename or link with lazy", "", Want::AtMost(0.0), |at| {
            at(1, FORCES_RENAME)
        }),
        Bar::change(outcome, RENAME_AVERAGE, Want::AtMost(-94.0)),
        Bar::change(outcome, "Rename maximum", Want::AtMost(-75.8)),
        Bar::change(outcome, THROUGHPUT, Want::AtLeast(6.5)),
        Bar::change(outcome, MAX_LATENCY, Want::AtMost(-29.4)),
        Bar::change(outcome, "Flush average", Want::AtMost(0.0)),
        Bar::change(outcome, "NTCreateX maximum", Want::AtMost(0.0)),
    ];
    bars.iter_mut().for_each(|bar| bar.what = format!("{place}, {}", bar.what));
    bars
}

#[cfg(test)]
#[path = "rename_tests.rs"]
mod tests;
