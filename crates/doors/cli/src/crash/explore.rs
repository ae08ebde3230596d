//! `kedge crash explore`.

use super::{load, parse_time, usage};
use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kedge_crash::report::Told;
use kedge_crash::{
    Budget, Campaign, Checker, CommandChecker, Ended, FilesChecker, Model, Pattern, Phase, Progress, Report,
    SHIPPED, Shipped, ShippedChecker, Trace,
};
use kedge_host::options::parse_size;
use kedge_host::os::TerminationSignals;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The budget of states if the user sets neither states nor time.
const STATES_DEFAULT: u64 = 10_000;
/// Exit code: no verdict. The checker, the recording or the machine is faulty, or a signal ended
/// the search.
pub const NO_VERDICT: u8 = 3;
const PROGRESS_MILLIS: u64 = 250;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recording
    #[arg(required_unless_present = "checker")]
    recording: Option<PathBuf>,
    #[command(flatten)]
    judge: Judge,
    /// What the file system may lose (see kedge crash models)
    #[arg(long, value_parser = super::model_parser(), default_value = "posix")]
    model: Model,
    /// Limit: a number of states, or a time such as 5m
    #[arg(long, value_name = "TIME|STATES", value_parser = parse_budget)]
    budget: Option<Limit>,
    /// Limit of the time in which failing states are shrunk and explained; 0: do not explain
    /// [default: the budget's time, at least 30s; no limit without such a budget]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    explain: Option<Duration>,
    /// Stop after this number of failing states
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_failures: Option<u64>,
    /// Seed of the random part
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Checkers to run in parallel [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Print the report as JSON, or write it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = true)]
    json: Option<PathBuf>,
    /// Write the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// The options that say how a state is checked.
#[derive(clap::Args, Debug, Clone)]
pub struct Judge {
    /// A shell command that exits 0 if the program recovers from the state in its working
    /// directory. A relative path at its beginning, such as ./check.sh, is first searched for in
    /// the current directory
    #[arg(long, value_name = "CMD")]
    pub check: Option<String>,
    /// Judge without a command: each file is complete, old or new, and everything promised to the
    /// user is there
    #[arg(long, conflicts_with = "check")]
    pub check_files: bool,
    /// Judge with a checker that comes with kedge; `list` shows what each of them judges
    #[arg(long, value_name = "NAME", value_parser = checker_parser(), conflicts_with_all = ["check", "check_files"])]
    pub checker: Option<Chosen>,
    /// With --checker: the files to judge, by a pattern of their path, such as `conf/*.json`; may
    /// be repeated [default: those that the checker finds by itself]
    #[arg(long, value_name = "PATTERN")]
    pub files: Vec<String>,
    /// With --checker sqlite: every promise must be a row of this query
    #[arg(long, value_name = "SQL")]
    pub query: Option<String>,
    /// Time limit of a checker; a slower one fails
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "30s")]
    pub timeout: Duration,
    /// Limit on the address space of a checker
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Directory for states [default: in memory, /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
}

impl Judge {
    /// The checker, as reports show it.
    pub fn name(&self) -> String {
        match (&self.check, self.checker) {
            (Some(command), _) => command.clone(),
            (None, Some(Chosen::Row(row))) => {
                let files = self.files.iter().map(|files| format!(" --files {files}"));
                let query = self.query.iter().map(|query| format!(" --query {query:?}"));
                format!("--checker {}{}", row.name, files.chain(query).collect::<String>())
            }
            _ if self.check_files => "--check-files".to_owned(),
            _ => "none".to_owned(),
        }
    }

    /// Prints the table of checkers, if that is what the user asked for.
    pub fn list(&self) -> bool {
        let is_asked = self.checker == Some(Chosen::List);
        if is_asked {
            for row in SHIPPED {
                println!("{:8} {}", row.name, row.about);
                match row.command() {
                    Some(command) => command.lines().for_each(|line| println!("{:10} {line}", "")),
                    None => println!("{:10} (judged by kedge itself)", ""),
                }
            }
        }
        is_asked
    }

    /// Builds the checker. When `stop` is set, the checker ends its running command.
    pub fn build(&self, trace: &Trace, stop: &Arc<AtomicBool>) -> Result<Option<Box<dyn Checker>>> {
        // clap's `requires` would not do: beside --check, which excludes --checker, it asks
        // nothing.
        if self.checker.is_none() && (!self.files.is_empty() || self.query.is_some()) {
            return Err(usage("--files and --query need --checker NAME"));
        }
        if let Some(command) = &self.check {
            let here = std::env::current_dir().context("find the present directory")?;
            return Ok(Some(Box::new(self.runner(&found_from(command, &here), stop)?)));
        }
        if let Some(Chosen::Row(row)) = self.checker {
            return Ok(Some(Box::new(self.shipped(row, trace, stop)?)));
        }
        Ok(self.check_files.then(|| Box::new(FilesChecker::new(trace)) as Box<dyn Checker>))
    }

    fn runner(&self, command: &str, stop: &Arc<AtomicBool>) -> Result<CommandChecker> {
        let mut runner = CommandChecker::new(command, self.timeout, self.memory, self.work.as_deref())
            .context("make a directory for the states")?;
        runner.stop = stop.clone();
        Ok(runner)
    }

    fn shipped(
        &self,
        row: &'static Shipped,
        trace: &Trace,
        stop: &Arc<AtomicBool>,
    ) -> Result<ShippedChecker> {
        if self.query.is_some() && !row.takes_query() {
            return Err(usage(&format!("--checker {} takes no --query", row.name)));
        }
        if self.files.is_empty() && row.needs_files() {
            return Err(usage(&format!("--checker {} needs --files PATTERN", row.name)));
        }
        let runner = row.command().map(|command| self.runner(command, stop)).transpose()?;
        let patterns = self.files.iter().map(|text| Pattern::new(text)).collect();
        ShippedChecker::new(row, trace, patterns, self.query.as_deref(), runner).map_err(anyhow::Error::msg)
    }
}

/// What `--checker` names.
#[derive(Clone, Copy)]
pub enum Chosen {
    List,
    Row(&'static Shipped),
}

impl PartialEq for Chosen {
    fn eq(&self, other: &Chosen) -> bool {
        self.name() == other.name()
    }
}

impl std::fmt::Debug for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Chosen {
    fn name(self) -> &'static str {
        match self {
            Chosen::List => LIST,
            Chosen::Row(row) => row.name,
        }
    }
}

const LIST: &str = "list";

/// A parser of checkers, which completions and man pages list.
fn checker_parser() -> impl TypedValueParser<Value = Chosen> {
    let rows = SHIPPED.iter().map(|row| PossibleValue::new(row.name).help(row.about));
    let list = PossibleValue::new(LIST).help("print what each checker judges, and how");
    PossibleValuesParser::new(rows.chain([list]))
        .map(|name| Shipped::by_name(&name).map_or(Chosen::List, Chosen::Row))
}

/// Makes a relative path at the beginning of the command absolute, if that file exists: the command
/// runs in the directory of the state, while `./check.sh` means a file in the current directory.
/// Words that a shell would expand, and commands found by `PATH`, are not changed.
fn found_from(command: &str, here: &Path) -> String {
    let command = command.trim_start();
    let end = command.find(char::is_whitespace).unwrap_or(command.len());
    let (word, rest) = command.split_at(end);
    let is_plain = word.chars().all(|c| c.is_alphanumeric() || "/._-+@%,".contains(c));
    if !is_plain || word.starts_with('/') || !word.contains('/') || !here.join(word).is_file() {
        return command.to_owned();
    }
    match here.join(word).to_str() {
        Some(path) => format!("'{}'{rest}", path.replace('\'', "'\\''")),
        None => command.to_owned(),
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Limit {
    States(u64),
    Time(Duration),
}

fn parse_budget(text: &str) -> Result<Limit, String> {
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
        return Err(usage("no checker is given: --check 'CMD', --checker NAME or --check-files"));
    };
    let (states, time) = match args.budget {
        None => (Some(STATES_DEFAULT), None),
        Some(Limit::States(n)) => (Some(n), None),
        Some(Limit::Time(t)) => (None, Some(t)),
    };
    let processors = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = args.jobs.map_or_else(processors, usize::from);
    let (failures, explain) = (args.max_failures, args.explain);
    let budget = Budget { states, time, explain, failures, seed: args.seed, jobs, stop };
    let shown = AtomicU64::new(0);
    let is_shown = !args.quiet && std::io::stderr().is_terminal();
    let hear = |progress: Progress| {
        // Draw every quarter of a second, and when explaining begins.
        let now = u64::try_from(progress.time.as_millis()).unwrap_or(u64::MAX) / PROGRESS_MILLIS;
        let now = now * 2 + u64::from(progress.phase == Phase::Explain);
        if is_shown && shown.swap(now, Ordering::Relaxed) != now {
            eprint!("\r\x1b[K{}", progress_line(progress));
        }
    };
    let campaign =
        Campaign { trace: &loaded.trace, model: args.model, checker: &*checker, budget, hear: Some(&hear) };
    let report = campaign.run();
    if is_shown {
        eprint!("\r\x1b[K");
    }
    let cut = super::cut(&loaded);
    let (name, checker) = (recording.to_string_lossy(), args.judge.name());
    let told =
        Told { report: &report, trace: &loaded.trace, name: &name, checker: &checker, cut: cut.as_deref() };
    deliver(&args, &told)?;
    Ok(ExitCode::from(exit_code(&report)))
}

fn progress_line(progress: Progress) -> String {
    let Progress { phase, checked, failing, time } = progress;
    let seconds = time.as_secs_f64();
    match phase {
        Phase::Search => format!("{checked} states, {failing} failing, {seconds:.0} s "),
        Phase::Explain => format!("explaining {failing} failing states: {checked} checks, {seconds:.0} s "),
    }
}

fn exit_code(report: &Report) -> u8 {
    let outcome = &report.outcome;
    let is_judged = outcome.broken.is_none() && report.fails_uncrashed.is_none() && outcome.states > 0;
    match is_judged {
        true if report.failed() => crate::FAILURE,
        true if outcome.ended != Ended::Stopped => 0,
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
