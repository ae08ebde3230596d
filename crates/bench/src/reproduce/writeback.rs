//! Linux, "writeback: plug writeback at a high level": 4 KiB files without sync, in eight
//! directories, before and after.
//!
//! `noplug` sends each inode's pages by themselves; `plug` gathers those of many inodes, sorts and
//! merges them. A round ends when all is durable: dirty data left behind would be work that was not
//! done.

use super::cpu::Cpu;
use super::{LIBRARY_IMAGE, Part, Run};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Published, Round};
use crate::counters::Counters;
use crate::library::{Library, in_threads};
use crate::mounts::{self, Mounted};
use crate::report::{Reading, Section};
use anyhow::{Result, ensure};
use kedge_base::{Clock, SystemClock};
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{FormatOptions, Ino, MountOptions, Owner};

const THREADS: usize = 8;
const FILE: [u8; 4096] = [0x6b; 4096];
/// Files between two looks at the interrupt.
const LOOK_AGAIN: u64 = 256;
const OPTIONS: [&str; 2] = ["noplug", "plug"];

const RATE: &str = "files";
const CPU: &str = "processor time";
const WRITES: &str = "device writes";
const DATA_WRITES: &str = "data writes";

const PUBLISHED: &[Published] = &[
    Published { metric: RATE, figures: &[32_500.0, 52_900.0] },
    Published { metric: "wall time", figures: &[354.0, 199.0] },
    Published { metric: "system time", figures: &[932.0, 808.0] },
    Published { metric: "device writes per second", figures: &[28_000.0, 1_500.0] },
    Published { metric: "bandwidth", figures: &[150.0, 280.0] },
];

fn metrics() -> Vec<Metric> {
    vec![
        Metric::new(RATE, "/s", Better::Higher),
        Metric::new("wall time", "s", Better::Lower),
        Metric::new(CPU, "s", Better::Lower),
        Metric::new("system time", "s", Better::Lower),
        Metric::new(WRITES, "", Better::Lower),
        Metric::new("device writes per second", "/s", Better::Lower),
        Metric::new("bandwidth", "MB/s", Better::Higher),
        Metric::new("mean device write", "KiB", Better::Higher),
        Metric::new(DATA_WRITES, "", Better::Lower),
        Metric::new("mean data write", "KiB", Better::Higher),
        Metric::new("log writes", "", Better::Neither),
        Metric::new("device flushes", "", Better::Neither),
        Metric::new("writers that had to write back", "", Better::Neither),
    ]
}

fn values(files: u64, wall: f64, cpu: Option<Cpu>, before: &Counters, after: &Counters) -> Result<Vec<f64>> {
    let since = |path: &str| after.since(before, path);
    let (writes, bytes) = (since("device/writes")?, since("device/write_bytes")?);
    let (data, data_bytes) = (since("data/writes")?, since("data/write_bytes")?);
    ensure!(data_bytes >= (files * FILE.len() as u64) as f64, "not all data was written");
    Ok(vec![
        files as f64 / wall,
        wall,
        cpu.map_or(f64::NAN, Cpu::total),
        cpu.map_or(f64::NAN, |c| c.system),
        writes,
        writes / wall,
        bytes / 1e6 / wall,
        bytes / 1024.0 / writes,
        data,
        data_bytes / 1024.0 / data,
        since("log/writes")?,
        since("device/flushes")?,
        since("data/throttled_writes")?,
    ])
}

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if run.does(Part::Process) {
        part(run, Part::Process)?;
    }
    if run.does(Part::Mount) {
        run.need(&["truncate", "mkdir", "sync"])?;
        part(run, Part::Mount)?;
    }
    run.note("Published: XFS, 9.6 million files, 16 processors, SSDs; its processor time is that of the system. Compare the changes, not the figures.".into());
    if run.does(Part::Mount) {
        run.note(
            "On the mount, the processor time of the serving process is not told apart: it is left out."
                .into(),
        );
    }
    Ok(())
}

fn part(run: &mut Run<'_>, part: Part) -> Result<()> {
    let each = match part {
        Part::Process => run.work(2_000, 25_000),
        _ => run.pick(300, 2_500),
    };
    let each = each.min(run.settings.size / (64 << 10) / THREADS as u64);
    let this = &*run;
    let contestants = OPTIONS.map(|option| {
        Contestant::new(option, move |each| match part {
            Part::Process => in_process(this, option, each),
            _ => on_the_mount(this, option, each),
        })
    });
    let mut outcome = run.plan.hold(Contest {
        title: format!("{} files of 4 KiB, {THREADS} threads", each * THREADS as u64),
        metrics: metrics(),
        amount: Amount::Warmed { pilot: (each / 10).max(1), amount: each },
        goal: None,
        contestants: contestants.into(),
    })?;
    outcome.published = PUBLISHED.to_vec();
    let in_process = part == Part::Process;
    run.bars.extend(bars(&outcome, if in_process { "in process" } else { "on the mount" }, in_process));
    let title = if in_process { "The library in this process, O_DIRECT" } else { "On the mount" };
    let setup = vec!["# A new image for each round, and a sync at its end, which is part of it".into()];
    run.sections.push(Section { title, setup, outcomes: vec![outcome], reading: Reading::Change });
    Ok(())
}

fn in_process(run: &Run<'_>, option: &'static str, each: u64) -> Result<Round> {
    let image = run.place.shell.dir.join(LIBRARY_IMAGE);
    let device = FileDevice::create(&image, run.settings.size, OpenOptions::default())?;
    let options = MountOptions { plug: option == "plug", ..MountOptions::default() };
    let library = Library::on(device, &FormatOptions::default(), options)?;
    let round = fill(run, &library, option, each);
    library.close()?;
    drop(library);
    std::fs::remove_file(image)?;
    round
}

fn fill(run: &Run<'_>, library: &Library, option: &str, each: u64) -> Result<Round> {
    let fs = library.fs();
    let dirs: Vec<Ino> = (0..THREADS)
        .map(|i| Ok(fs.mkdir(Ino::ROOT, format!("{i}").as_bytes(), 0o755, Owner::default())?.ino))
        .collect::<Result<_>>()?;
    library.sync()?;
    let before = Counters::of(fs)?;
    let (clock, cpu) = (SystemClock::default(), Cpu::now()?);
    let started = clock.monotonic();
    in_threads(THREADS, |thread| {
        let (fs, dir, interrupt) = (fs.clone(), dirs[thread], run.settings.interrupt.clone());
        move || {
            for i in 0..each {
                if i % LOOK_AGAIN == 0 {
                    interrupt.check()?;
                }
                let name = format!("{thread:02x}~{i:08x}");
                let file = fs.create(dir, name.as_bytes(), 0o644, Owner::default())?.ino;
                ensure!(fs.write(file, 0, &FILE)? == FILE.len(), "a write was cut short");
            }
            Ok(())
        }
    })?;
    library.sync()?;
    let wall = clock.since(started).as_secs_f64();
    let cpu = cpu.since()?;
    let after = Counters::of(fs)?;
    let values = values(each * THREADS as u64, wall, Some(cpu), &before, &after)?;
    let command = format!("# {option}; {THREADS} threads, a directory and {each} files of 4 KiB each; sync");
    Ok(Round { values, command })
}

fn on_the_mount(run: &Run<'_>, option: &'static str, each: u64) -> Result<Round> {
    let shell = &run.place.shell;
    let mut lines = mounts::kedge_lines(run.settings.size, false);
    if let Some(last) = lines.last_mut() {
        *last = format!("kedge mount -o {option} kedge.img kedge");
    }
    let mounted = Mounted::kedge_by(shell, &lines)?;
    let dirs: Vec<_> = (0..THREADS).map(|i| mounted.path().join(format!("{i}"))).collect();
    dirs.iter().try_for_each(std::fs::create_dir)?;
    let before = Counters::of_mount(shell, mounted.name())?;
    let clock = SystemClock::default();
    let started = clock.monotonic();
    in_threads(THREADS, |thread| {
        let (dir, interrupt) = (dirs[thread].clone(), run.settings.interrupt.clone());
        move || {
            for i in 0..each {
                if i % LOOK_AGAIN == 0 {
                    interrupt.check()?;
                }
                std::fs::write(dir.join(format!("{thread:02x}~{i:08x}")), FILE)?;
            }
            Ok(())
        }
    })?;
    shell.run(&format!("sync -f {}", mounted.name()))?;
    let wall = clock.since(started).as_secs_f64();
    let after = Counters::of_mount(shell, mounted.name())?;
    mounted.end()?;
    let values = values(each * THREADS as u64, wall, None, &before, &after)?;
    let command = format!(
        "{}; # {THREADS} threads, a directory and {each} files of 4 KiB each; sync -f kedge",
        lines.last().map_or("", String::as_str)
    );
    Ok(Round { values, command })
}

fn bars(outcome: &Outcome, place: &str, with_cpu: bool) -> Vec<Bar> {
    let mut bars = vec![
        Bar::change(outcome, WRITES, Want::AtMost(-94.6)),
        Bar::change(outcome, RATE, Want::AtLeast(62.7)),
    ];
    if with_cpu {
        bars.push(Bar::change(outcome, CPU, Want::AtMost(-13.3)));
    }
    bars.iter_mut().for_each(|bar| bar.what = format!("{place}, {}", bar.what));
    bars
}

#[cfg(test)]
#[path = "writeback_tests.rs"]
mod tests;
