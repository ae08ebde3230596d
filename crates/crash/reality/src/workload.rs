//! Small programs as text, which run on a real directory and on the model's disk.
//!
//! A workload is a list of steps, separated by `;`. The part before `|` is durable when the crash
//! test begins. Paths are relative to the directory `w`; `.` is that directory.
//!
//! | step | |
//! |---|---|
//! | `create F`, `mkdir D`, `link F G`, `rename F G`, `rm F` | names |
//! | `write F AT+LEN`, `cut F SIZE` | bytes: each write has a letter of its own; truncate |
//! | `fsync F`, `fdatasync F` | persistence calls of the program |
//! | `dsync F AT+LEN` | a write with `O_DSYNC` |
//! | `out F`, `out F PAGE` | the kernel starts writeback of the file's dirty pages, or of one of them |
//! | `other` | another program's fsync of a file of its own |
//! | `flush` | another program's syncfs |
//!
//! The model skips the last three steps: a kernel may do such things at any time.

use anyhow::{Context, Result, anyhow, bail};
use kedge_crash::{Disk, Trace};
use rustix::fs::{Advice, OFlags, fadvise, syncfs};
use std::fmt;
use std::fs::{self, File};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

const PAGE: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Create(String),
    Mkdir(String),
    Link(String, String),
    Rename(String, String),
    Remove(String),
    Write { file: String, at: u64, len: usize },
    Dsync { file: String, at: u64, len: usize },
    Cut { file: String, size: u64 },
    Fsync { file: String, datasync: bool },
    Out { file: String, page: Option<u64> },
    Other,
    Flush,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Create(file) => write!(f, "create {file}"),
            Step::Mkdir(dir) => write!(f, "mkdir {dir}"),
            Step::Link(file, new) => write!(f, "link {file} {new}"),
            Step::Rename(file, new) => write!(f, "rename {file} {new}"),
            Step::Remove(file) => write!(f, "rm {file}"),
            Step::Write { file, at, len } => write!(f, "write {file} {at}+{len}"),
            Step::Dsync { file, at, len } => write!(f, "dsync {file} {at}+{len}"),
            Step::Cut { file, size } => write!(f, "cut {file} {size}"),
            Step::Fsync { file, datasync: false } => write!(f, "fsync {file}"),
            Step::Fsync { file, datasync: true } => write!(f, "fdatasync {file}"),
            Step::Out { file, page: None } => write!(f, "out {file}"),
            Step::Out { file, page: Some(page) } => write!(f, "out {file} {page}"),
            Step::Other => f.write_str("other"),
            Step::Flush => f.write_str("flush"),
        }
    }
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Step> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let own = |name: &str| name.to_owned();
        Ok(match words[..] {
            ["create", file] => Step::Create(own(file)),
            ["mkdir", dir] => Step::Mkdir(own(dir)),
            ["link", file, new] => Step::Link(own(file), own(new)),
            ["rename", file, new] => Step::Rename(own(file), own(new)),
            ["rm", file] => Step::Remove(own(file)),
            [word @ ("write" | "dsync"), file, place] => {
                let (at, len) = place.split_once('+').with_context(|| format!("{word} F AT+LEN"))?;
                let (file, at, len) = (own(file), at.parse()?, len.parse()?);
                match word {
                    "write" => Step::Write { file, at, len },
                    _ => Step::Dsync { file, at, len },
                }
            }
            ["cut", file, size] => Step::Cut { file: own(file), size: size.parse()? },
            ["fsync", file] => Step::Fsync { file: own(file), datasync: false },
            ["fdatasync", file] => Step::Fsync { file: own(file), datasync: true },
            ["out", file] => Step::Out { file: own(file), page: None },
            ["out", file, page] => Step::Out { file: own(file), page: Some(page.parse()?) },
            ["other"] => Step::Other,
            ["flush"] => Step::Flush,
            _ => bail!("no step: {text:?}"),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub before: Vec<Step>,
    pub steps: Vec<Step>,
}

fn steps(text: &str) -> Result<Vec<Step>> {
    text.split(';').map(str::trim).filter(|s| !s.is_empty()).map(Step::from_str).collect()
}

impl FromStr for Workload {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Workload> {
        let (before, after) = text.split_once('|').unwrap_or(("", text));
        Ok(Workload { before: steps(before)?, steps: steps(after)? })
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |steps: &[Step]| steps.iter().map(Step::to_string).collect::<Vec<_>>().join("; ");
        if !self.before.is_empty() {
            write!(f, "{} | ", text(&self.before))?;
        }
        f.write_str(&text(&self.steps))
    }
}

/// The bytes that step `n` writes.
fn bytes(n: usize, len: usize) -> Vec<u8> {
    vec![b'A' + (n % 26) as u8; len]
}

fn place(name: &str) -> &str {
    if name == "." { "" } else { name }
}

impl Workload {
    /// Runs the workload on the model. Returns the recording, and for each number of completed
    /// steps the crash point after them.
    pub fn trace(&self) -> Result<(Trace, Vec<u32>)> {
        let disk = Disk::new();
        for (n, step) in self.before.iter().enumerate() {
            play_on_disk(step, n, &disk).with_context(|| format!("{step}"))?;
        }
        disk.settle();
        let mut points = vec![disk.trace().events.len() as u32];
        for (n, step) in self.steps.iter().enumerate() {
            play_on_disk(step, self.before.len() + n, &disk).with_context(|| format!("{step}"))?;
            points.push(disk.trace().events.len() as u32);
        }
        Ok((disk.trace(), points))
    }

    /// Runs the workload on a file system mounted at `root`. Calls `told` after each step with the
    /// number of completed steps. The number 0 means that the preparation is durable.
    pub fn play(&self, root: &Path, told: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let real = Real { dir: root.join("w"), other: root.join("other") };
        fs::create_dir(&real.dir)?;
        fs::write(&real.other, b"-")?;
        for (n, step) in self.before.iter().enumerate() {
            real.play(step, n).with_context(|| format!("{step}"))?;
        }
        // Sync twice. The first sync leaves deferred work, such as obsolete log space, which would
        // appear as writes of the workload.
        for _ in 0..2 {
            syncfs(File::open(root)?)?;
        }
        told(0)?;
        for (n, step) in self.steps.iter().enumerate() {
            real.play(step, self.before.len() + n).with_context(|| format!("{step}"))?;
            told(n + 1)?;
        }
        Ok(())
    }
}

fn play_on_disk(step: &Step, n: usize, disk: &Disk) -> Result<()> {
    match step {
        Step::Create(file) => disk.create(file).map(|_| ())?,
        Step::Mkdir(dir) => disk.create_dir(dir)?,
        Step::Link(file, new) => disk.hard_link(file, new)?,
        Step::Rename(file, new) => disk.rename(file, new)?,
        Step::Remove(file) => disk.remove(file)?,
        Step::Write { file, at, len } => disk.open(file)?.write_at(*at, &bytes(n, *len))?,
        Step::Dsync { file, at, len } => disk.open(file)?.write_durably_at(*at, &bytes(n, *len))?,
        Step::Cut { file, size } => disk.open(file)?.set_len(*size)?,
        Step::Fsync { file, datasync: false } => disk.sync(place(file))?,
        Step::Fsync { file, datasync: true } => disk.open(place(file))?.sync_data()?,
        Step::Out { .. } | Step::Other | Step::Flush => {}
    }
    Ok(())
}

/// A workload's directory on a real file system.
struct Real {
    dir: PathBuf,
    /// A file that belongs to another program.
    other: PathBuf,
}

impl Real {
    fn path(&self, name: &str) -> PathBuf {
        if name == "." { self.dir.clone() } else { self.dir.join(name) }
    }

    fn play(&self, step: &Step, n: usize) -> Result<()> {
        let writable = |name: &str| File::options().write(true).open(self.path(name));
        match step {
            Step::Create(file) => {
                File::create_new(self.path(file))?;
            }
            Step::Mkdir(dir) => fs::create_dir(self.path(dir))?,
            Step::Link(file, new) => fs::hard_link(self.path(file), self.path(new))?,
            Step::Rename(file, new) => fs::rename(self.path(file), self.path(new))?,
            Step::Remove(file) => {
                let path = self.path(file);
                if path.is_dir() { fs::remove_dir(path)? } else { fs::remove_file(path)? }
            }
            Step::Write { file, at, len } => writable(file)?.write_all_at(&bytes(n, *len), *at)?,
            Step::Dsync { file, at, len } => {
                let dsync = OFlags::DSYNC.bits() as i32;
                let file = File::options().write(true).custom_flags(dsync).open(self.path(file))?;
                file.write_all_at(&bytes(n, *len), *at)?;
            }
            Step::Cut { file, size } => writable(file)?.set_len(*size)?,
            Step::Fsync { file, datasync: false } => File::open(self.path(file))?.sync_all()?,
            Step::Fsync { file, datasync: true } => File::open(self.path(file))?.sync_data()?,
            // The advice starts writeback of dirty pages without waiting for it, as the flusher may
            // do at any time.
            Step::Out { file, page } => {
                let (at, len) = page.map_or((0, None), |page| (page * PAGE, NonZeroU64::new(PAGE)));
                fadvise(File::open(self.path(file))?, at, len, Advice::DontNeed)?;
            }
            Step::Other => {
                let other = File::options().append(true).open(&self.other)?;
                std::io::Write::write_all(&mut &other, &bytes(n, 1))?;
                other.sync_all()?;
            }
            Step::Flush => {
                syncfs(File::open(&self.dir).map_err(|e| anyhow!("{}: {e}", self.dir.display()))?)?;
            }
        }
        Ok(())
    }
}

impl Workload {
    /// Whether the kernel accepts every step in a directory in `place`. The kernel refuses more
    /// than the model's disk does, such as a second `create` of a name or a write to a directory.
    pub fn is_real(&self, place: &Path) -> bool {
        tempfile::tempdir_in(place).is_ok_and(|dir| self.play(dir.path(), &mut |_| Ok(())).is_ok())
    }
}
