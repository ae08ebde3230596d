//! Published changes of other file systems, measured with the equivalent switch of KedgeFS.
//!
//! Each experiment is a module with the published figures, the contests and the bars. A new one
//! needs a variant of [`Experiment`] and a function that pushes sections and bars into a `Run`.
//!
//! If the switch can be changed while mounted, the old and the new behaviour take turns on one
//! image.

mod checkpoint;
mod cpu;
mod dbench;
mod delay;
mod fdatasync;
mod later;
mod marks;
mod overwrite;
mod processors;
mod rename;
mod stress;
mod sync;
mod tracking;
mod tree_lock;
mod writeback;

use crate::Settings;
pub use processors::{Asked, On, answer};

use crate::bars::Bar;
use crate::contest::{Contestant, Plan};
use crate::library::Library;
use crate::mounts::{self, Mounted};
use crate::place::{Machine, Place};
use crate::report::{Report, Section};
use crate::shell::need;
use anyhow::{Result, bail};
use clap::ValueEnum;
use delay::DelayedFlush;
use kedge_device::{FileDevice, MemDevice, OpenOptions};
use kedgefs::{FormatOptions, MountOptions};
use std::sync::Arc;
use std::time::Duration;

/// A mount option with a fixed cache size: the size of a load depends on the cache, whose default
/// depends on the machine's memory.
const CACHE: &str = "cache_size=256M";

/// The experiments that can be reproduced.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Experiment {
    /// Btrfs: rename and link no longer force the log (new_name)
    Rename,
    /// XFS: fdatasync no longer forces the log for time stamps (fdatasync)
    Fdatasync,
    /// ext4: checkpoints in the background (async_checkpoint)
    Checkpoint,
    /// Btrfs: tree latches no longer go back from blocking to spinning (tree_lock)
    TreeLock,
    /// Linux: one plug for the writeback of many files (plug)
    Writeback,
    /// Linux: dirty inodes tracked by file system, and what sync examines (dirty_tracking)
    Sync,
}

impl Experiment {
    fn title(self) -> &'static str {
        match self {
            Experiment::Rename => "reproduce rename",
            Experiment::Fdatasync => "reproduce fdatasync",
            Experiment::Checkpoint => "reproduce checkpoint",
            Experiment::TreeLock => "reproduce tree-lock",
            Experiment::Writeback => "reproduce writeback",
            Experiment::Sync => "reproduce sync",
        }
    }

    /// Number of rounds by default. Experiments with short rounds need more of them, because of
    /// noise.
    fn rounds(self) -> usize {
        match self {
            Experiment::Fdatasync => 9,
            _ => 5,
        }
    }
}

/// Where an experiment runs.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Part {
    /// On a mount
    Mount,
    /// The library in this process
    Process,
    /// The library on a device in memory whose flushes take a millisecond
    Model,
}

/// Names of contestants.
const EXT4: &str = "ext4";
const XFS: &str = "XFS";

/// The size of the log in the checkpoint experiment.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum LogSize {
    /// In proportion to few files, so that it wraps often
    Small,
    /// As mkfs makes it
    Default,
}

impl LogSize {
    fn words(self) -> &'static str {
        match self {
            LogSize::Small => "small log",
            LogSize::Default => "default log",
        }
    }
}

/// Runs the experiment and makes the report. Fails, without a report, if a tool is missing, the
/// directory is unusable, or an interrupt came. `log`: `None` for all sizes, in a short run for the
/// small one.
pub fn run(
    settings: &Settings,
    experiment: Experiment,
    parts: &[Part],
    log: Option<LogSize>,
) -> Result<Report> {
    if log.is_some() && experiment != Experiment::Checkpoint {
        bail!("--log: only the checkpoint experiment has logs of two sizes");
    }
    let body = |run: &mut Run<'_>| match experiment {
        Experiment::Rename => rename::run(run),
        Experiment::Fdatasync => fdatasync::run(run),
        Experiment::Checkpoint => checkpoint::run(run),
        Experiment::TreeLock => tree_lock::run(run),
        Experiment::Writeback => writeback::run(run),
        Experiment::Sync => sync::run(run),
    };
    report(settings, experiment.title(), experiment.rounds(), parts, log, body)
}

/// Runs the experiment on simulated processors. `None` stands for the loads that show what stops
/// scaling in KedgeFS.
pub fn run_simulated(settings: &Settings, experiment: Option<Experiment>, asked: &Asked) -> Result<Report> {
    match experiment {
        Some(experiment) => report(settings, experiment.title(), experiment.rounds(), &[], None, |run| {
            processors::run(run, experiment, asked)
        }),
        None => report(settings, "bench processors", 3, &[], None, |run| processors::own(run, asked)),
    }
}

/// Measures on this machine what Linux's file systems changed after these experiments.
pub fn run_later(settings: &Settings) -> Result<Report> {
    report(settings, "bench later", 5, &later::PARTS, None, later::run)
}

fn report(
    settings: &Settings,
    title: &'static str,
    rounds: usize,
    parts: &[Part],
    log: Option<LogSize>,
    body: impl FnOnce(&mut Run<'_>) -> Result<()>,
) -> Result<Report> {
    let place = Place::new(settings)?;
    let rounds = settings.rounds.unwrap_or(if settings.quick { 2 } else { rounds });
    let mut machine = Machine::look(&place)?;
    let mut run = Run {
        settings,
        place: &place,
        plan: Plan { rounds, interrupt: &settings.interrupt, progress: settings.progress },
        parts,
        durable_write: machine.durable_write[0],
        log,
        sections: Vec::new(),
        bars: Vec::new(),
        notes: Vec::new(),
        failures: Vec::new(),
    };
    if place.in_memory() {
        run.note(format!(
            "The images are on {}, in memory, where a flush costs nothing: use --dir on a disk.",
            place.host
        ));
    }
    body(&mut run)?;
    let Run { sections, bars, notes, failures, .. } = run;
    machine.durable_write.push(place.durable_write()?);
    let version = env!("CARGO_PKG_VERSION");
    Ok(Report { experiment: title, version, machine, rounds, sections, bars, notes, failures })
}

struct Run<'a> {
    settings: &'a Settings,
    place: &'a Place,
    plan: Plan<'a>,
    parts: &'a [Part],
    /// Microseconds of a durable write, before the experiment.
    durable_write: f64,
    log: Option<LogSize>,
    sections: Vec<Section>,
    bars: Vec<Bar>,
    notes: Vec<String>,
    failures: Vec<String>,
}

/// A file system that could not be made takes part as a failed contestant.
type Made<T> = Result<T, String>;

impl<'a> Run<'a> {
    fn does(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    fn note(&mut self, note: String) {
        (self.settings.progress)(&note);
        self.notes.push(note);
    }

    /// Returns one of two values: for a short run, or for a full one.
    fn pick<T>(&self, quick: T, full: T) -> T {
        if self.settings.quick { quick } else { full }
    }

    /// Returns the number of items for a short run or a full one. On small images, which are for
    /// trials, it is a tenth.
    fn work(&self, quick: u64, full: u64) -> u64 {
        self.pick(quick, full) / if self.settings.size < SMALL_IMAGE { 10 } else { 1 }
    }

    /// Number of dbench's clients: as many as in the published run, or fewer on a small image,
    /// which cannot hold all their files.
    fn clients(&self) -> usize {
        if self.settings.size < SMALL_IMAGE { 2 } else { 16 }
    }

    fn need(&self, tools: &[&str]) -> Result<()> {
        tools.iter().try_for_each(|tool| need(tool).map(drop))
    }

    /// An interrupt is an error of the experiment. Any other error only makes the contestant fail.
    fn made<T>(&self, made: Result<T>) -> Result<Made<T>> {
        self.settings.interrupt.check()?;
        Ok(made.map_err(|e| format!("{e:#}")))
    }

    fn kedge(&self) -> Result<Made<Mounted<'a>>> {
        self.made(Mounted::kedge(&self.place.shell, self.settings.size, self.settings.written))
    }

    /// ext4 and XFS on loop mounts, which need root. Their commands are added to `setup`.
    fn ext4_and_xfs(&self, setup: &mut Vec<String>) -> Result<Vec<(&'static str, Made<Mounted<'a>>)>> {
        if !self.place.root {
            return Ok(Vec::new());
        }
        let (shell, size, written) = (&self.place.shell, self.settings.size, self.settings.written);
        setup.extend(mounts::ext4_lines(size, written));
        setup.extend(mounts::xfs_lines(size, written));
        Ok(vec![
            (EXT4, self.made(Mounted::ext4(shell, size, written))?),
            (XFS, self.made(Mounted::xfs(shell, size, written))?),
        ])
    }

    /// A file system that keeps no data, behind the same mount: its figure is the cost of FUSE and
    /// the kernel, not of KedgeFS. `None` if its program is missing, which is noted.
    fn null(&mut self) -> Result<Option<Made<Mounted<'a>>>> {
        match mounts::null_program(&self.settings.kedge) {
            Ok(program) => self.made(Mounted::null(&self.place.shell, &program)).map(Some),
            Err(why) => {
                self.note(format!("Left out: {NULL} ({why})."));
                Ok(None)
            }
        }
    }

    /// The library on an image file, which [`Run::end_library`] removes.
    fn library(&self, format: &FormatOptions, options: MountOptions) -> Result<Made<Library>> {
        let image = self.place.shell.dir.join(LIBRARY_IMAGE);
        let device = FileDevice::create(&image, self.settings.size, OpenOptions::default());
        self.made(device.map_err(anyhow::Error::from).and_then(|d| Library::on(d, format, options)))
    }

    /// The library for measurements in which only flushes matter: on a device in memory whose
    /// flushes take a millisecond.
    fn model(&self, options: MountOptions) -> Result<Made<Library>> {
        let device = Arc::new(DelayedFlush::new(Arc::new(MemDevice::new(MODEL_IMAGE)), MODEL_FLUSH));
        self.made(Library::on(device, &FormatOptions::default(), options))
    }

    fn end_library(&mut self, library: Made<Library>) {
        if let Ok(library) = library
            && let Err(e) = library.close()
        {
            self.failures.push(format!("{e:#}"));
        }
        // The image may not exist. In any case it is removed with the experiment's directory.
        let _ = std::fs::remove_file(self.place.shell.dir.join(LIBRARY_IMAGE));
    }

    fn end<'m>(&mut self, mounts: impl IntoIterator<Item = Made<Mounted<'m>>>) {
        for mounted in mounts.into_iter().flatten() {
            if let Err(e) = mounted.end() {
                self.failures.push(format!("{e:#}"));
            }
        }
    }
}

/// Bytes below which an image is small: dbench's 16 clients have up to 384 MB of files.
const SMALL_IMAGE: u64 = 1 << 30;
const MODEL_IMAGE: u64 = 1 << 30;
const MODEL_FLUSH: Duration = Duration::from_millis(1);
const LIBRARY_IMAGE: &str = "library.img";
/// The name in tables of the file system that keeps no data.
const NULL: &str = "null";
pub(crate) const LIBRARY_SETUP: &str =
    "# FileDevice::create(\"library.img\"), FileSystem::format, FileSystem::open";

fn contestant<'c, T>(
    name: &'static str,
    made: &'c Made<T>,
    body: impl Fn(&T, u64) -> Result<crate::contest::Round> + 'c,
) -> Contestant<'c> {
    Contestant::new(name, move |amount| match made {
        Ok(target) => body(target, amount),
        Err(e) => bail!("{e}"),
    })
}

#[cfg(test)]
#[path = "reproduce_tests.rs"]
mod tests;
