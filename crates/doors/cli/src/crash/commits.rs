//! A crash test of one commit of a repository, for `bisect` and `watch`.
//!
//! The commit is checked out in a worktree of its own, so that the user's files stay as they are.
//! The build, the recording and the search are run as commands, as a user would run them. Their
//! exit codes decide the verdict.

use super::usage;
use anyhow::{Context, Result, bail};
use regex::Regex;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The environment variables that git sets for its hooks. They name the repository in which the
/// hook runs, and would override the worktree.
const GIT_VARIABLES: [&str; 4] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"];

/// The worktree's name in its temporary directory.
const TREE: &str = "tree";

/// What is done with each commit.
#[derive(clap::Args, Debug)]
pub struct Test {
    /// A shell command that builds a commit, in its top directory
    #[arg(long, value_name = "COMMAND")]
    build: Option<OsString>,
    /// As for record: matching lines are promises
    #[arg(long, value_name = "REGEX")]
    ack: Option<Regex>,
    /// As for record: initial contents of the directory
    #[arg(long, value_name = "DIR|IMAGE")]
    from: Option<PathBuf>,
    /// As for explore: the command that judges a state
    #[arg(long, value_name = "COMMAND", required_unless_present = "checker", conflicts_with = "checker")]
    check: Option<OsString>,
    /// As for explore: a checker that is built in
    #[arg(long, value_name = "NAME")]
    checker: Option<OsString>,
    /// As for explore: what the file system may lose
    #[arg(long)]
    model: Option<OsString>,
    /// As for explore: the limit of the search
    #[arg(long, value_name = "TIME|STATES")]
    budget: Option<OsString>,
    /// The command to record, in the commit's top directory; $KEDGE_DIR is the directory that it
    /// must use
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// The crash test fails; the text is the first cause.
    Bad(String),
    /// The commit cannot be tested, for this reason.
    None(String),
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Good => f.write_str("good"),
            Verdict::Bad(cause) => write!(f, "bad: {cause}"),
            Verdict::None(why) => write!(f, "no verdict: {why}"),
        }
    }
}

/// A worktree in which commits are tested one after another.
pub struct Commits<'a> {
    test: &'a Test,
    repository: PathBuf,
    /// Holds the worktree and the recording, and is removed with both.
    place: tempfile::TempDir,
}

impl Drop for Commits<'_> {
    fn drop(&mut self) {
        let worktree = self.worktree();
        let words: [&OsStr; 4] =
            ["worktree".as_ref(), "remove".as_ref(), "--force".as_ref(), worktree.as_ref()];
        if let Err(e) = git(&self.repository, &words) {
            eprintln!("kedge: {} is left in the list of worktrees: {e:#}", worktree.display());
        }
    }
}

impl<'a> Commits<'a> {
    /// Makes a worktree of the repository that contains the current directory.
    pub fn new(test: &'a Test) -> Result<Commits<'a>> {
        let here = std::env::current_dir().context("find the present directory")?;
        let top = git(&here, &["rev-parse", "--show-toplevel"].map(OsStr::new))?;
        let place =
            tempfile::Builder::new().prefix("kedge-commits-").tempdir().context("make a directory")?;
        let repository = PathBuf::from(top.trim_end());
        let worktree = place.path().join(TREE);
        let words: [&OsStr; 4] =
            ["worktree".as_ref(), "add".as_ref(), "--detach".as_ref(), worktree.as_ref()];
        git(&repository, &words)?;
        Ok(Commits { test, repository, place })
    }

    fn worktree(&self) -> PathBuf {
        self.place.path().join(TREE)
    }

    /// The hash of a commit of the user's repository.
    pub fn find(&self, name: &str) -> Result<String> {
        let name = format!("{name}^{{commit}}");
        let words = ["rev-parse", "--verify", "--end-of-options", &name].map(OsStr::new);
        Ok(git(&self.repository, &words)?.trim_end().to_owned())
    }

    /// Runs git in the worktree.
    pub fn git(&self, words: &[&str]) -> Result<String> {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        git(&self.worktree(), &words)
    }

    /// The short hash and the first line of the commit that is checked out.
    pub fn shown(&self) -> Result<String> {
        Ok(self.git(&["show", "--no-patch", "--format=%h %s", "HEAD"])?.trim_end().to_owned())
    }

    pub fn check_out(&self, hash: &str) -> Result<()> {
        self.git(&["checkout", "--force", "--detach", hash]).map(drop)
    }

    /// Tests the commit that is checked out.
    pub fn test(&self) -> Result<Verdict> {
        if let Some(build) = &self.test.build {
            let built = self.run(Command::new("sh").arg("-c").arg(build))?;
            if !built.status.success() {
                return Ok(Verdict::None(format!("it does not build: {}", last_line(&built))));
            }
        }
        let recording = self.place.path().join("run.kcr");
        let report = self.place.path().join("report.json");
        let mut record = this_program("record")?;
        let test = self.test;
        let ack = test.ack.as_ref().map(|ack| OsString::from(ack.as_str()));
        for (name, value) in [("--ack", &ack), ("--from", &self.from()?)] {
            if let Some(value) = value {
                record.arg(name).arg(value);
            }
        }
        let recorded = self.run(record.arg("-o").arg(&recording).arg("--").args(&test.command))?;
        if !recorded.status.success() {
            return Ok(Verdict::None(last_line(&recorded)));
        }
        let mut explore = this_program("explore")?;
        for (name, value) in [
            ("--check", &test.check),
            ("--checker", &test.checker),
            ("--model", &test.model),
            ("--budget", &test.budget),
        ] {
            if let Some(value) = value {
                explore.arg(name).arg(value);
            }
        }
        let mut json = OsString::from("--json=");
        json.push(&report);
        let explored = self.run(explore.arg("--quiet").arg(json).arg(&recording))?;
        match explored.status.code() {
            Some(0) => Ok(Verdict::Good),
            Some(1 | 4) => Ok(Verdict::Bad(first_cause(&report)?)),
            Some(2) => bail!(usage(&words_of(&explored))),
            _ => Ok(Verdict::None(why_without_verdict(&explored))),
        }
    }

    /// The absolute path of `--from`, which the user names relative to the current directory.
    fn from(&self) -> Result<Option<OsString>> {
        let from = self.test.from.as_ref().map(std::path::absolute).transpose().context("find --from")?;
        Ok(from.map(PathBuf::into_os_string))
    }

    /// Runs a command in the worktree and waits for it alone. Its output goes to files: a server
    /// that the command leaves behind would keep a pipe open.
    fn run(&self, command: &mut Command) -> Result<Output> {
        let name = command.get_program().to_string_lossy().into_owned();
        let scratch = || tempfile::NamedTempFile::new_in(self.place.path()).context("make a file for output");
        let (stdout, stderr) = (scratch()?, scratch()?);
        command.current_dir(self.worktree()).stdin(Stdio::null());
        command.stdout(stdout.as_file().try_clone()?).stderr(stderr.as_file().try_clone()?);
        for variable in GIT_VARIABLES {
            command.env_remove(variable);
        }
        let status = command.status().with_context(|| format!("run {name}"))?;
        Ok(Output { status, stdout: std::fs::read(stdout.path())?, stderr: std::fs::read(stderr.path())? })
    }
}

fn this_program(subcommand: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.args(["crash", subcommand]);
    Ok(command)
}

/// Runs git in a directory; returns what it prints.
fn git(dir: &Path, words: &[&OsStr]) -> Result<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(words).stdin(Stdio::null());
    for variable in GIT_VARIABLES {
        command.env_remove(variable);
    }
    let out = command.output().context("run git")?;
    if !out.status.success() {
        let what = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        bail!("git {what}: {}", last_line(&out));
    }
    String::from_utf8(out.stdout).context("what git prints")
}

/// The last line that is not blank of standard error, else of standard output, else the exit
/// status.
fn last_line(out: &Output) -> String {
    let lines = [&out.stderr, &out.stdout].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let last = lines.iter().find_map(|text| text.lines().rev().find(|line| !line.trim().is_empty()));
    last.map_or_else(|| out.status.to_string(), str::to_owned)
}

/// Why a search has no verdict: its error message, or the first line of its report.
fn why_without_verdict(out: &Output) -> String {
    let report = String::from_utf8_lossy(&out.stdout);
    match report.lines().next() {
        Some(line) if out.stderr.is_empty() => line.trim_start_matches("no verdict: ").to_owned(),
        _ => words_of(out),
    }
}

/// The error message of this program, without the prefix `kedge: `.
fn words_of(out: &Output) -> String {
    let line = last_line(out);
    line.strip_prefix("kedge: ").map(str::to_owned).unwrap_or(line)
}

fn first_cause(report: &Path) -> Result<String> {
    let text = std::fs::read_to_string(report).with_context(|| format!("read {}", report.display()))?;
    let report: serde_json::Value = serde_json::from_str(&text).context("read the report")?;
    let sentence = report["causes"][0]["sentence"].as_str();
    Ok(sentence.unwrap_or("failing states without one cause").to_owned())
}
