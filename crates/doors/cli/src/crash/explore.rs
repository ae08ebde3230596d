//! `kedge crash explore`.

use super::again::Recoveries;
use super::judge::{Built, Judge};
use super::{load, parse_time, usage};
use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kedge_crash::again::Again;
use kedge_crash::report::Told;
use kedge_crash::{Budget, Campaign, Ended, Hear, Model, Phase, Progress, Report, SearchOrder, Trace};
use kedge_host::os::TerminationSignals;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The budget of states if the user sets neither states nor time.
const STATES_DEFAULT: u64 = 10_000;
const RECOVERIES_DEFAULT: u64 = 32;
/// Exit code: no verdict. The checker, the recording or the machine is faulty, or a signal ended
/// the search.
pub const NO_VERDICT: u8 = 3;
/// Exit code: the only failures lie before the first promise, and no file was there at the start.
pub const ONLY_EARLY: u8 = 4;
const PROGRESS_MILLIS: u64 = 250;

/// For `--help`; the man page has its own section.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  no failure was found
  1  the check fails on a state that a crash may leave
  2  wrong usage
  3  no verdict: the check fails without any crash or cannot be run, there is no room for a state,
     the recording cannot be read, or a signal came before a failure was found
  4  the check fails only on states before the first promise, and no file was there at the start";

#[derive(clap::Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub struct Args {
    /// The recording
    #[arg(required_unless_present = "checker")]
    recording: Option<PathBuf>,
    #[command(flatten)]
    judge: Judge,
    /// What the file system may lose (see kedge crash models) [default: posix; disk for a recorded
    /// device]
    #[arg(long, value_parser = super::model_parser(&super::every_model()))]
    model: Option<Model>,
    /// Limit of the search: a number of states, or a time such as 5m [default: 10000 states]
    #[arg(long, value_name = "TIME|STATES", value_parser = parse_budget)]
    budget: Option<Limit>,
    /// Limit of the time in which failing states are shrunk and explained; 0: do not explain
    /// [default: the budget's time, at least 30s; no limit without such a budget]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    explain: Option<Duration>,
    /// Record what the check does in crash states, crash that recovery as well, and its recovery in
    /// turn, up to N deep
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    again: Option<u32>,
    /// With --again: recoveries to crash at each depth
    #[arg(long, value_name = "N", default_value_t = RECOVERIES_DEFAULT, value_parser = clap::value_parser!(u64).range(1..))]
    again_recoveries: u64,
    /// Stop after this number of failing states
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_failures: Option<u64>,
    /// Seed of the random part
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The order in which states are tried
    #[arg(long, value_name = "ORDER", default_value = "updates", value_parser = order_parser())]
    order: SearchOrder,
    /// Checkers to run in parallel [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Print the report as JSON, or write it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = true)]
    json: Option<PathBuf>,
    /// Write the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the findings as SARIF 2.1.0, for code scanning; with `record --backtrace` they have
    /// places in the sources below the current directory
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Limit {
    States(u64),
    Time(Duration),
}

/// A parser of orders, which completions and man pages list.
fn order_parser() -> impl TypedValueParser<Value = SearchOrder> {
    let values = [
        PossibleValue::new("updates").help("one state for each way in which the program updates files first"),
        PossibleValue::new("turns").help("a state of each list of suspicious states in turn"),
    ];
    PossibleValuesParser::new(values).map(|name| match name.as_str() {
        "turns" => SearchOrder::Turns,
        _ => SearchOrder::Updates,
    })
}

pub fn parse_budget(text: &str) -> Result<Limit, String> {
    let limit = match text.parse() {
        Ok(states) => Limit::States(states),
        Err(_) => Limit::Time(parse_time(text)?),
    };
    match limit {
        Limit::States(0) | Limit::Time(Duration::ZERO) => Err("nothing could be tried".into()),
        limit => Ok(limit),
    }
}

/// A flag that the first signal sets: running checkers are then ended and the findings reported.
/// The second signal ends the process; a later run removes the files that it leaves.
pub fn stop_at_signals() -> Result<Arc<AtomicBool>> {
    let signals = TerminationSignals::block().context("block signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    // The thread is detached: it waits forever and ends with the process.
    kedge_base::spawn_named("signals", move || {
        loop {
            match signals.wait() {
                Ok(_) if !flag.swap(true, Ordering::Relaxed) => {}
                Ok(signal) => std::process::exit(128 + signal),
                Err(e) => return tracing::error!("cannot wait for signals: {e}"),
            }
        }
    })
    .context("start a thread")?;
    Ok(stop)
}

pub fn run(args: Args) -> Result<ExitCode> {
    if args.judge.list() {
        return Ok(ExitCode::SUCCESS);
    }
    let Some(recording) = &args.recording else {
        return Err(usage("no recording is given: kedge crash explore FILE"));
    };
    let stop = stop_at_signals()?;
    let loaded = load(recording)?;
    let Some(checker) = args.judge.build(&loaded.trace, &stop)? else {
        return Err(usage(
            "no checker is given: --check 'CMD', --checker NAME, --infer 'CMD' or --check-files",
        ));
    };
    let model = super::model_for(args.model, &loaded.trace)?;
    if args.again.is_some() && model.is_disk {
        return Err(usage("--again cannot crash recoveries of a device"));
    }
    let recorder = args.again.map(|_| Recoveries::new(&checker, &args.judge, &stop)).transpose()?;
    let report = search(&args, model, &loaded.trace, &checker, recorder.as_ref(), stop.clone());
    let cut = super::cut(&loaded);
    let (name, judge) = (recording.to_string_lossy(), args.judge.name());
    let told =
        Told { report: &report, trace: &loaded.trace, name: &name, checker: &judge, cut: cut.as_deref() };
    deliver(&args, &told)?;
    if let Built::Infer(checker) = &checker {
        eprintln!("kedge: {}", checker.summary());
    }
    let was_stopped = stop.load(Ordering::Relaxed);
    Ok(ExitCode::from(exit_code(&report, was_stopped)))
}

/// Searches, and crashes the recoveries if that is asked for and makes sense.
fn search(
    args: &Args,
    model: Model,
    trace: &Trace,
    checker: &Built,
    recorder: Option<&Recoveries<'_>>,
    stop: Arc<AtomicBool>,
) -> Report {
    let (states, time) = match args.budget {
        None => (Some(STATES_DEFAULT), None),
        Some(Limit::States(n)) => (Some(n), None),
        Some(Limit::Time(t)) => (None, Some(t)),
    };
    let processors = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = args.jobs.map_or_else(processors, usize::from);
    let (failures, explain) = (args.max_failures, args.explain);
    let (seed, order) = (args.seed, args.order);
    let budget = Budget { states, time, explain, failures, seed, order, jobs, stop };
    let shown = Shown::new(args.quiet);
    let hear = |progress| shown.show(progress);
    let hear = Some(&hear as Hear<'_>);
    let mut report = Campaign { trace, model, checker, budget: budget.clone(), hear }.run();
    let is_sound = report.outcome.broken.is_none()
        && report.fails_uncrashed.is_none()
        && report.outcome.ended != Ended::Stopped;
    if let (true, Some(depth), Some(recorder)) = (is_sound, args.again, recorder) {
        let recoveries = args.again_recoveries;
        let again = Again { trace, model, checker, recorder, depth, recoveries, budget, hear };
        report.again = Some(again.run());
    }
    shown.end();
    report
}

/// Shows the progress of a search on a terminal.
pub struct Shown {
    is_shown: bool,
    /// The quarter of a second and the phase that were shown last.
    last: AtomicU64,
}

impl Shown {
    pub fn new(is_quiet: bool) -> Shown {
        Shown { is_shown: !is_quiet && std::io::stderr().is_terminal(), last: AtomicU64::new(0) }
    }

    /// Draws every quarter of a second, and when another phase begins.
    pub fn show(&self, progress: Progress) {
        let now = u64::try_from(progress.time.as_millis()).unwrap_or(u64::MAX) / PROGRESS_MILLIS;
        let now = now * 3 + progress.phase as u64;
        if self.is_shown && self.last.swap(now, Ordering::Relaxed) != now {
            eprint!("\r\x1b[K{}", progress_line(progress));
        }
    }

    pub fn end(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

fn progress_line(progress: Progress) -> String {
    let Progress { phase, checked, failing, time } = progress;
    let seconds = time.as_secs_f64();
    match phase {
        Phase::Search => format!("{checked} states, {failing} failing, {seconds:.0} s "),
        Phase::Explain => format!("explaining {failing} failing states: {checked} checks, {seconds:.0} s "),
        Phase::Again => {
            format!("crashing recoveries: {checked} states, {failing} failing, {seconds:.0} s ")
        }
    }
}

fn exit_code(report: &Report, was_stopped: bool) -> u8 {
    let outcome = &report.outcome;
    let is_judged = outcome.broken.is_none() && report.fails_uncrashed.is_none() && outcome.states > 0;
    match is_judged {
        true if report.failed() && report.is_early() => ONLY_EARLY,
        true if report.failed() => crate::FAILURE,
        true if report.passed() && outcome.ended != Ended::Stopped && !was_stopped => 0,
        _ => NO_VERDICT,
    }
}

fn deliver(args: &Args, told: &Told<'_>) -> Result<()> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    };
    if let Some(path) = &args.junit {
        write(path, &told.junit())?;
    }
    if let Some(path) = &args.sarif {
        let here = std::env::current_dir().context("find the present directory")?;
        write(path, &told.sarif(&here))?;
    }
    if let Some(path) = &args.html {
        write(path, &told.html())?;
    }
    let json = args.json.as_ref().map(|path| (path, told.json_text()));
    match json {
        Some((path, json)) if path == Path::new("-") => print!("{json}"),
        json => {
            if let Some((path, json)) = json {
                write(path, &json)?;
            }
            print!("{}", told.text());
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "explore_tests.rs"]
mod tests;
