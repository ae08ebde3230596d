//! How costs grow: those of operations and of fsck with the number of files, and that of opening an
//! image after a crash with the fill of its log.
//!
//! 1. *Operations*, in process: the number of files in an image (its *population*) grows from size
//!    to size. At each size, each kind of operation is timed as a whole, in a separate directory
//!    that is filled and emptied. The last kind looks up random files of the population: it reads
//!    from the device once they no longer fit into the cache.
//! 2. *fsck*: the command checks the same image, closed.
//! 3. *Opening after a crash*: the log is filled up to a fraction of its size without a checkpoint,
//!    by creations alone or by small files with an fsync each. Then the file system stops as in a
//!    crash. The image is opened in process, and a copy of it by `kedge mount`.

mod crash;

use crate::bars::{Bar, Want};
use crate::contest::{Better, Metric, Outcome, Side};
use crate::library::Library;
use crate::place::{Machine, Place};
use crate::plot::{self, Panel};
use crate::report::{Reading, Report, Section};
use crate::sample::Sample;
use crate::{Interrupt, Settings};
use anyhow::{Result, ensure};
use kedge_base::{Clock, SystemClock};
use kedge_device::{FileDevice, OpenOptions};
use kedgefs::{FormatOptions, Ino, MountOptions, Owner, RenameMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::PathBuf;

/// Numbers of files of the population, and their names in the report.
const SIZES: [(&str, u64); 7] = [
    ("10,000", 10_000),
    ("30,000", 30_000),
    ("100,000", 100_000),
    ("300,000", 300_000),
    ("1,000,000", 1_000_000),
    ("3,000,000", 3_000_000),
    ("10,000,000", 10_000_000),
];
const QUICK_SIZES: usize = 4;
/// The size at which fsck has a bar.
const FSCK_SIZE: &str = "1,000,000";
const IN_DIR: u64 = 1_000;
/// One in this many files has a block of data.
const WRITTEN: u64 = 10;
const BLOCK: [u8; 4096] = [0x6b; 4096];
/// Files between two checks for an interrupt.
const LOOK_AGAIN: u64 = 1_024;

const OPERATIONS: [&str; 6] =
    ["create", "look up", "write 4 KiB", "rename", "unlink", "look up any file of all"];

/// Limit of the factor by which an operation's cost grows. The limits that follow are in seconds.
const GROWTH: f64 = 1.5;
const FSCK_SECONDS: f64 = 10.0;
const OPEN_SECONDS: f64 = 1.0;

const COSTS: &str = "cost of an operation, by the number of files";
const FSCK: &str = "fsck, by the number of files";
const OPENING: &str = "opening after a crash, by the part of the log that was full";

/// Runs the measurements and makes the report. Fails if there is nothing to report.
pub fn run(settings: &Settings) -> Result<Report> {
    let place = Place::new(settings)?;
    let rounds = settings.rounds.unwrap_or(if settings.quick { 2 } else { 5 });
    let mut machine = Machine::look(&place)?;
    let sizes = if settings.quick { &SIZES[..QUICK_SIZES] } else { &SIZES };
    let scale = Scale { settings, place: &place, rounds };
    let mut failures = Vec::new();
    let (costs, fsck) = scale.growth(sizes, &mut failures)?;
    let opening = scale.opening(&mut failures)?;
    let bars = bars(&costs, &fsck, &opening);
    let mut notes = vec![
        format!(
            "The population: {IN_DIR} files in each directory, each tenth with a block of 4 KiB. The cache has its default size."
        ),
        format!("Operations are in a directory of their own, {} of each kind; one thread.", scale.each()),
    ];
    if settings.quick {
        notes.push(format!(
            "A short run: up to {} files, a log of {} MiB.",
            sizes[sizes.len() - 1].0,
            scale.log_size() >> 20
        ));
    }
    machine.durable_write.push(place.durable_write()?);
    let section = |title: &'static str, setup: &str, outcome| Section {
        title: title.into(),
        setup: vec![setup.to_owned()],
        outcomes: vec![outcome],
        reading: Reading::Ratio,
    };
    let sections = vec![
        section("Operations in this process", crate::reproduce::LIBRARY_SETUP, costs),
        section("fsck", "kedge fsck -n IMAGE", fsck),
        section(
            "Opening after a crash",
            "# FileSystem::open in this process; kedge mount IMAGE DIR of a copy",
            opening,
        ),
    ];
    let version = env!("CARGO_PKG_VERSION");
    Ok(Report { experiment: "scale", version, machine, rounds, sections, bars, notes, failures })
}

/// A picture of the report: a panel for each section, a line for each metric.
pub fn svg(report: &Report) -> String {
    let panel = |outcome: &Outcome| {
        let bar = match outcome.title.as_str() {
            FSCK if outcome.sides.iter().any(|side| side.name == FSCK_SIZE) => Some(FSCK_SECONDS),
            OPENING => Some(OPEN_SECONDS),
            _ => None,
        };
        Panel::of(outcome, bar)
    };
    let panels: Vec<Panel> = report.outcomes().map(panel).collect();
    let m = &report.machine;
    let caption = format!(
        "KedgeFS {}, {} cores, Linux {}; median of {} rounds",
        report.version, m.cores, m.kernel, report.rounds
    );
    plot::svg("How costs grow", &panels, &caption)
}

struct Scale<'a> {
    settings: &'a Settings,
    place: &'a Place,
    rounds: usize,
}

/// An outcome whose sides were measured one after the other, not in turns.
fn outcome(title: &str, metrics: Vec<Metric>, sides: Vec<(&'static str, Vec<Sample>)>) -> Outcome {
    let side = |(name, samples)| Side { name, command: String::new(), samples, failed: None };
    Outcome {
        title: title.into(),
        metrics,
        goal: None,
        sides: sides.into_iter().map(side).collect(),
        published: vec![],
    }
}

impl Scale<'_> {
    /// Number of operations of each kind in a round.
    fn each(&self) -> u64 {
        if self.settings.quick { 2_000 } else { 20_000 }
    }

    fn log_size(&self) -> u64 {
        if self.settings.quick { 16 << 20 } else { 128 << 20 }
    }

    fn say(&self, line: &str) {
        (self.settings.progress)(line);
    }

    /// Measures the costs of operations, and of fsck, at each size.
    fn growth(
        &self,
        sizes: &[(&'static str, u64)],
        failures: &mut Vec<String>,
    ) -> Result<(Outcome, Outcome)> {
        let image = self.place.shell.dir.join("scale.img");
        let mut population = Population::make(image.clone(), self.settings.size)?;
        let (mut costs, mut checks) = (Vec::new(), Vec::new());
        for (name, files) in sizes.iter().copied() {
            population.grow(files, &self.settings.interrupt)?;
            let samples = population.costs(self.rounds, self.each(), &self.settings.interrupt)?;
            let medians: Vec<String> = samples.iter().map(|s| format!("{:.2}", s.median())).collect();
            self.say(&format!("{name} files: {} µs ({})", medians.join(", "), OPERATIONS.join(", ")));
            costs.push((name, samples));
            population.close()?;
            let sample = self.fsck(name, failures)?;
            checks.push((name, vec![sample]));
            population.reopen()?;
        }
        population.close()?;
        std::fs::remove_file(image)?;
        let cost_metrics = OPERATIONS.map(|name| Metric::new(name, "µs", Better::Lower)).into();
        let fsck_metrics = vec![Metric::new("kedge fsck -n", "s", Better::Lower)];
        Ok((outcome(COSTS, cost_metrics, costs), outcome(FSCK, fsck_metrics, checks)))
    }

    fn fsck(&self, name: &str, failures: &mut Vec<String>) -> Result<Sample> {
        let (clock, mut sample) = (SystemClock::default(), Sample::default());
        for _ in 0..self.rounds.min(3) {
            let started = clock.monotonic();
            let checked = self.place.shell.run("kedge fsck -n scale.img");
            let took = clock.since(started).as_secs_f64();
            self.settings.interrupt.check()?;
            match checked {
                Ok(_) => sample.push(took),
                Err(e) => {
                    failures.push(format!("{name} files: {e:#}"));
                    break;
                }
            }
        }
        self.say(&format!("{name} files: fsck {:.2} s", sample.median()));
        Ok(sample)
    }
}

/// An image with many files.
struct Population {
    image: PathBuf,
    /// `None` while the image is closed.
    library: Option<Library>,
    dirs: Vec<Ino>,
    files: u64,
}

fn file_name(i: u64) -> String {
    format!("file{i:04}")
}

impl Population {
    fn make(image: PathBuf, size: u64) -> Result<Population> {
        let device = FileDevice::create(&image, size, OpenOptions::default())?;
        let library = Library::on(device, &FormatOptions::default(), MountOptions::default())?;
        Ok(Population { image, library: Some(library), dirs: Vec::new(), files: 0 })
    }

    fn library(&self) -> &Library {
        self.library.as_ref().expect("it is open between `reopen` and `close`")
    }

    fn close(&mut self) -> Result<()> {
        match self.library.take() {
            Some(library) => library.close(),
            None => Ok(()),
        }
    }

    fn reopen(&mut self) -> Result<()> {
        let device = FileDevice::open(&self.image, OpenOptions::default())?;
        self.library = Some(Library::open(device, MountOptions::default())?);
        Ok(())
    }

    /// Grows the population to `files`. Returns when nothing is left to write back.
    fn grow(&mut self, files: u64, interrupt: &Interrupt) -> Result<()> {
        let fs = self.library().fs().clone();
        while self.files < files {
            let (dir, at) = ((self.files / IN_DIR) as usize, self.files % IN_DIR);
            if dir == self.dirs.len() {
                let name = format!("dir{dir:06}");
                self.dirs.push(fs.mkdir(Ino::ROOT, name.as_bytes(), 0o755, Owner::default())?.ino);
            }
            if at.is_multiple_of(LOOK_AGAIN) {
                interrupt.check()?;
            }
            let file = fs.create(self.dirs[dir], file_name(at).as_bytes(), 0o644, Owner::default())?.ino;
            if at.is_multiple_of(WRITTEN) {
                ensure!(fs.write(file, 0, &BLOCK)? == BLOCK.len(), "a write was cut short");
            }
            self.files += 1;
        }
        fs.sync()?;
        Ok(fs.checkpoint()?)
    }

    /// The costs of each of [`OPERATIONS`] in microseconds, one value for each round.
    fn costs(&self, rounds: usize, each: u64, interrupt: &Interrupt) -> Result<Vec<Sample>> {
        let mut samples = vec![Sample::default(); OPERATIONS.len()];
        for round in 0..rounds {
            interrupt.check()?;
            let costs = self.round(each, round as u64)?;
            samples.iter_mut().zip(costs).for_each(|(sample, cost)| sample.push(cost));
        }
        Ok(samples)
    }

    fn round(&self, each: u64, seed: u64) -> Result<[f64; OPERATIONS.len()]> {
        let (fs, clock) = (self.library().fs(), SystemClock::default());
        let dir = fs.mkdir(Ino::ROOT, b"work", 0o755, Owner::default())?.ino;
        let (old, new): (Vec<String>, Vec<String>) =
            (0..each).map(|i| (format!("old{i:06}"), format!("new{i:06}"))).unzip();
        let mut inos = Vec::with_capacity(each as usize);
        let cost = |work: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            let started = clock.monotonic();
            work()?;
            Ok(clock.since(started).as_secs_f64() * 1e6 / each as f64)
        };
        let mut rng = SmallRng::seed_from_u64(seed);
        let any: Vec<(Ino, String)> = (0..each)
            .map(|_| {
                let file = rng.random_range(0..self.files);
                (self.dirs[(file / IN_DIR) as usize], file_name(file % IN_DIR))
            })
            .collect();
        let costs = [
            cost(&mut || {
                for name in &old {
                    inos.push(fs.create(dir, name.as_bytes(), 0o644, Owner::default())?.ino);
                }
                Ok(())
            })?,
            cost(&mut || Ok(old.iter().try_for_each(|name| fs.lookup(dir, name.as_bytes()).map(drop))?))?,
            cost(&mut || Ok(inos.iter().try_for_each(|ino| fs.write(*ino, 0, &BLOCK).map(drop))?))?,
            cost(&mut || {
                let mut names = old.iter().zip(&new);
                Ok(names.try_for_each(|(old, new)| {
                    fs.rename(dir, old.as_bytes(), dir, new.as_bytes(), RenameMode::Replace)
                })?)
            })?,
            cost(&mut || Ok(new.iter().try_for_each(|name| fs.unlink(dir, name.as_bytes()))?))?,
            cost(&mut || {
                Ok(any.iter().try_for_each(|(dir, name)| fs.lookup(*dir, name.as_bytes()).map(drop))?)
            })?,
        ];
        fs.rmdir(Ino::ROOT, b"work")?;
        Ok(costs)
    }
}

fn bars(costs: &Outcome, fsck: &Outcome, opening: &Outcome) -> Vec<Bar> {
    let last = costs.sides.len().saturating_sub(1);
    let most = costs.sides.get(last).map_or("", |side| side.name);
    let mut bars: Vec<Bar> = OPERATIONS
        .iter()
        .map(|name| {
            let what = format!("{name}, beside {most} files by 10,000");
            Bar::new(costs, &what, "", Want::AtMost(GROWTH), |at| at(last, name) / at(0, name))
        })
        .collect();
    if let Some(side) = fsck.sides.iter().position(|side| side.name == FSCK_SIZE) {
        let what = format!("{FSCK_SIZE} files");
        bars.push(Bar::new(fsck, &what, "s", Want::AtMost(FSCK_SECONDS), |at| at(side, "kedge fsck -n")));
    }
    let full = opening.sides.len().saturating_sub(1);
    for metric in &opening.metrics {
        bars.push(Bar::new(opening, &metric.name, "s", Want::AtMost(OPEN_SECONDS), |at| {
            at(full, &metric.name)
        }));
    }
    bars
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
