//! The first process of a PID namespace, such as the entry point of a container.
//!
//! The kernel makes this process the parent of each process whose own parent has ended: the courier
//! of a server that died, or the children of a shell that was run in the container. Such a child
//! stays in the process table until its parent waits for it, and the table of a container may have
//! room for a hundred processes. A process that starts and awaits others cannot wait for any child
//! as well, because it would take the end of its own. So the first process serves nothing: it runs
//! the same command in a child, passes signals on to that, and waits for all children.

use crate::os::TerminationSignals;
use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal, wait,
};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Whether this process is the first one of its PID namespace.
pub fn is_first() -> bool {
    rustix::process::getpid() == Pid::INIT
}

/// Runs the command of this process in a child, and waits for that and all orphans. Returns the
/// exit code of the child; that of a shell if a signal has ended it.
pub fn run() -> Result<ExitCode> {
    let signals = TerminationSignals::block().context("block signals")?;
    let mut words = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(words.next().unwrap_or_else(|| "kedge".into())).args(words);
    let pid = Pid::from_child(&command.spawn().context("start the serving process")?);
    let process = pidfd_open(pid, PidfdFlags::empty()).context("watch the serving process")?;
    // The thread is detached: it waits forever and ends with the process.
    let pass_on = move || {
        while let Ok(signal) = signals.wait() {
            let signal = Signal::from_named_raw(signal).expect("termination signals have names");
            if let Err(e) = pidfd_send_signal(&process, signal) {
                tracing::warn!("signal {signal:?} is not passed on: {e}");
            }
        }
    };
    kedge_base::spawn_named("signals", pass_on).context("start a thread")?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == pid => return Ok(ExitCode::from(code(status))),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("wait for the serving process"),
        }
    }
}

fn code(status: WaitStatus) -> u8 {
    let by_signal = || 128 + status.terminating_signal().unwrap_or_default();
    u8::try_from(status.exit_status().unwrap_or_else(by_signal)).unwrap_or(u8::MAX)
}
