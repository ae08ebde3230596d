//! ext4, "add async_checkpoint mount option": fs_mark with 32 threads in all its sync modes,
//! without and with background checkpoints.
//!
//! With `noasync_checkpoint` the operation that finds the log full runs the checkpoint while all
//! others wait. Each round uses a new image. The modes run with two sizes of the log:
//! 1. *Small*: in proportion to few files, so that the log wraps often in a short time.
//! 2. *Default*: as mkfs makes it. Only modes with an fsync for each file use it, with enough files
//!    that the log wraps three times in S1. S3 and S5 would need more files than the image holds,
//!    and the other modes would take hours.
//!
//! A row shows how often the log wrapped. If it wrapped less than three times, each verdict says
//! so.

use super::cpu::Busy;
use super::marks::{self, MODES, THREADS};
use super::{CACHE, LIBRARY_IMAGE, LogSize, Part, Run, contestant};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Metric, Outcome, Plan, Published, Round};
use crate::counters::Counters;
use crate::library::Library;
use crate::mounts::{self, Mounted};
use crate::parse;
use crate::report::{Reading, Section};
use crate::sample::number;
use anyhow::Result;
use clap::ValueEnum;
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{FormatOptions, MountOptions, Switches};

pub(super) const OPTIONS: [&str; 2] = ["noasync_checkpoint", "async_checkpoint"];
/// How often a small log must wrap in all rounds of one setting together, and (`WRAPS_DEFAULT`) a
/// log of the default size in each round.
const WRAPS: f64 = 20.0;
const WRAPS_DEFAULT: f64 = 3.0;
/// If the log wraps less often in a round, the figure says little about checkpoints, and the
/// verdict says so.
const WRAPS_TOLD: f64 = 3.0;

const FILES: &str = "files";
const COUNT: &str = "commits (jbd2: transactions)";
const REQUESTED: &str = "commits requested";
const STALL: &str = "wait for log space";
const THROTTLE: &str = "slowed down for log space";
const FSYNC: &str = "99.9 % of fsyncs";
/// The fsyncs while a checkpoint runs are the only ones that it can delay.
const FSYNC_MEANWHILE: &str = "99.9 % of fsyncs while a checkpoint runs";
const LOG_WRAPS: &str = "log wraps in a round";
const LONGEST: &str = "longest operation of any kind";
const WRITTEN: &str = "bytes written to the device";
/// Processor time of the whole machine: clients, file system and kernel. If all processors are
/// busy, avoiding a wait gains nothing.
pub(super) const BUSY: &str = "processors busy";
pub(super) const CPU: &str = "processor time for each file";

/// A sync mode with its published figures, the required change of files/s in percent, and its
/// sizes.
pub(super) struct Mode {
    pub(super) published: &'static [Published],
    files: f64,
    mount: Size,
    process: Size,
    /// Number of files of each thread with a log of the default size: on the mount, and in process.
    default_log: Option<[u64; 2]>,
}

impl Mode {
    fn size(&self, run: &Run<'_>, part: Part, log: LogSize) -> Size {
        let on_mount = part == Part::Mount;
        match (log, self.default_log) {
            (LogSize::Default, Some([mount, process])) => {
                Size { log_mib: None, files: if on_mount { mount } else { process } }
            }
            _ => if on_mount { self.mount } else { self.process }.of(run),
        }
    }
}

/// The log and the number of files of a mode. Modes without an fsync for each file log little, and
/// a mount creates files slowly. So these have the smallest logs.
#[derive(Clone, Copy)]
struct Size {
    /// Size of the log in MiB; `None` for mkfs's default.
    log_mib: Option<u64>,
    /// Number of files of each thread.
    files: u64,
}

impl Size {
    /// Returns the size for the run: a short run has an eighth of the files, and a log in
    /// proportion.
    fn of(self, run: &Run<'_>) -> Size {
        let log_mib = self.log_mib.map(|mib| (mib / 8).max(1));
        let quick = Size { log_mib, files: (self.files / 8).max(20) };
        if run.settings.quick { quick } else { self }
    }

    /// The log size as an option of mkfs.
    fn option(self) -> String {
        self.log_mib.map_or(String::new(), |mib| format!("--log-size {mib}M "))
    }

    fn words(self) -> String {
        self.log_mib.map_or("a log of the default size".into(), |mib| format!("a log of {mib} MiB"))
    }
}

macro_rules! mode {
    ($mount_log:literal MiB $mount:literal, $log:literal MiB $process:literal, $default_log:expr, $bar:literal,
     $files:literal => $files_new:literal, $count:literal => $count_new:literal) => {
        Mode {
            published: &[
                Published { metric: FILES, figures: &[$files, $files_new] },
                Published { metric: COUNT, figures: &[$count, $count_new] },
                Published { metric: REQUESTED, figures: &[$count, $count_new] },
            ],
            files: $bar,
            mount: Size { log_mib: Some($mount_log), files: $mount },
            process: Size { log_mib: Some($log), files: $process },
            default_log: $default_log,
        }
    };
}

pub(super) const PLAN: [Mode; 7] = [
    mode!(1 MiB 550, 8 MiB 5200, None, -1.0, 96898.0 => 97727.0, 177.0 => 177.0),
    mode!(16 MiB 520, 16 MiB 600, Some([4_000, 6_200]), 5.8, 46780.0 => 49510.0, 1210422.0 => 1053905.0),
    mode!(1 MiB 550, 8 MiB 5200, None, -1.0, 71072.0 => 72464.0, 190.0 => 189.0),
    mode!(16 MiB 1100, 16 MiB 2700, Some([5_800, 15_500]), 14.4, 61977.0 => 70962.0, 282973.0 => 88148.0),
    mode!(1 MiB 550, 8 MiB 5200, None, -1.0, 69796.0 => 70708.0, 190.0 => 189.0),
    mode!(16 MiB 1100, 16 MiB 2700, Some([5_900, 17_500]), 8.5, 61523.0 => 66785.0, 411394.0 => 280367.0),
    mode!(1 MiB 550, 8 MiB 5200, None, -1.0, 70129.0 => 69194.0, 189.0 => 190.0),
];

/// The modes in which every file has an fsync that makes something durable.
const FSYNC_MODES: [usize; 3] = [1, 3, 5];

pub(super) fn metrics() -> Vec<Metric> {
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
        Metric::new(LONGEST, "ms", Better::Lower),
        Metric::new(WRITTEN, "MiB", Better::Lower),
        Metric::new(BUSY, "%", Better::Neither),
        Metric::new(CPU, "µs", Better::Lower),
    ]
}

/// The measurements of a round, on a file system made for the round.
struct Made {
    files: u64,
    rate: f64,
    /// Latency in milliseconds.
    fsync: f64,
    create: f64,
    busy: Busy,
}

fn values(made: Made, before: &Counters, after: &Counters) -> Result<Vec<f64>> {
    let Made { files, rate, fsync, create, busy } = made;
    let mut values = own_values(rate, fsync, create, before, after)?;
    values.extend([busy.percent(), busy.busy / files as f64 * 1e6]);
    Ok(values)
}

/// Returns all values but the machine's processor time, in the order of [`metrics`].
pub(super) fn values_of(sum: &marks::Sum, before: &Counters, after: &Counters) -> Result<Vec<f64>> {
    own_values(sum.rate, sum.fsync.quantile(0.999), sum.create.quantile(0.999), before, after)
}

fn own_values(rate: f64, fsync: f64, create: f64, before: &Counters, after: &Counters) -> Result<Vec<f64>> {
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
        after.longest()? / 1e6,
        after.since(before, "device/write_bytes")? / (1 << 20) as f64,
    ])
}

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if run.does(Part::Mount) {
        run.need(&["fs_mark", "truncate", "mkdir"])?;
    }
    let logs = match run.log {
        Some(log) => vec![log],
        None => run.pick(vec![LogSize::Small], LogSize::value_variants().into()),
    };
    for log in logs.iter().copied() {
        for part in [Part::Mount, Part::Process] {
            if run.does(part) {
                all_modes(run, part, log)?;
            }
        }
    }
    run.note(
        "Published: ext4 on NVMe, 500000 files for each of the 32 threads, transactions as jbd2 counts them: here the log writes that were asked for. Compare the changes, not the figures.".into(),
    );
    run.note(format!(
        "{STALL}: what operations waited in their reservations; the checkpoint that an operation runs itself without async_checkpoint is such a wait."
    ));
    run.note(format!(
        "{WRITTEN}: until the last file is made. What is only in the log then is not written in place yet, with noasync_checkpoint up to a whole log."
    ));
    if logs.contains(&LogSize::Default) {
        run.note(format!(
            "With a log of the default size there are {} rounds: --log default --rounds N makes more. S0, S2, S4 and S6 would need over a million files there for the log to wrap, and are left out.",
            rounds(run, LogSize::Default)
        ));
    }
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

/// Number of rounds. Contests with a log of the default size take long, and one round shows the
/// effect.
fn rounds(run: &Run<'_>, log: LogSize) -> usize {
    match log {
        LogSize::Default if run.settings.rounds.is_none() => 1,
        _ => run.plan.rounds,
    }
}

fn all_modes(run: &mut Run<'_>, part: Part, log: LogSize) -> Result<()> {
    let mut outcomes = Vec::new();
    let rounds = rounds(run, log);
    let plans =
        PLAN.iter().enumerate().filter(|(_, plan)| log == LogSize::Small || plan.default_log.is_some());
    for (mode, plan) in plans {
        let size = plan.size(run, part, log);
        let each = size.files;
        let title = format!("S{mode}: {}", MODES[mode]);
        let part_of_warm_up = if log == LogSize::Default { 16 } else { 4 };
        let amount = Amount::Warmed { pilot: (each / part_of_warm_up).max(10), amount: each };
        let ready = Ok(());
        let body = |option: &'static str| {
            let run = &*run;
            move |_: &(), each: u64| match part {
                Part::Mount => on_the_mount(run, mode, option, size, each),
                _ => in_process(run, mode, option, size, each),
            }
        };
        let plan_of_rounds = Plan { rounds, ..run.plan };
        let mut outcome = plan_of_rounds.hold(Contest {
            title,
            metrics: metrics(),
            amount,
            goal: None,
            contestants: OPTIONS.map(|option| contestant(option, &ready, body(option))).into(),
        })?;
        outcome.published = plan.published.to_vec();
        let place = if part == Part::Mount { "mount" } else { "process" };
        let wraps = match (log, run.settings.quick) {
            (_, true) => None,
            (LogSize::Small, _) => Some(WRAPS),
            (LogSize::Default, _) => Some(WRAPS_DEFAULT * rounds as f64),
        };
        run.bars.extend(bars(&outcome, &format!("{place}, {}", log.words()), mode, rounds, wraps));
        outcomes.push(outcome);
    }
    let title = match (part, log) {
        (Part::Mount, LogSize::Small) => "fs_mark on the mount",
        (Part::Mount, LogSize::Default) => "fs_mark on the mount, with a log of the default size",
        (_, LogSize::Small) => "The same load in this process, on the library",
        (_, LogSize::Default) => "The same load in this process, with a log of the default size",
    };
    run.sections.push(Section { title: title.into(), setup: vec![], outcomes, reading: Reading::Change });
    Ok(())
}

fn on_the_mount(run: &Run<'_>, mode: usize, option: &'static str, size: Size, each: u64) -> Result<Round> {
    let shell = &run.place.shell;
    let lines = [
        mounts::make_file("kedge", run.settings.size, false),
        format!("kedge mkfs {}kedge.img", size.option()),
        "mkdir kedge".into(),
        format!("kedge mount -o {option},{CACHE} kedge.img kedge"),
    ];
    let mounted = Mounted::kedge_by(shell, &lines)?;
    let before = Counters::of_mount(shell, mounted.name())?;
    let fs_mark = format!("fs_mark -d kedge/work -D 16 -t {THREADS} -n {each} -s 4096 -S {mode} -N 256 -k");
    let busy = Busy::now()?;
    let rate = parse::fs_mark(&shell.run(&fs_mark)?)?;
    let busy = busy.since()?;
    let after = Counters::of_mount(shell, mounted.name())?;
    mounted.end()?;
    let quantile = |operation| after.quantile_since(&before, operation, 0.999) / 1e6;
    let (fsync, create) = (quantile("operations/fsync"), quantile("operations/create"));
    let values = values(Made { files: THREADS as u64 * each, rate, fsync, create, busy }, &before, &after)?;
    let command = format!("{}; {}; {fs_mark}", lines[1], lines[3]);
    Ok(Round { values, command })
}

fn in_process(run: &Run<'_>, mode: usize, option: &'static str, size: Size, each: u64) -> Result<Round> {
    let image = run.place.shell.dir.join(LIBRARY_IMAGE);
    let device = FileDevice::create(&image, run.settings.size, OpenOptions::default())?;
    let format = FormatOptions { log_size: size.log_mib.map(|mib| mib << 20), ..FormatOptions::default() };
    let mut options = MountOptions::default();
    option.parse::<Switches>()?.apply(&mut options);
    let library = Library::on(device, &format, options)?;
    let before = Counters::of(library.fs())?;
    let busy = Busy::now()?;
    let sum = marks::run(&library, mode, each, &run.settings.interrupt)?;
    let busy = busy.since()?;
    let after = Counters::of(library.fs())?;
    library.close()?;
    std::fs::remove_file(image)?;
    let (fsync, create) = (sum.fsync.quantile(0.999), sum.create.quantile(0.999));
    let made = Made { files: THREADS as u64 * each, rate: sum.rate, fsync, create, busy };
    let values = values(made, &before, &after)?;
    let command = format!("# {}, {option}; mode {mode}, {THREADS} threads, {each} files each", size.words());
    Ok(Round { values, command })
}

/// `wraps`: how often the log must wrap in all rounds. `None` for a short run, which creates too
/// few files.
fn bars(outcome: &Outcome, place: &str, mode: usize, rounds: usize, wraps: Option<f64>) -> Vec<Bar> {
    let mut bars = vec![
        Bar::new(
            outcome,
            "wait for log space with async_checkpoint, slow-downs included",
            "ms",
            Want::AtMost(0.0),
            |at| at(1, STALL) + at(1, THROTTLE),
        ),
        Bar::change(outcome, FILES, Want::AtLeast(PLAN[mode].files)),
        Bar::change(outcome, LONGEST, Want::AtMost(0.0)),
        Bar::change(outcome, WRITTEN, Want::AtMost(20.0)),
    ];
    if FSYNC_MODES.contains(&mode) {
        bars.push(Bar::change(outcome, FSYNC, Want::AtMost(-50.0)));
    }
    if let Some(wraps) = wraps {
        bars.push(Bar::new(outcome, "log wraps in all rounds", "", Want::AtLeast(wraps), |at| {
            at(0, LOG_WRAPS).min(at(1, LOG_WRAPS)) * rounds as f64
        }));
    }
    let wrapped = outcome.median(0, LOG_WRAPS).min(outcome.median(1, LOG_WRAPS));
    for bar in &mut bars {
        bar.what = format!("{place}, {}", bar.what);
        bar.doubt = (wrapped < WRAPS_TOLD).then(|| format!("the log wrapped only {} times", number(wrapped)));
    }
    bars
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
