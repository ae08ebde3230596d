//! Records the calls of a checker in a crash state, that is, its recovery.
//!
//! The file system in memory first gets the state as its contents, which no crash loses; no copy
//! through the mount is needed, as `record --from` makes. The search has already judged the
//! checker's output and exit code; here only its calls matter.

use crate::MARK_FILE;
use crate::error::{RecordError, io_error};
use crate::log::Log;
use crate::run::{MOUNT_DIR, Mount, POLL, detach_dead, file_system};
use crate::tree::{baseline, restore};
use kedge_base::{Clock, SystemClock};
use kedge_crash::check::tame;
use kedge_crash::leftovers;
use kedge_crash::state::{Body, State};
use kedge_crash::workdir::WorkDir;
use kedge_crash::{Call, Trace};
use kedgefs::FileSystem;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The minimal size of the file system in bytes.
const SIZE_MIN: u64 = 1 << 30;

/// Runs a command on a mount that holds the state, and returns the recording. `make` builds the
/// command for the mounted directory; its second argument is a directory for other files, which
/// outlives the command. The command leads a process group of its own. The whole group is killed
/// when the command ends, after `timeout`, or when `stop` is set.
pub fn record_recovery(
    state: &State,
    make: impl FnOnce(&Path, &Path) -> io::Result<Command>,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<Trace, RecordError> {
    let temp = WorkDir::new(&std::env::temp_dir(), "kedge-record-", detach_dead)
        .map_err(io_error("a temporary directory"))?;
    let machine =
        Machine::new(state, SystemClock::default(), |fs, log| Mount::new(temp.path(), fs, log, false))?;
    let dir = machine.mount.point.dir.clone();
    let mut traces = recorded(vec![machine], &dir, temp.path(), make, timeout, stop)?;
    Ok(traces.pop().expect("a recording for each mount"))
}

/// Does the same for a cluster: each node has a mount, and one directory contains all mounts by the
/// names of the nodes. The recordings have times of one clock.
pub fn record_cluster_recovery(
    nodes: &[(String, State)],
    make: impl FnOnce(&Path, &Path) -> io::Result<Command>,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<Vec<Trace>, RecordError> {
    let temp = WorkDir::new(&std::env::temp_dir(), "kedge-record-", detach_dead)
        .map_err(io_error("a temporary directory"))?;
    let top = temp.path().join(MOUNT_DIR);
    fs::create_dir(&top).map_err(io_error("a temporary directory"))?;
    let clock = SystemClock::default();
    let mut machines = Vec::new();
    for (number, (name, state)) in nodes.iter().enumerate() {
        let image = temp.path().join(format!("image{number}"));
        let made = Machine::new(state, clock, |fs, log| Mount::at(&image, &top.join(name), fs, log, false));
        match made {
            Ok(machine) => machines.push(machine),
            Err(e) => {
                // End the mounts that were made before the error.
                for machine in machines {
                    machine.mount.end()?;
                }
                return Err(e);
            }
        }
    }
    recorded(machines, &top, temp.path(), make, timeout, stop)
}

/// A mount that holds a state, and its recording.
struct Machine {
    log: Arc<Log>,
    mount: Mount,
}

impl Machine {
    fn new(
        state: &State,
        clock: SystemClock,
        mount: impl FnOnce(FileSystem, Arc<Log>) -> Result<Mount, RecordError>,
    ) -> Result<Machine, RecordError> {
        let state = tame(state);
        let fs = file_system(SIZE_MIN.max(bytes_of(&state).saturating_mul(2)))?;
        restore(&fs, &state)?;
        let log = Arc::new(Log::in_memory(baseline(&fs, &[])?).with_clock(clock));
        Ok(Machine { mount: mount(fs, log.clone())?, log })
    }
}

/// Runs the command in `dir` and ends the mounts. Returns the recordings.
fn recorded(
    machines: Vec<Machine>,
    dir: &Path,
    temp: &Path,
    make: impl FnOnce(&Path, &Path) -> io::Result<Command>,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<Vec<Trace>, RecordError> {
    let mark = machines.first().map(|machine| machine.mount.point.dir.join(MARK_FILE));
    let ran = run(dir, mark.as_deref(), temp, make, timeout, stop);
    if let Ok(code) = &ran {
        for Machine { log, .. } in &machines {
            let mut state = log.lock();
            log.append(&mut state, 0, 0, Call::End { code: *code });
        }
    }
    // End every mount, also after an error.
    let ended: Vec<_> = machines.into_iter().map(|machine| (machine.mount.end(), machine.log)).collect();
    ran?;
    let settle =
        |(ended, log): (Result<_, RecordError>, Arc<Log>)| ended.map(|_| Trace { events: log.settle() });
    ended.into_iter().map(settle).collect()
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
    dir: &Path,
    mark: Option<&Path>,
    temp: &Path,
    make: impl FnOnce(&Path, &Path) -> io::Result<Command>,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<i32, RecordError> {
    let mut command = make(dir, temp).map_err(io_error("the command of the check"))?;
    command.envs(mark.map(|mark| ("KEDGE_MARK", mark)));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(io_error("the check cannot be started"))?;
    let status = wait(&mut child, timeout, stop);
    // Kill the group: processes that the check left running would keep the mount in use.
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
        // The time limit was reached, and the kill above has ended the check.
        Ok(None) => child.wait().map_err(io_error("the check"))?,
        Err(e) => {
            child.wait().map_err(io_error("the check"))?;
            return Err(io_error("the check")(e));
        }
    };
    leftovers::end(dir);
    Ok(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(-1))
}

/// Waits for the check. Returns `None` if the time limit was reached or `stop` was set.
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
