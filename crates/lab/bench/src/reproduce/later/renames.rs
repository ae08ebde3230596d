//! Btrfs 5.18 logs less for a rename: many renames in a directory that was fsynced before, with a
//! cold cache.
//!
//! The bar is that the bytes logged for a rename do not depend on the directory's size.

use super::super::{LIBRARY_IMAGE, LIBRARY_SETUP, Part, Run};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Round};
use crate::counters::Counters;
use crate::library::Library;
use crate::mounts::{self, Mounted};
use crate::report::{Reading, Section};
use anyhow::{Context, Result, ensure};
use kedge_base::{Clock, SystemClock};
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{FormatOptions, Ino, MountOptions, Owner, RenameMode};
use std::fs::File;

const RULES: [&str; 2] = ["sync", "lazy"];
/// Number of renames in a full run.
const RENAMES: u64 = 1_700;
/// Numbers of files in the directory.
const SIZES: [u64; 2] = [2_000, 20_000];
/// The metrics of each size.
const MEASURES: [(&str, &str, Better); 6] = [
    (APPENDED, "bytes", Better::Lower),
    ("bytes written to the log for each rename", "bytes", Better::Lower),
    (FORCES, "", Better::Lower),
    ("tree nodes read", "", Better::Neither),
    ("time of the renames", "ms", Better::Lower),
    ("time of the fsync after them", "ms", Better::Lower),
];
const APPENDED: &str = "bytes logged for each rename";
const FORCES: &str = "log forces by rename";
const GROWTH: &str = "bytes logged for each rename, the larger directory by the smaller";

/// The amount of work of a round.
#[derive(Clone, Copy)]
struct Load {
    renames: u64,
    sizes: [u64; 2],
}

pub fn run(run: &mut Run<'_>) -> Result<()> {
    let tenth = run.pick(10, 1);
    let load = Load { renames: RENAMES / tenth, sizes: SIZES.map(|files| files / tenth) };
    if run.does(Part::Process) {
        hold(run, load, Part::Process)?;
    }
    match (run.does(Part::Mount), run.place.root) {
        (true, true) => hold(run, load, Part::Mount)?,
        (true, false) => run.note("Left out: renames on the mount (a cold cache takes root).".into()),
        (false, _) => {}
    }
    Ok(())
}

fn hold(run: &mut Run<'_>, load: Load, part: Part) -> Result<()> {
    let in_process = part == Part::Process;
    let place = &*run;
    let contestants = RULES.map(|rule| {
        Contestant::new(rule, move |renames| {
            let mut values = Vec::new();
            for files in load.sizes {
                values.extend(match in_process {
                    true => library(place, rule, files, renames)?,
                    false => mount(place, rule, files, renames)?,
                });
            }
            values.push(values[MEASURES.len()] / values[0]);
            let [few, many] = load.sizes;
            let command = format!(
                "# new_name={rule}; {few} and {many} files, fsync, open again; rename, fsync of the \
                 directory; {renames} renames, fsync of the directory"
            );
            Ok(Round { values, command })
        })
    });
    let outcome = run.plan.hold(Contest {
        title: format!("{} renames after an fsync", load.renames),
        metrics: metrics(load),
        amount: Amount::Fixed(load.renames),
        goal: None,
        contestants: contestants.into(),
    })?;
    let (place, title, setup) = match in_process {
        true => ("in process", "Renames after an fsync, in this process", vec![LIBRARY_SETUP.into()]),
        false => (
            "on the mount",
            "Renames after an fsync, on the mount",
            mounts::kedge_lines(run.settings.size, run.settings.written),
        ),
    };
    run.bars.extend(bars(&outcome, load, place));
    let (title, outcomes) = (title.into(), vec![outcome]);
    run.sections.push(Section { title, setup, outcomes, reading: Reading::Change });
    Ok(())
}

fn named(files: u64, measure: &str) -> String {
    format!("{files} files: {measure}")
}

fn metrics(load: Load) -> Vec<Metric> {
    let of = |files| MEASURES.map(|(name, unit, better)| Metric::new(named(files, name), unit, better));
    let mut metrics: Vec<Metric> = load.sizes.into_iter().flat_map(of).collect();
    metrics.push(Metric::new(GROWTH, "", Better::Lower));
    metrics
}

fn bars(outcome: &Outcome, load: Load, place: &str) -> Vec<Bar> {
    let mut bars = vec![Bar::new(outcome, "growth with lazy", "", Want::AtMost(1.05), |at| at(1, GROWTH))];
    for files in load.sizes {
        let forces = named(files, FORCES);
        let what = format!("log forces by rename with lazy, {files} files");
        bars.push(Bar::new(outcome, &what, "", Want::AtMost(0.0), |at| at(1, &forces)));
    }
    bars.iter_mut().for_each(|bar| bar.what = format!("{place}, {}", bar.what));
    bars
}

/// Returns the values of [`MEASURES`]. The cache must be cold.
fn measure(
    renames: u64,
    files: u64,
    counters: impl Fn() -> Result<Counters>,
    rename: impl Fn(&str, &str) -> Result<()>,
    fsync: impl Fn() -> Result<()>,
) -> Result<Vec<f64>> {
    ensure!(renames < files, "each rename needs a file of its own");
    // The renamed files are spread over the directory, so that all of it is read.
    let one = |i: u64| {
        let file = i * files / (renames + 1);
        rename(&old_name(file), &new_name(file))
    };
    one(renames)?;
    fsync()?;
    let clock = SystemClock::default();
    let before = counters()?;
    let started = clock.monotonic();
    (0..renames).try_for_each(one)?;
    let (renaming, renamed) = (clock.since(started), clock.monotonic());
    fsync()?;
    let syncing = clock.since(renamed);
    let after = counters()?;
    let since = |path: &str| after.since(&before, path);
    let each = renames as f64;
    Ok(vec![
        since("log/bytes_appended")? / each,
        since("log/bytes_written")? / each,
        since("log/forces/rename")?,
        since("tree/node_reads")?,
        renaming.as_secs_f64() * 1e3,
        syncing.as_secs_f64() * 1e3,
    ])
}

fn old_name(file: u64) -> String {
    format!("file-{file:08}")
}

/// A name of the same length as the old one.
fn new_name(file: u64) -> String {
    format!("name-{file:08}")
}

fn library(run: &Run<'_>, rule: &str, files: u64, renames: u64) -> Result<Vec<f64>> {
    let image = run.place.shell.dir.join(LIBRARY_IMAGE);
    let device = FileDevice::create(&image, run.settings.size, OpenOptions::default())?;
    let library = Library::on(device, &FormatOptions::default(), MountOptions::default())?;
    let dir = library.fs().mkdir(Ino::ROOT, b"dir", 0o755, Owner::default())?.ino;
    for file in 0..files {
        library.fs().create(dir, old_name(file).as_bytes(), 0o644, Owner::default())?;
    }
    library.fs().fsync(dir, false)?;
    library.close()?;
    drop(library);
    let path = image.to_str().context("the image's path is no text")?;
    let library = Library::open(FileDevice::open(path, OpenOptions::default())?, MountOptions::default())?;
    let fs = library.fs();
    fs.set_options(&format!("new_name={rule}"))?;
    let rename = |from: &str, to: &str| {
        Ok(fs.rename(dir, from.as_bytes(), dir, to.as_bytes(), RenameMode::NoReplace)?)
    };
    let values = measure(renames, files, || Counters::of(fs), rename, || Ok(fs.fsync(dir, false)?));
    library.close()?;
    drop(library);
    std::fs::remove_file(image)?;
    values
}

fn mount(run: &Run<'_>, rule: &str, files: u64, renames: u64) -> Result<Vec<f64>> {
    let shell = &run.place.shell;
    let mounted = Mounted::kedge(shell, run.settings.size, run.settings.written)?;
    let dir = mounted.path().join("dir");
    std::fs::create_dir(&dir)?;
    for file in 0..files {
        File::create_new(dir.join(old_name(file)))?;
    }
    File::open(&dir)?.sync_all()?;
    mounted.remount_cold()?;
    shell.run(&format!("kedge remount {} -o new_name={rule}", mounted.name()))?;
    let handle = File::open(&dir)?;
    let rename = |from: &str, to: &str| Ok(std::fs::rename(dir.join(from), dir.join(to))?);
    let counters = || Counters::of_mount(shell, mounted.name());
    let values = measure(renames, files, counters, rename, || Ok(handle.sync_all()?));
    drop(handle);
    mounted.end()?;
    values
}
