//! Runs the test programs of a `cargo test` in parallel lanes.
//!
//! Most test programs wait for half of their time: for a device, for the end of a server, for a
//! commit interval. cargo runs them one after another. So cargo's runner only writes down which
//! program it was asked to start, with directory and environment. The programs run when all are
//! built.
//!
//! There are three lanes, and in each the programs run one after another:
//!
//! - The programs of the package `kedge`, which mount, and which examine the mounts of the whole
//!   machine. When they have ended, this lane takes programs of the second lane.
//! - The programs of all other packages.
//! - Programs that use a processor for a third of their time or less. They mount, too, but their
//!   mounts do not disturb other tests. When they have ended, this lane takes programs of the
//!   second lane.

use crate::tally::Tally;
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

/// Environment variable with the directory of the queue.
pub const QUEUE: &str = "KEDGE_TEST_QUEUE";
/// The subcommand of xtask that cargo uses as its runner.
pub const RUNNER: &str = "test-program";
/// The package whose programs run one after another in a lane of their own.
const ALONE: &str = "kedge";
/// Package and name of the programs that mostly wait, which have a lane of their own.
const WAITING: &[(&str, &str)] = &[
    ("kedge", "rbd"),
    ("kedge", "waiting"),
    ("kedge-sim", "commit_timer"),
    ("kedgefs-sqlite", "sqlite"),
    ("kedgefs-capi", "c"),
];

/// A test program to run.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    package: String,
    words: Vec<OsString>,
    dir: PathBuf,
    env: Vec<(OsString, OsString)>,
}

impl Job {
    /// Whether the program is one of [`WAITING`]. Its file name has a hash after the program's
    /// name.
    fn waits(&self) -> bool {
        let file = Path::new(&self.words[0]).file_name().unwrap_or_default().to_string_lossy();
        let name = file.rsplit_once('-').map_or(&*file, |(name, _)| name);
        WAITING.contains(&(self.package.as_str(), name))
    }

    /// Encodes the job as three lists, each of which ends with an empty element, and the values of
    /// the environment. No listed element is empty, and no element contains a zero byte.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut list = |elements: &mut dyn Iterator<Item = &OsStr>| {
            for element in elements {
                bytes.extend_from_slice(element.as_bytes());
                bytes.push(0);
            }
            bytes.push(0);
        };
        list(&mut [OsStr::new(&self.package), self.dir.as_os_str()].into_iter());
        list(&mut self.words.iter().map(OsString::as_os_str));
        list(&mut self.env.iter().map(|(name, _)| name.as_os_str()));
        // A value may be empty, so no empty element ends the values.
        for (_, value) in &self.env {
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Job> {
        let mut parts = bytes.split(|byte| *byte == 0).map(|part| OsString::from_vec(part.to_vec()));
        let mut list = || parts.by_ref().take_while(|part| !part.is_empty()).collect::<Vec<_>>();
        let (place, words, names) = (list(), list(), list());
        let [package, dir] = <[OsString; 2]>::try_from(place).ok()?;
        let env: Vec<_> = names.into_iter().zip(parts).collect();
        Some(Job { package: package.into_string().ok()?, words, dir: dir.into(), env })
    }
}

/// The work of cargo's runner: writes the program into the queue if its file still exists after
/// cargo has ended (that of a documentation test does not). Returns whether it did.
pub fn put_off(words: &[OsString]) -> Result<bool> {
    let Some(queue) = std::env::var_os(QUEUE) else { return Ok(false) };
    let stays = Path::new(&words[0]).parent().is_some_and(|dir| dir.ends_with("deps"));
    if !stays {
        return Ok(false);
    }
    let job = Job {
        package: std::env::var("CARGO_PKG_NAME").unwrap_or_default(),
        words: words.to_vec(),
        dir: std::env::current_dir()?,
        env: std::env::vars_os().filter(|(name, _)| name != QUEUE && !name.is_empty()).collect(),
    };
    let number = fs::read_dir(&queue)?.count();
    let path = Path::new(&queue).join(format!("{number:04}"));
    fs::write(&path, job.encode()).with_context(|| path.display().to_string())?;
    Ok(true)
}

/// A program that has ended: whether it succeeded, and its whole output.
struct Ended {
    ok: bool,
    output: Vec<u8>,
}

/// Runs the programs of the queue. The output of a program is printed when it has ended.
pub fn run(queue: &Path, tally: &mut Tally) -> Result<()> {
    run_by(queue, tally, &run_one)
}

fn run_by(queue: &Path, tally: &mut Tally, run_one: &(dyn Fn(&Job) -> Result<Ended> + Sync)) -> Result<()> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(queue)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    let read = |path: &PathBuf| Job::decode(&fs::read(path).ok()?);
    let jobs: Option<Vec<Job>> = paths.iter().map(read).collect();
    let jobs = jobs.context("read the queue of test programs")?;
    let (waiting, computing): (Vec<&Job>, Vec<&Job>) = jobs.iter().partition(|job| job.waits());
    let (alone, others): (Vec<&Job>, Vec<&Job>) = computing.into_iter().partition(|job| job.package == ALONE);
    let taken = AtomicUsize::new(0);
    let next = || others.get(taken.fetch_add(1, Ordering::Relaxed)).copied();
    let (ended, news) = channel();
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        let lanes: [Box<dyn Iterator<Item = &Job> + Send>; 3] = [
            Box::new(alone.into_iter().chain(iter::from_fn(next))),
            Box::new(iter::from_fn(next)),
            Box::new(waiting.into_iter().chain(iter::from_fn(next))),
        ];
        for mut lane in lanes {
            let ended = ended.clone();
            scope.spawn(move || lane.try_for_each(|job| ended.send((&job.words[0], run_one(job)))));
        }
        drop(ended);
        for (program, outcome) in news {
            let Ended { ok, output } = outcome?;
            std::io::stdout().lock().write_all(&output)?;
            String::from_utf8_lossy(&output).lines().for_each(|line| tally.line(line));
            if !ok {
                failed.push(program.to_string_lossy());
            }
        }
        anyhow::Ok(())
    })?;
    if !failed.is_empty() {
        bail!("{} test programs failed: {}", failed.len(), failed.join(", "));
    }
    Ok(())
}

/// Runs a program. Its output goes to a file: a pipe would stay open as long as any process that
/// the program left running.
fn run_one(job: &Job) -> Result<Ended> {
    let mut output = tempfile::tempfile().context("a file for the output")?;
    let status = Command::new(std::env::current_exe()?)
        .arg(RUNNER)
        .args(&job.words)
        .current_dir(&job.dir)
        .env_clear()
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .status()
        .with_context(|| format!("start {}", job.words[0].display()))?;
    let mut bytes = Vec::new();
    output.seek(SeekFrom::Start(0))?;
    output.read_to_end(&mut bytes)?;
    Ok(Ended { ok: status.success(), output: bytes })
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
