//! `kedge crash record` and `kedge crash mark`: record a command, and mark promises in a recording.

use anyhow::{Context, Result, bail};
use kedge_crash::workdir::unnamed;
use kedge_crash_record::{Device, MARK_FILE, Options, Recorded, Unseen, record};
use kedge_host::options::parse_size;
use kedge_host::os::{self, TerminationSignals};
use kedge_host::{engine, mounts};
use kedge_transfer::to_host::Target;
use regex::Regex;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

const SIZE_DEFAULT: &str = "1G";
/// The value in place of a pid before the command has started.
const NOT_STARTED: i32 = 0;
/// The same after a signal: the command must be ended as soon as it has started.
const ENDED_BEFORE: i32 = -1;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Size of the file system, which is in memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = SIZE_DEFAULT)]
    size: u64,
    /// Give the command a block device of this size, $KEDGE_CRASH_DEVICE, and record what is
    /// written to it, not to a directory (root)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["cd", "backtrace"])]
    device: Option<u64>,
    /// Initial contents of the directory, from a directory or an image that is not mounted; no
    /// crash loses them. With --device: a file with the contents of the device
    #[arg(long, value_name = "DIR|IMAGE|FILE")]
    from: Option<PathBuf>,
    /// Start the command in the directory
    #[arg(long)]
    cd: bool,
    /// Matching lines on the command's standard output are promises to the user that something is
    /// durable
    #[arg(long, value_name = "REGEX")]
    ack: Option<Regex>,
    /// Record the callers of each call (x86-64; see docs/CRASH_TESTING.md for the limits)
    #[arg(long)]
    backtrace: bool,
    /// Record stores through shared mappings of files before the next call, not only when the
    /// kernel writes the pages
    #[arg(long, conflicts_with = "device")]
    mappings: bool,
    /// Kill the command after this time
    #[arg(long, value_name = "TIME", value_parser = super::parse_time)]
    timeout: Option<Duration>,
    /// The recording
    #[arg(short = 'o', value_name = "FILE", default_value = "run.kcr")]
    out: PathBuf,
    /// The command; $KEDGE_DIR is the directory that it must use
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    os::grow_in_large_steps();
    let signals = TerminationSignals::block().context("block signals")?;
    let child = Arc::new(AtomicI32::new(NOT_STARTED));
    let to_end = child.clone();
    // The thread is detached: it waits forever and ends with the process. A signal ends the command
    // and not this process, because the mount must not outlive this process.
    kedge_base::spawn_named("signals", move || pass_on(&signals, &to_end)).context("start a thread")?;
    let out = args.out.clone();
    // The unpacked image is removed after the recording.
    let unpacked = match &args.from {
        Some(image) if args.device.is_none() && image.exists() && !image.is_dir() => Some(unpack(image)?),
        _ => None,
    };
    let from = unpacked.as_ref().map(|dir| dir.path().to_owned()).or(args.from);
    let (device, from) = match args.device {
        Some(size) => (Some(Device { size, from }), None),
        None => (None, from),
    };
    let options = Options {
        // Twice the size of the device leaves room for the file system's own data.
        size: args.size.max(args.device.unwrap_or(0).saturating_mul(2)),
        from,
        device,
        cd: args.cd,
        ack: args.ack,
        timeout: args.timeout,
        out: args.out,
        backtrace: args.backtrace,
        mappings: args.mappings,
        command: args.command,
    };
    let started = |pid: u32| {
        let pid = i32::try_from(pid).unwrap_or(NOT_STARTED);
        // A signal may have arrived before the command started.
        if child.swap(pid, Ordering::Relaxed) == ENDED_BEFORE {
            end(pid, Signal::TERM);
        }
    };
    let recorded = record(&options, &started)?;
    eprintln!(
        "kedge: {} events and {} marks recorded in {}; the command ended with exit code {}{}",
        recorded.events,
        recorded.marks,
        out.display(),
        recorded.code,
        if recorded.timed_out { " (its time was over)" } else { "" }
    );
    if recorded.without_stack > 0 {
        eprintln!(
            "kedge: {} calls have no backtrace: their callers could not be found",
            recorded.without_stack
        );
    }
    if recorded.foreign_syncs > 0 {
        eprintln!(
            "kedge: {} calls of sync or syncfs by processes that do not belong to the command are not \
             recorded",
            recorded.foreign_syncs
        );
    }
    report_stores(&recorded, options.mappings || options.device.is_some());
    report_unrecorded(&recorded.leftovers, &recorded.outside);
    Ok(ExitCode::from(u8::try_from(recorded.code).unwrap_or(crate::FAILURE)))
}

/// Reports processes that were left behind, and files that the commands wrote elsewhere.
pub fn report_unrecorded(leftovers: &[String], outside: &[String]) {
    for (what, names) in [
        ("these processes still used the directory and were not waited for", leftovers),
        ("open for writing outside the directory, and not recorded", outside),
    ] {
        if !names.is_empty() {
            eprintln!("kedge: {what}: {}", kedge_base::printable(&names.join(", ")));
        }
    }
}

/// Warns about stores through mappings that are recorded later than the program made them.
fn report_stores(recorded: &Recorded, is_collected: bool) {
    if recorded.stores > 0 && !is_collected {
        eprintln!(
            "kedge: {} writes of mapped pages are recorded when the kernel made them; with --mappings, \
             stores are recorded before the next call",
            recorded.stores
        );
    }
    let Unseen { calls, files, msyncs } = recorded.unseen;
    if calls > 0 {
        eprintln!(
            "kedge: stores before {calls} calls may be recorded later, because other calls were served"
        );
    }
    if files > 0 {
        eprintln!("kedge: stores to {files} files may be recorded later, because they could not be opened");
    }
    if msyncs > 0 {
        eprintln!("kedge: {msyncs} calls of msync are recorded as fsync, because their range was not found");
    }
}

/// Unpacks an image into a temporary directory.
fn unpack(image: &Path) -> Result<tempfile::TempDir> {
    let copied = || -> Result<tempfile::TempDir> {
        if let Some(mount) = mounts::of_image(image)? {
            bail!("mounted on {}: name that directory", mount.dir.display());
        }
        let fs = engine::open_to_read(image)?;
        let place = std::env::temp_dir();
        let dir =
            tempfile::tempdir_in(&place).map_err(|e| unnamed(&e, &place)).context("make a directory")?;
        let mut target = Target::new(dir.path(), false, false)?;
        target.copy(&fs, &fs.getattr(kedgefs::Ino::ROOT)?, None)?;
        Ok(dir)
    };
    copied().with_context(|| format!("--from {}", image.display()))
}

/// Asks the command to end at the first signal, and kills it at the second.
fn pass_on(signals: &TerminationSignals, child: &AtomicI32) {
    let mut signal = Signal::TERM;
    loop {
        match signals.wait() {
            Ok(_) => {}
            Err(e) => return tracing::error!("cannot wait for signals: {e}"),
        }
        match child.compare_exchange(NOT_STARTED, ENDED_BEFORE, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) | Err(ENDED_BEFORE) => {}
            Err(pid) => end(pid, signal),
        }
        signal = Signal::KILL;
    }
}

/// Sends a signal to the command's process group. At a terminal, where the command has no own
/// group, the signal goes to the command alone.
fn end(pid: i32, signal: Signal) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let sent = match kill_process_group(pid, signal) {
        Err(rustix::io::Errno::SRCH) => kill_process(pid, signal),
        sent => sent,
    };
    match sent {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(e) => tracing::warn!("the command cannot be ended: {e}"),
    }
}

#[derive(clap::Args, Debug)]
pub struct MarkArgs {
    /// The promise made to the user
    text: String,
}

/// Writes the mark; the write returns when the mark is recorded.
pub fn mark(args: MarkArgs) -> Result<ExitCode> {
    let path = match std::env::var_os("KEDGE_MARK") {
        Some(path) => PathBuf::from(path),
        None => match std::env::var_os("KEDGE_DIR") {
            Some(dir) => PathBuf::from(dir).join(MARK_FILE),
            None => bail!("nothing is being recorded: neither KEDGE_MARK nor KEDGE_DIR is set"),
        },
    };
    let text = args.text.lines().collect::<Vec<_>>().join(" ");
    let mut file = std::fs::File::options()
        .write(true)
        .open(&path)
        .with_context(|| format!("open {}: is it the directory of a recording?", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}
