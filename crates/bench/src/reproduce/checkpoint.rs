//! ext4, "add async_checkpoint mount option": fs_mark with 32 threads in all its ways to sync,
//! without and with checkpoints in the background.
//!
//! With `noasync_checkpoint` the operation that finds the log full checkpoints while all wait. The
//! log is small, and in proportion the number of files, so that it wraps often; each round is on an
//! image of its own.

use super::marks::{self, MODES, THREADS};
use super::{LIBRARY_IMAGE, Part, Run, contestant};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Metric, Outcome, Published, Round};
use crate::counters::Counters;
use crate::library::Library;
use crate::mounts::{self, Mounted};
use crate::parse;
use crate::report::{Reading, Section};
use anyhow::Result;
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{FormatOptions, MountOptions, Switches};

const OPTIONS: [&str; 2] = ["noasync_checkpoint", "async_checkpoint"];
/// How often the log has to wrap in the rounds of one setting together.
const WRAPS: f64 = 20.0;

const FILES: &str = "files";
const COUNT: &str = "transactions";
const REQUESTED: &str = "transactions requested";
const STALL: &str = "wait for log space";
const THROTTLE: &str = "slowed down for log space";
const FSYNC: &str = "99.9 % of fsyncs";
/// The change is about these, and they are few of all.
const FSYNC_MEANWHILE: &str = "99.9 % of fsyncs while a checkpoint runs";
const LOG_WRAPS: &str = "log wraps in a round";

/// A way to sync, what was published of it, and what has to be reached of files/s, in percent.
struct Mode {
    published: &'static [Published],
    files: f64,
    mount: Size,
    process: Size,
}

/// Modes without an fsync for each file log little, and a mount makes files slowly: there, the log
/// is smallest.
#[derive(Clone, Copy)]
struct Size {
    log_mib: u64,
    /// Of each thread.
    files: u64,
}

impl Size {
    /// A short run has an eighth of the files, and a log in proportion.
    fn of(self, run: &Run<'_>) -> Size {
        let quick = Size { log_mib: (self.log_mib / 8).max(1), files: (self.files / 8).max(20) };
        if run.settings.quick { quick } else { self }
    }
}

macro_rules! mode {
    ($mount_log:literal MiB $mount:literal, $log:literal MiB $process:literal, $bar:literal, $files:literal => $files_new:literal,
     $count:literal => $count_new:literal) => {
        Mode {
            published: &[
                Published { metric: FILES, figures: &[$files, $files_new] },
                Published { metric: COUNT, figures: &[$count, $count_new] },
                Published { metric: REQUESTED, figures: &[$count, $count_new] },
            ],
            files: $bar,
            mount: Size { log_mib: $mount_log, files: $mount },
            process: Size { log_mib: $log, files: $process },
        }
    };
}

const PLAN: [Mode; 7] = [
    mode!(1 MiB 800, 8 MiB 5200, -1.0, 96898.0 => 97727.0, 177.0 => 177.0),
    mode!(16 MiB 520, 16 MiB 600, 5.8, 46780.0 => 49510.0, 1210422.0 => 1053905.0),
    mode!(1 MiB 800, 8 MiB 5200, -1.0, 71072.0 => 72464.0, 190.0 => 189.0),
    mode!(16 MiB 2000, 16 MiB 2700, 14.4, 61977.0 => 70962.0, 282973.0 => 88148.0),
    mode!(1 MiB 800, 8 MiB 5200, -1.0, 69796.0 => 70708.0, 190.0 => 189.0),
    mode!(16 MiB 2000, 16 MiB 2700, 8.5, 61523.0 => 66785.0, 411394.0 => 280367.0),
    mode!(1 MiB 800, 8 MiB 5200, -1.0, 70129.0 => 69194.0, 189.0 => 190.0),
];

/// Those in which every file has an fsync that makes something durable.
const FSYNC_MODES: [usize; 3] = [1, 3, 5];

fn metrics() -> Vec<Metric> {
    vec![
        Metric::new(FILES, "/s", Better::Higher),
        Metric::new(COUNT, "", Better::Lower),
        Metric::new(REQUESTED, "", Better::Lower),
        Metric::new("checkpoints", "", Better::Neither),
        Metric::new(STALL, "ms in all", Better::Lower),
        Metric::new(THROTTLE, "ms in all", Better::Lower),
        Metric::new(FSYNC, "ms", Better::Lower),
        Metric::new(FSYNC_MEANWHILE, "ms", Better::Lower),
        Metric::new("99.9 % of creations", "ms", Better::Lower),
        Metric::new("checkpoint", "ms on average", Better::Neither),
        Metric::new(LOG_WRAPS, "", Better::Neither),
    ]
}

/// Of a file system that was made for the round. `fsync` and `create`: milliseconds.
fn values(rate: f64, before: &Counters, after: &Counters, fsync: f64, create: f64) -> Result<Vec<f64>> {
    let get = |path: &str| after.get(path);
    let throttle = get("checkpoint/throttle_ns/average")? * get("checkpoint/throttle_ns/count")?;
    Ok(vec![
        rate,
        get("transactions/commits")?,
        get("transactions/commits_requested")?,
        get("transactions/checkpoints")?,
        get("transactions/log_space_stall_ns")? / 1e6,
        throttle / 1e6,
        fsync,
        after.quantile_since(before, "checkpoint/fsync_meanwhile_ns", 0.999) / 1e6,
        create,
        get("transactions/commit_avg_ns")? / 1e6,
        get("log/head_lsn")? / get("log/ring_bytes")?,
    ])
}

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if run.does(Part::Mount) {
        run.need(&["fs_mark", "truncate", "mkdir"])?;
    }
    for part in [Part::Mount, Part::Process] {
        if run.does(part) {
            all_modes(run, part)?;
        }
    }
    run.note(
        "Published: ext4 on NVMe, 500000 files for each of the 32 threads, transactions as jbd2 counts them: here the log writes that somebody asked for. Compare the changes, not the figures.".into(),
    );
    run.note(format!(
        "{STALL}: what operations waited in their reservations; the checkpoint that an operation runs itself without async_checkpoint is such a wait."
    ));
    run.note(format!(
        "{FSYNC_MEANWHILE}: those during which one ran, if only for a part; from KedgeFS's histograms, whose buckets span a factor of two."
    ));
    if run.does(Part::Mount) {
        run.note(
            "On the mount, all quantiles come from these histograms, which leave the kernel out.".into(),
        );
    }
    Ok(())
}

fn all_modes(run: &mut Run<'_>, part: Part) -> Result<()> {
    let mut outcomes = Vec::new();
    for (mode, plan) in PLAN.iter().enumerate() {
        let size = if part == Part::Mount { plan.mount } else { plan.process };
        let each = size.of(run).files;
        let title = format!("S{mode}: {}", MODES[mode]);
        let amount = Amount::Warmed { pilot: (each / 4).max(10), amount: each };
        let ready = Ok(());
        let body = |option: &'static str| {
            let run = &*run;
            move |_: &(), each: u64| match part {
                Part::Mount => on_the_mount(run, mode, option, each),
                _ => in_process(run, mode, option, each),
            }
        };
        let mut outcome = run.plan.hold(Contest {
            title,
            metrics: metrics(),
            amount,
            goal: None,
            contestants: OPTIONS.map(|option| contestant(option, &ready, body(option))).into(),
        })?;
        outcome.published = plan.published.to_vec();
        let place = if part == Part::Mount { "mount" } else { "process" };
        let bars = bars(&outcome, place, mode, run.plan.rounds, run.settings.quick);
        run.bars.extend(bars);
        outcomes.push(outcome);
    }
    let title = match part {
        Part::Mount => "fs_mark on the mount",
        _ => "The same load in this process, on the library",
    };
    run.sections.push(Section { title, setup: vec![], outcomes, reading: Reading::Change });
    Ok(())
}

fn on_the_mount(run: &Run<'_>, mode: usize, option: &'static str, each: u64) -> Result<Round> {
    let shell = &run.place.shell;
    let lines = [
        mounts::make_file("kedge", run.settings.size, false),
        format!("kedge mkfs --log-size {}M kedge.img", PLAN[mode].mount.of(run).log_mib),
        "mkdir kedge".into(),
        format!("kedge mount -o {option} kedge.img kedge"),
    ];
    let mounted = Mounted::kedge_by(shell, &lines)?;
    let before = Counters::of_mount(shell, mounted.name())?;
    let fs_mark = format!("fs_mark -d kedge/work -D 16 -t {THREADS} -n {each} -s 4096 -S {mode} -N 256 -k");
    let rate = parse::fs_mark(&shell.run(&fs_mark)?)?;
    let after = Counters::of_mount(shell, mounted.name())?;
    mounted.end()?;
    let quantile = |operation| after.quantile_since(&before, operation, 0.999) / 1e6;
    let values = values(rate, &before, &after, quantile("operations/fsync"), quantile("operations/create"))?;
    let command = format!("{}; {}; {fs_mark}", lines[1], lines[3]);
    Ok(Round { values, command })
}

fn in_process(run: &Run<'_>, mode: usize, option: &'static str, each: u64) -> Result<Round> {
    let image = run.place.shell.dir.join(LIBRARY_IMAGE);
    let device = FileDevice::create(&image, run.settings.size, OpenOptions::default())?;
    let log_mib = PLAN[mode].process.of(run).log_mib;
    let format = FormatOptions { log_size: Some(log_mib << 20), ..FormatOptions::default() };
    let mut options = MountOptions::default();
    option.parse::<Switches>()?.apply(&mut options);
    let library = Library::on(device, &format, options)?;
    let before = Counters::of(library.fs())?;
    let sum = marks::run(&library, mode, each, &run.settings.interrupt)?;
    let after = Counters::of(library.fs())?;
    library.close()?;
    std::fs::remove_file(image)?;
    let values = values(sum.rate, &before, &after, sum.fsync.quantile(0.999), sum.create.quantile(0.999))?;
    let command =
        format!("# a log of {log_mib} MiB, {option}; mode {mode}, {THREADS} threads, {each} files each");
    Ok(Round { values, command })
}

/// A short run makes too few files for the log to wrap.
fn bars(outcome: &Outcome, place: &str, mode: usize, rounds: usize, quick: bool) -> Vec<Bar> {
    let mut bars = vec![
        Bar::new(
            outcome,
            "wait for log space with async_checkpoint, slow-downs included",
            "ms",
            Want::AtMost(0.0),
            |at| at(1, STALL) + at(1, THROTTLE),
        ),
        Bar::change(outcome, FILES, Want::AtLeast(PLAN[mode].files)),
    ];
    if FSYNC_MODES.contains(&mode) {
        bars.push(Bar::change(outcome, FSYNC_MEANWHILE, Want::AtMost(-50.0)));
    }
    if !quick {
        bars.push(Bar::new(outcome, "log wraps in all rounds", "", Want::AtLeast(WRAPS), |at| {
            at(0, LOG_WRAPS).min(at(1, LOG_WRAPS)) * rounds as f64
        }));
    }
    bars.iter_mut().for_each(|bar| bar.what = format!("{place}, {}", bar.what));
    bars
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
