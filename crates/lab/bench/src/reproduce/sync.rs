//! Linux, "per-sb tracking of dirty inodes": a storm of syncs on one file system, while the cache
//! of another one is full of clean inodes.
//!
//! With `dirty_tracking=shared` a sync of a file system walks all its cached inodes, under a lock
//! that all file systems of the process share. With `per_sb` it visits only the dirty ones. File
//! system A is filled with empty files and synced. Then each of eight threads repeatedly writes a
//! small file on file system B and syncs all file systems of the process, A and B, as sync(2) does.
//! Each round uses new file systems.

use super::cpu::Cpu;
use super::tracking::{Made, SIDES, fill, write_small};
use super::{Part, Run};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Round};
use crate::counters::Counters;
use crate::library::{Library, in_threads};
use crate::report::{Reading, Section};
use crate::sample::Sample;
use crate::times::Times;
use anyhow::Result;
use kedge_base::{Clock, SystemClock};
use kedgefs::{DirtyTracking, FileSystem, Ino};
use std::sync::{Arc, Barrier};

const THREADS: usize = 8;
/// Number of syncs of the clean file system that a round measures.
const CLEAN: usize = 20;
/// A storm in which each sync walks a million inodes does only this fraction of its syncs, and its
/// time is multiplied.
const SHORTER: u64 = 10;
/// Number of counted groups of parallel syncs.
const GROUPS: usize = 100;

const STORM: &str = "storm";
const LATENCY: &str = "average sync";
const CLEAN_SYNC: &str = "sync of clean A";
const CACHED: &str = "inodes cached by A";
const GROUP: &str = "syncs";

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if !run.does(Part::Process) {
        run.note("Left out: all but the library in process. A mount is a process of its own, so that nothing is shared.".into());
        return Ok(());
    }
    super::stress::run(run)?;
    storms(run)?;
    parallel(run)?;
    run.note("Published: xfs/297 on XFS with per-superblock dirty tracking, whose sync still walked all cached inodes; it was ended after 15 minutes. Compare the change, not the figures.".into());
    Ok(())
}

/// Each thread writes a small file on B and syncs both file systems, `each` times. Returns seconds,
/// and the latencies of the syncs.
fn storm(run: &Run<'_>, a: &Library, b: &Library, each: u64) -> Result<(f64, Times)> {
    let (a, b) = (a.fs(), b.fs());
    let (took, answers) = in_threads(THREADS, |thread| {
        let (a, b, interrupt) = (a.clone(), b.clone(), run.settings.interrupt.clone());
        move || {
            let (clock, mut times) = (SystemClock::default(), Times::default());
            for i in 0..each {
                interrupt.check()?;
                write_small(&b, Ino::ROOT, &format!("storm{thread}~{i}"))?;
                times.time(&clock, || a.sync().and_then(|()| b.sync()))?;
            }
            Ok(times)
        }
    })?;
    let mut times = Times::default();
    answers.into_iter().for_each(|own| times.merge(own));
    Ok((took.as_secs_f64(), times))
}

/// The median time of a sync without dirty data, in milliseconds.
fn clean_sync(a: &Library) -> Result<f64> {
    let clock = SystemClock::default();
    let mut sample = Sample::default();
    for _ in 0..CLEAN {
        let mut time = Times::default();
        time.time(&clock, || a.sync())?;
        sample.push(time.max());
    }
    Ok(sample.median())
}

fn storms(run: &mut Run<'_>) -> Result<()> {
    let inodes = run.work(100_000, 1_000_000);
    let each = run.pick(20, 200);
    let this = &*run;
    let contestants = SIDES.map(|(name, tracking, full)| {
        Contestant::new(name, move |each| {
            let a = Made::new(this, "a.img", tracking)?;
            let b = Made::new(this, "b.img", tracking)?;
            let cached = fill(&a.library, if full { inodes } else { 0 })?;
            let clean = clean_sync(&a.library)?;
            let cpu = Cpu::now()?;
            let part = if full && tracking == DirtyTracking::Shared { SHORTER } else { 1 };
            let own = (each / part).max(1);
            let (took, times) = storm(this, &a.library, &b.library, own)?;
            let longer = each as f64 / own as f64;
            let cpu = cpu.since()?.total() * longer;
            a.end()?;
            b.end()?;
            let values = vec![times.count() / took, took * longer, times.average(), times.quantile(0.99), cpu, clean, cached];
            let command = format!(
                "# dirty_tracking={tracking}; A with {cached} inodes; on B {THREADS} threads, {own} times a file of 4 KiB and a sync of A and B each"
            );
            Ok(Round { values, command })
        })
    });
    let outcome = run.plan.hold(Contest {
        title: format!("{} syncs on B by {THREADS} threads", each * THREADS as u64),
        metrics: vec![
            Metric::new("syncs per second", "/s", Better::Higher),
            Metric::new(STORM, "s", Better::Lower),
            Metric::new(LATENCY, "ms", Better::Lower),
            Metric::new("99 % of syncs", "ms", Better::Lower),
            Metric::new("processor time", "s", Better::Lower),
            Metric::new(CLEAN_SYNC, "ms", Better::Lower),
            Metric::new(CACHED, "", Better::Neither),
        ],
        amount: Amount::Warmed { pilot: 5, amount: each },
        goal: None,
        contestants: contestants.into(),
    })?;
    run.bars.extend(storm_bars(&outcome));
    run.note(format!(
        "shared, A full: the storm is {SHORTER} times shorter; its time and processor time are multiplied."
    ));
    run.sections.push(Section {
        title: "A storm of syncs on B beside A, two libraries in this process".into(),
        setup: vec![],
        outcomes: vec![outcome],
        reading: Reading::Change,
    });
    Ok(())
}

fn storm_bars(outcome: &Outcome) -> Vec<Bar> {
    vec![
        Bar::new(outcome, "storm with A full by A empty, per_sb", "", Want::AtMost(1.1), |at| {
            at(3, STORM) / at(2, STORM)
        }),
        Bar::new(outcome, "sync of clean full A, per_sb by shared", "%", Want::AtMost(1.0), |at| {
            at(3, CLEAN_SYNC) / at(1, CLEAN_SYNC) * 100.0
        }),
    ]
}

/// The median time of a group of `threads` parallel syncs in milliseconds, from their common start
/// until all are done. The amount of dirty data does not depend on the number of threads.
fn group(run: &Run<'_>, fs: &FileSystem, threads: usize, groups: usize, label: &str) -> Result<f64> {
    let (start, end) = (Arc::new(Barrier::new(threads)), Arc::new(Barrier::new(threads)));
    let (_, answers) = in_threads(threads, |thread| {
        let (fs, start, end) = (fs.clone(), start.clone(), end.clone());
        let (interrupt, label) = (run.settings.interrupt.clone(), label.to_owned());
        move || {
            let (clock, mut took) = (SystemClock::default(), Sample::default());
            // After an error the thread continues, so that no other thread waits at a barrier
            // forever. The error is returned at the end.
            let mut result = Ok(());
            for i in 0..groups {
                if thread == 0 && interrupt.check().is_ok() {
                    for file in 0..THREADS {
                        let written = write_small(&fs, Ino::ROOT, &format!("{label}{i}~{file}"));
                        result = result.and(written);
                    }
                }
                start.wait();
                let started = clock.monotonic();
                let synced = fs.sync();
                end.wait();
                took.push(clock.since(started).as_nanos() as f64 / 1e6);
                result = result.and(synced.map_err(anyhow::Error::from));
            }
            result.and(interrupt.check()).map(|()| took.median())
        }
    })?;
    Ok(answers.first().copied().unwrap_or(f64::NAN))
}

fn parallel(run: &mut Run<'_>) -> Result<()> {
    let groups = run.pick(GROUPS / 5, GROUPS);
    let made = Made::new(run, "b.img", DirtyTracking::PerSb)?;
    let this = &*run;
    let fs = made.library.fs();
    let contestants = [("one sync", 1), ("8 parallel syncs", THREADS)].map(|(name, threads)| {
        let round = std::cell::Cell::new(0);
        Contestant::new(name, move |groups| {
            round.set(round.get() + 1);
            let before = Counters::of(fs)?;
            let label = format!("t{threads}r{}g", round.get());
            let took = group(this, fs, threads, groups as usize, &label)?;
            let after = Counters::of(fs)?;
            let per = |path: &str| Ok::<_, anyhow::Error>(after.since(&before, path)? / groups as f64);
            let values = vec![took, per("log/writes")?, per("device/flushes")?, per("device/fua_writes")?];
            let command = format!("# {groups} times: {THREADS} files of 4 KiB, then {threads} syncs at once");
            Ok(Round { values, command })
        })
    });
    let outcome = run.plan.hold(Contest {
        title: format!("{THREADS} small files, then sync"),
        metrics: vec![
            Metric::new(GROUP, "ms until all are done", Better::Lower),
            Metric::new("log writes", "each time", Better::Lower),
            Metric::new("device flushes", "each time", Better::Lower),
            Metric::new("FUA writes", "each time", Better::Lower),
        ],
        amount: Amount::Warmed { pilot: 5, amount: groups as u64 },
        goal: None,
        contestants: contestants.into(),
    })?;
    run.bars.push(Bar::new(&outcome, "8 parallel syncs by one", "", Want::AtMost(1.5), |at| {
        at(1, GROUP) / at(0, GROUP)
    }));
    made.end()?;
    run.sections.push(Section {
        title: "One sync and eight at once".into(),
        setup: vec![],
        outcomes: vec![outcome],
        reading: Reading::Change,
    });
    Ok(())
}

#[cfg(test)]
#[path = "sync_tests.rs"]
mod tests;
