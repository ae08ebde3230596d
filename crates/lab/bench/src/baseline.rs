//! The figures of docs/PERFORMANCE.md: KedgeFS compared with ext4 on a loop device. Both use images
//! of the same size in the same directory.
//!
//! There are three parts, each on newly made file systems: fs_mark on the mounts, loops in this
//! process on the library (for ext4 through std::fs), and dbench on the mounts. All parts of one
//! report come from one run, so that they measure the same machine.

use crate::Settings;
use crate::contest::{Amount, Better, Contest, Contestant, Goal, Metric, Plan, Round};
use crate::library::{Host, Library, Work, files_per_second};
use crate::mounts::{self, Mounted};
use crate::place::{Machine, Place};
use crate::report::{Reading, Report, Section};
use crate::{parse, shell};
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::borrow::Cow;

/// A part of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Part {
    #[value(name = "fs_mark")]
    FsMark,
    Library,
    Dbench,
}

const THREADS: [usize; 3] = [1, 4, 16];
const DBENCH_CLIENTS: usize = 16;
/// Bytes of the image for each file. ext4 makes one inode for each 16 KiB, and a round must not use
/// up all inodes.
const BYTES_PER_FILE: u64 = 32 << 10;

const KEDGE: &str = "KedgeFS";
const EXT4: &str = "ext4";

const FILES: Metric = Metric { name: Cow::Borrowed(""), unit: "files/s", better: Better::Higher };
const THROUGHPUT: Metric = Metric { name: Cow::Borrowed(""), unit: "MB/s", better: Better::Higher };
const MAX_LATENCY: Metric = Metric { name: Cow::Borrowed(""), unit: "ms at most", better: Better::Lower };

/// Runs the parts and makes the report. Fails, without a report, if the directory is unusable or an
/// interrupt came.
pub fn run(settings: &Settings, parts: &[Part]) -> Result<Report> {
    let place = Place::new(settings)?;
    let rounds = settings.rounds.unwrap_or(if settings.quick { 2 } else { 5 });
    let mut machine = Machine::look(&place)?;
    let mut baseline = Baseline {
        settings,
        place: &place,
        plan: Plan { rounds, interrupt: &settings.interrupt, progress: settings.progress },
        ext4: true,
        notes: Vec::new(),
        failures: Vec::new(),
    };
    baseline.look_around();
    let mut sections = Vec::new();
    for part in parts {
        sections.extend(match part {
            Part::FsMark => baseline.fs_mark()?,
            Part::Library => Some(baseline.library()?),
            Part::Dbench => baseline.dbench()?,
        });
    }
    let Baseline { notes, failures, .. } = baseline;
    machine.durable_write.push(place.durable_write()?);
    let version = env!("CARGO_PKG_VERSION");
    Ok(Report { experiment: "baseline", version, machine, rounds, sections, bars: vec![], notes, failures })
}

struct Baseline<'a> {
    settings: &'a Settings,
    place: &'a Place,
    plan: Plan<'a>,
    /// Whether ext4 can be measured on this machine.
    ext4: bool,
    notes: Vec<String>,
    failures: Vec<String>,
}

/// A file system that could not be made takes part as a failed contestant.
type Made<'a> = Result<Mounted<'a>, String>;

impl<'a> Baseline<'a> {
    fn look_around(&mut self) {
        let missing: Vec<&str> =
            ["mkfs.ext4", "mount", "umount"].into_iter().filter(|t| shell::find(t).is_none()).collect();
        let why = match (self.place.root, &missing[..]) {
            (true, []) => None,
            (true, _) => Some(format!("{} not installed", missing.join(" and "))),
            (false, _) => Some("it takes root to mount it from a loop device".into()),
        };
        if let Some(why) = why {
            self.ext4 = false;
            self.note(format!("Left out: ext4 ({why})."));
        }
        if self.place.in_memory() {
            self.note(format!(
                "The images are on {}, in memory: fsync costs nothing there, so these figures say little. Use --dir on a disk.",
                self.place.host
            ));
        }
        if self.settings.written {
            self.note("The images were written full before they were used.".into());
        }
    }

    fn note(&mut self, note: String) {
        (self.settings.progress)(&note);
        self.notes.push(note);
    }

    fn has_tool(&mut self, tool: &str) -> bool {
        let found = shell::find(tool).is_some();
        if !found {
            self.note(format!("Left out: {tool} (it is not installed)."));
        }
        found
    }

    fn seconds(&self) -> f64 {
        if self.settings.quick { 1.0 } else { 3.0 }
    }

    /// The largest number of files that fits on each of the file systems.
    fn files_max(&self) -> u64 {
        self.settings.size / BYTES_PER_FILE
    }

    fn fs_mark(&mut self) -> Result<Option<Section>> {
        if !self.has_tool("fs_mark") {
            return Ok(None);
        }
        let (kedge, ext4) = (self.kedge()?, self.ext4()?);
        let mut outcomes = Vec::new();
        for threads in THREADS {
            let body = |mounted: &Mounted<'_>, files: u64| {
                mounted.fresh()?;
                let each = (files / threads as u64).max(1);
                let command =
                    format!("fs_mark -d {}/work -D 16 -t {threads} -n {each} -s 4096 -S 1", mounted.name());
                let rate = parse::fs_mark(&self.place.shell.run(&command)?)?;
                Ok(Round { values: vec![rate], command })
            };
            outcomes.push(self.plan.hold(Contest {
                title: format!("fs_mark, {}", threads_word(threads)),
                metrics: vec![FILES],
                amount: self.scaled(100 * threads as u64),
                goal: (threads <= 4).then_some(Goal::Ratio(1.0)),
                contestants: contestants(&kedge, &ext4, body),
            })?);
        }
        let setup = self.setup();
        self.end([Some(kedge), ext4]);
        Ok(Some(Section {
            title: "fs_mark on the mounts: 4 KiB and fsync per file".into(),
            setup,
            outcomes,
            reading: Reading::Ratio,
        }))
    }

    fn dbench(&mut self) -> Result<Option<Section>> {
        if !self.has_tool("dbench") {
            return Ok(None);
        }
        let (kedge, ext4) = (self.kedge()?, self.ext4()?);
        let body = |mounted: &Mounted<'_>, seconds: u64| {
            mounted.fresh()?;
            let command = format!("dbench -t {seconds} -D {}/work {DBENCH_CLIENTS}", mounted.name());
            let sum = parse::dbench(&self.place.shell.run(&command)?)?;
            Ok(Round { values: vec![sum.throughput, sum.max_latency], command })
        };
        let outcome = self.plan.hold(Contest {
            title: format!("dbench, {DBENCH_CLIENTS} clients"),
            metrics: vec![THROUGHPUT, MAX_LATENCY],
            amount: Amount::Fixed(if self.settings.quick { 3 } else { 10 }),
            goal: None,
            contestants: contestants(&kedge, &ext4, body),
        })?;
        let setup = self.setup();
        self.end([Some(kedge), ext4]);
        Ok(Some(Section {
            title: "dbench on the mounts".into(),
            setup,
            outcomes: vec![outcome],
            reading: Reading::Ratio,
        }))
    }

    fn library(&mut self) -> Result<Section> {
        let image = self.place.shell.dir.join("library.img");
        let file = mounts::make_file("library", self.settings.size, self.settings.written);
        let library = self
            .place
            .shell
            .run(&file)
            .and_then(|_| Library::make(&image, self.settings.size))
            .map_err(|e| format!("{e:#}"));
        self.settings.interrupt.check()?;
        let ext4 = self.ext4()?;
        let mut outcomes = Vec::new();
        for (work, threads, goal) in [
            (Work::Empty, 1, Some(Goal::Value(150_000.0))),
            (Work::Empty, 4, None),
            (Work::Synced, 1, Some(Goal::Ratio(3.0))),
            (Work::Synced, 4, Some(Goal::Ratio(3.0))),
            (Work::Synced, 16, Some(Goal::Ratio(3.0))),
        ] {
            outcomes.push(self.in_process(&library, &ext4, work, threads, goal)?);
        }
        if let Ok(library) = library
            && let Err(e) = library.close()
        {
            self.failures.push(format!("{e:#}"));
        }
        let mut setup = vec![
            file,
            "# FileDevice::open(\"library.img\"), FileSystem::format, FileSystem::open, all with defaults"
                .into(),
        ];
        if self.ext4 {
            setup.extend(mounts::ext4_lines(self.settings.size, self.settings.written));
        }
        self.end([ext4]);
        let _ = std::fs::remove_file(image);
        Ok(Section {
            title: "In one process: the library, and ext4 through std::fs".into(),
            setup,
            outcomes,
            reading: Reading::Ratio,
        })
    }

    fn in_process(
        &self,
        library: &Result<Library, String>,
        ext4: &Option<Made<'a>>,
        work: Work,
        threads: usize,
        goal: Option<Goal>,
    ) -> Result<crate::contest::Outcome> {
        let each = move |files: u64| (files / threads as u64).max(1);
        let (title, pilot) = match work {
            Work::Empty => ("empty files", 5000),
            Work::Synced => ("4 KiB + fsync", 100 * threads as u64),
        };
        let command = move |calls: &str, files: u64| {
            let dirs = if work == Work::Empty { "a directory each" } else { "one directory" };
            format!("# {}, {dirs}, {} files each: {calls}", threads_word(threads), each(files))
        };
        let ours = Contestant::new(KEDGE, move |files| {
            let library = library.as_ref().map_err(|e| anyhow::anyhow!("{e}"))?;
            // Syncs, so that no writeback of earlier work remains.
            library.sync()?;
            let rate = files_per_second(library, work, threads, each(files))?;
            let calls = if work == Work::Empty { "fs.create" } else { "fs.create, fs.write, fs.fsync" };
            Ok(Round { values: vec![rate], command: command(calls, files) })
        });
        let theirs = ext4.as_ref().map(|ext4| {
            contestant(EXT4, ext4, move |mounted: &Mounted<'_>, files| {
                mounted.fresh()?;
                let rate = files_per_second(&Host(mounted.path().join("work")), work, threads, each(files))?;
                let calls = match work {
                    Work::Empty => "File::create_new, drop",
                    Work::Synced => "File::create_new, write_all, sync_all, drop",
                };
                Ok(Round { values: vec![rate], command: command(calls, files) })
            })
        });
        self.plan.hold(Contest {
            title: format!("{title}, {}", threads_word(threads)),
            metrics: vec![FILES],
            amount: self.scaled(pilot),
            goal,
            contestants: [ours].into_iter().chain(theirs).collect(),
        })
    }

    fn scaled(&self, pilot: u64) -> Amount {
        let max = self.files_max();
        Amount::Scaled { pilot: pilot.min(max), max, seconds: self.seconds() }
    }

    fn kedge(&self) -> Result<Made<'a>> {
        let made = Mounted::kedge(&self.place.shell, self.settings.size, self.settings.written);
        self.settings.interrupt.check()?;
        Ok(made.map_err(|e| format!("{e:#}")))
    }

    fn ext4(&self) -> Result<Option<Made<'a>>> {
        if !self.ext4 {
            return Ok(None);
        }
        let made = Mounted::ext4(&self.place.shell, self.settings.size, self.settings.written);
        self.settings.interrupt.check()?;
        Ok(Some(made.map_err(|e| format!("{e:#}"))))
    }

    fn setup(&self) -> Vec<String> {
        let mut lines = mounts::kedge_lines(self.settings.size, self.settings.written);
        if self.ext4 {
            lines.extend(mounts::ext4_lines(self.settings.size, self.settings.written));
        }
        lines
    }

    fn end<const N: usize>(&mut self, mounts: [Option<Made<'a>>; N]) {
        for mounted in mounts.into_iter().flatten().flatten() {
            if let Err(e) = mounted.end() {
                self.failures.push(format!("{e:#}"));
            }
        }
    }
}

fn threads_word(threads: usize) -> String {
    if threads == 1 { "1 thread".into() } else { format!("{threads} threads") }
}

fn contestant<'c, 'm: 'c>(
    name: &'static str,
    made: &'c Made<'m>,
    body: impl Fn(&Mounted<'m>, u64) -> Result<Round> + 'c,
) -> Contestant<'c> {
    Contestant::new(name, move |amount| match made {
        Ok(mounted) => body(mounted, amount),
        Err(e) => bail!("{e}"),
    })
}

fn contestants<'c, 'm: 'c>(
    kedge: &'c Made<'m>,
    ext4: &'c Option<Made<'m>>,
    body: impl Fn(&Mounted<'m>, u64) -> Result<Round> + Copy + 'c,
) -> Vec<Contestant<'c>> {
    let theirs = ext4.as_ref().map(|ext4| contestant(EXT4, ext4, body));
    [contestant(KEDGE, kedge, body)].into_iter().chain(theirs).collect()
}
