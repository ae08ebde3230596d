//! How a crash state is judged: the options, and the checker that they name.

use super::{parse_time, usage};
use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kedge_crash::check::DeviceAs;
use kedge_crash::loops;
use kedge_crash::{
    Case, Checker, CommandChecker, FilesChecker, InferChecker, Pattern, SHIPPED, Shipped, ShippedChecker,
    Trace, Verdict,
};
use kedge_host::options::parse_size;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

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
    /// Judge without a check: this command restarts the program and shows what it has, which must
    /// be what it shows without a crash
    #[arg(long, value_name = "CMD", conflicts_with_all = ["check", "check_files", "checker"])]
    pub infer: Option<String>,
    /// With --infer: a state may also be what the program had before its last promise
    #[arg(long)]
    pub infer_older: bool,
    /// With --checker: the files to judge, by a pattern of their path, such as `conf/*.json`; may
    /// be repeated [default: those that the checker finds by itself]. With --infer: files that the
    /// command leaves and that are compared
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
    /// With a recorded device: $KEDGE_CRASH_DEVICE is a loop device, not an image file (root)
    #[arg(long = "loop")]
    pub as_loop: bool,
    /// Directory for states [default: in memory, /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
}

/// The options that say how a state of a cluster is checked.
#[derive(clap::Args, Debug, Clone)]
pub struct ClusterJudge {
    /// A shell command that starts the cluster in its working directory, which has a directory for
    /// each node, and exits 0 if all promises are kept. A relative path at its beginning is first
    /// searched for in the current directory
    #[arg(long, value_name = "CMD")]
    pub check: Option<String>,
    /// Judges of one recording, refused with the reason
    #[arg(long, value_name = "CMD", hide = true)]
    infer: Option<String>,
    #[arg(long, value_name = "NAME", hide = true)]
    checker: Option<String>,
    #[arg(long, hide = true)]
    check_files: bool,
    /// Time limit of a check; a slower one fails
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "30s")]
    pub timeout: Duration,
    /// Limit on the address space of a check
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Directory for states [default: in memory, /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
}

impl ClusterJudge {
    /// Refuses the judges that work on one recording only.
    pub fn refuse_others(&self) -> Result<()> {
        if self.infer.is_some() {
            return Err(usage(
                "--infer does not judge a cluster: it would have to start the cluster at each of its moments, and \
                 nodes that catch up with each other show more than they had; give --check 'CMD'",
            ));
        }
        if self.checker.is_some() || self.check_files {
            return Err(usage(
                "--checker and --check-files judge files of one program: give --check 'CMD', or explore the recording \
                 of a node by itself",
            ));
        }
        Ok(())
    }

    /// Builds the checker. When `stop` is set, it ends its running command.
    pub fn build(&self, stop: &Arc<AtomicBool>) -> Result<Option<CommandChecker>> {
        let Some(check) = &self.check else { return Ok(None) };
        let here = std::env::current_dir().context("find the present directory")?;
        let command = found_from(check, &here);
        let mut runner = CommandChecker::new(&command, self.timeout, self.memory, self.work.as_deref())
            .context("make a directory for the states")?;
        runner.stop = stop.clone();
        Ok(Some(runner))
    }
}

impl Judge {
    /// The checker, as reports show it.
    pub fn name(&self) -> String {
        let older = if self.infer_older { " --infer-older" } else { "" };
        match (self.check.as_ref(), self.checker) {
            (Some(command), _) => command.clone(),
            (None, None) if self.infer.is_some() => {
                format!("--infer {:?}{older}", self.infer.as_deref().unwrap_or_default())
            }
            (None, Some(Chosen::Row(row))) => {
                let files = self.files.iter().map(|files| format!(" --files {files}"));
                let query = self.query.iter().map(|query| format!(" --query {query:?}"));
                format!("--checker {}{}", row.name, files.chain(query).collect::<String>())
            }
            _ if self.check_files => "--check-files".to_owned(),
            _ => "none".to_owned(),
        }
    }

    /// Whether a command judges, which may repair what a crash left.
    pub fn runs_a_command(&self) -> bool {
        match self.checker {
            Some(Chosen::Row(row)) => row.command().is_some(),
            _ => self.check.is_some() || self.infer.is_some(),
        }
    }

    /// Whether the user asked for the table of checkers, which is then printed.
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
    pub fn build(&self, trace: &Trace, stop: &Arc<AtomicBool>) -> Result<Option<Built>> {
        // clap's `requires` does not work here: --check conflicts with --checker, and clap then no
        // longer requires --checker.
        let takes_files = self.checker.is_some() || self.infer.is_some();
        if !takes_files && !self.files.is_empty() || self.checker.is_none() && self.query.is_some() {
            return Err(usage("--files and --query need --checker NAME"));
        }
        if self.infer_older && self.infer.is_none() {
            return Err(usage("--infer-older needs --infer 'CMD'"));
        }
        let device = self.device(trace)?;
        if let Some(command) = &self.check {
            let here = std::env::current_dir().context("find the present directory")?;
            let mut runner = self.runner(&found_from(command, &here), stop)?;
            runner.device = device;
            return Ok(Some(Built::Command(runner)));
        }
        if let Some(command) = &self.infer {
            let here = std::env::current_dir().context("find the present directory")?;
            let mut runner = self.runner(&found_from(command, &here), stop)?;
            runner.device = device;
            let files = self.files.iter().map(|text| Pattern::new(text)).collect();
            let checker = InferChecker::new(trace, runner, files, self.infer_older);
            return Ok(Some(Built::Infer(Box::new(checker.map_err(anyhow::Error::msg)?))));
        }
        if let Some(Chosen::Row(row)) = self.checker {
            return Ok(Some(Built::Shipped(Box::new(self.shipped(row, trace, stop)?))));
        }
        Ok(self.check_files.then(|| Built::Files(FilesChecker::new(trace))))
    }

    /// How the checker gets the device, if one was recorded.
    fn device(&self, trace: &Trace) -> Result<Option<DeviceAs>> {
        match (trace.device(), self.as_loop) {
            (None, false) => Ok(None),
            (None, true) => Err(usage("--loop needs the recording of a device")),
            (Some(_), _) if self.checker.is_some() || self.check_files => {
                Err(usage("a recorded device is judged by --check 'CMD' or --infer 'CMD'"))
            }
            (Some(_), false) => Ok(Some(DeviceAs::File)),
            (Some(_), true) => match loops::missing() {
                Some(why) => Err(usage(&format!("--loop: {why}"))),
                None => Ok(Some(DeviceAs::Loop)),
            },
        }
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

/// A checker that the options name.
pub enum Built {
    Command(CommandChecker),
    Infer(Box<InferChecker>),
    Shipped(Box<ShippedChecker>),
    Files(FilesChecker),
}

impl Checker for Built {
    fn check(&self, case: &Case<'_>) -> Verdict {
        match self {
            Built::Command(checker) => checker.check(case),
            Built::Infer(checker) => checker.check(case),
            Built::Shipped(checker) => checker.check(case),
            Built::Files(checker) => checker.check(case),
        }
    }

    fn stage(&self, time: u64) -> usize {
        match self {
            Built::Command(checker) => checker.stage(time),
            Built::Infer(checker) => checker.stage(time),
            Built::Shipped(checker) => checker.stage(time),
            Built::Files(checker) => checker.stage(time),
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
