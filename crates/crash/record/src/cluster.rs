//! Records a cluster: one mount for each node, all served by this process.
//!
//! The times of all recordings come from one clock, and an event gets its time after its call took
//! effect and before the call returns. So if a node makes a call because of a message that another
//! node sent after its own call, the first node's call has the later time, however the message was
//! sent. Calls that overlap may have either order.
//!
//! A promise on standard output is in the recording of the node that makes the next call. It has a
//! time of the same clock and counts for the whole cluster.

use crate::error::{RecordError, io_error};
use crate::family::DIR_VARIABLE;
use crate::log::Log;
use crate::output::Output;
use crate::outside::Outside;
use crate::recording::MARK_FILE;
use crate::run::{Draft, LEFTOVERS_WAIT, MOUNT_DIR, Mount, POLL, detach_dead, file_system, fill};
use kedge_base::{Clock, SystemClock, spawn_named};
use kedge_crash::Call;
use kedge_crash::cluster::{Manifest, recording_of};
use kedge_crash::workdir::WorkDir;
use regex::Regex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time in which a command must end after SIGTERM.
const END_WAIT: Duration = Duration::from_secs(5);
/// The interval at which the open files outside the mounts are sampled.
const OUTSIDE_EVERY: Duration = Duration::from_millis(100);

/// One machine of the cluster.
#[derive(Debug, Clone)]
pub struct Node {
    pub name: String,
    /// The directory with the initial contents of the node, if any.
    pub from: Option<PathBuf>,
    /// The shell command that runs on the node, if any.
    pub command: Option<String>,
}

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The size of each image in bytes. The images are kept in memory.
    pub size: u64,
    pub nodes: Vec<Node>,
    /// A shell command for the whole cluster. When it ends, the commands of the nodes are ended.
    pub command: Option<String>,
    /// Lines of standard output that match this pattern are promises.
    pub ack: Option<Regex>,
    pub timeout: Option<Duration>,
    /// The directory of the recordings.
    pub out: PathBuf,
    /// The caller sets this to end all commands.
    pub stop: Arc<AtomicBool>,
}

/// The result of a recording.
#[derive(Debug, Clone)]
pub struct ClusterRecorded {
    /// For each node, its name and the number of events in its recording since the start.
    pub events: Vec<(String, u64)>,
    pub marks: u64,
    /// The exit code of the cluster's command. Without such a command, the first exit code of the
    /// nodes' commands that is not 0.
    pub code: i32,
    pub timed_out: bool,
    /// The processes that still used a mount after the commands had ended.
    pub leftovers: Vec<String>,
    /// The files outside the mounts that were open for writing.
    pub outside: Vec<String>,
}

/// A node with its mount.
struct Machine {
    node: Node,
    log: Arc<Log>,
    draft: Draft,
    mount: Mount,
}

/// A running command. `node` is the node on which it runs; `None` for the command of the cluster.
struct Running {
    node: Option<usize>,
    child: Child,
    code: Option<i32>,
}

/// Runs the commands, each node's on a mount of its own, and records them.
pub fn record_cluster(options: &ClusterOptions) -> Result<ClusterRecorded, RecordError> {
    fs::create_dir_all(&options.out).map_err(io_error(format!("the directory {}", options.out.display())))?;
    let temp = WorkDir::new(&std::env::temp_dir(), "kedge-record-", detach_dead)
        .map_err(io_error("a temporary directory"))?;
    let top = temp.path().join(MOUNT_DIR);
    fs::create_dir(&top).map_err(io_error("a temporary directory"))?;
    let clock = SystemClock::default();
    let mut machines = Vec::new();
    let mut run = Ok(());
    for (number, node) in options.nodes.iter().enumerate() {
        let image = temp.path().join(format!("image{number}"));
        match machine(node, options, &image, &top, clock) {
            Ok(machine) => machines.push(machine),
            Err(e) => {
                run = Err(e);
                break;
            }
        }
    }
    let run = run.and_then(|()| run_on(&machines, options, &top));
    let logs: Vec<(String, Arc<Log>)> =
        machines.iter().map(|m| (m.node.name.clone(), m.log.clone())).collect();
    // End every mount, also after an error.
    let ended: Vec<_> = machines.into_iter().map(|m| m.mount.end()).collect();
    let mut recorded = run?;
    for leftovers in ended {
        recorded.leftovers.extend(leftovers?);
    }
    for ((name, log), (_, before)) in logs.into_iter().zip(&mut recorded.events) {
        let path = options.out.join(recording_of(&name));
        let counts = log.finish().map_err(|error| RecordError::Recording { path, error })?;
        *before = counts.events - *before;
        recorded.marks += counts.marks;
    }
    Ok(recorded)
}

fn machine(
    node: &Node,
    options: &ClusterOptions,
    image: &Path,
    top: &Path,
    clock: SystemClock,
) -> Result<Machine, RecordError> {
    let path = options.out.join(recording_of(&node.name));
    let recording = |error| RecordError::Recording { path: path.clone(), error };
    let (file, draft) = Draft::new(&path).map_err(|e| recording(e.into()))?;
    let log = Arc::new(Log::on_clock(file, clock).map_err(recording)?);
    let mount = Mount::at(image, &top.join(&node.name), file_system(options.size)?, log.clone(), false)?;
    Ok(Machine { node: node.clone(), log, draft, mount })
}

/// Runs the commands. In the result, the number of events of a node covers only those before the
/// start.
fn run_on(
    machines: &[Machine],
    options: &ClusterOptions,
    top: &Path,
) -> Result<ClusterRecorded, RecordError> {
    for machine in machines {
        if let Some(from) = &machine.node.from {
            fill(from, &machine.mount.point.dir)?;
        }
    }
    let mut events = Vec::new();
    for machine in machines {
        let mut state = machine.log.lock();
        machine.log.append(&mut state, 0, 0, Call::Baseline);
        events.push((machine.node.name.clone(), state.count));
    }
    let (output, pipe) = match options.ack.clone() {
        Some(ack) => {
            let (reader, writer) = io::pipe().map_err(io_error("the output of the commands"))?;
            let output = Output::new(reader.into(), ack).map_err(io_error("the output of the commands"))?;
            let output = Arc::new(output);
            machines.iter().for_each(|machine| machine.log.listen(output.clone()));
            (Some(output), Some(writer))
        }
        None => (None, None),
    };
    let mut running = Vec::new();
    let started = start_all(machines, options, top, pipe.as_ref(), &mut running)
        .and_then(|()| keep_all(machines, &options.out));
    // Close this end of the pipe: the reader sees the end of the pipe when the commands have closed
    // it too.
    drop(pipe);
    if let Err(e) = started {
        end_all(&mut running).map_err(io_error("the commands"))?;
        return Err(e);
    }
    let log = machines[0].log.clone();
    let pass_on = |output: Arc<Output>| {
        spawn_named("kedge-ack", move || output.pass_on(|| drop(log.lock()))).map_err(io_error("a thread"))
    };
    let reader = output.map(pass_on).transpose();
    let mut outside = Outside::new(top, &options.out);
    let waited = wait(&mut running, options, &mut outside);
    let ended = end_all(&mut running).map_err(io_error("the commands"));
    let timed_out = waited.map_err(io_error("the commands"))?;
    ended?;
    if let Some(reader) = reader? {
        // A process that was left behind may hold the pipe open, so the wait is limited.
        let clock = SystemClock::default();
        while !reader.is_finished() && clock.monotonic() < LEFTOVERS_WAIT {
            std::thread::sleep(POLL);
        }
    }
    let code = code_of(&running);
    for (number, machine) in machines.iter().enumerate() {
        let own = running.iter().find(|r| r.node == Some(number)).and_then(|r| r.code);
        let mut state = machine.log.lock();
        machine.log.append(&mut state, 0, 0, Call::End { code: own.unwrap_or(code) });
    }
    let (leftovers, outside) = (Vec::new(), outside.told());
    Ok(ClusterRecorded { events, marks: 0, code, timed_out, leftovers, outside })
}

/// Gives the recordings their names, once the commands have started. It writes the manifest last:
/// without it the recordings do not count as a cluster.
fn keep_all(machines: &[Machine], out: &Path) -> Result<(), RecordError> {
    let path = out.join(Manifest::FILE);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(io_error(format!("the file {}", path.display()))(e));
        }
        _ => {}
    }
    for machine in machines {
        let path = out.join(recording_of(&machine.node.name));
        machine.draft.keep().map_err(|e| RecordError::Recording { path, error: e.into() })?;
    }
    let names = machines.iter().map(|m| m.node.name.clone()).collect();
    fs::write(&path, Manifest { nodes: names }.to_text())
        .map_err(io_error(format!("the file {}", path.display())))
}

fn start_all(
    machines: &[Machine],
    options: &ClusterOptions,
    top: &Path,
    pipe: Option<&io::PipeWriter>,
    running: &mut Vec<Running>,
) -> Result<(), RecordError> {
    let mut start = |text: &str, node: Option<usize>| -> Result<(), RecordError> {
        let machine = node.map(|n| &machines[n]);
        let dir = machine.map_or(top, |m| &m.mount.point.dir);
        // A promise counts for the whole cluster, so its recording may be that of any node.
        let mark = machine.unwrap_or(&machines[0]).mount.point.dir.join(MARK_FILE);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", text]).env(DIR_VARIABLE, dir).env("KEDGE_MARK", mark);
        if let Some(machine) = machine {
            command.env("KEDGE_NODE", &machine.node.name);
        }
        command.stdin(Stdio::null()).process_group(0);
        if let Some(pipe) = pipe {
            command.stdout(pipe.try_clone().map_err(io_error("the output of the commands"))?);
        }
        let child =
            command.spawn().map_err(|error| RecordError::Start { command: "/bin/sh".into(), error })?;
        running.push(Running { node, child, code: None });
        Ok(())
    };
    for (number, machine) in machines.iter().enumerate() {
        if let Some(command) = &machine.node.command {
            start(command, Some(number))?;
        }
    }
    match &options.command {
        Some(command) => start(command, None),
        None => Ok(()),
    }
}

/// Waits for the cluster's command, or without one for those of all nodes. Returns `true` if the
/// time limit was reached.
fn wait(running: &mut [Running], options: &ClusterOptions, outside: &mut Outside) -> io::Result<bool> {
    let clock = SystemClock::default();
    let mut look_at = Duration::ZERO;
    let has_own = running.iter().any(|r| r.node.is_none());
    loop {
        if clock.monotonic() >= look_at {
            running.iter().filter(|r| r.code.is_none()).for_each(|r| outside.look(r.child.id()));
            look_at = clock.monotonic() + OUTSIDE_EVERY;
        }
        reap(running)?;
        let mut awaited = running.iter().filter(|r| r.node.is_none() || !has_own);
        if awaited.all(|r| r.code.is_some()) || options.stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if options.timeout.is_some_and(|t| clock.monotonic() >= t) {
            return Ok(true);
        }
        std::thread::sleep(POLL);
    }
}

fn reap(running: &mut [Running]) -> io::Result<()> {
    for r in running.iter_mut().filter(|r| r.code.is_none()) {
        if let Some(status) = r.child.try_wait()? {
            r.code = Some(status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(-1));
        }
    }
    Ok(())
}

/// Ends the commands that still run: by SIGTERM, and by SIGKILL if that does not suffice.
fn end_all(running: &mut [Running]) -> io::Result<()> {
    let clock = SystemClock::default();
    reap(running)?;
    signal(running, Signal::TERM)?;
    let mut is_killed = false;
    while running.iter().any(|r| r.code.is_none()) {
        if !is_killed && clock.monotonic() >= END_WAIT {
            signal(running, Signal::KILL)?;
            is_killed = true;
        }
        std::thread::sleep(POLL);
        reap(running)?;
    }
    Ok(())
}

fn signal(running: &[Running], signal: Signal) -> io::Result<()> {
    for r in running.iter().filter(|r| r.code.is_none()) {
        let group = i32::try_from(r.child.id()).ok().and_then(Pid::from_raw);
        match group.map_or(Ok(()), |group| kill_process_group(group, signal)) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn code_of(running: &[Running]) -> i32 {
    let own = running.iter().find(|r| r.node.is_none()).and_then(|r| r.code);
    let failed = || running.iter().filter_map(|r| r.code).find(|code| *code != 0);
    own.or_else(failed).unwrap_or(0)
}
