//! Linux, "writeback: plug writeback at a high level": 4 KiB files without sync, in eight
//! directories, before and after the change.
//!
//! `noplug` submits each inode's pages separately. `plug` collects the pages of many inodes, sorts
//! and merges them. A round ends when everything is durable: data that is still dirty would be work
//! not done.
//!
//! Each part runs on an image file, and on a loop device, for which the kernel itself counts
//! requests. On the mount the processor time of the server counts as well as the client's.

use super::cpu::Cpu;
use super::{CACHE, LIBRARY_IMAGE, Part, Run};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Published, Round};
use crate::counters::Counters;
use crate::disk::{DiskCounts, LoopDevice};
use crate::library::{Library, in_threads};
use crate::mounts::{self, Mounted};
use crate::report::{Reading, Section};
use anyhow::{Result, ensure};
use kedge_base::{Clock, SystemClock};
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{FormatOptions, Ino, MountOptions, Owner};

const THREADS: usize = 8;
const FILE: [u8; 4096] = [0x6b; 4096];
/// Files between two checks for an interrupt.
const LOOK_AGAIN: u64 = 256;
const OPTIONS: [&str; 2] = ["noplug", "plug"];

const RATE: &str = "files";
const CPU: &str = "processor time";
const WRITES: &str = "device writes";
const KERNEL_WRITES: &str = "the kernel's count: writes";
const DATA_WRITES: &str = "data writes";
const HARD_LIMITS: &str = "data, times the hard limit of dirty data";
/// Minimum of data that keeps writeback busy all the time, in multiples of [`hard_limit`].
const HARD_LIMITS_WANTED: f64 = 4.0;

pub(super) const PUBLISHED: &[Published] = &[
    Published { metric: RATE, figures: &[32_500.0, 52_900.0] },
    Published { metric: "wall time", figures: &[354.0, 199.0] },
    Published { metric: "system time", figures: &[932.0, 808.0] },
    Published { metric: "device writes per second", figures: &[28_000.0, 1_500.0] },
    Published { metric: "bandwidth", figures: &[150.0, 280.0] },
];

/// What contains the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ground {
    File,
    Loop,
}

impl Ground {
    const fn words(self) -> &'static str {
        match self {
            Ground::File => "image file",
            Ground::Loop => "loop device",
        }
    }
}

fn metrics(ground: Ground) -> Vec<Metric> {
    let mut metrics = vec![
        Metric::new(RATE, "/s", Better::Higher),
        Metric::new("wall time", "s", Better::Lower),
        Metric::new(CPU, "s", Better::Lower),
        Metric::new("system time", "s", Better::Lower),
        Metric::new("processor time of the serving process", "s", Better::Lower),
        Metric::new(WRITES, "", Better::Lower),
        Metric::new("device writes per second", "/s", Better::Lower),
        Metric::new("bandwidth", "MB/s", Better::Higher),
        Metric::new("mean device write", "KiB", Better::Higher),
        Metric::new(DATA_WRITES, "", Better::Lower),
        Metric::new("mean data write", "KiB", Better::Higher),
        Metric::new("log writes", "", Better::Neither),
        Metric::new("device flushes", "", Better::Neither),
        Metric::new("writers that had to write back", "", Better::Neither),
        Metric::new(HARD_LIMITS, "", Better::Neither),
    ];
    if ground == Ground::Loop {
        metrics.extend([
            Metric::new(KERNEL_WRITES, "", Better::Lower),
            Metric::new("the kernel's count: requests merged into another", "", Better::Neither),
            Metric::new("the kernel's count: sectors", "", Better::Neither),
            Metric::new("the kernel's count: mean write", "KiB", Better::Higher),
            Metric::new("the kernel's count: flushes", "", Better::Neither),
        ]);
    }
    metrics
}

/// The measurements of a round, from its first file until all files are durable.
struct Seen {
    files: u64,
    wall: f64,
    /// Processor time of this process: the clients, and in process also the library.
    cpu: Cpu,
    /// Processor time of the process that serves a mount.
    server: Option<Cpu>,
    /// Counts of the loop device; `None` if the image is on none.
    disk: Option<DiskCounts>,
}

fn values(seen: &Seen, before: &Counters, after: &Counters) -> Result<Vec<f64>> {
    let since = |path: &str| after.since(before, path);
    let (writes, bytes) = (since("device/writes")?, since("device/write_bytes")?);
    let (data, data_bytes) = (since("data/writes")?, since("data/write_bytes")?);
    let (wall, made) = (seen.wall, (seen.files * FILE.len() as u64) as f64);
    ensure!(data_bytes >= made, "not all data was written");
    let server = seen.server.unwrap_or(Cpu { user: 0.0, system: 0.0 });
    let mut values = vec![
        seen.files as f64 / wall,
        wall,
        seen.cpu.total() + server.total(),
        seen.cpu.system + server.system,
        seen.server.map_or(f64::NAN, Cpu::total),
        writes,
        writes / wall,
        bytes / 1e6 / wall,
        bytes / 1024.0 / writes,
        data,
        data_bytes / 1024.0 / data,
        since("log/writes")?,
        since("device/flushes")?,
        since("data/throttled_writes")?,
        made / hard_limit(MountOptions::default().cache_size),
    ];
    if let Some(disk) = seen.disk {
        let (writes, bytes) = (disk.writes as f64, disk.bytes as f64);
        let merges = disk.merges as f64;
        values.extend([writes, merges, bytes / 512.0, bytes / 1024.0 / writes, disk.flushes as f64]);
    }
    Ok(values)
}

/// Bytes of dirty data above which writers write back themselves: half of the space for file pages,
/// which is three eighths of the cache (`cache::budget` of the library).
fn hard_limit(cache_size: u64) -> f64 {
    cache_size as f64 * 3.0 / 8.0 / 2.0
}

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if let Some(why) = LoopDevice::missing(run.place.root) {
        run.note(format!("Left out: loop devices, and with them the kernel's own counts ({why})."));
    }
    if run.does(Part::Process) {
        part(run, Part::Process)?;
    }
    if run.does(Part::Mount) {
        run.need(&["truncate", "mkdir", "sync"])?;
        part(run, Part::Mount)?;
    }
    run.note("Published: XFS, 9.6 million files, 16 processors, SSDs; its processor time is that of the system. Compare the changes, not the figures.".into());
    run.note("Processor time is that of the client and of the process that serves the mount. Threads of the kernel, those of loop devices among them, are not included.".into());
    Ok(())
}

fn part(run: &mut Run<'_>, part: Part) -> Result<()> {
    let each = match part {
        Part::Process => run.work(2_000, 25_000),
        _ => run.pick(300, 6_500),
    };
    let each = each.min(run.settings.size / (64 << 10) / THREADS as u64);
    let in_process = part == Part::Process;
    let place = if in_process { "in process" } else { "on the mount" };
    let mut outcomes = Vec::new();
    let no_loops = LoopDevice::missing(run.place.root).is_some();
    for ground in [Ground::File, Ground::Loop].into_iter().filter(|g| *g == Ground::File || !no_loops) {
        let outcome = hold(run, part, ground, each)?;
        run.bars.extend(bars(&outcome, place, run.settings.quick));
        outcomes.push(outcome);
    }
    let title = if in_process { "The library in this process, O_DIRECT" } else { "On the mount" };
    let setup = vec![
        "# A new image for each round, and a sync at its end, which is part of it".into(),
        "# loop device: losetup --find --show --direct-io=on IMAGE".into(),
    ];
    run.sections.push(Section { title: title.into(), setup, outcomes, reading: Reading::Change });
    Ok(())
}

fn hold(run: &Run<'_>, part: Part, ground: Ground, each: u64) -> Result<Outcome> {
    let contestants = OPTIONS.map(|option| {
        Contestant::new(option, move |each| match part {
            Part::Process => in_process(run, ground, option, each),
            _ => on_the_mount(run, ground, option, each),
        })
    });
    let mut outcome = run.plan.hold(Contest {
        title: format!("{} files of 4 KiB, {THREADS} threads, {}", each * THREADS as u64, ground.words()),
        metrics: metrics(ground),
        amount: Amount::Warmed { pilot: (each / 10).max(1), amount: each },
        goal: None,
        contestants: contestants.into(),
    })?;
    outcome.published = PUBLISHED.to_vec();
    Ok(outcome)
}

/// Makes a loop device if the image is to be on one. The library and `kedge` get its path instead
/// of that of an image file.
fn loop_device<'a>(run: &Run<'a>, ground: Ground, name: &str) -> Result<Option<LoopDevice<'a>>> {
    match ground {
        Ground::Loop => LoopDevice::make(&run.place.shell, name, run.settings.size).map(Some),
        Ground::File => Ok(None),
    }
}

/// The counts since `before`, if there is a device.
fn counts_since(disk: Option<&LoopDevice<'_>>, before: Option<DiskCounts>) -> Result<Option<DiskCounts>> {
    match (disk, before) {
        (Some(disk), Some(before)) => Ok(Some(disk.counts()?.since(before))),
        _ => Ok(None),
    }
}

fn in_process(run: &Run<'_>, ground: Ground, option: &'static str, each: u64) -> Result<Round> {
    let image = run.place.shell.dir.join(LIBRARY_IMAGE);
    let disk = loop_device(run, ground, "library")?;
    let device = match &disk {
        Some(disk) => FileDevice::open(&disk.path, OpenOptions::default())?,
        None => FileDevice::create(&image, run.settings.size, OpenOptions::default())?,
    };
    let options = MountOptions { plug: option == "plug", ..MountOptions::default() };
    let library = Library::on(device, &FormatOptions::default(), options)?;
    let round = fill(run, &library, disk.as_ref(), option, each);
    library.close()?;
    drop(library);
    if disk.is_none() {
        std::fs::remove_file(image)?;
    }
    round
}

fn fill(
    run: &Run<'_>,
    library: &Library,
    disk: Option<&LoopDevice<'_>>,
    option: &str,
    each: u64,
) -> Result<Round> {
    let fs = library.fs();
    let dirs: Vec<Ino> = (0..THREADS)
        .map(|i| Ok(fs.mkdir(Ino::ROOT, format!("{i}").as_bytes(), 0o755, Owner::default())?.ino))
        .collect::<Result<_>>()?;
    library.sync()?;
    let (before, disk_before) = (Counters::of(fs)?, disk.map(LoopDevice::counts).transpose()?);
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
    let (cpu, disk) = (cpu.since()?, counts_since(disk, disk_before)?);
    let after = Counters::of(fs)?;
    let seen = Seen { files: each * THREADS as u64, wall, cpu, server: None, disk };
    let values = values(&seen, &before, &after)?;
    let command = format!("# {option}; {THREADS} threads, a directory and {each} files of 4 KiB each; sync");
    Ok(Round { values, command })
}

fn on_the_mount(run: &Run<'_>, ground: Ground, option: &'static str, each: u64) -> Result<Round> {
    let shell = &run.place.shell;
    let disk = loop_device(run, ground, "kedge")?;
    let image = disk.as_ref().map_or("kedge.img", |disk| disk.path.as_str());
    let mut lines = vec![
        format!("kedge mkfs {image}"),
        "mkdir kedge".into(),
        format!("kedge mount -o {option},{CACHE} {image} kedge"),
    ];
    if disk.is_none() {
        lines.insert(0, mounts::make_file("kedge", run.settings.size, false));
    }
    let mounted = Mounted::kedge_by(shell, &lines)?;
    let dirs: Vec<_> = (0..THREADS).map(|i| mounted.path().join(format!("{i}"))).collect();
    dirs.iter().try_for_each(std::fs::create_dir)?;
    let server = mounted.server()?;
    let (before, disk_before) =
        (Counters::of_mount(shell, mounted.name())?, disk.as_ref().map(LoopDevice::counts).transpose()?);
    let (clock, cpu, server_cpu) = (SystemClock::default(), Cpu::now()?, Cpu::of(&server)?);
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
    let (cpu, server) = (cpu.since()?, Cpu::of(&server)?.less(server_cpu));
    let disk_counts = counts_since(disk.as_ref(), disk_before)?;
    let after = Counters::of_mount(shell, mounted.name())?;
    mounted.end()?;
    let seen = Seen { files: each * THREADS as u64, wall, cpu, server: Some(server), disk: disk_counts };
    let values = values(&seen, &before, &after)?;
    let command = format!(
        "{}; # {THREADS} threads, a directory and {each} files of 4 KiB each; sync -f kedge",
        lines.last().map_or("", String::as_str)
    );
    Ok(Round { values, command })
}

/// A short run has too little data for the last bar.
fn bars(outcome: &Outcome, place: &str, quick: bool) -> Vec<Bar> {
    let mut bars = vec![
        Bar::change(outcome, WRITES, Want::AtMost(-94.6)),
        Bar::change(outcome, RATE, Want::AtLeast(62.7)),
        Bar::change(outcome, CPU, Want::AtMost(-13.3)),
    ];
    if outcome.metrics.iter().any(|metric| metric.name == KERNEL_WRITES) {
        bars.push(Bar::change(outcome, KERNEL_WRITES, Want::AtMost(-94.6)));
    }
    if !quick {
        bars.push(Bar::new(outcome, HARD_LIMITS, "", Want::AtLeast(HARD_LIMITS_WANTED), |at| {
            at(0, HARD_LIMITS).min(at(1, HARD_LIMITS))
        }));
    }
    bars.iter_mut().for_each(|bar| bar.what = format!("{place}, {}", bar.what));
    bars
}

#[cfg(test)]
#[path = "writeback_tests.rs"]
mod tests;
