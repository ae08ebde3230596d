//! `kedge-lab`: experiments that compare KedgeFS with other file systems, on this machine.
//!
//! `kedge-lab` is a separate program, so that the installed `kedge` contains no benchmark code.
//! Mounts are made by the `kedge` in the same directory. Exit codes: 0 success, 1 failure or a
//! missed bar, 2 wrong usage. An error is one line on stderr.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand, ValueEnum};
use kedge_bench::baseline::{self, Part};
use kedge_bench::compare::{self, Peer, Places};
use kedge_bench::reproduce::{self, Asked, Experiment, LogSize, On};
use kedge_bench::{Interrupt, Settings, curves, scale};
use kedge_host::os::TerminationSignals;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// In a smaller image, the log and ext4's journal would take most of the space.
const SIZE_MIN: u64 = 256 << 20;
const FAILURE: u8 = 1;
const USAGE: u8 = 2;

#[derive(Parser, Debug)]
#[command(name = "kedge-lab", version, about = "Experiments that compare KedgeFS with other file systems")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Compare KedgeFS with another file system
    #[command(subcommand)]
    Bench(Bench),
    /// Measure a published change of another file system with the switch for the same change
    Reproduce {
        experiment: Experiment,
        #[command(flatten)]
        common: Common,
        /// Run only this part; may be repeated
        #[arg(long, value_name = "WHERE")]
        only: Vec<reproduce::Part>,
        /// checkpoint: only images with this log (default: both, with --quick the small one)
        #[arg(long, value_name = "WHICH")]
        log: Option<LogSize>,
        /// Exit with 1 if a bar is missed, and print each missed bar
        #[arg(long)]
        check: bool,
        #[command(flatten)]
        machine: SimulatedArgs,
    },
    /// Draw curves from the report of an experiment on simulated processors
    Plot {
        /// A report in Markdown
        #[arg(value_name = "REPORT")]
        report: PathBuf,
        /// Write the picture, an SVG file, to FILE
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Run one load in this process and print its figures as JSON
    #[command(hide = true)]
    Processors {
        load: String,
        #[arg(long, default_value = "default")]
        rule: String,
        #[arg(long)]
        short: bool,
        /// On the first N processors of this process
        #[arg(long, value_name = "N", value_parser = processors, required_unless_present = "simulated")]
        real: Option<usize>,
        /// On simulated processors
        #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = processors, conflicts_with = "real")]
        simulated: Vec<usize>,
        /// What the simulated processors cost, as another run measured it
        #[arg(long, value_name = "NS,…", value_delimiter = ',', conflicts_with = "real")]
        costs: Vec<u64>,
    },
}

#[derive(clap::Args, Debug)]
struct SimulatedArgs {
    /// Run the loads on simulated processors instead, in virtual time
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = processors, conflicts_with_all = ["only", "log"])]
    processors: Vec<usize>,
    /// With --processors: run them on one and two real processors, too
    #[arg(long, requires = "processors")]
    validate: bool,
}

#[derive(Subcommand, Debug)]
enum Bench {
    /// Creates, fsyncs and lookups by 64 threads on simulated processors: what stops scaling first
    Processors {
        #[command(flatten)]
        common: Common,
        #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = processors, default_value = "1,4,16,64")]
        processors: Vec<usize>,
        /// Run them on one and two real processors, too
        #[arg(long)]
        validate: bool,
    },
    /// fs_mark, dbench and loops in process: KedgeFS and ext4 on a loop device (needs root; without
    /// it, only what remains)
    Baseline {
        #[command(flatten)]
        common: Common,
        /// Only this part; may be repeated
        #[arg(long, value_name = "PART")]
        only: Vec<Part>,
    },
    /// Everything beside everything: KedgeFS mounted and in process, ext4, XFS, Btrfs, fuse2fs,
    /// redoxfs, and what bounds them (most of it needs root; what is missing is named)
    Compare(CompareArgs),
    /// How costs grow: operations by the number of files up to ten million, fsck, and opening an
    /// image after a crash with a full log
    Scale {
        #[command(flatten)]
        common: Common,
        /// Write a plot of each to FILE, too
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Exit with 1 if a bar is missed, and print each missed bar
        #[arg(long)]
        check: bool,
    },
    /// What Linux's file systems changed after the experiments of `reproduce`: renames after an
    /// fsync, durable direct writes, and what an fsync writes beside ext4 (most of it needs root)
    Later {
        #[command(flatten)]
        common: Common,
        /// Exit with 1 if a bar is missed, and print each missed bar
        #[arg(long)]
        check: bool,
    },
    /// What distance costs: durable writes, and small files with fsync in this process, on images
    /// in files, behind NBD (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH) and on Ceph
    /// (rbd:POOL/IMAGE). Their contents are lost
    Remote {
        /// Files, devices or URIs that exist and hold nothing of value, and directories of mounted
        /// file systems
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
        rounds: u64,
        /// For each number of clients
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
    },
}

#[derive(clap::Args, Debug)]
struct CompareArgs {
    /// Directory for images: on a disk, not in memory (default: below the current directory)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of each image (default: 4G, with --quick 1G)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Counted rounds for each contestant
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: Option<u64>,
    /// Few and short rounds, to show that it works
    #[arg(long)]
    quick: bool,
    /// Only these contestants beside KedgeFS, which always takes part: mounted, unless `library` is
    /// named without `kedge`
    #[arg(long, value_name = "PEER,…", value_delimiter = ',')]
    peers: Vec<Peer>,
    /// An earlier version's `kedge`, which takes part as `before`
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Only loads whose title has TEXT in it; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Where clients and servers may run
    #[arg(long, value_enum, default_value_t)]
    places: PlacesWord,
    /// Write the report as JSON to FILE, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as a page with charts to FILE, too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Exit with 1 if a bar is missed, and print each missed bar
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, ValueEnum, Debug, Default)]
enum PlacesWord {
    /// Each load twice: anywhere, then all on one processor
    #[default]
    Both,
    /// Where the kernel puts them
    Free,
    /// On one processor
    One,
}

impl PlacesWord {
    fn places(self) -> &'static [Places] {
        match self {
            PlacesWord::Both => &[Places::Free, Places::OneProcessor],
            PlacesWord::Free => &[Places::Free],
            PlacesWord::One => &[Places::OneProcessor],
        }
    }
}

/// Options of all experiments.
#[derive(clap::Args, Debug)]
struct Common {
    /// Directory for images: on a disk, not in memory (default: below the current directory)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of each image (default: 8G, with --quick 2G)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Counted rounds for each contestant
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: Option<u64>,
    /// Few and short rounds, to show that it works
    #[arg(long)]
    quick: bool,
    /// Write the images full before they are used, so that the host has no blocks to allocate under
    /// them
    #[arg(long)]
    written: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown
    #[arg(long)]
    markdown: bool,
    /// Write the report to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand || !e.use_stderr() => {
            let code = if e.use_stderr() { USAGE } else { 0 };
            return ExitCode::from(if e.print().is_ok() { code } else { FAILURE });
        }
        Err(e) => {
            let text = e.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let text = text.split("\n\nUsage:").next().unwrap_or(text);
            let text = text.split("\n\nFor more").next().unwrap_or(text);
            eprintln!("kedge-lab: {} (see kedge-lab --help)", one_line(text));
            return ExitCode::from(USAGE);
        }
    };
    let outcome = match cli.command {
        Command::Bench(Bench::Baseline { common, only }) => bench_baseline(&common, &only),
        Command::Bench(Bench::Compare(args)) => bench_compare(&args),
        Command::Bench(Bench::Scale { common, svg, check }) => bench_scale(&common, svg.as_deref(), check),
        Command::Bench(Bench::Later { common, check }) => bench_later(&common, check),
        Command::Bench(Bench::Remote { images, rounds, seconds }) => bench_remote(&images, rounds, seconds),
        Command::Bench(Bench::Processors { common, processors, validate }) => {
            bench_processors(&common, None, processors, validate, false)
        }
        Command::Reproduce { experiment, common, check, machine, .. } if !machine.processors.is_empty() => {
            bench_processors(&common, Some(experiment), machine.processors, machine.validate, check)
        }
        Command::Reproduce { experiment, common, only, log, check, .. } => {
            reproduce_one(experiment, &common, &only, log, check)
        }
        Command::Plot { report, out } => plot(&report, &out),
        Command::Processors { load, rule, short, real, simulated, costs } => {
            let on = real.map_or(On::Simulated { counts: simulated, costs }, On::Real);
            one_load(&load, &rule, short, &on)
        }
    };
    outcome.unwrap_or_else(|e| {
        eprintln!("kedge-lab: {}", one_line(&format!("{e:#}")));
        ExitCode::from(FAILURE)
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn bench_baseline(common: &Common, only: &[Part]) -> Result<ExitCode> {
    let report = baseline::run(&common.settings()?, &asked(only))?;
    common.print(&report)
}

/// The values of an option that may be repeated; all possible values if it was not given.
fn asked<T: ValueEnum + PartialEq>(only: &[T]) -> Vec<T> {
    let all = T::value_variants().iter();
    all.filter(|word| only.is_empty() || only.contains(word)).cloned().collect()
}

fn bench_compare(args: &CompareArgs) -> Result<ExitCode> {
    let peers = compare::contestants(&args.peers, args.before.is_some());
    ensure!(
        args.before.is_some() || !args.peers.contains(&Peer::Before),
        "`before` takes part with --before PROGRAM"
    );
    let loads = compare::loads(&args.only);
    ensure!(!loads.is_empty(), "no load has \"{}\" in its title", args.only.join("\" or \""));
    args.json.iter().chain(&args.html).try_for_each(|file| can_be_kept(file))?;
    let common = Common {
        dir: args.dir.clone(),
        size: Some(args.size.unwrap_or(if args.quick { 1 << 30 } else { 4 << 30 })),
        rounds: args.rounds,
        quick: args.quick,
        written: true,
        json: false,
        markdown: false,
        out: None,
    };
    let before = args.before.as_ref().map(|program| program.canonicalize());
    let before = before.transpose().context("find the program of --before")?;
    let settings = Settings { before, ..common.settings()? };
    let report = compare::run(&settings, &peers, &loads, args.places.places())?;
    let write = |file: &PathBuf, text: String| {
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
    };
    if let Some(file) = &args.json {
        write(file, report.json().context("write the report as JSON")? + "\n")?;
    }
    if let Some(file) = &args.html {
        write(file, compare::page::html(&report))?;
    }
    Ok(judged(&report, args.check, common.print(&report)?))
}

fn plot(report: &Path, out: &Path) -> Result<ExitCode> {
    let text = std::fs::read_to_string(report).with_context(|| format!("read {}", report.display()))?;
    let picture = curves::svg(&text).with_context(|| format!("draw {}", report.display()))?;
    std::fs::write(out, picture).with_context(|| format!("write {}", out.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn bench_scale(common: &Common, svg: Option<&Path>, check: bool) -> Result<ExitCode> {
    if let Some(file) = svg {
        can_be_kept(file)?;
    }
    let settings = common.settings()?;
    let size = common.size.unwrap_or(if common.quick { 2 << 30 } else { 24 << 30 });
    let report = scale::run(&Settings { size, ..settings })?;
    if let Some(file) = svg {
        std::fs::write(file, scale::svg(&report)).with_context(|| format!("write {}", file.display()))?;
    }
    let code = common.print(&report)?;
    Ok(judged(&report, check, code))
}

fn bench_later(common: &Common, check: bool) -> Result<ExitCode> {
    let report = reproduce::run_later(&common.settings()?)?;
    let code = common.print(&report)?;
    Ok(judged(&report, check, code))
}

/// Checks that a report can be written, before minutes of measurement whose report would be lost.
fn can_be_kept(file: &Path) -> Result<()> {
    let opened = std::fs::File::options().append(true).create(true).open(file);
    opened.map(drop).with_context(|| format!("open {}", file.display()))
}

/// Prints the missed bars if they are to be checked, and returns the exit code.
fn judged(report: &kedge_bench::Report, check: bool, code: ExitCode) -> ExitCode {
    let missed = report.missed();
    missed.iter().filter(|_| check).for_each(|line| eprintln!("kedge-lab: bar missed: {line}"));
    if check && !missed.is_empty() { ExitCode::from(FAILURE) } else { code }
}

fn bench_remote(images: &[String], rounds: u64, seconds: u64) -> Result<ExitCode> {
    let each = std::time::Duration::from_secs(seconds);
    let table = kedge_bench::remote::run(images, rounds as usize, each, |line| eprintln!("{line}"))?;
    std::io::stdout().lock().write_all(table.as_bytes()).context("print the table")?;
    Ok(ExitCode::SUCCESS)
}

fn reproduce_one(
    experiment: Experiment,
    common: &Common,
    only: &[reproduce::Part],
    log: Option<LogSize>,
    check: bool,
) -> Result<ExitCode> {
    let report = reproduce::run(&common.settings()?, experiment, &asked(only), log)?;
    let code = common.print(&report)?;
    Ok(judged(&report, check, code))
}

fn bench_processors(
    common: &Common,
    experiment: Option<Experiment>,
    processors: Vec<usize>,
    validate: bool,
    check: bool,
) -> Result<ExitCode> {
    let asked = Asked { processors, validate };
    let report = reproduce::run_simulated(&common.settings()?, experiment, &asked)?;
    let code = common.print(&report)?;
    Ok(judged(&report, check, code))
}

fn one_load(load: &str, rule: &str, short: bool, on: &On) -> Result<ExitCode> {
    let answer = reproduce::answer(load, rule, short, on)?;
    let text = serde_json::to_string(&answer).context("write the figures as JSON")? + "\n";
    std::io::stdout().lock().write_all(text.as_bytes()).context("print the figures")?;
    Ok(ExitCode::SUCCESS)
}

/// Limit of simulated processors: the machine keeps sets of processors in 64 bits.
const PROCESSORS_MAX: usize = 64;

fn processors(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=PROCESSORS_MAX) => Ok(count),
        _ => Err(format!("a number of processors is 1 to {PROCESSORS_MAX}")),
    }
}

/// Returns the `kedge` next to this program, which the same `cargo build` made. A `kedge` on the
/// PATH could be of another version.
fn kedge_beside_this() -> Result<PathBuf> {
    let this = std::env::current_exe().context("find this program")?;
    let kedge = this.with_file_name("kedge");
    ensure!(
        kedge.is_file(),
        "{} does not exist: build it with `cargo build --release -p kedge`",
        kedge.display()
    );
    Ok(kedge)
}

impl Common {
    /// Also installs handlers for the signals that would end the program, since mounts have to be
    /// undone.
    fn settings(&self) -> Result<Settings> {
        let kedge = kedge_beside_this()?;
        let signals = TerminationSignals::block().context("block signals")?;
        let interrupt = Interrupt::new(end_group);
        let raise = interrupt.clone();
        // The thread is not joined: it waits until the process ends.
        kedge_base::spawn_named("signals", move || {
            while let Ok(signal) = signals.wait() {
                eprintln!("kedge-lab: signal {signal}: cleaning up");
                raise.raise();
            }
        })
        .context("start a thread")?;
        Ok(Settings {
            dir: self.dir.clone(),
            size: self.size.unwrap_or(if self.quick { 2 << 30 } else { 8 << 30 }),
            rounds: self.rounds.map(|n| n as usize),
            quick: self.quick,
            written: self.written,
            kedge,
            before: None,
            interrupt,
            progress: |line| eprintln!("{line}"),
        })
    }

    fn print(&self, report: &kedge_bench::Report) -> Result<ExitCode> {
        let text = if self.json {
            report.json().context("write the report as JSON")? + "\n"
        } else if self.markdown {
            report.markdown()
        } else {
            report.text()
        };
        match &self.out {
            Some(file) => {
                std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
            }
            None => std::io::stdout().lock().write_all(text.as_bytes()).context("print the report")?,
        }
        Ok(if report.failed() { ExitCode::from(FAILURE) } else { ExitCode::SUCCESS })
    }
}

fn size(text: &str) -> Result<u64, String> {
    match kedge_base::parse_size(text)? {
        bytes if bytes >= SIZE_MIN => Ok(bytes >> 20 << 20),
        _ => Err("the images need at least 256M".into()),
    }
}

/// If the group no longer exists, its processes have ended, as requested.
fn end_group(leader: u32) {
    if let Some(leader) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(leader, Signal::TERM);
    }
}
