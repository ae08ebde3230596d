//! Ends the processes that a checker has left running.
//!
//! The process group of a checker is killed when the checker ends. A process that has left the
//! group survives, as a server does that calls setsid(2). So this process becomes the subreaper of
//! its descendants: the kernel makes each orphan among them a child of its main thread. An orphan
//! belongs to a checker if its environment names a directory of that checker. Other children of
//! this process are left alone, and so is an orphan that has replaced its environment. It cannot
//! change a later state, since each state has a directory of its own.

use kedge_base::{Clock, SystemClock};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// The time that killed processes have to end.
const END_WAIT: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(1);
/// The variable of a checker's environment that names its directory.
pub(crate) const DIR_VARIABLE: &str = "KEDGE_DIR";

/// Makes this process the parent of all later orphans among its descendants.
pub(crate) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills the orphans whose environment names a directory that begins with `prefix`, and waits for
/// them at most one second. Also removes the entries of orphans that have ended.
pub fn end(prefix: &Path) {
    let clock = SystemClock::default();
    // The children of a killed orphan become orphans in turn.
    while end_once(prefix) > 0 && clock.monotonic() < END_WAIT {
        std::thread::sleep(POLL);
    }
}

/// Returns the number of orphans that were killed and may not have ended yet.
fn end_once(prefix: &Path) -> usize {
    let this = getpid();
    // The file does not exist if the kernel was built without it. Then no orphan is found.
    let children = fs::read_to_string(format!("/proc/self/task/{this}/children")).unwrap_or_default();
    let Some(own) = Standing::of(this) else { return 0 };
    let mut killed = 0;
    for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw) {
        match Standing::of(pid) {
            Some(standing) if standing.has_ended && standing.is_orphan_of(&own) => reap(pid),
            Some(standing) if !standing.has_ended && is_below(pid, prefix) => {
                // ESRCH: it has ended meanwhile.
                if let Err(e) = kill_process(pid, Signal::KILL)
                    && e != rustix::io::Errno::SRCH
                {
                    tracing::warn!("process {pid}, which a checker left running, cannot be killed: {e}");
                    continue;
                }
                killed += 1;
                reap(pid);
            }
            _ => {}
        }
    }
    killed
}

fn reap(pid: Pid) {
    // ECHILD: another checker's thread has removed the entry.
    if let Err(e) = waitpid(Some(pid), WaitOptions::NOHANG)
        && e != rustix::io::Errno::CHILD
    {
        tracing::warn!("process {pid}, which a checker left running, cannot be waited for: {e}");
    }
}

fn is_below(pid: Pid, prefix: &Path) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| {
        let value = variable.strip_prefix(DIR_VARIABLE.as_bytes()).and_then(|v| v.strip_prefix(b"="));
        value.is_some_and(|value| value.starts_with(OsStr::as_bytes(prefix.as_os_str())))
    })
}

/// What `/proc/PID/stat` shows of a process.
#[derive(Debug, PartialEq, Eq)]
struct Standing {
    pid: i32,
    group: i32,
    session: i32,
    has_ended: bool,
}

impl Standing {
    fn of(pid: Pid) -> Option<Standing> {
        Standing::read(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads the line. Its second field is a name in parentheses, which may contain any characters.
    fn read(pid: Pid, stat: &str) -> Option<Standing> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        let has_ended = matches!(fields.next()?, "Z" | "X");
        let mut numbers = fields.skip(1).map(str::parse::<i32>);
        let (group, session) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Standing { pid: pid.as_raw_nonzero().get(), group, session, has_ended })
    }

    /// Whether the process is certainly none that the process `own` has started: those are in the
    /// group of `own` or lead a group of their own, and stay in its session. The number of a
    /// session or group that was made in an outer PID namespace is 0 in this one.
    fn is_orphan_of(&self, own: &Standing) -> bool {
        self.session != own.session || (self.group != self.pid && self.group != own.group)
    }
}

#[cfg(test)]
#[path = "leftovers_tests.rs"]
mod tests;
