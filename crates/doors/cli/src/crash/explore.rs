//! `kedge crash explore`: tries the crash states of a recording.

use super::again::Recoveries;
use super::effort::Effort;
use super::judge::{Built, Judge};
use super::reports::Reports;
use super::{load, usage};
use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kedge_crash::again::Again;
use kedge_crash::report::Told;
use kedge_crash::{Campaign, Ended, Hear, Model, Phase, Progress, Report, SearchOrder, Trace};
use kedge_host::os::TerminationSignals;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The budget of states if the user sets neither states nor time.
const STATES_DEFAULT: u64 = 10_000;
const RECOVERIES_DEFAULT: u64 = 32;
/// Exit code: no verdict. The checker, the recording or the machine is faulty, the budget ended
/// before any crash state, or a signal ended the search.
pub const NO_VERDICT: u8 = 3;
/// Exit code: the only failures lie before the first promise, and no file was there at the start.
pub const ONLY_EARLY: u8 = 4;
const PROGRESS_MILLIS: u64 = 250;

/// The exit codes as `--help` shows them. The man page has a section of its own.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  no failure was found
  1  the check fails on a state that a crash may leave
  2  wrong usage
  3  no verdict: the check fails without any crash or cannot be run, there is no room for a state,
     the recording cannot be read, the budget ended before any crash state was tried, or a signal
     came before a failure was found
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
    #[command(flatten)]
    effort: Effort,
    /// The order in which states are tried
    #[arg(long, value_name = "ORDER", default_value = "updates", value_parser = order_parser())]
    order: SearchOrder,
    /// Checkers to run in parallel [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    #[command(flatten)]
    reports: Reports,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
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

/// Returns a flag that the first signal sets: running checkers are then ended and the findings
/// reported. The second signal ends the process; a later run removes the files that it leaves.
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
    if args.effort.again.is_some() && model.is_disk {
        return Err(usage("--again cannot crash recoveries of a device"));
    }
    let recorder = args.effort.again.map(|_| Recoveries::new(&checker, &args.judge, &stop)).transpose()?;
    let report = search(&args, model, &loaded.trace, &checker, recorder.as_ref(), stop.clone());
    let cut = super::cut(&loaded);
    let (name, judge) = (recording.to_string_lossy(), args.judge.name());
    let told =
        Told { report: &report, trace: &loaded.trace, name: &name, checker: &judge, cut: cut.as_deref() };
    args.reports.deliver(&told)?;
    if let Built::Infer(checker) = &checker {
        eprintln!("kedge: {}", checker.summary());
    }
    let was_stopped = stop.load(Ordering::Relaxed);
    let outcome = &report.outcome;
    let is_judged = outcome.broken.is_none() && report.fails_uncrashed.is_none() && outcome.states > 0;
    let is_ended = outcome.ended != Ended::Stopped && !was_stopped;
    let end = Judged { failed: report.failed(), is_early: report.is_early(), passed: report.passed() };
    Ok(end.code(is_judged, is_ended))
}

/// Searches the crash states. With `--again` it then crashes the recoveries, unless the check could
/// not judge or a signal ended the search.
fn search(
    args: &Args,
    model: Model,
    trace: &Trace,
    checker: &Built,
    recorder: Option<&Recoveries<'_>>,
    stop: Arc<AtomicBool>,
) -> Report {
    let processors = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = args.jobs.map_or_else(processors, usize::from);
    let budget = args.effort.budget(STATES_DEFAULT, jobs, args.order, stop);
    let shown = Shown::new(args.quiet);
    let hear = |progress| shown.show(progress);
    let hear = Some(&hear as Hear<'_>);
    let mut report = Campaign { trace, model, checker, budget: budget.clone(), hear }.run();
    let is_sound = report.outcome.broken.is_none()
        && report.fails_uncrashed.is_none()
        && report.outcome.ended != Ended::Stopped;
    if let (true, Some(depth), Some(recorder)) = (is_sound, args.effort.again, recorder) {
        let recoveries = args.effort.again_recoveries.unwrap_or(RECOVERIES_DEFAULT);
        let again = Again { checker, recorder, depth, recoveries, budget, hear };
        report.again = Some(again.run(trace, model, &report.outcome));
    }
    shown.end();
    report
}

/// Shows the progress of a search on a terminal.
pub struct Shown {
    is_shown: bool,
    /// When and in which phase the progress was last drawn, as one number.
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

/// The result of a search, from which the exit code follows.
pub struct Judged {
    pub failed: bool,
    /// All failures lie before the first promise, and no file was there at the start.
    pub is_early: bool,
    pub passed: bool,
}

impl Judged {
    /// The exit code. `is_judged`: the check can judge. `is_ended`: no signal ended the search.
    pub fn code(&self, is_judged: bool, is_ended: bool) -> ExitCode {
        ExitCode::from(match self {
            _ if !is_judged => NO_VERDICT,
            Judged { failed: true, is_early: true, .. } => ONLY_EARLY,
            Judged { failed: true, .. } => crate::FAILURE,
            Judged { passed: true, .. } if is_ended => 0,
            _ => NO_VERDICT,
        })
    }
}

#[cfg(test)]
#[path = "explore_tests.rs"]
mod tests;
