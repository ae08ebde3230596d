//! Finds the callers of a recorded call.
//!
//! The calling thread waits in the kernel until its call returns, so its stack does not change.
//! `/proc/TID/syscall` has its program counter and stack pointer. The callers are found with the
//! tables that compilers emit for exceptions (`.eh_frame`).
//!
//! A wrong caller is worse than none. So no unknown register is guessed, and each return address
//! must follow a call instruction. Unwinders of profilers silently use the frame pointer where the
//! tables have no entry; this one stops there and reports that.
//!
//! A function that addresses its stack by the frame pointer needs that register, which only the
//! kernel knows. So the register's value is searched for on the stack: a saved frame pointer next
//! to a return address that follows a call of this very function, and from which the tables lead
//! on. If there are several candidates, or only indirect calls that may have called the function,
//! the report marks the callers as a guess.
//!
//! Go's functions have no such tables. Their callers are found with the table that Go's runtime
//! uses itself.
//!
//! # A separate thread
//! Reading the memory of a process takes its mmap lock. One of the threads of the process may hold
//! that lock while it waits for this mount: at munmap the kernel writes pages back. So a thread
//! that serves requests must not wait without a bound. It sends a question to a separate thread,
//! and continues without callers if the reply takes too long.

mod binary;
mod go;
mod process;
mod unwind;

use binary::Binaries;
use kedge_base::spawn_named;
use process::{Process, Snapshot};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// The time limit for reading the other process, whose mmap lock may be held (see above).
const READ_WAIT: Duration = Duration::from_secs(1);
/// The time limit for names and lines. These need no lock, but the first use of a large program
/// reads all of it.
const NAMES_WAIT: Duration = Duration::from_secs(60);
/// The most callers that are kept for a call.
const FRAMES_MAX: usize = 24;
/// The most processes whose mappings are kept. At the limit all are dropped.
const PROCESSES_MAX: usize = 256;

/// Whether this architecture is supported.
pub(crate) const IS_SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// The replies to a question, which are sent in this order.
enum Answer {
    /// The other process was read, and its lock is no longer needed.
    IsRead,
    Frames(Vec<String>),
}

struct Question {
    pid: u32,
    tid: u32,
    answer: SyncSender<Answer>,
}

/// Finds the callers of calls.
pub(crate) struct Stacks {
    ask: SyncSender<Question>,
    missing: AtomicU64,
}

impl Stacks {
    /// Starts the thread. Files below `mount` are not read: the thread that asks would have to
    /// serve the read.
    pub fn start(mount: &Path) -> io::Result<Stacks> {
        let (ask, questions) = sync_channel(1);
        let mount = mount.to_owned();
        // The thread is detached. It ends when all senders are dropped.
        spawn_named("kedge-stacks", move || serve(&questions, mount))?;
        Ok(Stacks { ask, missing: AtomicU64::new(0) })
    }

    /// The callers of the call in which a thread waits, innermost first. Empty if they cannot be
    /// found.
    pub fn of(&self, pid: u32, tid: u32) -> Vec<String> {
        let frames = self.look(pid, tid).unwrap_or_default();
        if frames.is_empty() {
            self.missing.fetch_add(1, Ordering::Relaxed);
        }
        frames
    }

    fn look(&self, pid: u32, tid: u32) -> Option<Vec<String>> {
        let (answer, heard) = sync_channel(2);
        // If the thread is stuck on a process that cannot be read, one more question waits for its
        // full time limit; a third is refused at once.
        self.ask.try_send(Question { pid, tid, answer }).ok()?;
        match heard.recv_timeout(READ_WAIT).ok()? {
            Answer::Frames(frames) => Some(frames),
            Answer::IsRead => match heard.recv_timeout(NAMES_WAIT).ok()? {
                Answer::Frames(frames) => Some(frames),
                Answer::IsRead => None,
            },
        }
    }

    /// The number of calls whose callers were not found.
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }
}

fn serve(questions: &Receiver<Question>, mount: PathBuf) {
    let mut binaries = Binaries::new(mount);
    let mut processes: HashMap<u32, Process> = HashMap::new();
    while let Ok(Question { pid, tid, answer }) = questions.recv() {
        let frames = match Snapshot::take(pid, tid) {
            Ok(snapshot) => {
                // If the asking thread has stopped waiting, it needs no names either.
                if answer.send(Answer::IsRead).is_err() {
                    continue;
                }
                if processes.len() >= PROCESSES_MAX {
                    processes.clear();
                }
                let known = processes.remove(&pid).filter(|p| p.is_of(&snapshot));
                let process = known.unwrap_or_else(|| Process::new(&snapshot, &mut binaries));
                let process = processes.entry(pid).or_insert(process);
                told(process.frames(&snapshot, FRAMES_MAX))
            }
            Err(e) => {
                tracing::debug!("the stack of thread {tid}: {e}");
                Vec::new()
            }
        };
        // The asking thread may have stopped waiting.
        let _nobody_waits = answer.send(Answer::Frames(frames));
    }
}

/// A function on the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The name; `None` if no table has one.
    name: Option<String>,
    /// The file and line, or the binary and the offset in it.
    place: String,
    /// Whether the function belongs to the C or the Rust library.
    is_library: bool,
}

/// Selects the useful frames: those of the program, and the library functions that it called. The
/// frames inside the language's library, and those from there to `main`, are the same in all
/// programs.
fn told(mut frames: Vec<Frame>) -> Vec<String> {
    while let [first, second, ..] = &frames[..]
        && first.is_library
        && second.is_library
    {
        frames.remove(0);
    }
    let is_start = |f: &Frame| f.name.as_deref().is_some_and(|n| n.contains("__rust_begin_short_backtrace"));
    let is_main = |f: &Frame| matches!(f.name.as_deref(), Some("main" | "main.main"));
    if let Some(start) = frames.iter().position(is_start) {
        frames.truncate(start);
        // The frame through which Rust calls `main`: `FnOnce::call_once` by the old rules of
        // naming, `FnOnce<()>>::call_once` by the new ones (v0).
        let calls_main = |name: &str| name.contains("FnOnce") && name.ends_with("::call_once");
        frames.pop_if(|f| f.name.as_deref().is_some_and(calls_main));
    } else if let Some(main) = frames.iter().position(is_main) {
        frames.truncate(main + 1);
    }
    let text = |f: &Frame| match &f.name {
        Some(name) => format!("{name} at {}", f.place),
        None => f.place.clone(),
    };
    frames.iter().map(text).collect()
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
