//! The processes of the calling threads, by what /proc has of them.
//!
//! # Why no command line is waited for
//! Reading a command line takes the mmap lock of the process. Another thread of it may hold that
//! lock while it waits for this mount: munmap writes the dirty pages of a mapping. So:
//! - The command line is read before the log is locked, which the recording of these pages needs.
//! - If the caller has its memory for itself, it holds no such lock, since it waits for the mount.
//! - Otherwise a few threads read at a time, far fewer than a mount has workers.
//! - Some calls hold pages back until their reply: a write(2) those that it writes, a truncate all
//!   of the file. munmap may wait for just these. Such a call of a process that shares its memory
//!   reads nothing.
//!
//! Where it is not read, the recording has the name of the process alone, which needs no lock.

use kedge_base::wait::about_to_wait;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a command line shown to people.
const COMMAND_MAX: usize = 200;
/// Threads whose process is kept. At the limit all are dropped, and a process may get a second
/// event.
const THREADS_MAX: usize = 1 << 16;
/// Threads that read a command line at a time. At the limit a process has none in the recording.
const READERS_MAX: usize = 16;

/// The place of the flags in `/proc/PID/stat`, counted after the name.
const STAT_FLAGS: usize = 6;
/// The flag of a process that was forked and has run no program since (`PF_FORKNOEXEC`).
const FORKED_ONLY: u32 = 0x40;

/// The process of a thread that calls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Known(u32),
    /// The recording has no call of this process yet.
    New {
        pid: u32,
        name: String,
        command: String,
    },
}

/// See the module. Its lock is taken with that of the log held, and held over no wait.
#[derive(Default)]
pub(crate) struct Processes {
    known: Mutex<Known>,
    readers: AtomicUsize,
}

#[derive(Default)]
struct Known {
    /// The process of each thread that made a recorded call.
    recorded: HashMap<u32, u32>,
    /// The command lines of processes whose first call is not recorded yet.
    commands: HashMap<u32, String>,
}

impl Known {
    fn has_process(&self, pid: u32) -> bool {
        self.recorded.values().any(|known| *known == pid)
    }
}

impl Processes {
    /// Reads what [`Processes::of`] needs for a call of this thread. `may_wait`: the call holds no
    /// pages back. The caller holds no lock that a WRITE needs.
    pub fn look_at(&self, tid: u32, may_wait: bool) {
        if tid == 0 || self.known.lock().recorded.contains_key(&tid) {
            return;
        }
        let process = Status::of(tid);
        let is_known = {
            let known = self.known.lock();
            known.has_process(process.pid) || known.commands.contains_key(&process.pid)
        };
        if is_known {
            return;
        }
        let command = match process.threads == Some(1) && has_own_memory(tid) {
            true => Some(command(tid)),
            false if may_wait => self.command_of_shared(tid),
            false => None,
        };
        let mut known = self.known.lock();
        if let Some(command) = command.filter(|_| !known.has_process(process.pid)) {
            known.commands.insert(process.pid, command);
        }
    }

    /// The command line of a process of which another thread may hold the mmap lock.
    fn command_of_shared(&self, tid: u32) -> Option<String> {
        let is_free = self.readers.fetch_add(1, Relaxed) < READERS_MAX;
        let read = || {
            about_to_wait();
            command(tid)
        };
        let command = is_free.then(read);
        self.readers.fetch_sub(1, Relaxed);
        command
    }

    /// The process of a thread; 0 for the kernel.
    pub fn of(&self, tid: u32) -> Found {
        let mut known = self.known.lock();
        if tid == 0 {
            return Found::Known(0);
        }
        if let Some(pid) = known.recorded.get(&tid) {
            return Found::Known(*pid);
        }
        let Status { pid, name, .. } = Status::of(tid);
        if known.recorded.len() >= THREADS_MAX {
            known.recorded.clear();
        }
        let is_new = !known.has_process(pid);
        known.recorded.insert(tid, pid);
        let command = known.commands.remove(&pid).unwrap_or_default();
        if is_new { Found::New { pid, name, command } } else { Found::Known(pid) }
    }
}

fn text(tid: u32, file: &str) -> String {
    // A thread that is gone has no entry, and the recording then has its number only.
    fs::read_to_string(format!("/proc/{tid}/{file}")).unwrap_or_default()
}

/// What the kernel has of a process without any lock of it.
struct Status {
    pid: u32,
    name: String,
    threads: Option<u32>,
}

impl Status {
    fn of(tid: u32) -> Status {
        let status = text(tid, "status");
        let field =
            |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map_or("", |value| value.trim());
        let pid = field("Tgid:").parse().unwrap_or(tid);
        Status { pid, name: field("Name:").to_owned(), threads: field("Threads:").parse().ok() }
    }
}

/// Whether a process with one thread shares its memory with no other process. The child of a
/// vfork(2) does until it runs a program; that of a fork(2), which does not, looks the same.
fn has_own_memory(tid: u32) -> bool {
    has_run_program(&text(tid, "stat"))
}

/// By the line `/proc/PID/stat`, whose second field is a name in parentheses. False if not known.
fn has_run_program(stat: &str) -> bool {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_whitespace().nth(STAT_FLAGS).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & FORKED_ONLY == 0)
}

/// The command line of a thread's process. The kernel takes the mmap lock of the process for that.
fn command(tid: u32) -> String {
    text(tid, "cmdline").replace('\0', " ").trim().chars().take(COMMAND_MAX).collect()
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
