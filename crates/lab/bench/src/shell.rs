//! Runs commands exactly as they are printed.

use anyhow::{Context, Result, bail};
use kedge_base::{Clock, SystemClock};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time limit of a command: a mount that hangs must not hang the experiment.
const COMMAND_MAX: Duration = Duration::from_secs(300);
/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Polling interval for the end of a command. It affects no measurement, since commands time
/// themselves.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A request to stop early. The experiment then undoes what it made and ends.
#[derive(Clone)]
pub struct Interrupt {
    raised: Arc<AtomicBool>,
    end_group: fn(u32),
}

impl Interrupt {
    /// `end_group` must send SIGTERM to a process group. Commands run in process groups of their
    /// own: a signal from the terminal must reach only this process, which then ends the commands
    /// and undoes the rest.
    pub fn new(end_group: fn(u32)) -> Interrupt {
        Interrupt { raised: Arc::default(), end_group }
    }

    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    pub fn check(&self) -> Result<()> {
        if self.raised.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// Runs commands in one directory.
pub struct Shell {
    pub dir: PathBuf,
    kedge: PathBuf,
    before: Option<PathBuf>,
    interrupt: Interrupt,
    clock: SystemClock,
}

impl Shell {
    pub fn new(dir: &Path, kedge: &Path, interrupt: &Interrupt) -> Shell {
        Shell {
            dir: dir.to_owned(),
            kedge: kedge.to_owned(),
            before: None,
            interrupt: interrupt.clone(),
            clock: SystemClock::default(),
        }
    }

    /// Lets commands run `program` by the name `kedge-before`.
    pub fn with_before(self, program: Option<PathBuf>) -> Shell {
        Shell { before: program, ..self }
    }

    /// Runs a command, whose words contain no spaces, and returns its standard output.
    pub fn run(&self, line: &str) -> Result<String> {
        self.interrupt.check()?;
        self.run_to_the_end(line, Some(&self.interrupt))
    }

    /// Like [`Shell::run`], but even after an interrupt, since it undoes something.
    pub fn undo(&self, line: &str) -> Result<String> {
        self.run_to_the_end(line, None)
    }

    /// Starts a program that serves until it is stopped.
    pub fn start(&self, program: &Path, arguments: &[&str]) -> Result<Child> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.dir).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().with_context(|| format!("start {}", program.display()))
    }

    /// Waits until a server ends by itself because its mount is gone, or kills it.
    pub fn end_server(&self, server: &mut Child) {
        let started = self.clock.monotonic();
        while self.clock.monotonic().saturating_sub(started) < GRACE {
            if let Ok(Some(_)) = server.try_wait() {
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        if let Err(e) = self.end(server) {
            eprintln!("kedge-lab: a server does not end: {e:#}");
        }
    }

    fn run_to_the_end(&self, line: &str, interrupt: Option<&Interrupt>) -> Result<String> {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let program = match name {
            "kedge" => self.kedge.clone(),
            "kedge-before" => self.before.clone().context("no earlier program was given")?,
            _ => need(name)?,
        };
        // Output goes to files, since pipes would have to be read during the wait.
        let (out, err) = (self.dir.join("stdout"), self.dir.join("stderr"));
        let file = |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
        let mut child = Command::new(program)
            .arg0(name)
            .args(words)
            .current_dir(&self.dir)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file(&out)?)
            .stderr(file(&err)?)
            .spawn()
            .with_context(|| format!("start `{line}`"))?;
        let status = self.wait(&mut child, interrupt).with_context(|| format!("`{line}`"))?;
        let read = |path: &Path| {
            let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
            anyhow::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let out = read(&out)?;
        if !status.success() {
            let err = read(&err)?;
            // fs_mark prints errors to standard output.
            let last = |text: &str| text.lines().rfind(|l| !l.trim().is_empty()).map(|l| l.trim().to_owned());
            bail!("`{line}`: {status}: {}", last(&err).or_else(|| last(&out)).unwrap_or_default());
        }
        Ok(out)
    }

    fn wait(&self, child: &mut Child, interrupt: Option<&Interrupt>) -> Result<ExitStatus> {
        let started = self.clock.monotonic();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let interrupted = interrupt.map_or(Ok(()), Interrupt::check);
            let late = self.clock.since(started) > COMMAND_MAX;
            if late || interrupted.is_err() {
                self.end(child)?;
                interrupted?;
                bail!("did not end within {} s", COMMAND_MAX.as_secs());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn end(&self, child: &mut Child) -> Result<()> {
        (self.interrupt.end_group)(child.id());
        let started = self.clock.monotonic();
        while self.clock.since(started) < GRACE {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        // The process is not waited for: if it hangs in the kernel, even SIGKILL does not end it.
        child.kill()?;
        Ok(())
    }
}

/// Like [`find`], but the error says what to install.
pub fn need(name: &str) -> Result<PathBuf> {
    need_from(name, find(name))
}

fn need_from(name: &str, found: Option<PathBuf>) -> Result<PathBuf> {
    let package = match name {
        "dbench" => " (Debian package dbench)",
        "fs_mark" => " (Debian package fsmark)",
        "mkfs.ext4" => " (Debian package e2fsprogs)",
        "mkfs.btrfs" => " (Debian package btrfs-progs)",
        "mkfs.xfs" => " (Debian package xfsprogs)",
        "mount" | "umount" => " (Debian package mount)",
        "truncate" | "dd" | "mkdir" | "sync" => " (Debian package coreutils)",
        _ => "",
    };
    found.with_context(|| format!("{name} is not installed{package}"))
}

/// Finds a program by name. The PATH of many users lacks the directories of administrators'
/// programs, so these are searched, too.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let admin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(admin).map(|dir| dir.join(name)).find(|p| p.is_file())
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;
