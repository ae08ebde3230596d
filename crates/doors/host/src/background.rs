//! `kedge mount` returns when the mount is live; a background process serves it.
//!
//! The parent executes this binary again instead of forking, because the tracing and engine state
//! of a process with threads does not survive a fork. The child's standard output is a pipe to the
//! parent that carries one line: `ready`, or `failed` and the reason. If the pipe ends without that
//! line, the child has died, and its exit status is the reason.

use crate::os;
use crate::text::one_line;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

const READY: &str = "ready";
/// The line that a server writes when it serves.
pub(crate) const STARTED: &str = READY;
const FAILED: &str = "failed ";

/// Starts `kedge` with `args` in the background and returns when it has called [`Child::ready`].
/// `secret` becomes its standard input: the key of an encrypted image, which the parent has read
/// from a file or the terminal.
pub fn spawn(args: &[&OsStr], log_file: Option<&Path>, secret: Option<&[u8]>) -> Result<()> {
    let stderr = match log_file {
        Some(path) => Stdio::from(open_log(path)?),
        // Messages until readiness go to the user; afterwards the child redirects standard error to
        // /dev/null.
        None => Stdio::inherit(),
    };
    os::inherit_standard_streams_only();
    // /proc/self/exe runs this binary even if its file has been replaced or deleted.
    let mut child = Command::new("/proc/self/exe")
        .arg0("kedge")
        .args(args)
        .stdin(if secret.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .context("start the serving process")?;
    if let (Some(secret), Some(mut to)) = (secret, child.stdin.take()) {
        // If the child has ended already, its reason comes through the other pipe.
        let _ended = to.write_all(secret);
    }
    let pipe = child.stdout.take().expect("stdout was asked to be a pipe");
    let mut line = String::new();
    BufReader::new(pipe).read_line(&mut line).context("wait for the serving process")?;
    let line = line.trim_end();
    if line == READY {
        return Ok(());
    }
    let status = child.wait().context("wait for the serving process")?;
    match line.strip_prefix(FAILED) {
        Some(reason) => bail!("{reason}"),
        None => bail!("the serving process ended before the mount was live ({status})"),
    }
}

/// Opens a log for appending, and creates it if it does not exist.
pub fn open_log(path: &Path) -> Result<File> {
    // In a directory that other users can write to, the name may be another user's link to any
    // file, which would get the log lines, or a pipe, whose open would wait for a reader.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)
        .with_context(|| format!("open the log file {}", path.display()))?;
    let meta = file.metadata().with_context(|| format!("open the log file {}", path.display()))?;
    if !meta.is_file() || meta.nlink() != 1 || meta.uid() != rustix::process::geteuid().as_raw() {
        bail!("the log file {} must be a regular file of your own, with one name", path.display());
    }
    Ok(file)
}

/// The reason in a `failed` line; `None` for other lines.
pub(crate) fn reason(line: &str) -> Option<&str> {
    line.trim_end().strip_prefix(FAILED)
}

/// Serves in the process that [`spawn`] started. `serve` calls its argument when the mount is live.
/// An error before that call goes to the parent, a later one to the caller. `keep_stderr` means
/// that standard error is a log file.
pub fn run(
    keep_stderr: bool,
    serve: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let child = Child::start(keep_stderr)?;
    let mut live = false;
    let served = serve(&mut || {
        child.ready()?;
        live = true;
        Ok(())
    });
    match served {
        Err(e) if !live => {
            child.failed(&e);
            Ok(ExitCode::FAILURE)
        }
        served => served,
    }
}

/// The background process's end of the pipe that [`spawn`] made.
pub struct Child {
    keep_stderr: bool,
}

impl Child {
    /// Detaches this process from the caller's session and directory. `keep_stderr` means that
    /// standard error is a log file.
    pub fn start(keep_stderr: bool) -> Result<Child> {
        rustix::process::setsid().context("start a session")?;
        std::env::set_current_dir("/").context("leave the working directory")?;
        // A process started through /proc/self/exe would be called "exe" in ps and top.
        rustix::thread::set_name(c"kedge").context("name the process")?;
        Ok(Child { keep_stderr })
    }

    /// Lets the parent return. An error means that the parent has ended, and then no caller wants
    /// the mount.
    pub fn ready(&self) -> Result<()> {
        // Opened first: an error after the report would end a mount that was reported as live.
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("open /dev/null")?;
        report(READY).context("the process that asked for the mount is gone")?;
        rustix::stdio::dup2_stdout(&null).context("leave standard output")?;
        if !self.keep_stderr {
            rustix::stdio::dup2_stderr(&null).context("leave standard error")?;
        }
        Ok(())
    }

    /// Reports to the parent why the mount failed.
    pub fn failed(&self, reason: &anyhow::Error) {
        if report(&format!("{FAILED}{}", one_line(&format!("{reason:#}")))).is_err() {
            tracing::error!("{reason:#}");
        }
    }
}

pub(crate) fn report(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}
