//! Records what a checker does in a crash state: its recovery.
//!
//! The file system in memory first gets the state as its content, which no crash loses, without the
//! copy through the mount that `record --from` makes. The checker's output and exit code say what
//! they say in the search; here only its calls count.

use crate::MARK_FILE;
use crate::error::{RecordError, io_error};
use crate::log::Log;
use crate::run::{Mount, POLL, detach_dead, file_system};
use crate::tree::{baseline, restore};
use kedge_base::{Clock, SystemClock};
use kedge_crash::check::tame;
use kedge_crash::state::{Body, State};
use kedge_crash::workdir::WorkDir;
use kedge_crash::{Call, Trace};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The least size of the file system.
const SIZE_MIN: u64 = 1 << 30;

/// Runs a command on a mount that holds the state, and returns its recording. `make` builds the
/// command for the mounted directory; its second argument is a directory for other files, which
/// outlives the command. The command leads a process group of its own, and the whole group is
/// killed when the command ends, after `timeout`, or when `stop` is set.
pub fn record_recovery(
    state: &State,
    make: impl FnOnce(&Path, &Path) -> io::Result<Command>,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<Trace, RecordError> {
    let state = tame(state);
    let temp = WorkDir::new(&std::env::temp_dir(), "kedge-record-", detach_dead)
        .map_err(io_error("a temporary directory"))?;
    let fs = file_system(SIZE_MIN.max(bytes_of(&state).saturating_mul(2)))?;
    restore(&fs, &state)?;
    let log = Arc::new(Log::in_memory(baseline(&fs)?));
    let mount = Mount::new(temp.path(), fs, log.clone(), false)?;
    let ran = run(&mount, temp.path(), make, timeout, stop);
    if let Ok(code) = &ran {
        let mut state = log.lock();
        log.append(&mut state, 0, 0, Call::End { code: *code });
    }
    let ended = mount.end();
    ran?;
    ended?;
    Ok(Trace { events: log.settle() })
}

/// The bytes of data in a state.
fn bytes_of(state: &State) -> u64 {
    let mut bytes = 0u64;
    state.walk(&mut |_, _, node| {
        if let Body::File(file) = &node.body {
            bytes += file.pieces().map(|(_, piece)| piece.len() as u64).sum::<u64>();
        }
    });
    bytes
}

fn run(
    mount: &Mount,
    temp: &Path,
    make: impl FnOnce(&Path, &Path) -> io::Result<Command>,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<i32, RecordError> {
    let dir = &mount.point.dir;
    let mut command = make(dir, temp).map_err(io_error("the command of the check"))?;
    command.env("KEDGE_MARK", dir.join(MARK_FILE)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(io_error("the check cannot be started"))?;
    let status = wait(&mut child, timeout, stop);
    // Processes that the check left running would keep the mount.
    let killed = match i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        Some(group) => kill_process_group(group, Signal::KILL),
        None => Ok(()),
    };
    match killed {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(e) => tracing::warn!("processes of a check cannot be killed: {e}"),
    }
    let status = match status {
        Ok(Some(status)) => status,
        // Its time is over: the kill above ended it.
        Ok(None) => child.wait().map_err(io_error("the check"))?,
        Err(e) => {
            child.wait().map_err(io_error("the check"))?;
            return Err(io_error("the check")(e));
        }
    };
    Ok(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(-1))
}

/// Waits for the check. `None`: its time is over.
fn wait(child: &mut Child, timeout: Duration, stop: &AtomicBool) -> io::Result<Option<ExitStatus>> {
    let clock = SystemClock::default();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the search was stopped"));
        }
        if clock.monotonic() >= timeout {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}
