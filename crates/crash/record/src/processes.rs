//! The processes of the calling threads, as /proc shows them.
//!
//! # Why no thread waits for a command line without a bound
//! Reading a command line takes the mmap lock of the process. Another thread of the process may
//! hold that lock while it waits for this mount: munmap writes the dirty pages of a mapping. So:
//! - The command line is read before the log is locked, since recording these pages needs the log.
//! - If no other thread shares the caller's memory, no thread holds that lock, since the caller
//!   itself waits for the mount.
//! - Otherwise a few threads read at a time, far fewer than a mount has workers.
//! - Some calls hold pages back until their reply: a write(2) the pages that it writes, a truncate
//!   all pages of the file. munmap may wait for just these. For such a call of a process that
//!   shares its memory, no command line is read.
//!
//! If the command line is not read, the recording has only the name of the process, which needs no
//! lock.

use kedge_base::wait::about_to_wait;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The most bytes of a command line that are recorded, since people read it.
const COMMAND_MAX: usize = 200;
/// The most threads whose process is remembered. At the limit all are dropped, and a process may
/// get a second event.
const THREADS_MAX: usize = 1 << 16;
/// The most threads that read a command line at a time. At the limit the recording of a process has
/// none.
const READERS_MAX: usize = 16;

/// The index of the flags in `/proc/PID/stat`, counted after the name.
const STAT_FLAGS: usize = 6;
/// The flag of a process that was forked and has run no program since (`PF_FORKNOEXEC`).
const FORKED_ONLY: u32 = 0x40;

/// The process of the calling thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Known(u32),
    /// The recording has no call of this process yet. `command` is empty if it was not read.
    New {
        pid: u32,
        name: String,
        command: String,
    },
}

/// The processes of the recorded calls. Its lock is taken while that of the log is held, and no
/// thread waits while it holds it.
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
    /// Reads what [`Processes::of`] needs for a call of this thread. `may_wait` says that the call
    /// holds no pages back. The caller must hold no lock that a WRITE needs.
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

    /// The command line of a process whose memory other threads may share, so that one of them may
    /// hold the mmap lock. `None` if [`READERS_MAX`] threads are reading.
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
    // A thread that has ended has no entry; the recording then has only its number.
    fs::read_to_string(format!("/proc/{tid}/{file}")).unwrap_or_default()
}

/// The facts about a process that /proc shows without taking any lock of it.
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

/// Whether a process with one thread certainly shares its memory with no other process. The child
/// of a vfork(2) shares memory until it runs a program. The child of a fork(2) does not, but cannot
/// be distinguished from it.
fn has_own_memory(tid: u32) -> bool {
    has_run_program(&text(tid, "stat"))
}

/// Whether the process has run a program since it was forked, by the line `/proc/PID/stat`, whose
/// second field is a name in parentheses. False if that is not known.
fn has_run_program(stat: &str) -> bool {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_whitespace().nth(STAT_FLAGS).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & FORKED_ONLY == 0)
}

/// The command line of a thread's process. The kernel takes the mmap lock of the process for this.
fn command(tid: u32) -> String {
    text(tid, "cmdline").replace('\0', " ").trim().chars().take(COMMAND_MAX).collect()
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
